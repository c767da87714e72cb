package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/daemon"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

func storeChecks() []Check {
	return slices.Concat(settingsChecks(), []Check{
		{Name: "store", For: settled, Looks: "`store.url`", Wants: "a store that answers", run: reached},
		{Name: "tables", For: settled, Looks: "the migrations", Wants: "all of them, and none that this program does not know", run: migrations},
	}, postgresChecks(), mysqlChecks(), sqliteChecks(), tableChecks())
}

func reached(_ context.Context, p *patient) (Finding, error) {
	if p.noStore != nil {
		return failed(p.noStore), nil
	}
	return good("%s answers", p.store.Address), nil
}

func migrations(ctx context.Context, p *patient) (Finding, error) {
	if p.noStore != nil {
		return unseen("the store cannot be reached"), nil
	}
	all, err := p.store.Migrations(ctx)
	if err != nil {
		return Finding{}, err
	}
	var missing, unknown []string
	for _, m := range all {
		name := fmt.Sprintf("%d %s", m.Version, m.Name)
		switch {
		case m.Unknown:
			unknown = append(unknown, name)
		case m.AppliedAt.IsZero():
			missing = append(missing, name)
		}
	}
	switch {
	case len(missing) > 0:
		return fail("waybill migrate up", "%d of %d migrations were not applied: %s", len(missing), len(all), strings.Join(missing, ", ")), nil
	case len(unknown) > 0:
		return fail("use the version of waybill that made them", "the tables are newer than this program, which does not know %s", strings.Join(unknown, ", ")), nil
	}
	return good("all %d migrations were applied", len(all)), nil
}

// tableChecks are about what is in the tables.
func tableChecks() []Check {
	return []Check{
		{Name: "clock", For: anyStore, Looks: "the clocks of this machine and of the database", Wants: "less than 2 s between them", run: clock},
		{Name: "relay", For: anyStore, Looks: "live relays and their lanes", Wants: "a relay of this name that is alive, and every lane with an owner", run: lanes},
		{Name: "outbox", For: anyStore, Looks: "the sink and the relay name that the outbox remembers", Wants: "those of these settings", run: remembered},
		{Name: "waiting", For: anyStore, Looks: "the oldest event that is ready", Wants: "less than a minute of age", run: waiting},
		{Name: "dead letters", For: anyStore, Looks: "events that were given up", Wants: "none", run: deadLetters},
		{Name: "blocked", For: anyStore, Looks: "aggregates that wait for an operator", Wants: "none", run: blocked},
		{Name: "inbox", For: anyStore, Looks: "dead records of consumer groups", Wants: "none", run: inboxDead},
		{Name: "keys", For: anyStore, Looks: "idempotency keys that are uncertain", Wants: "none", run: uncertain},
	}
}

// clockLimit is how far clocks may be apart. Leases go by the database's clock alone; what this machine's is for are times that people read.
const clockLimit = 2 * time.Second

func clock(ctx context.Context, p *patient) (Finding, error) {
	sent := p.now()
	s, err := p.desk.Stats(ctx)
	if err != nil {
		return Finding{}, err
	}
	took := p.now().Sub(sent)
	skew := s.Now.Sub(sent.Add(took / 2)).Abs()
	if skew-took/2 > clockLimit {
		return warn("timedatectl set-ntp true, on both machines", "this machine's clock and the database's are %s apart: times of events mean little",
			settings.FormatDuration(skew.Round(time.Second))), nil
	}
	return good("the clocks agree"), nil
}

func lanes(ctx context.Context, p *patient) (Finding, error) {
	s, err := p.desk.Stats(ctx)
	if err != nil {
		return Finding{}, err
	}
	var free []string
	for _, l := range s.Lanes {
		if !l.Live {
			free = append(free, fmt.Sprint(l.Lane))
		}
	}
	for _, n := range s.Nodes {
		if n.Relay != p.Relay.Name {
			return fail("set relay.name to "+n.Relay+", or use tables of your own (store.prefix, store.schema)",
				"a relay called %s has these tables, and this one is called %s: it will refuse to start", n.Relay, p.Relay.Name), nil
		}
	}
	if p.CDC.Enabled {
		if len(s.Nodes) > 0 {
			return fail("stop the relay, or set cdc.enabled to false", "a relay is alive, and cdc.enabled is on: each event is published by both, or is gone before it is read"), nil
		}
		return good("no relay is alive: change data capture publishes the events"), nil
	}
	start, err := p.starter(ctx)
	if err != nil {
		return Finding{}, err
	}
	switch {
	case len(s.Nodes) == 0 && s.Ready > 0:
		return fail(start, "no relay is alive, and %d events wait", s.Ready), nil
	case len(s.Nodes) == 0:
		return warn(start, "no relay is alive"), nil
	case len(free) > 0:
		return warn("wait for "+settings.FormatDuration(p.Relay.Lease)+" and look again; if it stays, see the relay's log",
			"%d of %d lanes have no owner: %s", len(free), len(s.Lanes), strings.Join(free, ", ")), nil
	}
	return good("%d relays are alive and have all %d lanes", len(s.Nodes), len(s.Lanes)), nil
}

// starter returns how to start the relay of this outbox: not every outbox is one that waybill serve
// may deliver.
func (p *patient) starter(ctx context.Context) (string, error) {
	recorded, err := p.store.RecordedSink(ctx)
	if err != nil {
		return "", err
	}
	own, noSink := daemon.Fingerprint(p.Settings)
	switch {
	case recorded != "" && (noSink != nil || recorded != own):
		return "start the service, or the waybill serve, that delivers to " + recorded, nil
	case noSink != nil:
		return "start the service whose relay delivers these events; if there is none: waybill serve --sink URL", nil
	}
	return "waybill serve", nil
}

// remembered compares the sink of the settings with the one that the outbox remembers.
func remembered(ctx context.Context, p *patient) (Finding, error) {
	recorded, err := p.store.RecordedSink(ctx)
	if err != nil {
		return Finding{}, err
	}
	own, err := daemon.Fingerprint(p.Settings)
	switch {
	case recorded == "":
		return good("no relay has served it yet"), nil
	case errors.Is(err, connect.ErrNoSink):
		return good("its events go to %s; these settings name no sink", recorded), nil
	case err != nil:
		return unseen("the settings name no sink that is known"), nil
	case recorded != own && !p.TakeOver:
		return fail("start the relay that delivers there; if waybill serve is to replace it for good: waybill serve --take-over, once",
			"its events go to %s, and these settings say %s: serve will refuse to start", recorded, own), nil
	case recorded != own:
		return warn("start serve once with --take-over, then without", "its events go to %s, and serve will take it over for %s", recorded, own), nil
	}
	return good("its events go to %s", recorded), nil
}

// waitingLimit is how old a ready event may be that a relay is getting to, and waitingTooLong how
// old it is when something is wrong.
const (
	waitingLimit   = time.Minute
	waitingTooLong = 5 * time.Minute
)

// waiting looks at the age of the oldest event that is ready: whatever the reason is, events that
// wait for minutes are not in order.
func waiting(ctx context.Context, p *patient) (Finding, error) {
	s, err := p.desk.Stats(ctx)
	if err != nil {
		return Finding{}, err
	}
	if s.Oldest.IsZero() || s.Ready == 0 {
		return good("no event is ready"), nil
	}
	if p.CDC.Enabled {
		return good("events stay for cdc.keep (%s), whether or not they were read", settings.FormatDuration(p.CDC.Keep)), nil
	}
	age := s.Now.Sub(s.Oldest)
	shown := settings.FormatDuration(age.Round(time.Second))
	const advice = "see the relay's log, its /readyz and the metric destination_paused: is the destination down? Then waybill list --state ready"
	switch {
	case age >= waitingTooLong:
		return fail(advice, "%s ready, and none is delivered: the oldest has waited for %s", events(s.Ready), shown), nil
	case age >= waitingLimit:
		return warn(advice, "%s ready, and the oldest has waited for %s so far", events(s.Ready), shown), nil
	}
	return good("no event has waited for longer than %s", settings.FormatDuration(waitingLimit)), nil
}

func events(n int64) string {
	if n == 1 {
		return "1 event is"
	}
	return fmt.Sprintf("%d events are", n)
}

func deadLetters(ctx context.Context, p *patient) (Finding, error) {
	s, err := p.desk.Stats(ctx)
	if err != nil {
		return Finding{}, err
	}
	if s.Dead > 0 {
		return warn("waybill dead list; then waybill dead replay or waybill dead discard", "%d events were given up", s.Dead), nil
	}
	return good("there are none"), nil
}

// blockedLimit is how many are counted.
const blockedLimit = 100

func blocked(ctx context.Context, p *patient) (Finding, error) {
	all, err := p.desk.Blocked(ctx, blockedLimit)
	if err != nil {
		return Finding{}, err
	}
	waiting := 0
	for _, b := range all {
		if !b.By.EndedAt.IsZero() { // a dead letter: nothing but an operator ends that
			waiting++
		}
	}
	if waiting > 0 {
		return warn("waybill blocked list; then waybill dead replay ID or waybill blocked unblock ID", "%d aggregates wait behind a dead letter", waiting), nil
	}
	return good("no aggregate waits for an operator"), nil
}

func inboxDead(ctx context.Context, p *patient) (Finding, error) {
	groups, err := p.groups.Stats(ctx, false)
	if err != nil {
		return Finding{}, err
	}
	var names []string
	for _, g := range groups {
		if g.Dead > 0 {
			names = append(names, fmt.Sprintf("%s has %d", g.Group, g.Dead))
		}
	}
	if len(names) > 0 {
		return warn("waybill inbox list --state dead; then waybill inbox redrive GROUP --all", "consumer groups have dead records: %s", strings.Join(names, ", ")), nil
	}
	return good("no group has dead records"), nil
}

func uncertain(ctx context.Context, p *patient) (Finding, error) {
	s, err := p.keys.Stats(ctx)
	if err != nil {
		return Finding{}, err
	}
	if s.Uncertain > 0 {
		return warn("waybill keys list --state uncertain; then waybill keys resolve", "%d idempotency keys wait for a decision: did it happen or not?", s.Uncertain), nil
	}
	return good("none is uncertain"), nil
}

func sqliteChecks() []Check {
	return []Check{{
		Name: "sqlite durability", For: connect.SQLite, Looks: "`journal_mode`, `synchronous`", Wants: "WAL and FULL",
		run: func(ctx context.Context, p *patient) (Finding, error) {
			var mode string
			var level int
			err := errors.Join(p.store.SQL.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode), p.store.SQL.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&level))
			const full = 2
			switch {
			case err != nil:
				return Finding{}, err
			case mode != "wal":
				return fail("sqlite3 FILE 'PRAGMA journal_mode = WAL'", "the journal mode is %s: readers and writers stop each other", mode), nil
			case level < full:
				return fail("open it with _synchronous=FULL", "synchronous is %d: a power failure may take back what was delivered", level), nil
			}
			return good("journal_mode is wal, synchronous is full"), nil
		},
	}}
}

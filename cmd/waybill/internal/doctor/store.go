package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/daemon"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

func storeChecks() []Check {
	return slices.Concat(settingsChecks(), []Check{
		{Name: "store", For: settled, Looks: "`store.url`", Wants: "a store that answers", run: reached},
		{Name: "tables", For: settled, Looks: "the migrations", Wants: "all applied, none unknown to this program", run: migrations},
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
		return unseen("the store is unreachable"), nil
	}
	all, err := p.store.Migrator.Migrations(ctx)
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
		return fail("waybill migrate up", "%d of %d migrations are not applied: %s", len(missing), len(all), strings.Join(missing, ", ")), nil
	case len(unknown) > 0:
		return fail("use the version of waybill that applied them", "the tables are newer than this program, which does not know %s", strings.Join(unknown, ", ")), nil
	}
	return good("all %d migrations are applied", len(all)), nil
}

// tableChecks inspect the rows of the tables.
func tableChecks() []Check {
	return []Check{
		{Name: "clock", For: anyStore, Looks: "the clocks of this machine and of the database", Wants: "a difference below 2 s", run: clock},
		{Name: "relay", For: anyStore, Looks: "live relays and their lanes", Wants: "a live relay of this name, and an owner for every lane", run: lanes},
		{Name: "outbox", For: anyStore, Looks: "the sink and the relay name that the outbox records", Wants: "those of the settings", run: recordedSink},
		{Name: "waiting", For: anyStore, Looks: "the age of the oldest ready event", Wants: "less than a minute", run: waiting},
		{Name: "dead letters", For: anyStore, Looks: "the number of dead letters", Wants: "none", run: deadLetters},
		{Name: "blocked", For: anyStore, Looks: "aggregates that wait for an operator", Wants: "none", run: blocked},
		{Name: "inbox", For: anyStore, Looks: "dead records of consumer groups", Wants: "none", run: inboxDead},
		{Name: "keys", For: anyStore, Looks: "uncertain idempotency keys", Wants: "none", run: uncertain},
	}
}

// clockLimit is the maximum difference between the clocks. Leases use the
// database's clock only; the local clock is used for displayed times.
const clockLimit = 2 * time.Second

func clock(ctx context.Context, p *patient) (Finding, error) {
	sent := p.now()
	s, err := p.ops.Stats(ctx)
	if err != nil {
		return Finding{}, err
	}
	took := p.now().Sub(sent)
	skew := s.Now.Sub(sent.Add(took / 2)).Abs()
	if skew-took/2 > clockLimit {
		return warn("timedatectl set-ntp true, on both machines", "the clocks of this machine and the database are %s apart: times of events are unreliable",
			settings.FormatDuration(skew.Round(time.Second))), nil
	}
	return good("the clocks agree"), nil
}

func lanes(ctx context.Context, p *patient) (Finding, error) {
	s, err := p.ops.Stats(ctx)
	if err != nil {
		return Finding{}, err
	}
	var free, gone []string
	for _, l := range s.Lanes {
		if l.Live {
			continue
		}
		free = append(free, fmt.Sprint(l.Lane))
		if name := l.Owner.String(); !l.Owner.IsZero() && !slices.Contains(gone, name) {
			gone = append(gone, name)
		}
	}
	for _, n := range s.Nodes {
		if n.Relay != p.Relay.Name {
			return fail("set relay.name to "+n.Relay+", or use separate tables (store.prefix, store.schema)",
				"relay %s owns these tables, and relay.name is %s: serve will refuse to start", n.Relay, p.Relay.Name), nil
		}
	}
	if p.CDC.Enabled {
		if len(s.Nodes) > 0 {
			return fail("stop the relay, or set cdc.enabled to false", "a relay is alive, and cdc.enabled is on: events are published twice, or deleted before they are read"), nil
		}
		return good("no relay is alive: change data capture publishes the events"), nil
	}
	start, err := p.starter(ctx)
	if err != nil {
		return Finding{}, err
	}
	switch {
	case len(s.Nodes) == 0 && s.Ready > 0 && len(gone) > 0:
		return fail(start, "no relay is alive, and %d events are ready; %s ended without releasing its lanes: it was killed, or is cut off from the database",
			s.Ready, named("node", gone)), nil
	case len(s.Nodes) == 0 && s.Ready > 0:
		return fail(start, "no relay is alive, and %d events are ready", s.Ready), nil
	case len(s.Nodes) == 0:
		return warn(start, "no relay is alive"), nil
	case len(free) > 0 && len(gone) > 0:
		return warn("wait for "+settings.FormatDuration(p.Relay.Lease)+" and run doctor again; if the warning remains, see the log of "+named("node", gone),
			"%d of %d lanes belong to %s, which is gone: it was killed, or is cut off from the database", len(free), len(s.Lanes), named("node", gone)), nil
	case len(free) > 0:
		return warn("wait for "+settings.FormatDuration(p.Relay.Lease)+" and run doctor again; if the warning remains, see the relay's log",
			"%d of %d lanes have no owner: %s", len(free), len(s.Lanes), strings.Join(free, ", ")), nil
	}
	// Those of destinations are in the findings about them.
	own := slices.DeleteFunc(admin.Troubles(s.Stats), func(t admin.Trouble) bool { return t.Destination != "" })
	if len(own) > 0 {
		return troubled(own), nil
	}
	return good("%d live relays own all %d lanes", len(s.Nodes), len(s.Lanes)), nil
}

// named returns names with their noun.
func named(noun string, names []string) string {
	if len(names) > 1 {
		noun += "s"
	}
	return noun + " " + strings.Join(names, ", ")
}

// starter returns the command that starts the relay of this outbox: waybill
// serve must not deliver every outbox.
func (p *patient) starter(ctx context.Context) (string, error) {
	recorded, err := p.store.SinkGuard.RecordedSink(ctx)
	if err != nil {
		return "", err
	}
	own, noSink := daemon.Fingerprint(p.Settings)
	switch {
	case recorded != "" && (noSink != nil || recorded != own):
		return "start the service, or the waybill serve, that delivers to " + recorded, nil
	case noSink != nil:
		return "start the service whose relay delivers these events; without such a service: waybill serve --sink URL", nil
	}
	return "waybill serve", nil
}

// recordedSink compares the sink of the settings with the one that the outbox
// records.
func recordedSink(ctx context.Context, p *patient) (Finding, error) {
	recorded, err := p.store.SinkGuard.RecordedSink(ctx)
	if err != nil {
		return Finding{}, err
	}
	own, err := daemon.Fingerprint(p.Settings)
	switch {
	case recorded == "":
		return good("the outbox records no relay yet"), nil
	case errors.Is(err, connect.ErrNoSink):
		return good("the outbox records %s; the settings name no sink", recorded), nil
	case err != nil:
		return unseen("the settings name no known kind of sink"), nil
	case recorded != own && !p.TakeOver:
		return fail("start the relay that delivers to the recorded sink; to replace it permanently: waybill serve --take-over, once",
			"the outbox records %s, and the settings name %s: serve will refuse to start", recorded, own), nil
	case recorded != own:
		return warn("start serve once with --take-over, then without it", "the outbox records %s, and serve will take it over for %s", recorded, own), nil
	}
	return good("the outbox records %s", recorded), nil
}

// waitingLimit is the maximum normal age of a ready event, and waitingTooLong
// the age at which delivery has failed.
const (
	waitingLimit   = time.Minute
	waitingTooLong = 5 * time.Minute
)

// waiting checks the age of the oldest ready event: events that wait for
// minutes are a problem, whatever the reason.
func waiting(ctx context.Context, p *patient) (Finding, error) {
	s, err := p.ops.Stats(ctx)
	if err != nil {
		return Finding{}, err
	}
	if s.Oldest.IsZero() || s.Ready == 0 {
		return good("no event is ready"), nil
	}
	if p.CDC.Enabled {
		return good("events are kept for cdc.retention (%s), read or not", settings.FormatDuration(p.CDC.Retention)), nil
	}
	age := s.Now.Sub(s.Oldest)
	shown := settings.FormatDuration(age.Round(time.Second))
	const advice = "check the relay's log, its /readyz and the metric destination_paused for an unavailable destination; then waybill list --state ready"
	switch {
	case age >= waitingTooLong:
		return fail(advice, "%s ready, and no event is delivered: the oldest has waited for %s", events(s.Ready), shown), nil
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
	s, err := p.ops.Stats(ctx)
	if err != nil {
		return Finding{}, err
	}
	if s.Dead > 0 {
		return warn("waybill dead list; then waybill dead replay or waybill dead discard", "%d dead letters", s.Dead), nil
	}
	return good("no dead letters"), nil
}

// blockedLimit is the maximum number of counted aggregates.
const blockedLimit = 100

func blocked(ctx context.Context, p *patient) (Finding, error) {
	all, err := p.ops.Blocked(ctx, blockedLimit)
	if err != nil {
		return Finding{}, err
	}
	waiting := 0
	for _, b := range all {
		if !b.By.EndedAt.IsZero() { // a dead letter: only an operator can resolve it
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
		return warn("waybill keys list --state uncertain; then waybill keys resolve", "%d uncertain idempotency keys wait for a decision", s.Uncertain), nil
	}
	return good("no uncertain keys"), nil
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
				return fail("sqlite3 FILE 'PRAGMA journal_mode = WAL'", "the journal mode is %s: readers and writers block each other", mode), nil
			case level < full:
				return fail("open it with _synchronous=FULL", "synchronous is %d: a power failure may roll back transactions whose events were delivered", level), nil
			}
			return good("journal_mode is wal, synchronous is full"), nil
		},
	}}
}

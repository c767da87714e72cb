// Package doctor checks a configuration and its servers, and suggests fixes. It
// only reads. A check that cannot run, because a server does not answer or the
// account lacks a right, is "not checked", never "ok".
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
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/httpapi"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// Status is the result of a check.
type Status string

// The results of a check.
const (
	OK         Status = "ok"
	Warn       Status = "warn"
	Fail       Status = "fail"
	NotChecked Status = "not checked"
)

// Finding is the result of a check with its text.
type Finding struct {
	// Check is the name of the check. If there are several destinations, that
	// of a check of one of them begins with its name: "billing: sink".
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Text describes the finding.
	Text string `json:"finding"`
	// Type is the command to type, or the setting to change.
	Type string `json:"type,omitempty"`
}

// Check is a row of the table.
type Check struct {
	Name string
	// For is the subject of the check: a kind of store or sink, or "any store",
	// "any sink", "any destination", "settings".
	For string
	// Looks describes the inspected values, and Wants the expected ones.
	Looks, Wants string

	run func(ctx context.Context, p *patient) (Finding, error)
}

// Subjects of checks, besides the kinds of stores and sinks.
const (
	anyStore       = "any store" // with its tables
	anySink        = "any sink"
	anyDestination = "any destination" // of several
	settled        = "settings"
)

// Table returns every check, in the order of execution.
func Table() []Check {
	return slices.Concat(storeChecks(), destinationChecks(), sinkChecks())
}

// Config is the configuration of a run.
type Config struct {
	Settings *settings.Settings
	// Timeout is the time limit for one check. Defaults to 15 s.
	Timeout time.Duration
}

// patient is the configuration under inspection, with its open servers.
type patient struct {
	*settings.Settings
	store  *connect.Store
	ops    *admin.Outbox
	groups *admin.Inbox
	keys   *admin.Keys
	// noStore, noTables and noSink are the reasons why checks of these cannot
	// run; nil if they can.
	noStore, noTables, noSink error
	sink                      probe
	// destinations are the destinations, each with its own sink. to is the
	// destination that a patient of this list is.
	destinations []*patient
	to           *destination

	// For tests: the local clock, the minimum age of an old transaction, and
	// the maximum lag of a reader.
	now     func() time.Time
	long    time.Duration
	lag     int64
	scrub   *settings.Scrubber
	timeout time.Duration
}

// longTransaction is the age at which a transaction delays vacuum or purge.
const longTransaction = 5 * time.Minute

// Run runs all checks that apply to the settings.
func Run(ctx context.Context, cfg Config) []Finding {
	p := &patient{Settings: cfg.Settings, now: time.Now, long: longTransaction, lag: cdcLag, timeout: cfg.Timeout}
	p.open(ctx)
	defer p.close()
	return p.examine(ctx, Table())
}

// open opens the store and the sinks. A failure to open is a finding of its
// own.
func (p *patient) open(ctx context.Context) {
	p.scrub = settings.NewScrubber(p.Secrets()...)
	if p.timeout == 0 {
		p.timeout = 15 * time.Second
	}
	if p.store, p.noStore = connect.OpenStore(ctx, p.Store, false); p.noStore == nil {
		p.noTables = p.openTables(ctx)
	} else {
		p.noTables = errors.New("the store is unreachable")
	}
	within, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	p.openDestinations(within)
	if len(p.Destinations) == 0 {
		p.sink, p.noSink = dial(within, p.Sink)
	}
}

func (p *patient) openTables(ctx context.Context) (err error) {
	if err := p.store.Ready(ctx); err != nil {
		return err
	}
	var cfg admin.Config
	if p.ops, err = admin.NewOutbox(p.store, cfg); err != nil {
		return err
	}
	if p.groups, err = admin.NewInbox(p.store, cfg); err != nil {
		return err
	}
	p.keys, err = admin.NewKeys(p.store, cfg)
	return err
}

func (p *patient) close() {
	if p.store != nil {
		_ = p.store.Close()
	}
	for _, one := range append(p.destinations, p) {
		if one.sink != nil {
			one.sink.close()
		}
	}
}

func (p *patient) examine(ctx context.Context, checks []Check) []Finding {
	var out []Finding
	for _, c := range checks {
		if !p.concerns(c) {
			continue
		}
		f := p.one(ctx, c)
		f.Check = c.Name
		f.Text = p.scrub.Clean(strings.Join(strings.Fields(f.Text), " "))
		if p.to != nil {
			f = p.to.own(f)
		}
		out = append(out, f)
	}
	for _, one := range p.destinations {
		out = append(out, one.examine(ctx, checks)...)
	}
	return out
}

// concerns reports whether a check applies to this configuration, or to this
// destination.
func (p *patient) concerns(c Check) bool {
	switch {
	case c.For == anyDestination:
		return p.to != nil
	case c.For == anyStore || c.For == settled || c.For == storeKind(p.Store):
		return p.to == nil
	case p.to != nil && p.to.settings == nil || p.to == nil && len(p.Destinations) > 0:
		return false // no sink, or several
	}
	return c.For == anySink || c.For == sinkKind(p.Sink)
}

// one runs a check. A check whose subject is not available is not checked.
func (p *patient) one(ctx context.Context, c Check) Finding {
	switch {
	case (c.For == anyStore || c.For == anyDestination) && p.noTables != nil:
		return unseen("the tables are missing")
	case c.For == storeKind(p.Store) && p.noStore != nil:
		return unseen("the store is unreachable")
	case c.For == sinkKind(p.Sink) && p.noSink != nil:
		return unseen("the sink cannot be inspected")
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	f, err := c.run(ctx, p)
	if err != nil {
		return unseen("cannot be inspected: " + err.Error())
	}
	return f
}

func good(format string, args ...any) Finding {
	return Finding{Status: OK, Text: fmt.Sprintf(format, args...)}
}

func unseen(text string) Finding { return Finding{Status: NotChecked, Text: text} }

func warn(advice, format string, args ...any) Finding {
	return Finding{Status: Warn, Text: fmt.Sprintf(format, args...), Type: advice}
}

func fail(advice, format string, args ...any) Finding {
	return Finding{Status: Fail, Text: fmt.Sprintf(format, args...), Type: advice}
}

// failed converts an error with a hint to a finding.
func failed(err error) Finding { return fail(hint.Of(err), "%s", err.Error()) }

func storeKind(s settings.Store) string {
	scheme, _, _ := strings.Cut(s.URL.Reveal(), ":")
	if scheme == "postgresql" {
		return connect.Postgres
	}
	return scheme
}

// settingsChecks need no server.
func settingsChecks() []Check {
	return []Check{
		{
			Name: "enabled", For: settled, Looks: "`enabled`, `relay.enabled`", Wants: "an enabled relay",
			run: func(_ context.Context, p *patient) (Finding, error) {
				if p.Enabled && p.CDC.Enabled {
					return good("the relay is disabled: change data capture publishes the events"), nil
				}
				if !p.Enabled || !p.Relay.Enabled {
					return warn("set enabled and relay.enabled to true", "the relay is disabled: it delivers no events"), nil
				}
				return good("the relay is enabled"), nil
			},
		},
		{
			Name: "http", For: settled, Looks: "`http.listen`, `http.token`, `http.cert`", Wants: "loopback, or a token and a certificate",
			run: func(_ context.Context, p *patient) (Finding, error) {
				if err := httpapi.Check(p.HTTP); err != nil {
					return failed(err), nil
				}
				return good("the HTTP API is protected"), nil
			},
		},
		{
			Name: "retention", For: settled, Looks: "`inbox.retention`, `relay.max-attempts`, the backoff, `relay.dead-retention`; those of the destinations",
			Wants: "inbox records that outlive the last delivery of their event", run: retention,
		},
	}
}

// retention compares the retention of inbox records with the time during which
// the relay may deliver an event again.
func retention(_ context.Context, p *patient) (Finding, error) {
	keep := p.Inbox.Retention
	if keep == 0 {
		return good("inbox records are kept forever"), nil
	}
	last, ever := p.lastAttempt()
	show := settings.FormatDuration
	switch {
	case ever:
		name := "relay.max-attempts"
		if len(p.Destinations) > 0 {
			name = "max-attempts of every destination"
		}
		return warn("set "+name+", or inbox.retention to 0s", "an event may be delivered at any time, because max-attempts is off, and inbox.retention is %s: "+
			"an event that is delivered later is applied again", show(keep)), nil
	case keep < last:
		return fail("set inbox.retention to more than "+show(last.Round(time.Second)), "inbox.retention is %s, and the relay's last attempt may be %s after the first: "+
			"an event that is delivered after the retention is applied again", show(keep), show(last.Round(time.Second))), nil
	case p.Relay.DeadRetention == 0 || p.Relay.DeadRetention > keep:
		return warn("set relay.dead-retention to at most inbox.retention, or replay only dead letters that are younger",
			"a dead letter that is replayed later than inbox.retention (%s) is applied again by a group that already processed it", show(keep)), nil
	}
	return good("inbox records outlive every delivery: the last attempt is at most %s after the first", show(last.Round(time.Second))), nil
}

// lastAttempt returns the maximum of [lastAttempt] of the relay, or of its
// destinations.
func (p *patient) lastAttempt() (last time.Duration, ever bool) {
	if len(p.Destinations) == 0 {
		return lastAttempt(p.Relay)
	}
	for _, d := range p.Destinations {
		of, unlimited := lastAttempt(settings.Relay{MaxAttempts: d.MaxAttempts, BackoffBase: d.BackoffBase, BackoffMax: d.BackoffMax, BackoffSeries: d.BackoffSeries})
		last, ever = max(last, of), ever || unlimited
	}
	return last, ever
}

// lastAttempt returns the maximum time between the first and the last attempt,
// without the time of the sink's calls, and whether attempts are unlimited.
func lastAttempt(r settings.Relay) (last time.Duration, ever bool) {
	if r.MaxAttempts < 0 {
		return 0, true
	}
	delay := r.BackoffBase
	for i := range r.MaxAttempts - 1 {
		if n := len(r.BackoffSeries); n > 0 {
			last += r.BackoffSeries[min(i, n-1)]
			continue
		}
		last += delay
		delay = min(2*delay, r.BackoffMax)
	}
	return last, false
}

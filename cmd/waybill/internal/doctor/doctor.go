// Package doctor looks at a configuration and the servers that it names, and says what is wrong and what to type. It changes nothing: every check
// reads. What a check needs and is not there (a server that does not answer, a right that the account does not have) makes it "not checked",
// never "ok".
package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/httpapi"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// Status is how a check ended.
type Status string

// The ends of a check.
const (
	OK         Status = "ok"
	Warn       Status = "warn"
	Fail       Status = "fail"
	NotChecked Status = "not checked"
)

// Finding is what a check found.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Text is what was found.
	Text string `json:"finding"`
	// Type is what to type, or to change.
	Type string `json:"type,omitempty"`
}

// Check is a row of the table.
type Check struct {
	Name string
	// For is what it is about: a kind of store or sink, or "any store", "any sink", "settings".
	For string
	// Looks is what it looks at, and Wants what it wants to see.
	Looks, Wants string

	run func(ctx context.Context, p *patient) (Finding, error)
}

// What checks are about, besides the kinds of stores and sinks.
const (
	anyStore = "any store" // with its tables
	anySink  = "any sink"
	settled  = "settings"
)

// Table returns every check, in the order in which they are run.
func Table() []Check {
	return append(storeChecks(), sinkChecks()...)
}

// Config is what is looked at.
type Config struct {
	Settings *settings.Settings
	// Timeout is how long one check may take. Defaults to 15 s.
	Timeout time.Duration
}

// patient is what the checks look at.
type patient struct {
	*settings.Settings
	store  *connect.Store
	desk   *admin.Desk
	groups *admin.Groups
	keys   *admin.Keys
	// noStore, noTables and noSink say why checks of these cannot be run; nil if they can.
	noStore, noTables, noSink error
	sink                      probe

	// For tests: the clock of this machine, how old a transaction must be to be in the way, and
	// how far a reader may be behind.
	now     func() time.Time
	long    time.Duration
	lag     int64
	scrub   *settings.Scrubber
	timeout time.Duration
}

// longTransaction is how old a transaction must be to be in the way of vacuum, or of purge.
const longTransaction = 5 * time.Minute

// Run runs all checks that the settings call for.
func Run(ctx context.Context, cfg Config) []Finding {
	p := &patient{Settings: cfg.Settings, now: time.Now, long: longTransaction, lag: cdcLag, timeout: cfg.Timeout}
	p.open(ctx)
	defer p.close()
	return p.examine(ctx, Table())
}

// open opens what can be opened. What cannot be is a finding of its own.
func (p *patient) open(ctx context.Context) {
	p.scrub = settings.NewScrubber(p.Secrets()...)
	if p.timeout == 0 {
		p.timeout = 15 * time.Second
	}
	if p.store, p.noStore = connect.OpenStore(ctx, p.Store, false); p.noStore == nil {
		p.noTables = p.openTables(ctx)
	} else {
		p.noTables = errors.New("the store cannot be reached")
	}
	within, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	p.sink, p.noSink = dial(within, p.Sink)
}

func (p *patient) openTables(ctx context.Context) (err error) {
	if err := p.store.Ready(ctx); err != nil {
		return err
	}
	var cfg admin.Config
	if p.desk, err = admin.New(p.store.Tables, cfg); err != nil {
		return err
	}
	if p.groups, err = admin.NewGroups(p.store.Tables, cfg); err != nil {
		return err
	}
	p.keys, err = admin.NewKeys(p.store.Tables, cfg)
	return err
}

func (p *patient) close() {
	if p.store != nil {
		_ = p.store.Close()
	}
	if p.sink != nil {
		p.sink.close()
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
		out = append(out, f)
	}
	return out
}

// concerns reports whether a check is about this configuration.
func (p *patient) concerns(c Check) bool {
	switch c.For {
	case anyStore, anySink, settled:
		return true
	}
	return c.For == storeKind(p.Store) || c.For == sinkKind(p.Sink)
}

// one runs a check. What it cannot see it has not checked.
func (p *patient) one(ctx context.Context, c Check) Finding {
	switch {
	case c.For == anyStore && p.noTables != nil:
		return unseen("it needs the tables")
	case c.For == storeKind(p.Store) && p.noStore != nil:
		return unseen("the store cannot be reached")
	case c.For == sinkKind(p.Sink) && p.noSink != nil:
		return unseen("the sink cannot be looked at")
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	f, err := c.run(ctx, p)
	if err != nil {
		return unseen("it cannot be seen: " + err.Error())
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

// failed turns an error that has a hint into a finding.
func failed(err error) Finding { return fail(hint.Of(err), "%s", err.Error()) }

func storeKind(s settings.Store) string {
	scheme, _, _ := strings.Cut(s.URL.Reveal(), ":")
	if scheme == "postgresql" {
		return connect.Postgres
	}
	return scheme
}

// settingsChecks are about what needs no server.
func settingsChecks() []Check {
	return []Check{
		{
			Name: "enabled", For: settled, Looks: "`enabled`, `relay.enabled`", Wants: "a relay that is on",
			run: func(_ context.Context, p *patient) (Finding, error) {
				if p.Enabled && p.CDC.Enabled {
					return good("the relay is off: change data capture publishes the events"), nil
				}
				if !p.Enabled || !p.Relay.Enabled {
					return warn("set enabled and relay.enabled to true", "the relay is off: nothing is delivered by it"), nil
				}
				return good("the relay is on"), nil
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
			Name: "retention", For: settled, Looks: "`inbox.retention`, `relay.attempts`, the backoff, `relay.keep-dead`",
			Wants: "inbox records that outlive the last delivery of their event", run: retention,
		},
	}
}

// retention compares how long a consumer group remembers an event with how long the relay may deliver it again.
func retention(_ context.Context, p *patient) (Finding, error) {
	keep := p.Inbox.Retention
	if keep == 0 {
		return good("inbox records are kept for ever"), nil
	}
	last, ever := lastAttempt(p.Relay)
	show := settings.FormatDuration
	switch {
	case ever:
		return warn("set relay.attempts, or inbox.retention to 0s", "relay.attempts is off, so an event may come at any time, and inbox.retention is %s: "+
			"what comes later is applied again", show(keep)), nil
	case keep < last:
		return fail("set inbox.retention to more than "+show(last.Round(time.Second)), "inbox.retention is %s, and the relay's last attempt may be %s after the first: "+
			"what comes later is applied again", show(keep), show(last.Round(time.Second))), nil
	case p.Relay.KeepDead == 0 || p.Relay.KeepDead > keep:
		return warn("set relay.keep-dead to at most inbox.retention, or replay dead letters only while they are younger than that",
			"a dead letter that is replayed later than inbox.retention (%s) is applied again by a group that had it", show(keep)), nil
	}
	return good("records outlive every delivery: the last attempt is at most %s after the first", show(last.Round(time.Second))), nil
}

// lastAttempt returns how long after the first attempt the last one may be, without the time that the sink takes; and whether there is none.
func lastAttempt(r settings.Relay) (last time.Duration, ever bool) {
	if r.Attempts < 0 {
		return 0, true
	}
	delay := r.BackoffBase
	for i := range r.Attempts - 1 {
		if n := len(r.BackoffSeries); n > 0 {
			last += r.BackoffSeries[min(i, n-1)]
			continue
		}
		last += delay
		delay = min(2*delay, r.BackoffMax)
	}
	return last, false
}

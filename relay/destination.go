package relay

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay/internal/ledger"
	"github.com/waybillhq/waybill/store/driver"
)

// Destination is one of several receivers of an outbox's events. Each has its
// own retries, dead letters, rate and progress: a failure at one destination
// delays, repeats or loses no event at another. Required are Name and Sink; a
// zero field of the others has its default.
type Destination struct {
	// Name identifies the destination in the tables, in metrics and in logs: 1
	// to 64 bytes of printable characters. A new name is a new destination.
	Name string
	// Sink receives the events.
	Sink waybill.Sink

	// Types, AggregateTypes and Tenants select the events that the destination
	// receives: those that have one of the values of each list. An empty list
	// selects all; an empty tenant selects events without a tenant. Default to
	// all events.
	Types, AggregateTypes, Tenants []string
	// Filter selects among these events, if it is not nil. It is called often,
	// from one goroutine, must not block, and must return the same result for
	// the same event on every node. An event for which it panics is passed to
	// the sink. Defaults to no filter.
	Filter func(ev *waybill.Event) bool

	// Concurrency is the maximum number of concurrent calls of the sink.
	// Defaults to Config.Workers.
	Concurrency int
	// Rate is the maximum number of events per second and node that the sink
	// receives; a burst may have the events of one second. Defaults to 0: no
	// limit. A destination that asks for fewer events, with
	// [waybill.RetryAfter] and a delay or an error with a method
	// TooManyRequests that returns true, gets fewer until it has accepted
	// events for a while.
	Rate float64

	// MaxAttempts, BackoffBase, BackoffMax, BackoffSeries, Backoff,
	// UnknownGrace, OnDead and DeliverTimeout replace the fields of the same
	// name in [Config]. Default to those; a destination that sets one of the
	// delays has neither the BackoffSeries nor the Backoff of the Config.
	// [Continue] is the zero value: Block in the Config applies to every
	// destination.
	MaxAttempts             int
	BackoffBase, BackoffMax time.Duration
	BackoffSeries           []time.Duration
	Backoff                 func(attempt int) time.Duration
	UnknownGrace            time.Duration
	OnDead                  OnDead
	DeliverTimeout          time.Duration

	// DivertAfter is how much longer than all others the destination may take
	// for an event: then the event moves to the destination's backlog, so that
	// the others do not wait. Defaults to 250 ms; negative: the others wait.
	DivertAfter time.Duration
	// PauseAfter is the number of dead letters in a row with the same cause
	// after which the relay pauses the destination until an operator resumes
	// it. Defaults to 100; negative: never.
	PauseAfter int
}

const (
	// maxRate is far above every sink, and far below what a number of tokens
	// can hold.
	maxRate            = 1e9
	defaultDivertAfter = 250 * time.Millisecond
	defaultPauseAfter  = 100
)

// complete returns the destination with its defaults, or an error that names
// every invalid field.
func (d Destination) complete(cfg Config) (Destination, error) {
	d.Concurrency = cmp.Or(d.Concurrency, cfg.Workers)
	d.DivertAfter = cmp.Or(d.DivertAfter, defaultDivertAfter)
	d.PauseAfter = cmp.Or(d.PauseAfter, defaultPauseAfter)
	d.MaxAttempts = cmp.Or(d.MaxAttempts, cfg.MaxAttempts)
	d.UnknownGrace = cmp.Or(d.UnknownGrace, cfg.UnknownGrace)
	d.OnDead = cmp.Or(d.OnDead, cfg.OnDead)
	d.DeliverTimeout = cmp.Or(d.DeliverTimeout, cfg.DeliverTimeout)
	if d.Backoff == nil && d.BackoffBase == 0 && d.BackoffMax == 0 && d.BackoffSeries == nil {
		d.Backoff, d.BackoffSeries = cfg.Backoff, cfg.BackoffSeries // they would replace what the destination sets
	}
	d.BackoffBase, d.BackoffMax = cmp.Or(d.BackoffBase, cfg.BackoffBase), cmp.Or(d.BackoffMax, cfg.BackoffMax)
	return d, errors.Join(d.problems()...)
}

// problems returns an error for every invalid field.
func (d *Destination) problems() []error {
	var errs []error
	problem := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", "Destination."+field, fmt.Sprintf(format, args...)))
	}
	if err := checkName(d.Name); err != nil {
		problem("Name", "%v", err)
	}
	if d.Sink == nil {
		problem("Sink", "is nil")
	}
	if d.Concurrency < 0 {
		problem("Concurrency", "%d is negative", d.Concurrency)
	}
	if d.Rate < 0 {
		problem("Rate", "%v is negative", d.Rate)
	}
	if d.Rate > maxRate || math.IsNaN(d.Rate) {
		problem("Rate", "%v is not a number up to %d; 0 means no limit", d.Rate, int(maxRate))
	}
	if d.BackoffBase < 0 {
		problem("BackoffBase", "%v is negative", d.BackoffBase)
	}
	if d.BackoffMax < 0 {
		problem("BackoffMax", "%v is negative", d.BackoffMax)
	}
	if d.BackoffBase > d.BackoffMax {
		problem("BackoffBase", "%v is more than BackoffMax, %v", d.BackoffBase, d.BackoffMax)
	}
	for i, delay := range d.BackoffSeries {
		if delay < 0 {
			problem(fmt.Sprintf("BackoffSeries[%d]", i), "%v is negative", delay)
		}
	}
	if d.UnknownGrace < 0 {
		problem("UnknownGrace", "%v is negative", d.UnknownGrace)
	}
	if d.OnDead != Continue && d.OnDead != Block {
		problem("OnDead", "%d is neither Continue nor Block", d.OnDead)
	}
	if d.DeliverTimeout < 0 {
		problem("DeliverTimeout", "%v is negative", d.DeliverTimeout)
	}
	return errs
}

// checkName rejects names that cannot be stored, logged or typed.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("is empty")
	case len(name) > driver.MaxDestinationName:
		return fmt.Errorf("%d bytes, at most %d", len(name), driver.MaxDestinationName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%q is not valid UTF-8", name)
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return fmt.Errorf("%q contains a space or a control character", name)
	}
	return nil
}

// completeAll returns the destinations with their defaults, or an error that
// names every invalid field of each.
func completeAll(all []Destination, cfg Config) ([]Destination, error) {
	var errs []error
	if len(all) == 0 {
		return nil, errors.New("there is no destination")
	}
	if len(all) > driver.MaxDestinations {
		errs = append(errs, fmt.Errorf("%d destinations, at most %d", len(all), driver.MaxDestinations))
	}
	out := make([]Destination, len(all))
	for i, d := range all {
		done, err := d.complete(cfg)
		if err != nil {
			errs = append(errs, fmt.Errorf("destination %d (%q): %w", i+1, d.Name, err))
		}
		if slices.ContainsFunc(out[:i], func(o Destination) bool { return o.Name == d.Name }) {
			errs = append(errs, fmt.Errorf("destination %d (%q): Destination.Name: two destinations have this name", i+1, d.Name))
		}
		out[i] = done
	}
	return out, errors.Join(errs...)
}

// takes reports whether the destination receives an event.
func (d *Destination) takes(ev *waybill.Event) bool {
	return in(d.Types, ev.Type) && in(d.AggregateTypes, ev.AggregateType) && in(d.Tenants, ev.TenantID) && (d.Filter == nil || d.Filter(ev))
}

func in(list []string, value string) bool { return len(list) == 0 || slices.Contains(list, value) }

// ledgerConfig returns the settings of the ledger of the destination's backlog.
func (d *Destination) ledgerConfig(cfg Config) ledger.Config {
	c := ledgerConfig(cfg)
	c.HotQueue, c.Backlog = 0, true
	c.MaxAttempts, c.UnknownGrace, c.Block = d.MaxAttempts, d.UnknownGrace, d.OnDead == Block
	c.Backoff = d.backoff()
	return c
}

// backoff returns the delay after the nth failure.
func (d *Destination) backoff() func(int) time.Duration {
	return delays{base: d.BackoffBase, max: d.BackoffMax, series: d.BackoffSeries, own: d.Backoff}.after
}

package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/backoff"
)

// Options configures a [Group].
type Options struct {
	// Lease is how long an attempt may take before another one may begin: an
	// attempt at a leased event, or at an event that was delivered before or
	// has failed. Use several times the typical run time of the handler.
	// Defaults to 30 s.
	Lease time.Duration
	// WaitIfInProgress makes Consume wait, for up to WaitMax, for a concurrent
	// attempt at the same event instead of returning [waybill.ErrInProgress] at
	// once. Defaults to false.
	WaitIfInProgress bool
	// WaitMax is the longest wait. Required with WaitIfInProgress.
	WaitMax time.Duration
	// MaxAttempts is the number of attempts after which a failed event is dead.
	// Defaults to 20.
	MaxAttempts int
	// BackoffBase and BackoffMax define the delay after the nth failure:
	// BackoffBase·2^(n−1), at most BackoffMax. Default to 1 s and 5 minutes.
	BackoffBase, BackoffMax time.Duration
	// Backoff, if not nil, returns the delay after the nth failure, counted
	// from 1, and replaces BackoffBase and BackoffMax. A negative delay counts
	// as 0. It is called from several goroutines. Defaults to nil.
	Backoff func(failures int) time.Duration
	// Key defines which deliveries are the same event. Defaults to ByEventID.
	Key Key
	// StoreEvent stores a failed event with its record, so that [Inbox.Run] can
	// retry it without another delivery. Defaults to false.
	StoreEvent bool
	// Open returns the event as the handler receives it: it decrypts or
	// decompresses the payload, see package payload. An error of Open fails the
	// attempt. Records and stored events keep the payload unopened. Defaults to
	// none: the handler receives the event as it was delivered.
	Open func(ctx context.Context, ev waybill.Event) (waybill.Event, error)
}

// Key defines which deliveries are the same event.
type Key int

// The keys.
const (
	// ByEventID: the event's id. A different type or payload under the same id
	// is a conflict.
	ByEventID Key = iota
	// ByDedupKey: the event's tenant and dedup key, so that an event that was
	// written again under a new id has one effect. A different type under the
	// same key is a conflict; a different payload is not. Events without a
	// dedup key use their id.
	ByDedupKey
)

// Validate returns an error that lists every invalid option.
func (o Options) Validate() error {
	if err := o.validate(); err != nil {
		return fmt.Errorf("inbox: %w", err)
	}
	return nil
}

func (o Options) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	d := o.withDefaults()
	check(o.Lease >= 0, "Options.Lease: %v is negative", o.Lease)
	check(!o.WaitIfInProgress || o.WaitMax != 0, "Options.WaitIfInProgress: requires Options.WaitMax")
	check(o.WaitMax >= 0, "Options.WaitMax: %v is negative", o.WaitMax)
	check(o.WaitIfInProgress || o.WaitMax <= 0, "Options.WaitMax: requires Options.WaitIfInProgress")
	check(o.MaxAttempts >= 0, "Options.MaxAttempts: %d is negative", o.MaxAttempts)
	check(o.BackoffBase >= 0, "Options.BackoffBase: %v is negative", o.BackoffBase)
	check(o.BackoffMax < 0 || d.BackoffBase <= d.BackoffMax, "Options.BackoffBase: %v is above Options.BackoffMax (%v)", d.BackoffBase, d.BackoffMax)
	check(o.BackoffMax >= 0, "Options.BackoffMax: %v is negative", o.BackoffMax)
	check(o.Key == ByEventID || o.Key == ByDedupKey, "Options.Key: unknown value %d", o.Key)
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	duration := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	duration(&o.Lease, 30*time.Second)
	duration(&o.BackoffBase, time.Second)
	duration(&o.BackoffMax, 5*time.Minute)
	if o.MaxAttempts == 0 {
		o.MaxAttempts = 20
	}
	return o
}

// attempts returns the maximum number of attempts.
func (o Options) attempts() int { return o.MaxAttempts }

// after returns the delay after the nth failure.
func (o Options) after(n int) time.Duration {
	if o.Backoff != nil {
		return max(o.Backoff(max(n, 1)), 0)
	}
	return backoff.After(o.BackoffBase, o.BackoffMax, n)
}

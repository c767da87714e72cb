package inbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill/internal/backoff"
)

// Options says how a group treats its events.
type Options struct {
	// Lease is how long an attempt may take before another one may begin: of a leased event, and of one that was delivered before or
	// has failed. Several times what the handler usually takes. Defaults to 30 s.
	Lease time.Duration
	// WaitIfInProgress waits, up to WaitMax, for somebody else who is at the same event, instead of returning
	// [waybill.ErrInProgress] at once. Defaults to false.
	WaitIfInProgress bool
	WaitMax          time.Duration
	// MaxAttempts is the number of attempts after which a failed event is dead.
	// Defaults to 20.
	MaxAttempts int
	// BackoffBase is the delay after the first failure; it doubles after each further one, up to BackoffMax. Default to 1 s
	// and 5 minutes.
	BackoffBase time.Duration
	BackoffMax  time.Duration
	// Key says what makes two deliveries the same. Defaults to ByEventID.
	Key Key
	// StoreEvent stores a failed event with its record, so that [Inbox.Run] can try it again without another delivery.
	StoreEvent bool
}

// Key is what makes two deliveries the same.
type Key int

// The keys.
const (
	// ByEventID: the event's id. Another type or payload under the same id is a conflict.
	ByEventID Key = iota
	// ByDedupKey: the event's tenant and dedup key, so that an event that was written again under a new id has one effect. Another type
	// under the same key is a conflict; another payload is not. Events without a dedup key go by their id.
	ByDedupKey
)

// Validate returns what is wrong with the options.
func (o Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(o.Lease >= 0, "Options.Lease: %v is negative", o.Lease)
	check(o.MaxAttempts >= 0, "Options.MaxAttempts: %d is negative", o.MaxAttempts)
	check(o.WaitMax >= 0, "Options.WaitMax: %v is negative", o.WaitMax)
	check(o.BackoffBase >= 0, "Options.BackoffBase: %v is negative", o.BackoffBase)
	check(o.BackoffMax >= 0, "Options.BackoffMax: %v is negative", o.BackoffMax)
	check(!o.WaitIfInProgress || o.WaitMax > 0, "Options.WaitIfInProgress needs Options.WaitMax: for how long?")
	check(o.WaitIfInProgress || o.WaitMax == 0, "Options.WaitMax has no meaning without Options.WaitIfInProgress")
	check(o.Key == ByEventID || o.Key == ByDedupKey, "Options.Key: there is no %d", o.Key)
	d := o.withDefaults()
	check(d.BackoffBase <= d.BackoffMax, "Options.BackoffBase (%v) is above Options.BackoffMax (%v)", d.BackoffBase, d.BackoffMax)
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	duration := func(d *time.Duration, usual time.Duration) {
		if *d == 0 {
			*d = usual
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

// attempts is how many attempts there are.
func (o Options) attempts() int { return o.MaxAttempts }

// after returns the delay after the nth failure.
func (o Options) after(n int) time.Duration { return backoff.After(o.BackoffBase, o.BackoffMax, n) }

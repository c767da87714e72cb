package inbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill/internal/backoff"
)

// Options says how a group treats its events.
type Options struct {
	// LockTTL is how long an attempt may take before another one may begin: of a leased event, and of one that was delivered before or
	// has failed. Several times what the handler usually takes. Defaults to 30 s.
	LockTTL time.Duration
	// WaitIfInProgress waits, up to WaitMax, for somebody else who is at the same event, instead of returning
	// [waybill.ErrInProgress] at once. Defaults to false.
	WaitIfInProgress bool
	WaitMax          time.Duration
	// MaxRetry is how often a failed event is tried again. Defaults to 20; negative: never.
	MaxRetry int
	// BaseBackoff is the delay after the first failure; it doubles after each further one, up to MaxBackoff. Default to 1 s
	// and 5 minutes.
	BaseBackoff time.Duration
	MaxBackoff  time.Duration
	// Key says what makes two deliveries the same. Defaults to ByEventID.
	Key Key
	// KeepEvent stores a failed event with its record, so that [Inbox.Run] can try it again without another delivery.
	KeepEvent bool
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
	check(o.LockTTL >= 0, "Options.LockTTL: %v is negative", o.LockTTL)
	check(o.WaitMax >= 0, "Options.WaitMax: %v is negative", o.WaitMax)
	check(o.BaseBackoff >= 0, "Options.BaseBackoff: %v is negative", o.BaseBackoff)
	check(o.MaxBackoff >= 0, "Options.MaxBackoff: %v is negative", o.MaxBackoff)
	check(!o.WaitIfInProgress || o.WaitMax > 0, "Options.WaitIfInProgress needs Options.WaitMax: for how long?")
	check(o.WaitIfInProgress || o.WaitMax == 0, "Options.WaitMax has no meaning without Options.WaitIfInProgress")
	check(o.Key == ByEventID || o.Key == ByDedupKey, "Options.Key: there is no %d", o.Key)
	d := o.withDefaults()
	check(d.BaseBackoff <= d.MaxBackoff, "Options.BaseBackoff (%v) is above Options.MaxBackoff (%v)", d.BaseBackoff, d.MaxBackoff)
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	duration := func(d *time.Duration, usual time.Duration) {
		if *d == 0 {
			*d = usual
		}
	}
	duration(&o.LockTTL, 30*time.Second)
	duration(&o.BaseBackoff, time.Second)
	duration(&o.MaxBackoff, 5*time.Minute)
	switch {
	case o.MaxRetry == 0:
		o.MaxRetry = 20
	case o.MaxRetry < 0:
		o.MaxRetry = 0
	}
	return o
}

// attempts is how many attempts there are.
func (o Options) attempts() int { return o.MaxRetry + 1 }

// after returns the delay after the nth failure.
func (o Options) after(n int) time.Duration { return backoff.After(o.BaseBackoff, o.MaxBackoff, n) }

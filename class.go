package waybill

import (
	"errors"
	"fmt"
	"time"
)

// Class says what the result of a delivery means for the event; see [Classify].
type Class int

// The classes, from "finished" to "never".
const (
	// Done: delivered.
	ClassDone Class = iota
	// Down: the destination is unreachable. No attempt is spent, the destination is paused and probed.
	ClassUnavailable
	// Uncounted: not now; try again after the delay. No attempt is spent.
	ClassDefer
	// Counted: a failed attempt. The event is tried again after a backoff until its attempts are used up.
	ClassRetry
	// Dead: it can never succeed. The event becomes a dead letter at once.
	ClassPermanent
)

// String returns the class's name in lower case.
func (c Class) String() string {
	switch c {
	case ClassDone:
		return "done"
	case ClassUnavailable:
		return "down"
	case ClassDefer:
		return "uncounted"
	case ClassRetry:
		return "counted"
	case ClassPermanent:
		return "dead"
	}
	return fmt.Sprintf("class(%d)", int(c))
}

// classified is an error that carries its class.
type classified struct {
	class Class
	delay time.Duration
	err   error
}

func (c *classified) Error() string { return c.err.Error() }
func (c *classified) Unwrap() error { return c.err }

// Permanent says that trying again cannot help: the event becomes a dead letter at once. Permanent(nil) is nil.
func Permanent(err error) error {
	return classify(ClassPermanent, 0, err)
}

// Unavailable says that the destination is down, and nothing is wrong with the event: no attempt is spent, and the
// destination is probed until it is back. Unavailable(nil) is nil.
func Unavailable(err error) error {
	return classify(ClassUnavailable, 0, err)
}

// RetryAfter is a failed attempt that names its own delay, as an HTTP 429 does. RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error {
	return classify(ClassRetry, d, err)
}

// Later puts the event off by d without spending an attempt: it is not its turn yet. Later(d, nil) is nil.
func Later(d time.Duration, reason error) error {
	return classify(ClassDefer, d, reason)
}

func classify(class Class, delay time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &classified{class: class, delay: max(delay, 0), err: err}
}

// Classify returns what err means for an event, and the delay that it asks for (0: the usual backoff).
//
// The outermost of [Permanent], [Unavailable], [RetryAfter] and [Later] decides, because whoever wrapped last knew
// most. Where errors were joined, the least final branch decides: while one destination is only down, its neighbour's
// verdict must not bury the event. An error without a class is Dead if it is [ErrDead], [ErrConflict] or [ErrNoHandler],
// Done if it is [ErrSettled] or [ErrReplayed], and Counted otherwise.
func Classify(err error) (Class, time.Duration) {
	if err == nil {
		return ClassDone, 0
	}
	if c := find(err); c != nil {
		return c.class, c.delay
	}
	switch {
	case errors.Is(err, ErrDead), errors.Is(err, ErrConflict), errors.Is(err, ErrNoHandler):
		return ClassPermanent, 0
	case errors.Is(err, ErrSettled), errors.Is(err, ErrReplayed):
		return ClassDone, 0
	}
	return ClassRetry, 0
}

// find returns the classified error that decides, or nil.
func find(err error) *classified {
	for err != nil {
		switch e := err.(type) { //nolint:errorlint // this walks the tree itself: errors.As would stop at the first branch
		case *classified:
			return e
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			var least *classified
			for _, branch := range e.Unwrap() {
				if branch == nil {
					continue
				}
				class, delay := Classify(branch)
				if least == nil || class < least.class || class == least.class && delay > least.delay {
					least = &classified{class: class, delay: delay, err: branch}
				}
			}
			return least
		default:
			return nil
		}
	}
	return nil
}

package waybill

import (
	"errors"
	"fmt"
	"time"
)

// Class is the meaning of a delivery's result for the event; see [Classify].
type Class int

// The classes, from the least final failure to the most final one.
const (
	// ClassDone: the event is delivered.
	ClassDone Class = iota
	// ClassUnavailable: the destination is unavailable. The relay spends no
	// attempt, pauses the destination and probes it.
	ClassUnavailable
	// ClassDefer: the event is not due yet. The relay retries it after the
	// delay and spends no attempt.
	ClassDefer
	// ClassRetry: the attempt failed. The relay retries the event after a
	// backoff until its attempts are used up.
	ClassRetry
	// ClassPermanent: the event can never succeed. It becomes a dead letter at
	// once.
	ClassPermanent
)

// String returns the class's name in lower case.
func (c Class) String() string {
	switch c {
	case ClassDone:
		return "done"
	case ClassUnavailable:
		return "unavailable"
	case ClassDefer:
		return "defer"
	case ClassRetry:
		return "retry"
	case ClassPermanent:
		return "permanent"
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

// Permanent marks err as final: a retry cannot help, and the event becomes a
// dead letter at once. Permanent(nil) is nil.
func Permanent(err error) error {
	return classify(ClassPermanent, 0, err)
}

// Unavailable marks err as a failure of the destination, not of the event: the
// relay spends no attempt and probes the destination until it is available
// again. Unavailable(nil) is nil.
func Unavailable(err error) error {
	return classify(ClassUnavailable, 0, err)
}

// RetryAfter marks err as a failed attempt with its own delay, as in an HTTP
// 429 response. RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error {
	return classify(ClassRetry, d, err)
}

// Later defers the event by d without spending an attempt. Later(d, nil) is
// nil.
func Later(d time.Duration, reason error) error {
	return classify(ClassDefer, d, reason)
}

func classify(class Class, delay time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &classified{class: class, delay: max(delay, 0), err: err}
}

// Classify returns the class of err and the delay that err asks for (0: the
// default backoff).
//
// The outermost of [Permanent], [Unavailable], [RetryAfter] and [Later]
// decides, because the outermost wrapper has the most context. Of joined errors
// the least final branch decides: while one destination is only unavailable, a
// permanent error of another one must not dead-letter the event. An error
// without a class is ClassPermanent if it matches [ErrDead], [ErrConflict] or
// [ErrNoHandler], ClassDone if it matches [ErrSettled] or [ErrReplayed], and
// ClassRetry otherwise.
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
			var decisive *classified
			for _, branch := range e.Unwrap() {
				if branch == nil {
					continue
				}
				class, delay := Classify(branch)
				if decisive == nil || class < decisive.class || class == decisive.class && delay > decisive.delay {
					decisive = &classified{class: class, delay: delay, err: branch}
				}
			}
			return decisive
		default:
			return nil
		}
	}
	return nil
}

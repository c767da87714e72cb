package idempotency

import (
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
)

// What a request can be refused with, besides [waybill.ErrInProgress] and [waybill.ErrConflict]; match them with [errors.Is].
var (
	// ErrUnresolved: an earlier run failed after something had happened that must not happen twice ([MarkEffect]). Nothing runs under the key
	// until an operator has decided. It is a [waybill.ErrUncertain].
	ErrUnresolved = fmt.Errorf("%w: an earlier run of this key failed halfway, and an operator has to decide", waybill.ErrUncertain)
	// ErrResultUnavailable: it ran, and its answer could not be kept: it was too large, or a stream.
	ErrResultUnavailable = errors.New("idempotency: it ran, and its answer was not kept")
	// ErrResultExpired: it ran, and its answer has outlived [Config.ResultTTL].
	ErrResultExpired = errors.New("idempotency: it ran, and its answer has expired")
	// ErrUnknownPhase: an earlier attempt got to a phase that this code does not have, or not at this place.
	ErrUnknownPhase = errors.New("idempotency: an earlier attempt ended in a phase that this code does not have here")
	// ErrCorrupt: there is a record, and it cannot be understood: it is damaged, or newer than this code. Nothing runs under the key.
	ErrCorrupt = errors.New("idempotency: the record cannot be understood")
	// ErrStore: the store failed, not the handler. Where nothing else is said, nothing has run, or it was rolled back.
	ErrStore = errors.New("idempotency: the store failed")
)

// InProgressError is [waybill.ErrInProgress] with the time after which asking again makes sense.
type InProgressError struct {
	// RetryAfter is what is left of the other's lease; less if it is likely to be done sooner.
	RetryAfter time.Duration
}

func (e *InProgressError) Error() string { return "idempotency: " + waybill.ErrInProgress.Error() }

// Is makes it a [waybill.ErrInProgress].
func (e *InProgressError) Is(target error) bool { return target == waybill.ErrInProgress }

// NoResultError says that a key has run, and that its answer cannot be given again: [ErrResultUnavailable] or [ErrResultExpired]. Nothing runs
// again.
type NoResultError struct {
	// Ref names what was made, if the run said so.
	Ref string
	// Expired: the answer was there once.
	Expired bool
}

func (e *NoResultError) Error() string { return e.Unwrap().Error() }

// Unwrap returns which of the two it is.
func (e *NoResultError) Unwrap() error {
	if e.Expired {
		return ErrResultExpired
	}
	return ErrResultUnavailable
}

// storeError says that the store failed, and at what.
func storeError(what string, err error) error { return fmt.Errorf("%w: %s: %w", ErrStore, what, err) }

package idempotency

import (
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
)

// Errors of refused requests, besides [waybill.ErrInProgress] and
// [waybill.ErrConflict]. Match them with [errors.Is].
var (
	// ErrUnresolved: an earlier run failed after an effect that must not happen
	// twice ([MarkEffect]). Nothing runs under the key until an operator
	// resolves it. It is a [waybill.ErrUncertain].
	ErrUnresolved = fmt.Errorf("%w: an earlier run of this key failed after an effect; an operator must resolve it", waybill.ErrUncertain)
	// ErrResultUnavailable: the operation ran, but its answer was not stored:
	// the answer was too large, or a stream.
	ErrResultUnavailable = errors.New("idempotency: the operation ran, but its answer was not stored")
	// ErrResultExpired: the operation ran, and its answer has outlived
	// [Config.ResultRetention].
	ErrResultExpired = errors.New("idempotency: the operation ran, but its answer has expired")
	// ErrUnknownPhase: an earlier attempt completed a phase that the current
	// code does not have, or does not have at this position.
	ErrUnknownPhase = errors.New("idempotency: an earlier attempt completed a phase that this code does not have at this position")
	// ErrCorrupt: the key's record cannot be decoded: it is damaged, or written
	// by a newer version. Nothing runs under the key.
	ErrCorrupt = errors.New("idempotency: the record cannot be decoded")
	// ErrStore: the store failed, not the handler. Unless stated otherwise,
	// nothing has run, or everything was rolled back.
	ErrStore = errors.New("idempotency: the store failed")
)

// InProgressError is a [waybill.ErrInProgress] with a delay for the next try.
type InProgressError struct {
	// RetryAfter is the remaining lease of the other run; shorter if that run
	// is likely to end sooner.
	RetryAfter time.Duration
}

func (e *InProgressError) Error() string { return "idempotency: " + waybill.ErrInProgress.Error() }

// Is makes it a [waybill.ErrInProgress].
func (e *InProgressError) Is(target error) bool { return target == waybill.ErrInProgress }

// NoResultError reports that the operation of a key ran, but its answer is not
// available: [ErrResultUnavailable] or [ErrResultExpired]. Nothing runs again.
type NoResultError struct {
	// Ref is the reference that the run set, if any.
	Ref string
	// Expired reports that the answer was stored and has expired.
	Expired bool
}

func (e *NoResultError) Error() string { return e.Unwrap().Error() }

// Unwrap returns ErrResultExpired or ErrResultUnavailable.
func (e *NoResultError) Unwrap() error {
	if e.Expired {
		return ErrResultExpired
	}
	return ErrResultUnavailable
}

// storeError wraps an error of the store with the failed operation.
func storeError(what string, err error) error { return fmt.Errorf("%w: %s: %w", ErrStore, what, err) }

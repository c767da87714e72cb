package idempotency

// This file runs a function in one transaction with its key and its answer.

import (
	"context"
	"errors"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/txrun"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// errRecordExists reports that the key could not be taken.
type errRecordExists struct{ taken driver.KeyTaken }

func (*errRecordExists) Error() string { return "a record exists" }

// failedError wraps an error of the function.
type failedError struct{ error }

func (e failedError) Unwrap() error { return e.error }

// errReleased rolls back a transaction whose answer is not to be stored.
var errReleased = errors.New("the answer is not to be stored")

// taking is one run inside a transaction.
type taking[T any] struct {
	*entry[T]
	fn     func(ctx context.Context, tx T) (Answer, error)
	flight *inflight
	owner  waybill.ID
	note   runFlags
	answer Answer
	stored driver.KeyAnswer
	ran    bool // fn was called
}

// do takes the key, calls the function and stores its answer in one
// transaction.
func (t *taking[T]) do(ctx context.Context) outcome {
	began := time.Now()
	returned := false
	defer func() {
		if !returned && t.ran { // the transaction is already rolled back
			_ = t.failed(ctx, codePanicked, errPanicked)
			t.reportRun(began, errPanicked)
		}
	}()
	err := t.k.runner.RunAgain(ctx, t.k.restartable, t.run)
	returned = true
	var stands *errRecordExists
	if errors.As(err, &stands) {
		out := t.stands(&stands.taken)
		out.ran = t.ran
		return out
	}
	reply, err := t.end(ctx, err)
	if t.ran {
		t.reportRun(began, err)
	}
	return outcome{reply: reply, err: err, ran: t.ran}
}

// stands returns the outcome of a key that could not be taken.
func (t *taking[T]) stands(taken *driver.KeyTaken) outcome {
	if taken.Busy {
		return outcome{err: t.inProgress(busyDelay), shared: true}
	}
	return t.judged(&taken.Record)
}

// run is the body of the transaction.
func (t *taking[T]) run(ctx context.Context, tx T) error {
	claim := t.claim()
	claim.Owner = t.owner
	got, err := t.k.db.TakeKey(ctx, tx, claim)
	if err != nil {
		return err
	}
	if !got.Taken {
		return &errRecordExists{got}
	}
	// No lease: the key is free when the transaction ends.
	t.flight.take(time.Now().Add(busyDelay))
	t.ran = true
	t.note.restart()
	inner, cancel := t.bounded(ctx)
	defer cancel()
	if t.answer, err = t.fn(context.WithValue(inner, noteKey{}, &t.note), tx); err != nil {
		if t.k.restartable(err) {
			return err // an error of the database that the function returned
		}
		return failedError{err}
	}
	set := t.note.read()
	t.stored = t.final(ctx, &t.answer, set.ref)
	if t.answer.Release || set.dontStore {
		return errReleased
	}
	if err := t.k.prove(ctx, tx); err != nil {
		return err
	}
	return t.k.keep(ctx, tx, got.Attempt, t.stored)
}

// keep stores the answer in the transaction, together with the commit if the
// store supports that.
func (k *core[T]) keep(ctx context.Context, tx T, a driver.KeyAttempt, answer driver.KeyAnswer) error {
	if keeper, ok := k.db.(driver.AnswerAtCommit[T]); ok {
		if later, err := keeper.StoreAnswerAtCommit(ctx, tx, a, answer); later || err != nil {
			return err
		}
	}
	ok, err := k.db.StoreAnswer(ctx, tx, a, answer)
	if err == nil && !ok {
		err = errLapsed
	}
	return err
}

// end returns the caller's reply.
func (t *taking[T]) end(ctx context.Context, err error) (Reply, error) {
	var uncertain *txrun.UncertainError
	var failed failedError
	_, plain := err.(failedError) //nolint:errorlint // wrapped means that the rollback had something to say
	switch {
	case err == nil:
		t.flight.answer = kept(&t.stored)
		return Reply{Answer: t.answer}, nil
	case !plain && errors.As(err, &uncertain):
		return t.uncertain(ctx, err)
	case errors.As(err, &failed):
		return Reply{}, t.failed(ctx, codeFailed, failed.error)
	case errors.Is(err, errReleased):
		_ = t.failed(ctx, codeReleased, errReleased)
		return Reply{Answer: t.answer}, nil
	}
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) {
		// Caused by the caller's context.
		return Reply{}, t.failed(ctx, codeFailed, t.wrap(err))
	}
	return Reply{}, t.failed(ctx, codeFailed, t.wrap(storeError("in the transaction", err)))
}

// failed returns the error of a run that was rolled back. Nothing is left of
// the run, unless it marked an effect that must not happen twice: then failed
// records the key as uncertain.
func (t *taking[T]) failed(ctx context.Context, code string, cause error) error {
	if !t.note.read().effect {
		return cause
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	claim := t.claim()
	rec, taken, err := t.k.db.ClaimKey(ctx, claim)
	if err == nil && taken {
		end := t.failure(code, cause.Error())
		end.State = store.KeyUncertain
		_, err = t.k.db.EndKey(ctx, driver.KeyAttempt{KeyID: claim.KeyID, Owner: claim.Owner, Fence: rec.Fence}, end)
	}
	if err == nil && !taken {
		err = errors.New("another run has taken the key")
	}
	if err != nil {
		t.warn(ctx, "a run failed after an effect, and its key could not be marked uncertain", errors.Join(err, cause))
	}
	return cause
}

// uncertain determines the outcome of a commit whose response was lost.
func (t *taking[T]) uncertain(ctx context.Context, cause error) (Reply, error) {
	ctx, cancel := detach(ctx)
	defer cancel()
	rec, there, err := t.k.db.FindKey(ctx, t.req.id())
	if err == nil && there && rec.State == store.KeySucceeded && rec.Owner == t.owner {
		t.flight.answer = kept(&t.stored)
		return Reply{Answer: t.answer}, nil
	}
	return Reply{}, t.wrap(storeError("committing", errors.Join(cause, err)))
}

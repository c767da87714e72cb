package idempotency

// This file holds the parts of Keys that a run needs, the store and the
// configuration, and the rules about the store that all kinds of runs share.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/txrun"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store/driver"
)

// core is the store and the configuration of [Keys].
type core[T any] struct {
	db     driver.Keys[T]
	peeker driver.KeyPeeker // db, if it implements KeyPeeker
	cfg    Config
	runner *txrun.Runner[T]
}

// recordTime bounds the work for a run after its own context may have ended.
const recordTime = 10 * time.Second

// detach returns a context for work that must be done even if the caller has
// gone.
func detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), recordTime)
}

// restartable reports whether a transaction failed because of a conflict with
// others.
func (k *core[T]) restartable(err error) bool {
	r, ok := k.db.(driver.RetryClassifier)
	return ok && !errors.Is(err, waybill.ErrUncertain) && r.IsRetryable(err)
}

// prove checks that the function's writes were in the transaction: on some
// databases, a function that swallows a deadlock continues outside of any
// transaction, and the answer would be stored without the writes.
func (k *core[T]) prove(ctx context.Context, tx T) error {
	if p, ok := k.db.(driver.TxChecker[T]); ok {
		if err := p.CheckOpen(ctx, tx); err != nil {
			return fmt.Errorf("before storing the answer: %w", err)
		}
	}
	return nil
}

// warn logs an error about a key.
func (k *core[T]) warn(ctx context.Context, req *Request, what string, err error) {
	k.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, what, slog.String(logkey.TenantID, req.TenantID), slog.String(logkey.Operation, req.Operation),
		slog.String(logkey.Key, hidden(req.Key)), slog.String(logkey.Error, err.Error()))
}

// unkept reports an answer that was not stored.
func (k *core[T]) unkept(ctx context.Context, req *Request, err error) {
	k.warn(ctx, req, "an answer was not stored", err)
	if fn := k.cfg.Observe.KeyUnkept; fn != nil {
		fn(observe.KeyUnkeptInfo{Operation: req.Operation, Err: err})
	}
}

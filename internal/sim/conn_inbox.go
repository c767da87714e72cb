package sim

import (
	"context"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// The calls of consumer groups and idempotency keys.

// pair is an answer with two values.
type pair[A, B any] struct {
	a A
	b B
}

// do2 is [do] for a call that answers two values.
func do2[A, B any](ctx context.Context, c *conn, k call, late bool, apply func(ctx context.Context) (A, B, error)) (A, B, error) {
	p, err := do(ctx, c, k, late, func(ctx context.Context) (p pair[A, B], err error) {
		p.a, p.b, err = apply(ctx)
		return p, err
	})
	return p.a, p.b, err
}

// IsRetryable implements [driver.RetryClassifier].
func (c *conn) IsRetryable(err error) bool {
	r, ok := c.s.base.(driver.RetryClassifier)
	return ok && r.IsRetryable(err)
}

// Finish implements [driver.Finisher].
func (c *conn) Finish(ctx context.Context, tx Tx, done []waybill.Delivery) error {
	_, err := do(ctx, c, callSettle, false, func(ctx context.Context) (nothing, error) {
		c.s.flush()
		err := c.s.base.Finish(ctx, tx, done)
		x := c.s.sessionOf(tx)
		if err != nil || x == nil {
			return nothing{}, err
		}
		c.s.w.lock(func(*world) { x.finished = append(x.finished, done...) })
		return nothing{}, nil
	})
	return err
}

// Accept implements [driver.InboxTx].
func (c *conn) Accept(ctx context.Context, tx Tx, owner waybill.ID, in []store.InboxEntry) ([]driver.AcceptResult, error) {
	return do(ctx, c, callInbox, false, func(ctx context.Context) ([]driver.AcceptResult, error) {
		return c.s.base.Accept(ctx, tx, owner, in)
	})
}

// Succeed implements [driver.InboxTx].
func (c *conn) Succeed(ctx context.Context, tx Tx, a driver.Attempt) (bool, error) {
	return do(ctx, c, callInbox, false, func(ctx context.Context) (bool, error) { return c.s.base.Succeed(ctx, tx, a) })
}

// ClaimEvent implements [driver.Claimer].
func (c *conn) ClaimEvent(
	ctx context.Context, in store.InboxEntry, owner waybill.ID, lease time.Duration, maxAttempts int, kept []byte,
) (store.InboxRecord, bool, error) {
	return do2(ctx, c, callInbox, true, func(ctx context.Context) (store.InboxRecord, bool, error) {
		return c.s.base.ClaimEvent(ctx, in, owner, lease, maxAttempts, kept)
	})
}

// FailEvent implements [driver.Claimer].
func (c *conn) FailEvent(ctx context.Context, in store.InboxEntry, f driver.Failure) (bool, error) {
	return do(ctx, c, callInbox, true, func(ctx context.Context) (bool, error) { return c.s.base.FailEvent(ctx, in, f) })
}

// ReleaseEvent implements [driver.Claimer].
func (c *conn) ReleaseEvent(ctx context.Context, a driver.Attempt) (bool, error) {
	return do(ctx, c, callInbox, true, func(ctx context.Context) (bool, error) { return c.s.base.ReleaseEvent(ctx, a) })
}

// FindRecord implements [driver.InboxRecords].
func (c *conn) FindRecord(ctx context.Context, group string, key waybill.ID) (store.InboxRecord, bool, error) {
	return do2(ctx, c, callInbox, false, func(ctx context.Context) (store.InboxRecord, bool, error) {
		return c.s.base.FindRecord(ctx, group, key)
	})
}

// TakeKey implements [driver.KeyTx].
func (c *conn) TakeKey(ctx context.Context, tx Tx, k driver.KeyClaim) (driver.KeyTaken, error) {
	return do(ctx, c, callKeys, false, func(ctx context.Context) (driver.KeyTaken, error) { return c.s.base.TakeKey(ctx, tx, k) })
}

// StoreAnswer implements [driver.KeyTx].
func (c *conn) StoreAnswer(ctx context.Context, tx Tx, a driver.KeyAttempt, answer driver.KeyAnswer) (bool, error) {
	return do(ctx, c, callKeys, false, func(ctx context.Context) (bool, error) { return c.s.base.StoreAnswer(ctx, tx, a, answer) })
}

// SavePoint implements [driver.KeyTx].
func (c *conn) SavePoint(ctx context.Context, tx Tx, a driver.KeyAttempt, p store.KeyPoint) (bool, error) {
	return do(ctx, c, callKeys, false, func(ctx context.Context) (bool, error) { return c.s.base.SavePoint(ctx, tx, a, p) })
}

// ClaimKey implements [driver.KeyClaimer].
func (c *conn) ClaimKey(ctx context.Context, k driver.KeyClaim) (store.KeyRecord, bool, error) {
	return do2(ctx, c, callKeys, true, func(ctx context.Context) (store.KeyRecord, bool, error) { return c.s.base.ClaimKey(ctx, k) })
}

// EndKey implements [driver.KeyClaimer].
func (c *conn) EndKey(ctx context.Context, a driver.KeyAttempt, end driver.KeyEnd) (bool, error) {
	return do(ctx, c, callKeys, true, func(ctx context.Context) (bool, error) { return c.s.base.EndKey(ctx, a, end) })
}

// RenewKey implements [driver.KeyClaimer].
func (c *conn) RenewKey(ctx context.Context, a driver.KeyAttempt, lease time.Duration) (bool, error) {
	return do(ctx, c, callKeys, true, func(ctx context.Context) (bool, error) { return c.s.base.RenewKey(ctx, a, lease) })
}

// FindKey implements [driver.KeyRecords].
func (c *conn) FindKey(ctx context.Context, id store.KeyID) (store.KeyRecord, bool, error) {
	return do2(ctx, c, callKeys, false, func(ctx context.Context) (store.KeyRecord, bool, error) { return c.s.base.FindKey(ctx, id) })
}

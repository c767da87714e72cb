package drivertest

import (
	"context"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// worseOperator is a store in which the methods for seeking, finishing and
// operating can be replaced.
type worseOperator struct {
	holds        func(ctx context.Context, lanes []int) ([]driver.Hold, error)
	follow       func(ctx context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error)
	urgent       func(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error)
	writers      func(ctx context.Context) (driver.WriterState, error)
	finish       func(ctx context.Context, tx memTx, done []waybill.Delivery) error
	stats        func(ctx context.Context) (store.Stats, error)
	count        func(ctx context.Context, state store.State, f store.Filter) (int64, error)
	list         func(ctx context.Context, state store.State, f store.Filter, after int64, limit int) ([]store.Record, error)
	find         func(ctx context.Context, id waybill.ID) ([]store.Record, error)
	replay       func(ctx context.Context, ids []waybill.ID) (store.Replayed, error)
	discard      func(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error)
	unblock      func(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error)
	purge        func(ctx context.Context, state store.State, age time.Duration, limit int) (int, error)
	purgeWritten func(ctx context.Context, age time.Duration, limit int) (int, error)
	makeReady    func(ctx context.Context, limit int) (int, error)
	tidy         func(ctx context.Context, age time.Duration) error
	setLanes     func(ctx context.Context, n int) error
}

func (w *worse) OpenWriters(ctx context.Context) (driver.WriterState, error) {
	if w.writers != nil {
		return w.writers(ctx)
	}
	return w.complete.OpenWriters(ctx)
}

func (w *worse) Holds(ctx context.Context, lanes []int) ([]driver.Hold, error) {
	if w.holds != nil {
		return w.holds(ctx, lanes)
	}
	return w.complete.Holds(ctx, lanes)
}

func (w *worse) FetchAggregate(ctx context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error) {
	if w.follow != nil {
		return w.follow(ctx, agg, from, limit)
	}
	return w.complete.FetchAggregate(ctx, agg, from, limit)
}

func (w *worse) FetchPriority(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	if w.urgent != nil {
		return w.urgent(ctx, from, limit)
	}
	return w.complete.FetchPriority(ctx, from, limit)
}

func (w *worse) Finish(ctx context.Context, tx memTx, done []waybill.Delivery) error {
	if w.finish != nil {
		return w.finish(ctx, tx, done)
	}
	return w.complete.Finish(ctx, tx, done)
}

func (w *worse) Stats(ctx context.Context) (store.Stats, error) {
	if w.stats != nil {
		return w.stats(ctx)
	}
	return w.complete.Stats(ctx)
}

func (w *worse) Count(ctx context.Context, state store.State, f store.Filter) (int64, error) {
	if w.count != nil {
		return w.count(ctx, state, f)
	}
	return w.complete.Count(ctx, state, f)
}

func (w *worse) List(ctx context.Context, state store.State, f store.Filter, after int64, limit int) ([]store.Record, error) {
	if w.list != nil {
		return w.list(ctx, state, f, after, limit)
	}
	return w.complete.List(ctx, state, f, after, limit)
}

func (w *worse) Find(ctx context.Context, id waybill.ID) ([]store.Record, error) {
	if w.find != nil {
		return w.find(ctx, id)
	}
	return w.complete.Find(ctx, id)
}

func (w *worse) Replay(ctx context.Context, ids []waybill.ID) (store.Replayed, error) {
	if w.replay != nil {
		return w.replay(ctx, ids)
	}
	return w.complete.Replay(ctx, ids)
}

func (w *worse) Discard(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	if w.discard != nil {
		return w.discard(ctx, ids)
	}
	return w.complete.Discard(ctx, ids)
}

func (w *worse) Unblock(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	if w.unblock != nil {
		return w.unblock(ctx, ids)
	}
	return w.complete.Unblock(ctx, ids)
}

func (w *worse) Purge(ctx context.Context, state store.State, age time.Duration, limit int) (int, error) {
	if w.purge != nil {
		return w.purge(ctx, state, age, limit)
	}
	return w.complete.Purge(ctx, state, age, limit)
}

func (w *worse) PurgeWritten(ctx context.Context, age time.Duration, limit int) (int, error) {
	if w.purgeWritten != nil {
		return w.purgeWritten(ctx, age, limit)
	}
	return w.complete.PurgeWritten(ctx, age, limit)
}

func (w *worse) MakeReady(ctx context.Context, limit int) (int, error) {
	if w.makeReady != nil {
		return w.makeReady(ctx, limit)
	}
	return w.complete.MakeReady(ctx, limit)
}

func (w *worse) Tidy(ctx context.Context, age time.Duration) error {
	if w.tidy != nil {
		return w.tidy(ctx, age)
	}
	return w.complete.Tidy(ctx, age)
}

func (w *worse) SetLanes(ctx context.Context, n int) error {
	if w.setLanes != nil {
		return w.setLanes(ctx, n)
	}
	return w.complete.SetLanes(ctx, n)
}

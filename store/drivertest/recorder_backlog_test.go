package drivertest

import (
	"context"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// worseRegistry is a store in which the methods of the registry of destinations
// and Restored can be replaced.
type worseRegistry struct {
	addDestinations   func(ctx context.Context, names ...string) ([]store.Destination, error)
	pauseDestination  func(ctx context.Context, name, reason string) (bool, error)
	resumeDestination func(ctx context.Context, name string) (bool, error)
	probeDestination  func(ctx context.Context, name string) error
	removeDestination func(ctx context.Context, name string) (int64, error)
	backlog           func(number int) driver.Backlog
	restored          func(ctx context.Context, force bool) error
}

func (w *worse) AddDestinations(ctx context.Context, names ...string) ([]store.Destination, error) {
	if w.addDestinations != nil {
		return w.addDestinations(ctx, names...)
	}
	return w.complete.AddDestinations(ctx, names...)
}

func (w *worse) PauseDestination(ctx context.Context, name, reason string) (bool, error) {
	if w.pauseDestination != nil {
		return w.pauseDestination(ctx, name, reason)
	}
	return w.complete.PauseDestination(ctx, name, reason)
}

func (w *worse) ResumeDestination(ctx context.Context, name string) (bool, error) {
	if w.resumeDestination != nil {
		return w.resumeDestination(ctx, name)
	}
	return w.complete.ResumeDestination(ctx, name)
}

func (w *worse) ProbeDestination(ctx context.Context, name string) error {
	if w.probeDestination != nil {
		return w.probeDestination(ctx, name)
	}
	return w.complete.ProbeDestination(ctx, name)
}

func (w *worse) RemoveDestination(ctx context.Context, name string) (int64, error) {
	if w.removeDestination != nil {
		return w.removeDestination(ctx, name)
	}
	return w.complete.RemoveDestination(ctx, name)
}

func (w *worse) Backlog(number int) driver.Backlog {
	if w.backlog != nil {
		return w.backlog(number)
	}
	return w.complete.Backlog(number)
}

func (w *worse) Restored(ctx context.Context, force bool) error {
	if w.restored != nil {
		return w.restored(ctx, force)
	}
	return w.complete.Restored(ctx, force)
}

// worseBacklog is a backlog in which single methods can be replaced.
type worseBacklog struct {
	driver.Backlog
	fetch     func(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error)
	sweep     func(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error)
	load      func(ctx context.Context, keys []store.Key) (driver.Page, error)
	due       func(ctx context.Context, lanes []int, limit int) (driver.Page, error)
	writers   func(ctx context.Context) (driver.WriterState, error)
	holds     func(ctx context.Context, lanes []int) ([]driver.Hold, error)
	follow    func(ctx context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error)
	urgent    func(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error)
	settle    func(ctx context.Context, s driver.Settlement) (driver.Settled, error)
	stats     func(ctx context.Context) (store.Stats, error)
	count     func(ctx context.Context, state store.State, f store.Filter) (int64, error)
	list      func(ctx context.Context, state store.State, f store.Filter, after int64, limit int) ([]store.Record, error)
	find      func(ctx context.Context, id waybill.ID) ([]store.Record, error)
	replay    func(ctx context.Context, ids []waybill.ID) (store.Replayed, error)
	discard   func(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error)
	unblock   func(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error)
	occupied  func(ctx context.Context) ([]int, error)
	purgeDead func(ctx context.Context, age time.Duration, limit int) (int, error)
	refill    func(ctx context.Context, q driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error)
	history   func(ctx context.Context, q driver.HistoryQuery) (int64, error)
}

func (w *worseBacklog) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	if w.fetch != nil {
		return w.fetch(ctx, from, limit)
	}
	return w.Backlog.Fetch(ctx, from, limit)
}

func (w *worseBacklog) Sweep(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
	if w.sweep != nil {
		return w.sweep(ctx, from, limit)
	}
	return w.Backlog.Sweep(ctx, from, limit)
}

func (w *worseBacklog) Load(ctx context.Context, keys []store.Key) (driver.Page, error) {
	if w.load != nil {
		return w.load(ctx, keys)
	}
	return w.Backlog.Load(ctx, keys)
}

func (w *worseBacklog) Due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	if w.due != nil {
		return w.due(ctx, lanes, limit)
	}
	return w.Backlog.Due(ctx, lanes, limit)
}

func (w *worseBacklog) OpenWriters(ctx context.Context) (driver.WriterState, error) {
	if w.writers != nil {
		return w.writers(ctx)
	}
	return w.Backlog.OpenWriters(ctx)
}

func (w *worseBacklog) Holds(ctx context.Context, lanes []int) ([]driver.Hold, error) {
	if w.holds != nil {
		return w.holds(ctx, lanes)
	}
	return w.Backlog.Holds(ctx, lanes)
}

func (w *worseBacklog) FetchAggregate(ctx context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error) {
	if w.follow != nil {
		return w.follow(ctx, agg, from, limit)
	}
	return w.Backlog.FetchAggregate(ctx, agg, from, limit)
}

func (w *worseBacklog) FetchPriority(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	if w.urgent != nil {
		return w.urgent(ctx, from, limit)
	}
	return w.Backlog.FetchPriority(ctx, from, limit)
}

func (w *worseBacklog) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	if w.settle != nil {
		return w.settle(ctx, s)
	}
	return w.Backlog.Settle(ctx, s)
}

func (w *worseBacklog) Stats(ctx context.Context) (store.Stats, error) {
	if w.stats != nil {
		return w.stats(ctx)
	}
	return w.Backlog.Stats(ctx)
}

func (w *worseBacklog) Count(ctx context.Context, state store.State, f store.Filter) (int64, error) {
	if w.count != nil {
		return w.count(ctx, state, f)
	}
	return w.Backlog.Count(ctx, state, f)
}

func (w *worseBacklog) List(ctx context.Context, state store.State, f store.Filter, after int64, limit int) ([]store.Record, error) {
	if w.list != nil {
		return w.list(ctx, state, f, after, limit)
	}
	return w.Backlog.List(ctx, state, f, after, limit)
}

func (w *worseBacklog) Find(ctx context.Context, id waybill.ID) ([]store.Record, error) {
	if w.find != nil {
		return w.find(ctx, id)
	}
	return w.Backlog.Find(ctx, id)
}

func (w *worseBacklog) Replay(ctx context.Context, ids []waybill.ID) (store.Replayed, error) {
	if w.replay != nil {
		return w.replay(ctx, ids)
	}
	return w.Backlog.Replay(ctx, ids)
}

func (w *worseBacklog) Discard(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	if w.discard != nil {
		return w.discard(ctx, ids)
	}
	return w.Backlog.Discard(ctx, ids)
}

func (w *worseBacklog) Unblock(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	if w.unblock != nil {
		return w.unblock(ctx, ids)
	}
	return w.Backlog.Unblock(ctx, ids)
}

func (w *worseBacklog) Occupied(ctx context.Context) ([]int, error) {
	if w.occupied != nil {
		return w.occupied(ctx)
	}
	return w.Backlog.Occupied(ctx)
}

func (w *worseBacklog) PurgeDead(ctx context.Context, age time.Duration, limit int) (int, error) {
	if w.purgeDead != nil {
		return w.purgeDead(ctx, age, limit)
	}
	return w.Backlog.PurgeDead(ctx, age, limit)
}

func (w *worseBacklog) Refill(
	ctx context.Context, q driver.HistoryQuery, after driver.HistoryCursor, limit int,
) (driver.Refilled, error) {
	if w.refill != nil {
		return w.refill(ctx, q, after, limit)
	}
	return w.Backlog.Refill(ctx, q, after, limit)
}

func (w *worseBacklog) CountHistory(ctx context.Context, q driver.HistoryQuery) (int64, error) {
	if w.history != nil {
		return w.history(ctx, q)
	}
	return w.Backlog.CountHistory(ctx, q)
}

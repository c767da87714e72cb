package drivertest

import (
	"context"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// worseAudit is a store in which the methods of the audit can be replaced.
type worseAudit struct {
	complete
	list  func(ctx context.Context, f driver.AuditFilter, before driver.AuditCursor, limit int) ([]driver.AuditRecord, error)
	purge func(ctx context.Context, age time.Duration, limit int) (int, error)
}

func (w *worseAudit) ListAudit(ctx context.Context, f driver.AuditFilter, before driver.AuditCursor, limit int) ([]driver.AuditRecord, error) {
	if w.list != nil {
		return w.list(ctx, f, before, limit)
	}
	return w.complete.ListAudit(ctx, f, before, limit)
}

func (w *worseAudit) PurgeAudit(ctx context.Context, age time.Duration, limit int) (int, error) {
	if w.purge != nil {
		return w.purge(ctx, age, limit)
	}
	return w.complete.PurgeAudit(ctx, age, limit)
}

// asks breaks the arguments of ListAudit.
func asks(change func(f *driver.AuditFilter, before *driver.AuditCursor, limit *int)) tamper {
	return func(db complete) complete {
		return &worseAudit{complete: db, list: func(ctx context.Context, f driver.AuditFilter, before driver.AuditCursor, limit int) ([]driver.AuditRecord, error) {
			change(&f, &before, &limit)
			return db.ListAudit(ctx, f, before, limit)
		}}
	}
}

// recorded breaks the records that ListAudit returns.
func recorded(change func(all []driver.AuditRecord)) tamper {
	return func(db complete) complete {
		return &worseAudit{complete: db, list: func(ctx context.Context, f driver.AuditFilter, before driver.AuditCursor, limit int) ([]driver.AuditRecord, error) {
			all, err := db.ListAudit(ctx, f, before, limit)
			change(all)
			return all, err
		}}
	}
}

// eachRecord breaks every record that ListAudit returns.
func eachRecord(change func(r *driver.AuditRecord)) tamper {
	return recorded(func(all []driver.AuditRecord) {
		for i := range all {
			change(&all[i])
		}
	})
}

// silent is the context of a change that leaves no record.
func silent() context.Context { return context.Background() }

// anyway returns the context of a change with a record although it has none.
func anyway(ctx context.Context) context.Context {
	if _, ok := driver.AuditOf(ctx); ok {
		return ctx
	}
	return driver.WithAudit(ctx, driver.AuditRecord{ID: waybill.NewID()})
}

func auditMutants() []mutant {
	return slices.Concat(unrecordedMutants(), []mutant{
		{"records what was not asked for", "audit", operates(func(db complete, w *worseOperator) {
			w.discard = func(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) { return db.Discard(anyway(ctx), ids) }
		})},
		{"records a change that changes nothing", "audit", operates(func(db complete, w *worseOperator) {
			w.replay = func(ctx context.Context, ids []waybill.ID) (store.Replayed, error) {
				done, err := db.Replay(ctx, ids)
				if len(done.IDs) == 0 {
					_ = db.SetLanes(ctx, 8)
				}
				return done, err
			}
		})},
		{"records a refused change", "audit", restorers(func(ctx context.Context, db complete, force bool) error {
			err := db.Restored(ctx, force)
			if err != nil {
				_, _ = db.AddDestinations(ctx, "refused")
				_, _ = db.RemoveDestination(silent(), "refused")
			}
			return err
		})},
		{"records each transaction as a change", "audit", operates(func(db complete, w *worseOperator) {
			w.discard = func(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
				rec, ok := driver.AuditOf(ctx)
				if !ok {
					return db.Discard(ctx, ids)
				}
				rec.ID = waybill.NewID()
				return db.Discard(driver.WithAudit(ctx, rec), ids)
			}
		})},
		{"keeps no count", "audit", eachRecord(func(r *driver.AuditRecord) { r.Count = 1 })},
		{"loses the destination of a record", "audit", eachRecord(func(r *driver.AuditRecord) { r.Destination = "" })},
		{"stores local times in the audit", "audit", eachRecord(func(r *driver.AuditRecord) { r.At = r.At.In(time.FixedZone("", 3600)) })},
		{"lists the oldest change first", "audit", recorded(func(all []driver.AuditRecord) { slices.Reverse(all) })},
		{"ignores the actor", "audit", asks(func(f *driver.AuditFilter, _ *driver.AuditCursor, _ *int) { f.Actor = "" })},
		{"ignores the action", "audit", asks(func(f *driver.AuditFilter, _ *driver.AuditCursor, _ *int) { f.Action = "" })},
		{"ignores the begin", "audit", asks(func(f *driver.AuditFilter, _ *driver.AuditCursor, _ *int) { f.Since = time.Time{} })},
		{"ignores the end", "audit", asks(func(f *driver.AuditFilter, _ *driver.AuditCursor, _ *int) { f.Until = time.Time{} })},
		{"includes the end", "audit", asks(func(f *driver.AuditFilter, _ *driver.AuditCursor, _ *int) {
			if !f.Until.IsZero() {
				f.Until = f.Until.Add(time.Microsecond)
			}
		})},
		{"repeats the last record of a page", "audit", asks(func(_ *driver.AuditFilter, before *driver.AuditCursor, _ *int) {
			if !before.At.IsZero() {
				before.At = before.At.Add(time.Microsecond)
			}
		})},
		{"ignores the limit of a page of the audit", "audit", asks(func(_ *driver.AuditFilter, _ *driver.AuditCursor, limit *int) { *limit = 1000 })},
		{"ignores the age of records", "audit", func(db complete) complete {
			return &worseAudit{complete: db, purge: func(ctx context.Context, _ time.Duration, limit int) (int, error) {
				return db.PurgeAudit(ctx, 0, limit)
			}}
		}},
		{"ignores the limit of a purge of the audit", "audit", func(db complete) complete {
			return &worseAudit{complete: db, purge: func(ctx context.Context, age time.Duration, _ int) (int, error) { return db.PurgeAudit(ctx, age, 1000) }}
		}},
	})
}

// unrecordedMutants make one change each without its record.
func unrecordedMutants() []mutant {
	return []mutant{
		{"does not record replays", "audit", operates(func(db complete, w *worseOperator) {
			w.replay = func(_ context.Context, ids []waybill.ID) (store.Replayed, error) { return db.Replay(silent(), ids) }
		})},
		{"does not record discards", "audit", operates(func(db complete, w *worseOperator) {
			w.discard = func(_ context.Context, ids []waybill.ID) ([]waybill.ID, error) { return db.Discard(silent(), ids) }
		})},
		{"does not record what is unblocked", "audit", operates(func(db complete, w *worseOperator) {
			w.unblock = func(_ context.Context, ids []waybill.ID) ([]waybill.ID, error) { return db.Unblock(silent(), ids) }
		})},
		{"does not record purges", "audit", operates(func(db complete, w *worseOperator) {
			w.purge = func(_ context.Context, state store.State, age time.Duration, limit int) (int, error) {
				return db.Purge(silent(), state, age, limit)
			}
		})},
		{"does not record purges of written events", "audit", operates(func(db complete, w *worseOperator) {
			w.purgeWritten = func(_ context.Context, age time.Duration, limit int) (int, error) {
				return db.PurgeWritten(silent(), age, limit)
			}
		})},
		{"does not record the number of lanes", "audit", operates(func(db complete, w *worseOperator) {
			w.setLanes = func(_ context.Context, n int) error { return db.SetLanes(silent(), n) }
		})},
		{"does not record restorations", "audit", restorers(func(_ context.Context, db complete, force bool) error { return db.Restored(silent(), force) })},
		{"does not record pauses", "audit", destined(func(db complete, w *worseRegistry) {
			w.pauseDestination = func(_ context.Context, name, reason string) (bool, error) {
				return db.PauseDestination(silent(), name, reason)
			}
		})},
		{"does not record the end of a pause", "audit", destined(func(db complete, w *worseRegistry) {
			w.resumeDestination = func(_ context.Context, name string) (bool, error) { return db.ResumeDestination(silent(), name) }
		})},
		{"does not record probes", "audit", destined(func(db complete, w *worseRegistry) {
			w.probeDestination = func(_ context.Context, name string) error { return db.ProbeDestination(silent(), name) }
		})},
		{"does not record new destinations", "audit", destined(func(db complete, w *worseRegistry) {
			w.addDestinations = func(_ context.Context, names ...string) ([]store.Destination, error) {
				return db.AddDestinations(silent(), names...)
			}
		})},
		{"does not record removed destinations", "audit", destined(func(db complete, w *worseRegistry) {
			w.removeDestination = func(_ context.Context, name string) (int64, error) { return db.RemoveDestination(silent(), name) }
		})},
	}
}

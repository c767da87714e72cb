package drivertest

import (
	"context"
	"slices"

	"github.com/waybillhq/waybill/store"
)

// worseApplied is a store in which ListApplied is replaced.
type worseApplied struct {
	complete
	list func(ctx context.Context, group string, limit int) ([]store.InboxRecord, error)
}

func (w *worseApplied) ListApplied(ctx context.Context, group string, limit int) ([]store.InboxRecord, error) {
	return w.list(ctx, group, limit)
}

// applied breaks ListApplied.
func applied(list func(ctx context.Context, db complete, group string, limit int) ([]store.InboxRecord, error)) tamper {
	return func(db complete) complete {
		return &worseApplied{complete: db, list: func(ctx context.Context, group string, limit int) ([]store.InboxRecord, error) {
			return list(ctx, db, group, limit)
		}}
	}
}

func appliedMutants() []mutant {
	return []mutant{
		{"lists the first events of a group", "last_applied", applied(func(ctx context.Context, db complete, group string, limit int) ([]store.InboxRecord, error) {
			all, err := db.ListApplied(ctx, group, 1000)
			slices.Reverse(all)
			return all[:min(limit, len(all))], err
		})},
		{"lists all events of a group", "last_applied", applied(func(ctx context.Context, db complete, group string, _ int) ([]store.InboxRecord, error) {
			return db.ListApplied(ctx, group, 1000)
		})},
		{"lists events that failed", "last_applied", applied(func(ctx context.Context, db complete, group string, limit int) ([]store.InboxRecord, error) {
			return db.ListRecords(ctx, store.RecordFilter{
				Group: group, States: []store.InboxState{store.InboxSucceeded, store.InboxDead},
			}, "", [16]byte{}, limit)
		})},
	}
}

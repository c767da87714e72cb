package drivertest

import (
	"context"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// worseCauses is a store in which the methods of the causes can be replaced.
type worseCauses struct {
	complete
	note  func(ctx context.Context, limit int) (int, error)
	count func(ctx context.Context, limit int) ([]driver.CauseCount, error)
	list  func(ctx context.Context, cause string, after int64, limit int) ([]store.Record, error)
}

func (w *worseCauses) NoteCauses(ctx context.Context, limit int) (int, error) {
	if w.note != nil {
		return w.note(ctx, limit)
	}
	return w.complete.(driver.Causes).NoteCauses(ctx, limit)
}

func (w *worseCauses) CountCauses(ctx context.Context, limit int) ([]driver.CauseCount, error) {
	if w.count != nil {
		return w.count(ctx, limit)
	}
	return w.complete.(driver.Causes).CountCauses(ctx, limit)
}

func (w *worseCauses) ListCause(ctx context.Context, cause string, after int64, limit int) ([]store.Record, error) {
	if w.list != nil {
		return w.list(ctx, cause, after, limit)
	}
	return w.complete.(driver.Causes).ListCause(ctx, cause, after, limit)
}

// groups breaks the groups that CountCauses returns.
func groups(change func(all []driver.CauseCount) []driver.CauseCount) tamper {
	return func(db complete) complete {
		return &worseCauses{complete: db, count: func(ctx context.Context, limit int) ([]driver.CauseCount, error) {
			all, err := db.(driver.Causes).CountCauses(ctx, limit)
			return change(all), err
		}}
	}
}

func causesMutants() []mutant {
	return []mutant{
		{"ignores the limit of NoteCauses", "causes", func(db complete) complete {
			return &worseCauses{complete: db, note: func(ctx context.Context, _ int) (int, error) { return db.(driver.Causes).NoteCauses(ctx, 1000) }}
		}},
		{"notes no causes", "causes", func(db complete) complete {
			return &worseCauses{complete: db, note: func(context.Context, int) (int, error) { return 0, nil }}
		}},
		{"omits letters without a cause", "causes", groups(func(all []driver.CauseCount) []driver.CauseCount {
			var out []driver.CauseCount
			for _, c := range all {
				if c.ID != "" {
					out = append(out, c)
				}
			}
			return out
		})},
		{"counts no letters", "causes", groups(func(all []driver.CauseCount) []driver.CauseCount {
			for i := range all {
				all[i].Letters = 1
			}
			return all
		})},
		{"knows only the last letter of a cause", "causes", groups(func(all []driver.CauseCount) []driver.CauseCount {
			for i := range all {
				all[i].First = all[i].Last
			}
			return all
		})},
		{"ignores the limit of causes", "causes", func(db complete) complete {
			return &worseCauses{complete: db, count: func(ctx context.Context, _ int) ([]driver.CauseCount, error) {
				return db.(driver.Causes).CountCauses(ctx, 1000)
			}}
		}},
		{"lists letters of every cause", "causes", func(db complete) complete {
			return &worseCauses{complete: db, list: func(ctx context.Context, _ string, after int64, limit int) ([]store.Record, error) {
				return db.List(ctx, store.Dead, store.Filter{}, after, limit)
			}}
		}},
		{"lists the letters of a cause from the beginning", "causes", func(db complete) complete {
			return &worseCauses{complete: db, list: func(ctx context.Context, cause string, _ int64, limit int) ([]store.Record, error) {
				return db.(driver.Causes).ListCause(ctx, cause, 0, limit)
			}}
		}},
		{"ignores the limit of the letters of a cause", "causes", func(db complete) complete {
			return &worseCauses{complete: db, list: func(ctx context.Context, cause string, after int64, _ int) ([]store.Record, error) {
				return db.(driver.Causes).ListCause(ctx, cause, after, 1000)
			}}
		}},
	}
}

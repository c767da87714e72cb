package drivertest

import (
	"context"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// worseRollups is a store in which the methods of the counts can be replaced.
type worseRollups struct {
	complete
	beat         func(ctx context.Context, n store.Node, lease time.Duration) (store.Membership, error)
	list         func(ctx context.Context, f driver.RollupFilter) ([]driver.Rollup, error)
	merge, purge func(ctx context.Context, age time.Duration, limit int) (int, error)
}

func (w *worseRollups) Heartbeat(ctx context.Context, n store.Node, lease time.Duration) (store.Membership, error) {
	if w.beat != nil {
		return w.beat(ctx, n, lease)
	}
	return w.complete.Heartbeat(ctx, n, lease)
}

func (w *worseRollups) ListRollups(ctx context.Context, f driver.RollupFilter) ([]driver.Rollup, error) {
	if w.list != nil {
		return w.list(ctx, f)
	}
	return w.complete.ListRollups(ctx, f)
}

func (w *worseRollups) MergeRollups(ctx context.Context, age time.Duration, limit int) (int, error) {
	if w.merge != nil {
		return w.merge(ctx, age, limit)
	}
	return w.complete.MergeRollups(ctx, age, limit)
}

func (w *worseRollups) PurgeRollups(ctx context.Context, age time.Duration, limit int) (int, error) {
	if w.purge != nil {
		return w.purge(ctx, age, limit)
	}
	return w.complete.PurgeRollups(ctx, age, limit)
}

// brings breaks the counts that a heartbeat brings.
func brings(change func(r *driver.RollupRow)) tamper {
	return func(db complete) complete {
		return &worseRollups{complete: db, beat: func(ctx context.Context, n store.Node, lease time.Duration) (store.Membership, error) {
			rows, err := driver.DecodeRollup(n.Rollup)
			if err != nil {
				return store.Membership{}, err
			}
			for i := range rows {
				change(&rows[i])
			}
			n.Rollup = driver.EncodeRollup(rows)
			return db.Heartbeat(ctx, n, lease)
		}}
	}
}

// selects breaks the filter of ListRollups.
func selects(change func(f *driver.RollupFilter)) tamper {
	return func(db complete) complete {
		return &worseRollups{complete: db, list: func(ctx context.Context, f driver.RollupFilter) ([]driver.Rollup, error) {
			change(&f)
			return db.ListRollups(ctx, f)
		}}
	}
}

// sums breaks the result of ListRollups.
func sums(change func(all []driver.Rollup) []driver.Rollup) tamper {
	return func(db complete) complete {
		return &worseRollups{complete: db, list: func(ctx context.Context, f driver.RollupFilter) ([]driver.Rollup, error) {
			all, err := db.ListRollups(ctx, f)
			return change(all), err
		}}
	}
}

// merges and purges break the arguments of MergeRollups and PurgeRollups.
func merges(change func(age *time.Duration, limit *int)) tamper {
	return func(db complete) complete {
		return &worseRollups{complete: db, merge: func(ctx context.Context, age time.Duration, limit int) (int, error) {
			change(&age, &limit)
			return db.MergeRollups(ctx, age, limit)
		}}
	}
}

func purges(change func(age *time.Duration, limit *int)) tamper {
	return func(db complete) complete {
		return &worseRollups{complete: db, purge: func(ctx context.Context, age time.Duration, limit int) (int, error) {
			change(&age, &limit)
			return db.PurgeRollups(ctx, age, limit)
		}}
	}
}

// abs makes a negative age valid.
func abs(age *time.Duration, _ *int) { *age = max(*age, -*age) }

func rollupMutants() []mutant {
	return []mutant{
		{"drops counts", "rollups", func(db complete) complete {
			return &worseRollups{complete: db, beat: func(ctx context.Context, n store.Node, lease time.Duration) (store.Membership, error) {
				n.Rollup = ""
				return db.Heartbeat(ctx, n, lease)
			}}
		}},
		{"adds repeated counts", "rollups", brings(func(r *driver.RollupRow) { r.Source = waybill.NewID() })},
		{"has one row for all nodes", "rollups", brings(func(r *driver.RollupRow) { r.Source = waybill.ID{1} })},
		{"cuts counts to 32 bits", "rollups", brings(func(r *driver.RollupRow) { r.Delivered &= 1<<32 - 1 })},
		{"trims types", "rollups", brings(func(r *driver.RollupRow) { r.Type = trimmed(r.Type) })},
		{"stores counts of a rejected heartbeat", "rollups", func(db complete) complete {
			return &worseRollups{complete: db, beat: func(ctx context.Context, n store.Node, lease time.Duration) (store.Membership, error) {
				m, err := db.Heartbeat(ctx, n, lease)
				if err != nil {
					n.Relay = relayName
					_, _ = db.Heartbeat(ctx, n, lease)
				}
				return m, err
			}}
		}},
		{"returns counts with a heartbeat", "rollups", func(db complete) complete {
			return &worseRollups{complete: db, beat: func(ctx context.Context, n store.Node, lease time.Duration) (store.Membership, error) {
				m, err := db.Heartbeat(ctx, n, lease)
				for i := range m.Nodes {
					m.Nodes[i].Rollup = n.Rollup
				}
				return m, err
			}}
		}},
		{"ignores the begin of counts", "rollups", selects(func(f *driver.RollupFilter) { f.Since = time.Time{} })},
		{"begins with the minute of a time", "rollups", selects(func(f *driver.RollupFilter) { f.Since = f.Since.Truncate(time.Minute) })},
		{"ignores the end of counts", "rollups", selects(func(f *driver.RollupFilter) { f.Until = time.Time{} })},
		{"ends before the minute of a time", "rollups", selects(func(f *driver.RollupFilter) { f.Until = f.Until.Truncate(time.Minute) })},
		{"ignores the destination of counts", "rollups", selects(func(f *driver.RollupFilter) { f.Destination = "" })},
		{"ignores the type of counts", "rollups", selects(func(f *driver.RollupFilter) { f.Type = "" })},
		{"ignores the step", "rollups", selects(func(f *driver.RollupFilter) { f.Step = 0 })},
		{"sums all types", "rollups", selects(func(f *driver.RollupFilter) { f.ByType = false })},
		{"lists the latest minute first", "rollups", sums(func(all []driver.Rollup) []driver.Rollup { slices.Reverse(all); return all })},
		{"lists local times", "rollups", sums(func(all []driver.Rollup) []driver.Rollup {
			for i := range all {
				all[i].At = all[i].At.In(time.FixedZone("", 3600))
			}
			return all
		})},
		{"ignores the limit of a merge", "rollups", merges(func(_ *time.Duration, limit *int) { *limit = 1000 })},
		{"ignores the age of a merge", "rollups", merges(func(age *time.Duration, _ *int) { *age = min(*age, 0) })},
		{"merges with a negative age", "rollups", merges(abs)},
		{"ignores the limit of a purge of counts", "rollups", purges(func(_ *time.Duration, limit *int) { *limit = 1000 })},
		{"ignores the age of counts", "rollups", purges(func(age *time.Duration, _ *int) { *age = min(*age, 0) })},
		{"purges counts with a negative age", "rollups", purges(abs)},
		{"loses merged counts", "rollups", func(db complete) complete {
			return &worseRollups{complete: db, merge: func(ctx context.Context, age time.Duration, limit int) (int, error) {
				n, err := db.MergeRollups(ctx, age, limit)
				if err == nil {
					_, err = db.PurgeRollups(ctx, max(age, 0), limit)
				}
				return n, err
			}}
		}},
	}
}

// trimmed returns a text without trailing spaces.
func trimmed(text string) string {
	for text != "" && text[len(text)-1] == ' ' {
		text = text[:len(text)-1]
	}
	return text
}

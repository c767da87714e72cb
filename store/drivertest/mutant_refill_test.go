package drivertest

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// queries breaks the queries of Refill and CountHistory.
func queries(change func(q *driver.HistoryQuery)) tamper {
	return backlogs(func(_ complete, _ int, w *worseBacklog) {
		w.refill = func(ctx context.Context, q driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error) {
			change(&q)
			return w.Backlog.Refill(ctx, q, after, limit)
		}
		w.history = func(ctx context.Context, q driver.HistoryQuery) (int64, error) {
			change(&q)
			return w.Backlog.CountHistory(ctx, q)
		}
	})
}

// refillsWith breaks Refill.
func refillsWith(
	change func(ctx context.Context, db complete, b driver.Backlog, q driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error),
) tamper {
	return backlogs(func(db complete, _ int, w *worseBacklog) {
		w.refill = func(ctx context.Context, q driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error) {
			return change(ctx, db, w.Backlog, q, after, limit)
		}
	})
}

// historyCursors breaks the cursor that Refill gets, and the one that it
// returns.
func historyCursors(before, next func(c *driver.HistoryCursor)) tamper {
	return refillsWith(func(ctx context.Context, _ complete, b driver.Backlog, q driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error) {
		before(&after)
		out, err := b.Refill(ctx, q, after, limit)
		next(&out.Next)
		return out, err
	})
}

func refillMutants() []mutant {
	same := func(*driver.HistoryCursor) {}
	return []mutant{
		{"refills whatever the type", "refill", queries(func(q *driver.HistoryQuery) { q.Types = nil })},
		{"refills the first type only", "refill", queries(func(q *driver.HistoryQuery) { q.Types = q.Types[:min(len(q.Types), 1)] })},
		{"refills whatever the aggregate type", "refill", queries(func(q *driver.HistoryQuery) { q.AggregateTypes = nil })},
		{"refills whatever the aggregate", "refill", queries(func(q *driver.HistoryQuery) { q.AggregateID = "" })},
		{"refills whatever the tenant", "refill", queries(func(q *driver.HistoryQuery) { q.Tenants = nil })},
		{"refills events of a tenant only", "refill", queries(func(q *driver.HistoryQuery) {
			for i := range q.Tenants {
				if q.Tenants = slices.Clone(q.Tenants); q.Tenants[i] == "" {
					q.Tenants[i] = "none"
				}
			}
		})},
		{"refills events without a tenant as events of any", "refill", queries(func(q *driver.HistoryQuery) {
			if slices.Contains(q.Tenants, "") {
				q.Tenants = nil
			}
		})},
		{"folds the case of a query", "refill", queries(func(q *driver.HistoryQuery) {
			q.Types = slices.Clone(q.Types)
			for i := range q.Types {
				q.Types[i] = strings.ToLower(q.Types[i])
			}
		})},
		{"pads the names of a query", "refill", queries(func(q *driver.HistoryQuery) { q.AggregateID = strings.TrimRight(q.AggregateID, " ") })},
		{"takes no type for none", "refill", queries(func(q *driver.HistoryQuery) {
			if q.Types != nil && len(q.Types) == 0 {
				q.Types = []string{"none"}
			}
		})},
		{"refills after a time only", "refill", queries(func(q *driver.HistoryQuery) {
			if !q.Since.IsZero() {
				q.Since = q.Since.Add(time.Microsecond)
			}
		})},
		{"refills up to a time", "refill", queries(func(q *driver.HistoryQuery) {
			if !q.Until.IsZero() {
				q.Until = q.Until.Add(time.Microsecond)
			}
		})},
		{"refills since any time", "refill", queries(func(q *driver.HistoryQuery) { q.Since = time.Time{} })},
		{"refills until now", "refill", queries(func(q *driver.HistoryQuery) { q.Until = time.Time{} })},
		{"compares milliseconds", "refill", queries(func(q *driver.HistoryQuery) {
			q.Since, q.Until = q.Since.Truncate(time.Millisecond), q.Until.Truncate(time.Millisecond)
		})},
		{"ignores the zone of a time", "refill", queries(func(q *driver.HistoryQuery) {
			_, offset := q.Since.Zone()
			if !q.Since.IsZero() {
				q.Since = q.Since.Add(time.Duration(offset) * time.Second)
			}
		})},
		{"always refills from the beginning", "refill", historyCursors(func(c *driver.HistoryCursor) { *c = driver.HistoryCursor{} }, same)},
		{"refills after the time of a cursor", "refill", historyCursors(func(c *driver.HistoryCursor) {
			if !c.At.IsZero() {
				c.ID = waybill.ID{0: 255}
			}
		}, same)},
		{"refills from the time of a cursor", "refill", historyCursors(func(c *driver.HistoryCursor) { c.ID = waybill.ID{} }, same)},
		{"returns no cursor", "refill", historyCursors(same, func(c *driver.HistoryCursor) { *c = driver.HistoryCursor{} })},
		{"returns a cursor without an id", "refill", historyCursors(same, func(c *driver.HistoryCursor) { c.ID = waybill.ID{} })},
		{"returns a cursor in milliseconds", "refill", historyCursors(same, func(c *driver.HistoryCursor) { c.At = c.At.Truncate(time.Millisecond) })},
		{"starts again behind the end", "refill", refillsWith(func(ctx context.Context, _ complete, b driver.Backlog, q driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error) {
			out, err := b.Refill(ctx, q, after, limit)
			if out.Matched == 0 {
				out.Next = driver.HistoryCursor{}
			}
			return out, err
		})},
		{"refills without a limit", "refill", refillsWith(func(ctx context.Context, _ complete, b driver.Backlog, q driver.HistoryQuery, after driver.HistoryCursor, _ int) (driver.Refilled, error) {
			return b.Refill(ctx, q, after, 10_000)
		})},
		{"refills a thousand at most", "refill", refillsWith(func(ctx context.Context, _ complete, b driver.Backlog, q driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error) {
			return b.Refill(ctx, q, after, min(limit, 999))
		})},
		{"counts only what it copies", "refill", refillsWith(func(ctx context.Context, _ complete, b driver.Backlog, q driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error) {
			out, err := b.Refill(ctx, q, after, limit)
			out.Matched = out.Copied
			return out, err
		})},
		{"counts what it skips as copied", "refill", refillsWith(func(ctx context.Context, _ complete, b driver.Backlog, q driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error) {
			out, err := b.Refill(ctx, q, after, limit)
			out.Copied = out.Matched
			return out, err
		})},
		{"refills all destinations", "refill", refillsWith(func(ctx context.Context, db complete, b driver.Backlog, q driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error) {
			for n := 1; n < 4; n++ {
				_, _ = db.Backlog(n).Refill(ctx, q, after, limit)
			}
			return b.Refill(ctx, q, after, limit)
		})},
		{"replaces dead letters", "refill", refillsWith(func(ctx context.Context, _ complete, b driver.Backlog, q driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error) {
			recs, _ := b.List(ctx, store.Dead, store.Filter{}, 0, 1000)
			_, _ = b.Discard(ctx, recordIDs(recs))
			return b.Refill(ctx, q, after, limit)
		})},
		{"moves the history", "refill", refillsWith(func(ctx context.Context, db complete, b driver.Backlog, q driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error) {
			out, err := b.Refill(ctx, q, after, limit)
			_, _ = db.Purge(ctx, store.Delivered, 0, 1000)
			return out, err
		})},
		{"does not raise the replay number", "refill", rowsRead(func(r *row) { r.Replay = max(r.Replay-1, 0) })},
		{"refills the error of the outbox", "refill", rowsRead(func(r *row) { r.LastError += "boom" })},
		{"counts the whole history", "refill", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.history = func(ctx context.Context, _ driver.HistoryQuery) (int64, error) {
				return w.Backlog.CountHistory(ctx, driver.HistoryQuery{})
			}
		})},
		{"refills the lanes of the past", "refill", func(db complete) complete {
			w := &worse{complete: db}
			past := 8
			w.setLanes = func(ctx context.Context, n int) error {
				past = n - 1
				return db.SetLanes(ctx, n)
			}
			w.backlog = func(number int) driver.Backlog {
				inner := db.Backlog(number)
				return &worseBacklog{Backlog: inner, fetch: func(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
					p, err := inner.Fetch(ctx, from, limit)
					for i := range p.Rows {
						p.Rows[i].Lane %= max(past, 1)
					}
					return p, err
				}}
			}
			return w
		}},
	}
}

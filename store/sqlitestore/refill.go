package sqlitestore

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store/driver"
)

// Refill implements [driver.Backlog]. It finds the rows of the history first,
// by their times and ids, and copies them then.
func (b *backlog) Refill(ctx context.Context, query driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error) {
	args, err := historyArgs(query, after.At)
	if err != nil {
		return driver.Refilled{}, err
	}
	args = append(args, micros(after.At), after.ID[:], max(limit, 0))
	out := driver.Refilled{Next: after}
	err = b.store.within(ctx, func(ctx context.Context, t txTarget) error {
		if err := b.isRegistered(ctx, t); err != nil {
			return err
		}
		var found []int64
		rows, err := t.query(ctx, b.sql.pageOfHistory, args...)
		err = eachRow(rows, err, func(rows *sql.Rows) error {
			var row, at int64
			if err := rows.Scan(&row, &at, (*scanID)(&out.Next.ID)); err != nil {
				return err
			}
			found, out.Next.At = append(found, row), time.UnixMicro(at).UTC()
			return nil
		})
		if err != nil {
			return err
		}
		out.Matched = len(found)
		err = lists(found, func(row int64) any { return row }, func(index int, args []any) error {
			n, err := affected(t.exec(ctx, b.sql.refill[index], args...))
			out.Copied += int(n)
			return err
		})
		if err != nil {
			return err
		}
		return b.store.note(ctx, t, int64(out.Copied))
	})
	if err != nil {
		return driver.Refilled{}, err
	}
	return out, nil
}

// isRegistered returns an error unless the destination is registered: rows of
// another one would belong to the next destination with this number.
func (b *backlog) isRegistered(ctx context.Context, t txTarget) error {
	var registered bool
	rows, err := t.query(ctx, b.sql.registered, b.number)
	_, err = scanOne(rows, err, &registered)
	if err == nil && !registered {
		err = fmt.Errorf("%w: number %d", driver.ErrNoDestination, b.number)
	}
	return err
}

// CountHistory implements [driver.Backlog].
func (b *backlog) CountHistory(ctx context.Context, query driver.HistoryQuery) (int64, error) {
	args, err := historyArgs(query, time.Time{})
	if err != nil {
		return 0, err
	}
	if err := b.store.ready(ctx, b.store.db); err != nil {
		return 0, err
	}
	var n int64
	rows, err := b.store.query(ctx, b.sql.countHistory, args...)
	if _, err := scanOne(rows, err, &n); err != nil {
		return 0, b.store.explain(err)
	}
	return n, nil
}

// historyArgs returns the arguments 1 to 6 of inHistory, for deliveries not
// before a time.
func historyArgs(query driver.HistoryQuery, from time.Time) ([]any, error) {
	if from.Before(query.Since) {
		from = query.Since
	}
	until := int64(math.MaxInt64)
	if !query.Until.IsZero() {
		until = wholeMicros(query.Until)
	}
	args := []any{wholeMicros(from), until}
	for _, values := range [][]string{query.Types, query.AggregateTypes, query.Tenants} {
		if len(values) == 0 {
			args = append(args, nil)
			continue
		}
		list, err := json.Marshal(values)
		if err != nil {
			return nil, fmt.Errorf("sqlitestore: %w", err)
		}
		args = append(args, string(list))
	}
	if query.AggregateID == "" {
		return append(args, nil), nil
	}
	return append(args, query.AggregateID), nil
}

// wholeMicros returns a bound as it is stored, rounded up.
func wholeMicros(t time.Time) int64 { return micros(sqlstore.WholeMicrosecond(t)) }

package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Stats implements [driver.Inspector]. It reads everything in one transaction,
// so the numbers are consistent.
func (q *queue) Stats(ctx context.Context) (store.Stats, error) {
	st := store.Stats{Now: clock()}
	err := q.store.reading(ctx, func(t txTarget) error {
		var oldest sql.NullInt64
		rows, err := t.query(ctx, q.sql.stats)
		if _, err := scanOne(rows, err, &st.Ready, &oldest, &st.Scheduled, &st.Failed, &st.MaxAttempts, &st.Dead, &st.Holding); err != nil {
			return err
		}
		st.Oldest = timeOf(oldest)
		if q.isBacklog() {
			return nil
		}
		st.Membership, err = q.store.membership(ctx, t, st.Now)
		return err
	})
	if err != nil {
		return store.Stats{}, err
	}
	return st, nil
}

// Members implements [driver.Members].
func (q *queue) Members(ctx context.Context) (store.Stats, error) {
	st := store.Stats{Now: clock()}
	err := q.store.reading(ctx, func(t txTarget) (err error) {
		st.Membership, err = q.store.membership(ctx, t, st.Now)
		return err
	})
	if err != nil {
		return store.Stats{}, err
	}
	return st, nil
}

// reading runs fn in a read-only transaction.
func (s *backend) reading(ctx context.Context, fn func(t txTarget) error) error {
	if err := s.ready(ctx, s.db); err != nil {
		return err
	}
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return s.explain(err)
	}
	defer tx.Rollback() //nolint:errcheck // nothing was written
	return s.explain(fn(txTarget{s, tx}))
}

// known returns an error for an unknown state.
func known(state store.State) error {
	if state < store.Ready || state > store.Delivered {
		return fmt.Errorf("sqlitestore: unknown state %v", state)
	}
	return nil
}

// filterArgs returns the arguments 1 to 11 of the statements that count and
// list. NULL selects rows without a tenant, or rows that were never attempted.
func filterArgs(f store.Filter) []any {
	var tenant, failed any = f.TenantID, f.Failed
	if f.NoTenant {
		tenant = nil
	}
	if f.Untried {
		failed = nil
	}
	at := func(t time.Time) any {
		if t.IsZero() {
			return nil
		}
		return wholeMicros(t)
	}
	return []any{f.Type, f.AggregateType, f.AggregateID, tenant, f.Holding, failed, at(f.Since), at(f.Until), f.Error, f.CorrelationID, f.Cause}
}

// Count implements [driver.Inspector]. A backlog has no delivered rows.
func (q *queue) Count(ctx context.Context, state store.State, f store.Filter) (int64, error) {
	if err := known(state); err != nil || q.sql.count[state] == nil {
		return 0, err
	}
	if err := q.store.ready(ctx, q.store.db); err != nil {
		return 0, err
	}
	count := q.sql.count[state]
	if by := q.sql.narrow(state, f); by != nil {
		count = by.count
	}
	var n int64
	rows, err := q.store.query(ctx, count, filterArgs(f)...)
	if _, err := scanOne(rows, err, &n); err != nil {
		return 0, q.store.explain(err)
	}
	return n, nil
}

// List implements [driver.Inspector]. Delayed and delivered rows have no index
// on seq, so List scans their tables.
func (q *queue) List(ctx context.Context, state store.State, f store.Filter, after int64, limit int) ([]store.Record, error) {
	if err := known(state); err != nil || q.sql.list[state] == nil {
		return nil, err
	}
	list := q.sql.list[state]
	if by := q.sql.narrow(state, f); by != nil {
		list = by.list
	}
	return q.records(ctx, list, append(filterArgs(f), after, max(limit, 0))...)
}

// ListRecent implements [driver.Recent].
func (q *queue) ListRecent(ctx context.Context, f store.Filter, before waybill.ID, limit, scan int) (found []store.Record, floor waybill.ID, err error) {
	if q.sql.recent == nil {
		return nil, floor, nil // a backlog has no delivered rows
	}
	if err := q.store.ready(ctx, q.store.db); err != nil {
		return nil, floor, err
	}
	before = driver.BeforeID(before)
	if scan > 0 {
		rows, err := q.store.query(ctx, q.sql.recentFloor, before[:], scan-1)
		if _, err := scanOne(rows, err, (*scanID)(&floor)); err != nil {
			return nil, waybill.ID{}, q.store.explain(err)
		}
	}
	found, err = q.records(ctx, q.sql.recent, append(filterArgs(f), before[:], max(limit, 0), floor[:])...)
	return found, floor, err
}

// Find implements [driver.Inspector]. One statement searches all tables, so
// Find sees an event that moves before or after the move, not in between.
func (q *queue) Find(ctx context.Context, id waybill.ID) ([]store.Record, error) {
	return q.records(ctx, q.sql.find, id[:])
}

// records reads whole rows with their state.
func (q *queue) records(ctx context.Context, st *statement, args ...any) ([]store.Record, error) {
	if err := q.store.ready(ctx, q.store.db); err != nil {
		return nil, err
	}
	var list []store.Record
	var state store.State
	var record eventrow.Record
	var ended sql.NullInt64
	var final bool
	dest := append([]any{&state}, record.DelayedDest()...)
	if q.isBacklog() {
		dest = append(dest, &final)
	}
	dest = append(dest, &ended)
	rows, err := q.store.query(ctx, st, args...)
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		record.Reset()
		if err := rows.Scan(dest...); err != nil {
			return fmt.Errorf("row cannot be read: %w", err)
		}
		row := record.Decode()
		row.Lane -= q.base
		row.Final = final
		list = append(list, store.Record{Row: row, State: state, EndedAt: timeOf(ended)})
		return nil
	})
	if err != nil {
		return nil, q.store.explain(err)
	}
	return list, nil
}

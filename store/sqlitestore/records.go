package sqlitestore

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
)

// recordRow receives a row of inbox.
type recordRow struct {
	store.InboxRecord
	lease, retry, processed sql.NullInt64
	received                int64
	lastError               sql.NullString
}

// dest returns the scan targets of inboxColumns and of additional columns.
func (r *recordRow) dest(more ...any) []any {
	return append([]any{
		&r.Group, (*scanID)(&r.Key), (*scanID)(&r.Event), &r.Tenant, &r.Type, (*scanID)(&r.Hash), &r.State, (*scanID)(&r.Owner), &r.Fence,
		&r.Attempts, &r.lease, &r.retry, &r.processed, &r.received, &r.lastError, &r.Stored,
	}, more...)
}

// record returns the record that was read, as of now.
func (r *recordRow) record(now time.Time) store.InboxRecord {
	out := r.InboxRecord
	out.LeaseUntil, out.NextRetryAt, out.ProcessedAt = timeOf(r.lease), timeOf(r.retry), timeOf(r.processed)
	out.ReceivedAt, out.LastError, out.Now = time.UnixMicro(r.received).UTC(), r.lastError.String, now
	return out
}

// scanRecord reads at most one record, and reports whether one exists.
func scanRecord(rows *sql.Rows, err error, now time.Time) (store.InboxRecord, bool, error) {
	var row recordRow
	found, err := scanOne(rows, err, row.dest()...)
	if err != nil || !found {
		return store.InboxRecord{}, false, err
	}
	return row.record(now), true, nil
}

// recordIn reads a record in a transaction.
func (s *backend) recordIn(ctx context.Context, t target, group string, key waybill.ID) (store.InboxRecord, bool, error) {
	rows, err := t.query(ctx, s.sql.findRecord, group, key[:])
	return scanRecord(rows, err, clock())
}

// FindRecord implements [driver.InboxRecords].
func (s *backend) FindRecord(ctx context.Context, group string, key waybill.ID) (store.InboxRecord, bool, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return store.InboxRecord{}, false, err
	}
	rows, err := s.query(ctx, s.sql.findRecord, group, key[:])
	record, found, err := scanRecord(rows, err, clock())
	if err != nil {
		return store.InboxRecord{}, false, s.explain(err)
	}
	return record, found, nil
}

// DueRecords implements [driver.InboxRecords].
func (s *backend) DueRecords(ctx context.Context, group string, limit int) ([]store.InboxRecord, error) {
	now := clock()
	var takenAt int64
	return s.inboxRecords(ctx, now, s.sql.dueRecords, []any{group, micros(now), max(limit, 0)}, &takenAt)
}

// ListRecords implements [driver.InboxRecords].
func (s *backend) ListRecords(
	ctx context.Context, f store.RecordFilter, afterGroup string, afterKey waybill.ID, limit int,
) ([]store.InboxRecord, error) {
	st, states := s.sql.openRecords, 1<<store.InboxProcessing|1<<store.InboxFailed|1<<store.InboxDead
	if len(f.States) > 0 {
		states = 0
	}
	for _, state := range f.States {
		if state < store.InboxProcessing || state > store.InboxDead {
			return nil, fmt.Errorf("sqlitestore: unknown record state %d", state)
		}
		states |= 1 << state
		if state == store.InboxSucceeded {
			st = s.sql.allRecords
		}
	}
	return s.inboxRecords(ctx, clock(), st, []any{afterGroup, afterKey[:], f.Group, states, f.MinAttempts, max(limit, 0)})
}

// ListApplied implements [driver.Applied].
func (s *backend) ListApplied(ctx context.Context, group string, limit int) ([]store.InboxRecord, error) {
	return s.inboxRecords(ctx, clock(), s.sql.lastApplied, []any{group, max(limit, 0)})
}

// inboxRecords reads records and the additional columns of a statement.
func (s *backend) inboxRecords(ctx context.Context, now time.Time, st *statement, args []any, more ...any) ([]store.InboxRecord, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return nil, err
	}
	var list []store.InboxRecord
	rows, err := s.query(ctx, st, args...)
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		var row recordRow
		if err := rows.Scan(row.dest(more...)...); err != nil {
			return err
		}
		list = append(list, row.record(now))
		return nil
	})
	if err != nil {
		return nil, s.explain(err)
	}
	return list, nil
}

// GroupStats implements [driver.InboxRecords]. It reads everything in one
// transaction, so the numbers are consistent.
func (s *backend) GroupStats(ctx context.Context, all bool) ([]store.GroupStats, error) {
	var open, list []store.GroupStats
	now := clock()
	err := s.reading(ctx, func(t txTarget) error {
		rows, err := t.query(ctx, s.sql.openStats)
		err = eachRow(rows, err, func(rows *sql.Rows) error {
			var g store.GroupStats
			var due sql.NullInt64
			if err := rows.Scan(&g.Group, &g.Processing, &g.Failed, &g.Dead, &g.HighestAttempts, &due); err != nil {
				return err
			}
			if due.Valid {
				g.OldestDue = max(now.Sub(timeOf(due)), 0)
			}
			open = append(open, g)
			return nil
		})
		if err != nil || !all {
			list = open
			return err
		}
		rows, err = t.query(ctx, s.sql.groups)
		return eachRow(rows, err, func(rows *sql.Rows) error {
			var g store.GroupStats
			if err := rows.Scan(&g.Group); err != nil {
				return err
			}
			if len(open) > 0 && open[0].Group == g.Group {
				g, open = open[0], open[1:]
			}
			list = append(list, g)
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// Redrive implements [driver.InboxRecords].
func (s *backend) Redrive(ctx context.Context, group string, keys []waybill.ID, limit int) (int, error) {
	left := max(limit, 0)
	keys = slices.Clone(keys)
	slices.SortFunc(keys, func(a, b waybill.ID) int { return bytes.Compare(a[:], b[:]) })
	keys = slices.Compact(keys) // a repeated key counts once
	err := s.within(ctx, func(ctx context.Context, t txTarget) error {
		now := micros(clock())
		redrive := func(st *statement, args []any) error {
			n, err := affected(t.exec(ctx, st, append(append([]any{group, now}, args...), left)...))
			left -= int(n)
			return err
		}
		var err error
		if len(keys) == 0 {
			err = redrive(s.sql.redriveDead, nil)
		} else {
			err = lists(keys, idArg, func(index int, args []any) error { return redrive(s.sql.redriveKeys[index], args) })
		}
		if err != nil {
			return err
		}
		return s.note(ctx, t, int64(max(limit, 0)-left))
	})
	if err != nil {
		return 0, err
	}
	return max(limit, 0) - left, nil
}

// PurgeRecords implements [driver.InboxRecords].
func (s *backend) PurgeRecords(ctx context.Context, group string, age time.Duration, limit int) (int, error) {
	if err := sqlstore.CheckAge(age); err != nil {
		return 0, fmt.Errorf("sqlitestore: %w", err)
	}
	var purged int64
	err := s.within(ctx, func(ctx context.Context, t txTarget) error {
		var err error
		purged, err = affected(t.exec(ctx, s.sql.purgeRecords, group, micros(clock().Add(-age)), max(limit, 0)))
		return err
	})
	if err != nil {
		return 0, err
	}
	return int(purged), nil
}

package mysqlstore

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
)

// record reads a committed record.
func (s *backend) record(ctx context.Context, group string, key waybill.ID) (store.InboxRecord, bool, error) {
	list, err := s.inboxRecords(ctx, s.db, s.sql.findRecord, []byte(group), key[:])
	if err != nil || len(list) == 0 {
		return store.InboxRecord{}, false, err
	}
	return list[0], true, nil
}

// inboxRecords reads recordColumns.
func (s *backend) inboxRecords(ctx context.Context, q querier, query string, args ...any) ([]store.InboxRecord, error) {
	var list []store.InboxRecord
	var r store.InboxRecord
	var lease, retry, processed sql.NullInt64
	var received, now int64
	var lastError []byte
	dest := []any{
		&r.Group, (*scanID)(&r.Key), (*scanID)(&r.Event), &r.Tenant, &r.Type, (*scanID)(&r.Hash), &r.State, (*scanID)(&r.Owner), &r.Fence,
		&r.Attempts, &lease, &retry, &processed, &received, &lastError, &r.Stored, &now,
	}
	err := each(ctx, q, query, args, func() {
		r.LeaseUntil, r.NextRetryAt, r.ProcessedAt = timeOf(lease), timeOf(retry), timeOf(processed)
		r.ReceivedAt, r.Now, r.LastError = time.UnixMicro(received).UTC(), time.UnixMicro(now).UTC(), string(lastError)
		list = append(list, r)
	}, dest...)
	return list, err
}

// FindRecord implements [driver.InboxRecords].
func (s *backend) FindRecord(ctx context.Context, group string, key waybill.ID) (store.InboxRecord, bool, error) {
	record, found, err := s.record(ctx, group, key)
	return record, found, s.explain(err)
}

// DueRecords implements [driver.InboxRecords].
func (s *backend) DueRecords(ctx context.Context, group string, limit int) ([]store.InboxRecord, error) {
	limit = max(limit, 0)
	query := fill(fill(s.sql.dueRecords, "{group}", hexText(group)), "{limit}", strconv.Itoa(limit))
	list, err := s.inboxRecords(ctx, s.db, query)
	if err != nil {
		return nil, s.explain(err)
	}
	due := func(r store.InboxRecord) time.Time {
		if r.State == store.InboxFailed {
			return r.NextRetryAt
		}
		return r.LeaseUntil
	}
	slices.SortStableFunc(list, func(a, b store.InboxRecord) int {
		return cmp.Or(due(a).Compare(due(b)), bytes.Compare(a.Key[:], b.Key[:]))
	})
	return list[:min(len(list), limit)], nil
}

// ListRecords implements [driver.InboxRecords].
func (s *backend) ListRecords(
	ctx context.Context, f store.RecordFilter, afterGroup string, afterKey waybill.ID, limit int,
) ([]store.InboxRecord, error) {
	states := f.States
	if len(states) == 0 {
		states = []store.InboxState{store.InboxProcessing, store.InboxFailed, store.InboxDead}
	}
	numbers, index := make([]string, len(states)), "status"
	for i, state := range states {
		if state < store.InboxProcessing || state > store.InboxDead {
			return nil, fmt.Errorf("mysqlstore: unknown record state %d", state)
		}
		if state == store.InboxSucceeded {
			index = "PRIMARY"
		}
		numbers[i] = strconv.Itoa(int(state))
	}
	where, args := "", []any{[]byte(afterGroup), afterKey[:], []byte(afterGroup)}
	if f.Group != "" {
		where, args = " AND i.consumer_group = ?", append(args, []byte(f.Group))
	}
	query := strings.NewReplacer("{index}", index, "{numbers}", strings.Join(numbers, ", "), "{attempts}", strconv.Itoa(f.MinAttempts),
		"{where}", where, "{limit}", strconv.Itoa(max(limit, 0))).Replace(s.sql.listRecords)
	list, err := s.inboxRecords(ctx, s.db, query, args...)
	if err != nil {
		return nil, s.explain(err)
	}
	return list, nil
}

// ListApplied implements [driver.Applied].
func (s *backend) ListApplied(ctx context.Context, group string, limit int) ([]store.InboxRecord, error) {
	list, err := s.inboxRecords(ctx, s.db, fill(s.sql.lastApplied, "{limit}", strconv.Itoa(max(limit, 0))), []byte(group))
	if err != nil {
		return nil, s.explain(err)
	}
	return list, nil
}

// GroupStats implements [driver.InboxRecords].
func (s *backend) GroupStats(ctx context.Context, all bool) ([]store.GroupStats, error) {
	var list []store.GroupStats
	var g store.GroupStats
	var due int64
	open := make(map[string]bool)
	err := each(ctx, s.db, s.sql.openStats, nil, func() {
		g.OldestDue = time.Duration(due) * time.Microsecond
		list, open[g.Group] = append(list, g), true
	}, &g.Group, &g.Processing, &g.Failed, &g.Dead, &g.HighestAttempts, &due)
	if err == nil && all {
		var group string
		err = each(ctx, s.db, s.sql.groups, nil, func() {
			if !open[group] {
				list = append(list, store.GroupStats{Group: group})
			}
		}, &group)
	}
	if err != nil {
		return nil, s.explain(err)
	}
	slices.SortFunc(list, func(a, b store.GroupStats) int { return strings.Compare(a.Group, b.Group) })
	return list, nil
}

// Redrive implements [driver.InboxRecords].
func (s *backend) Redrive(ctx context.Context, group string, keys []waybill.ID, limit int) (int, error) {
	limit = max(limit, 0)
	var done int64
	err := s.transact(ctx, func(tx *sql.Tx) error {
		done = 0
		redrive := func(query string, args ...any) error {
			left := strconv.FormatInt(int64(limit)-done, 10)
			n, err := affected(tx.ExecContext(ctx, fill(query, "{limit}", left), append([]any{[]byte(group)}, args...)...))
			done += n
			return err
		}
		if len(keys) == 0 {
			if err := redrive(s.sql.redriveDead); err != nil {
				return err
			}
		}
		for part := range parts(sortedIDs(keys), maxIntakes) {
			if err := redrive(fill(s.sql.redriveKeys, "{marks}", marks(len(part))), idArgs(part)...); err != nil {
				return err
			}
		}
		return s.addAudit(ctx, tx, done)
	})
	if err != nil {
		return 0, err
	}
	return int(done), nil
}

// PurgeRecords implements [driver.InboxRecords].
func (s *backend) PurgeRecords(ctx context.Context, group string, age time.Duration, limit int) (int, error) {
	if err := sqlstore.CheckAge(age); err != nil {
		return 0, fmt.Errorf("mysqlstore: %w", err)
	}
	purged := 0
	err := s.transact(ctx, func(tx *sql.Tx) error {
		var old []store.InboxEntry
		var id scanID
		query := fill(s.sql.oldRecords, "{limit}", strconv.Itoa(max(limit, 0)))
		err := each(ctx, tx, query, []any{[]byte(group), age.Microseconds()}, func() {
			old = append(old, store.InboxEntry{Group: group, Key: waybill.ID(id)})
		}, &id)
		if err != nil {
			return err
		}
		for part := range parts(old, maxIntakes) {
			if _, err := tx.ExecContext(ctx, fill(s.sql.dropRecords, "{keys}", recordKeys(part))); err != nil {
				return err
			}
		}
		purged = len(old)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return purged, nil
}

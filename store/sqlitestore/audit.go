package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"time"

	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store/driver"
)

// auditStatements are the statements of the audit.
type auditStatements struct {
	noteAudit, listAudit, purgeAudit *statement
}

func (s *auditStatements) fill(one func(string) *statement) {
	// Primary key of audit.
	s.noteAudit = one(`INSERT INTO {audit} (id, at, actor, via, address, action, destination, target, affected) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET affected = affected + excluded.affected`)
	// audit_at_idx (at, id).
	s.listAudit = one(`SELECT id, at, actor, via, address, action, destination, target, affected FROM {audit}
WHERE at >= ?1 AND at < ?2 AND (?3 = '' OR actor = ?3) AND (?4 = '' OR action = ?4) AND (at, id) < (?5, ?6)
ORDER BY at DESC, id DESC LIMIT ?7`)
	// audit_at_idx, then the primary key.
	s.purgeAudit = one(`DELETE FROM {audit} WHERE id IN (SELECT id FROM {audit} WHERE at < ? ORDER BY at, id LIMIT ?)`)
}

// note records the change that the context is for, in its transaction, if it
// changed rows.
func (s *backend) note(ctx context.Context, t txTarget, n int64) error {
	rec, ok := driver.AuditOf(ctx)
	if !ok || n == 0 {
		return nil
	}
	_, err := t.exec(ctx, s.sql.noteAudit, rec.ID[:], micros(clock()), rec.Actor, rec.Via, rec.Address, rec.Action, rec.Destination, rec.Target, n)
	return err
}

// ListAudit implements [driver.Audit].
func (s *backend) ListAudit(ctx context.Context, f driver.AuditFilter, before driver.AuditCursor, limit int) ([]driver.AuditRecord, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return nil, err
	}
	since, until, at := int64(math.MinInt64), int64(math.MaxInt64), int64(math.MaxInt64)
	if !f.Since.IsZero() {
		since = wholeMicros(f.Since)
	}
	if !f.Until.IsZero() {
		until = wholeMicros(f.Until)
	}
	if !before.At.IsZero() {
		at = micros(before.At)
	}
	var out []driver.AuditRecord
	rows, err := s.query(ctx, s.sql.listAudit, since, until, f.Actor, f.Action, at, before.ID[:], max(limit, 0))
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		var r driver.AuditRecord
		var at int64
		if err := rows.Scan((*scanID)(&r.ID), &at, &r.Actor, &r.Via, &r.Address, &r.Action, &r.Destination, &r.Target, &r.Count); err != nil {
			return err
		}
		r.At = time.UnixMicro(at).UTC()
		out = append(out, r)
		return nil
	})
	if err != nil {
		return nil, s.explain(err)
	}
	return out, nil
}

// PurgeAudit implements [driver.Audit].
func (s *backend) PurgeAudit(ctx context.Context, age time.Duration, limit int) (int, error) {
	if err := sqlstore.CheckAge(age); err != nil {
		return 0, fmt.Errorf("sqlitestore: %w", err)
	}
	var gone int64
	err := s.within(ctx, func(ctx context.Context, t txTarget) (err error) {
		gone, err = affected(t.exec(ctx, s.sql.purgeAudit, micros(clock().Add(-age)), max(limit, 0)))
		return err
	})
	if err != nil {
		return 0, err
	}
	return int(gone), nil
}

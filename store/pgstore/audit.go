package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store/driver"
)

const (
	// noteAudit records a change, or adds to its count. It is the last
	// statement of the transaction, and makes it commit synchronously. Primary
	// key of audit.
	noteAudit = `WITH ` + durable + `
INSERT INTO {audit} AS a (id, at, actor, via, address, action, destination, target, affected)
SELECT $1::uuid, clock_timestamp(), $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::bigint FROM durable
ON CONFLICT (id) DO UPDATE SET affected = a.affected + excluded.affected`

	// listAudit reads the newest records. $1, $2: times, NULL for none, $3: the
	// actor, $4: the action, $5, $6: the cursor. audit_at_idx (at, id).
	listAudit = `SELECT id, at, actor, via, address, action, destination, target, affected FROM {audit}
WHERE at >= coalesce($1::timestamptz, '-infinity') AND at < coalesce($2::timestamptz, 'infinity')
  AND ($3::text = '' OR actor = $3::text) AND ($4::text = '' OR action = $4::text)
  AND (at, id) < (coalesce($5::timestamptz, 'infinity'), $6::uuid)
ORDER BY at DESC, id DESC LIMIT {limit}`

	// purgeAudit deletes the oldest records. $1: their age in seconds, $2: the
	// limit. audit_at_idx (at, id), then the primary key.
	purgeAudit = `WITH old AS MATERIALIZED (
  SELECT id FROM {audit} WHERE at < clock_timestamp() - $1::double precision * interval '1 second' ORDER BY at, id LIMIT $2::bigint
  FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {audit} WHERE id = ANY(ARRAY(SELECT id FROM old)) RETURNING 1
)
SELECT count(*) FROM gone`
)

// audited runs fn, which returns the number of changed rows. If the context has
// the record of a change, fn and the record are one transaction.
func (c *core) audited(ctx context.Context, fn func(db database) (int64, error)) error {
	if _, ok := driver.AuditOf(ctx); !ok {
		_, err := fn(c.db)
		return err
	}
	return c.db.within(ctx, func(tx database) error {
		n, err := fn(tx)
		if err != nil {
			return err
		}
		return c.note(ctx, tx, n)
	})
}

// note records the change that the context is for, in its transaction, if it
// changed rows.
func (c *core) note(ctx context.Context, tx database, n int64) error {
	rec, ok := driver.AuditOf(ctx)
	if !ok || n == 0 {
		return nil
	}
	return tx.exec(ctx, c.sql.noteAudit, rec.ID.UUID(), rec.Actor, rec.Via, rec.Address, rec.Action, rec.Destination, rec.Target, n)
}

// ListAudit implements [driver.Audit].
func (c *core) ListAudit(ctx context.Context, f driver.AuditFilter, before driver.AuditCursor, limit int) ([]driver.AuditRecord, error) {
	if before == (driver.AuditCursor{}) {
		before.ID = maxID
	}
	var out []driver.AuditRecord
	var r driver.AuditRecord
	var at instant
	rows, err := c.db.query(ctx, limited(c.sql.listAudit, limit), boundOrNull(f.Since), boundOrNull(f.Until), f.Actor, f.Action,
		boundOrNull(before.At), before.ID.UUID())
	err = collect(rows, err, func() error {
		r.At = time.Time(at)
		out = append(out, r)
		return nil
	}, c.db.scanID(&r.ID), &at, &r.Actor, &r.Via, &r.Address, &r.Action, &r.Destination, &r.Target, &r.Count)
	if err != nil {
		return nil, c.explain(err)
	}
	return out, nil
}

// maxID is the highest id.
var maxID = func() (id waybill.ID) {
	for i := range id {
		id[i] = 0xff
	}
	return id
}()

// PurgeAudit implements [driver.Audit].
func (c *core) PurgeAudit(ctx context.Context, age time.Duration, limit int) (int, error) {
	if err := sqlstore.CheckAge(age); err != nil {
		return 0, fmt.Errorf("pgstore: %w", err)
	}
	n, err := number(ctx, c.db, c.sql.purgeAudit, seconds(age), max(limit, 0))
	return n, c.explain(err)
}

package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store/driver"
)

// auditStatements holds the SQL of the audit.
type auditStatements struct {
	listAudit, oldAudit, dropAudit string
}

func newAuditStatements(r func(string) string) auditStatements {
	return auditStatements{
		// Index at (at, id).
		listAudit: r(`SELECT id, ` + micros + `at), actor, via, address, action, destination, target, affected FROM {audit}
WHERE at >= TIMESTAMP'{since}' AND at < TIMESTAMP'{until}' AND (? = '' OR actor = ?) AND (? = '' OR action = ?)
 AND at <= TIMESTAMP'{before}' AND (at < TIMESTAMP'{before}' OR id < ?)
ORDER BY at DESC, id DESC LIMIT {limit}`),
		// Index at, then the primary key.
		oldAudit:  r(`SELECT id FROM {audit} WHERE at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND ORDER BY at, id LIMIT {limit} FOR UPDATE SKIP LOCKED`),
		dropAudit: r(`DELETE o FROM ` + idTable + ` STRAIGHT_JOIN {audit} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id)`),
	}
}

// noteAudit records a change, or adds to its count. Primary key of audit.
const noteAudit = `INSERT INTO {audit} (id, at, actor, via, address, action, destination, target, affected)
VALUES (?, UTC_TIMESTAMP(6), ?, ?, ?, ?, ?, ?, ?) ON DUPLICATE KEY UPDATE affected = affected + VALUES(affected)`

// audits reports whether the context has the record of a change.
func audits(ctx context.Context) bool {
	_, ok := driver.AuditOf(ctx)
	return ok
}

// addAudit records the change that the context is for, in its transaction, if
// it changed rows.
func (a *access) addAudit(ctx context.Context, tx querier, n int64) error {
	if n == 0 {
		return nil
	}
	return a.auditAlways(ctx, tx, n)
}

// auditAlways is addAudit, also for a change that has not changed rows yet.
func (a *access) auditAlways(ctx context.Context, tx querier, n int64) error {
	rec, ok := driver.AuditOf(ctx)
	if !ok {
		return nil
	}
	_, err := tx.ExecContext(ctx, a.cfg.replacer().Replace(noteAudit), rec.ID[:], []byte(rec.Actor), []byte(rec.Via), []byte(rec.Address),
		[]byte(rec.Action), []byte(rec.Destination), []byte(rec.Target), n)
	return err
}

// auditAlone is auditAlways in a separate transaction.
func (a *access) auditAlone(ctx context.Context, n int64) error {
	if !audits(ctx) {
		return nil
	}
	return a.transact(ctx, func(tx *sql.Tx) error { return a.auditAlways(ctx, tx, n) })
}

// audited runs fn, which returns the number of changed rows. If the context has
// the record of a change, fn and the record are one transaction, and fn may run
// again.
func (a *access) audited(ctx context.Context, fn func(q querier) (int64, error)) error {
	if !audits(ctx) {
		_, err := fn(a.db)
		return a.explain(err)
	}
	return a.transact(ctx, func(tx *sql.Tx) error {
		n, err := fn(tx)
		if err != nil {
			return err
		}
		return a.addAudit(ctx, tx, n)
	})
}

// The bounds of the times that MySQL and MariaDB store.
var (
	firstTime = time.Date(1000, 1, 1, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// ListAudit implements [driver.Audit].
func (s *backend) ListAudit(ctx context.Context, f driver.AuditFilter, before driver.AuditCursor, limit int) ([]driver.AuditRecord, error) {
	since, until, at := firstTime, lastTime, lastTime
	if !f.Since.IsZero() {
		since = wholeMicro(f.Since)
	}
	if !f.Until.IsZero() {
		until = wholeMicro(f.Until)
	}
	if !before.At.IsZero() {
		at = before.At
	}
	query := s.sql.listAudit
	for name, text := range map[string]string{
		"{since}": utc(since), "{until}": utc(until), "{before}": utc(at), "{limit}": strconv.Itoa(max(limit, 0)),
	} {
		query = fill(query, name, text)
	}
	var out []driver.AuditRecord
	var id scanID
	var micros, count int64
	texts := make([][]byte, 6)
	args := []any{[]byte(f.Actor), []byte(f.Actor), []byte(f.Action), []byte(f.Action), before.ID[:]}
	err := each(ctx, s.db, query, args, func() {
		out = append(out, driver.AuditRecord{
			ID: waybill.ID(id), At: time.UnixMicro(micros).UTC(), Actor: string(texts[0]), Via: string(texts[1]), Address: string(texts[2]),
			Action: string(texts[3]), Destination: string(texts[4]), Target: string(texts[5]), Count: count,
		})
	}, &id, &micros, &texts[0], &texts[1], &texts[2], &texts[3], &texts[4], &texts[5], &count)
	if err != nil {
		return nil, s.explain(err)
	}
	return out, nil
}

// PurgeAudit implements [driver.Audit].
func (s *backend) PurgeAudit(ctx context.Context, age time.Duration, limit int) (int, error) {
	if err := sqlstore.CheckAge(age); err != nil {
		return 0, fmt.Errorf("mysqlstore: %w", err)
	}
	gone := 0
	err := s.transact(ctx, func(tx *sql.Tx) error {
		var ids []waybill.ID
		var id scanID
		query := fill(s.sql.oldAudit, "{limit}", strconv.Itoa(max(limit, 0)))
		if err := each(ctx, tx, query, []any{age.Microseconds()}, func() { ids = append(ids, waybill.ID(id)) }, &id); err != nil {
			return err
		}
		for part := range parts(ids, maxIDs) {
			if _, err := tx.ExecContext(ctx, fill(s.sql.dropAudit, "{ids}", idList(part))); err != nil {
				return err
			}
		}
		gone = len(ids)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return gone, nil
}

package mysqlstore

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// causes fills in the statements of [driver.Causes]. Index cause (cause, seq,
// died_at) of dead; that of backlog_dead begins with the destination. own is
// the condition for rows that are found by id.
func (s *queueStatements) causes(r func(string) string, l layout, own string) {
	mine := l.with(l.destination() + ` AND `)
	// Rows that another transaction has locked are left for later.
	s.causeless = r(`SELECT id, COALESCE(CAST(last_error AS BINARY), '') FROM {dead} FORCE INDEX (cause)
WHERE ` + mine + `cause IS NULL LIMIT {limit} FOR UPDATE SKIP LOCKED`)
	// Primary key of dead.
	s.setCause = r(`UPDATE ` + idTable + ` STRAIGHT_JOIN {dead} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id)` + own + ` SET o.cause = '{cause}'`)
	s.countCauses = r(`SELECT COALESCE(cause, ''), COUNT(*) AS n, ` + micros + `MIN(died_at)), ` + micros + `MAX(died_at)) FROM {dead} FORCE INDEX (cause)
WHERE ` + mine + `TRUE GROUP BY cause ORDER BY n DESC, cause LIMIT {limit}`)
	s.ofCause = mine + `cause = ?`
}

// NoteCauses implements [driver.Causes].
func (q *queue) NoteCauses(ctx context.Context, limit int) (int, error) {
	noted := 0
	err := q.transact(ctx, func(tx *sql.Tx) error {
		noted = 0
		byCause := make(map[string][]waybill.ID)
		var id scanID
		var text []byte
		err := each(ctx, tx, fill(q.sql.causeless, "{limit}", strconv.Itoa(max(limit, 0))), nil, func() {
			cause := driver.CauseOf(string(text))
			byCause[cause] = append(byCause[cause], waybill.ID(id))
			noted++
		}, &id, &text)
		if err != nil {
			return err
		}
		for cause, ids := range byCause {
			for part := range parts(ids, maxIDs) {
				if _, err := tx.ExecContext(ctx, fill(fill(q.sql.setCause, "{ids}", idList(part)), "{cause}", cause)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return noted, nil
}

// CountCauses implements [driver.Causes].
func (q *queue) CountCauses(ctx context.Context, limit int) ([]driver.CauseCount, error) {
	var out []driver.CauseCount
	var cause []byte
	var n, first, last int64
	err := each(ctx, q.db, fill(q.sql.countCauses, "{limit}", strconv.Itoa(max(limit, 0))), nil, func() {
		out = append(out, driver.CauseCount{
			ID: string(cause), Letters: n, First: time.UnixMicro(first).UTC(), Last: time.UnixMicro(last).UTC(),
		})
	}, &cause, &n, &first, &last)
	if err != nil {
		return nil, q.explain(err)
	}
	return out, nil
}

// ListCause implements [driver.Causes].
func (q *queue) ListCause(ctx context.Context, cause string, after int64, limit int) ([]store.Record, error) {
	query := fill(fill(q.sql.list[store.Dead], "{fits}", q.sql.ofCause), "{after}", strconv.FormatInt(after, 10))
	query = fill(query, "{index}", `FORCE INDEX (cause)`)
	return q.records(ctx, fill(query, "{limit}", strconv.Itoa(max(limit, 0))), []byte(cause))
}

// NoteCauses implements [driver.Causes].
func (b *backlog) NoteCauses(ctx context.Context, limit int) (int, error) {
	return b.queue.NoteCauses(ctx, limit)
}

// CountCauses implements [driver.Causes].
func (b *backlog) CountCauses(ctx context.Context, limit int) ([]driver.CauseCount, error) {
	return b.queue.CountCauses(ctx, limit)
}

package sqlitestore

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// causeStatements makes the statements of [driver.Causes]. dead_cause_idx
// (lane, cause, seq, died_at); the primary key of dead for setCause.
func (s *queueStatements) causeStatements(one func(string) *statement, shape queueShape) {
	p := places(shape)[store.Dead]
	s.causeless = one(`SELECT id, ifnull(last_error, '') FROM {dead} WHERE lane = {row_lane} AND cause IS NULL LIMIT ?`)
	s.setCause = one(`UPDATE {dead} SET cause = ? WHERE id = ?{and_lane}`)
	s.countCauses = one(`SELECT ifnull(cause, ''), count(*) AS n, min(died_at), max(died_at) FROM {dead} WHERE lane = {row_lane}
GROUP BY cause ORDER BY n DESC, 1 LIMIT ?`)
	s.listCause = one(`SELECT ` + strconv.Itoa(int(store.Dead)) + `, ` + rowColumns + `, ` + p.more + ` FROM {dead}
WHERE lane = {row_lane} AND cause = ? AND seq > ? ORDER BY seq LIMIT ?`)
}

// NoteCauses implements [driver.Causes].
func (q *queue) NoteCauses(ctx context.Context, limit int) (int, error) {
	noted := 0
	err := q.store.within(ctx, func(ctx context.Context, t txTarget) error {
		causes := make(map[waybill.ID]string)
		rows, err := t.query(ctx, q.sql.causeless, max(limit, 0))
		err = eachRow(rows, err, func(rows *sql.Rows) error {
			var id waybill.ID
			var text string
			if err := rows.Scan((*scanID)(&id), &text); err != nil {
				return err
			}
			causes[id] = driver.CauseOf(text)
			return nil
		})
		if err != nil {
			return err
		}
		for id, cause := range causes {
			if _, err := t.exec(ctx, q.sql.setCause, cause, id[:]); err != nil {
				return err
			}
		}
		noted = len(causes)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return noted, nil
}

// CountCauses implements [driver.Causes].
func (q *queue) CountCauses(ctx context.Context, limit int) ([]driver.CauseCount, error) {
	if err := q.store.ready(ctx, q.store.db); err != nil {
		return nil, err
	}
	var out []driver.CauseCount
	rows, err := q.store.query(ctx, q.sql.countCauses, max(limit, 0))
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		var n driver.CauseCount
		var first, last int64
		if err := rows.Scan(&n.ID, &n.Letters, &first, &last); err != nil {
			return err
		}
		n.First, n.Last = time.UnixMicro(first).UTC(), time.UnixMicro(last).UTC()
		out = append(out, n)
		return nil
	})
	if err != nil {
		return nil, q.store.explain(err)
	}
	return out, nil
}

// ListCause implements [driver.Causes].
func (q *queue) ListCause(ctx context.Context, cause string, after int64, limit int) ([]store.Record, error) {
	return q.records(ctx, q.sql.listCause, cause, after, max(limit, 0))
}

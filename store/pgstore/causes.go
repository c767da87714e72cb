package pgstore

import (
	"context"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// causeStatements are the statements of [driver.Causes].
type causeStatements struct {
	lockCauseless, setCauses string
	countCauses, listCause   string
	countCausesUpTo          string
}

// newCauseStatements returns the statements. own is the condition of the rows
// of a backlog, and columns are the columns of a dead letter. Index of dead
// (cause, seq) INCLUDE (died_at); the index of backlog_dead begins with lane >>
// 10.
func newCauseStatements(r func(string) string, own, columns string) causeStatements {
	return causeStatements{
		// Rows that another transaction has locked are left for later, so this
		// waits for no lock.
		lockCauseless: r(`SELECT id, coalesce(last_error, '') FROM {dead} WHERE ` + own + ` AND cause IS NULL LIMIT $1::bigint FOR UPDATE SKIP LOCKED`),
		// Primary key of dead.
		setCauses: r(`UPDATE {dead} d SET cause = v.cause FROM unnest($1::uuid[], $2::text[]) AS v(id, cause) WHERE d.id = v.id AND ` + own),
		countCauses: r(`SELECT coalesce(cause, ''), count(*), min(died_at), max(died_at) FROM {dead} WHERE ` + own + `
GROUP BY cause ORDER BY count(*) DESC, coalesce(cause, '') COLLATE "C" LIMIT $1::bigint`),
		countCausesUpTo: r(strings.ReplaceAll(countCausesUpTo, "{own}", own)),
		listCause:       r(`SELECT ` + columns + ` FROM {dead} WHERE ` + own + ` AND cause = $1::text AND seq > $2::bigint ORDER BY seq LIMIT $3::bigint`),
	}
}

// countCausesUpTo finds the causes with one step of the index (cause, seq) for
// each, and counts at most $2 dead letters of each. died_at is in the index.
const countCausesUpTo = `WITH RECURSIVE step(cause) AS (
  (SELECT cause FROM {dead} WHERE {own} AND cause IS NOT NULL ORDER BY cause LIMIT 1)
  UNION ALL
  SELECT (SELECT d.cause FROM {dead} d WHERE {own} AND d.cause > step.cause ORDER BY d.cause LIMIT 1) FROM step WHERE step.cause IS NOT NULL
), known AS (SELECT cause FROM step WHERE cause IS NOT NULL LIMIT 1000), counted AS (
  SELECT k.cause, n.letters, n.first, CASE WHEN n.letters < $2::bigint THEN n.last ELSE (
    SELECT died_at FROM {dead} d WHERE {own} AND d.cause = k.cause ORDER BY seq DESC LIMIT 1
  ) END AS last
  FROM known k CROSS JOIN LATERAL (
    SELECT count(*) AS letters, min(died_at) AS first, max(died_at) AS last
    FROM (SELECT died_at FROM {dead} d WHERE {own} AND d.cause = k.cause ORDER BY seq LIMIT $2::bigint) AS bounded
  ) AS n
  UNION ALL SELECT '', count(*), min(died_at), max(died_at) FROM (SELECT died_at FROM {dead} WHERE {own} AND cause IS NULL ORDER BY seq LIMIT $2::bigint) AS bounded
)
SELECT cause, letters, first, last FROM counted WHERE letters > 0 ORDER BY letters DESC, cause COLLATE "C" LIMIT $1::bigint`

// NoteCauses implements [driver.Causes].
func (c *core) NoteCauses(ctx context.Context, limit int) (int, error) {
	var ids []waybill.ID
	err := c.db.within(ctx, func(tx database) error {
		var causes []string
		var id waybill.ID
		var text string
		rows, err := tx.query(ctx, c.sql.lockCauseless, max(limit, 0))
		err = collect(rows, err, func() error {
			ids, causes = append(ids, id), append(causes, driver.CauseOf(text))
			return nil
		}, tx.scanID(&id), &text)
		if err != nil || len(ids) == 0 {
			return err
		}
		return tx.exec(ctx, c.sql.setCauses, tx.ids(ids), tx.texts(causes))
	})
	if err != nil {
		return 0, c.explain(err)
	}
	return len(ids), nil
}

// CountCauses implements [driver.Causes].
func (c *core) CountCauses(ctx context.Context, limit int) ([]driver.CauseCount, error) {
	return c.causeCounts(ctx, c.sql.countCauses, max(limit, 0))
}

// CountCausesUpTo implements [driver.Bounded].
func (c *core) CountCausesUpTo(ctx context.Context, limit int, most int64) ([]driver.CauseCount, error) {
	return c.causeCounts(ctx, c.sql.countCausesUpTo, max(limit, 0), most)
}

func (c *core) causeCounts(ctx context.Context, query string, args ...any) ([]driver.CauseCount, error) {
	var out []driver.CauseCount
	var n driver.CauseCount
	var first, last instant
	rows, err := c.db.query(ctx, query, args...)
	err = collect(rows, err, func() error {
		n.First, n.Last = time.Time(first), time.Time(last)
		out = append(out, n)
		return nil
	}, &n.ID, &n.Letters, &first, &last)
	if err != nil {
		return nil, c.explain(err)
	}
	return out, nil
}

// ListCause implements [driver.Causes].
func (c *core) ListCause(ctx context.Context, cause string, after int64, limit int) ([]store.Record, error) {
	state := store.Dead
	return c.records(ctx, &state, nil, c.sql.listCause, cause, after, max(limit, 0))
}

// NoteCauses implements [driver.Causes].
func (b *backlog) NoteCauses(ctx context.Context, limit int) (int, error) {
	return b.core.NoteCauses(ctx, limit)
}

// CountCauses implements [driver.Causes].
func (b *backlog) CountCauses(ctx context.Context, limit int) ([]driver.CauseCount, error) {
	return b.core.CountCauses(ctx, limit)
}

// StatsUpTo implements [driver.Bounded].
func (b *backlog) StatsUpTo(ctx context.Context, most int64) (store.Stats, error) {
	return b.core.StatsUpTo(ctx, most)
}

// CountCausesUpTo implements [driver.Bounded].
func (b *backlog) CountCausesUpTo(ctx context.Context, limit int, most int64) ([]driver.CauseCount, error) {
	return b.core.CountCausesUpTo(ctx, limit, most)
}

// ListCause implements [driver.Causes].
func (b *backlog) ListCause(ctx context.Context, cause string, after int64, limit int) ([]store.Record, error) {
	return b.records(b.core.ListCause(ctx, cause, after, limit))
}

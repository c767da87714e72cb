package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store/driver"
)

// rollupStatements are the statements of the counts of deliveries. All use the
// primary key of rollup.
type rollupStatements struct {
	countUp, listRollups      *statement
	mergeRollups, dropMinutes *statement
	purgeRollups              *statement
}

func (s *rollupStatements) fill(one func(string) *statement) {
	// Without WHERE, SQLite reads ON CONFLICT as a join.
	s.countUp = one(`INSERT INTO {rollup} (span, minute, source, destination, type, delivered, failed, dead)
SELECT 1, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'),
 json_extract(value, '$[4]'), json_extract(value, '$[5]'), json_extract(value, '$[6]') FROM json_each(?) WHERE true
ON CONFLICT (span, minute, source, destination, type) DO UPDATE
SET delivered = max(delivered, excluded.delivered), failed = max(failed, excluded.failed), dead = max(dead, excluded.dead)`)
	s.listRollups = one(`SELECT minute / ?3 * ?3 AS step, destination, iif(?6, type, '') AS kind, sum(delivered), sum(failed), sum(dead)
FROM {rollup} WHERE span IN (1, 60) AND minute >= ?1 AND minute < ?2 AND (?4 = '' OR destination = ?4) AND (?5 = '' OR type = ?5)
GROUP BY step, destination, kind ORDER BY step, destination, kind`)
	const oldest = `SELECT minute, source, destination, type FROM {rollup} WHERE span = 1 AND minute < ?1
 ORDER BY minute, source, destination, type LIMIT ?2`
	s.mergeRollups = one(`INSERT INTO {rollup} (span, minute, source, destination, type, delivered, failed, dead)
SELECT 60, minute / 60 * 60, '', destination, type, sum(delivered), sum(failed), sum(dead)
FROM {rollup} WHERE span = 1 AND (minute, source, destination, type) IN (` + oldest + `) GROUP BY 2, 4, 5
ON CONFLICT (span, minute, source, destination, type) DO UPDATE
SET delivered = delivered + excluded.delivered, failed = failed + excluded.failed, dead = dead + excluded.dead`)
	s.dropMinutes = one(`DELETE FROM {rollup} WHERE span = 1 AND (minute, source, destination, type) IN (` + oldest + `)`)
	s.purgeRollups = one(`DELETE FROM {rollup} WHERE (span, minute, source, destination, type) IN (
SELECT span, minute, source, destination, type FROM {rollup} WHERE span IN (1, 60) AND minute < ?1 ORDER BY minute LIMIT ?2)`)
}

// ListRollups implements [driver.Rollups].
func (s *backend) ListRollups(ctx context.Context, f driver.RollupFilter) ([]driver.Rollup, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return nil, err
	}
	since, until, step := f.Minutes()
	var out []driver.Rollup
	rows, err := s.query(ctx, s.sql.listRollups, since, until, step, f.Destination, f.Type, f.ByType)
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		var r driver.Rollup
		var minute int64
		if err := rows.Scan(&minute, &r.Destination, &r.Type, &r.Delivered, &r.Failed, &r.Dead); err != nil {
			return err
		}
		r.At = driver.TimeOfMinute(minute)
		out = append(out, r)
		return nil
	})
	if err != nil {
		return nil, s.explain(err)
	}
	return out, nil
}

// MergeRollups implements [driver.Rollups].
func (s *backend) MergeRollups(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.takeRollups(ctx, age, func(ctx context.Context, t txTarget, now time.Time) (int64, error) {
		before := driver.MergeBefore(now, age)
		if _, err := t.exec(ctx, s.sql.mergeRollups, before, max(limit, 0)); err != nil {
			return 0, err
		}
		return affected(t.exec(ctx, s.sql.dropMinutes, before, max(limit, 0)))
	})
}

// PurgeRollups implements [driver.Rollups].
func (s *backend) PurgeRollups(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.takeRollups(ctx, age, func(ctx context.Context, t txTarget, now time.Time) (int64, error) {
		return affected(t.exec(ctx, s.sql.purgeRollups, driver.MinuteOf(now.Add(-age)), max(limit, 0)))
	})
}

func (s *backend) takeRollups(
	ctx context.Context, age time.Duration, take func(ctx context.Context, t txTarget, now time.Time) (int64, error),
) (int, error) {
	if err := sqlstore.CheckAge(age); err != nil {
		return 0, fmt.Errorf("sqlitestore: %w", err)
	}
	var gone int64
	err := s.within(ctx, func(ctx context.Context, t txTarget) (err error) {
		gone, err = take(ctx, t, clock())
		return err
	})
	if err != nil {
		return 0, err
	}
	return int(gone), nil
}

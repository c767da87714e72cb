package mysqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store/driver"
)

// rollupStatements holds the SQL of the counts of deliveries. All statements
// use the primary key of rollup.
type rollupStatements struct {
	listRollups, oldMinutes, oldRollups, dropRollups, addHours string
}

func newRollupStatements(r func(string) string) rollupStatements {
	// Rows as JSON: {rows} are lists of numbers and hexadecimal digits.
	const keys = `JSON_TABLE('{rows}', '$[*]' COLUMNS (span INT PATH '$[0]', minute INT PATH '$[1]', source CHAR(32) PATH '$[2]',
 destination VARCHAR(128) PATH '$[3]', type VARCHAR(256) PATH '$[4]')) AS k`
	const hours = `JSON_TABLE('{rows}', '$[*]' COLUMNS (at INT PATH '$[1]', place VARCHAR(128) PATH '$[3]', kind VARCHAR(256) PATH '$[4]',
 done BIGINT PATH '$[5]', refused BIGINT PATH '$[6]', buried BIGINT PATH '$[7]')) AS k`
	return rollupStatements{
		listRollups: r(`SELECT minute DIV {step} * {step} AS step, destination, {kind} AS kind,
 CAST(SUM(delivered) AS SIGNED), CAST(SUM(failed) AS SIGNED), CAST(SUM(dead) AS SIGNED)
FROM {rollup} WHERE span IN (1, 60) AND minute >= ? AND minute < ? AND (? = '' OR destination = ?) AND (? = '' OR type = ?)
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`),
		oldMinutes: r(`SELECT span, minute, source, destination, type, delivered, failed, dead FROM {rollup}
WHERE span = 1 AND minute < FLOOR(TIMESTAMPDIFF(SECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND) / 3600) * 60
ORDER BY span, minute, source, destination, type LIMIT {limit} FOR UPDATE SKIP LOCKED`),
		oldRollups: r(`SELECT span, minute, source, destination, type, delivered, failed, dead FROM {rollup}
WHERE span IN (1, 60) AND minute < FLOOR(TIMESTAMPDIFF(SECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND) / 60)
ORDER BY span, minute, source, destination, type LIMIT {limit} FOR UPDATE SKIP LOCKED`),
		dropRollups: r(`DELETE o FROM ` + keys + ` STRAIGHT_JOIN {rollup} AS o FORCE INDEX (PRIMARY)
ON o.span = k.span AND o.minute = k.minute AND o.source = UNHEX(k.source) AND o.destination = UNHEX(k.destination) AND o.type = UNHEX(k.type)`),
		addHours: r(`INSERT INTO {rollup} (span, minute, source, destination, type, delivered, failed, dead)
SELECT 60, k.at, REPEAT(X'00', 16), UNHEX(k.place), UNHEX(k.kind), k.done, k.refused, k.buried FROM ` + hours + `
ON DUPLICATE KEY UPDATE delivered = delivered + VALUES(delivered), failed = failed + VALUES(failed), dead = dead + VALUES(dead)`),
	}
}

// rollupKey identifies a row of counts.
type rollupKey struct {
	span, minute      int64
	source            waybill.ID
	destination, kind string
}

func (k rollupKey) compare(o rollupKey) int {
	return cmp.Or(cmp.Compare(k.minute, o.minute), strings.Compare(k.destination, o.destination), strings.Compare(k.kind, o.kind))
}

// json returns the row with its counts as JSON.
func (k rollupKey) json(c driver.RollupCounts) string {
	return fmt.Sprintf(`[%d,%d,"%s","%s","%s",%d,%d,%d]`, k.span, k.minute, hexID(k.source),
		hex.EncodeToString([]byte(k.destination)), hex.EncodeToString([]byte(k.kind)), c.Delivered, c.Failed, c.Dead)
}

// ListRollups implements [driver.Rollups].
func (s *backend) ListRollups(ctx context.Context, f driver.RollupFilter) ([]driver.Rollup, error) {
	since, until, step := f.Minutes()
	kind := `X''`
	if f.ByType {
		kind = `type`
	}
	query := fill(fill(s.sql.listRollups, "{step}", strconv.FormatInt(step, 10)), "{kind}", kind)
	args := []any{since, until, []byte(f.Destination), []byte(f.Destination), []byte(f.Type), []byte(f.Type)}
	var out []driver.Rollup
	var minute int64
	var destination, name []byte
	var counts driver.RollupCounts
	err := each(ctx, s.db, query, args, func() {
		out = append(out, driver.Rollup{
			At: driver.TimeOfMinute(minute), Destination: string(destination), Type: string(name), RollupCounts: counts,
		})
	}, &minute, &destination, &name, &counts.Delivered, &counts.Failed, &counts.Dead)
	if err != nil {
		return nil, s.explain(err)
	}
	return out, nil
}

// MergeRollups implements [driver.Rollups].
func (s *backend) MergeRollups(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.takeRollups(ctx, s.sql.oldMinutes, age, limit, func(tx *sql.Tx, rows map[rollupKey]driver.RollupCounts) error {
		hours := make(map[rollupKey]driver.RollupCounts)
		for k, counts := range rows {
			hour := rollupKey{minute: k.minute / driver.HourMinutes * driver.HourMinutes, destination: k.destination, kind: k.kind}
			sum := hours[hour]
			sum.Add(counts)
			hours[hour] = sum
		}
		return execRollups(ctx, tx, s.sql.addHours, hours)
	})
}

// PurgeRollups implements [driver.Rollups].
func (s *backend) PurgeRollups(ctx context.Context, age time.Duration, limit int) (int, error) {
	return s.takeRollups(ctx, s.sql.oldRollups, age, limit, func(*sql.Tx, map[rollupKey]driver.RollupCounts) error { return nil })
}

// takeRollups deletes the rows that a query returns and locks, and passes them
// on, in one transaction.
func (s *backend) takeRollups(
	ctx context.Context, query string, age time.Duration, limit int, then func(tx *sql.Tx, rows map[rollupKey]driver.RollupCounts) error,
) (int, error) {
	if err := sqlstore.CheckAge(age); err != nil {
		return 0, fmt.Errorf("mysqlstore: %w", err)
	}
	gone := 0
	err := s.transact(ctx, func(tx *sql.Tx) error {
		rows := make(map[rollupKey]driver.RollupCounts)
		var k rollupKey
		var source scanID
		var destination, name []byte
		var counts driver.RollupCounts
		err := each(ctx, tx, fill(query, "{limit}", strconv.Itoa(max(limit, 0))), []any{age.Microseconds()}, func() {
			k.source, k.destination, k.kind = waybill.ID(source), string(destination), string(name)
			rows[k] = counts
		}, &k.span, &k.minute, &source, &destination, &name, &counts.Delivered, &counts.Failed, &counts.Dead)
		if err != nil {
			return err
		}
		if err := then(tx, rows); err != nil {
			return err
		}
		gone = len(rows)
		return execRollups(ctx, tx, s.sql.dropRollups, rows)
	})
	if err != nil {
		return 0, err
	}
	return gone, nil
}

// execRollups executes a statement about rows, in their order, so that
// transactions that change the same rows wait for each other in one order.
func execRollups(ctx context.Context, tx *sql.Tx, query string, rows map[rollupKey]driver.RollupCounts) error {
	keys := slices.SortedFunc(maps.Keys(rows), rollupKey.compare)
	for part := range parts(keys, maxIDs) {
		list := make([]string, len(part))
		for i, k := range part {
			list[i] = k.json(rows[k])
		}
		if _, err := tx.ExecContext(ctx, fill(query, "{rows}", "["+strings.Join(list, ",")+"]")); err != nil {
			return err
		}
	}
	return nil
}

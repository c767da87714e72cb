package pgstore

import (
	"context"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// fetchRows reads ready rows after cursors. Primary key of outbox (lane, seq).
func fetchRows(columns string) string {
	return `SELECT ` + columns + ` FROM (SELECT) AS once LEFT JOIN (
  unnest($1::smallint[], $2::bigint[], $3::bigint[]) AS c(l, after, up_to)
  CROSS JOIN LATERAL (SELECT * FROM {outbox} o WHERE o.lane = c.l AND o.seq > c.after AND o.seq <= c.up_to ORDER BY o.seq LIMIT {limit}) AS r
) ON true`
}

// sweepKeys reads the keys of ready rows, and the timeline. Primary key of
// outbox (lane, seq).
const sweepKeys = timelineRow + ` UNION ALL SELECT lane, seq, id, ` + aggregateColumns + ` FROM unnest($1::smallint[], $2::bigint[], $3::bigint[]) AS c(l, after, up_to)
CROSS JOIN LATERAL (
  SELECT lane, seq, id, tenant_id, aggregate_type, aggregate_id FROM {outbox} o
  WHERE o.lane = c.l AND o.seq > c.after AND o.seq <= c.up_to ORDER BY o.seq LIMIT {limit}
) AS r`

// loadRows reads ready rows by key. Primary key of outbox (lane, seq).
func loadRows(columns string) string {
	return `SELECT ` + columns + ` FROM (SELECT) AS once LEFT JOIN (
  unnest($1::smallint[], $2::bigint[]) AS c(l, s) JOIN {outbox} r ON r.lane = c.l AND r.seq = c.s
) ON true`
}

// dueRows reads deferred rows that are due. delayed_due_idx (lane, due_at,
// seq), once per lane for the due events, and once for the next due time.
const dueRows = `SELECT ` + readColumns + `, r.due_at, coalesce(r.attempts, 0), coalesce(r.replay, 0), coalesce(r.holds, false),
 coalesce(r.last_error, ''), now(), (
  SELECT min(n.due_at) FROM unnest($1::smallint[]) AS c(l)
  CROSS JOIN LATERAL (SELECT d.due_at FROM {delayed} d WHERE d.lane = c.l AND d.due_at > now() ORDER BY d.due_at LIMIT 1) AS n
)` + readTimeline + ` FROM (SELECT) AS once LEFT JOIN (
  unnest($1::smallint[]) AS c(l)
  CROSS JOIN LATERAL (SELECT * FROM {delayed} d WHERE d.lane = c.l AND d.due_at <= now() ORDER BY d.due_at, d.seq LIMIT {limit}) AS r
) ON true ORDER BY r.due_at, r.seq LIMIT {limit}`

// record receives one row of a read.
type record struct {
	row                 store.Row
	headers             string
	lane, version, prio int
	occurred, created   instant
	due                 instant
	now                 time.Time
	attempts, replay    int
}

// dest returns the scan targets for readColumns and the columns after them.
func (r *record) dest(e encoder) []any {
	ev := &r.row.Event
	return []any{
		&r.lane, &r.row.Seq, e.scanID(&r.row.ID), &ev.Type, &ev.AggregateType, &ev.AggregateID, &ev.TenantID, &ev.Topic,
		&ev.RoutingKey, &ev.SchemaID, &r.version, &ev.DedupKey, &r.occurred, &r.prio, &ev.CorrelationID, &ev.CausationID,
		&r.headers, &ev.ContentType, &ev.Payload, &r.created,
		&r.due, &r.attempts, &r.replay, &r.row.Holds, &r.row.LastError, &r.now,
	}
}

// final returns the scan target for the column that only ready rows of a
// backlog have.
func (c *core) final(r *record) []any {
	if !c.backlog {
		return nil
	}
	return []any{&r.row.Final}
}

// decode returns the row that was scanned.
func (r *record) decode() store.Row {
	row := r.row
	row.Lane, row.Attempts, row.Replay = r.lane, r.attempts, r.replay
	row.CreatedAt = time.Time(r.created)
	row.Event.ID, row.Event.SchemaVersion, row.Event.Priority = row.ID, r.version, r.prio
	row.Event.OccurredAt = time.Time(r.occurred)
	row.DueAt = time.Time(r.due)
	row.Event.AvailableAt = row.DueAt
	eventrow.Finish(&row, r.headers)
	r.row.Event.Payload = nil // the next scan must not reuse these bytes
	return row
}

// page reads whole rows that are ready.
func (c *core) page(ctx context.Context, query string, args ...any) (driver.Page, error) {
	var rec record
	return c.pageAnd(ctx, &rec, c.final(&rec), query, args...)
}

// pageAnd reads whole rows and the additional columns of the statement.
func (c *core) pageAnd(ctx context.Context, rec *record, behind []any, query string, args ...any) (driver.Page, error) {
	var p driver.Page
	var timeline int64
	rows, err := c.db.ordered(ctx, query, args...)
	err = collect(rows, err, func() error {
		if rec.lane < 0 {
			return nil
		}
		return p.Add(rec.decode())
	}, slices.Concat(rec.dest(c.db), behind, []any{&timeline})...)
	if err != nil {
		return driver.Page{}, c.explain(err)
	}
	if err := c.readOn(timeline, lanesOfRows(p.Rows)); err != nil {
		return driver.Page{}, err
	}
	p.Now = rec.now.UTC()
	return p, nil
}

// Fetch implements [driver.Reader].
func (c *core) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	lanes, after, upTo := cursors(from)
	p, ok, err := c.fetchPage(ctx, limit, c.db.int16s(lanes), c.db.int64s(after), c.db.int64s(upTo))
	if ok {
		eventrow.Sort(p.Rows, func(r *store.Row) store.Key { return r.Key })
		return p, err
	}
	p, err = c.page(ctx, limited(c.sql.fetch, limit), c.db.int16s(lanes), c.db.int64s(after), c.db.int64s(upTo))
	eventrow.Sort(p.Rows, func(r *store.Row) store.Key { return r.Key })
	return p, err
}

// Sweep implements [driver.Reader].
func (c *core) Sweep(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
	lanes, after, upTo := cursors(from)
	seen, timeline, ok, err := c.sweepPage(ctx, limit, c.db.int16s(lanes), c.db.int64s(after), c.db.int64s(upTo))
	if !ok {
		seen, timeline, err = c.scanSweep(ctx, limit, c.db.int16s(lanes), c.db.int64s(after), c.db.int64s(upTo))
	}
	if err == nil {
		err = c.readOn(timeline, lanesOfCursors(from))
	}
	if err != nil {
		return nil, err
	}
	eventrow.Sort(seen, func(s *driver.RowRef) store.Key { return s.Key })
	return seen, nil
}

// scanSweep is Sweep for columns that do not come in the binary format.
func (c *core) scanSweep(ctx context.Context, limit int, args ...any) (seen []driver.RowRef, timeline int64, err error) {
	var s driver.RowRef
	rows, err := c.db.ordered(ctx, limited(c.sql.sweep, limit), args...)
	err = collect(rows, err, func() error {
		if s.Lane < 0 {
			timeline = s.Seq
			return nil
		}
		s.Tenant = s.Aggregate.Tenant
		if s.Aggregate.IsZero() {
			s.Aggregate = store.Aggregate{}
		}
		seen = append(seen, s)
		return nil
	}, &s.Lane, &s.Seq, c.db.scanID(&s.ID), &s.Aggregate.Tenant, &s.Aggregate.Type, &s.Aggregate.ID)
	return seen, timeline, c.explain(err)
}

// Load implements [driver.Reader].
func (c *core) Load(ctx context.Context, keys []store.Key) (driver.Page, error) {
	lanes, seqs := make([]int16, len(keys)), make([]int64, len(keys))
	for i, k := range keys {
		lanes[i], seqs[i] = int16(k.Lane), k.Seq
	}
	p, err := c.page(ctx, c.sql.load, c.db.int16s(lanes), c.db.int64s(seqs))
	eventrow.Sort(p.Rows, func(r *store.Row) store.Key { return r.Key })
	return p, err
}

// Due implements [driver.Reader].
func (c *core) Due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	var next instant
	p, err := c.pageAnd(ctx, &record{}, []any{&next}, limited(c.sql.due, limit), c.db.int16s(int16s(lanes)))
	if err == nil {
		p.Next = time.Time(next)
	}
	return p, err
}

// limited inserts a limit into a statement as a number, not as a parameter: a
// relay uses only a few different limits, and for a parameter the planner would
// assume a tenth of the table.
func limited(statement string, limit int) string {
	return strings.ReplaceAll(statement, "{limit}", strconv.Itoa(max(limit, 0)))
}

// lanesOfCursors are the lanes of cursors.
func lanesOfCursors(from []driver.Cursor) iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, cur := range from {
			if !yield(cur.Lane) {
				return
			}
		}
	}
}

// cursors splits cursors into columns.
func cursors(from []driver.Cursor) (lanes []int16, after, upTo []int64) {
	for _, cur := range from {
		if cur.UpTo == 0 {
			cur.UpTo = math.MaxInt64
		}
		lanes = append(lanes, int16(cur.Lane))
		after = append(after, cur.After)
		upTo = append(upTo, cur.UpTo)
	}
	return lanes, after, upTo
}

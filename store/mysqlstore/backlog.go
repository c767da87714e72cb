package mysqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// backlog implements [driver.Backlog]. The tables of the backlogs have the
// columns of those of the outbox, and the same code reads and repairs them: a
// backlog only adds its base to the lanes that it passes to a queue, and
// subtracts it from the lanes that the queue returns.
type backlog struct {
	queue  queue
	store  *backend
	own    backlogStatements
	number int
	base   int
}

var (
	_ driver.Backlog = (*backlog)(nil)
	_ driver.Causes  = (*backlog)(nil)
)

// backlogStatements holds the SQL that only backlogs have.
type backlogStatements struct {
	clear           [3]string
	stats, occupied string
	past, refill    string
}

// Backlog implements [driver.Backlogs]. Relays request the same backlogs
// repeatedly, and compiling their statements takes time: the store keeps them.
func (s *backend) Backlog(number int) driver.Backlog {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.backlogs[number]
	if b == nil {
		b = s.newBacklog(number)
		if number > 0 && number <= driver.MaxDestinations {
			s.backlogs[number] = b
		}
	}
	return b
}

func (s *backend) newBacklog(number int) *backlog {
	l := backlogLayout(number)
	b := &backlog{store: s, own: newBacklogStatements(s.cfg, number), number: number, base: l.base()}
	b.queue.init(s.db, s.cfg, l, s.primaries)
	return b
}

func newBacklogStatements(cfg Config, number int) backlogStatements {
	l := backlogLayout(number)
	r := cfg.replacerOf(l).Replace
	base, lanes := strconv.Itoa(l.base()), l.lanes(`lane`)
	s := backlogStatements{
		// Index seq of backlog, which has all that is counted, and the indexes
		// that begin with the lane of the other tables. The oldest row of a
		// lane is the first by the primary key.
		stats: r(`SELECT ` + micros + `UTC_TIMESTAMP(6)), w.n,
 (SELECT ` + micros + `MIN(o.created_at)) FROM {lane} AS l STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.lane = l.lane + ` + base + `
  AND o.seq = (SELECT m.seq FROM {outbox} AS m FORCE INDEX (PRIMARY) WHERE m.lane = l.lane + ` + base + ` ORDER BY m.seq LIMIT 1)),
 d.n - d.failed, d.failed, GREATEST(w.attempts, d.attempts), e.n, d.holding + e.holding
FROM (SELECT COUNT(*) AS n, COALESCE(MAX(attempts), 0) AS attempts FROM {outbox} FORCE INDEX (seq) WHERE ` + l.destination() + `) AS w,
 (SELECT COUNT(*) AS n, COALESCE(SUM(attempts > 0), 0) AS failed, COALESCE(MAX(attempts), 0) AS attempts,
  COALESCE(SUM(holds), 0) AS holding FROM {delayed} WHERE ` + lanes + `) AS d,
 (SELECT COUNT(*) AS n, COALESCE(SUM(holds), 0) AS holding FROM {dead} WHERE ` + lanes + `) AS e`),
		// The standing of the server, and one row per lane: primary key of
		// backlog, index due of backlog_delayed, index holds of backlog_dead.
		// The limits keep the server from reading these tables as a whole.
		occupied: r(`SELECT -1 AS lane, ` + standingColumn + ` AS standing UNION ALL SELECT l.lane, NULL FROM {lane} AS l WHERE COALESCE(
 (SELECT 1 FROM {outbox} AS o FORCE INDEX (PRIMARY) WHERE o.lane = l.lane + ` + base + ` LIMIT 1),
 (SELECT 1 FROM {delayed} AS o FORCE INDEX (due) WHERE o.lane = l.lane + ` + base + ` LIMIT 1),
 (SELECT 1 FROM {dead} AS o FORCE INDEX (holds) WHERE o.lane = l.lane + ` + base + ` AND o.holds = 1 LIMIT 1)) = 1`),
		// Index done_at of history. The last column says whether the backlog
		// has a row of the event: index id, and the primary keys.
		past: r(`SELECT o.number, ` + micros + `o.done_at), o.id, COALESCE(
 (SELECT 1 FROM {outbox} AS x WHERE x.id = o.id AND ` + l.lanes(`x.lane`) + ` LIMIT 1),
 (SELECT 1 FROM {delayed} AS x WHERE x.id = o.id AND ` + l.lanes(`x.lane`) + ` LIMIT 1),
 (SELECT 1 FROM {dead} AS x WHERE x.id = o.id AND ` + l.lanes(`x.lane`) + ` LIMIT 1), 0)
FROM {history} AS o FORCE INDEX (done_at) WHERE {fits} ORDER BY {order} LIMIT {limit}`),
		// Primary key of history. The number of lanes may have changed since
		// the delivery.
		refill: r(`INSERT INTO {outbox} (lane, seq, {events}, created_at, attempts, replay, final)
SELECT ` + base + ` + IF(` + unordered + ` AND lane < {modulus}, lane, ` + laneExpression + `), seq, {events}, created_at, 0, replay + 1, 0
FROM {history} FORCE INDEX (PRIMARY) WHERE number IN ({numbers})`),
	}
	for i, table := range []string{"{outbox}", "{delayed}", "{dead}"} {
		s.clear[i] = r(`DELETE FROM ` + table + ` WHERE ` + lanes)
	}
	return s
}

// page subtracts the base from the lanes of a page.
func (b *backlog) page(p driver.Page, err error) (driver.Page, error) {
	for i := range p.Rows {
		p.Rows[i].Lane -= b.base
	}
	for i := range p.Plain {
		p.Plain[i] -= b.base
	}
	return p, err
}

// inTables returns a copy of a list with the lanes that its elements have in
// the tables. It drops lanes that do not exist: with the base, they would be
// lanes of another destination.
func inTables[E any](b *backlog, list []E, lane func(*E) *int) []E {
	var in []E
	for _, e := range list {
		if n := lane(&e); *n >= 0 && *n < sqlstore.MaxLanes {
			*n += b.base
			in = append(in, e)
		}
	}
	return in
}

func (b *backlog) cursors(from []driver.Cursor) []driver.Cursor {
	return inTables(b, from, func(c *driver.Cursor) *int { return &c.Lane })
}

func (b *backlog) lanes(lanes []int) []int {
	return inTables(b, lanes, func(lane *int) *int { return lane })
}

// Fetch implements [driver.Reader].
func (b *backlog) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	return b.page(b.queue.Fetch(ctx, b.cursors(from), limit))
}

// Sweep implements [driver.Reader].
func (b *backlog) Sweep(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
	seen, err := b.queue.Sweep(ctx, b.cursors(from), limit)
	for i := range seen {
		seen[i].Lane -= b.base
	}
	return seen, err
}

// Load implements [driver.Reader].
func (b *backlog) Load(ctx context.Context, keys []store.Key) (driver.Page, error) {
	return b.page(b.queue.Load(ctx, inTables(b, keys, func(k *store.Key) *int { return &k.Lane })))
}

// Due implements [driver.Reader].
func (b *backlog) Due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	return b.page(b.queue.Due(ctx, b.lanes(lanes), limit))
}

// OpenWriters implements [driver.Reader].
func (b *backlog) OpenWriters(context.Context) (driver.WriterState, error) {
	return driver.WriterState{HighSeq: math.MaxInt64, Issued: math.MaxInt64}, nil
}

// Holds implements [driver.Seeker].
func (b *backlog) Holds(ctx context.Context, lanes []int) ([]driver.Hold, error) {
	holds, err := b.queue.Holds(ctx, b.lanes(lanes))
	for i := range holds {
		holds[i].Lane -= b.base
	}
	return holds, err
}

// FetchAggregate implements [driver.Seeker].
func (b *backlog) FetchAggregate(ctx context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error) {
	in := b.cursors([]driver.Cursor{from})
	if len(in) == 0 {
		return b.queue.clock(ctx)
	}
	return b.page(b.queue.FetchAggregate(ctx, agg, in[0], limit))
}

// FetchPriority implements [driver.Seeker].
func (b *backlog) FetchPriority(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	return b.page(b.queue.FetchPriority(ctx, b.cursors(from), limit))
}

// Settle implements [driver.Settler].
func (b *backlog) Settle(ctx context.Context, settlement driver.Settlement) (driver.Settled, error) {
	w := newWork(settlement)
	w.byID, w.backlogs = true, true
	return b.store.settleWork(w, func() (answer, error) {
		return b.store.callSettle(ctx, b.store.sql.settleBacklog,
			b.base, list(w.fences, fenceItem), w.doneList(), w.history, list(w.retry, retryItem), list(w.dead, deadItem))
	})
}

// Stats implements [driver.Inspector].
func (b *backlog) Stats(ctx context.Context) (store.Stats, error) {
	st, err := readStats(ctx, b.queue.db, b.own.stats)
	return st, b.queue.explain(err)
}

// Count implements [driver.Inspector]. A backlog has no delivered events.
func (b *backlog) Count(ctx context.Context, state store.State, f store.Filter) (int64, error) {
	if state == store.Delivered {
		return 0, nil
	}
	return b.queue.Count(ctx, state, f)
}

// List implements [driver.Inspector].
func (b *backlog) List(ctx context.Context, state store.State, f store.Filter, after int64, limit int) ([]store.Record, error) {
	if state == store.Delivered {
		return nil, nil
	}
	return b.records(b.queue.List(ctx, state, f, after, limit))
}

// ListCause implements [driver.Causes].
func (b *backlog) ListCause(ctx context.Context, cause string, after int64, limit int) ([]store.Record, error) {
	return b.records(b.queue.ListCause(ctx, cause, after, limit))
}

// Find implements [driver.Inspector].
func (b *backlog) Find(ctx context.Context, id waybill.ID) ([]store.Record, error) {
	return b.records(b.queue.Find(ctx, id))
}

// records subtracts the base from the lanes of records.
func (b *backlog) records(records []store.Record, err error) ([]store.Record, error) {
	for i := range records {
		records[i].Lane -= b.base
	}
	return records, err
}

// Replay implements [driver.DeadLetters]. The events hold no dedup keys, so all
// of them can be replayed.
func (b *backlog) Replay(ctx context.Context, ids []waybill.ID) (store.Replayed, error) {
	return b.queue.replay(ctx, ids, func(_ context.Context, _ querier, letters []deadLetter) (store.Replayed, error) {
		var all store.Replayed
		for _, l := range letters {
			all.IDs = append(all.IDs, l.id)
		}
		return all, nil
	})
}

// Discard implements [driver.DeadLetters].
func (b *backlog) Discard(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	return b.queue.discard(ctx, ids, nil)
}

// Unblock implements [driver.DeadLetters].
func (b *backlog) Unblock(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	return b.queue.Unblock(ctx, ids)
}

// Occupied implements [driver.Backlog].
func (b *backlog) Occupied(ctx context.Context) ([]int, error) {
	var lanes []int
	var lane int
	var by, text []byte
	err := each(ctx, b.queue.db, b.own.occupied, nil, func() {
		if lane < 0 {
			by = bytes.Clone(text)
			return
		}
		lanes = append(lanes, lane)
	}, &lane, &text)
	if err == nil {
		err = b.queue.readOn(by, noLanes)
	}
	if err != nil {
		return nil, b.queue.explain(err)
	}
	slices.Sort(lanes)
	return lanes, nil
}

// PurgeDead implements [driver.Backlog].
func (b *backlog) PurgeDead(ctx context.Context, age time.Duration, limit int) (int, error) {
	if err := sqlstore.CheckAge(age); err != nil {
		return 0, fmt.Errorf("mysqlstore: %w", err)
	}
	var purged int64
	err := b.queue.transact(ctx, func(tx *sql.Tx) error {
		now, err := readClock(ctx, tx)
		if err != nil {
			return err
		}
		query := fill(fill(b.queue.sql.purgeDead, "{before}", utc(now.Add(-age))), "{limit}", strconv.Itoa(max(limit, 0)))
		if purged, err = affected(tx.ExecContext(ctx, query)); err != nil {
			return err
		}
		return b.queue.addAudit(ctx, tx, purged)
	})
	if err != nil {
		return 0, err
	}
	return int(purged), nil
}

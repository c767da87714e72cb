package pgstore

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// backlog is the backlog of one destination. Its core has the statements of the
// outbox with the names of the backlogs' tables, in which the lanes of the
// destination begin at base. Arguments and results have the lanes of the
// outbox.
type backlog struct {
	core *core
	base int
}

var (
	_ driver.Backlog = (*backlog)(nil)
	_ driver.Causes  = (*backlog)(nil)
)

// Backlog implements [driver.Backlogs].
func (c *core) Backlog(number int) driver.Backlog {
	c.muBacklogs.Lock()
	defer c.muBacklogs.Unlock()
	b := c.backlogs[number]
	if b == nil {
		b = &backlog{
			core: &core{db: c.db, cfg: c.cfg, sql: newBacklogStatements(c.cfg.backlogReplacer(number)), backlog: true, shared: c.shared},
			base: sqlstore.BaseLane(number),
		}
		if c.backlogs == nil {
			c.backlogs = make(map[int]*backlog)
		}
		c.backlogs[number] = b
	}
	return b
}

// lane returns the lane that the tables have for a lane of the outbox. A lane
// that no outbox has must not be that of another destination: no row has the
// lane -1.
func (b *backlog) lane(lane int) int {
	if lane < 0 || lane >= sqlstore.MaxLanes {
		return -1
	}
	return b.base + lane
}

// lanes returns the lanes of the tables.
func (b *backlog) lanes(lanes []int) []int {
	out := make([]int, len(lanes))
	for i, lane := range lanes {
		out[i] = b.lane(lane)
	}
	return out
}

// cursors returns the cursors of the tables.
func (b *backlog) cursors(from []driver.Cursor) []driver.Cursor {
	out := slices.Clone(from)
	for i := range out {
		out[i].Lane = b.lane(out[i].Lane)
	}
	return out
}

// page gives the rows of a page the lanes of the outbox.
func (b *backlog) page(p driver.Page, err error) (driver.Page, error) {
	for i := range p.Rows {
		p.Rows[i].Lane -= b.base
	}
	for i := range p.Plain {
		p.Plain[i] -= b.base
	}
	return p, err
}

// records gives records the lanes of the outbox.
func (b *backlog) records(recs []store.Record, err error) ([]store.Record, error) {
	for i := range recs {
		recs[i].Lane -= b.base
	}
	return recs, err
}

// Fetch implements [driver.Reader].
func (b *backlog) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	return b.page(b.core.Fetch(ctx, b.cursors(from), limit))
}

// Sweep implements [driver.Reader].
func (b *backlog) Sweep(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
	seen, err := b.core.Sweep(ctx, b.cursors(from), limit)
	for i := range seen {
		seen[i].Lane -= b.base
	}
	return seen, err
}

// Load implements [driver.Reader].
func (b *backlog) Load(ctx context.Context, keys []store.Key) (driver.Page, error) {
	keys = slices.Clone(keys)
	for i := range keys {
		keys[i].Lane = b.lane(keys[i].Lane)
	}
	return b.page(b.core.Load(ctx, keys))
}

// Due implements [driver.Reader].
func (b *backlog) Due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	return b.page(b.core.Due(ctx, b.lanes(lanes), limit))
}

// OpenWriters implements [driver.Reader]. Only the owner of a lane and refills
// append to a backlog.
func (b *backlog) OpenWriters(context.Context) (driver.WriterState, error) {
	return driver.WriterState{HighSeq: math.MaxInt64, Issued: math.MaxInt64}, nil
}

// Holds implements [driver.Seeker].
func (b *backlog) Holds(ctx context.Context, lanes []int) ([]driver.Hold, error) {
	holds, err := b.core.Holds(ctx, b.lanes(lanes))
	for i := range holds {
		holds[i].Lane -= b.base
	}
	return holds, err
}

// FetchAggregate implements [driver.Seeker].
func (b *backlog) FetchAggregate(ctx context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error) {
	from.Lane = b.lane(from.Lane)
	return b.page(b.core.FetchAggregate(ctx, agg, from, limit))
}

// FetchPriority implements [driver.Seeker].
func (b *backlog) FetchPriority(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	return b.page(b.core.FetchPriority(ctx, b.cursors(from), limit))
}

// serializationFailure is the server's code for a statement that has to be
// repeated.
const serializationFailure = "40001"

// settleTries bounds the repetitions of a settlement.
const settleTries = 5

// Settle implements [driver.Settler]. A new delivery time can move a row of the
// history to another partition. Another destination's settlement of the same
// event, at the same moment, then fails without any effect, and is repeated.
func (b *backlog) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	s.Divert = nil
	for try := 1; ; try++ {
		out, err := b.core.Settle(ctx, s)
		if sqlState(err) == serializationFailure && try < settleTries {
			continue
		}
		for i := range out.Held {
			out.Held[i] -= b.base
		}
		return out, err
	}
}

// Stats implements [driver.Inspector].
func (b *backlog) Stats(ctx context.Context) (store.Stats, error) { return b.core.Stats(ctx) }

// Count implements [driver.Inspector].
func (b *backlog) Count(ctx context.Context, state store.State, f store.Filter) (int64, error) {
	if state == store.Delivered {
		return 0, nil
	}
	return b.core.Count(ctx, state, f)
}

// List implements [driver.Inspector].
func (b *backlog) List(ctx context.Context, state store.State, f store.Filter, after int64, limit int) ([]store.Record, error) {
	if state == store.Delivered {
		return nil, nil
	}
	return b.records(b.core.List(ctx, state, f, after, limit))
}

// Find implements [driver.Inspector].
func (b *backlog) Find(ctx context.Context, id waybill.ID) ([]store.Record, error) {
	return b.records(b.core.Find(ctx, id))
}

// Replay implements [driver.DeadLetters]. Nothing is refused, because a backlog
// takes no dedup keys.
func (b *backlog) Replay(ctx context.Context, ids []waybill.ID) (store.Replayed, error) {
	return b.core.Replay(ctx, ids)
}

// Discard implements [driver.DeadLetters].
func (b *backlog) Discard(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	return b.core.Discard(ctx, ids)
}

// Unblock implements [driver.DeadLetters].
func (b *backlog) Unblock(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	return b.core.Unblock(ctx, ids)
}

// Occupied implements [driver.Backlog].
func (b *backlog) Occupied(ctx context.Context) ([]int, error) {
	var lanes []int
	var lane int
	var timeline int64
	rows, err := b.core.db.ordered(ctx, b.core.sql.occupied)
	err = collect(rows, err, func() error {
		if lane >= 0 { // else it is the row of the timeline
			lanes = append(lanes, lane)
		}
		return nil
	}, &lane, &timeline)
	if err != nil {
		return nil, b.core.explain(err)
	}
	slices.Sort(lanes)
	if err := b.core.readOn(timeline, noLanes); err != nil {
		return nil, err
	}
	return lanes, nil
}

// PurgeDead implements [driver.Backlog].
func (b *backlog) PurgeDead(ctx context.Context, age time.Duration, limit int) (int, error) {
	if err := sqlstore.CheckAge(age); err != nil {
		return 0, fmt.Errorf("pgstore: %w", err)
	}
	return b.core.howMany(ctx, b.core.sql.purge[store.Dead], seconds(age), max(limit, 0))
}

package pgstore

import (
	"context"
	"fmt"
	"iter"
	"strconv"

	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// A server that is promoted begins a new timeline of its database. If the
// standby lagged behind, the new timeline lacks acquisitions of lanes and
// events that the former primary had committed, and seqs and epochs that relays
// have published under would be issued again. So the first relay that sees a
// new timeline raises the epochs of all lanes, as after a restoration, and
// every relay refuses rows of a timeline under which it has not acquired their
// lane. A relay also refuses a timeline that is older than the last one that it
// has seen: a former primary that still runs.
//
// Timeline 0 stands for a server that does not report its timeline. It is never
// refused.

// timelines is the state of the timeline, shared by the stores over the same
// tables. The mutex of shared guards it.
type timelines struct {
	// seen is the newest timeline of a heartbeat.
	seen int64
	// leased has for each lane the timeline under which it was last acquired.
	leased map[int]int64
}

// keepTimeline records the timeline of the tables. It returns a row unless the
// timeline is recorded already: whether another one was. Primary key of
// setting.
const keepTimeline = `WITH ` + durable + `, before AS MATERIALIZED (SELECT FROM {setting} WHERE name = 'timeline'), put AS (
  INSERT INTO {setting} AS s (name, value) SELECT 'timeline', $1::text FROM durable
  ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE s.value <> excluded.value RETURNING 1
)
SELECT EXISTS (SELECT FROM before) FROM put`

// beat takes the timeline of a heartbeat. Its error means that the heartbeat
// does not count.
func (c *core) beat(ctx context.Context, timeline int64) error {
	c.mu.Lock()
	seen := c.timelines.seen
	c.mu.Unlock()
	if timeline == 0 || timeline == seen {
		return nil
	}
	if timeline < seen {
		return formerPrimary(timeline, seen)
	}
	if err := c.adopt(ctx, timeline); err != nil {
		return fmt.Errorf("pgstore: timeline %d: %w", timeline, c.explain(err))
	}
	c.mu.Lock()
	c.timelines.seen = max(c.timelines.seen, timeline)
	c.mu.Unlock()
	if seen == 0 {
		return nil // no lane was acquired under another timeline
	}
	return fmt.Errorf("pgstore: the database has failed over (timeline %d follows %d): leases from before the failover are void", timeline, seen)
}

// adopt records the timeline in the tables. The first relay raises the epochs.
func (c *core) adopt(ctx context.Context, timeline int64) error {
	return c.db.within(ctx, func(tx database) error {
		if err := tx.exec(ctx, c.sql.lockNodes); err != nil {
			return err
		}
		other := false
		rows, err := tx.query(ctx, c.sql.keepTimeline, strconv.FormatInt(timeline, 10))
		if err := collect(rows, err, func() error { return nil }, &other); err != nil || !other {
			return err
		}
		return tx.exec(ctx, c.sql.restoreLanes)
	})
}

// acquired takes the timeline under which lanes were acquired. An error means
// that nothing may be delivered under the leases.
func (c *core) acquired(leases []driver.Lease, timeline int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch seen := c.timelines.seen; {
	case timeline == 0:
		return nil
	case timeline < seen:
		return formerPrimary(timeline, seen)
	case timeline > seen && seen > 0:
		return fmt.Errorf("pgstore: acquire: the database has failed over (timeline %d follows %d) since the last heartbeat", timeline, seen)
	}
	if c.timelines.leased == nil {
		c.timelines.leased = make(map[int]int64)
	}
	for _, l := range leases {
		c.timelines.leased[l.Lane] = timeline
	}
	return nil
}

// timelineRow is the row of a read of keys that has the timeline as its seq,
// and the lane -1. The columns are lane, seq, id, and those of the aggregate.
const timelineRow = `SELECT -1::smallint, {timeline}(), '00000000-0000-0000-0000-000000000000'::uuid, '', '', ''`

// noLanes are the lanes of a read of no lane in particular.
func noLanes(func(int) bool) {}

// lanesOfRows are the lanes of rows.
func lanesOfRows(rows []store.Row) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range rows {
			if !yield(rows[i].Lane) {
				return
			}
		}
	}
}

// readOn checks the timeline of a read of some lanes.
func (c *core) readOn(timeline int64, lanes iter.Seq[int]) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case timeline == 0:
		return nil
	case timeline < c.timelines.seen:
		return formerPrimary(timeline, c.timelines.seen)
	}
	for lane := range lanes {
		lane %= sqlstore.MaxLanes
		if leased := c.timelines.leased[lane]; leased != 0 && leased != timeline {
			return fmt.Errorf("pgstore: read: the database has failed over (timeline %d follows %d) since lane %d was acquired", timeline, leased, lane)
		}
	}
	return nil
}

func formerPrimary(timeline, seen int64) error {
	return fmt.Errorf("pgstore: the server is a former primary: it is on timeline %d, and timeline %d has been seen; end it, or connect to its successor",
		timeline, seen)
}

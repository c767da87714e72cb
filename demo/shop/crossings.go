package shop

import (
	"context"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// crossings counts events at the boundaries between two parts, independently of
// the parts' own counts, so that both can be compared. At the end the counts
// are written to the table seen.
type crossings struct {
	mu     sync.Mutex
	counts map[passage]int
}

// passage is a boundary, a result, and whether the event had passed the
// boundary before.
type passage struct {
	place, class string
	again        bool
}

// The boundaries.
const (
	atSource = "source" // messages between the broker and the inventory's wire
	atInbox  = "inbox"  // events between the wire and the inbox
	atSettle = "settle" // events that the relay settled; with the class failed, settlements
	atRead   = "read"   // rows that the relay read; with the class failed, reads
	atSink   = "sink"   // events between the relay and the broker's wire
	told     = "told"   // events that the hooks of the parts reported

	atCourier = "courier" // events between the relay and the inbox of the courier
)

// Reports of the hooks about events inside a part.
const (
	hot, dropped, cold = "hot", "dropped", "cold" // whether and how an event reached the relay
	unconsumed         = "unconsumed"             // a failed attempt of the inventory
)

// Results of a call of the store.
const (
	done    = "done"
	failed  = "failed"
	suspect = "suspect" // possibly in flight in a lost relay: uses an attempt before its delivery
)

func (c *crossings) add(p passage, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[passage]int{}
	}
	c.counts[p] += n
}

// call counts a call of the store that affected n rows.
func (c *crossings) call(place string, n int, err error) {
	if err != nil {
		c.add(passage{place: place, class: failed}, 1)
		return
	}
	c.add(passage{place: place, class: done}, n)
}

// watch counts the reports of hooks.
func (c *crossings) watch(h observe.Hooks) observe.Hooks {
	enqueued, lost, read, failing := or(h.HotEnqueued), or(h.HotDropped), or(h.ColdEnqueued), or(h.ConsumeFailed)
	h.HotEnqueued = func(info observe.HotEnqueuedInfo) {
		c.add(passage{place: told, class: hot}, info.Events)
		enqueued(info)
	}
	h.HotDropped = func(info observe.HotDroppedInfo) {
		c.add(passage{place: told, class: dropped}, info.Events)
		lost(info)
	}
	h.ColdEnqueued = func(info observe.ColdEnqueuedInfo) {
		c.add(passage{place: told, class: cold}, info.Events)
		read(info)
	}
	h.ConsumeFailed = func(info observe.ConsumeFailedInfo) {
		c.add(passage{place: told, class: unconsumed}, 1)
		failing(info)
	}
	return h
}

// writeDown updates the table.
func (c *crossings) writeDown(to *journal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, n := range c.counts {
		to.write(`INSERT INTO seen (place, class, again, n) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET n = excluded.n`, p.place, p.class, p.again, n)
	}
}

// border is a sink or a consumer whose results are counted.
type border struct {
	place string
	to    waybill.Sink
	seen  *crossings
}

// Deliver implements [waybill.Sink] and waybill.Sink.
func (b border) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	results := b.to.Deliver(ctx, batch)
	for i, err := range results {
		class, _ := waybill.Classify(err)
		b.seen.add(passage{b.place, class.String(), batch[i].Attempt > 1}, 1)
	}
	return results
}

// rows are the rows of the outbox, or of a backlog.
type rows interface {
	driver.Reader
	driver.Seeker
	driver.Settler
}

// watched are rows whose settlements and reads by the relay are counted.
type watched struct {
	rows
	seen *crossings
}

// watchedRelay is the relay role of a store with watched rows.
type watchedRelay struct {
	watched
	driver.Lanes
	local
}

// local has another name than its method.
type local = driver.Local

// watchedBacklogs are the backlogs of a store with watched rows.
type watchedBacklogs struct {
	driver.Backlogs
	seen *crossings
}

// Backlog implements [driver.Backlogs].
func (w watchedBacklogs) Backlog(number int) driver.Backlog {
	b := w.Backlogs.Backlog(number)
	return watchedBacklog{watched{b, w.seen}, b, b, b}
}

type watchedBacklog struct {
	watched
	driver.Inspector
	driver.DeadLetters
	upkeep
}

// upkeep has the methods of a backlog that are not those of an outbox.
type upkeep interface {
	Occupied(ctx context.Context) ([]int, error)
	PurgeDead(ctx context.Context, age time.Duration, limit int) (int, error)
	Refill(ctx context.Context, q driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error)
	CountHistory(ctx context.Context, q driver.HistoryQuery) (int64, error)
}

func (w watched) Settle(ctx context.Context, set driver.Settlement) (driver.Settled, error) {
	settled, err := w.rows.Settle(ctx, set)
	w.seen.call(atSettle, len(set.Done)+len(set.Retry)+len(set.Dead), err)
	for _, r := range set.Retry {
		if err == nil && r.Delay == 0 { // a failed event has a delay
			w.seen.add(passage{place: atSettle, class: suspect}, 1)
		}
	}
	return settled, err
}

func (w watched) page(p driver.Page, err error) (driver.Page, error) {
	w.seen.call(atRead, len(p.Rows), err)
	return p, err
}

func (w watched) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	return w.page(w.rows.Fetch(ctx, from, limit))
}

func (w watched) Load(ctx context.Context, keys []store.Key) (driver.Page, error) {
	return w.page(w.rows.Load(ctx, keys))
}

func (w watched) Due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	return w.page(w.rows.Due(ctx, lanes, limit))
}

func (w watched) FetchAggregate(ctx context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error) {
	return w.page(w.rows.FetchAggregate(ctx, agg, from, limit))
}

func (w watched) FetchPriority(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	return w.page(w.rows.FetchPriority(ctx, from, limit))
}

func (w watched) Sweep(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
	seen, err := w.rows.Sweep(ctx, from, limit)
	w.seen.call(atRead, len(seen), err)
	return seen, err
}

func (w watched) Holds(ctx context.Context, lanes []int) ([]driver.Hold, error) {
	held, err := w.rows.Holds(ctx, lanes)
	w.seen.call(atRead, len(held), err)
	return held, err
}

func (w watched) OpenWriters(ctx context.Context) (driver.WriterState, error) {
	open, err := w.rows.OpenWriters(ctx)
	w.seen.call(atRead, 0, err)
	return open, err
}

package relay_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestALateRowOfAHeldAggregate: while a dead letter holds an aggregate, a row
// of the aggregate commits late, below the read position. The sweep sees the
// row once. When the dead letter is replayed, the row comes before the rows
// that were written after it.
func TestALateRowOfAHeldAggregate(t *testing.T) {
	f := newFixtureOf(t, memstore.Config{Lanes: 1})
	first, late, last := event("a", 0), eventfill.Defaults(event("a", 1)), event("a", 2)
	first.ID = waybill.NewID()
	var there, healed atomic.Bool
	var sweeps atomic.Int64
	hidden := func(id waybill.ID) bool { return id == late.ID && !there.Load() }
	hide := func(p driver.Page, err error) (driver.Page, error) {
		p.Rows = slices.DeleteFunc(p.Rows, func(r store.Row) bool { return hidden(r.ID) })
		return p, err
	}
	db := &scripted{Relay: f.db.Driver().Relay}
	db.fetch = func(next func() (driver.Page, error)) (driver.Page, error) { return hide(next()) }
	db.follow = func(next func() (driver.Page, error)) (driver.Page, error) { return hide(next()) }
	db.sweep = func(next func() ([]driver.RowRef, error)) ([]driver.RowRef, error) {
		sweeps.Add(1)
		seen, err := next()
		return slices.DeleteFunc(seen, func(s driver.RowRef) bool { return hidden(s.ID) }), err
	}
	c := &collector{fail: func(d waybill.Delivery) error {
		if d.ID == first.ID && !healed.Load() {
			return waybill.Permanent(errors.New("no"))
		}
		return nil
	}}
	f.startOn(db, c.sink(), relay.Config{OnDead: relay.Block, SweepInterval: 5 * time.Millisecond, PollInterval: 5 * time.Millisecond})
	f.write(first)
	await(t, "it is dead", func() bool { return f.stateOf(first.ID) == store.Dead })
	f.write(late)
	f.write(last)
	f.write(event("b", 0))
	await(t, "reading has passed all of them", func() bool { return c.count() == 2 })
	there.Store(true)
	seen := sweeps.Load() + 3 // one may be under way; the next has been handled when a third begins
	await(t, "sweeps have seen it", func() bool { return sweeps.Load() >= seen })
	healed.Store(true)
	if _, err := f.db.Driver().OutboxAdmin.Replay(t.Context(), []waybill.ID{first.ID}); err != nil {
		t.Fatal(err)
	}
	await(t, "all are delivered", func() bool { return c.count() == 5 })
	if got := c.payloads("a"); !slices.Equal(got, []string{"0", "0", "1", "2"}) {
		t.Errorf("delivered %v", got)
	}
}

// TestReplayBehindAnEventInFlight: an event is dead, and the next event of its
// aggregate is with the sink. The dead letter is replayed and waits for that
// event, which then is not delivered. The replayed event is delivered next.
func TestReplayBehindAnEventInFlight(t *testing.T) {
	for what, answer := range map[string]error{
		"it fails":                       errors.New("not yet"),
		"its destination is unavailable": waybill.Unavailable(errors.New("down")),
		"it is deferred":                 waybill.Later(time.Millisecond, errors.New("later")),
		"it is dead":                     waybill.Permanent(errors.New("never")),
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixtureOf(t, memstore.Config{Lanes: 1})
			first, second := event("a", 0), event("a", 1)
			first.ID, second.ID = waybill.NewID(), waybill.NewID()
			flying, land := make(chan struct{}), make(chan struct{})
			var healed, flown atomic.Bool
			due := &dueWatch{Relay: f.db.Driver().Relay}
			c := &collector{}
			sink := relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
				switch {
				case d.ID == first.ID && !healed.Load():
					return waybill.Permanent(errors.New("no"))
				case d.ID == second.ID && !flown.Swap(true):
					close(flying)
					<-land
					return answer
				}
				c.mu.Lock()
				defer c.mu.Unlock()
				c.got = append(c.got, d)
				return nil
			})
			f.startOn(due, sink, relay.Config{BackoffBase: 50 * time.Millisecond, PollInterval: 5 * time.Millisecond, SweepInterval: 5 * time.Millisecond})
			f.write(first)
			await(t, "it is dead", func() bool { return f.stateOf(first.ID) == store.Dead })
			f.write(second)
			<-flying
			healed.Store(true)
			if _, err := f.db.Driver().OutboxAdmin.Replay(t.Context(), []waybill.ID{first.ID}); err != nil {
				t.Fatal(err)
			}
			due.await(t, first.ID)
			close(land)
			await(t, "the replayed event is delivered", func() bool { return f.stateOf(first.ID) == store.Delivered })
			f.write(event("a", 2))
			await(t, "the aggregate continues", func() bool { return slices.Contains(c.payloads("a"), "2") })
			if got := c.payloads("a"); got[0] != "0" {
				t.Errorf("delivered %v", got)
			}
		})
	}
}

// dueWatch is a store that records which deferred rows a relay has read.
type dueWatch struct {
	driver.Relay
	seen, reads atomic.Int64
	id          atomic.Value
}

func (w *dueWatch) Due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	p, err := w.Relay.Due(ctx, lanes, limit)
	for i := range p.Rows {
		if p.Rows[i].ID == w.id.Load() {
			w.seen.Add(1)
		}
	}
	return p, err
}

func (w *dueWatch) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	w.reads.Add(1)
	return w.Relay.Fetch(ctx, from, limit)
}

// await returns when the relay has read the deferred row and handled it: reads
// run one after another.
func (w *dueWatch) await(t *testing.T, id waybill.ID) {
	t.Helper()
	w.id.Store(id)
	await(t, "the relay has read the row", func() bool { return w.seen.Load() > 0 })
	from := w.reads.Load()
	await(t, "the relay has taken the row", func() bool { return w.reads.Load() >= from+3 })
}

// stateOf returns an event's state.
func (f *fixture) stateOf(id waybill.ID) store.State {
	f.Helper()
	found, err := f.db.Driver().OutboxAdmin.Find(context.Background(), id)
	if err != nil || len(found) == 0 {
		return store.Ready
	}
	return found[0].State
}

// payloads returns the delivered payloads of an aggregate, in order.
func (c *collector) payloads(aggregate string) []string {
	var out []string
	for _, d := range c.all() {
		if d.AggregateID == aggregate {
			out = append(out, string(d.Payload))
		}
	}
	return out
}

// TestReplayMoreThanAPage: many more dead letters of one aggregate are replayed
// than a read returns. They are delivered in their order, each after the one
// before it, with a few statements each, and not a few in every period of some
// seconds.
func TestReplayMoreThanAPage(t *testing.T) {
	f := newFixtureOf(t, memstore.Config{Lanes: 1})
	const many = 300
	var healed atomic.Bool
	var statements atomic.Int64
	c := &collector{}
	sink := relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		if !healed.Load() {
			return waybill.Permanent(errors.New("no"))
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.got = append(c.got, d)
		return nil
	})
	count := func() { statements.Add(1) }
	cfg := relay.Config{BatchSize: 20, Observe: observe.Hooks{
		Read:    func(observe.ReadInfo) { count() },
		Settled: func(observe.SettledInfo) { count() },
	}}
	f.start(sink, cfg)
	var evs []waybill.Event
	for i := range many {
		ev := event("a", i)
		ev.ID = waybill.NewID()
		evs = append(evs, ev)
	}
	f.write(evs...)
	await(t, "all are dead", func() bool {
		s, err := f.db.Driver().OutboxAdmin.Stats(t.Context())
		return err == nil && s.Dead == many
	})
	healed.Store(true)
	before := statements.Load()
	var ids []waybill.ID
	for _, ev := range evs {
		ids = append(ids, ev.ID)
	}
	if _, err := f.db.Driver().OutboxAdmin.Replay(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
	await(t, "all are delivered", func() bool { return c.count() >= many })
	spent := statements.Load() - before
	if limit := int64(8 * many); spent > limit {
		t.Errorf("%d statements for %d events, want at most %d", spent, many, limit)
	}
	t.Logf("%d statements for %d events", spent, many)
	for i, got := range c.payloads("a") {
		if got != strconv.Itoa(i) {
			t.Fatalf("delivery %d is of event %s", i, got)
		}
	}
}

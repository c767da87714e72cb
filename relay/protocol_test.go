package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// scripted is a store whose answers can be delayed or changed. The tests of
// this file are the interleavings behind the rules of the relay's protocol, one
// by one.
type scripted struct {
	driver.Relay
	fetch     func(next func() (driver.Page, error)) (driver.Page, error)
	settle    func(s driver.Settlement, next func() (driver.Settled, error)) (driver.Settled, error)
	heartbeat func(next func() (store.Membership, error)) (store.Membership, error)
	acquire   func(next func() ([]driver.Lease, error)) ([]driver.Lease, error)
	follow    func(next func() (driver.Page, error)) (driver.Page, error)
	writers   func() driver.WriterState
	sweep     func(next func() ([]driver.RowRef, error)) ([]driver.RowRef, error)
}

func (s *scripted) Sweep(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
	next := func() ([]driver.RowRef, error) { return s.Relay.Sweep(ctx, from, limit) }
	if s.sweep == nil {
		return next()
	}
	return s.sweep(next)
}

func (s *scripted) OpenWriters(ctx context.Context) (driver.WriterState, error) {
	if s.writers == nil {
		return s.Relay.OpenWriters(ctx)
	}
	return s.writers(), nil
}

func (s *scripted) FetchAggregate(ctx context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error) {
	next := func() (driver.Page, error) { return s.Relay.FetchAggregate(ctx, agg, from, limit) }
	if s.follow == nil {
		return next()
	}
	return s.follow(next)
}

func (s *scripted) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	next := func() (driver.Page, error) { return s.Relay.Fetch(ctx, from, limit) }
	if s.fetch == nil {
		return next()
	}
	return s.fetch(next)
}

func (s *scripted) Settle(ctx context.Context, t driver.Settlement) (driver.Settled, error) {
	next := func() (driver.Settled, error) { return s.Relay.Settle(ctx, t) }
	if s.settle == nil {
		return next()
	}
	return s.settle(t, next)
}

func (s *scripted) Heartbeat(ctx context.Context, node store.Node, lease time.Duration) (store.Membership, error) {
	next := func() (store.Membership, error) { return s.Relay.Heartbeat(ctx, node, lease) }
	if s.heartbeat == nil {
		return next()
	}
	return s.heartbeat(next)
}

func (s *scripted) Acquire(ctx context.Context, node store.Node, lanes []int, window int) ([]driver.Lease, error) {
	next := func() ([]driver.Lease, error) { return s.Relay.Acquire(ctx, node, lanes, window) }
	if s.acquire == nil {
		return next()
	}
	return s.acquire(next)
}

// startOn runs a relay over a scripted store.
func (f *fixture) startOn(db driver.Relay, sink waybill.Sink, cfg relay.Config) (stop func() error) {
	f.Helper()
	r, err := relay.New(testroles.Of[any](db), sink, cfg)
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	f.Cleanup(func() { _ = stop() })
	return stop
}

// TestSeenUntilALaterRead: a read that began before an event was settled
// returns the event after the settlement was answered. The event must not be
// delivered again.
func TestSeenUntilALaterRead(t *testing.T) {
	for _, aggregate := range []string{"a", ""} {
		f := newFixture(t)
		var armed, answered atomic.Bool
		seen := make(chan struct{})
		db := &scripted{Relay: f.db.Driver().Relay, writers: openWriter}
		db.fetch = func(next func() (driver.Page, error)) (driver.Page, error) {
			page, err := next()
			if len(page.Rows) > 0 && armed.CompareAndSwap(true, false) {
				close(seen) // this read has seen the row
				await(t, "the settlement was answered", answered.Load)
			}
			return page, err
		}
		db.settle = func(_ driver.Settlement, next func() (driver.Settled, error)) (driver.Settled, error) {
			armed.Store(true)
			f.box.Wake() // a read begins
			<-seen
			return next()
		}
		c, last := &collector{}, make(chan struct{})
		c.fail = func(d waybill.Delivery) error {
			if d.AggregateID == "last" {
				close(last)
			}
			return nil
		}
		stop := f.startOn(db, c.sink(), relay.Config{
			Observe: observe.Hooks{Settled: func(observe.SettledInfo) { answered.Store(true) }},
		})
		f.write(event(aggregate, 1))
		await(t, "it is settled", answered.Load)
		db.settle = nil // the first one is over
		f.write(event("last", 2))
		<-last // and with it every earlier read
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if n := c.count(); n != 2 {
			t.Errorf("aggregate %q: %d deliveries of 2 events", aggregate, n)
		}
	}
}

// TestARowAppearsBelow: a row appears below the read position, and no open
// transaction was known: after a restore, or if the store cannot report open
// transactions. The sweep finds the row, also beside an aggregate that is held,
// so that the lane is never read from its beginning.
func TestARowAppearsBelow(t *testing.T) {
	f := newFixture(t)
	var err error
	if f.db, err = memstore.New(memstore.Config{Lanes: 1}); err != nil {
		t.Fatal(err)
	}
	if f.box, err = outbox.New(f.db, outbox.Config{}); err != nil {
		t.Fatal(err)
	}
	below := eventfill.Defaults(event("below", 0))
	var there atomic.Bool
	hidden := func(id waybill.ID) bool { return id == below.ID && !there.Load() }
	db := &scripted{Relay: f.db.Driver().Relay}
	db.fetch = func(next func() (driver.Page, error)) (driver.Page, error) {
		page, err := next()
		page.Rows = slices.DeleteFunc(page.Rows, func(r store.Row) bool { return hidden(r.ID) })
		return page, err
	}
	db.sweep = func(next func() ([]driver.RowRef, error)) ([]driver.RowRef, error) {
		seen, err := next()
		return slices.DeleteFunc(seen, func(s driver.RowRef) bool { return hidden(s.ID) }), err
	}
	delivered := make(chan string, 10)
	f.startOn(db, relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		delivered <- d.AggregateID
		if d.AggregateID == "held" {
			return errors.New("no")
		}
		return nil
	}), relay.Config{BackoffBase: time.Hour, BackoffMax: time.Hour, SweepInterval: 20 * time.Millisecond, PollInterval: 20 * time.Millisecond})
	wait := func(want string) {
		t.Helper()
		select {
		case got := <-delivered:
			if got != want {
				t.Fatalf("delivered %s, want %s", got, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s was not delivered", want)
		}
	}
	f.write(event("held", 0))
	wait("held")
	f.write(event("held", 1), below)
	f.write(event("above", 0))
	wait("above")
	there.Store(true)
	wait("below")
}

// openWriter keeps the relay from reading only new rows.
func openWriter() driver.WriterState { return driver.WriterState{Open: []string{"writer"}} }

// TestDeferredWhileItsRowsAreRead: while the rows of an aggregate that were
// passed over are being read, an earlier event is deferred, and with it all
// events between them. They come first.
func TestDeferredWhileItsRowsAreRead(t *testing.T) {
	f := newFixture(t)
	const many, failing = 200, 60 // more than wait in memory; one of the last that do
	read, following, failed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once, all sync.Once
	rows := 0
	db := &scripted{Relay: f.db.Driver().Relay, follow: func(next func() (driver.Page, error)) (driver.Page, error) {
		page, err := next()
		once.Do(func() { close(following); <-failed })
		return page, err
	}}
	c := &collector{fail: func(d waybill.Delivery) error {
		<-read // so most of them have been passed over
		if string(d.Payload) == strconv.Itoa(failing) && d.Attempt == 1 {
			<-following
			return errors.New("not yet")
		}
		return nil
	}}
	f.startOn(db, c.sink(), relay.Config{
		BackoffBase: time.Millisecond,
		Observe: observe.Hooks{
			Failed: func(observe.FailedInfo) { close(failed) },
			Read: func(info observe.ReadInfo) {
				if rows += info.Rows; rows >= many {
					all.Do(func() { close(read) })
				}
			},
		},
	})
	var evs []waybill.Event
	for i := range many {
		evs = append(evs, event("a", i))
	}
	f.write(evs...)
	await(t, "all are delivered", func() bool { return c.count() >= many+1 })
	var got, want []string
	for _, d := range c.all() {
		got = append(got, string(d.Payload))
	}
	for i := range many {
		want = append(want, strconv.Itoa(i))
	}
	want = slices.Insert(want, failing, strconv.Itoa(failing))
	if !slices.Equal(got, want) {
		t.Errorf("delivered %v", got)
	}
}

// TestAggregateWaitsForTheDeadMove: the aggregate continues only when the dead
// letter is on disk.
func TestAggregateWaitsForTheDeadMove(t *testing.T) {
	f := newFixture(t)
	moving, move := make(chan struct{}), make(chan struct{})
	db := &scripted{Relay: f.db.Driver().Relay, settle: func(s driver.Settlement, next func() (driver.Settled, error)) (driver.Settled, error) {
		if len(s.Dead) > 0 {
			close(moving)
			<-move
		}
		return next()
	}}
	c := &collector{fail: func(d waybill.Delivery) error {
		if string(d.Payload) == "1" {
			return waybill.Permanent(errors.New("no"))
		}
		return nil
	}}
	f.startOn(db, c.sink(), relay.Config{})
	f.write(event("a", 1), event("a", 2), event("b", 3))
	await(t, "the dead letter is being moved", func() bool {
		select {
		case <-moving:
			return true
		default:
			return false
		}
	})
	await(t, "the other aggregate", func() bool { return c.count() >= 2 })
	for _, d := range c.all() {
		if string(d.Payload) == "2" {
			t.Error("the successor was delivered while its predecessor could still come back")
		}
	}
	close(move)
	await(t, "the successor", func() bool { return c.count() == 3 })
}

// TestNothingStartsAfterTheLapse: when the lease cannot be renewed, deliveries
// stop by this node's own clock, and the context of deliveries in flight ends.
// No attempt is spent. When the database is available again, deliveries
// continue.
func TestNothingStartsAfterTheLapse(t *testing.T) {
	f := newFixture(t)
	var away atomic.Bool
	db := &scripted{Relay: f.db.Driver().Relay, heartbeat: func(next func() (store.Membership, error)) (store.Membership, error) {
		if away.Load() {
			return store.Membership{}, errors.New("the database is unavailable")
		}
		return next()
	}}
	ended := make(chan error, 1)
	c := &collector{}
	sink := relay.SinkFunc(func(ctx context.Context, d waybill.Delivery) error {
		if string(d.Payload) == "1" && d.Attempt == 1 && away.Load() {
			<-ctx.Done()
			select {
			case ended <- context.Cause(ctx):
			default:
			}
			return ctx.Err()
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.got = append(c.got, d)
		return nil
	})
	f.startOn(db, sink, relay.Config{Lease: 600 * time.Millisecond, Heartbeat: 50 * time.Millisecond, PollInterval: 20 * time.Millisecond})
	f.write(event("warm", 0))
	await(t, "it works", func() bool { return c.count() == 1 })
	away.Store(true)
	f.write(event("a", 1))
	await(t, "its context has ended", func() bool { return len(ended) > 0 })
	if err := <-ended; !errors.Is(err, waybill.ErrLeaseLost) {
		t.Errorf("the context ended with %v, want ErrLeaseLost", err)
	}
	f.write(event("b", 2), event("", 3))
	until := time.Now().Add(200 * time.Millisecond)
	await(t, "some time without a lease", func() bool { return time.Now().After(until) })
	if n := c.count(); n != 1 {
		t.Errorf("%d deliveries, want none after the lapse", n-1)
	}
	away.Store(false)
	await(t, "deliveries continue", func() bool { return c.count() == 4 })
	for _, d := range c.all() {
		if d.Attempt != 1 {
			t.Errorf("event %s: attempt %d", d.Payload, d.Attempt)
		}
	}
}

// TestLostAnswerToAnAcquisition: the lanes were acquired, but the answer with
// their tokens was lost. The node rejoins under another id.
func TestLostAnswerToAnAcquisition(t *testing.T) {
	f := newFixture(t)
	var lost atomic.Bool
	db := &scripted{Relay: f.db.Driver().Relay, acquire: func(next func() ([]driver.Lease, error)) ([]driver.Lease, error) {
		leases, err := next()
		if err == nil && len(leases) > 0 && !lost.Swap(true) {
			return nil, errors.New("the answer was lost")
		}
		return leases, err
	}}
	c := &collector{}
	f.startOn(db, c.sink(), relay.Config{Lease: 3 * time.Second, Heartbeat: 50 * time.Millisecond})
	f.write(event("a", 1))
	await(t, "it is delivered", func() bool { return c.count() == 1 })
}

// TestMemoryOfAHeldAggregate: successors of an aggregate that is held are
// passed over, not kept in memory.
func TestMemoryOfAHeldAggregate(t *testing.T) {
	f := newFixture(t)
	var healed atomic.Bool
	var highest atomic.Int64
	c := &collector{fail: func(d waybill.Delivery) error {
		if d.AggregateID == "bad" && !healed.Load() {
			return errors.New("no")
		}
		return nil
	}}
	var evs []waybill.Event
	for i := range 20_000 {
		evs = append(evs, event("bad", i))
		if i%100 == 0 {
			evs = append(evs, event(fmt.Sprint("a", i), i))
		}
	}
	f.write(evs...)
	f.startOn(f.db.Driver().Relay, c.sink(), relay.Config{
		MaxAttempts: -1, BackoffBase: 5 * time.Millisecond, BackoffMax: 5 * time.Millisecond, Lease: 3 * time.Second, Heartbeat: 10 * time.Millisecond,
		Observe: observe.Hooks{QueueDepths: func(info observe.QueueDepthsInfo) { highest.Store(max(highest.Load(), int64(info.Hot+info.Cold))) }},
	})
	others := func() (n int) {
		for _, d := range c.all() {
			if d.AggregateID != "bad" {
				n++
			}
		}
		return n
	}
	await(t, "the others", func() bool { return others() == 200 })
	healed.Store(true)
	await(t, "all of it", func() bool {
		s, err := f.db.Driver().OutboxAdmin.Stats(t.Context())
		return err == nil && s.Ready+s.Failed == 0
	})
	if highest.Load() > 3000 {
		t.Errorf("%d events waited in memory", highest.Load())
	}
}

// TestLateAnnouncement: a row can be read, delivered and settled before the
// goroutine that committed it has notified the hub. The late announcement must
// not deliver the event a second time, straight from memory.
func TestLateAnnouncement(t *testing.T) {
	f := newFixture(t)
	c := &collector{}
	f.start(c.sink(), relay.Config{PollInterval: 5 * time.Millisecond})
	f.write(event("", 0))
	await(t, "it works", func() bool { return c.count() == 1 })
	commit := f.silent()
	for range 3 { // when others have been settled after it, the relay has forgotten it
		next := event("", 3)
		next.ID = waybill.NewID()
		f.write(next)
		f.settled(next.ID)
	}
	commit.BeganAt = time.Now()
	f.announce(c, commit)
}

// TestLateAnnouncementAfterAnotherOwner: while a writer waits for its commit's
// answer, another node may deliver the event, settle it and release the lane.
// The next owner has no memory of the event, and must read the row.
func TestLateAnnouncementAfterAnotherOwner(t *testing.T) {
	f := newFixture(t)
	c := &collector{}
	stop := f.start(c.sink(), relay.Config{PollInterval: 5 * time.Millisecond})
	begun := time.Now()
	commit := f.silent()
	commit.BeganAt = begun
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	f.start(c.sink(), relay.Config{PollInterval: 5 * time.Millisecond})
	await(t, "events are delivered straight from memory", func() bool {
		f.write(event("", 0))
		return slices.ContainsFunc(c.all(), func(d waybill.Delivery) bool { return d.Position.Seq == 0 })
	})
	f.announce(c, commit)
}

// silent writes an event without announcing it, waits until it is settled, and
// returns the commit that its writer would announce.
func (f *fixture) silent() driver.Commit {
	f.Helper()
	ev := event("", 1)
	ev.ID = waybill.NewID()
	tx := memstore.BeginTx(f.db)
	if err := f.box.Write(f.Context(), tx, ev); err != nil {
		f.Fatal(err)
	}
	if err := tx.Commit(f.Context()); err != nil {
		f.Fatal(err)
	}
	return driver.Commit{Entries: []driver.Entry{{Event: ev, Lane: f.settled(ev.ID).Lane}}, Checked: true}
}

// settled waits until an event is settled.
func (f *fixture) settled(id waybill.ID) (row store.Record) {
	f.Helper()
	await(f.T, "it is settled", func() bool {
		found, err := f.db.Driver().OutboxAdmin.Find(f.Context(), id)
		if err != nil || len(found) == 0 || found[0].State != store.Delivered {
			return false
		}
		row = found[0]
		return true
	})
	return row
}

// announce publishes a commit once, as a writer does: an event that is still in
// memory then is not remembered any more. The event must not be delivered from
// memory.
func (f *fixture) announce(c *collector, commit driver.Commit) {
	f.Helper()
	f.db.Driver().Outbox.Local().Publish(commit)
	before := c.count()
	await(f.T, "the relay has handled the announcement", func() bool {
		f.write(event("", 2))
		return c.count() > before+10
	})
	for _, d := range c.all() {
		if d.ID == commit.Entries[0].Event.ID && d.Position.Seq == 0 {
			f.Fatal("it was delivered again, from memory")
		}
	}
}

// all returns all deliveries.
func (c *collector) all() []waybill.Delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]waybill.Delivery(nil), c.got...)
}

package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/memstore"
)

type mem = memstore.Store[*memstore.Tx]

// fixture is an outbox in memory.
type fixture struct {
	*testing.T
	db  *mem
	box *outbox.Outbox[*memstore.Tx]
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureOf(t, memstore.Config{})
}

func newFixtureOf(t *testing.T, cfg memstore.Config) *fixture {
	t.Helper()
	db, err := memstore.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{T: t, db: db, box: box}
}

func (f *fixture) write(evs ...waybill.Event) {
	f.Helper()
	err := f.box.InTx(f.Context(), func(ctx context.Context, tx *memstore.Tx) error { return f.box.Write(ctx, tx, evs...) })
	if err != nil {
		f.Fatal(err)
	}
}

func event(aggregate string, n int) waybill.Event {
	ev := waybill.NewEvent("Tested", n)
	if aggregate != "" {
		ev.AggregateType, ev.AggregateID = "thing", aggregate
	}
	return ev
}

// start runs a relay until stop is called; stop returns Run's error.
func (f *fixture) start(sink waybill.Sink, cfg relay.Config) (stop func() error) {
	f.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(testWriter{f.T}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	r, err := relay.New(f.db, sink, cfg)
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	f.Cleanup(func() {
		if err := stop(); err != nil {
			f.Errorf("Run: %v", err)
		}
	})
	return stop
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

// collector is a sink that records deliveries.
type collector struct {
	mu   sync.Mutex
	got  []waybill.Delivery
	fail func(d waybill.Delivery) error
}

func (c *collector) sink() waybill.Sink {
	return relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.got = append(c.got, d)
		if c.fail != nil {
			return c.fail(d)
		}
		return nil
	})
}

func (c *collector) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.got)
}

// await waits for a condition.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("timed out waiting for: %s", what)
		}
	}
}

func TestDeliversEverythingInOrder(t *testing.T) {
	f := newFixture(t)
	const aggregates, each = 50, 40
	var evs []waybill.Event
	for n := range each {
		for a := range aggregates {
			evs = append(evs, event(fmt.Sprint("a", a), n))
		}
		evs = append(evs, event("", n))
	}
	f.write(evs[:len(evs)/2]...)
	c := &collector{}
	f.start(c.sink(), relay.Config{})
	f.write(evs[len(evs)/2:]...)
	await(t, "all events", func() bool { return c.count() >= len(evs) })
	next := map[string]string{}
	for _, d := range c.got {
		if d.AggregateID != "" && len(d.Payload) > 0 {
			if prev := next[d.AggregateID]; len(prev) > len(d.Payload) || len(prev) == len(d.Payload) && prev >= string(d.Payload) {
				t.Fatalf("%s: %s after %s", d.AggregateID, d.Payload, prev)
			}
			next[d.AggregateID] = string(d.Payload)
		}
	}
	await(t, "settled", func() bool {
		s, err := f.db.Driver().OutboxAdmin.Stats(t.Context())
		return err == nil && s.Ready == 0
	})
	if c.count() != len(evs) {
		t.Errorf("%d deliveries of %d events", c.count(), len(evs))
	}
}

func TestRetriesAndHolds(t *testing.T) {
	f := newFixture(t)
	boom := errors.New("boom")
	c := &collector{}
	c.fail = func(d waybill.Delivery) error {
		if string(d.Payload) == "1" && d.Attempt < 3 {
			return boom
		}
		return nil
	}
	f.start(c.sink(), relay.Config{BackoffBase: 10 * time.Millisecond})
	f.write(event("a", 1), event("a", 2), event("a", 3), event("b", 9))
	await(t, "all", func() bool { return c.count() >= 6 })
	var order []string
	for _, d := range c.got {
		if d.AggregateID == "a" {
			order = append(order, fmt.Sprint(string(d.Payload), "/", d.Attempt))
		}
	}
	if got := fmt.Sprint(order); got != "[1/1 1/2 1/3 2/1 3/1]" {
		t.Errorf("got %s", got)
	}
}

// TestSelfPolledEventsAreDelivered: at high rates writers announce nothing, and
// no event waits for a poll because of it, neither then nor afterwards.
func TestSelfPolledEventsAreDelivered(t *testing.T) {
	f := newFixture(t)
	c := &collector{}
	f.start(c.sink(), relay.Config{PollInterval: time.Hour, SweepInterval: time.Hour})
	hub, none := f.db.Driver().Outbox.Local(), waybill.Event{}
	written := 0
	for range 3 {
		await(t, "writers announce nothing", func() bool {
			var evs []waybill.Event
			for i := range 50 {
				evs = append(evs, event("a"+strconv.Itoa(i), written), event("", written))
			}
			f.write(evs...)
			written += len(evs)
			return !hub.NeedsPublish(&none, 0)
		})
		await(t, "all are delivered", func() bool { return c.count() == written })
		await(t, "writers announce their commits", func() bool { return hub.NeedsPublish(&none, 0) })
		f.write(event("", written))
		written++
		await(t, "it is delivered", func() bool { return c.count() == written })
	}
}

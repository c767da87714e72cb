package relay_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
)

// TestMain verifies that no goroutine outlives Run.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestObserver: every hook of deliveries is called when it should be.
func TestObserver(t *testing.T) {
	var mu sync.Mutex
	calls := map[string]int{}
	count := func(name string, n int) {
		mu.Lock()
		defer mu.Unlock()
		calls[name] += n
	}
	is := func(name string, minimum int) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return calls[name] >= minimum
		}
	}
	f := newFixture(t)
	f.write(event("cold", 0))
	boom := errors.New("boom")
	c := &collector{fail: func(d waybill.Delivery) error {
		switch {
		case d.AggregateID == "dead":
			return waybill.Permanent(boom)
		case d.AggregateID == "down" && d.Attempt == 1 && is("paused", 1)():
			return nil
		case d.AggregateID == "down":
			return waybill.Unavailable(boom)
		case d.AggregateID == "retry" && d.Attempt == 1:
			return boom
		}
		return nil
	}}
	f.start(c.sink(), relay.Config{
		BackoffBase: time.Millisecond, BackoffMax: time.Millisecond, Lease: 3 * time.Second, Heartbeat: 20 * time.Millisecond,
		Observe: observe.Hooks{
			HotEnqueued:  func(info observe.HotEnqueuedInfo) { count("hot", info.Events) },
			HotDropped:   func(info observe.HotDroppedInfo) { count("dropped "+info.Reason.String(), info.Events) },
			ColdEnqueued: func(info observe.ColdEnqueuedInfo) { count("cold", info.Events) },
			QueueDepths:  func(observe.QueueDepthsInfo) { count("depths", 1) },
			Deliver: func(ctx context.Context, info observe.DeliverInfo) (context.Context, func(observe.DeliverDoneInfo)) {
				count("deliver", len(info.Batch))
				return ctx, func(done observe.DeliverDoneInfo) { count("delivered results", len(done.Results)) }
			},
			Delivered: func(info observe.DeliveredInfo) {
				count("delivered", 1)
				if info.Age > 0 {
					count("with age", 1)
				}
			},
			Failed: func(info observe.FailedInfo) {
				count("failed "+info.Class.String(), 1)
			},
			Died: func(observe.DiedInfo) { count("died", 1) },
			Paused: func(info observe.PausedInfo) {
				if info.Paused {
					count("paused", 1)
				} else {
					count("back", 1)
				}
			},
			Read:    func(info observe.ReadInfo) { count("read "+info.Kind, 1) },
			Settled: func(info observe.SettledInfo) { count("settled", info.Events) },
			Lanes:   func(info observe.LanesInfo) { count("lanes", info.Owned) },
			Lag:     func(observe.LagInfo) { count("lag", 1) },
		},
	})
	await(t, "the cold one", func() bool { return c.count() == 1 })
	later := event("later", 0)
	later.Delay = time.Hour
	f.write(event("dead", 0), event("retry", 0), event("", 0), later)
	await(t, "they are settled", is("delivered", 3))
	f.write(event("down", 0))
	for name, minimum := range map[string]int{
		"hot": 3, "dropped not due": 1, "cold": 1, "depths": 1, "deliver": 5, "delivered results": 5, "delivered": 4, "with age": 1,
		"failed retry": 1, "failed unavailable": 1, "died": 1, "paused": 1, "back": 1, "read fast": 1, "read due": 1, "read holds": 1,
		"settled": 5, "lanes": 1, "lag": 1,
	} {
		await(t, name, is(name, minimum))
	}
}

// TestLogFields: a log line about an event has the fields that operators search
// for.
func TestLogFields(t *testing.T) {
	f := newFixture(t)
	var mu sync.Mutex
	var text strings.Builder
	log := slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return text.Write(p)
	}), nil))
	c := &collector{fail: func(waybill.Delivery) error { return waybill.Permanent(errors.New("no good")) }}
	f.start(c.sink(), relay.Config{Logger: log})
	ev := event("a7", 1)
	ev.DedupKey, ev.CorrelationID, ev.TenantID, ev.Payload = "k1", "c1", "t1", []byte(`"secret"`)
	f.write(ev)
	line := func() string {
		mu.Lock()
		defer mu.Unlock()
		for l := range strings.Lines(text.String()) {
			if strings.Contains(l, "event is dead") {
				return l
			}
		}
		return ""
	}
	await(t, "the line", func() bool { return line() != "" })
	for _, want := range []string{
		"level=ERROR", "component=relay", "event_type=Tested", "dedup_key=k1", "aggregate_type=thing", "aggregate_id=a7", "attempt=1", "latency=", `error="no good"`, "correlation_id=c1",
	} {
		if !strings.Contains(line(), want) {
			t.Errorf("the line lacks %s: %s", want, line())
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if strings.Contains(text.String(), "secret") {
		t.Error("a payload is in the log")
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// late is a store that settles only when the relay does not wait for answers
// any more.
type late struct {
	driver.Relay
	settling atomic.Bool
	reading  chan struct{} // closed when a read is under way that ends with the relay
	ended    chan struct{}
	once     sync.Once
}

func (l *late) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	if l.settling.Load() {
		l.once.Do(func() {
			close(l.reading)
			<-ctx.Done() // the relay cancels its reads when it stops waiting for answers
			close(l.ended)
		})
	}
	return l.Relay.Fetch(ctx, from, limit)
}

func (l *late) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	l.settling.Store(true)
	<-l.ended
	return l.Relay.Settle(ctx, s)
}

// TestTheLastSettlementIsReported: a settlement that is under way when Run ends
// is completed and reported.
func TestTheLastSettlementIsReported(t *testing.T) {
	f := newFixture(t)
	f.write(event("a", 0))
	db := &late{Relay: f.db.Driver().Relay, reading: make(chan struct{}), ended: make(chan struct{})}
	var settled atomic.Int64
	stop := f.startOn(db, (&collector{}).sink(), relay.Config{
		DrainTimeout: -1, PollInterval: time.Millisecond,
		Observe: observe.Hooks{Settled: func(info observe.SettledInfo) {
			if info.Err == nil {
				settled.Add(int64(info.Events))
			}
		}},
	})
	select {
	case <-db.reading:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing is read while the settlement is under way")
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n := settled.Load(); n != 1 {
		t.Errorf("%d settlements were reported, want 1", n)
	}
}

// orderedSink is a collector that keeps the order of a batch itself.
type orderedSink struct{ waybill.Sink }

func (orderedSink) StopsAtFailure() {}

// intake counts the events that a relay took, by path, and those it dropped.
type intake struct{ hot, dropped, cold atomic.Int64 }

func (in *intake) hooks() observe.Hooks {
	return observe.Hooks{
		HotEnqueued:  func(info observe.HotEnqueuedInfo) { in.hot.Add(int64(info.Events)) },
		HotDropped:   func(info observe.HotDroppedInfo) { in.dropped.Add(int64(info.Events)) },
		ColdEnqueued: func(info observe.ColdEnqueuedInfo) { in.cold.Add(int64(info.Events)) },
	}
}

// TestEveryEventIsCountedIn: an event is counted when the relay takes it, also
// one that follows another event of its aggregate to a sink in one batch and is
// never ready by itself.
func TestEveryEventIsCountedIn(t *testing.T) {
	f := newFixture(t)
	const backlog, commits, each = 300, 50, 4
	for i := range backlog {
		f.write(event("a"+strconv.Itoa(i%3), i))
	}
	var in intake
	c := &collector{}
	f.start(orderedSink{c.sink()}, relay.Config{Observe: in.hooks()})
	await(t, "the backlog", func() bool { return c.count() == backlog })
	if got := in.hot.Load() + in.cold.Load(); got != backlog {
		t.Errorf("%d events came in, want %d", got, backlog)
	}
	for i := range commits {
		var evs []waybill.Event
		for range each {
			evs = append(evs, event("b"+strconv.Itoa(i%2), i))
		}
		f.write(evs...)
	}
	await(t, "the rest", func() bool { return c.count() == backlog+commits*each })
	if got := in.hot.Load() + in.cold.Load(); got != backlog+commits*each {
		t.Errorf("%d events came in, want %d", got, backlog+commits*each)
	}
	if in.hot.Load() == 0 || in.cold.Load() < backlog {
		t.Errorf("%d hot and %d cold", in.hot.Load(), in.cold.Load())
	}
}

// TestEveryAnnouncementIsCounted: an event that a commit announced to a relay
// is either enqueued or dropped, once: whether it fails, has to wait, is read
// first, is not due, finds no room, or the relay stops.
func TestEveryAnnouncementIsCounted(t *testing.T) {
	f := newFixture(t)
	boom := errors.New("boom")
	c := &collector{fail: func(d waybill.Delivery) error {
		switch {
		case d.AggregateID == "poor" && d.Attempt < 3:
			return boom
		case d.AggregateID == "down":
			return waybill.Unavailable(boom)
		}
		return nil
	}}
	var in intake
	// A second listener keeps announcements on at every rate.
	defer f.db.Driver().Outbox.Local().Listen(func(driver.Commit) {})()
	stop := f.start(orderedSink{c.sink()}, relay.Config{
		HotQueue: 40, PollInterval: time.Millisecond, BackoffBase: time.Millisecond, BackoffMax: 5 * time.Millisecond, Observe: in.hooks(),
	})
	first := event("first", 0)
	f.write(first)
	await(t, "the relay runs", func() bool { return c.count() == 1 })
	before := in.hot.Load() + in.dropped.Load() // the first one may have been announced or not
	const writers, commits = 4, 100
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range commits {
				late := event("late", i)
				late.Delay = time.Millisecond
				f.write(event("", i), event("a"+strconv.Itoa(w), i), event("poor", i), late)
				if i == commits/2 {
					f.write(event("down", w))
				}
			}
		})
	}
	all.Wait()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	want := int64(writers * (commits*4 + 1))
	if got := in.hot.Load() + in.dropped.Load() - before; got != want {
		t.Errorf("of %d announced events, %d were enqueued or dropped", want, got)
	}
	if in.hot.Load() == 0 || in.dropped.Load() == 0 {
		t.Errorf("%d enqueued, %d dropped", in.hot.Load(), in.dropped.Load())
	}
}

// TestReadFirstIsCounted: a row may be read before its writer announces the
// commit. Then the announcement changes nothing, and is counted.
func TestReadFirstIsCounted(t *testing.T) {
	f := newFixture(t)
	var said driver.Commit
	unsubscribe := f.db.Driver().Outbox.Local().Listen(func(c driver.Commit) { said = c })
	f.write(event("", 0))
	unsubscribe()
	var first atomic.Int64
	c := &collector{}
	stop := f.start(c.sink(), relay.Config{Observe: observe.Hooks{HotDropped: func(info observe.HotDroppedInfo) {
		if info.Reason == observe.DropAlreadyRead {
			first.Add(int64(info.Events))
		}
	}}})
	await(t, "it was read", func() bool { return c.count() == 1 })
	f.db.Driver().Outbox.Local().Publish(said)
	await(t, "its announcement is counted", func() bool { return first.Load() == 1 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n := c.count(); n != 1 {
		t.Errorf("it was delivered %d times", n)
	}
}

package relaytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
)

func destinationChecks[T any]() []check[T] {
	return []check[T]{
		{name: "destinations", run: destinations[T]},
		{name: "destination_down", run: destinationDown[T]},
		{name: "history_again", run: historyAgain[T]},
	}
}

// station is the sink of a destination. It records what it accepts.
type station struct {
	mu       sync.Mutex
	accepted map[waybill.ID]int
	last     map[string]int // aggregate → its highest event that was accepted
	early    []string       // events that came before an earlier one was accepted
	refuse   func(d *waybill.Delivery) error
}

func newStation(refuse func(d *waybill.Delivery) error) *station {
	return &station{accepted: make(map[waybill.ID]int), last: make(map[string]int), refuse: refuse}
}

// Deliver implements [waybill.Sink].
func (s *station) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	errs := make([]error, len(batch))
	for i := range batch {
		errs[i] = s.one(&batch[i])
	}
	return errs
}

func (s *station) one(d *waybill.Delivery) error {
	var n int
	if _, err := fmt.Sscan(string(d.Payload), &n); err != nil {
		return waybill.Permanent(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.last[d.AggregateID]; n > last+1 {
		s.early = append(s.early, fmt.Sprintf("event %d of %s behind event %d", n, d.AggregateID, last))
	}
	if s.refuse != nil {
		if err := s.refuse(d); err != nil {
			return err
		}
	}
	s.accepted[d.ID]++
	s.last[d.AggregateID] = max(s.last[d.AggregateID], n)
	return nil
}

// count returns the number of events that the station has accepted, and of
// those that it has accepted more than once.
func (s *station) count() (events, repeated int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.accepted {
		if n > 1 {
			repeated++
		}
	}
	return len(s.accepted), repeated
}

// set changes what the station refuses.
func (s *station) set(refuse func(d *waybill.Delivery) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = refuse
}

// mortal is a store whose process dies: from then on nothing of it reaches the
// database.
type mortal struct {
	driver.Relay
	dead atomic.Bool
}

var errDied = errors.New("the process has died")

func (m *mortal) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	if m.dead.Load() {
		return driver.Settled{}, errDied
	}
	return m.Relay.Settle(ctx, s)
}

func (m *mortal) Release(ctx context.Context, leases []driver.Lease, dirty bool) error {
	if m.dead.Load() {
		return errDied
	}
	return m.Relay.Release(ctx, leases, dirty)
}

// mortalBacklogs are the backlogs of a mortal store.
type mortalBacklogs struct {
	driver.Backlogs
	m *mortal
}

func (b mortalBacklogs) Backlog(number int) driver.Backlog {
	return mortalBacklog{b.Backlogs.Backlog(number), b.m}
}

type mortalBacklog struct {
	driver.Backlog
	m *mortal
}

func (b mortalBacklog) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	if b.m.dead.Load() {
		return driver.Settled{}, errDied
	}
	return b.Backlog.Settle(ctx, s)
}

// startTo runs a relay with destinations. stop ends it in good order; with die
// set, nothing that it has not settled by then is settled.
func (b *env[T]) startTo(db driver.Roles[T], cfg relay.Config, to ...relay.Destination) (stop func(die bool)) {
	b.Helper()
	m := &mortal{Relay: db.Relay}
	db.Relay, db.Backlogs, db.SinkGuard = m, mortalBacklogs{db.Backlogs, m}, nil
	rel, err := relay.NewTo(db, cfg, to...)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- rel.Run(ctx) }()
	var once sync.Once
	stop = func(die bool) {
		once.Do(func() {
			m.dead.Store(die)
			cancel()
			if err := <-done; err != nil {
				b.Errorf("Run: %v", err)
			}
		})
	}
	b.Cleanup(func() { stop(false) })
	return stop
}

// pendingAt returns the number of rows in the backlog of a destination.
func (b *env[T]) pendingAt(name string) int64 {
	b.Helper()
	s, err := b.backlogOf(name).Stats(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return s.Ready + s.Scheduled + s.Failed + s.Dead
}

// backlogOf returns the backlog of a destination.
func (b *env[T]) backlogOf(name string) driver.Backlog {
	b.Helper()
	all, err := b.DB.Backlogs.AddDestinations(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for _, d := range all {
		if d.Name == name {
			return b.DB.Backlogs.Backlog(d.Number)
		}
	}
	b.Fatalf("destination %s is not registered", name)
	return nil
}

// destinations: two destinations fail, defer and are unavailable, while nodes
// stop and die. Each accepts every event, the first time in order.
func destinations[T any](b *env[T]) {
	rnd := rand.New(rand.NewPCG(7, 7))
	var mu sync.Mutex
	calm := false
	chance := func(n int) bool { mu.Lock(); defer mu.Unlock(); return !calm && rnd.IntN(n) == 0 }
	refuse := func(*waybill.Delivery) error {
		switch {
		case chance(20):
			return errBoom
		case chance(40):
			return waybill.Unavailable(errBoom)
		case chance(40):
			return waybill.Later(10*time.Millisecond, errBoom)
		}
		return nil
	}
	stations := []*station{newStation(refuse), newStation(refuse)}
	to := []relay.Destination{{Name: "one", Sink: stations[0], MaxAttempts: -1}, {Name: "two", Sink: stations[1], MaxAttempts: -1}}
	cfg := b.quick()
	cfg.Lease, cfg.MaxAttempts, cfg.DrainTimeout, cfg.BatchSize = time.Second, -1, 500*time.Millisecond, 16
	dbs := []driver.Roles[T]{b.DB, b.second()}
	stops := []func(bool){b.startTo(dbs[0], cfg, to...), b.startTo(dbs[1], cfg, to...)}
	written, counts := 0, make(map[string]int)
	for round := range 6 {
		for range 40 {
			aggregate := string(rune('a' + written%5))
			counts[aggregate]++
			b.write(event(aggregate, counts[aggregate]))
			written++
		}
		stops[round%2](round%3 == 1)
		stops[round%2] = b.startTo(dbs[round%2], cfg, to...)
	}
	mu.Lock()
	calm = true
	mu.Unlock()
	for i, s := range stations {
		b.await(fmt.Sprintf("destination %s has every event", to[i].Name), func() bool { n, _ := s.count(); return n == written })
		for _, what := range s.early {
			b.Errorf("destination %s: %s", to[i].Name, what)
		}
		b.await("its backlog is empty", func() bool { return b.pendingAt(to[i].Name) == 0 })
	}
	b.awaitEmpty()
}

// destinationDown: while one destination is down the other receives every event
// once. The one that was down receives the rest from its backlog, in order, and
// then new events.
func destinationDown[T any](b *env[T]) {
	up, down := newStation(nil), newStation(func(*waybill.Delivery) error { return waybill.Unavailable(errBoom) })
	stop := b.startTo(b.DB, b.quick(), relay.Destination{Name: "up", Sink: up}, relay.Destination{Name: "down", Sink: down})
	defer stop(false)
	for i := 1; i <= 60; i++ {
		b.write(event("x", i), event("y", i))
	}
	b.await("the other destination has every event", func() bool { n, _ := up.count(); return n == 120 })
	b.await("the rest is in the backlog", func() bool { return b.pendingAt("down") == 120 })
	b.awaitEmpty()
	down.set(nil)
	b.await("the destination caught up", func() bool { n, _ := down.count(); return n == 120 && b.pendingAt("down") == 0 })
	b.write(event("x", 61))
	b.await("a new event arrived", func() bool { n, _ := down.count(); return n == 121 })
	for name, s := range map[string]*station{"up": up, "down": down} {
		if _, repeated := s.count(); repeated > 0 {
			b.Errorf("destination %s received %d events more than once", name, repeated)
		}
		for _, what := range s.early {
			b.Errorf("destination %s: %s", name, what)
		}
	}
}

// historyAgain: events that are copied from the history to the backlog of a
// destination are delivered there once more, and nowhere else.
func historyAgain[T any](b *env[T]) {
	one, two := newStation(nil), newStation(nil)
	stop := b.startTo(b.DB, b.quick(), relay.Destination{Name: "one", Sink: one}, relay.Destination{Name: "two", Sink: two})
	defer stop(false)
	for i := 1; i <= 30; i++ {
		b.write(event("x", i))
	}
	b.await("every event was delivered", func() bool { n, _ := one.count(); m, _ := two.count(); return n == 30 && m == 30 })
	b.awaitEmpty()
	out, err := b.backlogOf("two").Refill(b.Context(), driver.HistoryQuery{}, driver.HistoryCursor{}, 100)
	if err != nil || out.Copied != 30 {
		b.Fatalf("copied %+v, %v", out, err)
	}
	b.await("every event was delivered again", func() bool { _, again := two.count(); return again == 30 })
	b.await("its backlog is empty", func() bool { return b.pendingAt("two") == 0 })
	if _, again := one.count(); again != 0 {
		b.Errorf("the other destination received %d events again", again)
	}
}

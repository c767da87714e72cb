package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// shaky is a store whose calls are delayed, and sometimes fail: before or after
// their effect.
type shaky struct {
	driver.Relay
	mu   sync.Mutex
	rng  *rand.Rand
	away time.Time // until then every call fails
}

var errShaky = errors.New("the connection is lost")

// chance reports true with the given probability.
func (s *shaky) chance(likely float64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rng.Float64() < likely
}

// wait delays briefly, and returns an error if the store is unavailable.
func (s *shaky) wait() error {
	s.mu.Lock()
	long := time.Duration(s.rng.ExpFloat64() * float64(300*time.Microsecond))
	now := time.Now()
	if s.rng.Float64() < 0.0005 {
		s.away = now.Add(time.Duration(s.rng.Int64N(int64(300 * time.Millisecond))))
	}
	away := now.Before(s.away)
	s.mu.Unlock()
	if away {
		return errShaky
	}
	<-time.After(long)
	return nil
}

// shake calls fn between two short delays.
func shake[T any](s *shaky, fn func() (T, error)) (T, error) {
	var zero T
	if err := s.wait(); err != nil {
		return zero, err
	}
	out, err := fn()
	if waited := s.wait(); waited != nil || s.chance(0.002) {
		return zero, errShaky
	}
	return out, err
}

func (s *shaky) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	return shake(s, func() (driver.Page, error) { return s.Relay.Fetch(ctx, from, limit) })
}

func (s *shaky) Sweep(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
	return shake(s, func() ([]driver.RowRef, error) { return s.Relay.Sweep(ctx, from, limit) })
}

func (s *shaky) Load(ctx context.Context, keys []store.Key) (driver.Page, error) {
	return shake(s, func() (driver.Page, error) { return s.Relay.Load(ctx, keys) })
}

func (s *shaky) Due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	return shake(s, func() (driver.Page, error) { return s.Relay.Due(ctx, lanes, limit) })
}

func (s *shaky) Holds(ctx context.Context, lanes []int) ([]driver.Hold, error) {
	return shake(s, func() ([]driver.Hold, error) { return s.Relay.Holds(ctx, lanes) })
}

func (s *shaky) FetchAggregate(ctx context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error) {
	return shake(s, func() (driver.Page, error) { return s.Relay.FetchAggregate(ctx, agg, from, limit) })
}

func (s *shaky) FetchPriority(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	return shake(s, func() (driver.Page, error) { return s.Relay.FetchPriority(ctx, from, limit) })
}

func (s *shaky) Settle(ctx context.Context, set driver.Settlement) (driver.Settled, error) {
	return shake(s, func() (driver.Settled, error) { return s.Relay.Settle(ctx, set) })
}

// gale is a sink that fails at random, and checks the order.
type gale struct {
	mu     sync.Mutex
	rng    *rand.Rand
	calm   bool
	down   map[string]time.Time
	done   map[string]int // the last delivered or dead number of an aggregate
	flying map[string]string
	count  int
	bad    []string
	seen   map[waybill.ID]bool
}

func (g *gale) deliver(_ context.Context, d waybill.Delivery) error {
	g.mu.Lock()
	var n int
	_, _ = fmt.Sscan(string(d.Payload), &n)
	agg := d.AggregateID
	name := fmt.Sprintf("%s/%d", agg, n)
	if agg != "" {
		if d.Replay == 0 && g.done[agg] != n-1 {
			g.bad = append(g.bad, fmt.Sprintf("%s comes when %d was the last one (attempt %d, seq %d)", name, g.done[agg], d.Attempt, d.Position.Seq))
		}
		if other := g.flying[agg]; other != "" {
			g.bad = append(g.bad, fmt.Sprintf("%s comes while %s is under way", name, other))
		}
		g.flying[agg] = name
	}
	result, long := g.draw(d), time.Duration(0)
	if g.rng.Float64() < 0.3 {
		long = time.Duration(g.rng.ExpFloat64() * float64(time.Millisecond))
	}
	g.mu.Unlock()
	if long > 0 {
		<-time.After(long)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.flying, agg)
	if result == nil {
		if g.seen[d.ID] {
			g.bad = append(g.bad, name+" was delivered twice")
		}
		g.seen[d.ID] = true
		g.count++
	}
	if class, _ := waybill.Classify(result); class == waybill.ClassDone || class == waybill.ClassPermanent {
		if d.Replay == 0 {
			g.done[agg] = n
		}
	}
	return result
}

// draw selects the result of a delivery.
func (g *gale) draw(d waybill.Delivery) error {
	if g.calm {
		return nil
	}
	now := time.Now()
	if now.Before(g.down[d.Topic]) {
		return waybill.Unavailable(errors.New("down"))
	}
	switch u := g.rng.Float64(); {
	case u < 0.001:
		g.down[d.Topic] = now.Add(time.Duration(g.rng.Int64N(int64(3 * time.Second))))
		return waybill.Unavailable(errors.New("down"))
	case u < 0.02:
		return waybill.Unavailable(errors.New("not there"))
	case u < 0.08:
		return errors.New("no luck")
	case u < 0.09:
		return waybill.Later(3*time.Millisecond, errors.New("not now"))
	case u < 0.1:
		return waybill.Permanent(errors.New("never"))
	}
	return nil
}

// galeSink has destinations.
type galeSink struct{ *gale }

func (g galeSink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return relay.SinkFunc(g.deliver).Deliver(ctx, batch)
}

// Serial implements [relay.SerialSink].
func (galeSink) Serial() {}

// Destination implements [relay.DestinationSink].
func (galeSink) Destination(ev *waybill.Event) string { return ev.Topic }

// TestStorm: one relay, whose store is slow and loses responses and whose sink
// fails in every way, keeps the order and delivers every event once. No
// processes are killed here: the test covers the orders in which responses may
// arrive.
func TestStorm(t *testing.T) {
	runs, each := 4, 6*time.Second
	if testing.Short() {
		runs = 2
	}
	first := *chaosSeed
	if first == 0 {
		first = rand.Uint64()
	}
	for i := range runs {
		seed := first + uint64(i)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			storm(t, seed, each)
		})
	}
}

func storm(t *testing.T, seed uint64, long time.Duration) {
	db, err := memstore.New(memstore.Config{Lanes: 1})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ops, err := admin.NewOutbox(db, admin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	g := &gale{
		rng: rand.New(rand.NewPCG(seed, 1)), down: map[string]time.Time{}, done: map[string]int{}, flying: map[string]string{},
		seen: map[waybill.ID]bool{},
	}
	log := slog.New(slog.DiscardHandler)
	if *chaosDir != "" {
		f, err := os.Create(filepath.Join(*chaosDir, fmt.Sprint("storm-", seed, ".log")))
		if err != nil {
			t.Fatal(err)
		}
		log = slog.New(slog.NewTextHandler(f, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	rel, err := relay.New(testroles.Of[any](&shaky{Relay: db.Driver().Relay, rng: rand.New(rand.NewPCG(seed, 2))}), galeSink{g}, relay.Config{
		BackoffBase: time.Millisecond, BackoffMax: 20 * time.Millisecond, PollInterval: 20 * time.Millisecond, SweepInterval: 10 * time.Millisecond,
		MaxAttempts: -1, BatchSize: 40, ColdQueue: 80, Lease: time.Minute, Heartbeat: time.Second, Logger: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- rel.Run(ctx) }()

	rng := rand.New(rand.NewPCG(seed, 3))
	numbers := map[string]int{}
	written := 0
	broken := func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.bad) > 0
	}
	for begun := time.Now(); time.Since(begun) < long && !broken(); {
		var evs []waybill.Event
		many, pause := 1+rng.IntN(20), 8*time.Millisecond
		if rng.Float64() < 0.02 { // more than can be in flight
			many, pause = 500, time.Second
		}
		for range many {
			agg := fmt.Sprint("a", rng.IntN(30))
			if rng.Float64() < 0.1 {
				agg = ""
			}
			numbers[agg]++
			ev := waybill.NewEvent("Happened", numbers[agg])
			ev.Topic = fmt.Sprint("d", rng.IntN(3))
			if agg != "" {
				ev.AggregateType, ev.AggregateID = "thing", agg
				ev.Topic = fmt.Sprint("d", int(agg[1]-'0')%3)
			}
			evs = append(evs, ev)
		}
		written += len(evs)
		if err := box.InTx(t.Context(), func(ctx context.Context, tx *memstore.Tx) error { return box.Write(ctx, tx, evs...) }); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Duration(rng.ExpFloat64() * float64(pause)))
	}
	g.mu.Lock()
	g.calm = true
	g.mu.Unlock()
	for deadline := time.Now().Add(time.Minute); !broken(); {
		if _, err := ops.ReplayAll(t.Context(), store.Filter{}, admin.DeadLetterOptions{}); err != nil {
			t.Fatal(err)
		}
		g.mu.Lock()
		all := g.count == written
		g.mu.Unlock()
		if all {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("%d of %d were delivered", g.count, written)
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, b := range g.bad[:min(len(g.bad), 5)] {
		t.Error(b)
	}
	t.Logf("%d events", written)
}

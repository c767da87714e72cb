package inbox_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/memstore"
)

// newInbox returns an inbox over a memory store.
func newInbox(t *testing.T, cfg inbox.Config) (*memstore.Store[*memstore.Tx], *inbox.Inbox[*memstore.Tx]) {
	t.Helper()
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Logger = slog.New(slog.DiscardHandler)
	in, err := inbox.New(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return db, in
}

// runInbox runs an inbox until stop is called.
func runInbox(t *testing.T, in *inbox.Inbox[*memstore.Tx]) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- in.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// pass advances the clock of the test's bubble.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // synctest's time
	synctest.Wait()
}

// TestGroupsAreReported: Run reports the state of every group to the observer,
// whether or not a group stores its events and whether or not Run retries
// failed events: at every RetryInterval, or every 10 s without one.
func TestGroupsAreReported(t *testing.T) {
	for name, c := range map[string]struct {
		retry, every time.Duration
		keep         bool
	}{
		"no group keeps its events":  {every: 10 * time.Second},
		"Run retries no events":      {retry: -1, every: 10 * time.Second, keep: true},
		"one group keeps its events": {retry: 3 * time.Second, every: 3 * time.Second, keep: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var mu sync.Mutex
				var told [][]observe.Group
				var at []time.Duration
				_, in := newInbox(t, inbox.Config{RetryInterval: c.retry, Observe: observe.Hooks{Groups: func(info observe.GroupsInfo) {
					mu.Lock()
					defer mu.Unlock()
					told, at = append(told, info.Groups), append(at, time.Since(began))
				}}})
				in.MustGroup("fine", inbox.Options{StoreEvent: c.keep})
				poor := in.MustGroup("poor", inbox.Options{})
				_, err := poor.Consume(t.Context(), eventfill.Defaults(waybill.NewEvent("Tested", 1)), func(context.Context, *memstore.Tx, waybill.Event) error {
					return waybill.Permanent(errors.New("no good"))
				})
				if !errors.Is(err, waybill.ErrDead) {
					t.Fatal(err)
				}
				stop := runInbox(t, in)
				pass(3*c.every + time.Millisecond)
				stop()
				if want := []time.Duration{c.every, 2 * c.every, 3 * c.every}; !slices.Equal(at, want) {
					t.Errorf("it is told after %v, want %v", at, want)
				}
				for _, groups := range told {
					if len(groups) != 2 || groups[0] != (observe.Group{Group: "fine"}) || groups[1].Group != "poor" || groups[1].Dead != 1 || groups[1].Failed != 0 {
						t.Errorf("it is told %+v", groups)
					}
				}
			})
		})
	}
}

// delays are the delays after the 1st, 2nd, ... failure of a group with default
// options; then the event is dead.
func delays() []time.Duration {
	var out []time.Duration
	for n := range 19 {
		out = append(out, min(time.Second<<n, 5*time.Minute))
	}
	return out
}

// TestFailuresBackOff: the delay after the nth failure is 1 s, 2 s, 4 s, ... 5
// minutes, exactly, on every path of consumption. A delivery before that is
// refused, and the 20th failure is the last.
func TestFailuresBackOff(t *testing.T) {
	for name, way := range map[string]func(g *inbox.Group[*memstore.Tx], ctx context.Context, ev waybill.Event, fail func() error) error{
		"consume": func(g *inbox.Group[*memstore.Tx], ctx context.Context, ev waybill.Event, fail func() error) error {
			_, err := g.Consume(ctx, ev, func(context.Context, *memstore.Tx, waybill.Event) error { return fail() })
			return err
		},
		"batch": func(g *inbox.Group[*memstore.Tx], ctx context.Context, ev waybill.Event, fail func() error) error {
			return g.ConsumeBatch(ctx, []waybill.Event{ev}, func(context.Context, *memstore.Tx, waybill.Event) error { return fail() })[0]
		},
		"leased": func(g *inbox.Group[*memstore.Tx], ctx context.Context, ev waybill.Event, fail func() error) error {
			_, err := g.ConsumeLeased(ctx, ev, func(context.Context, *inbox.Lease[*memstore.Tx]) error { return fail() })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, in := newInbox(t, inbox.Config{})
				g := in.MustGroup("G", inbox.Options{})
				ev := eventfill.Defaults(waybill.NewEvent("Tested", 1))
				calls := 0
				consume := func() error {
					return way(g, t.Context(), ev, func() error {
						calls++
						return errors.New("boom")
					})
				}
				for n, want := range delays() {
					class, delay := waybill.Classify(consume())
					if class != waybill.ClassDefer || delay != want || calls != n+1 {
						t.Fatalf("after failure %d: %v, the delay is %v, %d calls; want %v", n+1, class, delay, calls, want)
					}
					pass(want - time.Millisecond)
					if err := consume(); !errors.Is(err, waybill.ErrNotDue) || calls != n+1 {
						t.Fatalf("a millisecond early: %v, %d calls", err, calls)
					}
					pass(time.Millisecond)
				}
				if err := consume(); !errors.Is(err, waybill.ErrDead) || calls != 20 {
					t.Errorf("the last attempt: %v, %d calls", err, calls)
				}
			})
		})
	}
}

// TestStoredEventsBackOff: Run retries a stored event after the same delays, at
// the next RetryInterval.
func TestStoredEventsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval = 100 * time.Millisecond
		_, in := newInbox(t, inbox.Config{RetryInterval: interval})
		g := in.MustGroup("G", inbox.Options{StoreEvent: true})
		ev := eventfill.Defaults(waybill.NewEvent("Tested", 1))
		var mu sync.Mutex
		var at []time.Time
		fail := func(context.Context, *memstore.Tx, waybill.Event) error {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Now())
			return errors.New("boom")
		}
		g.Handle("", "Tested", fail)
		if _, err := g.Consume(t.Context(), ev, fail); err == nil {
			t.Fatal("the handler does not fail")
		}
		stop := runInbox(t, in)
		pass(2 * time.Hour)
		stop()
		want := delays()
		if len(at) != len(want)+1 {
			t.Fatalf("%d attempts, want %d", len(at), len(want)+1)
		}
		for n, delay := range want {
			if got := at[n+1].Sub(at[n]); got < delay || got > delay+interval {
				t.Errorf("the delay after failure %d is %v, want %v", n+1, got, delay)
			}
		}
		rec, ok, err := g.Find(t.Context(), ev)
		if err != nil || !ok || rec.State != store.InboxDead {
			t.Errorf("in the end: %+v, %v, %v", rec, ok, err)
		}
	})
}

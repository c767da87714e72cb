package relaytest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/drivertest"
)

// RunBehind checks a store whose database clock is about an hour behind this
// process's clock: nothing is delivered before its time by the database's
// clock, neither from memory, before and after the first page of rows, nor
// scheduled, nor retried.
func RunBehind[T any](t *testing.T, h drivertest.Harness[T]) {
	t.Helper()
	t.Run("from_memory", func(t *testing.T) { behindFromMemory(newBehind(t, h)) })
	t.Run("scheduled_and_retried", func(t *testing.T) { behindDue(newBehind(t, h)) })
	t.Run("after_a_take_over", func(t *testing.T) { behindTakeOver(newBehind(t, h)) })
}

// newBehind returns an env, and fails if the database's clock is not behind:
// then the test shows nothing.
func newBehind[T any](t *testing.T, h drivertest.Harness[T]) *env[T] {
	t.Helper()
	b := newEnv(t, h)
	if off := time.Until(b.dbNow()); off > -50*time.Minute || off < -70*time.Minute {
		t.Fatalf("the database's clock is off by %v, not by an hour", off)
	}
	return b
}

// dbNow returns the time by the database's clock.
func (b *env[T]) dbNow() time.Time {
	b.Helper()
	p, err := b.DB.Relay.Fetch(context.WithoutCancel(b.Context()), nil, 0)
	if err != nil {
		b.Fatal(err)
	}
	return p.Now
}

// shut is a store that returns no page of rows before it is opened.
type shut struct {
	driver.Relay
	open chan struct{}
}

func (s *shut) wait(ctx context.Context) error {
	select {
	case <-s.open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *shut) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	if err := s.wait(ctx); err != nil {
		return driver.Page{}, err
	}
	return s.Relay.Fetch(ctx, from, limit)
}

func (s *shut) Due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	if err := s.wait(ctx); err != nil {
		return driver.Page{}, err
	}
	return s.Relay.Due(ctx, lanes, limit)
}

// inHalfAnHour returns events that are due in half an hour by the database's
// clock, and half an hour ago by this process's clock.
func (b *env[T]) inHalfAnHour(n int) []waybill.Event {
	evs := make([]waybill.Event, n)
	for i := range evs {
		evs[i] = event("", i)
		if i%2 == 1 {
			evs[i] = event("a", i)
		}
		evs[i].AvailableAt = b.dbNow().Add(30 * time.Minute)
	}
	return evs
}

// behindFromMemory: the relay is notified of commits before it has read a page,
// and so before it knows the database's clock; then it is notified of more
// commits when it knows the clock.
func behindFromMemory[T any](b *env[T]) {
	const some = 20
	rec := &recorder{}
	var notified atomic.Int64
	cfg := b.quick()
	cfg.Observe = observe.Hooks{
		HotDropped:  func(info observe.HotDroppedInfo) { notified.Add(int64(info.Events)) },
		HotEnqueued: func(info observe.HotEnqueuedInfo) { notified.Add(int64(info.Events)) },
	}
	db := &shut{Relay: b.DB.Relay, open: make(chan struct{})}
	b.startOn(db, rec.sink(), cfg)
	b.await("the relay owns all lanes", func() bool {
		s := b.stats()
		return len(s.Lanes) > 0 && !slices.ContainsFunc(s.Lanes, func(l store.LaneState) bool { return !l.Live })
	})
	b.write(b.inHalfAnHour(some)...)
	b.await("the relay was notified of the commit", func() bool { return int(notified.Load())+rec.count() >= some })
	if n := rec.count(); n > 0 {
		b.Errorf("%d of %d events that are due in half an hour were delivered before the first page of rows", n, some)
	}
	close(db.open)
	mark := event("", 0)
	b.write(mark)
	b.await("an event is delivered", func() bool { return len(rec.of(mark.ID)) == 1 })
	for range some { // the relay knows the clock now
		b.write(b.inHalfAnHour(2)...)
	}
	last := event("", 1)
	b.write(last)
	b.await("the last event is delivered", func() bool { return len(rec.of(last.ID)) == 1 })
	if n := rec.count(); n != 2 {
		b.Errorf("%d events were delivered, want the 2 without a time", n)
	}
	if s := b.stats(); s.Scheduled != 3*some {
		b.Errorf("%d events are scheduled, want %d", s.Scheduled, 3*some)
	}
}

// behindDue: scheduled and failed events are delivered when they are due by the
// database's clock, and not before.
func behindDue[T any](b *env[T]) {
	const wait = time.Second
	var mu sync.Mutex
	early, attempts := 0, make(map[waybill.ID]int)
	sink := relay.SinkFunc(func(ctx context.Context, d waybill.Delivery) error {
		now := b.dbNow()
		records, err := b.DB.OutboxAdmin.Find(ctx, d.ID)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		attempts[d.ID]++
		for _, r := range records {
			if r.State == store.Delayed && r.DueAt.After(now) {
				early++
			}
		}
		if attempts[d.ID] == 1 && d.Headers["fails"] == "once" {
			return waybill.RetryAfter(wait, errors.New("not yet"))
		}
		return nil
	})
	b.start(sink, b.quick())
	var evs []waybill.Event
	for _, aggregate := range []string{"", "a", "b"} {
		delayed, at, fails := event(aggregate, 1), event(aggregate, 2), event(aggregate, 3)
		delayed.Delay = wait
		at.AvailableAt = b.dbNow().Add(wait)
		fails.Headers = map[string]string{"fails": "once"}
		evs = append(evs, delayed, at, fails)
	}
	b.write(evs...)
	b.awaitEmpty()
	mu.Lock()
	defer mu.Unlock()
	if early > 0 {
		b.Errorf("%d deliveries were early by the database's clock", early)
	}
	for i, ev := range evs {
		want := 1
		if ev.Headers != nil {
			want = 2
		}
		if attempts[ev.ID] != want {
			b.Errorf("event %d was delivered %d times, want %d", i, attempts[ev.ID], want)
		}
	}
}

// behindTakeOver: a node that takes over the lanes does not deliver events that
// are not due.
func behindTakeOver[T any](b *env[T]) {
	rec := &recorder{}
	b.write(b.inHalfAnHour(20)...)
	for range 2 {
		r := b.start(rec.sink(), b.quick())
		n, mark := rec.count(), event("a", 0)
		b.write(mark)
		b.await("an event is delivered", func() bool { return len(rec.of(mark.ID)) == 1 })
		if rec.count() != n+1 {
			b.Errorf("%d events were delivered, want the one without a time", rec.count()-n)
		}
		if err := r.stop(); err != nil {
			b.Error(err)
		}
	}
}

package ledger

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// TestGrace: only an event without a handler is deferred for a while, in steps
// of at most five seconds, until the grace period since its writing has ended.
// Every other permanent error makes a dead letter at once.
func TestGrace(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	unknown := fmt.Errorf("mux: %w", waybill.ErrNoHandler)
	for _, c := range []struct {
		what       string
		grace, age time.Duration
		err        error
		want       waybill.Class
		delay      time.Duration
	}{
		{"no handler", time.Minute, 10 * time.Second, unknown, waybill.ClassDefer, 5 * time.Second},
		{"no handler, soon over", time.Minute, 57 * time.Second, unknown, waybill.ClassDefer, 3 * time.Second},
		{"no handler, just over", time.Minute, time.Minute, unknown, waybill.ClassPermanent, 0},
		{"no handler, no grace", 0, 0, unknown, waybill.ClassPermanent, 0},
		{"permanent", time.Minute, 0, waybill.Permanent(errors.New("rejected")), waybill.ClassPermanent, 0},
		{"used up elsewhere", time.Minute, 0, waybill.ErrDead, waybill.ClassPermanent, 0},
		{"a failure", time.Minute, 0, errors.New("boom"), waybill.ClassRetry, time.Hour},
	} {
		g := New(Config{BatchSize: 10, ColdQueue: 10, MaxAttempts: 3, UnknownGrace: c.grace, Backoff: func(int) time.Duration { return time.Hour }})
		g.LaneAcquired(driver.Lease{Lane: 1}, nil, now)
		l := g.lanes.at(1)
		l.open = true
		g.dbClock.set(now, now)
		g.take(l, &store.Row{Key: store.Key{Lane: 1, Seq: 1, ID: waybill.NewID()}, CreatedAt: now.Add(-c.age)}, now)
		it := g.NextBatch(nil, 1, now)[0]
		d := it.Delivery()
		if v := g.DeliveryEnded(it, &d, c.err, now); v.Class != c.want {
			t.Errorf("%s: the event is %v, want %v", c.what, v.Class, c.want)
		}
		s, ok := g.NextSettlement(now.Add(time.Second))
		var delays []time.Duration
		for _, r := range s.Retry {
			delays = append(delays, r.Delay)
		}
		if want := c.want != waybill.ClassPermanent; !ok || len(s.Dead) > 0 == want || want && !slices.Equal(delays, []time.Duration{c.delay}) {
			t.Errorf("%s: settled with %d dead letters and the delays %v, want %v", c.what, len(s.Dead), delays, c.delay)
		}
	}
}

// TestReasonOfACrash: the error of an event whose last attempt ended with its
// process keeps the error of the attempt before.
func TestReasonOfACrash(t *testing.T) {
	for before, want := range map[string]string{"": errCrashed.Error(), "refused": "refused; " + errCrashed.Error()} {
		if got := crashReason(&Item{row: &store.Row{LastError: before}}).Error(); got != want {
			t.Errorf("the error is %q, want %q", got, want)
		}
	}
}

// TestOldestAge: the age of the oldest event that is not settled counts, by the
// database's clock. It is 0 while that clock is not known, and never negative.
func TestOldestAge(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	g := New(Config{ColdQueue: 10})
	g.LaneAcquired(driver.Lease{Lane: 1}, nil, now)
	l := g.lanes.at(1)
	add := func(written time.Time) *Item {
		return g.add(l, &store.Row{Key: store.Key{Lane: 1, ID: waybill.NewID()}, CreatedAt: written}, false)
	}
	add(time.Time{}) // not known
	add(now.Add(time.Hour))
	old := now.Add(-24 * time.Hour)
	if got := g.OldestAge(now); got != 0 {
		t.Errorf("before the database's clock is known the oldest event is %v old", got)
	}
	g.dbClock.set(now.Add(time.Minute), now)
	if got := g.OldestAge(now); got != 0 {
		t.Errorf("the oldest event is %v old, want 0: one is of the future", got)
	}
	add(now)
	third := add(now.Add(-time.Minute))
	add(now.Add(-time.Second))
	if got := g.OldestAge(now.Add(time.Second)); got != 2*time.Minute+time.Second {
		t.Errorf("the oldest event is %v old, want 2m1s", got)
	}
	third.state = settled
	add(old).state = settled
	if got := g.OldestAge(now); got != time.Minute+time.Second {
		t.Errorf("without settled events the oldest one is %v old, want 1m1s", got)
	}
}

// TestWindow: the lanes share the memory, and each has room for 128 events.
// Another 64 with a priority find room besides.
func TestWindow(t *testing.T) {
	for _, c := range []struct{ cold, batch, lanes, want int }{
		{2000, 500, 1, 2500}, {2000, 500, 10, 250}, {2000, 500, 19, 131}, {2000, 500, 20, 128}, {2000, 500, 32, 128}, {100, 10, 0, 128}, {1000, 0, 0, 1000},
	} {
		g := New(Config{ColdQueue: c.cold, BatchSize: c.batch})
		if g.SetLaneCount(c.lanes); g.Window() != c.want+64 {
			t.Errorf("%+v: the window is %d", c, g.Window())
		}
	}
}

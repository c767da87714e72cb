package admin_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// rowsOf returns the ids of a destination's backlog, in order.
func (g *ground) rowsOf(name string) []waybill.ID {
	g.t.Helper()
	there, err := g.ops.Outbox(g.t.Context(), name)
	g.must(err)
	page, err := there.List(g.t.Context(), store.Ready, store.Filter{}, 0, 1000)
	g.must(err)
	var ids []waybill.ID
	for _, r := range page.Records {
		if r.Replay != 1 || r.Attempts != 0 {
			g.t.Errorf("a replayed event has %d attempts and the replay number %d", r.Attempts, r.Replay)
		}
		ids = append(ids, r.ID)
	}
	return ids
}

// TestReplayOfTheHistory copies the events of a period in batches, once.
func TestReplayOfTheHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t, admin.Config{BatchSize: 4}, "billing", "shipping")
		ctx := t.Context()
		var ids []waybill.ID
		var times []time.Time
		for range 3 {
			times = append(times, time.Now())
			ids = append(ids, g.write("17", 5)...)
			g.settled(true, nil)
			pass(time.Hour)
		}
		q := driver.HistoryQuery{Since: times[1]}
		if n, err := g.ops.CountHistory(ctx, "billing", q); err != nil || n != 10 {
			t.Fatalf("CountHistory: %d, %v", n, err)
		}
		var steps []int64
		before := g.waked
		r, err := g.ops.Replay(ctx, "billing", q, admin.ReplayOptions{Progress: func(p admin.HistoryReplay) { steps = append(steps, p.Replayed) }})
		if err != nil || r.Matched != 10 || r.Replayed != 10 || r.More || !r.Until.Equal(time.Now()) {
			t.Errorf("%+v, %v", r, err)
		}
		if !slices.Equal(steps, []int64{4, 8, 10}) || g.waked-before != 3 {
			t.Errorf("progress %v, %d wake-ups", steps, g.waked-before)
		}
		if got := g.rowsOf("billing"); !slices.Equal(got, ids[5:]) {
			t.Errorf("the backlog has %v, want %v", got, ids[5:])
		}
		if got := g.rowsOf("shipping"); got != nil {
			t.Errorf("another destination has %v", got)
		}
		// What is there already is not copied again.
		r, err = g.ops.Replay(ctx, "billing", driver.HistoryQuery{Until: times[2]}, admin.ReplayOptions{})
		if err != nil || r.Matched != 10 || r.Replayed != 5 || !r.Until.Equal(times[2]) {
			t.Errorf("%+v, %v", r, err)
		}
		if got := g.rowsOf("billing"); !slices.Equal(got, ids) {
			t.Errorf("the backlog has %v, want %v", got, ids)
		}
	})
}

// TestReplayEnds: replayed events that are delivered meanwhile have a new
// delivery time, and do not match again.
func TestReplayEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t, admin.Config{BatchSize: 2}, "billing")
		g.write("", 6)
		g.settled(true, nil)
		pass(time.Hour)
		r, err := g.ops.Replay(t.Context(), "billing", driver.HistoryQuery{}, admin.ReplayOptions{Progress: func(p admin.HistoryReplay) {
			if p.Replayed > 6 {
				t.Fatal("the replay does not end")
			}
			pass(time.Second)
			g.settled(true, func(_ store.Destination, row store.Row, s *driver.Settlement) {
				s.Done = append(s.Done, result(row, 0, ""))
			})
		}})
		if err != nil || r.Replayed != 6 {
			t.Errorf("%+v, %v", r, err)
		}
		if got := g.rowsOf("billing"); got != nil {
			t.Errorf("the backlog still has %v", got)
		}
	})
}

// TestReplayLimit counts copied events, and another replay continues.
func TestReplayLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t, admin.Config{BatchSize: 3}, "billing")
		first := g.write("", 2)
		g.settled(true, nil, "billing") // they are in the backlog
		pass(time.Hour)
		rest := g.write("", 7)
		g.settled(true, nil)
		pass(time.Hour)
		o := admin.ReplayOptions{Limit: 4}
		r, err := g.ops.Replay(t.Context(), "billing", driver.HistoryQuery{}, o)
		if err != nil || r.Replayed != 4 || r.Matched != 6 || !r.More {
			t.Fatalf("%+v, %v", r, err)
		}
		o.After = r.Next
		pass(time.Hour)
		r, err = g.ops.Replay(t.Context(), "billing", driver.HistoryQuery{Until: r.Until}, o)
		if err != nil || r.Replayed != 3 || r.Matched != 3 || r.More {
			t.Fatalf("%+v, %v", r, err)
		}
		there, err := g.ops.Outbox(t.Context(), "billing")
		g.must(err)
		if n, err := there.Count(t.Context(), store.Ready, store.Filter{}); err != nil || n != int64(len(first)+len(rest)) {
			t.Errorf("the backlog has %d rows, %v", n, err)
		}
	})
}

// TestReplayRate: the rate limits also the first second, and the end of the
// context ends the wait.
func TestReplayRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t, admin.Config{}, "billing", "slow", "stopped")
		g.write("", 10)
		g.settled(true, nil)
		pass(time.Hour)
		began := time.Now()
		o := admin.ReplayOptions{Rate: 2.5, Progress: func(p admin.HistoryReplay) {
			if most := 3 + 2.5*time.Since(began).Seconds(); float64(p.Replayed) > most {
				t.Errorf("%d events after %v", p.Replayed, time.Since(began))
			}
		}}
		r, err := g.ops.Replay(t.Context(), "billing", driver.HistoryQuery{}, o)
		if took := time.Since(began); err != nil || r.Replayed != 10 || took < 3*time.Second || took > 4*time.Second {
			t.Errorf("%+v after %v, %v", r, took, err)
		}
		began = time.Now()
		r, err = g.ops.Replay(t.Context(), "slow", driver.HistoryQuery{}, admin.ReplayOptions{Rate: 0.1, Limit: 3})
		if took := time.Since(began); err != nil || r.Replayed != 3 || took != 20*time.Second {
			t.Errorf("%+v after %v, %v", r, took, err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 90*time.Second, errAway)
		defer cancel()
		began = time.Now()
		r, err = g.ops.Replay(ctx, "stopped", driver.HistoryQuery{}, admin.ReplayOptions{Rate: 1e-12})
		if !errors.Is(err, errAway) || !strings.Contains(err.Error(), "stopped after 1 replayed events") || r.Replayed != 1 || time.Since(began) != 90*time.Second {
			t.Errorf("%+v after %v, %v", r, time.Since(began), err)
		}
	})
}

// pass lets synctest's time pass.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // synctest's time
}

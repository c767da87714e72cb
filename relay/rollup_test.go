package relay_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// wantRollups asserts the sums of the roll-ups, in the form "destination type
// delivered failed dead".
func (f *fixture) wantRollups(when string, want ...string) {
	f.Helper()
	all, err := f.db.Driver().Rollups.ListRollups(f.Context(), driver.RollupFilter{ByType: true, Step: 24 * time.Hour})
	if err != nil {
		f.Fatal(err)
	}
	var got []string
	for _, r := range all {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %d %d %d", r.Destination, r.Type, r.Delivered, r.Failed, r.Dead)))
	}
	if !slices.Equal(got, want) {
		f.Errorf("%s, the roll-ups are %q, want %q", when, got, want)
	}
}

// stopped stops a relay.
func (f *fixture) stopped(stop func() error) {
	f.Helper()
	if err := stop(); err != nil {
		f.Error(err)
	}
}

// eventsOf returns events of a type, each of its own aggregate.
func eventsOf(kind string, n int) []waybill.Event {
	evs := make([]waybill.Event, n)
	for i := range evs {
		evs[i] = event(fmt.Sprint(kind, i), i)
		evs[i].Type = kind
	}
	return evs
}

// TestRollups: heartbeats bring what was delivered, has failed, and is dead, at
// each destination; the report of the node has the last minute. What is
// delivered after the last heartbeat is brought before the node leaves.
func TestRollups(t *testing.T) {
	inBubble(t, func(f *fixture) {
		good, bad := &place{}, &place{}
		bad.say(func(_ context.Context, d waybill.Delivery) error {
			if d.Type == "A" {
				return errors.New("boom")
			}
			return nil
		})
		stop := f.startTo(relay.Config{BackoffBase: time.Second, BackoffMax: time.Second},
			relay.Destination{Name: "good", Sink: good}, relay.Destination{Name: "bad", Sink: bad, MaxAttempts: 3})
		pass(time.Second)
		f.write(slices.Concat(eventsOf("A", 3), eventsOf("B", 4))...)
		pass(time.Second)
		f.wantRollups("before the next heartbeat")
		pass(20 * time.Second)
		want := []string{"bad A 0 6 3", "bad B 4 0 0", "good A 3 0 0", "good B 4 0 0"}
		f.wantRollups("after some heartbeats", want...)
		if got := f.report().LastMinute; got == nil || *got != (driver.RollupCounts{Delivered: 11, Failed: 6, Dead: 3}) {
			t.Errorf("the report has %+v for the last minute", got)
		}
		pass(90 * time.Second)
		f.wantRollups("later", want...)
		if got := f.report().LastMinute; got == nil || *got != (driver.RollupCounts{}) {
			t.Errorf("the report has %+v for a minute without results", got)
		}
		f.write(eventsOf("B", 2)...)
		pass(100 * time.Millisecond)
		stop()
		f.wantRollups("after the stop", "bad A 0 6 3", "bad B 6 0 0", "good A 3 0 0", "good B 6 0 0")
	})
}

// TestRollupsOfOneSink: the destination of a relay with one sink has no name,
// and an unavailable sink fails.
func TestRollupsOfOneSink(t *testing.T) {
	inBubble(t, func(f *fixture) {
		var up atomic.Bool
		stop := f.start(sinkFunc(func(context.Context, waybill.Delivery) error {
			if !up.Load() {
				return waybill.Unavailable(errors.New("no broker"))
			}
			return nil
		}), relay.Config{BackoffBase: time.Second, BackoffMax: time.Second})
		f.write(eventsOf("A", 1)...)
		pass(500 * time.Millisecond)
		up.Store(true)
		pass(5 * time.Second)
		f.stopped(stop)
		f.wantRollups("in the end", "A 1 1 0")
	})
}

// sinkFunc is a sink that answers for one event at a time.
type sinkFunc func(ctx context.Context, d waybill.Delivery) error

func (s sinkFunc) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	errs := make([]error, len(batch))
	for i := range batch {
		errs[i] = s(ctx, batch[i])
	}
	return errs
}

// unsteady is a store whose heartbeats are lost, or whose answers are.
type unsteady struct {
	driver.Relay
	lost, silent atomic.Bool
	brought      atomic.Int64
}

func (u *unsteady) Heartbeat(ctx context.Context, n store.Node, lease time.Duration) (store.Membership, error) {
	if u.lost.Load() {
		return store.Membership{}, errors.New("no connection")
	}
	if n.Rollup != "" {
		u.brought.Add(1)
	}
	m, err := u.Relay.Heartbeat(ctx, n, lease)
	if err == nil && u.silent.Load() {
		err = errors.New("no answer")
	}
	return m, err
}

// TestLostHeartbeatsLoseNoCounts: a heartbeat that is lost, or whose answer is
// lost, leaves each result in the roll-ups once; counts that the tables have
// are not sent again.
func TestLostHeartbeatsLoseNoCounts(t *testing.T) {
	inBubble(t, func(f *fixture) {
		db := &unsteady{Relay: f.db.Driver().Relay}
		f.startOn(db, sinkFunc(func(context.Context, waybill.Delivery) error { return nil }), relay.Config{Lease: time.Hour, Heartbeat: 5 * time.Second})
		pass(time.Second)
		for i, fault := range []*atomic.Bool{&db.lost, &db.silent, &db.lost} {
			fault.Store(true)
			f.write(eventsOf("A", 10)...)
			pass(70 * time.Second)
			f.write(eventsOf("A", 10)...)
			pass(7 * time.Second)
			fault.Store(false)
			pass(7 * time.Second)
			f.wantRollups(fmt.Sprintf("after fault %d", i), fmt.Sprintf("A %d 0 0", 20*(i+1)))
		}
		before := db.brought.Load()
		pass(time.Minute)
		if n := db.brought.Load() - before; n != 0 {
			t.Errorf("%d heartbeats brought counts that the tables had", n)
		}
	})
}

// TestRollupsOfManyTypes: a node counts 20 types in a minute, and the others
// together.
func TestRollupsOfManyTypes(t *testing.T) {
	inBubble(t, func(f *fixture) {
		stop := f.start(sinkFunc(func(context.Context, waybill.Delivery) error { return nil }), relay.Config{})
		pass(time.Second)
		for i := range 30 {
			f.write(eventsOf(fmt.Sprintf("T%02d", i), 2)...)
			pass(10 * time.Millisecond)
		}
		f.stopped(stop)
		all, err := f.db.Driver().Rollups.ListRollups(f.Context(), driver.RollupFilter{ByType: true})
		if err != nil || len(all) != 21 || all[0].Type != "" || all[0].Delivered != 20 {
			t.Errorf("the roll-ups are %+v, %v; want 20 types, and 20 deliveries of others", all, err)
		}
	})
}

// TestRollupsOfTextsThatAreNoTypes: types that producers without this library
// have stored, and that the tables cannot tell apart, are one row.
func TestRollupsOfTextsThatAreNoTypes(t *testing.T) {
	inBubble(t, func(f *fixture) {
		long := strings.Repeat("x", 128)
		kinds := map[string]string{"odd0": long + "a", "odd1": long + "b", "odd2": "a\x00", "odd3": "a\xff"}
		stop := f.startOn(&renaming{Relay: f.db.Driver().Relay, kinds: kinds}, sinkFunc(func(context.Context, waybill.Delivery) error { return nil }), relay.Config{})
		pass(time.Second)
		for i := range len(kinds) {
			f.write(eventsOf(fmt.Sprint("odd", i), 1)...)
			pass(3 * time.Second)
		}
		f.stopped(stop)
		f.wantRollups("in the end", "a? 2 0 0", long+" 2 0 0")
	})
}

// renaming is a store whose rows have other types.
type renaming struct {
	driver.Relay
	kinds map[string]string
}

func (r *renaming) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	page, err := r.Relay.Fetch(ctx, from, limit)
	for i := range page.Rows {
		ev := &page.Rows[i].Event
		ev.Type = cmp.Or(r.kinds[ev.Type], ev.Type)
	}
	return page, err
}

// TestRollupsByMinute: counts are in the minute of the delivery. Nodes that
// send heartbeats more often bring them every five seconds.
func TestRollupsByMinute(t *testing.T) {
	inBubble(t, func(f *fixture) {
		db := &unsteady{Relay: f.db.Driver().Relay}
		f.startOn(db, sinkFunc(func(context.Context, waybill.Delivery) error { return nil }), relay.Config{Heartbeat: 500 * time.Millisecond})
		begin := time.Now().Truncate(time.Minute)
		pass(time.Second)
		for range 120 {
			f.write(eventsOf("A", 1)...)
			pass(time.Second)
		}
		pass(10 * time.Second)
		all, err := f.db.Driver().Rollups.ListRollups(f.Context(), driver.RollupFilter{})
		if err != nil || len(all) != 3 || !all[0].At.Equal(begin) || !all[2].At.Equal(begin.Add(2*time.Minute)) || all[1].Delivered != 60 {
			t.Errorf("the roll-ups are %+v, %v; want those of three minutes since %v", all, err, begin)
		}
		if n := db.brought.Load(); n < 20 || n > 28 {
			t.Errorf("%d heartbeats brought counts in 130 s, want one every 5 s", n)
		}
	})
}

// TestRollupsAreMergedAndPurged: a relay merges minutes that are older than a
// day into hours, and deletes counts after 14 days.
func TestRollupsAreMergedAndPurged(t *testing.T) {
	inBubble(t, func(f *fixture) {
		now := time.Now()
		var rows []driver.RollupRow
		for _, age := range []time.Duration{23 * time.Hour, 26*time.Hour + time.Minute, 26*time.Hour + 2*time.Minute, 13 * 24 * time.Hour, 15 * 24 * time.Hour} {
			rows = append(rows, driver.RollupRow{Minute: driver.MinuteOf(now.Add(-age)), Source: waybill.NewID(), Type: "A", RollupCounts: driver.RollupCounts{Delivered: 1}})
		}
		relayOf := f.db.Driver().Relay
		if _, err := relayOf.Heartbeat(f.Context(), store.Node{ID: waybill.NewID(), Relay: "r", Rollup: driver.EncodeRollup(rows)}, time.Second); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Second)
		f.start(sinkFunc(func(context.Context, waybill.Delivery) error { return nil }), relay.Config{Name: "r", PurgeBatchSize: 1})
		pass(20 * time.Second)
		all, err := f.db.Driver().Rollups.ListRollups(f.Context(), driver.RollupFilter{})
		var got []string
		for _, r := range all {
			got = append(got, fmt.Sprint(now.Sub(r.At).Round(time.Hour), " ", r.At.Minute(), " ", r.Delivered))
		}
		if err != nil || len(all) != 3 || all[0].At.Minute() != 0 || all[1].At.Minute() != 0 || all[1].Delivered != 2 || all[2].Delivered != 1 {
			t.Errorf("the roll-ups are %q, %v", got, err)
		}
	})
}

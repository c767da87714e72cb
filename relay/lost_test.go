package relay_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestReplayBehindALostAnswer: the answer to the settlement that makes an event
// a dead letter is lost. An operator replays the event before the settlement is
// repeated. The repeated settlement does not undo the replay.
func TestReplayBehindALostAnswer(t *testing.T) {
	for _, aggregate := range []string{"a", ""} {
		f := newFixture(t)
		ev := event(aggregate, 1)
		ev.ID = waybill.NewID()
		var lost atomic.Bool
		db := &scripted{Relay: f.db.Driver().Relay, settle: func(s driver.Settlement, next func() (driver.Settled, error)) (driver.Settled, error) {
			out, err := next()
			if err == nil && len(s.Dead) > 0 && !lost.Swap(true) {
				if replayed, err := f.db.Driver().OutboxAdmin.Replay(t.Context(), []waybill.ID{ev.ID}); err != nil || len(replayed.IDs) != 1 {
					t.Errorf("replay: %+v, %v", replayed, err)
				}
				return driver.Settled{}, errors.New("the answer was lost")
			}
			return out, err
		}}
		c := &collector{fail: func(d waybill.Delivery) error {
			if d.Replay == 0 {
				return waybill.Permanent(errors.New("no"))
			}
			return nil
		}}
		f.startOn(db, c.sink(), relay.Config{})
		f.write(ev)
		await(t, "the replayed event is delivered", func() bool { return f.stateOf(ev.ID) == store.Delivered })
	}
}

// TestResultsOfALostLane: a lane is lost while an event is with a destination,
// and acquired again. The result of that call, which ends later, changes
// nothing in the new ownership: another destination, which is behind, does not
// become direct before the event is copied to its backlog.
func TestResultsOfALostLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLostLane(t)
		behind := &place{}
		behind.down()
		l.start(relay.Destination{Name: "holds", Sink: l.holds, DivertAfter: -1}, relay.Destination{Name: "behind", Sink: behind})
		l.f.write(event("other", 0))
		pass(time.Second)
		l.f.write(event("x", 1))
		first := <-l.calls
		l.lose()
		second := <-l.calls
		first <- errors.New("canceled")
		behind.say(nil)
		pass(20 * time.Second)
		if got := behind.accepted(); !slices.Equal(got, []string{"0"}) {
			t.Fatalf("the destination that was behind has %v", got)
		}
		l.f.write(event("x", 2))
		pass(time.Second)
		l.slow.Store(true)
		second <- nil
		pass(20 * time.Second)
		if got := behind.accepted(); !slices.Equal(got, []string{"0", "1", "2"}) {
			t.Errorf("the destination that was behind has %v, want 0, 1, 2", got)
		}
	})
}

// TestSlowCallOfALostLane: a destination keeps an event beyond its patience,
// and the relay has lost the event's lane and acquired it again meanwhile. The
// new ownership does not wait for a copy that the former one would have made.
func TestSlowCallOfALostLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLostLane(t)
		other := &place{}
		l.start(relay.Destination{Name: "holds", Sink: l.holds, DivertAfter: 10 * time.Second}, relay.Destination{Name: "other", Sink: other})
		l.f.write(event("x", 1))
		first := <-l.calls
		l.lose()
		(<-l.calls) <- nil
		pass(20 * time.Second)
		first <- errors.New("canceled")
		l.f.write(event("x", 2))
		pass(20 * time.Second)
		if pending, _ := l.f.pending("holds"); pending != 0 || !slices.Equal(l.holds.accepted(), numbers(2)) {
			t.Errorf("the slow destination has %v, and %d events wait", l.holds.accepted(), pending)
		}
	})
}

// lostLane is a relay that loses its lane and acquires it again.
type lostLane struct {
	f     *fixture
	holds *place          // keeps event 1 until it is answered
	calls chan chan error // one for each delivery of event 1
	away  atomic.Bool     // the database, for heartbeats
	slow  atomic.Bool     // settlements
}

func newLostLane(t *testing.T) *lostLane {
	t.Helper()
	l := &lostLane{f: newFixtureOf(t, memstore.Config{Lanes: 1}), holds: &place{}, calls: make(chan chan error, 9)}
	l.holds.say(func(_ context.Context, d waybill.Delivery) error {
		if string(d.Payload) != "1" {
			return nil
		}
		answer := make(chan error)
		l.calls <- answer
		return <-answer
	})
	return l
}

func (l *lostLane) start(destinations ...relay.Destination) {
	l.f.Helper()
	roles := l.f.db.Driver()
	roles.Relay = &scripted{
		Relay: roles.Relay,
		heartbeat: func(next func() (store.Membership, error)) (store.Membership, error) {
			if l.away.Load() {
				return store.Membership{}, errors.New("the database is away")
			}
			return next()
		},
		settle: func(_ driver.Settlement, next func() (driver.Settled, error)) (driver.Settled, error) {
			if l.slow.Load() {
				pass(time.Second)
			}
			return next()
		},
	}
	l.f.startDestinationsOn(roles, relay.Config{Lease: 3 * time.Second, Heartbeat: time.Second, BackoffMax: time.Second}, destinations...)
}

// lose has the relay lose its lane. It acquires the lane again.
func (l *lostLane) lose() {
	l.away.Store(true)
	pass(5 * time.Second)
	l.away.Store(false)
}

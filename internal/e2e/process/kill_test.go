//go:build linux || darwin

package process_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/waybillhq/waybill/internal/e2e/process/journal"
	"github.com/waybillhq/waybill/store"
)

// window is the maximum number of events of a lane that a relay has in flight,
// with the default config and few lanes.
const window = 500

// TestKilled: when an owner is killed with deliveries in flight, another node
// delivers every event after the lease ends. No event is lost, first deliveries
// are in order, and no more events are delivered twice than the dead node may
// have had in flight.
func TestKilled(t *testing.T) {
	everywhere(t, func(b *env) {
		const aggregates, each = 30, 6
		script := map[string]act{}
		var names []string
		for i := range aggregates {
			agg := fmt.Sprint("a", i)
			script[agg+"/3"] = act{Gate: "never"}
			names = append(names, series(agg, each)...)
		}
		unordered := series("", 20)
		names = append(names, unordered...)
		a := b.start(spec{Name: "A", Script: script})
		b.await("A has all lanes", func() bool {
			return !slices.ContainsFunc(b.stats().Lanes, func(l store.LaneState) bool { return !l.Live })
		})
		b.start(spec{Name: "B", Script: script})
		b.awaitNodes(2)
		b.add(names...)
		// Four workers each; on SQLite there is one lane, and B has none.
		b.await("A has as many in flight as it can", func() bool {
			return b.count(journal.Begin, "A", "")-b.count(journal.OK, "A", "") == 4
		})
		a.Kill()
		b.open("never")
		b.awaitEmpty()
		b.wantDelivered(names...)
		b.wantOrder()
		b.wantEpochs()
		twice := b.count(journal.OK, "", "") - len(names)
		b.Logf("%d events, %d delivered twice", len(names), twice)
		if twice > window*lanes {
			b.Errorf("%d were delivered twice, and A can have had %d in flight", twice, window*lanes)
		}
		for _, r := range b.journal() {
			// Events that A may have had in flight are delivered with their
			// attempt counted beforehand, and are not counted twice.
			if r.Attempt != 1 {
				b.Errorf("the kill was counted: %s", r)
			}
		}
	})
}

// TestKillerInAnAggregate: an event that kills its process is dead after as
// many restarts as it has attempts; all others are delivered.
func TestKillerInAnAggregate(t *testing.T) {
	everywhere(t, func(b *env) { killer(b, "a/2") })
}

// TestKillerUnordered is the same with an unordered event.
func TestKillerUnordered(t *testing.T) {
	everywhere(t, func(b *env) { killer(b, "/2") })
}

func killer(b *env, name string) {
	const attempts = 3
	names := slices.Concat(series("a", 5), series("", 5), series("b", 3), series("c", 3), series("d", 3))
	b.add(names...)
	restarts := 0
	for n := (*node)(nil); ; {
		if n == nil || !n.Alive() {
			if restarts++; restarts > attempts+2 {
				b.Fatalf("the event %s kills its process forever: %d attempts", name, b.find(name).Attempts)
			}
			n = b.start(spec{Name: fmt.Sprint("R", restarts), MaxAttempts: attempts, Script: map[string]act{name: {Kill: true}}})
		}
		b.await("all is done, or the process is dead", func() bool {
			s := b.stats()
			return !n.Alive() || s.Ready+s.Failed+s.Scheduled == 0
		})
		if n.Alive() {
			break
		}
	}
	if r := b.find(name); r.State != store.Dead || r.Attempts != attempts {
		b.Errorf("the killer is %s after %d attempts, want it dead after %d", r.State, r.Attempts, attempts)
	}
	// The first kill is not counted; from then on the attempt is counted
	// beforehand.
	if n := b.count(journal.Kill, "", ""); n != attempts+1 {
		b.Errorf("%d processes were killed, want %d", n, attempts+1)
	}
	others := slices.DeleteFunc(names, func(n string) bool { return n == name })
	b.wantDelivered(others...)
	b.wantOrder(name)
	b.wantEpochs()
	if s := b.stats(); s.Dead != 1 {
		b.Errorf("%d dead letters, want the killer alone", s.Dead)
	}
}

// TestKillerAmongMany: one of 500 events in flight kills every process. That
// event is dead after as many processes as it has attempts. All others are
// delivered, and each of them is counted together with the killer once at the
// most.
func TestKillerAmongMany(t *testing.T) {
	onEach(t, func(t *testing.T, p place) {
		b := newEnv(t, p.oneLane())
		names := series("", 500)
		killer := names[200]
		b.add(names...)
		b.killedBy(killer, spec{Batch: true})
		b.start(spec{Name: "last"})
		b.awaitEmpty()
		if s := b.stats(); s.Dead != 1 {
			b.Errorf("%d dead letters, want the killer alone", s.Dead)
		}
		b.wantDelivered(slices.DeleteFunc(names, func(n string) bool { return n == killer })...)
		for _, r := range b.journal() {
			if name := r.Aggregate + "/" + r.Number; name != killer && r.Attempt > 2 {
				b.Errorf("a neighbor was counted twice: %s", r)
			}
		}
	})
}

//go:build linux || darwin

package process_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/waybillhq/waybill/internal/e2e/process/journal"
	"github.com/waybillhq/waybill/store"
)

// TestBehindABacklog: an event that kills its process becomes dead even behind
// the backlog of an unavailable destination: the dead owner passed the backlog,
// and its rows are the first of the lane. They take no slot of the killer.
func TestBehindABacklog(t *testing.T) {
	onEach(t, func(t *testing.T, p place) {
		if p.Lanes > 0 {
			// with more lanes, fewer events of one lane are in flight
			p.Lanes = 32
		}
		behindABacklog(newEnv(t, p), 300)
	})
}

// TestBehindALongBacklog is the same with a backlog of more events than an
// owner has in flight.
func TestBehindALongBacklog(t *testing.T) {
	t.Parallel()
	p := postgresPlace(t)
	p.Lanes = 32
	behindABacklog(newEnv(t, p), window+400)
}

func behindABacklog(b *env, backlog int) {
	down := series("", backlog)
	for i, name := range down {
		// negative numbers go to the unavailable destination
		down[i] = "/-" + name[1:]
	}
	b.add(down...)
	b.add("/0", "a/0", "a/1")
	if b.place.Lanes > 0 {
		q := b.place.fill(`UPDATE {outbox} SET lane = 0 WHERE COALESCE(aggregate_id, '') = ''`)
		if _, err := b.place.handle(b.T).ExecContext(b.Context(), q); err != nil {
			b.Fatal(err)
		}
	}
	b.killedBy("/0", spec{Down: "-"})
	if s := b.stats(); s.Dead != 1 || s.Ready+s.Failed+s.Scheduled != int64(backlog) {
		b.Errorf("%d are dead, %d wait, want the killer and the backlog", s.Dead, s.Ready+s.Failed+s.Scheduled)
	}
	b.wantDelivered("a/0", "a/1")

	b.start(spec{Name: "up"})
	b.awaitEmpty()
	b.wantOK(1, down[0], down[backlog/2], down[backlog-1])
	if s := b.stats(); s.Dead != 1 {
		b.Errorf("%d are dead, want the killer alone", s.Dead)
	}
	for _, r := range b.journal() {
		// The last process is killed, possibly while the attempt of a probe is
		// counted beforehand.
		if r.Number[0] == '-' && r.Attempt > 2 {
			b.Errorf("the outage has spent attempts: %s", r)
		}
	}
}

// TestBehindAnOutage: an event that kills its process becomes dead even after
// an outage at the start: the destination is unavailable during the first
// deliveries of a process, and then available again. The outage spends no
// attempt, and clears no suspect.
func TestBehindAnOutage(t *testing.T) {
	onEach(t, func(t *testing.T, p place) {
		behindAnOutage(newEnv(t, p.oneLane()), false)
	})
}

// TestBatchBehindAnOutage is the same with a sink for batches.
func TestBatchBehindAnOutage(t *testing.T) {
	t.Parallel()
	behindAnOutage(newEnv(t, postgresPlace(t).oneLane()), true)
}

func behindAnOutage(b *env, batch bool) {
	others := slices.Concat(series("a", 3), series("b", 3))
	b.add("/0")
	b.add(others...)
	b.killedBy("/0", spec{Outage: 3, Batch: batch})
	b.wantDelivered(others...)
	if s := b.stats(); s.Dead != 1 || s.Ready+s.Failed+s.Scheduled != 0 {
		b.Errorf("%d are dead, %d wait, want the killer alone", s.Dead, s.Ready+s.Failed+s.Scheduled)
	}
}

// killedBy starts nodes of a kind until the event that kills them is dead and
// the events of the aggregates are delivered. It reports more kills than
// attempts, apart from the first kill, which is not counted beforehand.
func (b *env) killedBy(name string, s spec) {
	b.Helper()
	const attempts = 3
	s.MaxAttempts, s.Script = attempts, map[string]act{name: {Kill: true}}
	for started := 1; b.find(name).State != store.Dead; started++ {
		if started > 2*attempts {
			b.Fatalf("the event has killed %d processes, and is %s", b.count(journal.Kill, "", ""), b.find(name).State)
		}
		s.Name = fmt.Sprint("R", started)
		n := b.start(s)
		b.await("the event or its process is dead", func() bool { return !n.Alive() || b.find(name).State == store.Dead })
		if !n.Alive() {
			continue
		}
		b.await("the other events are delivered", func() bool {
			for other := range b.names {
				if other != name && other[0] != '/' && b.find(other).State != store.Delivered {
					return false
				}
			}
			return true
		})
		n.Kill()
	}
	if r := b.find(name); r.Attempts != attempts {
		b.Errorf("the event is dead after %d attempts, want %d", r.Attempts, attempts)
	}
	if n := b.count(journal.Kill, "", ""); n != attempts+1 {
		b.Errorf("%d processes were killed, want %d", n, attempts+1)
	}
}

// oneLane returns the place with one lane, so that all events are in one
// sequence.
func (p place) oneLane() place {
	p.Lanes = min(p.Lanes, 1)
	return p
}

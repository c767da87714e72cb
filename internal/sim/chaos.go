package sim

import (
	"context"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// chaos lets faults happen to the world from time to time, until the storm is
// over.
func (w *world) chaos() {
	kinds := w.plan.on(chaosFaults)
	s := w.stream("chaos")
	for len(kinds) > 0 {
		if w.sleep(context.Background(), s.between(0, 2*w.plan.chaos)) != nil || !w.stormy.Load() {
			return
		}
		f := kinds[s.n(len(kinds))]
		if w.strike(s, f) {
			w.tally.fault(f)
		}
	}
}

// strike lets one fault happen. It reports false if it cannot.
func (w *world) strike(s *stream, f fault) bool {
	lease := w.plan.relay.Lease
	switch f {
	case outage:
		w.until(&w.server.downUntil, s.about(10*time.Millisecond, 4*lease), f)
	case serverRestart:
		w.restartServer()
	case sequenceJumps, sequenceBack:
		w.lock(func(*world) {
			w.server.jumps = append(w.server.jumps, jump{at: w.server.issued, size: 1 + int64(s.n(100))})
			w.note(nil, f.String(), nil, w.server.issued, 0, "")
		})
	case clockStep:
		w.lock(func(*world) {
			w.server.offset += s.between(-lease, lease)
			w.steppedAt = w.now()
			w.note(nil, f.String(), nil, int64(w.server.offset), 0, "")
		})
	case sinkDown:
		dest := w.drawDown(s)
		d := s.about(lease/10, w.plan.storm/3)
		w.lock(func(*world) {
			w.downTill[dest] = time.Now().Add(d)
			w.note(nil, f.String(), nil, 0, 0, dest+" "+d.String())
		})
	case operatorReplay, operatorDiscard, operatorUnblock:
		return w.operate(s, f)
	case destinationPaused, destinationProbed, operatorRefill:
		return w.operateDestination(s, f)
	default:
		return w.strikeProcess(s, f)
	}
	return true
}

func (w *world) until(t *time.Time, d time.Duration, f fault) {
	w.lock(func(*world) {
		*t = time.Now().Add(d)
		w.note(nil, f.String(), nil, int64(d), 0, d.String())
	})
}

// strikeProcess lets a fault happen to a process.
func (w *world) strikeProcess(s *stream, f fault) bool {
	var p, twin *process
	w.lock(func(*world) {
		i := s.n(len(w.nodes))
		p, twin = w.nodes[i].proc, w.nodes[(i+1)%len(w.nodes)].proc
	})
	if p == nil || p.isDead() {
		return false
	}
	lease := w.plan.relay.Lease
	switch f {
	case partition:
		w.until(&p.cutOffUntil, s.about(10*time.Millisecond, 4*lease), f)
	case processCrash:
		p.crash("by chance")
	case processPause:
		w.until(&p.pausedUntil, s.about(10*time.Millisecond, 4*lease), f)
	case processStop:
		w.lock(func(*world) { w.note(p, "stops", nil, 0, 0, "") })
		p.cancel()
	case processTwins:
		if twin == nil || twin == p {
			return false
		}
		p.crash("with its twin")
		twin.crash("with its twin")
	default:
		return false
	}
	return true
}

// operate replays, discards or unblocks dead letters.
func (w *world) operate(s *stream, f fault) bool {
	to := w.drawTable(s)
	table := w.server.table(to)
	dead, err := table.List(context.Background(), store.Dead, store.Filter{}, 0, 1000)
	if err != nil || len(dead) == 0 {
		return false
	}
	var ids []waybill.ID
	for range 1 + s.n(3) {
		ids = append(ids, dead[s.n(len(dead))].ID)
	}
	w.server.flush()
	ctx := context.Background()
	switch f {
	case operatorReplay:
		if s.chance(0.3) {
			ids = nil
			for _, r := range dead {
				ids = append(ids, r.ID)
			}
		}
		w.replay(to, ids)
	case operatorDiscard:
		w.discard(to, ids[:1])
	default:
		free, _ := table.Unblock(ctx, ids)
		w.lock(func(*world) {
			for _, id := range free {
				w.note(nil, "unblocked", w.modelOf(to, id), 0, 0, "")
			}
		})
	}
	return true
}

// replay replays dead letters, and returns those whose dedup key belongs to
// another event by now.
func (w *world) replay(to int, ids []waybill.ID) (refused []waybill.ID) {
	defer w.server.exclude()()
	done, _ := w.server.table(to).Replay(context.Background(), ids)
	for _, r := range done.Refused {
		refused = append(refused, r.ID)
	}
	w.lock(func(*world) {
		for _, id := range done.IDs {
			ev := w.modelOf(to, id)
			ev.state, ev.attempts, ev.dueAt, ev.final = pending, 0, time.Time{}, false
			ev.replay++
			for _, at := range ev.at {
				at.replay = ev.replay
			}
			w.pending++
			w.note(nil, "replayed", ev, int64(ev.replay), 0, "")
		}
	})
	return refused
}

// discard deletes dead letters.
func (w *world) discard(to int, ids []waybill.ID) {
	defer w.server.exclude()()
	gone, _ := w.server.table(to).Discard(context.Background(), ids)
	w.lock(func(*world) {
		for _, id := range gone {
			ev := w.modelOf(to, id)
			ev.state, ev.queued = discarded, false
			w.discardedAll(ev)
			w.note(nil, "discarded", ev, 0, 0, "")
		}
	})
}

// replaySoon replays dead letters whose relay does not know yet that they are
// dead: the answer to its settlement was lost.
func (w *world) replaySoon(s *stream, to int, results []driver.Result) {
	if !w.draw(s, operatorReplay) || s.chance(0.5) {
		return
	}
	var ids []waybill.ID
	for i := range results {
		ids = append(ids, results[i].ID)
	}
	d := s.between(0, 100*time.Millisecond)
	w.all.Go(func() {
		if w.sleep(context.Background(), d) == nil {
			w.server.flush()
			w.replay(to, ids)
		}
	})
}

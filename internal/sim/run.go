package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// run runs the world of a cut to its end. It must be called in a bubble, and
// returns the first violation, or nil.
func run(c cut, t *tally, ignored map[string]bool) *failure {
	w, err := newWorld(newPlan(c), t, ignored)
	if err != nil {
		return &failure{rule: "start", text: err.Error()}
	}
	for i := range w.plan.nodes {
		w.nodes = append(w.nodes, &node{w: w, no: i})
	}
	for _, n := range w.nodes {
		w.all.Go(n.supervise)
		share := w.plan.events / (w.plan.nodes * w.plan.writers)
		for i := range w.plan.writers {
			w.all.Go(func() { w.write(n, i, max(share, 1)) })
		}
		for i := range w.plan.keyCallers {
			w.all.Go(func() { w.call(n, i) })
		}
	}
	w.all.Go(w.chaos)
	_ = w.sleep(context.Background(), w.plan.storm)
	w.calm()
	w.arrive()
	w.answerAll()
	w.probe()
	w.probeApart()
	w.stopInHaste()
	w.lock(func(w *world) { w.end() })
	w.all.Wait()
	time.Sleep(time.Minute) // what the relays abandoned ends
	t.worlds.Add(1)
	t.simulated.Add(int64(w.now()))
	return w.failure
}

// calm ends the storm: all faults stop.
func (w *world) calm() {
	w.stormy.Store(false)
	w.server.flush()
	w.lock(func(w *world) {
		w.note(nil, "calm", nil, int64(w.pending), 0, "")
		w.server.downUntil = time.Time{}
		clear(w.downTill)
		for _, n := range w.nodes {
			if n.proc != nil {
				n.proc.pausedUntil, n.proc.cutOffUntil = time.Time{}, time.Time{}
			}
		}
	})
}

// arrive waits until every event has arrived, replaying the dead letters, and
// checks that nothing is left.
func (w *world) arrive() {
	bound := w.patience()
	until := time.Now().Add(bound)
	for !w.over() {
		w.redriveAll()
		w.replayAll()
		if w.settledAll() {
			w.checkEnd()
			return
		}
		if time.Now().After(until) {
			w.lock(func(w *world) { w.failLost(bound) })
			return
		}
		_ = w.sleep(context.Background(), max(w.plan.relay.Lease/4, bound/200))
	}
}

// patience is the time within which everything must have arrived.
func (w *world) patience() time.Duration {
	c := &w.plan.relay
	longest := max(c.BackoffMax, w.plan.maxPut, 10*time.Second)
	for _, d := range c.BackoffSeries {
		longest = max(longest, d)
	}
	longest = max(longest, w.longestDelay())
	work := w.rateTime() + time.Duration(w.plan.events)*(8*w.plan.latency+2*w.plan.sinkLatency)
	return 20*max(c.Lease, 15*time.Second) + 6*longest + 20*max(c.PollInterval, 2*time.Second) + 10*max(c.SweepInterval, time.Second) + 2*work + 10*time.Minute
}

// replayAll replays every dead letter. It discards one that is refused: the
// event that has its dedup key may wait behind it.
func (w *world) replayAll() {
	w.resumeAll()
	for to := outboxTable; to < len(w.to); to++ {
		w.replayTable(to)
	}
}

// replayTable replays every dead letter of the outbox, or of a destination.
func (w *world) replayTable(to int) {
	dead, err := w.server.table(to).List(context.Background(), store.Dead, store.Filter{}, 0, 100_000)
	if err != nil || len(dead) == 0 {
		return
	}
	var ids []waybill.ID
	for _, r := range dead {
		ids = append(ids, r.ID)
	}
	if refused := w.replay(to, ids); len(refused) > 0 {
		w.discard(to, refused)
	}
}

// settledAll reports whether no event is pending and none is being written.
func (w *world) settledAll() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pending == 0 && len(w.server.open) == 0 && w.broker.empty() && w.broker.busy == 0
}

// redriveAll lets the consumer group retry what it has given up.
func (w *world) redriveAll() {
	if w.plan.sink >= brokerSink {
		_, _ = w.server.base.Redrive(context.Background(), groupName, nil, 100_000)
	}
}

// answerAll repeats every request until it is answered.
func (w *world) answerAll() {
	for key := range w.plan.keys {
		r := w.request(key)
		if r.runs == 0 {
			continue
		}
		until := time.Now().Add(w.patience())
		for answered := false; !answered && !w.over(); {
			w.ask(w.nodes[key%len(w.nodes)], key)
			w.lock(func(*world) {
				answered = r.answer != ""
				if time.Now().After(until) {
					w.fail("keys", nil, "key %s has no answer", r.key)
				}
			})
			_ = w.sleep(context.Background(), time.Second)
		}
	}
}

// checkEnd checks that every committed event was delivered. An event that an
// operator discarded, or that was a dead letter, is accounted for.
func (w *world) checkEnd() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ev := range w.events {
		if ev.state != delivered {
			continue
		}
		for c := range w.copies() {
			if ev.got[c] == 0 && w.plan.sink != groupSink && (ev.at == nil || ev.at[c].takes && ev.at[c].state == delivered) {
				w.fail("lost", ev, "is settled as done, and no sink has it")
				return
			}
		}
		if ev.effects != 1 && w.plan.sink >= brokerSink {
			w.fail("effects", ev, "is settled as done with %d effects", ev.effects)
			return
		}
	}
}

// failLost reports the first event that has not arrived. Mu is held.
func (w *world) failLost(bound time.Duration) {
	for _, parent := range w.events {
		for _, ev := range append([]*event{parent}, parent.at...) {
			if ev.state != pending || ev.parent != nil && parent.state == pending && !ev.queued {
				continue
			}
			rows, _ := w.server.table(ev.table()).Find(context.Background(), ev.id)
			where := "it has no row"
			if len(rows) > 0 {
				where = fmt.Sprintf("its row is %v, due at %v, holds %v", rows[0].State, rows[0].DueAt.Sub(w.start), rows[0].Holds)
			}
			w.fail("lost", ev, "has not arrived %v after the storm (%d events have not); %s", bound, w.pending, where)
			return
		}
	}
	w.fail("lost", nil, "%d transactions are open %v after the storm", len(w.server.open), bound)
}

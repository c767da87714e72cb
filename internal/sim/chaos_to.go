package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// What happens to destinations from time to time, and what operators do about
// it.

// drawDown draws what is down: a destination of the sink, or all of one of the
// relay's destinations, or a part of it.
func (w *world) drawDown(s *stream) string {
	topic := fmt.Sprintf("d%d", s.n(w.plan.destinations))
	if len(w.plan.to) == 0 {
		return topic
	}
	to := w.plan.to[s.n(len(w.plan.to))].Name
	if s.chance(0.3) {
		return to + " " + topic
	}
	return to
}

// drawTable draws a table: the outbox, or the backlog of a destination.
func (w *world) drawTable(s *stream) int {
	if len(w.to) == 0 {
		return outboxTable
	}
	return s.n(len(w.to)+1) - 1
}

// operateDestination pauses a destination, asks the relays to try it, or sends
// history to it again.
func (w *world) operateDestination(s *stream, f fault) bool {
	k := s.n(len(w.to))
	name, ctx := w.plan.to[k].Name, context.Background()
	switch f {
	case destinationPaused:
		if paused, _ := w.pause(ctx, nil, name, "maintenance"); !paused {
			return false
		}
		d := s.about(w.plan.relay.Lease/10, w.plan.storm/3)
		w.all.Go(func() {
			_ = w.sleep(ctx, d)
			w.resume(k)
		})
	case destinationProbed:
		if w.server.backlogs.ProbeDestination(ctx, name) != nil {
			return false
		}
		w.wake()
	default:
		return w.refill(s, k)
	}
	return true
}

// pause pauses a destination.
func (w *world) pause(ctx context.Context, p *process, name, reason string) (bool, error) {
	w.server.flush()
	paused, err := w.server.backlogs.PauseDestination(ctx, name, reason)
	w.lock(func(*world) {
		for k := range w.to {
			if paused && w.plan.to[k].Name == name {
				w.to[k].pausedAt = time.Now()
				w.note(p, "paused", nil, int64(k), 0, reason)
			}
		}
	})
	if paused && p == nil {
		w.wake()
	}
	return paused, err
}

// resume resumes a destination.
func (w *world) resume(k int) {
	w.server.flush()
	if resumed, _ := w.server.backlogs.ResumeDestination(context.Background(), w.plan.to[k].Name); !resumed {
		return
	}
	w.lock(func(*world) {
		w.to[k].pausedAt = time.Time{}
		w.note(nil, "resumed", nil, int64(k), 0, "")
	})
	w.wake()
}

// resumeAll resumes all destinations.
func (w *world) resumeAll() {
	for k := range w.to {
		w.resume(k)
	}
}

// wake wakes the relays of half of the processes, as an operator's command
// does.
func (w *world) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, n := range w.nodes {
		if p := n.proc; p != nil && w.roll("wake", i, int(w.now())) < 0.5 {
			p.hub.Wake()
		}
	}
}

// refill sends a part of the history to a destination again.
func (w *world) refill(s *stream, k int) bool {
	var q driver.HistoryQuery
	switch s.n(3) {
	case 0:
		q.Types = eventTypes[:1]
	case 1:
		q.AggregateID = w.groups[s.n(len(w.groups))].name.ID
	default:
	}
	limit := 1 + s.n(pick(s, 3, 30, 300))
	w.server.flush()
	defer w.server.exclude()()
	number := 0
	w.lock(func(*world) { number = w.to[k].number })
	if number == 0 {
		return false
	}
	table, ctx := w.server.backlogs.Backlog(number), context.Background()
	if done, err := table.Refill(ctx, q, driver.HistoryCursor{}, limit); err != nil || done.Copied == 0 {
		return false
	}
	all, _ := table.List(ctx, store.Ready, store.Filter{}, 0, 100_000)
	w.lock(func(*world) {
		for i := range all {
			if at := w.modelOf(k, all[i].ID); at != nil && !at.queued {
				w.refilled(at, all[i].Replay)
			}
		}
	})
	return true
}

// refilled notes that an event was copied from the history. Mu is held.
func (w *world) refilled(at *event, replay int) {
	w.pending++
	at.state, at.attempts, at.replay, at.dueAt, at.counted = pending, 0, replay, time.Time{}, lease{}
	at.queued, at.final, at.readBy = true, false, nil
	for _, o := range at.outcomes { // a new life; a settlement may be repeated
		o.undone, o.settled = true, true
	}
	w.note(nil, "refilled", at, int64(replay), 0, "")
}

// longestDelay is the longest delay of a destination's policy.
func (w *world) longestDelay() time.Duration {
	var longest time.Duration
	for k := range w.plan.to {
		d := &w.plan.to[k]
		longest = max(longest, d.BackoffMax)
		for _, b := range d.BackoffSeries {
			longest = max(longest, b)
		}
	}
	return longest
}

// rateTime is how long the destinations need for all events, for their rates
// and the latencies of their sinks.
func (w *world) rateTime() time.Duration {
	var longest time.Duration
	for k := range w.plan.to {
		d := &w.plan.to[k]
		each := 4 * d.latency
		if d.Rate > 0 {
			each += time.Duration(float64(time.Second) / d.Rate)
		}
		longest = max(longest, time.Duration(w.plan.events)*each)
	}
	return longest
}

// latency is how long a call of the sink takes.
func (s *sink) latency() time.Duration {
	if s.to != nil {
		return s.to.latency
	}
	return s.w.plan.sinkLatency
}

// happens draws a fault of the sink.
func (s *sink) happens(f fault, t try) bool {
	if s.to == nil {
		return s.w.happens(f, t.no, t.n, s.copy)
	}
	w := s.w
	if !w.stormy.Load() || w.roll(f.String(), t.no, t.n, s.copy) >= w.plan.rate[f]*s.to.luck {
		return false
	}
	w.tally.fault(f)
	return true
}

// hangs reports whether no call of the destination is answered.
func (s *sink) hangs() bool {
	if s.to == nil {
		return false
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.w.to[s.copy].hanging
}

// probeApart checks after the storm that the others do not wait for a
// destination that is down, hangs, or is paused.
func (w *world) probeApart() {
	for k := range w.plan.to {
		if w.over() {
			return
		}
		d := &w.plan.to[k]
		how := int(scramble(w.plan.seed+uint64(k)) % 3) //nolint:gosec // an index
		if d.divertAfter() < 0 && how == 1 {
			how = 0 // the others wait for it
		}
		w.breakDown(k, how)
		w.probeOthers(k)
		w.mend(k)
		w.arrive()
	}
}

// breakDown makes a destination unavailable, hanging, or paused.
func (w *world) breakDown(k, how int) {
	switch how {
	case 0:
		w.lock(func(*world) { w.downTill[w.plan.to[k].Name] = time.Now().Add(24 * time.Hour) })
	case 1:
		w.lock(func(*world) { w.to[k].hanging = true })
	default:
		_, _ = w.pause(context.Background(), nil, w.plan.to[k].Name, "probe")
	}
}

// mend ends the outage that breakDown began.
func (w *world) mend(k int) {
	w.lock(func(*world) {
		delete(w.downTill, w.plan.to[k].Name)
		w.to[k].hanging = false
	})
	w.resume(k)
}

// probeOthers writes events, and checks that all destinations but one receive
// them soon.
func (w *world) probeOthers(down int) {
	c, d := &w.plan.relay, &w.plan.to[down]
	for range 2 {
		var more []*event
		for i := range w.nodes {
			more = append(more, w.writeProbes(w.nodes[i])...)
		}
		bound := 3*max(c.PollInterval, 2*time.Second) + 100*w.plan.latency + 50*w.plan.sinkLatency + 15*time.Second + 4*max(d.divertAfter(), 0)
		bound += w.probeTime()
		for began := time.Now(); !w.over(); {
			late := w.undeliveredBeside(more, down)
			if late == nil {
				break
			}
			if time.Since(began) > bound {
				w.lock(func(w *world) {
					w.fail("apart", late, "was written while only destination %d does not work, and is not delivered within %v", down, bound)
				})
				return
			}
			_ = w.sleep(context.Background(), 100*time.Millisecond)
		}
		_ = w.sleep(context.Background(), 5*time.Second)
	}
}

// undeliveredBeside returns an event that another destination than one has not
// received, or nil.
func (w *world) undeliveredBeside(evs []*event, down int) *event {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ev := range evs {
		if ev.state == written {
			continue
		}
		for k, at := range ev.at {
			if k != down && at.takes && at.got[k] == 0 && ev.got[k] == 0 {
				return at
			}
		}
	}
	return nil
}

// probeTime is how long the destinations need for the events of a probe.
func (w *world) probeTime() time.Duration {
	n := len(w.nodes) * (maxProbes + 1)
	return 2 * w.rateTime() * time.Duration(n) / time.Duration(max(w.plan.events, 1))
}

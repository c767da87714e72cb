package relay

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/outage"
	"github.com/waybillhq/waybill/internal/panics"
	"github.com/waybillhq/waybill/relay/internal/ledger"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// target is a destination of a running relay. The engine's goroutine owns it,
// except calls and rate.
//
// Each lane is in one of two states for the destination. Direct: events are
// passed to the sink as they come from the outbox. Behind: they are copied to
// the backlog without being tried, and delivered from there, in their order. A
// lane becomes behind with the first event that the destination does not take.
// It is direct again when a read that began after the last copy was committed
// found no row in the backlog, and none is in flight.
type target struct {
	Destination
	e      *engine
	bit    uint32 // in the routes of events
	number int    // in the tables; 0 until the destination is registered
	queue  *queue // of the backlog
	retry  func(n int) time.Duration

	lanes  map[int]*targetLane
	behind int       // number of lanes that are behind
	since  time.Time // when the first of them became behind
	// pausedAt is when the destination was paused, according to the tables; the
	// zero time if it is not.
	pausedAt time.Time
	// probeAt is the last request of an operator to try the destination, as the
	// tables say.
	probeAt time.Time

	// known are events that the destination has received although their rows
	// are in its backlog: their direct calls ended after they were diverted.
	known   map[waybill.ID]struct{}
	rate    *rate
	limited limited
	breaker breaker
	calls   chan struct{} // holds one element per running call
	filter  *outage.Log   // panics of the filter
	gate    gate
}

// targetLane is a lane of this node for one destination.
type targetLane struct {
	lease  driver.Lease
	behind bool
	// started: the ledger of the backlog has the lane.
	started bool
	// closing: this node releases the lane.
	closing bool
	// fresh: the lane was not started since this node acquired it. Its rows may
	// have been in flight on the last owner.
	fresh bool
	// calls is the number of the lane's events with a direct call under way.
	// The backlog is not read before they have ended: a call may be slow, and
	// its event is copied meanwhile.
	calls int
	// diverting is the number of events that will be copied to the backlog, or
	// whose copy is not answered yet. copied is when the last one was answered.
	diverting int
	copies    copies
	copied    time.Time
}

// divert notes that an event will be copied to the backlog.
func (l *targetLane) divert(seq int64) {
	l.diverting++
	l.copies.add(seq)
}

// diverted notes that the copy is committed, or will not be made.
func (l *targetLane) diverted(seq int64) {
	l.diverting--
	l.copies.remove(seq)
}

// laneOf returns the lane of an event that was taken under a lease; nil if the
// node has lost the lane since then. It may have acquired the lane again: what
// becomes of an event of the former ownership does not concern the new one.
func (t *target) laneOf(lease driver.Lease) *targetLane {
	if l := t.lanes[lease.Lane]; l != nil && l.lease == lease {
		return l
	}
	return nil
}

// mayTake returns the highest seq of the backlog's rows that may be taken now.
func (t *target) mayTake(lane int) int64 {
	if l := t.lanes[lane]; l != nil {
		return l.copies.first()
	}
	return 0
}

// maxKnown is the maximum number of events that a target remembers as received.
const maxKnown = 100_000

func newTarget(e *engine, d Destination, index int) *target {
	t := &target{
		Destination: d, e: e, bit: 1 << index, retry: d.backoff(), lanes: make(map[int]*targetLane), known: make(map[waybill.ID]struct{}),
		rate: newRate(d.Rate), calls: make(chan struct{}, d.Concurrency), breaker: breaker{limit: d.PauseAfter},
	}
	t.limited.of = t.rate
	t.filter = outage.New(e.log, "the filter of a destination", logkey.Destination, d.Name)
	cfg := d.ledgerConfig(e.cfg)
	cfg.MayTake = t.mayTake
	t.queue = newQueue(e, nil, d.Sink, d.Concurrency, cfg)
	t.queue.to = t
	return t
}

// isPaused reports whether the destination is paused.
func (t *target) isPaused() bool { return !t.pausedAt.IsZero() }

// takes reports whether the destination receives an event. An event whose
// filter panics is passed to the sink.
func (t *target) takes(ev *waybill.Event) (ok bool) {
	if t.Filter == nil {
		return t.Destination.takes(ev)
	}
	err := panics.Call(func() error { ok = t.Destination.takes(ev); return nil })
	t.filter.Note(context.Background(), "filter", err)
	return ok || err != nil
}

// enter waits until the destination may be called once more. It reports false
// if ctx ends before that.
func (t *target) enter(ctx context.Context) bool {
	select {
	case t.calls <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// leave ends a call.
func (t *target) leave() { <-t.calls }

// acquired adds a lane that this node has acquired. occupied means that the
// backlog may have rows of the lane.
func (t *target) acquired(lease driver.Lease, occupied bool, now time.Time) {
	l := &targetLane{lease: lease, fresh: true, copied: now} // a check that began earlier is of no use
	t.lanes[lease.Lane] = l
	t.gate.open(lease)
	if occupied || t.isPaused() {
		t.fallBehind(l, "its backlog is not empty", now)
	}
}

// lost removes a lane that this node does not own any more.
func (t *target) lost(lane int, now time.Time) {
	t.queue.ledger.LaneLost(lane, now)
	t.gate.close(lane)
	if l := t.lanes[lane]; l != nil {
		delete(t.lanes, lane)
		if l.behind {
			t.behind--
		}
	}
}

// drain stops taking events of a lane that this node releases.
func (t *target) drain(lane int, by, now time.Time) {
	t.queue.ledger.DrainLane(lane, by, now)
	t.gate.close(lane)
	if l := t.lanes[lane]; l != nil {
		l.closing = true
	}
}

// isBusy reports whether events of a lane are with the destination or wait for
// their settlement. suspects means that the next owner of the lane must treat
// rows of the backlog as suspects.
func (t *target) isBusy(lane int) (busy, suspects bool) {
	l := t.lanes[lane]
	if l == nil {
		return false, false
	}
	for _, in := range t.queue.ledger.Lanes() {
		if in.Lease.Lane == lane {
			busy, suspects = in.Busy, in.Suspects
		}
	}
	return busy || l.calls > 0, suspects || l.behind && l.fresh && l.lease.Unclean
}

// fallBehind makes a lane behind.
func (t *target) fallBehind(l *targetLane, why string, now time.Time) {
	if !l.behind {
		l.behind = true
		if t.behind == 0 {
			t.since = now
			t.e.log.Info("destination is behind", slog.String(logkey.Destination, t.Name), slog.String(logkey.Reason, why))
		}
		t.behind++
	}
	t.start(l, now)
}

// allBehind makes all lanes behind.
func (t *target) allBehind(why string, now time.Time) {
	for _, number := range t.owned() {
		t.fallBehind(t.lanes[number], why, now)
	}
}

// owned returns the lanes of this node in the order of their numbers.
func (t *target) owned() []int {
	out := make([]int, 0, len(t.lanes))
	for number := range t.lanes {
		out = append(out, number)
	}
	slices.Sort(out)
	return out
}

// start lets the ledger of the backlog read a lane that is behind, unless a
// direct call with events of the lane is still under way.
func (t *target) start(l *targetLane, now time.Time) {
	if l.started || !l.behind || l.closing || l.calls > 0 || t.isPaused() {
		return
	}
	l.started = true
	lease := l.lease
	lease.Unclean = lease.Unclean && l.fresh
	l.fresh = false
	t.queue.ledger.LaneAcquired(lease, nil, now)
}

// caughtUp notes that a lane is not behind any more.
func (t *target) caughtUp(l *targetLane, now time.Time) {
	l.behind = false
	t.behind--
	if t.behind == 0 {
		clear(t.known)
		t.e.log.Info("destination caught up", slog.String(logkey.Destination, t.Name), slog.Duration(logkey.Duration, now.Sub(t.since)))
	}
}

// isDrained reports whether a lane could become direct, as far as this node
// knows.
func (t *target) isDrained(number int, l *targetLane) bool {
	return l.behind && l.diverting == 0 && l.calls == 0 && !t.isPaused() && t.queue.ledger.IsQuiet(number)
}

// wantsCheck reports whether a lane might become direct.
func (t *target) wantsCheck() bool {
	for number, l := range t.lanes {
		if t.isDrained(number, l) {
			return true
		}
	}
	return false
}

// checked takes the answer to a check that began at a time: the lanes that have
// rows in the backlog.
func (t *target) checked(occupied []int, began, now time.Time) {
	for _, number := range t.owned() {
		l := t.lanes[number]
		has := slices.Contains(occupied, number)
		switch {
		case has && !l.behind:
			// An operator has put rows into the backlog.
			t.fallBehind(l, "its backlog is not empty", now)
		case has:
		case !l.behind:
			l.fresh = false
		case t.isDrained(number, l) && l.copied.Before(began):
			l.started, l.fresh = false, false
			t.queue.ledger.LaneLost(number, now)
			t.caughtUp(l, now)
		}
	}
}

// registered takes the destination as the tables have it.
func (t *target) registered(d store.Destination, now time.Time) {
	if t.number == 0 {
		t.number = d.Number
		t.queue.rows = t.e.db.backlogs.Backlog(d.Number)
	}
	if d.ProbeAt.After(t.probeAt) {
		t.queue.ledger.ProbeNow(now)
		t.probeAt = d.ProbeAt
	}
	switch {
	case d.IsPaused() && !t.isPaused():
		t.pausedAt = d.PausedAt
		t.gate.pause(true)
		t.e.log.Warn("destination is paused", slog.String(logkey.Destination, t.Name), slog.String(logkey.Reason, d.Reason),
			slog.String(logkey.Since, d.PausedAt.UTC().Format(time.RFC3339)))
		t.allBehind("it is paused", now)
	case !d.IsPaused() && t.isPaused():
		t.pausedAt = time.Time{}
		t.gate.pause(false)
		t.breaker.passed()
		t.e.log.Info("destination is resumed", slog.String(logkey.Destination, t.Name))
		t.queue.ledger.ProbeNow(now)
		for _, number := range t.owned() {
			t.start(t.lanes[number], now)
		}
	}
}

// adapt adapts the rate of the destination to the result of a delivery. A
// failure with a delay of its own asks for fewer events.
func (t *target) adapt(err error, now time.Time) {
	switch class, delay := waybill.Classify(err); {
	case class == waybill.ClassDone:
		if t.rate.accepted(now) {
			t.limited.err = ""
			t.e.log.Info("destination takes events at its usual rate", slog.String(logkey.Destination, t.Name))
		}
	case class == waybill.ClassRetry && (delay > 0 || asksForFewer(err)):
		t.limited.err = err.Error()
		if limit, first := t.rate.slowDown(now); first {
			t.e.log.Info("destination asks for fewer events", slog.String(logkey.Destination, t.Name), slog.Float64(logkey.Rate, limit))
		}
	}
}

// asksForFewer reports whether an error means that the destination received too
// many events, without a delay.
func asksForFewer(err error) bool {
	var e interface{ TooManyRequests() bool }
	return errors.As(err, &e) && e.TooManyRequests()
}

// passKnown removes the events from a job that the destination has received
// already, and those that its filter does not take: an operator may have copied
// them from the history. Their rows are settled without a delivery.
func (t *target) passKnown(j *job, now time.Time) {
	j.items = slices.DeleteFunc(j.items, func(it *ledger.Item) bool {
		id := it.Row().ID
		if _, known := t.known[id]; !known && t.takes(&it.Row().Event) {
			return false
		}
		delete(t.known, id)
		d := it.Delivery()
		t.queue.ledger.DeliveryEnded(it, &d, nil, now)
		return true
	})
}

// received remembers that the destination has received an event whose row is in
// the backlog. If there are too many such events, the destination receives some
// of them again.
func (t *target) received(id waybill.ID) {
	if len(t.known) < maxKnown {
		t.known[id] = struct{}{}
	}
}

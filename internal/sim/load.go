package sim

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
)

// write runs a writer of a node: transactions until the share of the world's
// events is written.
func (w *world) write(n *node, writer, events int) {
	s := w.stream("writer", n.no, writer)
	gap := w.plan.storm * time.Duration(w.plan.txEvents) / time.Duration(2*max(events, 1))
	for left := events; left > 0 && !w.over() && w.stormy.Load(); {
		size := 1 + s.n(min(w.plan.txEvents, left))
		if w.plan.txEvents >= 100 {
			size = min(w.plan.txEvents, left)
		}
		if s.chance(0.5) {
			_ = w.sleep(context.Background(), s.between(0, 4*gap))
		}
		left -= size
		w.transaction(n, s, size)
	}
}

var errRollback = errors.New("sim: the writer rolls back")

// transaction writes events in one transaction, on whatever process runs on
// the node.
func (w *world) transaction(n *node, s *stream, size int) {
	w.mu.Lock()
	p := n.proc
	w.mu.Unlock()
	if p == nil || p.isDead() {
		_ = w.sleep(context.Background(), time.Second)
		return
	}
	x := w.compose(s, size)
	if w.plan.locks {
		for _, a := range x.groups {
			if !a.mu.TryLock() {
				return
			}
			defer a.mu.Unlock()
		}
	}
	w.runDraft(p, s, &x)
	if x.late > 0 { // what is written next must not overtake it
		next := w.composeOf(s, x.groups, 1)
		w.runDraft(p, s, &next)
	}
}

// runDraft runs a transaction, and checks the outcome that the outbox reports.
func (w *world) runDraft(p *process, s *stream, x *draft) {
	ctx := p.ctx
	if x.late > 0 {
		ctx = early(ctx)
	}
	box, wrote := p.box, false
	if x.quiet {
		box = p.quiet
	}
	err := box.InTx(ctx, func(ctx context.Context, tx Tx) error {
		if err := box.Write(ctx, tx, x.events...); err != nil {
			return err
		}
		wrote = true
		if x.savepoint {
			if err := w.savepoint(ctx, box, tx, s); err != nil {
				return err
			}
		}
		if err := p.sleep(ctx, x.late); err != nil {
			return err
		}
		if x.back {
			return errRollback
		}
		return nil
	})
	if errors.Is(err, waybill.ErrUncertain) {
		w.resolve(p, x.events)
	} else if wrote {
		w.checkTold(x.events, err == nil)
	}
}

// hook records what the outbox reports about its transactions.
func (w *world) hook() outbox.Hook {
	tell := func(evs []waybill.Event, as state) {
		w.lock(func(*world) {
			for i := range evs {
				if ev := w.byID[evs[i].ID]; ev != nil {
					ev.told = as
				}
			}
		})
	}
	return outbox.Hook{
		AfterCommit:   func(_ context.Context, info outbox.AfterCommitInfo) { tell(info.Events, pending) },
		AfterRollback: func(_ context.Context, info outbox.AfterRollbackInfo) { tell(info.Events, rolledBack) },
	}
}

// checkTold: the hooks of the outbox are told how each transaction ended.
func (w *world) checkTold(evs []waybill.Event, committed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range evs {
		ev := w.byID[evs[i].ID]
		if evs[i].DedupKey != "" && ev.wroteAt == 0 {
			continue // absorbed by another event
		}
		if is := ev.state != written && ev.state != rolledBack; is != committed {
			w.fail("outbox", ev, "is committed, says InTx: %v; it is %v", committed, ev.state)
		}
		if want := map[bool]state{true: pending, false: rolledBack}[committed]; ev.told != want {
			w.fail("outbox", ev, "is %v, and the hook was told: %v", want, ev.told)
		}
	}
}

// draft is a transaction before it runs.
type draft struct {
	groups    []*aggregate
	events    []waybill.Event
	late      time.Duration
	back      bool
	savepoint bool
	quiet     bool
}

// compose draws the events of a transaction.
func (w *world) compose(s *stream, size int) draft {
	var x draft
	kinds := 1
	if size > 20 {
		kinds = size / 4
	}
	for range min(kinds, len(w.groups)) {
		a := w.groups[s.n(len(w.groups))]
		if len(x.groups) == 0 || a.no > x.groups[len(x.groups)-1].no { // locks are taken in order
			x.groups = append(x.groups, a)
		}
	}
	x = w.composeOf(s, x.groups, size)
	if w.draw(s, lateCommit) {
		x.late = s.about(pick(s, time.Millisecond, time.Second), w.longestCommit())
	}
	x.back = w.draw(s, rollback)
	x.quiet = w.draw(s, announcement)
	x.savepoint = x.late == 0 && w.draw(s, oldSavepoint)
	if x.late == 0 && w.draw(s, dedupAbsorbed) {
		x.events[0].DedupKey = "key " + strconv.Itoa(s.n(5))
	}
	return x
}

// composeOf draws events of these aggregates, and unordered ones.
func (w *world) composeOf(s *stream, groups []*aggregate, size int) draft {
	x := draft{groups: groups}
	for range size {
		agg := groups[s.n(len(groups))]
		if w.draw(s, unorderedEvent) {
			agg = nil
		}
		x.events = append(x.events, w.event(s, agg))
	}
	return x
}

// longestCommit is how long a transaction may stay open. A store that cannot
// report open transactions keeps the order within two seconds only.
func (w *world) longestCommit() time.Duration {
	if !w.plan.knowsWriters {
		return time.Second
	}
	return 5 * time.Minute
}

// event draws an event.
func (w *world) event(s *stream, agg *aggregate) waybill.Event {
	m := w.newEvent(agg)
	m.dest = "d" + strconv.Itoa(s.n(w.plan.destinations))
	ev := waybill.Event{ID: m.id, Type: "Happened", Topic: m.dest, Payload: []byte("{}")}
	if w.plan.sink == manySinks {
		ev.Type = eventTypes[s.n(len(eventTypes))]
	}
	if agg != nil {
		ev.TenantID, ev.AggregateType, ev.AggregateID = agg.name.Tenant, agg.name.Type, agg.name.ID
	} else {
		ev.TenantID = w.tenant("event", m.no)
	}
	w.route(m, &ev)
	if w.draw(s, delayedEvent) {
		m.delay = 1 + s.between(0, w.plan.maxPut)
		ev.Delay = m.delay
	}
	if w.draw(s, urgentEvent) {
		ev.Priority = 1 + s.n(3)
	}
	m.poison = w.plan.rate[sinkPoison] > 0 && w.plan.relay.MaxAttempts >= 0 && s.chance(w.plan.rate[sinkPoison])
	return ev
}

// savepoint writes an event inside a savepoint and rolls the savepoint back.
func (w *world) savepoint(ctx context.Context, box *outbox.Outbox[Tx], tx Tx, s *stream) error {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	ev := w.event(s, nil)
	if err := box.Write(ctx, inner, ev); err != nil {
		return err
	}
	return inner.Rollback(ctx)
}

// resolve asks whether an uncertain transaction committed, and checks the
// answer.
func (w *world) resolve(p *process, evs []waybill.Event) {
	if len(evs) == 0 {
		return
	}
	id := evs[len(evs)-1].ID // the first one may have been absorbed
	if evs[len(evs)-1].DedupKey != "" {
		return
	}
	known, err := p.box.Committed(p.ctx, id)
	if err != nil {
		return
	}
	w.lock(func(w *world) {
		ev := w.byID[id]
		if is := ev.state != written && ev.state != rolledBack; is != known && !w.server.inDoubt[id] {
			w.fail("committed", ev, "is committed, says the outbox: %v; it is %v", known, ev.state)
		}
	})
}

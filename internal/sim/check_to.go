package sim

import (
	"context"
	"errors"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store/driver"
)

// The checks of deliveries to one of several destinations.

// deliveringTo is called around every call of a destination's sink.
func (p *process) deliveringTo(ctx context.Context, info observe.DeliverInfo) func(observe.DeliverDoneInfo) {
	to := int(info.Destination[len("to")] - '0')
	flights := p.w.beganAt(p, to, info.Batch)
	batch := make([]waybill.Delivery, len(info.Batch))
	copy(batch, info.Batch)
	return func(done observe.DeliverDoneInfo) {
		p.w.returnedAt(p, batch, flights, done.Results, ctx.Err())
	}
}

// beganAt checks a call of a destination's sink at its beginning.
func (w *world) beganAt(p *process, to int, batch []waybill.Delivery) []*flight {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checkCallTo(p, to, batch)
	flights := make([]*flight, len(batch))
	for i := range batch {
		d := &batch[i]
		ev := w.byID[d.ID]
		if ev == nil {
			w.fail("phantom", nil, "%v delivers the unknown event %v", p, d.ID)
			continue
		}
		w.tally.deliveries.Add(1)
		at := ev.at[to]
		// A direct call may have waited while the event was copied.
		direct := !at.queued || at.readBy != p
		src := at
		if direct && !at.queued {
			src = ev
		}
		suspect := src.counted == lease{p, d.Position.Epoch}
		w.note(p, "begins", at, d.Position.Epoch, int64(d.Attempt), callNote(direct, suspect))
		w.checkLease(p, d, at)
		if !at.takes && ev.state != written && ev.state != rolledBack {
			w.fail("filter", at, "is delivered by %v, and the destination does not take it", p)
		}
		w.checkRow(p, d, ev, suspect)
		if at.state == discarded {
			w.fail("phantom", at, "is delivered by %v after an operator discarded it", p)
		}
		if at.queued && !direct {
			w.checkRow(p, d, at, suspect)
		}
		w.checkRepeated(p, d, at)
		w.checkSuspect(p, d, src, suspect)
		flights[i] = &flight{p: p, epoch: d.Position.Epoch, at: w.now(), to: to, direct: direct}
		src.flights = append(src.flights, flights[i])
		w.aloft[src] = d.Position.Lane
		p.flying[flights[i]] = at
	}
	return flights
}

func callNote(direct, suspect bool) string {
	note := suspectNote(suspect)
	if direct {
		note += " direct"
	}
	return note
}

// pauseGrace is how long a process may deliver to a destination after it has
// learned that the destination is paused.
const pauseGrace = time.Second

// checkCallTo checks the limits of a call of a destination. Mu is held.
func (w *world) checkCallTo(p *process, to int, batch []waybill.Delivery) {
	c, d, view := &w.plan.relay, &w.plan.to[to], &p.to[to]
	paused := !w.to[to].pausedAt.IsZero() && !view.pausedAt.IsZero() && time.Since(view.pausedAt) > pauseGrace
	if paused && view.calls == 0 && !p.dead { // a call may have waited for the others
		w.fail("pause", w.at(&batch[0], to), "is delivered by %v, which knows for %v that the destination is paused", p, time.Since(view.pausedAt))
	}
	view.calls++
	if limit := or(d.Concurrency, or(c.Workers, 4)); view.calls > limit {
		w.fail("limits", nil, "%v has %d calls of %s at a time, want at most %d", p, view.calls, d.Name, limit)
	}
	if limit := or(c.BatchSize, 500); len(batch) > limit {
		w.fail("limits", nil, "%v has a batch of %d, want at most %d", p, len(batch), limit)
	}
	for i := range batch {
		if at := w.at(&batch[i], to); at != nil && at.agg != nil {
			w.checkAlone(p, batch[:i], at, batch[i].Position.Epoch)
		}
	}
}

// at returns the model of an event at a destination; nil if the event is not
// known. Mu is held.
func (w *world) at(d *waybill.Delivery, to int) *event { return w.modelOf(to, d.ID) }

// returnedAt notes the results of a call of a destination's sink.
func (w *world) returnedAt(p *process, batch []waybill.Delivery, flights []*flight, results []error, ended error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	failed := make(map[*aggregate]bool)
	for i := range batch {
		if flights[i] == nil {
			continue
		}
		if i == 0 {
			p.to[flights[i].to].calls--
		}
		err := waybill.Unavailable(errSink)
		if len(results) == len(batch) {
			err = results[i]
		}
		w.returnedOne(p, &batch[i], flights[i], failed, err, ended)
	}
}

// returnedOne notes the result of one event at a destination. failed are the
// aggregates with a failed event in front of it in the batch. Mu is held.
func (w *world) returnedOne(p *process, d *waybill.Delivery, f *flight, failed map[*aggregate]bool, err, ended error) {
	at := w.at(d, f.to)
	canceled := err != nil && errors.Is(ended, context.Canceled) && !errors.Is(err, waybill.ErrSettled)
	if err != nil && errors.Is(ended, context.DeadlineExceeded) {
		for _, src := range []*event{at, at.parent} {
			src.unsure = src.unsure || src.counted == lease{p, d.Position.Epoch}
		}
	}
	// The relay does not count the failure of an event that it has copied
	// during the call.
	late := err != nil && f.direct && at.queued
	o := at.resultOf(p, d, err, canceled || late || at.agg != nil && failed[at.agg])
	o.direct, o.settled = f.direct, f.direct && at.queued
	if w.plan.to[f.to].kind == orderedSink && err != nil && at.agg != nil {
		failed[at.agg] = true
	}
	w.note(p, "returns", at, int64(d.Attempt), 0, o.class.String())
	delete(p.flying, f)
	if !f.crashed && !p.dead {
		at.landed(p, d, f, o)
		at.parent.landed(p, d, f, o)
	}
}

// suspectTo notes which events in flight are among the first rows of a lane in
// the backlog of a destination. Mu is held.
func (w *world) suspectTo(lease driver.Lease, to int) {
	if w.to[to].number == 0 {
		return
	}
	ctx, table := context.Background(), w.server.table(to)
	first := make(map[waybill.ID]bool)
	rows, _ := table.Sweep(ctx, []driver.Cursor{{Lane: lease.Lane}}, lease.Window)
	for i := range rows {
		first[rows[i].ID] = true
	}
	due, _ := table.Due(ctx, []int{lease.Lane}, lease.Window)
	for i := range due.Rows {
		first[due.Rows[i].ID] = true
	}
	w.suspectAt(lease.Lane, to, first)
}

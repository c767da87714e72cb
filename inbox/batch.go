package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// ConsumeBatch is [Group.Consume] for many events, with one statement for their
// records and one commit. The results are those of Consume, in the order of
// evs. If a handler fails, its event gets a transaction of its own and the
// other events are retried without it; no event is lost or applied twice.
func (g *Group[T]) ConsumeBatch(ctx context.Context, evs []waybill.Event, fn HandlerFunc[T]) []error {
	if fn == nil {
		return repeat(errors.New("inbox: the handler is nil"), len(evs))
	}
	b := batch[T]{g: g, results: make([]error, len(evs))}
	for i := range evs {
		b.add(i, &evs[i], fn, nil)
	}
	b.run(ctx)
	return b.results
}

func repeat(err error, n int) []error {
	out := make([]error, n)
	for i := range out {
		out[i] = err
	}
	return out
}

// batch holds events that are applied in one transaction where possible.
type batch[T any] struct {
	g       *Group[T]
	results []error
	list    []*member[T]
}

// member is an event of a batch.
type member[T any] struct {
	*consumption[T]
	at      int
	applied bool
	alone   bool // needs a transaction of its own
}

func (b *batch[T]) add(at int, ev *waybill.Event, fn HandlerFunc[T], fence *waybill.Delivery) {
	in, err := b.g.intake(ev)
	if err != nil {
		b.results[at] = err
		return
	}
	b.list = append(b.list, &member[T]{consumption: &consumption[T]{g: b.g, in: in, ev: ev, fn: fn, fence: fence}, at: at})
}

// together is the number of times a batch is retried without its failed events.
const together = 3

// run applies the events.
func (b *batch[T]) run(ctx context.Context) {
	if err := b.g.nested(ctx); err != nil {
		for _, m := range b.list {
			b.results[m.at] = err
		}
		return
	}
	// An event gets its own transaction if this process is already handling it,
	// if the batch contains it twice, or if it may have killed its consumer.
	entered := make(map[waybill.ID]bool, len(b.list))
	for _, m := range b.list {
		redelivered := m.fence != nil && m.fence.Repeated()
		if d, ok := waybill.DeliveryFrom(ctx); ok && d.ID == m.ev.ID && d.Repeated() {
			redelivered = true
		}
		m.alone = redelivered || entered[m.in.Key] || !b.g.enter(m.in.Key)
		if !m.alone {
			entered[m.in.Key] = true
		}
	}
	for range together {
		if !b.attempt(ctx) {
			break
		}
	}
	for key := range entered {
		b.g.leave(key)
	}
	for _, m := range b.list {
		if m.applied {
			continue
		}
		inner := ctx
		if m.fence != nil {
			inner = waybill.ContextWithDelivery(ctx, *m.fence)
		}
		if ctx.Err() != nil {
			b.results[m.at] = waybill.Later(0, m.wrap(context.Cause(ctx)))
			continue
		}
		res, err := b.g.consume(inner, &consumption[T]{ev: m.ev, fn: m.fn, fence: m.own()})
		b.results[m.at] = settled(res, err, m.own(), m.fence != nil && m.fence.Suspect)
	}
}

// own returns the delivery to settle together with the event, if any.
func (m *member[T]) own() *waybill.Delivery {
	if m.settles() {
		return m.fence
	}
	return nil
}

// attempt applies all eligible events in one transaction. It reports whether
// another attempt is worthwhile after one event failed.
func (b *batch[T]) attempt(ctx context.Context) bool {
	var members []*member[T]
	var ins []store.InboxEntry
	for _, m := range b.list {
		if !m.alone {
			members = append(members, m)
			ins = append(ins, m.in)
		}
	}
	if len(members) < 2 {
		return false
	}
	var accepted []*member[T]
	var failing *member[T]
	began := time.Now()
	err := b.g.inbox.runner.Run(ctx, nil, func(ctx context.Context, tx T) error {
		accepted, failing = nil, nil
		got, err := b.g.inbox.db.Accept(ctx, tx, waybill.NewID(), ins)
		if err != nil {
			return err
		}
		var done []waybill.Delivery
		for i, m := range members {
			if !got[i].Accepted {
				m.alone = true
				continue
			}
			inner := ctx
			if m.fence != nil {
				inner = waybill.ContextWithDelivery(ctx, *m.fence)
			}
			if err := m.apply(inner, tx, 1); err != nil {
				failing = m
				return err
			}
			accepted = append(accepted, m)
			if m.settles() {
				done = append(done, *m.fence)
			}
		}
		if len(done) == 0 {
			return b.g.prove(ctx, tx)
		}
		return b.g.inbox.finish.Finish(ctx, tx, done)
	})
	if err == nil {
		took := time.Since(began) / time.Duration(max(len(accepted), 1))
		for _, m := range accepted {
			m.applied = true
			if m.settles() {
				b.results[m.at] = waybill.ErrSettled
			}
			b.g.tell(m.ev, Result{Attempt: 1}, nil, took)
		}
		return false
	}
	// The transaction was rolled back or its outcome is unknown: consuming each
	// event on its own finds out.
	if failing == nil {
		return false
	}
	failing.alone = true
	return true
}

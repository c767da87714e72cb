package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// ConsumeBatch is [Group.Consume] for many events, with one statement for their
// records and one commit. The results are those of Consume, in the order of
// evs. If a handler fails, its event is applied in a separate transaction and
// the other events are retried without it; no event is lost or applied twice.
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
	alone   bool  // needs a transaction of its own
	failure error // of the handler, in a common transaction
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
	b.attemptTogether(ctx)
	overrun, first := ctx.Err() != nil, true
	for _, m := range b.list {
		switch {
		case m.applied:
		case overrun && m.failure != nil:
			b.results[m.at] = m.overran(ctx)
		default:
			m.shared = !first
			b.results[m.at] = m.consume(ctx)
			first = false
		}
	}
}

// attemptTogether applies as many events as possible in common transactions.
// They get half of the time of a context with a deadline: slow handlers would
// otherwise roll back the same batch each time it is delivered.
func (b *batch[T]) attemptTogether(ctx context.Context) {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	entered := b.enter(ctx)
	for range together {
		if !b.attempt(ctx) {
			break
		}
	}
	for key := range entered {
		b.g.leave(key)
	}
}

// enter decides which events get a transaction of their own, and enters the
// others. An event gets its own transaction if this process is already handling
// it, if the batch contains it twice, or if it may have killed its consumer.
func (b *batch[T]) enter(ctx context.Context) map[waybill.ID]bool {
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
	return entered
}

// consume applies the event in a transaction of its own.
func (m *member[T]) consume(ctx context.Context) error {
	if ctx.Err() != nil {
		return waybill.Later(0, m.wrap(context.Cause(ctx)))
	}
	res, err := m.g.consume(m.context(ctx), &consumption[T]{ev: m.ev, fn: m.fn, fence: m.own(), shared: m.shared})
	return settled(res, err, m.own(), m.fence != nil && m.fence.Suspect)
}

// overran records the failure of a handler that ignored the deadline of the
// common transaction and returned after the end of ctx. The event has no record
// yet: otherwise it would have had a transaction of its own.
func (m *member[T]) overran(ctx context.Context) error {
	err := m.failed(ctx, driver.Attempt{Owner: waybill.NewID()}, 1, m.failure)
	m.g.tell(m.ev, Result{}, err, 0)
	return err
}

// context returns the context of the handler, which has the delivery, if any.
func (m *member[T]) context(ctx context.Context) context.Context {
	if m.fence == nil {
		return ctx
	}
	return waybill.ContextWithDelivery(ctx, *m.fence)
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
	var out batchOutcome[T]
	began := time.Now()
	err := b.g.inbox.runner.Run(ctx, nil, func(ctx context.Context, tx T) error {
		out = batchOutcome[T]{}
		got, err := b.g.inbox.db.Accept(ctx, tx, waybill.NewID(), ins)
		if err != nil {
			return err
		}
		if out, err = applyAll(ctx, tx, members, got); err != nil {
			return err
		}
		if len(out.settles) == 0 {
			return b.g.prove(ctx, tx)
		}
		return b.g.inbox.settle(ctx, tx, out.settles)
	})
	if err == nil {
		b.applied(out.accepted, time.Since(began))
		return false
	}
	// The transaction was rolled back or its outcome is unknown: consuming each
	// event on its own finds out.
	if out.failing == nil {
		return false
	}
	out.failing.alone = true
	var failed failedError
	if errors.As(err, &failed) {
		out.failing.failure = failed.error
	}
	return true
}

// batchOutcome is the outcome of the handlers of one transaction.
type batchOutcome[T any] struct {
	accepted []*member[T]
	settles  []waybill.Delivery // the deliveries to settle in the transaction
	failing  *member[T]         // the member whose handler failed
}

// applyAll calls the handlers of the accepted members, up to the first one that
// fails.
func applyAll[T any](ctx context.Context, tx T, members []*member[T], got []driver.AcceptResult) (batchOutcome[T], error) {
	var out batchOutcome[T]
	for i, m := range members {
		if !got[i].Accepted {
			m.alone = true
			continue
		}
		if err := m.apply(m.context(ctx), tx, 1); err != nil {
			out.failing = m
			return out, err
		}
		out.accepted = append(out.accepted, m)
		if m.settles() {
			out.settles = append(out.settles, *m.fence)
		}
	}
	return out, nil
}

// applied records the members of a committed transaction.
func (b *batch[T]) applied(members []*member[T], took time.Duration) {
	each := took / time.Duration(max(len(members), 1))
	for _, m := range members {
		m.applied = true
		if m.settles() {
			b.results[m.at] = waybill.ErrSettled
		}
		b.g.tell(m.ev, Result{Attempt: 1}, nil, each)
	}
}

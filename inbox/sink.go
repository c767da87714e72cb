package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/kind"
	"github.com/waybillhq/waybill/store/driver"
)

// Deliver makes the group a sink: it applies the events of a relay or a broker
// source with the registered handlers. An event without a handler is
// [waybill.ErrNoHandler]. The group counts failures, so it returns them to the
// relay as [waybill.Later].
//
// If a relay on the same database delivers, applied events are settled in the
// same transaction.
func (g *Group[T]) Deliver(ctx context.Context, deliveries []waybill.Delivery) []error {
	b := batch[T]{g: g, results: make([]error, len(deliveries))}
	for i := range deliveries {
		d := &deliveries[i]
		fn := g.handler(&d.Event)
		if fn == nil {
			b.results[i] = fmt.Errorf("inbox: group %s: %w for %s of %s", g.name, waybill.ErrNoHandler, d.Type, d.AggregateType)
			continue
		}
		b.add(i, &d.Event, fn, d)
	}
	b.run(ctx)
	return b.results
}

// settles reports whether an event's delivery can be settled in the transaction
// with its effects: it comes from a relay on the same tables and has no other
// destination.
func (e *consumption[T]) settles() bool {
	if e.fence == nil || e.g.inbox.finish == nil {
		return false
	}
	claim := driver.ClaimOf(e.fence)
	return !claim.Token.IsZero() && claim.Source == e.g.inbox.db.Local()
}

// settled turns success into the result that tells a relay that nothing is left
// to settle, and a source that a suspect was applied before.
func settled(res Result, err error, fence *waybill.Delivery, suspect bool) error {
	switch {
	case err != nil:
		return err
	case res.Replayed && suspect:
		return waybill.ErrReplayed
	case fence != nil && !res.Replayed:
		return waybill.ErrSettled
	}
	return nil
}

// Consumer is a consumer group, independent of its transaction type.
type Consumer interface {
	Name() string
	Handles(aggregateType, eventType string) bool
	Deliver(ctx context.Context, deliveries []waybill.Delivery) []error
}

// Bus passes events to several groups. It is a sink.
type Bus struct{ consumers []Consumer }

// NewBus returns a bus. It panics if two groups have the same name.
func NewBus(consumers ...Consumer) *Bus {
	names := make(map[string]bool, len(consumers))
	for _, c := range consumers {
		if names[c.Name()] {
			panic("inbox: duplicate group " + c.Name() + " on one bus")
		}
		names[c.Name()] = true
	}
	return &Bus{consumers: append([]Consumer(nil), consumers...)}
}

// Publish has every group apply the events that it handles. The errors are
// joined: one group's failure does not stop the others. An event that no group
// handles is [waybill.ErrNoHandler].
func (b *Bus) Publish(ctx context.Context, evs ...waybill.Event) error {
	deliveries := make([]waybill.Delivery, len(evs))
	for i, ev := range evs {
		deliveries[i] = waybill.Delivery{Event: eventfill.Defaults(ev), Attempt: 1}
	}
	var errs []error
	for _, err := range b.Deliver(ctx, deliveries) {
		if class, _ := waybill.Classify(err); class != waybill.ClassDone {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Deliver implements the relay's Sink. A delivery is done when every group that
// handles it has applied it; a redelivery has no effect in groups that already
// applied it.
func (b *Bus) Deliver(ctx context.Context, deliveries []waybill.Delivery) []error {
	f := busDelivery{
		deliveries: deliveries, results: make([]error, len(deliveries)), handled: make([]int, len(deliveries)), replayed: make([]int, len(deliveries)),
	}
	takers := make([][]int, len(b.consumers))
	for c, consumer := range b.consumers {
		for i := range deliveries {
			if consumer.Handles(deliveries[i].AggregateType, deliveries[i].Type) {
				takers[c] = append(takers[c], i)
				f.handled[i]++
			}
		}
	}
	for c, consumer := range b.consumers {
		if len(takers[c]) > 0 {
			f.deliver(ctx, consumer, takers[c])
		}
	}
	for i := range deliveries {
		if f.replayed[i] > 0 && f.replayed[i] == f.handled[i] {
			f.results[i] = waybill.ErrReplayed // by every group that handles it
		}
		if f.handled[i] == 0 {
			f.results[i] = fmt.Errorf("inbox: %w for %s of %s in any group", waybill.ErrNoHandler, deliveries[i].Type, deliveries[i].AggregateType)
		}
	}
	return f.results
}

// busDelivery is a batch on its way to the groups of a bus. The slices have one
// element for each delivery.
type busDelivery struct {
	deliveries []waybill.Delivery
	results    []error
	handled    []int // the number of groups that handle it
	replayed   []int // the number of groups that had applied it
}

// deliver passes the deliveries with these indexes to one group.
func (f *busDelivery) deliver(ctx context.Context, consumer Consumer, indexes []int) {
	part := make([]waybill.Delivery, len(indexes))
	for n, i := range indexes {
		part[n] = f.deliveries[i]
		if f.handled[i] > 1 {
			// settled only after all groups applied it
			part[n].Claim = nil
		}
	}
	for n, err := range consumer.Deliver(ctx, part) {
		i := indexes[n]
		class, _ := waybill.Classify(err)
		switch {
		case f.handled[i] == 1:
			f.results[i] = err
		case errors.Is(err, waybill.ErrReplayed):
			f.replayed[i]++
		case class != waybill.ClassDone:
			f.results[i] = errors.Join(f.results[i], fmt.Errorf("group %s: %w", consumer.Name(), err))
		}
	}
}

// Destination names the events that a relay defers when a handler reports
// [waybill.Unavailable]: events of the same kind, and no others.
func (g *Group[T]) Destination(ev *waybill.Event) string { return kind.Name(ev.AggregateType, ev.Type) }

// Destination names the events that a relay defers when a handler reports
// [waybill.Unavailable].
func (b *Bus) Destination(ev *waybill.Event) string { return kind.Name(ev.AggregateType, ev.Type) }

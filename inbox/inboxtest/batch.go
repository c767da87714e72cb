package inboxtest

import (
	"context"
	"errors"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/store"
)

func batchChecks[T any]() []check[T] {
	return []check[T]{
		{name: "batch", run: batches[T]},
		{name: "batch_with_failures", run: batchWithFailures[T]},
	}
}

// batches: a batch contains new events, events applied before, duplicates and
// invalid events.
func batches[T any](b *env[T]) {
	g := b.in.MustGroup("G", inbox.Options{})
	var evs []waybill.Event
	for i := range 30 {
		evs = append(evs, event(i))
	}
	b.consume(g, evs[3], b.apply("batch"))
	// a duplicate; one without an id
	evs = append(evs, evs[5], waybill.Event{Type: "A"})
	other := evs[7]
	other.Type = "Another"
	evs = append(evs, other)
	var order []string
	results := g.ConsumeBatch(context.Background(), evs, func(ctx context.Context, tx T, ev waybill.Event) error {
		order = append(order, string(ev.Payload))
		if d, ok := waybill.DeliveryFrom(ctx); !ok || d.ID != ev.ID {
			b.Error("the context does not carry the event")
		}
		return b.effect(ctx, tx, "batch")
	})
	for i, err := range results {
		class, _ := waybill.Classify(err)
		switch {
		case i == 31 && class == waybill.ClassPermanent && !errors.Is(err, waybill.ErrConflict):
		case i == 32 && errors.Is(err, waybill.ErrConflict):
		case i < 31 && err == nil:
		default:
			b.Errorf("event %d: %v", i, err)
		}
	}
	if len(order) != 29 || !slices.IsSortedFunc(order, func(x, y string) int { return len(x) - len(y) }) {
		b.Errorf("the handler was called for %v", order)
	}
	b.wantEffects("batch", 30)
}

// batchWithFailures: failed events are recorded, the others are applied once.
func batchWithFailures[T any](b *env[T]) {
	g := b.in.MustGroup("G", inbox.Options{})
	for _, bad := range [][]int{{0}, {4, 9}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}} {
		var evs []waybill.Event
		for i := range 10 {
			evs = append(evs, event(i))
		}
		name := named("batch", len(bad))
		results := g.ConsumeBatch(context.Background(), evs, func(ctx context.Context, tx T, ev waybill.Event) error {
			if err := b.effect(ctx, tx, name); err != nil {
				return err
			}
			if i := slices.IndexFunc(evs, func(e waybill.Event) bool { return e.ID == ev.ID }); slices.Contains(bad, i) {
				return errNo
			}
			return nil
		})
		for i, err := range results {
			rec := b.record(g, evs[i])
			if slices.Contains(bad, i) {
				b.wantError(err, errNo, waybill.ClassDefer)
				if rec.State != store.InboxFailed || rec.Attempts != 1 {
					b.Errorf("event %d failed: %+v", i, rec)
				}
			} else if err != nil || rec.State != store.InboxSucceeded {
				b.Errorf("event %d: %v, %+v", i, err, rec)
			}
		}
		b.wantEffects(name, 10-len(bad))
	}
}

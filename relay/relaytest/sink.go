package relaytest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// sinkChecks are the checks of sinks that settle in their own transaction.
func sinkChecks[T any]() []check[T] {
	return []check[T]{{name: "settles_itself", run: settlesItself[T]}}
}

// ownTx is a sink that writes to the same database: its effect and the event's
// settlement are one commit.
type ownTx[T any] struct {
	*recorder
	b    *env[T]
	fail func(d waybill.Delivery) error
}

func (s *ownTx[T]) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	results := make([]error, len(batch))
	for i, d := range batch {
		if err := s.take(d); err != nil {
			results[i] = err
			continue
		}
		results[i] = s.b.box.InTx(ctx, func(ctx context.Context, tx T) error {
			if s.b.Insert != nil {
				if err := s.b.Insert(ctx, tx, "effect "+d.ID.String()); err != nil {
					return err
				}
			}
			if err := s.fail(d); err != nil {
				return err
			}
			return s.b.DB.Finisher.Finish(ctx, tx, batch[i:i+1])
		})
		if results[i] == nil {
			results[i] = waybill.ErrSettled
		}
	}
	return results
}

// settlesItself: settlement and effect are one commit; a failure in between
// leaves neither; the relay sends no other settlement.
func settlesItself[T any](b *env[T]) {
	var settled atomic.Int64
	db := &broken{Relay: b.DB.Relay, settle: func(_ context.Context, s driver.Settlement, next func() (driver.Settled, error)) (driver.Settled, error) {
		settled.Add(int64(len(s.Done)))
		return next()
	}}
	sink := &ownTx[T]{recorder: &recorder{}, b: b, fail: func(d waybill.Delivery) error {
		if d.Attempt == 1 && string(d.Payload) == "3" {
			return errors.New("after the effect")
		}
		return nil
	}}
	var evs []waybill.Event
	for i := range 12 {
		evs = append(evs, event(fmt.Sprint("a", i%3), i))
	}
	b.startOn(db, sink, b.quick())
	b.write(evs...)
	b.awaitEmpty()
	b.wantOrder(sink.all())
	for _, ev := range evs {
		row := b.find(ev.ID)
		if row.State != store.Delivered {
			b.Errorf("event %s is %s", ev.Payload, row.State)
		}
		if b.Count == nil {
			continue
		}
		if n, err := b.Count(b.Context(), "effect "+ev.ID.String()); err != nil || n != 1 {
			b.Errorf("event %s has %d effects (%v), want 1", ev.Payload, n, err)
		}
	}
	if n := settled.Load(); n != 0 {
		b.Errorf("the relay settled %d events that were settled", n)
	}
}

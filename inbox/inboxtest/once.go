package inboxtest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/store"
)

func onceChecks[T any]() []check[T] {
	return []check[T]{
		{name: "a_hundred_in_parallel", run: parallel[T]},
		{name: "busy_elsewhere", concurrent: true, run: busyElsewhere[T]},
		{name: "replayed", run: replayed[T]},
		{name: "another_type_or_payload", run: conflict[T]},
		{name: "two_groups", run: twoGroups[T]},
		{name: "two_handlers", run: twoHandlers[T]},
		{name: "nested", run: nested[T]},
		{name: "ended_by_the_handler", run: endedByHandler[T]},
		{name: "by_dedup_key", run: byDedupKey[T]},
		{name: "no_id", run: noID[T]},
		{name: "wait", run: waits[T]},
	}
}

// parallel: the same event, consumed by many goroutines over two stores where
// the harness has two, has one effect; the other calls see the effect or that
// it is in progress.
func parallel[T any](b *env[T]) {
	groups := []*inbox.Group[T]{b.in.MustGroup("G", inbox.Options{})}
	if b.features.SecondStore {
		other, err := inbox.New[T](b.Second(), inbox.Config{})
		if err != nil {
			b.Fatal(err)
		}
		groups = append(groups, other.MustGroup("G", inbox.Options{}))
	}
	ev := event(1)
	var applied, replayed, busy atomic.Int64
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			res, err := groups[i%len(groups)].Consume(context.Background(), ev, b.apply("once"))
			switch {
			case err == nil && res.Replayed:
				replayed.Add(1)
			case err == nil:
				applied.Add(1)
			case errors.Is(err, waybill.ErrInProgress):
				busy.Add(1)
			default:
				b.Errorf("Consume: %v", err)
			}
		})
	}
	all.Wait()
	if applied.Load() != 1 || replayed.Load()+busy.Load() != 99 {
		b.Errorf("%d applied it, %d saw that it was, %d that it is being", applied.Load(), replayed.Load(), busy.Load())
	}
	b.wantEffects("once", 1)
}

// busyElsewhere: while another process's transaction is handling the event, a
// duplicate fails at once with ErrInProgress.
func busyElsewhere[T any](b *env[T]) {
	if !b.features.SecondStore {
		b.Skip("there is one store")
	}
	other, err := inbox.New[T](b.Second(), inbox.Config{})
	if err != nil {
		b.Fatal(err)
	}
	one, two := b.in.MustGroup("G", inbox.Options{}), other.MustGroup("G", inbox.Options{})
	ev := event(1)
	b.consume(one, ev, func(ctx context.Context, tx T, _ waybill.Event) error {
		_, err := two.Consume(context.Background(), ev, b.never())
		b.wantError(err, waybill.ErrInProgress, waybill.ClassDefer)
		return b.effect(ctx, tx, "once")
	})
	if res, err := two.Consume(context.Background(), ev, b.never()); err != nil || !res.Replayed {
		b.Errorf("after the commit: %+v, %v", res, err)
	}
	b.wantEffects("once", 1)
}

func replayed[T any](b *env[T]) {
	g := b.in.MustGroup("G", inbox.Options{})
	ev := event(1)
	b.consume(g, ev, b.apply("once"))
	for _, ctx := range []context.Context{context.Background(), redelivered(ev, 2)} {
		if res, err := g.Consume(ctx, ev, b.never()); err != nil || !res.Replayed {
			b.Errorf("Consume again: %+v, %v", res, err)
		}
	}
	b.wantEffects("once", 1)
	rec := b.record(g, ev)
	if rec.State != store.InboxSucceeded || rec.ProcessedAt.IsZero() || rec.Attempts != 1 || rec.Event != ev.ID || rec.Type != ev.Type {
		b.Errorf("its record is %+v", rec)
	}
}

// conflict: the same id with different content is refused and changes nothing,
// in every state of the record.
func conflict[T any](b *env[T]) {
	g := b.in.MustGroup("G", inbox.Options{BackoffBase: time.Nanosecond, BackoffMax: time.Nanosecond})
	done, failed := event(1), event(2)
	b.consume(g, done, b.apply("done"))
	if _, err := g.Consume(context.Background(), failed, b.failing("failed", errNo)); err == nil {
		b.Fatal("it did not fail")
	}
	for _, ev := range []waybill.Event{done, failed} {
		before := b.record(g, ev)
		otherType, otherPayload := ev, ev
		otherType.Type = "Another"
		otherPayload.Payload = []byte("3")
		for _, wrong := range []waybill.Event{otherType, otherPayload} {
			for _, ctx := range []context.Context{context.Background(), redelivered(wrong, 2)} {
				_, err := g.Consume(ctx, wrong, b.never())
				b.wantError(err, waybill.ErrConflict, waybill.ClassPermanent)
			}
		}
		after := b.record(g, ev)
		after.Now = before.Now
		if after.State != before.State || after.Fence != before.Fence || after.Attempts != before.Attempts {
			b.Errorf("the record was %+v and is %+v", before, after)
		}
	}
}

func twoGroups[T any](b *env[T]) {
	one, two := b.in.MustGroup("one", inbox.Options{}), b.in.MustGroup("two", inbox.Options{})
	ev := event(1)
	if _, err := one.Consume(context.Background(), ev, b.failing("one", errNo)); err == nil {
		b.Error("it did not fail")
	}
	b.consume(two, ev, b.apply("two"))
	b.wantEffects("one", 0)
	b.wantEffects("two", 1)
}

func twoHandlers[T any](b *env[T]) {
	g := b.in.MustGroup("G", inbox.Options{})
	g.Handle("", "A", b.never())
	if !g.Handles(waybill.GlobalAggregate, "A") || g.Handles("other", "A") || g.Handles("", "B") {
		b.Error("the group does not know what it handles")
	}
	mustPanic := func(what string, fn func()) {
		defer func() {
			if recover() == nil {
				b.Errorf("%s did not panic", what)
			}
		}()
		fn()
	}
	mustPanic("a second handler", func() { g.Handle("", "A", b.never()) })
	mustPanic("a second group", func() { b.in.MustGroup("G", inbox.Options{}) })
	mustPanic("two groups of one name on a bus", func() { inbox.NewBus(g, g) })
}

// nested: nil means that the effect is committed, which cannot hold inside an
// open transaction.
func nested[T any](b *env[T]) {
	g := b.in.MustGroup("G", inbox.Options{})
	ev := event(1)
	err := b.box.InTx(context.Background(), func(ctx context.Context, _ T) error {
		_, err := g.Consume(ctx, ev, b.never())
		if !errors.Is(err, waybill.ErrNested) {
			b.Errorf("Consume: %v", err)
		}
		_, err = g.ConsumeLeased(ctx, ev, func(context.Context, *inbox.Lease[T]) error { b.Error("it was called"); return nil })
		if !errors.Is(err, waybill.ErrNested) {
			b.Errorf("ConsumeLeased: %v", err)
		}
		for _, err := range g.ConsumeBatch(ctx, []waybill.Event{ev}, b.never()) {
			if !errors.Is(err, waybill.ErrNested) {
				b.Errorf("ConsumeBatch: %v", err)
			}
		}
		return nil
	})
	if err != nil {
		b.Error(err)
	}
	b.wantNone(g, ev)
}

// endedByHandler: the transaction ends without the group's knowledge, as after
// a deadlock whose error the handler swallows.
func endedByHandler[T any](b *env[T]) {
	if !b.features.SavepointSQL {
		b.Skip("this store has no SQL text")
	}
	g := b.in.MustGroup("G", inbox.Options{})
	one, two, three := event(1), event(2), event(3)
	ended := func(ctx context.Context, tx T, ev waybill.Event) error {
		if ev.ID == one.ID {
			return b.effect(ctx, tx, "fine")
		}
		if err := b.effect(ctx, tx, "ended"); err != nil {
			return err
		}
		return b.Exec(ctx, tx, "ROLLBACK")
	}
	errs := g.ConsumeBatch(context.Background(), []waybill.Event{one, two}, ended)
	_, err := g.Consume(context.Background(), three, ended)
	if errs[0] != nil || errs[1] == nil || err == nil {
		b.Errorf("the results are %v and %v", errs, err)
	}
	b.wantEffects("fine", 1)
	b.wantEffects("ended", 0)
	for _, ev := range []waybill.Event{two, three} {
		if rec, ok, err := g.Find(context.Background(), ev); err != nil || ok && rec.State == store.InboxSucceeded {
			b.Errorf("its record is %+v, %v", rec, err)
		}
	}
}

func byDedupKey[T any](b *env[T]) {
	g := b.in.MustGroup("G", inbox.Options{Key: inbox.ByDedupKey})
	one, again, tenant := event(1), event(2), event(3)
	one.DedupKey, again.DedupKey, tenant.DedupKey, tenant.TenantID = "order-1:paid", "order-1:paid", "order-1:paid", "t"
	b.consume(g, one, b.apply("key"))
	if res, err := g.Consume(context.Background(), again, b.never()); err != nil || !res.Replayed {
		b.Errorf("the same key under another id: %+v, %v", res, err)
	}
	b.consume(g, tenant, b.apply("key"))
	b.consume(g, event(4), b.apply("key"))
	b.wantEffects("key", 3)
}

func noID[T any](b *env[T]) {
	g := b.in.MustGroup("G", inbox.Options{})
	_, err := g.Consume(context.Background(), waybill.Event{Type: "A"}, b.never())
	if class, _ := waybill.Classify(err); class != waybill.ClassPermanent {
		b.Errorf("an event without an id: %v of class %v", err, class)
	}
}

// waits: a waiting call sees how the other attempt ends, and waits no longer
// than WaitMax.
func waits[T any](b *env[T]) {
	o := inbox.Options{WaitIfInProgress: true, WaitMax: 20 * time.Second}
	g := b.in.MustGroup("G", o)
	o.WaitMax = 30 * time.Millisecond
	short := b.in.MustGroup("short", o)
	long := event(3)
	begun := func(g *inbox.Group[T], ev waybill.Event, go_ <-chan struct{}, result error) (started chan struct{}, done chan error) {
		started, done = make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := g.ConsumeLeased(context.Background(), ev, func(context.Context, *inbox.Lease[T]) error {
				close(started)
				<-go_
				return result
			})
			done <- err
		}()
		return started, done
	}
	for _, c := range []struct{ result, want error }{{nil, nil}, {errNo, inbox.ErrConsumeFailed}} {
		// A call that arrives after the other attempt has ended did not wait:
		// the check is repeated with another event.
		b.await("a waiting call sees how the attempt ends", func() bool {
			ev := event(1)
			end := make(chan struct{})
			started, done := begun(g, ev, end, c.result)
			<-started
			waited := make(chan error, 1)
			go func() {
				res, err := g.Consume(context.Background(), ev, b.never())
				if err == nil && !res.Replayed {
					err = errors.New("it was applied")
				}
				waited <- err
			}()
			<-time.After(10 * time.Millisecond)
			close(end)
			err := <-waited
			<-done
			if err != nil && !errors.Is(err, c.want) && !errors.Is(err, waybill.ErrNotDue) {
				b.Fatalf("waiting: %v, want %v", err, c.want)
			}
			return errors.Is(err, c.want)
		})
	}
	end := make(chan struct{})
	started, done := begun(short, long, end, nil)
	<-started
	_, err := short.Consume(context.Background(), long, b.never())
	b.wantError(err, waybill.ErrInProgress, waybill.ClassDefer)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := g.Consume(ended, event(4), b.never()); err == nil {
		b.Error("Consume with a context that has ended returned nil")
	}
	close(end)
	if err := <-done; err != nil {
		b.Error(err)
	}
}

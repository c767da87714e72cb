package inboxtest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/store"
)

func failChecks[T any]() []check[T] {
	return []check[T]{
		{name: "37_failure_is_recorded", run: failureRecorded[T]},
		{name: "37_panic", run: panics[T]},
		{name: "38_not_due_then_again", run: notDue[T]},
		{name: "38_dead_after_max", run: deadAfterMax[T]},
		{name: "38_permanent", run: permanent[T]},
		{name: "38_uncounted", run: uncounted[T]},
		{name: "38_redrive", run: redrive[T]},
		{name: "41a_killed", run: killed[T]},
	}
}

var eager = inbox.Options{BaseBackoff: time.Microsecond, MaxBackoff: time.Microsecond}

// failureRecorded: the effects are rolled back, and the failure is there all the same, without a lease that the next attempt would have to
// wait for.
func failureRecorded[T any](b *bed[T]) {
	g := b.in.Group("G", inbox.Options{})
	ev := event(1)
	for n, ctx := range []context.Context{context.Background(), redelivered(event(2), 2)} {
		if d, ok := waybill.DeliveryFrom(ctx); ok {
			ev = d.Event
		}
		_, err := g.Consume(ctx, ev, b.failing("failed", errNo))
		b.wantError(err, errNo, waybill.Uncounted)
		if _, delay := waybill.Classify(err); delay != time.Second {
			b.Errorf("way %d: it says to come back in %v, want 1s", n, delay)
		}
		rec := b.record(g, ev)
		if rec.State != store.InboxFailed || rec.Attempts != 1 || !rec.NextRetryAt.After(rec.Now) || !strings.Contains(rec.LastError, "no") {
			b.Errorf("way %d: the record is %+v", n, rec)
		}
		if !rec.LeaseUntil.IsZero() || !rec.Owner.IsZero() {
			b.Errorf("way %d: the failure left a lease behind: %+v", n, rec)
		}
	}
	b.wantEffects("failed", 0)
}

func panics[T any](b *bed[T]) {
	g := b.in.Group("G", inbox.Options{})
	ev := event(1)
	_, err := g.Consume(context.Background(), ev, func(ctx context.Context, tx T, _ waybill.Event) error {
		_ = b.effect(ctx, tx, "panic")
		panic(errNo)
	})
	b.wantError(err, errNo, waybill.Uncounted)
	if rec := b.record(g, ev); rec.State != store.InboxFailed || rec.Attempts != 1 {
		b.Errorf("the record is %+v", rec)
	}
	b.wantEffects("panic", 0)
}

func notDue[T any](b *bed[T]) {
	later := b.in.Group("later", inbox.Options{BaseBackoff: time.Hour, MaxBackoff: time.Hour})
	ev := event(1)
	if _, err := later.Consume(context.Background(), ev, b.failing("a", errNo)); err == nil {
		b.Fatal("it did not fail")
	}
	_, err := later.Consume(context.Background(), ev, b.never())
	b.wantError(err, waybill.ErrNotDue, waybill.Uncounted)
	if _, delay := waybill.Classify(err); delay < 59*time.Minute || delay > time.Hour {
		b.Errorf("it is due in %v", delay)
	}
	soon := b.in.Group("soon", eager)
	if _, err := soon.Consume(context.Background(), ev, b.failing("b", errNo)); err == nil {
		b.Fatal("it did not fail")
	}
	b.await("it is due", func() bool {
		res, err := soon.Consume(context.Background(), ev, b.apply("b"))
		if err != nil && !errors.Is(err, waybill.ErrNotDue) {
			b.Fatal(err)
		}
		if err == nil && (res.Attempt != 2 || res.Replayed) {
			b.Errorf("the result is %+v", res)
		}
		return err == nil
	})
	b.wantEffects("b", 1)
	if rec := b.record(soon, ev); rec.State != store.InboxSucceeded || rec.Attempts != 2 || rec.Fence < 2 {
		b.Errorf("the record is %+v", rec)
	}
}

// exhaust has an event fail until it is dead, and returns how often the handler ran.
func (b *bed[T]) exhaust(g *inbox.Group[T], ev waybill.Event) int {
	ran := 0
	b.await("it is dead", func() bool {
		_, err := g.Consume(context.Background(), ev, func(context.Context, T, waybill.Event) error { ran++; return errNo })
		return errors.Is(err, waybill.ErrDead)
	})
	return ran
}

func deadAfterMax[T any](b *bed[T]) {
	o := eager
	o.MaxRetry = 2
	g := b.in.Group("G", o)
	ev := event(1)
	if ran := b.exhaust(g, ev); ran != 3 {
		b.Errorf("the handler ran %d times, want once and two retries", ran)
	}
	rec := b.record(g, ev)
	if rec.State != store.InboxDead || rec.Attempts != 3 || !strings.Contains(rec.LastError, "exceeded maxRetry") || !strings.Contains(rec.LastError, "no") {
		b.Errorf("the record is %+v", rec)
	}
	_, err := g.Consume(context.Background(), ev, b.never())
	b.wantError(err, waybill.ErrDead, waybill.Dead)
	o.MaxRetry = -1
	never := b.in.Group("never", o)
	if ran := b.exhaust(never, ev); ran != 1 {
		b.Errorf("without retries the handler ran %d times", ran)
	}
}

func permanent[T any](b *bed[T]) {
	g := b.in.Group("G", inbox.Options{})
	ev := event(1)
	_, err := g.Consume(context.Background(), ev, b.failing("p", waybill.Permanent(errNo)))
	b.wantError(err, waybill.ErrDead, waybill.Dead)
	if rec := b.record(g, ev); rec.State != store.InboxDead || rec.Attempts != 1 {
		b.Errorf("the record is %+v", rec)
	}
	b.wantEffects("p", 0)
}

// uncounted: what is not the event's fault spends no attempt, and neither does a shutdown.
func uncounted[T any](b *bed[T]) {
	g := b.in.Group("G", inbox.Options{})
	fresh, again := event(1), event(2)
	for _, result := range []error{waybill.Later(time.Minute, errNo), waybill.Unavailable(errNo)} {
		class, _ := waybill.Classify(result)
		_, err := g.Consume(context.Background(), fresh, b.failing("u", result))
		b.wantError(err, errNo, class)
		b.wantNone(g, fresh)
		_, err = g.Consume(redelivered(again, 2), again, b.failing("u", result))
		b.wantError(err, errNo, class)
		if rec := b.record(g, again); rec.State != store.InboxFailed || rec.Attempts != 0 || rec.NextRetryAt.After(rec.Now) {
			b.Errorf("the record is %+v", rec)
		}
	}
	ctx, cancel := context.WithCancel(redelivered(again, 2))
	_, err := g.Consume(ctx, again, func(ctx context.Context, _ T, _ waybill.Event) error {
		cancel()
		return ctx.Err()
	})
	b.wantError(err, context.Canceled, waybill.Uncounted)
	if rec := b.record(g, again); rec.State != store.InboxFailed || rec.Attempts != 0 {
		b.Errorf("after a shutdown the record is %+v", rec)
	}
	b.wantEffects("u", 0)
}

// redrive: an operator lets a dead event be tried again; its fence goes on from where it was.
func redrive[T any](b *bed[T]) {
	o := eager
	o.MaxRetry = 1
	g := b.in.Group("G", o)
	one, two := event(1), event(2)
	b.exhaust(g, one)
	b.exhaust(g, two)
	db := b.DB
	before := b.record(g, one)
	if n, err := db.Redrive(context.Background(), "G", []waybill.ID{one.ID}, 10); err != nil || n != 1 {
		b.Fatalf("Redrive: %d, %v", n, err)
	}
	rec := b.record(g, one)
	if rec.State != store.InboxFailed || rec.Attempts != 0 || rec.Fence != before.Fence || rec.NextRetryAt.After(rec.Now) {
		b.Errorf("the record was %+v and is %+v", before, rec)
	}
	b.consume(g, one, b.apply("driven"))
	if rec := b.record(g, one); rec.Fence <= before.Fence {
		b.Errorf("the fence was %d and is %d", before.Fence, rec.Fence)
	}
	if n, err := db.Redrive(context.Background(), "G", nil, 10); err != nil || n != 1 {
		b.Errorf("Redrive of all: %d, %v", n, err)
	}
	b.consume(g, two, b.apply("driven"))
	b.wantEffects("driven", 2)
}

// killed: an event whose consumers all die comes to an end. What they leave behind is a claim whose lease runs out.
func killed[T any](b *bed[T]) {
	g := b.in.Group("G", inbox.Options{MaxRetry: 2, LockTTL: time.Millisecond})
	ev := event(1)
	attempts := 0
	b.await("it is dead", func() bool {
		_, err := g.Consume(redelivered(ev, 2+attempts), ev, func(ctx context.Context, tx T, _ waybill.Event) error {
			attempts++
			<-time.After(5 * time.Millisecond) // until the lease is over: to the table, this consumer is gone
			return b.effect(ctx, tx, "killed")
		})
		if err == nil {
			b.Fatal("it was applied")
		}
		return errors.Is(err, waybill.ErrDead)
	})
	if attempts != 3 {
		b.Errorf("%d attempts, want 3", attempts)
	}
	if rec := b.record(g, ev); rec.State != store.InboxDead || !strings.Contains(rec.LastError, "exceeded maxRetry") {
		b.Errorf("the record is %+v", rec)
	}
	b.wantEffects("killed", 0)
}

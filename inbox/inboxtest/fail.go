package inboxtest

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

func failChecks[T any]() []check[T] {
	return []check[T]{
		{name: "failure_is_recorded", run: failureRecorded[T]},
		{name: "panic", run: panics[T]},
		{name: "not_due_then_again", run: notDue[T]},
		{name: "dead_after_max", run: deadAfterMax[T]},
		{name: "permanent", run: permanent[T]},
		{name: "uncounted", run: uncounted[T]},
		{name: "redrive", run: redrive[T]},
		{name: "killed", run: killed[T]},
		{name: "suspects", run: suspects[T]},
		{name: "abandoned", run: abandoned[T]},
		{name: "alone", run: alone[T]},
	}
}

var eager = inbox.Options{BackoffBase: time.Microsecond, BackoffMax: time.Microsecond}

// failureRecorded: the effects are rolled back and the failure is recorded,
// without a lease that would delay the next attempt.
func failureRecorded[T any](b *env[T]) {
	g := b.in.MustGroup("G", inbox.Options{})
	ev := event(1)
	for n, ctx := range []context.Context{context.Background(), redelivered(event(2), 2)} {
		if d, ok := waybill.DeliveryFrom(ctx); ok {
			ev = d.Event
		}
		_, err := g.Consume(ctx, ev, b.failing("failed", errNo))
		b.wantError(err, errNo, waybill.ClassDefer)
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

func panics[T any](b *env[T]) {
	g := b.in.MustGroup("G", inbox.Options{})
	ev := event(1)
	_, err := g.Consume(context.Background(), ev, func(ctx context.Context, tx T, _ waybill.Event) error {
		_ = b.effect(ctx, tx, "panic")
		panic(errNo)
	})
	b.wantError(err, errNo, waybill.ClassDefer)
	if rec := b.record(g, ev); rec.State != store.InboxFailed || rec.Attempts != 1 {
		b.Errorf("the record is %+v", rec)
	}
	b.wantEffects("panic", 0)
}

func notDue[T any](b *env[T]) {
	later := b.in.MustGroup("later", inbox.Options{BackoffBase: time.Hour, BackoffMax: time.Hour})
	ev := event(1)
	if _, err := later.Consume(context.Background(), ev, b.failing("a", errNo)); err == nil {
		b.Fatal("it did not fail")
	}
	_, err := later.Consume(context.Background(), ev, b.never())
	b.wantError(err, waybill.ErrNotDue, waybill.ClassDefer)
	if _, delay := waybill.Classify(err); delay < 59*time.Minute || delay > time.Hour {
		b.Errorf("it is due in %v", delay)
	}
	soon := b.in.MustGroup("soon", eager)
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

// exhaust fails an event until it is dead, and returns how often the handler
// ran.
func (b *env[T]) exhaust(g *inbox.Group[T], ev waybill.Event) int {
	ran := 0
	b.await("it is dead", func() bool {
		_, err := g.Consume(context.Background(), ev, func(context.Context, T, waybill.Event) error { ran++; return errNo })
		return errors.Is(err, waybill.ErrDead)
	})
	return ran
}

func deadAfterMax[T any](b *env[T]) {
	o := eager
	o.MaxAttempts = 3
	g := b.in.MustGroup("G", o)
	ev := event(1)
	if ran := b.exhaust(g, ev); ran != 3 {
		b.Errorf("the handler ran %d times, want once and two retries", ran)
	}
	rec := b.record(g, ev)
	if rec.State != store.InboxDead || rec.Attempts != 3 || !strings.Contains(rec.LastError, "exceeded max attempts") || !strings.Contains(rec.LastError, "no") {
		b.Errorf("the record is %+v", rec)
	}
	_, err := g.Consume(context.Background(), ev, b.never())
	b.wantError(err, waybill.ErrDead, waybill.ClassPermanent)
	o.MaxAttempts = 1
	never := b.in.MustGroup("never", o)
	if ran := b.exhaust(never, ev); ran != 1 {
		b.Errorf("without retries the handler ran %d times", ran)
	}
}

func permanent[T any](b *env[T]) {
	g := b.in.MustGroup("G", inbox.Options{})
	ev := event(1)
	_, err := g.Consume(context.Background(), ev, b.failing("p", waybill.Permanent(errNo)))
	b.wantError(err, waybill.ErrDead, waybill.ClassPermanent)
	if rec := b.record(g, ev); rec.State != store.InboxDead || rec.Attempts != 1 {
		b.Errorf("the record is %+v", rec)
	}
	b.wantEffects("p", 0)
}

// uncounted: an error that is not the event's fault spends no attempt, and
// neither does a shutdown.
func uncounted[T any](b *env[T]) {
	g := b.in.MustGroup("G", inbox.Options{})
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
	b.wantError(err, context.Canceled, waybill.ClassDefer)
	if rec := b.record(g, again); rec.State != store.InboxFailed || rec.Attempts != 0 {
		b.Errorf("after a shutdown the record is %+v", rec)
	}
	b.wantEffects("u", 0)
}

// redrive: an operator lets a dead event be retried; its fence continues from
// the previous value.
func redrive[T any](b *env[T]) {
	o := eager
	o.MaxAttempts = 2
	g := b.in.MustGroup("G", o)
	one, two := event(1), event(2)
	b.exhaust(g, one)
	b.exhaust(g, two)
	db := b.DB
	before := b.record(g, one)
	if n, err := db.InboxRecords.Redrive(context.Background(), "G", []waybill.ID{one.ID}, 10); err != nil || n != 1 {
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
	if n, err := db.InboxRecords.Redrive(context.Background(), "G", nil, 10); err != nil || n != 1 {
		b.Errorf("Redrive of all: %d, %v", n, err)
	}
	b.consume(g, two, b.apply("driven"))
	b.wantEffects("driven", 2)
}

// killed: an event whose consumers all die becomes dead. Each dead consumer
// leaves a claim whose lease expires.
func killed[T any](b *env[T]) {
	in, err := inbox.New[T](testroles.Of[T](gone[T]{b.DB.Inbox}), inbox.Config{})
	if err != nil {
		b.Fatal(err)
	}
	g := in.MustGroup("G", inbox.Options{MaxAttempts: 3, Lease: time.Millisecond})
	attempts := 0
	die := func(ctx context.Context, tx T, _ waybill.Event) error {
		attempts++
		return b.effect(ctx, tx, "killed")
	}
	g.Handle("", "Happened", die)
	consume := func(d waybill.Delivery) error {
		_, err := g.Consume(waybill.ContextWithDelivery(context.Background(), d), d.Event, die)
		return err
	}
	deliver := func(d waybill.Delivery) error { return g.Deliver(context.Background(), []waybill.Delivery{d})[0] }
	for n, way := range []struct {
		take func(waybill.Delivery) error
		d    func() waybill.Delivery
	}{
		{consume, func() waybill.Delivery { return waybill.Delivery{Attempt: 2 + attempts} }},
		{consume, func() waybill.Delivery { return waybill.Delivery{Attempt: 1, Uncounted: true} }},
		{consume, func() waybill.Delivery { return waybill.Delivery{Attempt: 1, Suspect: true} }},
		{deliver, func() waybill.Delivery { return waybill.Delivery{Attempt: 1, Uncounted: true} }},
		{deliver, func() waybill.Delivery { return waybill.Delivery{Attempt: 1, Suspect: true} }},
	} {
		ev := event(n)
		attempts = 0
		b.await("it is dead", func() bool {
			d := way.d()
			d.Event = ev
			err := way.take(d)
			if err == nil || attempts > 3 {
				b.Fatalf("way %d: after %d attempts: %v", n, attempts, err)
			}
			return errors.Is(err, waybill.ErrDead)
		})
		if attempts != 3 {
			b.Errorf("way %d: %d attempts, want 3", n, attempts)
		}
		if rec := b.record(g, ev); rec.State != store.InboxDead || !strings.Contains(rec.LastError, "exceeded max attempts") {
			b.Errorf("way %d: the record is %+v", n, rec)
		}
	}
	b.wantEffects("killed", 0)
}

// suspects: of all events that may kill their consumer, one at a time has an
// attempt counted, however many are delivered at once and to whichever group,
// because an attempt that dies together with a killer is counted too.
func suspects[T any](b *env[T]) {
	one, two := b.in.MustGroup("one", inbox.Options{}), b.in.MustGroup("two", inbox.Options{})
	var ds []waybill.Delivery
	for n := range 12 {
		ds = append(ds, waybill.Delivery{Event: event(n), Attempt: 1, Suspect: true})
	}
	var under atomic.Int64
	handle := func(ctx context.Context, tx T, _ waybill.Event) error {
		if n := under.Add(1); n != 1 {
			b.Errorf("%d suspects are being handled", n)
		}
		defer under.Add(-1)
		for range 3 {
			runtime.Gosched()
		}
		return b.effect(ctx, tx, "suspect")
	}
	one.Handle("", "Happened", handle)
	two.Handle("", "Happened", handle)
	bus := inbox.NewBus(one, two)
	var all sync.WaitGroup
	for i := 0; i < len(ds); i += 4 {
		all.Go(func() {
			for _, err := range bus.Deliver(context.Background(), ds[i:i+4]) {
				if err != nil {
					b.Errorf("Deliver: %v", err)
				}
			}
		})
	}
	all.Wait()
	b.wantEffects("suspect", 2*len(ds))
	for _, g := range []*inbox.Group[T]{one, two} {
		for _, d := range ds {
			if rec := b.record(g, d.Event); rec.State != store.InboxSucceeded || rec.Attempts != 1 {
				b.Errorf("the record is %+v", rec)
			}
		}
	}
	// A group reports a suspect that was applied before, and so does a bus if
	// all groups have applied it.
	extra := waybill.Delivery{Event: event(100), Attempt: 1, Suspect: true}
	if err := errors.Join(one.Deliver(context.Background(), []waybill.Delivery{extra})...); err != nil {
		b.Errorf("Deliver: %v", err)
	}
	b.wantError(one.Deliver(context.Background(), []waybill.Delivery{extra})[0], waybill.ErrReplayed, waybill.ClassDone)
	for _, want := range []error{nil, waybill.ErrReplayed} {
		if err := bus.Deliver(context.Background(), []waybill.Delivery{extra})[0]; !errors.Is(err, want) {
			b.Errorf("Deliver: %v, want %v", err, want)
		}
	}
	extra.Suspect = false
	if err := bus.Deliver(context.Background(), []waybill.Delivery{extra})[0]; err != nil {
		b.Errorf("Deliver: %v", err)
	}
	// While a suspect is being handled, a source that stops does not wait for
	// it.
	held, let := make(chan struct{}), make(chan struct{})
	slow := b.in.MustGroup("slow", inbox.Options{})
	ended := make(chan error, 1)
	go func() {
		_, err := slow.Consume(suspected(ds[0].Event), ds[0].Event, func(context.Context, T, waybill.Event) error {
			close(held)
			<-let
			return nil
		})
		ended <- err
	}()
	<-held
	ctx, cancel := context.WithCancel(suspected(ds[1].Event))
	cancel()
	_, err := slow.Consume(ctx, ds[1].Event, b.never())
	b.wantError(err, context.Canceled, waybill.ClassDefer)
	b.wantNone(slow, ds[1].Event)
	close(let)
	if err := <-ended; err != nil {
		b.Error(err)
	}
}

// alone: while a suspect is handled, no other event with a counted attempt is
// handled, such as a retried one. A group called by a handler does not wait for
// its caller.
func alone[T any](b *env[T]) {
	g, other := b.in.MustGroup("G", eager), b.in.MustGroup("other", eager)
	retried, suspect := event(0), event(1)
	_, err := g.Consume(context.Background(), retried, func(context.Context, T, waybill.Event) error { return errNo })
	b.wantError(err, errNo, waybill.ClassDefer)
	held, let := make(chan struct{}), make(chan struct{})
	first, second := make(chan error, 1), make(chan error, 1)
	var under atomic.Int64
	again := func(ctx context.Context, tx T, _ waybill.Event) error {
		if n := under.Add(1); n != 1 {
			b.Errorf("%d events are being handled, and one of them is suspect", n)
		}
		defer under.Add(-1)
		return b.effect(ctx, tx, "alone")
	}
	go func() {
		_, err := g.ConsumeLeased(suspected(suspect), suspect, func(ctx context.Context, _ *inbox.Lease[T]) error {
			under.Add(1)
			close(held)
			<-let
			under.Add(-1)
			_, err := other.Consume(ctx, suspect, again)
			return err
		})
		first <- err
	}()
	<-held
	go func() {
		for {
			_, err := g.Consume(redelivered(retried, 2), retried, again)
			// The event is not due yet, or the nonblocking attempt below is
			// handling it.
			if !errors.Is(err, waybill.ErrNotDue) && !errors.Is(err, waybill.ErrInProgress) {
				second <- err
				return
			}
		}
	}()
	b.await("the retry is due", func() bool { rec := b.record(g, retried); return !rec.NextRetryAt.After(rec.Now) })
	for range 50 {
		// As many round trips give an attempt that does not wait the time to be
		// handled.
		b.record(g, retried)
		runtime.Gosched()
	}
	// The attempt waits; a caller that stops does not wait with it.
	ctx, cancel := context.WithCancel(redelivered(retried, 2))
	cancel()
	if _, err := g.Consume(ctx, retried, b.never()); err == nil {
		b.Error("it is applied, and its context has ended")
	}
	close(let)
	for _, ended := range []chan error{first, second} {
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}
	b.wantEffects("alone", 2)
	if rec := b.record(g, retried); rec.State != store.InboxSucceeded || rec.Attempts != 2 {
		b.Errorf("the record is %+v", rec)
	}
}

// abandoned: events without a delivery count are handled concurrently until a
// consumer dies. Then the events of that consumer are handled one at a time,
// because one of them may be the cause.
func abandoned[T any](b *env[T]) {
	in, err := inbox.New[T](testroles.Of[T](gone[T]{b.DB.Inbox}), inbox.Config{})
	if err != nil {
		b.Fatal(err)
	}
	var ds []waybill.Delivery
	for n := range 8 {
		ds = append(ds, waybill.Delivery{Event: event(n), Attempt: 1, Uncounted: true})
	}
	o := inbox.Options{Lease: time.Millisecond, BackoffBase: time.Microsecond, BackoffMax: time.Microsecond}
	before := in.MustGroup("G", o)
	before.Handle("", "Happened", b.apply("abandoned"))
	for _, err := range before.Deliver(context.Background(), ds) {
		b.wantError(err, errGone, waybill.ClassDefer)
	}
	var under atomic.Int64
	g := b.in.MustGroup("G", o)
	g.Handle("", "Happened", func(ctx context.Context, tx T, _ waybill.Event) error {
		if n := under.Add(1); n != 1 {
			b.Errorf("%d events whose consumer died are being handled", n)
		}
		defer under.Add(-1)
		for range 3 {
			runtime.Gosched()
		}
		return b.effect(ctx, tx, "abandoned")
	})
	var all sync.WaitGroup
	for _, d := range ds {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			err := errNo
			for err != nil && ctx.Err() == nil {
				err = g.Deliver(ctx, []waybill.Delivery{d})[0]
			}
			if err != nil {
				b.Errorf("it is not applied: %v", err)
			}
		})
	}
	all.Wait()
	b.wantEffects("abandoned", len(ds))
}

// suspected returns a context in which an event is suspect.
func suspected(ev waybill.Event) context.Context {
	return waybill.ContextWithDelivery(context.Background(), waybill.Delivery{Event: ev, Attempt: 1, Suspect: true})
}

// gone is the store of a process that is killed while its handler runs: later
// calls do not reach the database.
type gone[T any] struct{ driver.Inbox[T] }

var errGone = errors.New("the process is gone")

func (gone[T]) Succeed(context.Context, T, driver.Attempt) (bool, error) { return false, errGone }

func (gone[T]) FailEvent(context.Context, store.InboxEntry, driver.Failure) (bool, error) {
	return false, errGone
}

func (gone[T]) ReleaseEvent(context.Context, driver.Attempt) (bool, error) { return false, errGone }

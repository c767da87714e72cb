package inboxtest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

func leaseChecks[T any]() []check[T] {
	return []check[T]{
		{name: "leased", run: leased[T]},
		{name: "lease_expires", run: leaseExpires[T]},
		{name: "lease_expires_in_a_transaction", concurrent: true, run: leaseExpiresInTx[T]},
		{name: "lease_expires_without_a_takeover", run: leaseExpiresAlone[T]},
		{name: "leased_failure", run: leasedFailure[T]},
		{name: "lease_key", run: leaseKey[T]},
		{name: "takeover_of_success", run: takeoverOfSuccess[T]},
	}
}

func leased[T any](b *env[T]) {
	g := b.in.MustGroup("G", inbox.Options{})
	for n, finishes := range []bool{true, false} {
		ev := event(n)
		res, err := g.ConsumeLeased(context.Background(), ev, func(ctx context.Context, l *inbox.Lease[T]) error {
			if want := "G:" + ev.ID.String(); l.Key() != want || l.Fence() != 1 || l.Attempt() != 1 {
				b.Errorf("the lease is %s, %d, %d", l.Key(), l.Fence(), l.Attempt())
			}
			if _, limited := ctx.Deadline(); !limited {
				b.Error("the handler's context does not end with the lease")
			}
			if rec := b.record(g, ev); rec.State != store.InboxProcessing {
				b.Errorf("during the handler the record is %+v", rec)
			}
			_, err := g.Consume(context.Background(), ev, b.never())
			b.wantError(err, waybill.ErrInProgress, waybill.ClassDefer)
			if !finishes {
				return nil
			}
			return l.Finish(ctx, func(ctx context.Context, tx T) error { return b.effect(ctx, tx, "leased") })
		})
		if err != nil || res.Replayed {
			b.Errorf("ConsumeLeased: %+v, %v", res, err)
		}
		if rec := b.record(g, ev); rec.State != store.InboxSucceeded {
			b.Errorf("the record is %+v", rec)
		}
	}
	b.wantEffects("leased", 1)
}

// leaseExpires: an attempt that begins after the lease has expired takes the
// event over, and the first attempt's effects are rolled back when it finishes.
func leaseExpires[T any](b *env[T]) {
	slow := b.in.MustGroup("G", inbox.Options{Lease: time.Millisecond})
	other := b.inbox(inbox.Config{}).MustGroup("G", inbox.Options{})
	ev := event(1)
	_, err := slow.ConsumeLeased(context.Background(), ev, func(_ context.Context, l *inbox.Lease[T]) error {
		b.await("the second one has it", func() bool {
			_, err := other.ConsumeLeased(context.Background(), ev, func(ctx context.Context, l2 *inbox.Lease[T]) error {
				if l2.Fence() <= l.Fence() {
					b.Errorf("the fence was %d and is %d", l.Fence(), l2.Fence())
				}
				return l2.Finish(ctx, func(ctx context.Context, tx T) error { return b.effect(ctx, tx, "second") })
			})
			if err != nil && !errors.Is(err, waybill.ErrInProgress) {
				b.Fatal(err)
			}
			return err == nil
		})
		return l.Finish(context.Background(), func(ctx context.Context, tx T) error { return b.effect(ctx, tx, "first") })
	})
	b.wantError(err, waybill.ErrLeaseLost, waybill.ClassDefer)
	b.wantEffects("first", 0)
	b.wantEffects("second", 1)
	if rec := b.record(other, ev); rec.State != store.InboxSucceeded || rec.Attempts != 2 {
		b.Errorf("the record is %+v", rec)
	}
}

// leaseExpiresAlone: an attempt that takes longer than its lease still succeeds
// if no other attempt has taken over. Refused, it would be delivered again, and
// its external effects would happen twice.
func leaseExpiresAlone[T any](b *env[T]) {
	g := b.in.MustGroup("G", inbox.Options{Lease: time.Millisecond})
	overdue := func(ev waybill.Event) {
		b.await("the lease is over", func() bool { rec := b.record(g, ev); return !rec.LeaseUntil.After(rec.Now) })
	}
	for n, finishes := range []bool{true, false} {
		ev := event(n)
		_, err := g.ConsumeLeased(context.Background(), ev, func(ctx context.Context, l *inbox.Lease[T]) error {
			overdue(ev)
			if !finishes {
				return nil
			}
			return l.Finish(context.WithoutCancel(ctx), func(ctx context.Context, tx T) error { return b.effect(ctx, tx, "leased") })
		})
		if err != nil {
			b.Errorf("ConsumeLeased: %v", err)
		}
		if rec := b.record(g, ev); rec.State != store.InboxSucceeded || rec.Attempts != 1 || rec.Fence != 1 {
			b.Errorf("the record is %+v", rec)
		}
		res, err := g.ConsumeLeased(context.Background(), ev, func(context.Context, *inbox.Lease[T]) error {
			b.Error("it was applied twice")
			return nil
		})
		if err != nil || !res.Replayed {
			b.Errorf("the next delivery: %+v, %v", res, err)
		}
	}
	b.wantEffects("leased", 1)
	if !b.features.LateCommits {
		return // reading the record would wait for the only writing transaction
	}
	ev := event(3)
	_, err := g.Consume(redelivered(ev, 2), ev, func(ctx context.Context, tx T, _ waybill.Event) error {
		overdue(ev)
		return b.effect(ctx, tx, "in a transaction")
	})
	if err != nil {
		b.Errorf("Consume: %v", err)
	}
	b.wantEffects("in a transaction", 1)
}

func leaseExpiresInTx[T any](b *env[T]) {
	slow := b.in.MustGroup("G", inbox.Options{Lease: time.Millisecond})
	other := b.inbox(inbox.Config{}).MustGroup("G", inbox.Options{})
	ev := event(1)
	_, err := slow.Consume(redelivered(ev, 2), ev, func(ctx context.Context, tx T, _ waybill.Event) error {
		b.await("the second one has it", func() bool {
			_, err := other.Consume(redelivered(ev, 3), ev, b.apply("second"))
			if err != nil && !errors.Is(err, waybill.ErrInProgress) {
				b.Fatal(err)
			}
			return err == nil
		})
		return b.effect(ctx, tx, "first")
	})
	b.wantError(err, waybill.ErrLeaseLost, waybill.ClassDefer)
	b.wantEffects("first", 0)
	b.wantEffects("second", 1)
}

func leasedFailure[T any](b *env[T]) {
	g := b.in.MustGroup("G", eager)
	ev := event(1)
	_, err := g.ConsumeLeased(context.Background(), ev, func(context.Context, *inbox.Lease[T]) error { return errNo })
	b.wantError(err, errNo, waybill.ClassDefer)
	rec := b.record(g, ev)
	if rec.State != store.InboxFailed || !rec.LeaseUntil.IsZero() || !strings.Contains(rec.LastError, "no") {
		b.Errorf("the record is %+v", rec)
	}
	b.await("it is due", func() bool {
		_, err := g.ConsumeLeased(context.Background(), ev, func(context.Context, *inbox.Lease[T]) error { return nil })
		return err == nil
	})
}

// leaseKey: the key for other services is the same for every attempt at an
// event that the group considers the same, under any event id, and differs for
// every other event.
func leaseKey[T any](b *env[T]) {
	first, again, other, tenant := event(1), event(1), event(1), event(1)
	first.DedupKey, again.DedupKey, other.DedupKey, tenant.DedupKey = "paid", "paid", "paid too", "paid"
	tenant.TenantID = "other"
	key := func(g *inbox.Group[T], ev waybill.Event) (key string) {
		b.await("there is an attempt", func() bool {
			_, err := g.ConsumeLeased(context.Background(), ev, func(_ context.Context, l *inbox.Lease[T]) error {
				key = l.Key()
				return errNo
			})
			return errors.Is(err, errNo)
		})
		return key
	}
	opts := eager
	byID := b.in.MustGroup("BY_ID", opts)
	opts.Key = inbox.ByDedupKey
	byKey := b.in.MustGroup("BY_KEY", opts)
	if k := key(byID, first); k != "BY_ID:"+first.ID.String() || key(byID, first) != k || key(byID, again) == k {
		b.Errorf("by id, the key is %s", k)
	}
	k := key(byKey, first)
	if key(byKey, first) != k || key(byKey, again) != k {
		b.Errorf("by dedup key, one thing has two keys: %s and %s", k, key(byKey, again))
	}
	if key(byKey, other) == k || key(byKey, tenant) == k {
		b.Errorf("by dedup key, two things have the key %s", k)
	}
}

// takeoverOfSuccess: an applied event is not claimed, and a late failure or
// release by an earlier attempt changes nothing.
func takeoverOfSuccess[T any](b *env[T]) {
	db := b.DB
	g := b.in.MustGroup("G", inbox.Options{})
	ev := event(1)
	var old driver.Attempt
	_, err := g.ConsumeLeased(context.Background(), ev, func(context.Context, *inbox.Lease[T]) error {
		rec := b.record(g, ev)
		old = driver.Attempt{Group: "G", Key: rec.Key, Owner: rec.Owner, Fence: rec.Fence}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	before := b.record(g, ev)
	if _, ok, err := db.Inbox.ClaimEvent(context.Background(), before.InboxEntry, waybill.NewID(), time.Minute, 100, nil); ok || err != nil {
		b.Errorf("a success was taken over: %v, %v", ok, err)
	}
	if ok, err := db.Inbox.FailEvent(context.Background(), before.InboxEntry, driver.Failure{Owner: old.Owner, Fence: old.Fence}); ok || err != nil {
		b.Errorf("a success was made a failure: %v, %v", ok, err)
	}
	if ok, err := db.Inbox.FailEvent(context.Background(), before.InboxEntry, driver.Failure{}); ok || err != nil {
		b.Errorf("a success was made a failure by who had claimed nothing: %v, %v", ok, err)
	}
	if ok, err := db.Inbox.ReleaseEvent(context.Background(), old); ok || err != nil {
		b.Errorf("a success was released: %v, %v", ok, err)
	}
	if rec := b.record(g, ev); rec.State != store.InboxSucceeded || rec.Fence != before.Fence || rec.Attempts != before.Attempts {
		b.Errorf("the record was %+v and is %+v", before, rec)
	}
}

package inboxtest

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
)

func keepChecks[T any]() []check[T] {
	return []check[T]{
		{name: "retried_without_delivery", run: retriedWithoutDelivery[T]},
		{name: "retried_after_a_crash", run: retriedAfterCrash[T]},
		{name: "retention", run: retention[T]},
		{name: "stats", run: stats[T]},
	}
}

// run runs an inbox until stop is called.
func (b *env[T]) run(in *inbox.Inbox[T]) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- in.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			b.Errorf("Run: %v", err)
		}
	}
}

// retriedWithoutDelivery: a group that stores its failed events retries them by
// itself.
func retriedWithoutDelivery[T any](b *env[T]) {
	in := b.inbox(inbox.Config{RetryInterval: 5 * time.Millisecond})
	if err := in.Run(context.Background()); err == nil {
		b.Error("Run accepts a RetryInterval although no group stores its events")
	}
	o := eager
	o.StoreEvent = true
	g := in.MustGroup("G", o)
	var calls atomic.Int64
	ev := waybill.NewEvent("Happened", 1)
	ev.TenantID, ev.CorrelationID, ev.Headers = "t", "c", map[string]string{"h": "v"}
	ev = eventfill.Defaults(ev)
	fn := func(ctx context.Context, tx T, got waybill.Event) error {
		if got.ID != ev.ID || string(got.Payload) != "1" || got.TenantID != "t" || got.CorrelationID != "c" || got.Headers["h"] != "v" || !got.OccurredAt.Equal(ev.OccurredAt) {
			b.Errorf("the event came back as %+v", got)
		}
		if err := b.effect(ctx, tx, "kept"); err != nil {
			return err
		}
		if calls.Add(1) < 3 {
			return errNo
		}
		return nil
	}
	g.Handle("", "Happened", fn)
	if _, err := g.Consume(context.Background(), ev, fn); err == nil {
		b.Fatal("it did not fail")
	}
	stop := b.run(in)
	b.await("it is applied", func() bool { return b.record(g, ev).State == store.InboxSucceeded })
	stop()
	b.wantEffects("kept", 1)
	if rec := b.record(g, ev); rec.Attempts != 3 {
		b.Errorf("%d attempts, want 3", rec.Attempts)
	}
}

// retriedAfterCrash: an event whose consumer died is retried when its lease has
// expired.
func retriedAfterCrash[T any](b *env[T]) {
	in := b.inbox(inbox.Config{RetryInterval: 5 * time.Millisecond})
	g := in.MustGroup("G", inbox.Options{StoreEvent: true, Lease: 20 * time.Millisecond})
	ev := event(1)
	g.Handle("", "Happened", b.apply("crash"))
	entered, leave := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := b.inbox(inbox.Config{}).MustGroup("G", inbox.Options{StoreEvent: true, Lease: 20 * time.Millisecond}).
			ConsumeLeased(context.Background(), ev, func(context.Context, *inbox.Lease[T]) error {
				close(entered)
				<-leave
				return nil
			})
		done <- err
	}()
	<-entered
	stop := b.run(in)
	b.await("it is applied", func() bool { return b.record(g, ev).State == store.InboxSucceeded })
	stop()
	close(leave)
	b.wantError(<-done, waybill.ErrLeaseLost, waybill.ClassDefer)
	b.wantEffects("crash", 1)
}

// retention: only records of success are purged, and only after the retention.
func retention[T any](b *env[T]) {
	for what, cfg := range map[string]inbox.Config{
		"without a window":        {Retention: time.Hour},
		"shorter than the window": {Retention: time.Hour, RedeliveryWindow: 2 * time.Hour},
		"negative":                {Retention: -time.Hour, RedeliveryWindow: 1},
	} {
		if _, err := inbox.New[T](b.DB, cfg); err == nil {
			b.Errorf("a retention %s was accepted", what)
		}
	}
	var purged atomic.Int64
	in := b.inbox(inbox.Config{
		Retention: time.Nanosecond, RedeliveryWindow: time.Nanosecond,
		Observe: observe.Hooks{Purged: func(info observe.PurgedInfo) { purged.Add(int64(info.Rows)) }},
	})
	kept := b.inbox(inbox.Config{Retention: time.Hour, RedeliveryWindow: time.Hour})
	old, fresh := in.MustGroup("old", inbox.Options{}), kept.MustGroup("fresh", inbox.Options{})
	done, failed, dead := event(1), event(2), event(3)
	for _, g := range []*inbox.Group[T]{old, fresh} {
		b.consume(g, done, b.apply("kept"))
		_, _ = g.Consume(context.Background(), failed, b.failing("kept", errNo))
		_, _ = g.Consume(context.Background(), dead, b.failing("kept", waybill.Permanent(errNo)))
	}
	b.await("it is old", func() bool {
		if err := in.Purge(context.Background()); err != nil {
			b.Fatal(err)
		}
		return purged.Load() == 1
	})
	if err := kept.Purge(context.Background()); err != nil {
		b.Fatal(err)
	}
	b.wantNone(old, done)
	b.record(old, failed)
	b.record(old, dead)
	b.record(fresh, done)
}

func stats[T any](b *env[T]) {
	db := b.DB
	one := b.in.MustGroup("one", inbox.Options{MaxAttempts: 6, BackoffBase: time.Microsecond, BackoffMax: time.Microsecond})
	two := b.in.MustGroup("two", inbox.Options{})
	quiet := b.in.MustGroup("quiet", inbox.Options{})
	b.consume(one, event(1), b.apply("s"))
	b.consume(quiet, event(1), b.apply("s"))
	failed, dead := event(2), event(3)
	for range 2 {
		b.await("it fails", func() bool {
			_, err := one.Consume(context.Background(), failed, b.failing("s", errNo))
			class, _ := waybill.Classify(err)
			return class == waybill.ClassDefer
		})
	}
	b.await("it was tried twice", func() bool {
		_, _ = one.Consume(context.Background(), failed, b.failing("s", errNo))
		return b.record(one, failed).Attempts >= 2
	})
	_, _ = two.Consume(context.Background(), dead, b.failing("s", waybill.Permanent(errNo)))
	got, err := db.InboxRecords.GroupStats(context.Background(), false)
	if err != nil || len(got) != 2 || got[0].Group != "one" || got[1].Group != "two" {
		b.Fatalf("the groups are %+v, %v", got, err)
	}
	if got[0].Failed != 1 || got[0].HighestAttempts < 2 || got[0].Dead != 0 || got[0].OldestDue <= 0 || got[1].Dead != 1 || got[1].Failed != 0 {
		b.Errorf("the groups stand at %+v", got)
	}
	if all, err := db.InboxRecords.GroupStats(context.Background(), true); err != nil || len(all) != 3 {
		b.Errorf("all groups are %+v, %v", all, err)
	}
	list, err := db.InboxRecords.ListRecords(context.Background(), store.RecordFilter{}, "", waybill.ID{}, 10)
	if err != nil || len(list) != 2 || list[0].Group != "one" || list[1].Group != "two" {
		b.Fatalf("the records are %+v, %v", list, err)
	}
	next, err := db.InboxRecords.ListRecords(context.Background(), store.RecordFilter{}, list[0].Group, list[0].Key, 10)
	if err != nil || len(next) != 1 || next[0].Group != "two" {
		b.Errorf("the records behind the first are %+v, %v", next, err)
	}
	for _, c := range []struct {
		filter store.RecordFilter
		want   int
	}{
		{store.RecordFilter{Group: "one"}, 1},
		{store.RecordFilter{States: []store.InboxState{store.InboxDead}}, 1},
		{store.RecordFilter{States: []store.InboxState{store.InboxSucceeded}}, 2},
		{store.RecordFilter{MinAttempts: 2}, 1},
		{store.RecordFilter{MinAttempts: 100}, 0},
	} {
		if got, err := db.InboxRecords.ListRecords(context.Background(), c.filter, "", waybill.ID{}, 10); err != nil || len(got) != c.want {
			b.Errorf("%+v: %d records, %v, want %d", c.filter, len(got), err, c.want)
		}
	}
}

package reconciletest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
)

func sendChecks[T any]() []check[T] {
	return []check[T]{
		{"three_nodes_send_once", threeNodes[T]},
		{"lost_events_are_restored", restored[T]},
		{"several_ids_one_effect", severalIDs[T]},
		{"sent_once_within_the_look-back", remembered[T]},
		{"pending_is_not_sent_again", pendingStays[T]},
		{"events_without_a_key_are_distinct", keptApart[T]},
		{"young_and_old_events_are_not_sent", windowed[T]},
		{"a_rejected_event_holds_back_no_other", refused[T]},
		{"the_next_run_continues_after_the_limit", limited[T]},
		{"events_found_before_an_error_are_sent", foundBeforeError[T]},
		{"dry_run_changes_nothing", dryRun[T]},
	}
}

// threeNodes runs a job repeatedly on three nodes, with a consumer that leaves
// no trace: the event is sent once.
func threeNodes[T any](b *env[T]) {
	b.truth.add("lost", 10*time.Minute)
	var delivered atomic.Int64
	b.deliver(relay.SinkFunc(func(context.Context, waybill.Delivery) error {
		delivered.Add(1)
		return nil
	}))
	job := b.truth.job()
	job.Schedule = reconcile.Every(10 * time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer func() {
		cancel()
		all.Wait()
	}()
	for _, db := range b.nodes(3) {
		r := b.new(db, reconcile.Config{}, job)
		all.Go(func() {
			if err := r.Run(ctx); err != nil {
				b.Error(err)
			}
		})
	}
	b.await("the event is delivered", func() bool { return delivered.Load() > 0 })
	looked := b.truth.looked()
	b.await("the job runs again", func() bool { return b.truth.looked() > looked+5 })
	cancel()
	all.Wait()
	b.await("nothing is pending", func() bool { return len(b.pending()) == 0 })
	if n := delivered.Load(); n != 1 {
		b.Errorf("%d events were sent for one row, want 1", n)
	}
}

// restored loses the queue: the rows of the business tables are sent and reach
// their consumer.
func restored[T any](b *env[T]) {
	const many = 250
	for n := range many {
		b.truth.add(named(n), 10*time.Minute)
		if n%50 == 0 {
			b.write(happened(named(n)))
		}
	}
	b.reopen()
	if n := len(b.pending()); n != 0 {
		b.Fatalf("%d events have survived", n)
	}
	r := b.new(b.DB, reconcile.Config{}, b.truth.job())
	b.once(r, "job", many, many, 0)
	var effects atomic.Int64
	b.deliver(relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		b.truth.trace(d.AggregateID)
		effects.Add(1)
		return nil
	}))
	b.await("all are delivered", func() bool { return effects.Load() == many })
	b.once(r, "job", 0, 0, 0)
}

// severalIDs runs a job that does not wait for its consumer three times, and
// then lets the consumer handle all events: there is one effect.
func severalIDs[T any](b *env[T]) {
	b.truth.add("slow", 10*time.Minute)
	job := b.truth.job()
	job.ResendAfter = -1
	r := b.new(b.DB, reconcile.Config{}, job)
	var mu sync.Mutex
	var queue []waybill.Event // the broker's queue while the consumer is paused
	b.deliver(relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		queue = append(queue, d.Event)
		return nil
	}))
	for n := range 3 {
		b.once(r, "job", 1, 1, 0)
		b.await("it is with the broker", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(queue) > n
		})
		b.await("it is settled", func() bool { return len(b.pending()) == 0 })
	}
	g := b.group(inbox.Options{Key: inbox.ByDedupKey})
	ids, effects := map[waybill.ID]bool{}, 0
	for _, ev := range queue {
		ids[ev.ID] = true
		_, err := g.Consume(context.Background(), ev, func(_ context.Context, _ T, ev waybill.Event) error {
			effects++
			b.truth.trace(ev.AggregateID)
			return nil
		})
		if err != nil {
			b.Error(err)
		}
	}
	if len(ids) != 3 || effects != 1 {
		b.Errorf("%d ids had %d effects, want 3 and 1", len(ids), effects)
	}
	b.once(r, "job", 0, 0, 0)
}

// settleAll delivers all pending events at once.
func (b *env[T]) settleAll() {
	b.Helper()
	stop := b.deliver(relay.SinkFunc(func(context.Context, waybill.Delivery) error { return nil }))
	b.await("nothing is pending", func() bool { return len(b.pending()) == 0 })
	stop()
}

func remembered[T any](b *env[T]) {
	b.truth.add("one", 10*time.Minute)
	r := b.new(b.DB, reconcile.Config{}, b.truth.job())
	b.once(r, "job", 1, 1, 0)
	b.settleAll()
	b.once(r, "job", 1, 0, 1) // sent, but no trace yet
	b.truth.add("two", 10*time.Minute)
	// also after a restart of the process
	b.once(b.new(b.DB, reconcile.Config{}, b.truth.job()), "job", 2, 1, 1)
	soon := b.truth.job()
	soon.ResendAfter = time.Microsecond // long ago by now
	b.settleAll()
	b.once(b.new(b.DB, reconcile.Config{}, soon), "job", 2, 2, 0)
	if rec, ok, err := b.DB.JobRecords.FindJob(context.Background(), "job"); err != nil || !ok || rec.Fence != 4 || rec.Sent != 2 || rec.EndedAt.IsZero() {
		b.Errorf("the job's record: %+v, %v, %v", rec, ok, err)
	}
}

// pendingStays: the original is still pending, so the job finds it and sends
// nothing. Once the original is dead, its key is free.
func pendingStays[T any](b *env[T]) {
	original := happened("late")
	original.DedupKey = original.NaturalKey()
	b.write(original)
	b.truth.add("late", 10*time.Minute)
	r := b.new(b.DB, reconcile.Config{}, b.truth.job())
	b.once(r, "job", 1, 0, 1)
	b.once(r, "job", 1, 0, 1)
	if list := b.pending(); len(list) != 1 {
		b.Errorf("%d events are pending, want the original", len(list))
	}
	stop := b.deliver(relay.SinkFunc(func(context.Context, waybill.Delivery) error { return waybill.Permanent(errors.New("no")) }))
	b.await("it is dead", func() bool { return len(b.pending()) == 0 })
	stop()
	b.once(r, "job", 1, 1, 0)
	if list := b.pending(); len(list) != 1 || list[0].Event.DedupKey != original.DedupKey || list[0].ID == original.ID {
		b.Errorf("pending are %+v", list)
	}
}

// keptApart runs a Find that sets no keys and yields similar events: each event
// is a fact of its own, and is sent.
func keptApart[T any](b *env[T]) {
	long := strings.Repeat("x", 128)
	evs := []waybill.Event{
		{Type: "Created", AggregateType: "order", AggregateID: "1"},
		{Type: "Created", AggregateType: "user", AggregateID: "1"},
		{Type: "a:b", AggregateType: "order", AggregateID: "c"},
		{Type: "a", AggregateType: "order", AggregateID: "b:c"},
		{Type: "Created", AggregateType: "order", AggregateID: "1", TenantID: "other"},
		{Type: "Created", AggregateType: "order", AggregateID: "1", SchemaVersion: 2},
		// its key exceeds the maximum length
		{Type: long, AggregateType: "order", AggregateID: long},
		{Type: long, AggregateType: "user", AggregateID: long},
	}
	for i := range evs {
		evs[i].Payload = []byte("{}")
	}
	job := reconcile.Job{Name: "job", Find: func(_ context.Context, _ reconcile.Window, missing func(waybill.Event) error) error {
		for _, ev := range evs {
			if err := missing(ev); err != nil {
				return err
			}
		}
		return nil
	}}
	r := b.new(b.DB, reconcile.Config{}, job)
	b.once(r, "job", len(evs), len(evs), 0)
	if list := b.pending(); len(list) != len(evs) {
		b.Errorf("%d events are pending, want %d", len(list), len(evs))
	}
	b.once(r, "job", len(evs), 0, len(evs))
}

func windowed[T any](b *env[T]) {
	b.truth.add("young", 10*time.Second)
	b.truth.add("middle", 10*time.Minute)
	b.truth.add("old", 2*time.Hour)
	rep := b.once(b.new(b.DB, reconcile.Config{}, b.truth.job()), "job", 1, 1, 0)
	if list := b.pending(); len(list) != 1 || list[0].Event.AggregateID != "middle" {
		b.Errorf("pending are %+v", list)
	}
	rec, _, err := b.DB.JobRecords.FindJob(context.Background(), "job")
	if err != nil || !rep.Window.To.Equal(rec.StartedAt.Add(-time.Minute)) || !rep.Window.From.Equal(rec.StartedAt.Add(-time.Hour)) {
		b.Errorf("the window is %+v, and the run began %v, %v", rep.Window, rec.StartedAt, err)
	}
}

// refused runs a Find that yields events that the outbox rejects, among others.
func refused[T any](b *env[T]) {
	bad := happened("bad")
	bad.Payload = []byte("no JSON")
	keyless := happened("")
	job := reconcile.Job{Name: "job", Find: func(_ context.Context, _ reconcile.Window, missing func(waybill.Event) error) error {
		return errors.Join(missing(happened("1")), missing(bad), missing(happened("hook")), missing(keyless), missing(happened("1")), missing(happened("2")))
	}}
	hook := outbox.Hook{BeforeWrite: func(_ context.Context, info outbox.BeforeWriteInfo) ([]waybill.Event, error) {
		for _, ev := range info.Events {
			if ev.AggregateID == "hook" {
				return nil, errors.New("a hook says no")
			}
		}
		return info.Events, nil
	}}
	r := b.new(b.DB, reconcile.Config{Outbox: outbox.Config{Hooks: []outbox.Hook{hook}}}, job)
	rep, err := r.RunOnce(context.Background(), "job")
	if err == nil || rep.Found != 6 || rep.Sent != 2 || rep.Failed != 3 || rep.Skipped != 1 || len(rep.Notes) != 3 {
		b.Errorf("the run: %+v, %v", rep, err)
	}
	if list := b.pending(); len(list) != 2 || list[0].Event.AggregateID != "1" || list[1].Event.AggregateID != "2" {
		b.Errorf("pending are %+v", list)
	}
	if rec, _, err := b.DB.JobRecords.FindJob(context.Background(), "job"); err != nil || rec.Failed != 3 || !strings.Contains(rec.LastError, "3 of 6") {
		b.Errorf("the record: %+v, %v", rec, err)
	}
}

func limited[T any](b *env[T]) {
	for n := range 25 {
		b.truth.add(named(n), 10*time.Minute)
	}
	job := b.truth.job()
	job.Limit = 10
	r := b.new(b.DB, reconcile.Config{BatchSize: 3}, job)
	for n, want := range []struct {
		found, sent int
		more        bool
	}{{10, 10, true}, {20, 10, true}, {25, 5, false}, {25, 0, false}} {
		if rep := b.once(r, "job", want.found, want.sent, want.found-want.sent); rep.More != want.more {
			b.Errorf("run %d: more: %v", n, rep.More)
		}
	}
	list := b.pending()
	for n := range list {
		if list[n].Event.AggregateID != named(n) {
			b.Errorf("event %d is %s: they are not in the order they were found in", n, list[n].Event.AggregateID)
		}
	}
}

func foundBeforeError[T any](b *env[T]) {
	boom := errors.New("boom")
	for name, end := range map[string]func() error{"error": func() error { return boom }, "panic": func() error { panic(boom) }} {
		r := b.new(b.DB, reconcile.Config{}, reconcile.Job{Name: name, Find: func(_ context.Context, _ reconcile.Window, missing func(waybill.Event) error) error {
			if err := missing(happened(name)); err != nil {
				return err
			}
			return end()
		}})
		rep, err := r.RunOnce(context.Background(), name)
		if !errors.Is(err, boom) || rep.Found != 1 || rep.Sent != 1 {
			b.Errorf("%s: %+v, %v", name, rep, err)
		}
	}
	if n := len(b.pending()); n != 2 {
		b.Errorf("%d events are pending", n)
	}
}

func dryRun[T any](b *env[T]) {
	b.truth.add("one", 10*time.Minute)
	r := b.new(b.DB, reconcile.Config{}, b.truth.job(), reconcile.Job{Name: "repair", Repair: func(context.Context, reconcile.Window) (int, error) {
		b.Error("it was repaired")
		return 0, nil
	}})
	rep, err := r.DryRun(context.Background(), "job")
	if err != nil || rep.Found != 1 || rep.Sent != 0 || !rep.DryRun || len(rep.Events) != 1 || rep.Events[0].DedupKey != happened("one").NaturalKey() {
		b.Errorf("the dry run: %+v, %v", rep, err)
	}
	if _, err := r.DryRun(context.Background(), "repair"); err == nil {
		b.Error("a repair had a dry run")
	}
	if _, ok, err := b.DB.JobRecords.FindJob(context.Background(), "job"); ok || err != nil {
		b.Errorf("it left a record: %v", err)
	}
	dry := b.new(b.DB, reconcile.Config{DryRun: true}, b.truth.job())
	b.once(dry, "job", 1, 0, 0)
	if n := len(b.pending()); n != 0 {
		b.Errorf("%d events are pending", n)
	}
	b.once(r, "job", 1, 1, 0) // it was not remembered
}

// held checks a job that another node holds.
func (b *env[T]) held(name string) driver.JobAttempt {
	b.Helper()
	owner := waybill.NewID()
	rec, ok, err := b.DB.Jobs.ClaimJob(context.Background(), driver.JobClaim{Name: name, Owner: owner, Lease: time.Hour, Seen: -1})
	if err != nil || !ok {
		b.Fatalf("ClaimJob: %v, %v", ok, err)
	}
	return driver.JobAttempt{Name: name, Owner: owner, Fence: rec.Fence}
}

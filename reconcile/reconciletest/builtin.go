package reconciletest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

func builtinChecks[T any]() []check[T] {
	return []check[T]{
		{"stuck_leases_are_found", stuckLeases[T]},
		{"stuck_keys_are_found", stuckKeys[T]},
		{"events_near_their_limit_are_found", nearLimit[T]},
		{"unrecorded_events_are_delivered_to_the_group", unrecorded[T]},
	}
}

// finds runs a check that must find n gaps.
func (b *env[T]) finds(job reconcile.Job, want int, text string) {
	b.Helper()
	rep, err := b.new(b.DB, reconcile.Config{}, job).RunOnce(context.Background(), job.Name)
	if err != nil || rep.Found != want || rep.Sent != 0 || len(rep.Notes) != want || want > 0 && !strings.Contains(rep.Notes[0], text) {
		b.Errorf("%s: %+v, %v; want %d found, with %q", job.Name, rep, err, want, text)
	}
}

func stuckLeases[T any](b *env[T]) {
	stuck := waybill.NewID()
	for id, lease := range map[waybill.ID]time.Duration{stuck: 0, waybill.NewID(): time.Hour} {
		in := store.InboxEntry{Group: "G", Key: id, Event: id, Type: "t"}
		if _, ok, err := b.DB.Inbox.ClaimEvent(context.Background(), in, waybill.NewID(), lease, 5, nil); !ok || err != nil {
			b.Fatalf("ClaimEvent: %v, %v", ok, err)
		}
	}
	woken := make(chan struct{}, 10)
	stop := b.DB.Outbox.Local().Listen(func(driver.Commit) { woken <- struct{}{} })
	b.finds(reconcile.StuckLeases(b.DB, time.Hour), 0, "")
	if len(woken) > 0 {
		b.Error("relays were woken for nothing")
	}
	b.finds(reconcile.StuckLeases(b.DB, 0), 1, stuck.String())
	stop()
	if len(woken) == 0 {
		b.Error("the relays were not woken")
	}
}

func stuckKeys[T any](b *env[T]) {
	keys := b.DB.Keys
	for key, lease := range map[string]time.Duration{"stuck": 0, "held": time.Hour} {
		claim := driver.KeyClaim{
			KeyID: store.KeyID{Tenant: "t", Operation: "op", Key: key}, Hash: "v1:" + strings.Repeat("0", 64), Owner: waybill.NewID(), Lease: lease,
		}
		if _, ok, err := keys.ClaimKey(context.Background(), claim); !ok || err != nil {
			b.Fatalf("ClaimKey: %v, %v", ok, err)
		}
	}
	b.finds(reconcile.StuckKeys(b.DB, time.Hour), 0, "")
	b.finds(reconcile.StuckKeys(b.DB, 0), 1, "operation op")
}

func nearLimit[T any](b *env[T]) {
	for attempts := range 4 {
		id := waybill.NewID()
		in := store.InboxEntry{Group: "G", Key: id, Event: id, Type: "t"}
		for range attempts {
			rec, ok, err := b.DB.Inbox.ClaimEvent(context.Background(), in, waybill.NewID(), time.Hour, 10, nil)
			if !ok || err != nil {
				b.Fatalf("ClaimEvent: %v, %v", ok, err)
			}
			if ok, err := b.DB.Inbox.FailEvent(context.Background(), in, driver.Failure{Owner: rec.Owner, Fence: rec.Fence}); !ok || err != nil {
				b.Fatalf("FailEvent: %v, %v", ok, err)
			}
		}
	}
	b.finds(reconcile.NearLimit(b.DB, "G", 2), 2, "attempts")
	b.finds(reconcile.NearLimit(b.DB, "", 3), 1, "has 3 attempts")
	b.finds(reconcile.NearLimit(b.DB, "H", 1), 0, "")
}

// unrecorded delivers events, of which a group gets some. The job passes the
// missing ones to the group, except events of other groups, and only once.
func unrecorded[T any](b *env[T]) {
	g := b.group(inbox.Options{Key: inbox.ByDedupKey})
	var mu sync.Mutex // events are handled concurrently
	var handled []string
	fails := true
	g.Handle("row", "Happened", func(_ context.Context, _ T, ev waybill.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if ev.AggregateID == "fails" && fails {
			return errors.New("not now")
		}
		// a transaction may be restarted
		if !slices.Contains(handled, ev.AggregateID) {
			handled = append(handled, ev.AggregateID)
		}
		return nil
	})
	keyed, lostKeyed := happened("keyed"), happened("lost and keyed")
	keyed.DedupKey, lostKeyed.DedupKey = "k1", "k2"
	other := waybill.NewEvent("Other", 0)
	b.write(happened("plain"), keyed, happened("lost"), lostKeyed, other, happened("fails"))
	stop := b.deliver(relay.SinkFunc(func(ctx context.Context, d waybill.Delivery) error {
		if d.AggregateID != "plain" && d.AggregateID != "keyed" {
			return nil // the broker loses it
		}
		d.Claim = nil
		return g.Deliver(ctx, []waybill.Delivery{d})[0]
	}))
	b.await("all are delivered", func() bool { return len(b.pending()) == 0 })
	stop()
	if len(handled) != 2 {
		b.Fatalf("handled are %v", handled)
	}
	job := reconcile.Unrecorded(b.DB, g, 7*24*time.Hour)
	job.MinAge = -1
	r := b.new(b.DB, reconcile.Config{}, job)
	if rep, err := r.DryRun(context.Background(), job.Name); err != nil || rep.Found != 3 || len(handled) != 2 {
		b.Errorf("the dry run: %+v, %v", rep, err)
	}
	rep, err := r.RunOnce(context.Background(), job.Name)
	if err == nil || rep.Sent != 2 || len(handled) != 4 || handled[2] != "lost" && handled[2] != "lost and keyed" {
		b.Errorf("the first run: %+v, %v; handled are %v", rep, err, handled)
	}
	fails = false
	// A failed event has a record: from now on the group and its source are
	// responsible for it.
	if rep, err := r.RunOnce(context.Background(), job.Name); err != nil || rep.Sent != 0 || len(handled) != 4 {
		b.Errorf("the second run: %+v, %v; handled are %v", rep, err, handled)
	}
	// every event is too young
	b.finds(reconcile.UnrecordedReport(b.DB, "NONE", 7*24*time.Hour, nil), 0, "")
}

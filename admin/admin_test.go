package admin_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// An operator lists the dead letters and replays one.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	db, _ := memstore.New(memstore.Config{})
	box, _ := outbox.New(db, outbox.Config{})
	ops, _ := admin.NewOutbox(db, admin.Config{})
	mended := false
	died, healed := make(chan struct{}, 1), make(chan struct{}, 1)
	r, _ := relay.New(db, relay.SinkFunc(func(context.Context, waybill.Delivery) error {
		if mended {
			healed <- struct{}{}
			return nil
		}
		return waybill.Permanent(errors.New("no such customer"))
	}), relay.Config{Observe: observe.Hooks{Died: func(observe.DiedInfo) { died <- struct{}{} }}})
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	_ = box.InTx(ctx, func(ctx context.Context, tx *memstore.Tx) error {
		return box.Write(ctx, tx, waybill.NewEvent("InvoiceSent", 7))
	})
	<-died
	for n := int64(0); n == 0; {
		n, _ = ops.Count(ctx, store.Dead, store.Filter{})
	}
	page, _ := ops.List(ctx, store.Dead, store.Filter{Type: "InvoiceSent"}, 0, 10)
	fmt.Println(page.Records[0].Event.Type, "is dead:", page.Records[0].LastError)
	mended = true
	replayed, _ := ops.Replay(ctx, page.Records[0].ID)
	fmt.Println("replayed:", len(replayed.IDs))
	<-healed
	cancel()
	fmt.Println(<-done)
	// Output:
	// InvoiceSent is dead: no such customer
	// replayed: 1
	// <nil>
}

func newAdmin(t *testing.T, db driver.OutboxAdmin, hooks observe.Hooks) *admin.Outbox {
	t.Helper()
	ops, err := admin.NewOutbox(testroles.Of[any](db), admin.Config{Observe: hooks})
	if err != nil {
		t.Fatal(err)
	}
	return ops
}

func newStore(t *testing.T, n int) *memstore.Store[*memstore.Tx] {
	t.Helper()
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	err = box.InTx(t.Context(), func(ctx context.Context, tx *memstore.Tx) error {
		for i := range n {
			if err := box.Write(ctx, tx, waybill.NewEvent("Tested", i)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// TestStatsTellTheObserver: the counts reach the gauges.
func TestStatsTellTheObserver(t *testing.T) {
	var got observe.BacklogInfo
	ops := newAdmin(t, newStore(t, 3).Driver().OutboxAdmin, observe.Hooks{Backlog: func(b observe.BacklogInfo) { got = b }})
	s, err := ops.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got.Ready != 3 || s.Ready != 3 || got.Oldest != s.Lag || s.Lag <= 0 {
		t.Errorf("stats %+v, observer %+v", s, got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	got = observe.BacklogInfo{}
	watched := 0
	ops = newAdmin(t, newStore(t, 1).Driver().OutboxAdmin, observe.Hooks{Backlog: func(observe.BacklogInfo) {
		if watched++; watched == 3 {
			cancel()
		}
	}})
	if err := ops.Watch(ctx, time.Millisecond); err != nil || watched < 3 {
		t.Errorf("Watch returned %v after %d counts", err, watched)
	}
	if err := ops.Watch(t.Context(), 0); err == nil {
		t.Error("an interval of 0 was accepted")
	}
}

// failing is a store whose methods all return an error.
type failing struct{ driver.OutboxAdmin }

var errAway = errors.New("the database is away")

func (failing) Stats(context.Context) (store.Stats, error) { return store.Stats{}, errAway }
func (failing) Count(context.Context, store.State, store.Filter) (int64, error) {
	return 0, errAway
}

func (failing) List(context.Context, store.State, store.Filter, int64, int) ([]store.Record, error) {
	return nil, errAway
}
func (failing) Find(context.Context, waybill.ID) ([]store.Record, error) { return nil, errAway }
func (failing) Replay(context.Context, []waybill.ID) (store.Replayed, error) {
	return store.Replayed{}, errAway
}

func (failing) Discard(context.Context, []waybill.ID) ([]waybill.ID, error) { return nil, errAway }

func (failing) Unblock(context.Context, []waybill.ID) ([]waybill.ID, error) { return nil, errAway }
func (failing) MakeReady(context.Context, int) (int, error)                 { return 0, errAway }

func (failing) PurgeWritten(context.Context, time.Duration, int) (int, error) { return 0, errAway }
func (failing) Tidy(context.Context, time.Duration) error                     { return errAway }
func (failing) SetLanes(context.Context, int) error                           { return errAway }
func (failing) Purge(context.Context, store.State, time.Duration, int) (int, error) {
	return 0, errAway
}

// TestErrorsAreReturned: no error is turned into an empty result.
func TestErrorsAreReturned(t *testing.T) {
	ops := newAdmin(t, failing{}, observe.Hooks{})
	ctx, id := t.Context(), waybill.NewID()
	purger, err := ops.Purger(admin.Retention{})
	if err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func() error{
		"Stats":        func() error { _, err := ops.Stats(ctx); return err },
		"Count":        func() error { _, err := ops.Count(ctx, store.Dead, store.Filter{}); return err },
		"List":         func() error { _, err := ops.List(ctx, store.Dead, store.Filter{}, 0, 1); return err },
		"Find":         func() error { _, err := ops.Find(ctx, id); return err },
		"Journey":      func() error { _, err := ops.Journey(ctx, id); return err },
		"Replay":       func() error { _, err := ops.Replay(ctx, id); return err },
		"ReplayAll":    func() error { _, err := ops.ReplayAll(ctx, store.Filter{}, admin.DeadLetterOptions{}); return err },
		"Discard":      func() error { _, err := ops.Discard(ctx, id); return err },
		"DiscardAll":   func() error { _, err := ops.DiscardAll(ctx, store.Filter{}, admin.DeadLetterOptions{}); return err },
		"Blocked":      func() error { _, err := ops.Blocked(ctx, 1); return err },
		"Unblock":      func() error { _, err := ops.Unblock(ctx, id); return err },
		"PurgeWritten": func() error { _, err := ops.PurgeWritten(ctx, time.Hour, nil); return err },
		"MakeReady":    func() error { _, err := ops.MakeReady(ctx); return err },
		"Purger.Once":  func() error { _, err := purger.Once(ctx, nil); return err },
		"SetLanes":     func() error { return ops.SetLanes(ctx, 8) },
	} {
		if err := call(); !errors.Is(err, errAway) {
			t.Errorf("%s returned %v", name, err)
		}
	}
	if _, err := newAdmin(t, newStore(t, 0).Driver().OutboxAdmin, observe.Hooks{}).Find(ctx, id); !errors.Is(err, admin.ErrNotFound) {
		t.Errorf("Find of nothing: %v", err)
	}
}

// TestTenantsAreNotMixed: an aggregate without a tenant is different from the
// aggregates of the same name that tenants have.
func TestTenantsAreNotMixed(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	write := func(tenant string) waybill.ID {
		t.Helper()
		ev := waybill.NewEvent("Tested", 1)
		ev.ID, ev.AggregateType, ev.AggregateID, ev.TenantID = waybill.NewID(), "order", "17", tenant
		if err := box.InTx(t.Context(), func(ctx context.Context, _ *memstore.Tx) error { return box.Emit(ctx, ev) }); err != nil {
			t.Fatal(err)
		}
		return ev.ID
	}
	// the one without a tenant comes last
	tenants := []string{"a", "b", "c", ""}
	for _, tenant := range tenants {
		write(tenant)
	}
	fails := relay.SinkFunc(func(context.Context, waybill.Delivery) error { return waybill.RetryAfter(time.Hour, errAway) })
	r, err := relay.New(db, fails, relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for s := (store.Stats{}); s.Holding < int64(len(tenants)); <-tick.C {
		if s, err = db.Driver().OutboxAdmin.Stats(ctx); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	last := map[string]waybill.ID{}
	for i, tenant := range tenants {
		for range i + 1 {
			last[tenant] = write(tenant)
		}
	}
	// fewer than there are
	ops, err := admin.NewOutbox(db, admin.Config{BatchSize: 2})
	if err != nil {
		t.Fatal(err)
	}
	blocked, err := ops.Blocked(t.Context(), 10)
	if err != nil || len(blocked) != len(tenants) {
		t.Fatalf("%d aggregates are blocked, %v", len(blocked), err)
	}
	for _, b := range blocked {
		if want := int64(slices.Index(tenants, b.Tenant) + 1); b.Waiting != want {
			t.Errorf("of tenant %q %d events wait, want %d", b.Tenant, b.Waiting, want)
		}
	}
	for _, tenant := range tenants {
		j, err := ops.Journey(t.Context(), last[tenant])
		if err != nil || j.Behind == nil || j.Behind.Event.TenantID != tenant {
			t.Errorf("an event of tenant %q waits for %+v, %v", tenant, j.Behind, err)
		}
	}
}

// signaling signals each call of Tidy.
type signaling struct {
	failing
	called chan struct{}
}

func (s signaling) Tidy(ctx context.Context, _ time.Duration) error {
	select {
	case s.called <- struct{}{}:
	case <-ctx.Done():
	}
	return errAway
}

// TestPurger: Run purges at once and then at every interval, survives errors,
// and refuses to run twice.
func TestPurger(t *testing.T) {
	db := signaling{called: make(chan struct{})}
	ops := newAdmin(t, db, observe.Hooks{})
	p, err := ops.Purger(admin.Retention{PurgeInterval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	<-db.called
	<-db.called // fails and continues
	if err := p.Run(ctx); err == nil {
		t.Error("a second Run returned nil")
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if _, err := ops.Purger(admin.Retention{Dead: -1, PurgeInterval: -1, PurgeBatchSize: -1}); err == nil {
		t.Error("negative fields were accepted")
	}
	if n, err := ops.PurgeWritten(t.Context(), 0, nil); err == nil || n != 0 {
		t.Error("an age of 0 was accepted")
	}
}

// TestPurgeWritten: without a relay, old events are purged in batches.
func TestPurgeWritten(t *testing.T) {
	db := newStore(t, 25)
	ops, err := admin.NewOutbox(db, admin.Config{BatchSize: 10})
	if err != nil {
		t.Fatal(err)
	}
	var steps []int
	n, err := ops.PurgeWritten(t.Context(), time.Nanosecond, func(n int) { steps = append(steps, n) })
	if err != nil || n != 25 || len(steps) != 3 {
		t.Errorf("%d were purged in %v: %v", n, steps, err)
	}
	if _, err := db.Driver().Relay.Heartbeat(t.Context(), store.Node{ID: waybill.NewID(), Relay: "relay"}, time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := ops.PurgeWritten(t.Context(), time.Nanosecond, nil); !errors.Is(err, store.ErrRelayLive) {
		t.Errorf("while a relay is live: %v", err)
	}
}

// TestCapturer: delayed events become ready when they are due, old events are
// purged with their keys, and a purged key is free.
func TestCapturer(t *testing.T) {
	db := newStore(t, 0)
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	write := func(delay time.Duration) outbox.Outcome {
		t.Helper()
		var out []outbox.Receipt
		err := box.InTx(t.Context(), func(ctx context.Context, tx *memstore.Tx) error {
			var err error
			ev := waybill.Event{Type: "A", AggregateID: "1", DedupKey: "k", Delay: delay, Payload: []byte("1")}
			out, err = box.WriteEach(ctx, tx, ev)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return out[0].Outcome
	}
	if got := write(time.Millisecond); got != outbox.Written {
		t.Fatalf("the first write: %v", got)
	}
	ops := newAdmin(t, db.Driver().OutboxAdmin, observe.Hooks{})
	c, err := ops.Capturer(admin.Capture{Retention: time.Nanosecond, Interval: time.Millisecond, PurgeInterval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	for deadline := time.Now().Add(20 * time.Second); ; {
		s, err := ops.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			cancel()
			t.Fatalf("after a long time: %+v", s)
		}
		if s.Ready+s.Scheduled == 0 { // made ready, then purged
			break
		}
		runtime.Gosched()
	}
	if err := c.Run(ctx); err == nil {
		t.Error("a second Run returned nil")
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if got := write(0); got != outbox.Written {
		t.Errorf("the key of an event that is gone: %v", got)
	}
	if _, err := ops.Capturer(admin.Capture{Retention: -1}); err == nil {
		t.Error("a negative field was accepted")
	}
}

// TestConfig: the errors list every invalid field, in the order of the fields.
func TestConfig(t *testing.T) {
	if _, err := admin.NewOutbox[any](nil, admin.Config{}); err == nil {
		t.Error("a nil store was accepted")
	}
	broken := testroles.Of[any](failing{})
	if _, err := admin.NewOutbox(broken, admin.Config{BatchSize: -1}); err == nil || err.Error() != "admin: Config.BatchSize: -1 is negative" {
		t.Errorf("a negative batch size: %v", err)
	}
	ops, err := admin.NewOutbox(broken, admin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = ops.Purger(admin.Retention{History: -1, Dead: -2, PurgeInterval: -3, PurgeBatchSize: -4})
	if want := "admin: Retention.Dead: -2ns is negative\nRetention.PurgeInterval: -3ns is negative\nRetention.PurgeBatchSize: -4 is negative"; err == nil || err.Error() != want {
		t.Errorf("the error is\n%v\nwant\n%s", err, want)
	}
	_, err = ops.Capturer(admin.Capture{Retention: -1, Interval: -2, PurgeInterval: -3})
	if want := "admin: Capture.Retention: -1ns is negative\nCapture.Interval: -2ns is negative\nCapture.PurgeInterval: -3ns is negative"; err == nil || err.Error() != want {
		t.Errorf("the error is\n%v\nwant\n%s", err, want)
	}
}

package otelobserve_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/observe/otelobserve"
	"github.com/waybillhq/waybill/store/memstore"
)

func placed(id string) waybill.Event {
	ev := waybill.NewEvent("OrderPlaced", "canary-payload")
	ev.AggregateType, ev.AggregateID, ev.TenantID = "order", id, "canary-tenant"
	return ev
}

// Outbox, relay and inbox run; the counters equal the number of events that the
// handler saw.
func TestCountersEqualWhatHappened(t *testing.T) {
	p := newProcess(t, otelobserve.Config{Relay: "orders"})
	s := p.shop()
	in, err := inbox.New(s.db, inbox.Config{Observe: p.Hooks()})
	if err != nil {
		t.Fatal(err)
	}
	group := in.MustGroup("INVENTORY", inbox.Options{BackoffBase: time.Millisecond, BackoffMax: time.Millisecond})
	var applied, refused atomic.Int64
	group.Handle("order", "OrderPlaced", func(_ context.Context, _ *memstore.Tx, ev waybill.Event) error {
		switch {
		case ev.AggregateID == "bad":
			return waybill.Permanent(errBoom)
		case ev.AggregateID == "shaky" && refused.Add(1) == 1:
			return errBoom
		}
		applied.Add(1)
		return nil
	})
	stop := s.relay(p.WrapGroup(group))
	for i := range 10 {
		s.write(t.Context(), placed(fmt.Sprint("o", i)))
	}
	s.write(t.Context(), placed("bad"), placed("shaky"))
	p.await("all is settled", func() bool { return p.value("waybill.dispatch.success") == 11 && p.value("waybill.dispatch.dead") == 1 })
	again := eventfill.Defaults(placed("o0"))
	for range 2 { // the second is a duplicate
		if errs := p.WrapGroup(group).Deliver(t.Context(), []waybill.Delivery{{Event: again, Attempt: 1}}); errs[0] != nil {
			t.Fatal(errs[0])
		}
	}
	stop()

	p.want(12, "waybill.written")
	p.want(12, "waybill.written", "event_type", "OrderPlaced", "relay", "orders")
	p.want(12, "waybill.consume.success", "group", "INVENTORY")
	if n := applied.Load(); n != 12 {
		t.Errorf("applied %d, want 12", n)
	}
	p.want(1, "waybill.consume.replayed", "group", "INVENTORY")
	p.want(1, "waybill.consume.failure", "group", "INVENTORY")
	p.want(1, "waybill.consume.dead", "group", "INVENTORY")
	p.want(1, "waybill.dispatch.failure", "class", "defer")
	p.want(0, "waybill.dispatch.failure", "class", "retry")
	p.want(11, "waybill.publish.latency")
	if in := p.value("waybill.enqueue.hot") + p.value("waybill.enqueue.cold"); in < 12 {
		t.Errorf("%v events came into the relay, want 12 or more", in)
	}
	if n := p.value("waybill.lanes"); n != 32 {
		t.Errorf("waybill.lanes = %v", n)
	}
	ops, err := admin.NewOutbox(s.db, admin.Config{Observe: p.Hooks()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ops.Stats(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.want(0, "waybill.backlog")
	p.want(1, "waybill.dead")
	if text := fmt.Sprint(p.metrics(), tracesText(p)); strings.Contains(text, "canary") {
		t.Error("a payload or a tenant is in a metric or a span")
	}
}

func tracesText(p *process) string {
	var text strings.Builder
	for _, s := range p.spans.Ended() {
		fmt.Fprintln(&text, s.Name(), s.Attributes(), s.Status(), s.Events())
	}
	return text.String()
}

// An alert on an increase sees the first failure, because the counter existed
// before.
func TestCountersBeginAtZero(t *testing.T) {
	p := newProcess(t, otelobserve.Config{})
	h := p.Hooks()
	p.want(0, "waybill.enqueue.hot.dropped", "reason", "not_due")
	p.want(0, "waybill.purged", "what", "dead")
	p.want(-1, "waybill.dispatch.dead")
	h.Write(t.Context(), observe.WriteInfo{Event: placed("a")})
	p.want(0, "waybill.dispatch.dead", "event_type", "OrderPlaced")
	p.want(0, "waybill.dispatch.failure", "event_type", "OrderPlaced", "class", "unavailable")
	h.KeyRepeated(observe.KeyRepeatedInfo{Operation: "POST /orders"})
	p.want(0, "waybill.key.refused", "operation", "POST /orders", "reason", "uncertain")
	h.Reconciled(observe.ReconciledInfo{Job: "payout"})
	p.want(0, "waybill.reconcile.fixed", "job_name", "payout")
	p.want(0, "waybill.reconcile.runs", "job_name", "payout", "outcome", "failure")
}

// The reason of a rejection is in a label, however the error is wrapped.
func TestRefusalReasonLabels(t *testing.T) {
	p := newProcess(t, otelobserve.Config{})
	h := p.Hooks()
	for reason, err := range map[string]error{
		"in_progress": waybill.Later(time.Second, waybill.ErrInProgress), "conflict": waybill.ErrConflict,
		"uncertain": fmt.Errorf("key: %w", waybill.ErrUncertain), "error": errBoom,
	} {
		h.KeyRefused(observe.KeyRefusedInfo{Operation: "pay", Err: err})
		p.want(1, "waybill.key.refused", "reason", reason)
	}
}

// A group that is missing from a report has no failed events. Two reporters do
// not affect each other.
func TestGroupThatRecoveredIsZero(t *testing.T) {
	p := newProcess(t, otelobserve.Config{})
	ops, own := p.Hooks(), p.Hooks()
	ops.Groups(observe.GroupsInfo{Groups: []observe.Group{{Group: "BILLING", Failed: 3, OldestDue: time.Minute}, {Group: "INVENTORY", Dead: 1}}})
	own.Groups(observe.GroupsInfo{Groups: []observe.Group{{Group: "MAIL"}}})
	p.want(3, "waybill.group.failed", "group", "BILLING")
	p.want(60, "waybill.group.due.oldest", "group", "BILLING")
	ops.Groups(observe.GroupsInfo{Groups: []observe.Group{{Group: "INVENTORY", Dead: 1}}})
	p.want(0, "waybill.group.failed", "group", "BILLING")
	p.want(0, "waybill.group.due.oldest", "group", "BILLING")
	p.want(1, "waybill.group.dead", "group", "INVENTORY")
}

// Arbitrary event types do not grow the memory of the metrics backend without
// bound.
func TestLabelsAreLimited(t *testing.T) {
	p := newProcess(t, otelobserve.Config{Labels: 2})
	h := p.Hooks()
	for i := range 10 {
		d := &waybill.Delivery{Event: waybill.Event{Type: fmt.Sprint("T", i)}}
		h.Delivered(observe.DeliveredInfo{Delivery: d, Took: time.Millisecond, Age: 0})
		h.Failed(observe.FailedInfo{Delivery: d, Class: waybill.ClassRetry, Err: errBoom, Took: time.Millisecond})
		h.Failed(observe.FailedInfo{Delivery: d, Class: waybill.ClassUnavailable, Err: errBoom, Took: time.Millisecond})
	}
	p.want(1, "waybill.dispatch.success", "event_type", "T1")
	p.want(8, "waybill.dispatch.success", "event_type", "other")
	p.want(16, "waybill.dispatch.failure", "event_type", "other")
	p.want(1, "waybill.dispatch.failure", "event_type", "T1", "class", "unavailable")
	p.want(10, "waybill.dispatch.success")
	p.want(-1, "waybill.publish.latency") // no age was known
}

// Workers that use new labels concurrently lose no measurement.
func TestManyCountAtOnce(t *testing.T) {
	p := newProcess(t, otelobserve.Config{})
	h := p.Hooks()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 100 {
				h.Delivered(observe.DeliveredInfo{Delivery: &waybill.Delivery{Event: waybill.Event{Type: fmt.Sprint("T", i)}}, Took: time.Millisecond, Age: time.Millisecond})
			}
		})
	}
	all.Wait()
	p.want(800, "waybill.dispatch.success")
	p.want(8, "waybill.dispatch.success", "event_type", "T99")
}

// An outbox with change data capture has its own gauges; the gauges of backlog
// alerts do not appear.
func TestACapturedOutboxHasNoBacklog(t *testing.T) {
	p := newProcess(t, otelobserve.Config{})
	p.Hooks().Backlog(observe.BacklogInfo{Ready: 7, Dead: 2, Oldest: time.Hour, Captured: true})
	p.want(7, "waybill.captured")
	p.want(3600, "waybill.captured.oldest")
	p.want(2, "waybill.dead")
	p.want(-1, "waybill.backlog")
	p.want(-1, "waybill.backlog.oldest")
}

// The time of the last count tells that the gauges of the tables are old.
func TestTimeOfTheLastCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, otelobserve.Config{})
		p.want(-1, "waybill.counted.timestamp")
		p.Hooks().Backlog(observe.BacklogInfo{Ready: 7})
		counted := float64(time.Now().UnixMilli()) / 1000
		time.Sleep(1500 * time.Millisecond) //nolint:forbidigo // synctest's time
		p.want(counted, "waybill.counted.timestamp")
		p.Hooks().Backlog(observe.BacklogInfo{Captured: true})
		p.want(counted+1.5, "waybill.counted.timestamp")
	})
}

// Every name begins with the prefix, and an invalid prefix is rejected.
func TestPrefix(t *testing.T) {
	p := newProcess(t, otelobserve.Config{Prefix: "orders.outbox"})
	p.Hooks().Backlog(observe.BacklogInfo{Ready: 7})
	p.want(7, "orders.outbox.backlog")
	for name := range p.metrics() {
		if !strings.HasPrefix(name, "orders.outbox.") {
			t.Errorf("%s lacks the prefix", name)
		}
	}
	for _, cfg := range []otelobserve.Config{{Prefix: "1st"}, {Prefix: "a b"}, {Labels: -1}} {
		if _, err := otelobserve.New(cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

// Hooks that run for every event allocate nothing once their labels are known.
func TestMeasuringAllocatesNothing(t *testing.T) {
	p := newProcess(t, otelobserve.Config{Relay: "orders"})
	h := p.Hooks()
	ev := placed("a")
	d := &waybill.Delivery{Event: ev}
	for name, call := range map[string]func(){
		"HotEnqueued":  func() { h.HotEnqueued(observe.HotEnqueuedInfo{Events: 1}) },
		"HotDropped":   func() { h.HotDropped(observe.HotDroppedInfo{Events: 1, Reason: observe.DropNotDue}) },
		"ColdEnqueued": func() { h.ColdEnqueued(observe.ColdEnqueuedInfo{Events: 1}) },
		"QueueDepths":  func() { h.QueueDepths(observe.QueueDepthsInfo{Hot: 1, Cold: 1}) },
		"Delivered":    func() { h.Delivered(observe.DeliveredInfo{Delivery: d, Took: time.Millisecond, Age: time.Millisecond}) },
		"Failed": func() {
			h.Failed(observe.FailedInfo{Delivery: d, Class: waybill.ClassRetry, Err: errBoom, Took: time.Millisecond})
		},
		"Died":    func() { h.Died(observe.DiedInfo{Delivery: d, Err: errBoom}) },
		"Read":    func() { h.Read(observe.ReadInfo{Kind: "fast", Rows: 1, Took: time.Millisecond, Err: nil}) },
		"Settled": func() { h.Settled(observe.SettledInfo{Events: 1, Took: time.Millisecond, Err: nil}) },
		"Lag":     func() { h.Lag(observe.LagInfo{Oldest: time.Second}) },
		"Consumed": func() {
			h.Consumed(observe.ConsumedInfo{Group: "INVENTORY", Event: &ev, Took: time.Millisecond, Replayed: false})
		},
		"KeyRan":     func() { h.KeyRan(observe.KeyRanInfo{Operation: "pay", Took: time.Millisecond, Err: nil}) },
		"KeyRefused": func() { h.KeyRefused(observe.KeyRefusedInfo{Operation: "pay", Err: waybill.ErrConflict}) },
		"Received": func() {
			h.Received(observe.ReceivedInfo{Source: "orders", Class: waybill.ClassDone, Redelivered: true, Took: time.Millisecond})
		},
	} {
		if n := testing.AllocsPerRun(200, call); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestConfigErrors: the error of New lists every invalid field, in the order of
// the fields.
func TestConfigErrors(t *testing.T) {
	_, err := otelobserve.New(otelobserve.Config{Prefix: "1st", Labels: -1})
	want := `otelobserve: Config.Prefix: "1st": want a letter, then letters, digits and any of _ . - /, 200 at most
Config.Labels: -1 is negative`
	if err == nil || err.Error() != want {
		t.Errorf("the error is\n%v\nwant\n%s", err, want)
	}
}

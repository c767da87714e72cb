package otelobserve_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/observe/otelobserve"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/memstore"
)

// wire holds everything that one process sends to the other.
type wire struct {
	ID                               waybill.ID
	Type, AggregateType, AggregateID string
	Headers                          map[string]string
	Payload                          json.RawMessage
}

// A request writes an event; a relay sends it; a consumer in another process,
// with its own providers, applies it and writes another event. All spans are in
// one trace, and the parent of each span is its cause.
func TestOneTraceThroughTwoProcesses(t *testing.T) {
	broker := make(chan []byte, 1)
	shop := newProcess(t, otelobserve.Config{}).shop()
	stock := newProcess(t, otelobserve.Config{}).shop()

	ctx, request := shop.traces.Tracer("http").Start(t.Context(), "POST /orders")
	stop := shop.relay(relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		b, err := json.Marshal(wire{d.ID, d.Type, d.AggregateType, d.AggregateID, d.Headers, json.RawMessage(d.Payload)})
		broker <- b
		return err
	}))
	shop.write(ctx, placed("A-1"))
	request.End()
	var w wire
	if err := json.Unmarshal(<-broker, &w); err != nil {
		t.Fatal(err)
	}
	stop()

	in, err := inbox.New(stock.db, inbox.Config{Observe: stock.Hooks()})
	if err != nil {
		t.Fatal(err)
	}
	group := in.MustGroup("INVENTORY", inbox.Options{})
	group.Handle("order", "OrderPlaced", func(ctx context.Context, tx *memstore.Tx, _ waybill.Event) error {
		_, span := stock.traces.Tracer("sql").Start(ctx, "UPDATE stock")
		span.End()
		return stock.box.Write(ctx, tx, waybill.NewEvent("StockReserved", 1))
	})
	ev := waybill.Event{ID: w.ID, Type: w.Type, AggregateType: w.AggregateType, AggregateID: w.AggregateID, Headers: w.Headers, Payload: w.Payload}
	if errs := stock.WrapGroup(group).Deliver(context.Background(), []waybill.Delivery{{Event: ev, Attempt: 1}}); errs[0] != nil {
		t.Fatal(errs[0])
	}

	created, sent := shop.only("create OrderPlaced"), shop.only("send OrderPlaced")
	processed, update, next := stock.only("process OrderPlaced"), stock.only("UPDATE stock"), stock.only("create StockReserved")
	for child, parent := range map[sdktrace.ReadOnlySpan]trace.SpanContext{
		created: request.SpanContext(), sent: created.SpanContext(), processed: created.SpanContext(),
		update: processed.SpanContext(), next: processed.SpanContext(),
	} {
		if child.SpanContext().TraceID() != request.SpanContext().TraceID() {
			t.Errorf("%s is in another trace", child.Name())
		}
		if child.Parent().SpanID() != parent.SpanID() {
			t.Errorf("%s: the parent is %v, want %v", child.Name(), child.Parent().SpanID(), parent.SpanID())
		}
	}
	for name, want := range map[string]string{
		"messaging.system": "waybill", "messaging.operation.name": "process", "messaging.operation.type": "process",
		"messaging.destination.name": "OrderPlaced", "messaging.message.id": ev.ID.String(), "messaging.consumer.group.name": "INVENTORY",
		"waybill.attempt": "1",
	} {
		if got := attr(processed, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if k := []trace.SpanKind{created.SpanKind(), sent.SpanKind(), processed.SpanKind()}; !slices.Equal(k,
		[]trace.SpanKind{trace.SpanKindProducer, trace.SpanKindClient, trace.SpanKindConsumer}) {
		t.Errorf("span kinds %v", k)
	}
}

// If a relay delivers to a group in its own process, the process span is a
// child of the send span.
func TestConsumerInTheRelaysProcess(t *testing.T) {
	s := newProcess(t, otelobserve.Config{}).shop()
	s.relay(s.Wrap(relay.SinkFunc(func(context.Context, waybill.Delivery) error { return nil })))
	s.write(t.Context(), placed("A-1"))
	s.await("the send span", func() bool { return len(s.named("send OrderPlaced")) == 1 })
	sent, processed := s.only("send OrderPlaced"), s.only("process OrderPlaced")
	if processed.Parent().SpanID() != sent.SpanContext().SpanID() {
		t.Error("processing is not part of sending")
	}
}

// A forwarded event stays in its original trace.
func TestTraceContextOfAnEventIsKept(t *testing.T) {
	p := newProcess(t, otelobserve.Config{})
	ev := placed("A-1")
	ev.Headers = map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	if h := p.Hooks().Write(t.Context(), observe.WriteInfo{Event: ev}); len(h) != 0 {
		t.Errorf("headers %v", h)
	}
	if n := len(p.spans.Ended()); n != 0 {
		t.Errorf("%d spans", n)
	}
	if got := trace.SpanContextFromContext(p.Extract(t.Context(), &ev)).TraceID().String(); got != "0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("extracted trace %s", got)
	}
}

// Without a tracer, existing traces are propagated.
func TestWithoutTracerContextIsPassedOn(t *testing.T) {
	o, err := otelobserve.New(otelobserve.Config{TracerProvider: noop.NewTracerProvider()})
	if err != nil {
		t.Fatal(err)
	}
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	ctx := propagation.TraceContext{}.Extract(t.Context(), propagation.MapCarrier{"traceparent": parent})
	if h := o.Hooks().Write(ctx, observe.WriteInfo{Event: placed("A-1")}); h["traceparent"] != parent {
		t.Errorf("headers %v", h)
	}
	if h := o.Hooks().Write(t.Context(), observe.WriteInfo{Event: placed("A-1")}); len(h) != 0 {
		t.Errorf("headers %v, want none", h)
	}
}

// batch returns deliveries; those with a 1 are traced, because their parent was
// sampled.
func batch(sampled string) []waybill.Delivery {
	out := make([]waybill.Delivery, len(sampled))
	for i, c := range sampled {
		ev := placed(string(rune('a' + i)))
		ev.Headers = map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319" + string(rune('a'+i)) + "-b7ad6b7169203331-0" + string(c)}
		out[i] = waybill.Delivery{Event: eventfill.Defaults(ev), Attempt: 1}
	}
	return out
}

// Each event has a span in its own trace with its own result; the batch has a
// span that links to them.
func TestBatchOfARelay(t *testing.T) {
	p := newProcess(t, otelobserve.Config{})
	ctx, after := p.Hooks().Deliver(t.Context(), observe.DeliverInfo{Batch: batch("101")})
	inner := trace.SpanContextFromContext(ctx)
	after(observe.DeliverDoneInfo{Results: []error{nil, nil, waybill.Permanent(errBoom)}})
	sent, whole := p.named("send OrderPlaced"), p.only("send batch")
	if len(sent) != 2 {
		t.Fatalf("%d spans, want those of the two that are traced", len(sent))
	}
	if inner.SpanID() != whole.SpanContext().SpanID() || len(whole.Links()) != 2 || attr(whole, "messaging.batch.message_count") != "3" {
		t.Errorf("the batch: %v, links %v", inner, whole.Links())
	}
	for _, s := range sent {
		failed := strings.HasSuffix(s.SpanContext().TraceID().String(), "c")
		if (s.Status().Code == codes.Error) != failed || (attr(s, "error.type") == "permanent") != failed {
			t.Errorf("%v: status %v", s.SpanContext().TraceID(), s.Status())
		}
	}
	p.want(1, "waybill.dispatch.batch")
	if _, after := p.Hooks().Deliver(t.Context(), observe.DeliverInfo{Batch: batch("00")}); after != nil {
		t.Error("a batch without traced events has a span")
	}
	_, after = p.Hooks().Deliver(t.Context(), observe.DeliverInfo{Batch: batch("1")})
	after(observe.DeliverDoneInfo{})
	if s := p.named("send OrderPlaced")[2]; s.Status().Code != codes.Error {
		t.Error("a wrong number of results is a success")
	}
}

// calls is a consumer that records each batch it receives.
type calls struct {
	got   []string
	short bool
}

func (c *calls) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	text := ""
	for i := range batch {
		text += batch[i].AggregateID
	}
	c.got = append(c.got, text)
	if c.short {
		return nil
	}
	errs := make([]error, len(batch))
	for i := range batch {
		if batch[i].AggregateID == "d" {
			errs[i] = errBoom
		}
	}
	return errs
}

// Traced events arrive alone, in their own context; the others arrive together;
// the order and the results are kept.
func TestBatchOfAConsumer(t *testing.T) {
	for sampled, want := range map[string][]string{
		"00000": {"abcde"}, "11111": {"a", "b", "c", "d", "e"}, "00100": {"ab", "c", "de"}, "10010": {"a", "bc", "d", "e"}, "1": {"a"}, "0": {"a"},
	} {
		p, c := newProcess(t, otelobserve.Config{}), &calls{}
		errs := p.Wrap(c).Deliver(t.Context(), batch(sampled))
		if !slices.Equal(c.got, want) {
			t.Errorf("%s: passed on %v, want %v", sampled, c.got, want)
		}
		if len(errs) != len(sampled) {
			t.Errorf("%s: %d results", sampled, len(errs))
		}
		for i, err := range errs {
			if (err != nil) != (i == 3) {
				t.Errorf("%s: result %d: %v", sampled, i, err)
			}
		}
		if got, want := len(p.named("process OrderPlaced")), strings.Count(sampled, "1"); got != want {
			t.Errorf("%s: %d spans", sampled, got)
		}
		short := &calls{short: true}
		if errs := p.Wrap(short).Deliver(t.Context(), batch(sampled)); len(errs) == len(sampled) {
			t.Errorf("%s: a consumer that returns too few results settles all events", sampled)
		}
	}
}

// A relay and a bus need more methods of a sink than Deliver.
func TestWrapKeepsWhatASinkSays(t *testing.T) {
	p := newProcess(t, otelobserve.Config{})
	s := p.shop()
	in, err := inbox.New(s.db, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	group := in.MustGroup("INVENTORY", inbox.Options{})
	group.Handle("order", "OrderPlaced", func(context.Context, *memstore.Tx, waybill.Event) error { return nil })
	// The wrapped group is still a consumer.
	bus := inbox.NewBus(p.WrapGroup(group))
	ev := eventfill.Defaults(placed("A-1"))
	if err := bus.Publish(t.Context(), ev); err != nil {
		t.Error(err)
	}
	if d, ok := p.WrapGroup(group).(relay.DestinationSink); !ok || d.Destination(&ev) != group.Destination(&ev) {
		t.Error("the destination is lost")
	}
	if _, ok := p.Wrap(relay.SinkFunc(nil)).(relay.SerialSink); !ok {
		t.Error("a wrapped serial sink is not serial")
	}
	if _, ok := p.Wrap(&calls{}).(relay.SerialSink); ok {
		t.Error("a sink became serial")
	}
}

// The span of a panicking consumer has an error status, and the panic
// propagates.
func TestSpanEndsWhenTheConsumerPanics(t *testing.T) {
	p := newProcess(t, otelobserve.Config{})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is swallowed")
			}
		}()
		p.Wrap(panics{}).Deliver(t.Context(), batch("1"))
	}()
	if s := p.only("process OrderPlaced"); s.Status().Code != codes.Error {
		t.Error("the span is a success")
	}
}

type panics struct{}

func (panics) Deliver(context.Context, []waybill.Delivery) []error { panic("boom") }

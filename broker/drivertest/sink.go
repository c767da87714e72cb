package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/internal/eventfill"
)

// full returns a delivery in which no field has its default value.
func (b *bed) full() waybill.Delivery {
	ev := waybill.Event{
		ID: waybill.NewID(), Type: "OrderPlaced", AggregateType: "order", AggregateID: "ord/7 %2F ü", TenantID: "Käufer & Söhne", Topic: b.Topic,
		SchemaID: "https://example.com/schemas/order.json", SchemaVersion: 3, DedupKey: `a "quoted" key`, Priority: 9,
		OccurredAt: time.Date(2024, 2, 29, 23, 59, 59, 123456000, time.UTC), AvailableAt: time.Date(2024, 3, 1, 0, 0, 1, 1000, time.UTC),
		CorrelationID: "corr-1", CausationID: waybill.NewID().String(), ContentType: "application/octet-stream",
		Headers: map[string]string{
			"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b,c=d",
			"Name": "upper", "name": "lower", "empty": "", " spaces ": "  around  ", "percent%41": "100%41", "ünï": "çödé ✓ 日本",
			// Header names that Waybill or the protocol uses must stay the
			// event's own.
			"ce_id": "not the id", "ce-id": "nor this", "id": "nor that", "Nats-Msg-Id": "mine", "content-type": "text/mine", "data": "mine", "tenantid": "mine",
		},
		Payload: []byte("\x00\x01\xff binary \r\n"),
	}
	return waybill.Delivery{
		Event: eventfill.Defaults(ev), Attempt: 1, Replay: 2,
		Position: waybill.Position{Lane: 5, Epoch: 77, Seq: 123456789012}, Claim: "of a relay",
	}
}

// subscribe creates the durable consumer of a source before an event is
// published: some brokers keep messages only for existing consumers.
func (b *bed) subscribe(name string) {
	if b.can.Source {
		b.Source(name, quick())
	}
}

// decoded returns the published events as a consumer sees them: through a
// source, if there is one.
func (b *bed) decoded(n int) []waybill.Delivery {
	b.Helper()
	if b.can.Source {
		var r recorder
		stop := b.start("reader", &r, quick())
		b.await(fmt.Sprintf("%d deliveries", n), func() bool { return r.count() >= n })
		stop()
		return r.all()
	}
	var got []waybill.Delivery
	for _, m := range b.read(n) {
		d, err := b.Codec.Decode(&m)
		if err != nil {
			b.Fatal(err)
		}
		got = append(got, d)
	}
	return got
}

// roundTrip: a consumed event equals the published event in every field.
func roundTrip(b *bed) {
	b.subscribe("reader")
	want := b.full()
	b.publish(want)
	got := b.decoded(1)[0]
	if got.Replay != want.Replay || got.Position != want.Position || got.Attempt != 1 {
		b.Errorf("replay %d, position %v, attempt %d", got.Replay, got.Position, got.Attempt)
	}
	if got.Claim != nil {
		b.Error("the token travels")
	}
	sameEvent(b, got.Event, want.Event)
	plain := b.event("", 1)
	plain.Headers = map[string]string{}
	b.publish(plain)
	second := b.decoded(1)
	sameEvent(b, second[len(second)-1].Event, plain.Event)
}

func sameEvent(b *bed, got, want waybill.Event) {
	b.Helper()
	if !maps.Equal(got.Headers, want.Headers) {
		b.Errorf("headers\n%q, want\n%q", got.Headers, want.Headers)
	}
	if !bytes.Equal(got.Payload, want.Payload) {
		b.Errorf("payload %q, want %q", got.Payload, want.Payload)
	}
	got.Headers, want.Headers, got.Payload, want.Payload = nil, nil, nil, nil
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		b.Errorf("event\n%s, want\n%s", g, w)
	}
}

// onTheWire: a client that does not depend on Waybill finds the attributes
// where CloudEvents defines them.
func onTheWire(b *bed) {
	d := b.event("42", 7)
	d.TenantID, d.Headers = "shop", map[string]string{"color": "red"}
	b.publish(d)
	m := b.read(1)[0]
	bind := b.Codec.Binding()
	for attr, want := range map[string]string{
		"specversion": "1.0", "id": d.ID.String(), "type": "OrderPlaced", "subject": "42", "tenantid": "shop", "aggregatetype": "order", "aggregateid": "42",
	} {
		if got := wireHeader(&m, bind.Attribute(attr)); got != want {
			b.Errorf("%s is %q, want %q; there are %v", bind.Attribute(attr), got, want, m.Headers)
		}
	}
	if wireHeader(&m, bind.Attribute("source")) == "" {
		b.Error("no source")
	}
	if got := wireHeader(&m, bind.UserHeader("color")); got != "red" {
		b.Errorf("%s is %q", bind.UserHeader("color"), got)
	}
	if m.PublishID != d.ID.String() {
		b.Errorf("publish id %q, want the event's", m.PublishID)
	}
	if m.ContentType != waybill.JSON {
		b.Errorf("content type %q", m.ContentType)
	}
	if !bytes.Equal(m.Payload, d.Payload) {
		b.Errorf("payload %q", m.Payload)
	}
}

// wireHeader finds a header regardless of case, because HTTP header names are
// case-insensitive.
func wireHeader(m *broker.Message, name string) string {
	for _, h := range m.Headers {
		if strings.EqualFold(h.Name, name) {
			return h.Value
		}
	}
	return ""
}

// replay: a deliberate replay is delivered, although the broker has just seen
// the event, and is the same event.
func replay(b *bed) {
	d := b.event("1", 1)
	b.publish(d)
	d.Replay = 1
	b.publish(d)
	got := b.read(2)
	if got[0].PublishID == got[1].PublishID {
		b.Errorf("both have the publish id %q", got[0].PublishID)
	}
	attr := b.Codec.Binding().Attribute("id")
	if x, y := wireHeader(&got[0], attr), wireHeader(&got[1], attr); x != y || x != d.ID.String() {
		b.Errorf("ids %q and %q, want %s twice", x, y, d.ID)
	}
}

// repeated: a message whose confirmation was lost is published again, and the
// broker drops the copy.
func repeated(b *bed) {
	d, last := b.event("1", 1), b.event("1", 2)
	b.publish(d)
	b.publish(d)
	b.publish(last)
	b.read(2)
}

// results: there is one result per delivery, and an invalid event does not
// affect the others.
func results(b *bed) {
	batch := []waybill.Delivery{b.event("1", 1), b.event("2", 2), b.event("3", 3)}
	batch[1].Headers = map[string]string{"x": "a\r\nce_id: forged"}
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	got := b.deliver(ctx, batch)
	if got[0] != nil || got[2] != nil {
		b.Errorf("its neighbors: %v, %v", got[0], got[2])
	}
	if class, _ := waybill.Classify(got[1]); class != waybill.ClassPermanent {
		b.Errorf("a header with a line break is %v (%v), want dead", class, got[1])
	}
	b.read(2)
	if got := b.deliver(ctx, nil); len(got) != 0 {
		b.Errorf("%d results for nothing", len(got))
	}
}

// cannotTravel: a row that was inserted with SQL may hold anything. An event
// whose content could be mistaken for another header, or would end the
// connection, is dead or is delivered unchanged. Events in the same batch and
// later events are published.
func cannotTravel(b *bed) {
	odds := Odds()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	arrived := 0
	for start := 0; start < len(odds); start += 10 {
		some := odds[start:min(start+10, len(odds))]
		batch := []waybill.Delivery{b.event(fmt.Sprint("before ", start), 1)}
		for i, o := range some {
			d := b.event(fmt.Sprint("odd ", start+i), 1)
			o.Change(&d)
			batch = append(batch, d)
		}
		batch = append(batch, b.event(fmt.Sprint("after ", start), 1))
		for i, err := range b.deliver(ctx, batch) {
			class, _ := waybill.Classify(err)
			if class == waybill.ClassDone {
				arrived++
			}
			switch {
			case i == 0 || i == len(batch)-1:
				if err != nil {
					b.Errorf("a neighbor of %q…: %v", some[0].Name, err)
				}
			case class != waybill.ClassPermanent && (class != waybill.ClassDone || !some[i-1].MayTravel):
				b.Errorf("%s: class %v: %v", some[i-1].Name, class, err)
			}
		}
	}
	b.publish(b.event("last", 1))
	b.read(arrived + 1)
}

// batchOrder: events of one aggregate in one batch arrive in order, and after a
// failure the later events of the aggregate do not arrive.
func batchOrder(b *bed) {
	if _, ok := b.Sink.(interface{ StopsAtFailure() }); !ok {
		b.Skip("the sink takes one event of an aggregate at a time: it is no relay.OrderedSink")
	}
	var batch []waybill.Delivery
	for n := range 20 {
		for a := range 10 {
			batch = append(batch, b.event(fmt.Sprint("a", a), n))
		}
	}
	b.publish(batch...)
	var got []waybill.Delivery
	for _, m := range b.read(len(batch)) {
		d, err := b.Codec.Decode(&m)
		if err != nil {
			b.Fatal(err)
		}
		got = append(got, d)
	}
	b.inOrder(got, 10, 20)

	bad := []waybill.Delivery{b.event("x", 0), b.event("x", 1), b.event("x", 2), b.event("y", 0)}
	bad[1].Headers = map[string]string{"x": "\n"}
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	errs := b.deliver(ctx, bad)
	if errs[0] != nil || errs[1] == nil || errs[3] != nil {
		b.Errorf("results %v", errs)
	}
	b.read(len(batch) + 2)
}

// tooLarge: an event that the broker will never accept is dead at once and does
// not affect others.
func tooLarge(b *bed) {
	large := b.event("1", 1)
	large.Payload, large.ContentType = bytes.Repeat([]byte("x"), 2*b.can.MaxPayload), "text/plain"
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	got := b.deliver(ctx, []waybill.Delivery{large, b.event("2", 2)})
	if class, _ := waybill.Classify(got[0]); class != waybill.ClassPermanent {
		b.Errorf("too large is %v (%v), want dead", class, got[0])
	}
	if got[1] != nil {
		b.Errorf("its neighbor: %v", got[1])
	}
	b.read(1)
}

// unroutable: an event without a destination is never confirmed, and its error
// has the documented class.
func unroutable(b *bed) {
	lost := b.event("1", 1)
	lost.Topic = b.Nowhere
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	got := b.deliver(ctx, []waybill.Delivery{lost, b.event("2", 2)})
	if class, _ := waybill.Classify(got[0]); class != b.can.Unroutable {
		b.Errorf("unroutable is %v (%v), want %v", class, got[0], b.can.Unroutable)
	}
	if got[1] != nil {
		b.Errorf("its neighbor: %v", got[1])
	}
	b.read(1)
}

// endedContext: a delivery whose context has ended may or may not have arrived,
// and does not count as an attempt.
func endedContext(b *bed) {
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	for _, err := range b.deliver(ctx, []waybill.Delivery{b.event("1", 1)}) {
		if class, _ := waybill.Classify(err); class == waybill.ClassPermanent || class == waybill.ClassRetry {
			b.Errorf("the class is %v (%v)", class, err)
		}
	}
	b.publish(b.event("2", 2))
}

// outage: while the broker is unreachable, deliveries are unavailable and count
// as no attempt. Afterwards all events arrive.
func outage(b *bed) {
	var r recorder
	if b.can.Source {
		b.start("through", &r, quick())
	}
	b.publish(b.event("a", 0))
	b.Break()
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
	for _, err := range b.deliver(ctx, []waybill.Delivery{b.event("b", 0), b.event("c", 0)}) {
		if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable {
			b.Errorf("the class is %v (%v), want unavailable", class, err)
		}
	}
	cancel()
	b.Heal()
	b.insist([]waybill.Delivery{b.event("a", 1), b.event("b", 0), b.event("c", 0)})
	if b.can.Source {
		b.await("all deliveries", func() bool { return r.collected(4, 1) })
	}
}

// insist delivers a batch until every event has arrived. It reports any failure
// other than an outage.
func (b *bed) insist(batch []waybill.Delivery) {
	b.Helper()
	deadline := time.Now().Add(patience)
	for len(batch) > 0 {
		if time.Now().After(deadline) {
			b.Fatalf("%d events do not arrive", len(batch))
		}
		ctx, cancel := context.WithTimeout(b.Context(), patience/4)
		var again []waybill.Delivery
		stopped := make(map[string]bool)
		for i, err := range b.Sink.Deliver(ctx, batch) {
			d := batch[i]
			if err == nil && !stopped[d.AggregateID] {
				continue
			}
			if class, _ := waybill.Classify(err); !stopped[d.AggregateID] && class != waybill.ClassUnavailable && class != waybill.ClassDefer {
				b.Errorf("an attempt is spent: %v (%v)", class, err)
			}
			stopped[d.AggregateID] = true
			again = append(again, d)
		}
		cancel()
		batch = again
		if len(batch) > 0 {
			select {
			case <-b.Context().Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
}

// restart: a server that is killed while events are published loses no
// confirmed event, and no event overtakes another.
func restart(b *bed) {
	var r recorder
	if b.can.Source {
		b.start("through", &r, quick())
	}
	const aggregates, n = 10, 30
	var wg sync.WaitGroup
	half := make(chan struct{})
	wg.Go(func() {
		for k := range n {
			if k == n/2 {
				close(half)
			}
			var batch []waybill.Delivery
			for a := range aggregates {
				batch = append(batch, b.event(fmt.Sprint("a", a), k))
			}
			b.insist(batch)
		}
	})
	<-half
	b.Restart()
	wg.Wait()
	if !b.can.Source {
		return
	}
	b.await("all deliveries", func() bool { return r.collected(aggregates, n) })
	b.inOrder(r.all(), aggregates, n)
}

// secrets: errors show no password.
func secrets(b *bed) {
	for _, password := range []string{"hunter2canary", "p@ss%word:ß/canary"} {
		ctx, cancel := context.WithTimeout(b.Context(), patience)
		err := b.OpenWith(ctx, password)
		cancel()
		if err == nil {
			b.Fatal("Open succeeded")
		}
		for e := err; e != nil; e = errors.Unwrap(e) {
			if text := fmt.Sprintf("%v %+v", e, e); strings.Contains(text, "canary") {
				b.Errorf("the error shows the password: %s", text)
			}
		}
	}
}

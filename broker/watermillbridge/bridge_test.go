package watermillbridge_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/membroker"
	"github.com/waybillhq/waybill/broker/watermillbridge"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/outbox/outboxtest"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The relay detects these interfaces of the sink.
var (
	_ waybill.Sink          = (*watermillbridge.Sink)(nil)
	_ relay.DestinationSink = (*watermillbridge.Sink)(nil)
	_ broker.Source         = (*watermillbridge.Source)(nil)
	_ message.Publisher     = (*watermillbridge.Publisher)(nil)
	_ message.Subscriber    = (*watermillbridge.Subscriber)(nil)
)

func channel(t *testing.T) *gochannel.GoChannel {
	t.Helper()
	c := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 100, Persistent: true}, watermill.NopLogger{})
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func delivery(id string) waybill.Delivery {
	ev := eventfill.Defaults(waybill.Event{
		Type: "OrderPlaced", AggregateType: "order", AggregateID: id, TenantID: "acme", Topic: "orders", DedupKey: "d", CorrelationID: "c",
		Headers: map[string]string{"Über": "naïve"}, Payload: []byte(`{"total":1}`),
	})
	return waybill.Delivery{Event: ev, Attempt: 1}
}

type consumer struct {
	mu     sync.Mutex
	got    []waybill.Delivery
	answer func(n int, d waybill.Delivery) error
	each   chan struct{}
}

func (c *consumer) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	results := make([]error, len(batch))
	for i, d := range batch {
		c.mu.Lock()
		c.got = append(c.got, d)
		n := len(c.got)
		c.mu.Unlock()
		if c.answer != nil {
			results[i] = c.answer(n, d)
		}
		c.each <- struct{}{}
	}
	return results
}

func await(t *testing.T, ch <-chan struct{}, n int) {
	t.Helper()
	for range n {
		select {
		case <-ch:
		case <-time.After(30 * time.Second):
			t.Fatal("it did not happen")
		}
	}
}

// Through the sink, a Watermill broker, and the source, an event is unchanged;
// a failed attempt is repeated, and a message that can never succeed is
// dead-lettered.
func TestThereAndBack(t *testing.T) {
	pubsub := channel(t)
	sink, err := watermillbridge.NewSink(pubsub, watermillbridge.SinkConfig{})
	if err != nil {
		t.Fatal(err)
	}
	source, err := watermillbridge.NewSource(pubsub, "orders", watermillbridge.SourceConfig{
		DeadLetters: pubsub, Receive: broker.ReceiverConfig{BackoffBase: time.Millisecond, BackoffMax: time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	good, bad := delivery("A-1"), delivery("A-2")
	bad.Type = "Unknown"
	for i, err := range sink.Deliver(t.Context(), []waybill.Delivery{good, bad}) {
		if err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	failed := false
	c := &consumer{each: make(chan struct{}, 100)}
	c.answer = func(_ int, d waybill.Delivery) error {
		switch {
		case d.Type == "Unknown":
			return waybill.ErrNoHandler
		case !failed:
			failed = true
			return errors.New("once")
		}
		return nil
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- source.Run(ctx, &serial{c: c}) }()
	await(t, c.each, 3)
	dead, err := pubsub.Subscribe(t.Context(), "orders.dead")
	if err != nil {
		t.Fatal(err)
	}
	select {
	case msg := <-dead:
		msg.Ack()
		if msg.Metadata.Get("ce_id") != bad.ID.String() || msg.Metadata.Get(broker.HeaderDeadReason) == "" {
			t.Errorf("the dead letter: %v", msg.Metadata)
		}
	case <-time.After(30 * time.Second):
		t.Error("no dead letter came")
	}
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	times := 0
	for _, d := range c.got {
		if d.ID == good.ID {
			times++
			if !reflect.DeepEqual(d.Event, good.Event) {
				t.Errorf("got %+v, want %+v", d.Event, good.Event)
			}
		}
	}
	if times != 2 {
		t.Errorf("the event that failed once was handed over %d times", times)
	}
}

// serial serializes calls, because the test's answers have state.
type serial struct {
	mu sync.Mutex
	c  waybill.Sink
}

func (s *serial) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.c.Deliver(ctx, batch)
}

type publisherFunc func(topic string, msgs ...*message.Message) error

func (f publisherFunc) Publish(topic string, msgs ...*message.Message) error {
	return f(topic, msgs...)
}
func (publisherFunc) Close() error { return nil }

func TestErrorsOfAPublisher(t *testing.T) {
	for name, tc := range map[string]struct {
		publish publisherFunc
		want    waybill.Class
	}{
		"confirmed":   {func(string, ...*message.Message) error { return nil }, waybill.ClassDone},
		"unreachable": {func(string, ...*message.Message) error { return fmt.Errorf("write: %w", io.EOF) }, waybill.ClassUnavailable},
		"anything":    {func(string, ...*message.Message) error { return errors.New("no") }, waybill.ClassRetry},
		"panic":       {func(string, ...*message.Message) error { panic("no") }, waybill.ClassRetry},
		"its class":   {func(string, ...*message.Message) error { return waybill.Permanent(errors.New("no")) }, waybill.ClassPermanent},
	} {
		sink, err := watermillbridge.NewSink(tc.publish, watermillbridge.SinkConfig{})
		if err != nil {
			t.Fatal(err)
		}
		results := sink.Deliver(t.Context(), []waybill.Delivery{delivery("A-1"), delivery("A-2")})
		for _, err := range results {
			if class, _ := waybill.Classify(err); class != tc.want {
				t.Errorf("%s: class %v, want %v: %v", name, class, tc.want, err)
			}
		}
	}
}

// A failed message of a batch does not fail the others, and a replay has a
// separate id.
func TestEveryMessageHasItsOwnResult(t *testing.T) {
	var mu sync.Mutex
	ids := map[string]bool{}
	sink, err := watermillbridge.NewSink(publisherFunc(func(_ string, msgs ...*message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range msgs {
			ids[m.UUID] = true
			if m.Metadata.Get("ce_aggregateid") == "bad" {
				return errors.New("no")
			}
		}
		return nil
	}), watermillbridge.SinkConfig{})
	if err != nil {
		t.Fatal(err)
	}
	replayed := delivery("replayed")
	replayed.Replay = 1
	results := sink.Deliver(t.Context(), []waybill.Delivery{delivery("good"), delivery("bad"), replayed})
	if results[0] != nil || results[1] == nil || results[2] != nil {
		t.Errorf("results %v", results)
	}
	if !ids[replayed.ID.String()+"-r1"] {
		t.Errorf("published as %v", ids)
	}
}

// Messages are written into the transaction of their context: they exist only
// if it commits.
func TestTheOutboxAsAPublisher(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var rec outboxtest.Recorder
	box, err := outbox.New(db, outbox.Config{Hooks: []outbox.Hook{rec.Hook()}})
	if err != nil {
		t.Fatal(err)
	}
	pub, err := watermillbridge.NewPublisher(box, watermillbridge.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	plain := func(ctx context.Context) *message.Message {
		msg := message.NewMessage("not-a-ulid", []byte("text"))
		msg.Metadata.Set("aggregateid", "A-1")
		msg.Metadata.Set("x", "y")
		msg.SetContext(ctx)
		return msg
	}
	if err := pub.Publish("orders", plain(t.Context())); !errors.Is(err, waybill.ErrNoTx) {
		t.Errorf("outside a transaction: %v", err)
	}
	failure := errors.New("no")
	err = box.InTx(t.Context(), func(ctx context.Context, _ *memstore.Tx) error {
		return errors.Join(pub.Publish("orders", plain(ctx)), failure)
	})
	if !errors.Is(err, failure) || len(rec.Events()) != 0 {
		t.Errorf("rolled back: %v, %d events", err, len(rec.Events()))
	}
	carried := delivery("A-2")
	err = box.InTx(t.Context(), func(ctx context.Context, _ *memstore.Tx) error {
		var sent *message.Message
		sink, err := watermillbridge.NewSink(publisherFunc(func(_ string, msgs ...*message.Message) error {
			sent = msgs[0]
			return nil
		}), watermillbridge.SinkConfig{})
		if err != nil {
			return err
		}
		if err := sink.Deliver(ctx, []waybill.Delivery{carried})[0]; err != nil {
			return err
		}
		return pub.Publish("orders", plain(ctx), sent)
	})
	if err != nil {
		t.Fatal(err)
	}
	evs := rec.Events()
	if len(evs) != 2 {
		t.Fatalf("%d events", len(evs))
	}
	if ev := evs[0]; ev.Type != "orders" || ev.AggregateID != "A-1" || ev.Headers["x"] != "y" || ev.Headers["watermill_uuid"] != "not-a-ulid" ||
		string(ev.Payload) != "text" || ev.ContentType == waybill.JSON {
		t.Errorf("a plain message became %+v", ev)
	}
	if !reflect.DeepEqual(evs[1], carried.Event) {
		t.Errorf("an event that came back is %+v, want %+v", evs[1], carried.Event)
	}
}

// A message that enters through the publisher leaves the sink, and a subscriber
// over any source, with its UUID and metadata, also after a second round.
func TestAMessageKeepsItsUUIDAndMetadata(t *testing.T) {
	for name, uuid := range map[string]string{"a UUID": "0b9c7c4e-6c2e-4f0e-8a55-111111111111", "a ULID": waybill.NewID().String(), "any text": "not a uuid"} {
		t.Run(name, func(t *testing.T) {
			db, err := memstore.New(memstore.Config{})
			if err != nil {
				t.Fatal(err)
			}
			box, err := outbox.New(db, outbox.Config{})
			if err != nil {
				t.Fatal(err)
			}
			pub, err := watermillbridge.NewPublisher(box, watermillbridge.PublisherConfig{})
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{
				"test": "x", "AggregateID": "A-1", "tenantid": "acme", "Über": "naïve", "_watermill_requeue_retries": "3", "traceparent": "00-a-b-01",
				"content-type": "text/csv", "Content-Type": "text/tab-separated-values", "Traceparent": "other",
				// names that the codec uses, without the one that makes a
				// message a CloudEvents message
				"ce_type": "mine", "ce_tenantid": "acme", "ce_replay": "7", "ce_custom": "c", "ce_dedupkey": "", "waybill_test": "y", "waybill_ce_subject": "z",
			}
			in := message.NewMessage(uuid, []byte("payload"))
			for name, value := range want {
				in.Metadata.Set(name, value)
			}
			mem, err := membroker.New(membroker.Config{})
			if err != nil {
				t.Fatal(err)
			}
			published := make(chan *message.Message, 1)
			sink, err := watermillbridge.NewSink(publisherFunc(func(topic string, msgs ...*message.Message) error {
				if topic != "orders" || len(msgs) != 1 {
					t.Errorf("%d messages to %s", len(msgs), topic)
				}
				published <- msgs[0]
				return nil
			}), watermillbridge.SinkConfig{})
			if err != nil {
				t.Fatal(err)
			}
			direct, err := mem.Sink(membroker.SinkConfig{})
			if err != nil {
				t.Fatal(err)
			}
			r, err := relay.New(db, relay.FanOut(direct, sink), relay.Config{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			ran := make(chan error, 1)
			go func() { ran <- r.Run(ctx) }()
			defer func() { stop(); <-ran }()
			sub, err := watermillbridge.NewSubscriber(func(topic string) (broker.Source, error) {
				return mem.Source(membroker.SourceConfig{Durable: "billing", Topics: []string{topic}})
			}, watermillbridge.SubscriberConfig{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = sub.Close() }()
			subscribed, err := sub.Subscribe(ctx, "orders")
			if err != nil {
				t.Fatal(err)
			}
			err = box.InTx(t.Context(), func(ctx context.Context, _ *memstore.Tx) error {
				in.SetContext(ctx)
				return pub.Publish("orders", in)
			})
			if err != nil {
				t.Fatal(err)
			}
			for name, ch := range map[string]<-chan *message.Message{"sink": published, "subscriber": subscribed} {
				select {
				case got := <-ch:
					got.Ack()
					if got.UUID != uuid || string(got.Payload) != "payload" {
						t.Errorf("%s: message %s: %s", name, got.UUID, got.Payload)
					}
					for key, value := range want {
						if has, ok := got.Metadata[key]; !ok || has != value {
							t.Errorf("%s: %s is %q, want %q", name, key, has, value)
						}
					}
					again, err := watermillbridge.EventOf("orders", got)
					if err != nil || again.AggregateID != "A-1" || again.TenantID != "acme" || again.Headers["watermill_uuid"] != uuid || again.Headers["test"] != "x" {
						t.Errorf("%s: it went in again as %+v: %v", name, again, err)
					}
					if again.Type != "orders" || again.Topic != "orders" || again.ContentType != "text/csv" || again.DedupKey != "" {
						t.Errorf("%s: metadata passed for attributes: %+v", name, again)
					}
					turn := watermillMessage(t, waybill.Delivery{Event: again, Attempt: 1})
					for key, value := range want {
						if has, ok := turn.Metadata[key]; turn.UUID != uuid || !ok || has != value {
							t.Errorf("%s: after another turn %s of %s is %q, want %q", name, key, turn.UUID, has, value)
						}
					}
					if replayed := watermillMessage(t, waybill.Delivery{Event: again, Attempt: 1, Replay: 2}); replayed.UUID != uuid+"-r2" {
						t.Errorf("%s: a replay is %s", name, replayed.UUID)
					}
				case <-time.After(30 * time.Second):
					t.Fatalf("nothing came out of the %s", name)
				}
			}
		})
	}
}

// A handler that copies the metadata of a consumed message to its own message
// creates a new event: with the old id, an inbox would drop it as a duplicate.
// A message with its own UUID is the same event, whether it is a replay or not.
func TestCopiedMetadataMakeANewEvent(t *testing.T) {
	origin := delivery("A-1")
	origin.Replay, origin.Priority, origin.AvailableAt = 3, 5, time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	replayed := watermillMessage(t, origin)
	first := origin
	first.Replay = 0
	former, err := watermillbridge.EventOf("orders", message.NewMessage("a uuid", []byte(`{"total":1}`)))
	if err != nil {
		t.Fatal(err)
	}
	former.ID, former.AggregateID, former.TenantID, former.Headers["Über"] = waybill.NewID(), "A-1", "acme", "naïve"
	for name, consumed := range map[string]*message.Message{
		"an event": watermillMessage(t, first), "a replay": replayed, "a message": watermillMessage(t, waybill.Delivery{Event: eventfill.Defaults(former), Attempt: 1}),
		"a replay of a message": watermillMessage(t, waybill.Delivery{Event: eventfill.Defaults(former), Attempt: 1, Replay: 2}),
	} {
		same, err := watermillbridge.EventOf("orders", consumed)
		if want := consumed.Metadata.Get("ce_id"); err != nil || same.ID.String() != want {
			t.Errorf("%s: with its own UUID it is %s, want %s: %v", name, same.ID, want, err)
		}
		ulid := waybill.NewID()
		for uuid, wantID := range map[string]waybill.ID{ulid.String(): ulid, "another uuid": {}, "": {}, consumed.UUID + "-r9": {}} {
			made := message.NewMessage(uuid, []byte("no JSON"))
			for key, value := range consumed.Metadata {
				made.Metadata.Set(key, value)
			}
			made.Metadata.Set("reason", "paid")
			ev, err := watermillbridge.EventOf("invoices", made)
			if err != nil {
				t.Errorf("%s as %q: %v", name, uuid, err)
				continue
			}
			if ev.ID != wantID || ev.Headers["watermill_uuid"] != uuid {
				t.Errorf("%s as %q: id %s, want %s; headers %v", name, uuid, ev.ID, wantID, ev.Headers)
			}
			if ev.DedupKey != "" || !ev.AvailableAt.IsZero() || !ev.OccurredAt.IsZero() {
				t.Errorf("%s as %q: the new event has %q, %v, %v of the old one", name, uuid, ev.DedupKey, ev.AvailableAt, ev.OccurredAt)
			}
			if ev.Topic != "invoices" || ev.Type != same.Type || ev.AggregateType != same.AggregateType || ev.AggregateID != "A-1" || ev.TenantID != "acme" ||
				ev.CorrelationID != same.CorrelationID || ev.Priority != same.Priority || ev.Headers["Über"] != "naïve" || ev.Headers["reason"] != "paid" {
				t.Errorf("%s as %q: the metadata made %+v, want what is in %+v", name, uuid, ev, same)
			}
			if err := eventfill.Defaults(ev).Validate(); err != nil || string(ev.Payload) != "no JSON" {
				t.Errorf("%s as %q: %s: %v", name, uuid, ev.Payload, err)
			}
		}
	}
}

// A source decodes the event, whatever metadata the message has.
func TestMetadataDoNotPassForAttributes(t *testing.T) {
	pubsub := channel(t)
	sink, err := watermillbridge.NewSink(pubsub, watermillbridge.SinkConfig{})
	if err != nil {
		t.Fatal(err)
	}
	source, err := watermillbridge.NewSource(pubsub, "orders", watermillbridge.SourceConfig{})
	if err != nil {
		t.Fatal(err)
	}
	msg := message.NewMessage(waybill.NewID().String(), []byte(`{"specversion":"1.0"}`))
	for name, value := range map[string]string{
		"ce_id": "forged", "ce_type": "forged", "ce_replay": "9", "ce_tenantid": "forged", "Content-Type": "text/csv", "content-type": "application/cloudevents+json", "Tracestate": "x", "tracestate": "y",
	} {
		msg.Metadata.Set(name, value)
	}
	ev, err := watermillbridge.EventOf("orders", msg)
	if err != nil {
		t.Fatal(err)
	}
	ev = eventfill.Defaults(ev)
	if err := sink.Deliver(t.Context(), []waybill.Delivery{{Event: ev, Attempt: 1}})[0]; err != nil {
		t.Fatal(err)
	}
	c := &consumer{each: make(chan struct{}, 1)}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- source.Run(ctx, c) }()
	await(t, c.each, 1)
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if got := c.got[0]; !reflect.DeepEqual(got.Event, ev) || got.Replay != 0 {
		t.Errorf("got %+v, want %+v", got, ev)
	}
}

// watermillMessage returns the message that the sink publishes for a delivery.
func watermillMessage(t *testing.T, d waybill.Delivery) (msg *message.Message) {
	t.Helper()
	sink, err := watermillbridge.NewSink(publisherFunc(func(_ string, msgs ...*message.Message) error {
		msg = msgs[0]
		return nil
	}), watermillbridge.SinkConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := sink.Deliver(t.Context(), []waybill.Delivery{d})[0]; err != nil {
		t.Fatal(err)
	}
	return msg
}

// When a source ends, its subscription ends, and a closed subscriber accepts no
// other.
func TestASubscriptionEndsWithItsSource(t *testing.T) {
	sub, err := watermillbridge.NewSubscriber(func(topic string) (broker.Source, error) {
		if topic == "none" {
			return nil, errors.New("no such topic")
		}
		return failing{}, nil
	}, watermillbridge.SubscriberConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sub.Subscribe(t.Context(), "none"); err == nil {
		t.Error("a topic without a source was subscribed to")
	}
	messages, err := sub.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if msg, open := <-messages; open {
		t.Errorf("got %v", msg)
	}
	if err := errors.Join(sub.Close(), sub.Close()); err != nil {
		t.Error(err)
	}
	if _, err := sub.Subscribe(t.Context(), "orders"); !errors.Is(err, watermillbridge.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

type failing struct{}

func (failing) Name() string                            { return "failing" }
func (failing) Run(context.Context, waybill.Sink) error { return errors.New("no such stream") }

func TestConfigs(t *testing.T) {
	if _, err := watermillbridge.NewSink(nil, watermillbridge.SinkConfig{Parallel: -1}); err == nil {
		t.Error("a sink without a publisher was made")
	}
	if _, err := watermillbridge.NewPublisher(nil, watermillbridge.PublisherConfig{}); err == nil {
		t.Error("a publisher without an outbox was made")
	}
	if _, err := watermillbridge.NewSubscriber(nil, watermillbridge.SubscriberConfig{}); err == nil {
		t.Error("a subscriber without sources was made")
	}
	if _, err := watermillbridge.NewSource(nil, "", watermillbridge.SourceConfig{Receive: broker.ReceiverConfig{Workers: -1}}); err == nil {
		t.Error("a source without a subscriber was made")
	}
}

// Watermill's poison queue publishes the message that failed, with its UUID and
// a reason. Through the outbox the message goes to the topic of the poison
// queue, not back to the topic where it failed, and it has a separate id.
func TestPoisonQueueMakesANewEvent(t *testing.T) {
	origin := delivery("A-1")
	msg := watermillMessage(t, origin)
	msg.Metadata.Set("reason_poisoned", "no stock")
	ev, err := watermillbridge.EventOf("poison", msg)
	if err != nil {
		t.Fatal(err)
	}
	if ev.Topic != "poison" || ev.ID == origin.ID || ev.Type != origin.Type || ev.AggregateID != origin.AggregateID {
		t.Errorf("topic %q, id %s, type %q, aggregate %q", ev.Topic, ev.ID, ev.Type, ev.AggregateID)
	}
	if ev.Headers["reason_poisoned"] != "no stock" || ev.Headers["watermill_uuid"] != msg.UUID {
		t.Errorf("headers %v, want the reason and the UUID %s", ev.Headers, msg.UUID)
	}
}

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
	"github.com/waybillhq/waybill/broker/watermillbridge"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/outbox/outboxtest"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The relay knows the sink by its methods.
var (
	_ relay.Sink         = (*watermillbridge.Sink)(nil)
	_ relay.DestinedSink = (*watermillbridge.Sink)(nil)
	_ broker.Source      = (*watermillbridge.Source)(nil)
	_ message.Publisher  = (*watermillbridge.Publisher)(nil)
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
	ev := waybill.Event{
		Type: "OrderPlaced", AggregateType: "order", AggregateID: id, TenantID: "acme", Topic: "orders", DedupKey: "d", CorrelationID: "c",
		Headers: map[string]string{"Über": "naïve"}, Payload: []byte(`{"total":1}`),
	}.Complete()
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

// Through the sink, a broker of Watermill's, and the source, an event is what it was; a failed attempt is made again, and what can never succeed
// is set aside.
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

// serial makes calls one after another: the test's answers have state.
type serial struct {
	mu sync.Mutex
	c  broker.Consumer
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
		"confirmed":   {func(string, ...*message.Message) error { return nil }, waybill.Done},
		"unreachable": {func(string, ...*message.Message) error { return fmt.Errorf("write: %w", io.EOF) }, waybill.Down},
		"anything":    {func(string, ...*message.Message) error { return errors.New("no") }, waybill.Counted},
		"panic":       {func(string, ...*message.Message) error { panic("no") }, waybill.Counted},
		"its class":   {func(string, ...*message.Message) error { return waybill.Permanent(errors.New("no")) }, waybill.Dead},
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

// One message of a batch that fails does not fail the others, and a replay has an id of its own.
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

// What is published is written into the transaction of the messages' context: it is there if that commits, and not otherwise.
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

func TestConfigs(t *testing.T) {
	if _, err := watermillbridge.NewSink(nil, watermillbridge.SinkConfig{Parallel: -1}); err == nil {
		t.Error("a sink without a publisher was made")
	}
	if _, err := watermillbridge.NewPublisher(nil, watermillbridge.PublisherConfig{}); err == nil {
		t.Error("a publisher without an outbox was made")
	}
	if _, err := watermillbridge.NewSource(nil, "", watermillbridge.SourceConfig{Receive: broker.ReceiverConfig{Workers: -1}}); err == nil {
		t.Error("a source without a subscriber was made")
	}
}

package rabbitbroker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/rabbitbroker"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/memstore"
)

// A type without a bound queue waits; other types of its exchange do not. The
// type blocks later events of its own aggregates, whatever their type, and all
// arrive in order once a queue is bound.
func TestATypeWithoutAQueue(t *testing.T) {
	client := plain{t, testserver.RabbitMQ(t)}
	exchange := "test." + waybill.NewID().String()
	queue := exchange + ".bound"
	client.must(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
		return errors.Join(err, ch.ExchangeDeclare(exchange, amqp.ExchangeTopic, true, false, false, false, nil), ch.QueueBind(queue, "bound", exchange, false, nil))
	})
	t.Cleanup(func() {
		_ = client.on(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(queue, false, false, false)
			return errors.Join(err, ch.ExchangeDelete(exchange, false, false))
		})
	})

	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	write := func(kind, aggregate string, n int) {
		t.Helper()
		ev := waybill.NewEvent(kind, n)
		ev.Topic = exchange
		if aggregate != "" {
			ev.AggregateType, ev.AggregateID = "thing", aggregate
		}
		if err := box.InTx(t.Context(), func(ctx context.Context, tx *memstore.Tx) error { return box.Write(ctx, tx, ev) }); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	var paused []string
	r, err := relay.New(db, sink(t, open(t, client.url, rabbitbroker.Config{}), rabbitbroker.SinkConfig{}), relay.Config{
		BackoffBase: 10 * time.Millisecond, BackoffMax: 20 * time.Millisecond,
		Observe: observe.Hooks{Paused: func(info observe.PausedInfo) {
			mu.Lock()
			defer mu.Unlock()
			if info.Paused && !slices.Contains(paused, info.Destination) {
				paused = append(paused, info.Destination)
			}
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	payloads := func() (got []string) {
		found, err := client.read(queue)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range found {
			got = append(got, string(d.Body))
		}
		return got
	}

	write("unbound", "x", 1)
	await(t, "the type waits", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(paused) > 0
	})
	write("bound", "x", 2)
	write("bound", "y", 10)
	write("bound", "", 20)
	write("unbound", "y", 11)
	write("bound", "y", 12)
	await(t, "other types go on", func() bool { return len(payloads()) >= 2 })
	if got := payloads(); len(got) != 2 || !slices.Contains(got, "10") || !slices.Contains(got, "20") {
		t.Errorf("these have arrived: %v, want 10 and 20: the others stand behind one that waits", got)
	}
	client.must(func(ch *amqp.Channel) error { return ch.QueueBind(queue, "unbound", exchange, false, nil) })
	await(t, "all", func() bool { return len(payloads()) >= 6 })
	got := payloads()
	for _, order := range [][]string{{"1", "2"}, {"10", "11", "12"}} {
		of := slices.DeleteFunc(slices.Clone(got), func(s string) bool { return !slices.Contains(order, s) })
		if !slices.Equal(of, order) {
			t.Errorf("an aggregate has arrived as %v, want %v", of, order)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []string{exchange + " unbound"}; !slices.Equal(paused, want) {
		t.Errorf("these destinations were down: %q, want %q", paused, want)
	}
}

// A destination is an exchange and a routing key. With very many keys, such as
// identifiers, the first ones have separate destinations and keep them.
func TestDestinations(t *testing.T) {
	b := open(t, testserver.RabbitMQ(t), rabbitbroker.Config{})
	of := func(s *rabbitbroker.Sink, topic, kind, key string) string {
		ev := waybill.NewEvent(kind, 1)
		ev.Topic, ev.RoutingKey = topic, key
		return s.Destination(&ev)
	}
	s := sink(t, b, rabbitbroker.SinkConfig{})
	for _, c := range []struct{ topic, kind, key, want string }{
		{"orders", "Placed", "", "orders Placed"},
		{"orders", "Placed", "eu", "orders eu"},
		{"orders", "Sent", "", "orders Sent"},
		{"bills", "Sent", "", "bills Sent"},
	} {
		if got := of(s, c.topic, c.kind, c.key); got != c.want {
			t.Errorf("%s, %s, %q goes to %q, want %q", c.topic, c.kind, c.key, got, c.want)
		}
	}
	apart := map[string]bool{}
	for round := range 2 {
		for n := range 1000 {
			apart[of(s, "orders", "Placed", fmt.Sprint(n))] = true
		}
		if len(apart) != 256-4+1 || !apart["orders"] || !apart["orders 0"] {
			t.Errorf("round %d: %d destinations", round, len(apart))
		}
	}
	if got := of(sink(t, b, rabbitbroker.SinkConfig{ToQueues: true}), "orders", "Placed", "eu"); got != "orders" {
		t.Errorf("a queue is called %q", got)
	}
	if got := of(sink(t, b, rabbitbroker.SinkConfig{Topics: broker.OneTopic("all")}), "orders", "Placed", ""); got != "all Placed" {
		t.Errorf("the destination is %q", got)
	}
}

// await waits for a condition.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain for this: %s", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

//go:build linux || darwin

package brokers_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/rabbitbroker"
	"github.com/waybillhq/waybill/broker/redisbroker"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay"
)

// TestFanOverTwoBrokers: events go to Redis and to RabbitMQ. A type without a
// queue in RabbitMQ stops no other type on either broker, and Redis has one
// copy of its event, however often RabbitMQ is retried; when a queue is bound,
// the event arrives there, too.
func TestFanOverTwoBrokers(t *testing.T) {
	streams := redisPlace{testserver.Redis(t), "fan." + waybill.NewID().String()}
	taken := rabbitPlace{testserver.RabbitMQ(t), streams.name}
	unbound := rabbitPlace{taken.address, "fan." + waybill.NewID().String()}
	lost := redisPlace{streams.address, unbound.exchange}
	bind := func(p rabbitPlace) {
		t.Helper()
		must(t, p.on(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(p.queue(), true, false, false, false, nil)
			return errors.Join(err, ch.ExchangeDeclare(p.exchange, amqp.ExchangeTopic, true, false, false, false, nil),
				ch.QueueBind(p.queue(), "#", p.exchange, false, nil))
		}))
	}
	bind(taken)
	t.Cleanup(func() {
		for _, p := range []rabbitPlace{taken, unbound} {
			_ = p.on(func(ch *amqp.Channel) error {
				_, err := ch.QueueDelete(p.queue(), false, false, false)
				return errors.Join(err, ch.ExchangeDelete(p.exchange, false, false))
			})
		}
		if c, err := streams.client(); err == nil {
			_ = c.Del(context.WithoutCancel(t.Context()), streams.name, lost.name).Err()
			_ = c.Close()
		}
	})

	rb, err := redisbroker.Open(t.Context(), streams.address, redisbroker.Config{})
	must(t, err)
	t.Cleanup(func() { _ = rb.Close() })
	one, err := rb.Sink(redisbroker.SinkConfig{})
	must(t, err)
	ab, err := rabbitbroker.Open(t.Context(), taken.address, rabbitbroker.Config{PublishTimeout: 10 * time.Second})
	must(t, err)
	t.Cleanup(func() { _ = ab.Close() })
	two, err := ab.Sink(rabbitbroker.SinkConfig{Create: true})
	must(t, err)

	db, write := newOutbox(t)
	var refused atomic.Int64
	r, err := relay.New(db, relay.FanOut(one, two), relay.Config{
		BackoffBase: 10 * time.Millisecond, BackoffMax: 20 * time.Millisecond,
		Observe: observe.Hooks{Failed: func(observe.FailedInfo) { refused.Add(1) }},
	})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	to := func(topic string, n int) waybill.Event {
		ev := waybill.NewEvent("Sent", letter{Aggregate: "a", Number: n})
		ev.Topic, ev.AggregateType, ev.AggregateID = topic, aggregateType, topic
		return ev
	}
	entries := func(p redisPlace) int {
		found, err := p.read(t.Context())
		must(t, err)
		return len(found)
	}
	messages := func(p rabbitPlace) (n int) {
		must(t, p.on(func(ch *amqp.Channel) error {
			q, err := ch.QueueDeclarePassive(p.queue(), true, false, false, false, nil)
			n = q.Messages
			return err
		}))
		return n
	}
	write([]waybill.Event{to(unbound.exchange, 1)})
	await(t, "RabbitMQ has been tried 20 times", func() bool { return refused.Load() >= 20 })
	var evs []waybill.Event
	for n := range 30 {
		evs = append(evs, to(taken.exchange, n))
	}
	write(evs)
	await(t, "the others are there", func() bool { return entries(streams) == 30 && messages(taken) == 30 })
	tried := refused.Load()
	await(t, "RabbitMQ is tried again", func() bool { return refused.Load() > tried })
	bind(unbound)
	await(t, "all is delivered", func() bool {
		s, err := db.Driver().OutboxAdmin.Stats(t.Context())
		must(t, err)
		return s.Ready+s.Failed+s.Dead == 0
	})
	if n, m := entries(lost), messages(unbound); n != 1 || m != 1 {
		t.Errorf("Redis has %d copies of the event and RabbitMQ %d, after %d failures", n, m, refused.Load())
	}
	cancel()
	must(t, <-ended)
}

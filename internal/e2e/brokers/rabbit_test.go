//go:build linux || darwin

package brokers_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/rabbitbroker"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/relay"
)

func rabbitStand() stand {
	return stand{
		name: "rabbitmq", timeout: time.Second, start: startPrivate(testserver.RabbitMQName), shared: testserver.RabbitMQ,
		place: func(t *testing.T, address string, v victim) place {
			t.Helper()
			p := rabbitPlace{address, "flow." + waybill.NewID().String()}
			must(t, p.on(func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare(p.queue(), true, false, false, false, nil)
				return errors.Join(err, ch.ExchangeDeclare(p.exchange, amqp.ExchangeTopic, true, false, false, false, nil),
					ch.QueueBind(p.queue(), "#", p.exchange, false, nil), ch.ExchangeDeclare(p.mark(), amqp.ExchangeTopic, true, false, false, false, nil))
			}))
			if s, ok := v.(manage.Server); ok {
				await(t, "note of the queue on the disk", func() bool { return written(t, s.Data, p.mark()) })
			}
			t.Cleanup(func() {
				_ = p.on(func(ch *amqp.Channel) error {
					_, err := ch.QueueDelete(p.queue(), false, false, false)
					return errors.Join(err, ch.ExchangeDelete(p.exchange, false, false), ch.ExchangeDelete(p.mark(), false, false))
				})
			})
			return p
		},
	}
}

type rabbitPlace struct{ address, exchange string }

func (p rabbitPlace) topic() string { return p.exchange }
func (p rabbitPlace) queue() string { return p.exchange + ".all" }

// mark is an exchange that is declared last, for [written].
func (p rabbitPlace) mark() string { return p.exchange + ".mark" }

// written reports whether a server has persisted the last declaration. RabbitMQ
// confirms a queue before it has persisted the queue: killed in between, it
// forgets the queue, with all confirmed messages. That is RabbitMQ's fault, and
// not tested here.
func written(t *testing.T, folder, name string) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || found {
			return nil //nolint:nilerr // the server removes files while it works
		}
		text, err := os.ReadFile(path)
		found = err == nil && bytes.Contains(text, []byte(name))
		return nil
	})
	must(t, err)
	return found
}

func (p rabbitPlace) sink(ctx context.Context, via *proxy) (relay.DestinationSink, func(), error) {
	b, err := rabbitbroker.Open(ctx, via.instead(p.address), rabbitbroker.Config{PublishTimeout: time.Second})
	if err != nil {
		return nil, nil, err
	}
	s, err := b.Sink(rabbitbroker.SinkConfig{})
	return s, func() { _ = b.Close() }, err
}

func (p rabbitPlace) source(ctx context.Context, cfg broker.ReceiverConfig) (broker.Source, func(), error) {
	b, err := rabbitbroker.Open(ctx, p.address, rabbitbroker.Config{})
	if err != nil {
		return nil, nil, err
	}
	s, err := b.Source(rabbitbroker.SourceConfig{Queue: p.queue(), Receive: cfg})
	return s, func() { _ = b.Close() }, err
}

// on calls fn with a channel of a connection of its own.
func (p rabbitPlace) on(fn func(ch *amqp.Channel) error) error {
	conn, err := amqp.Dial(p.address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return fn(ch)
}

func (p rabbitPlace) read(ctx context.Context) (found [][]byte, err error) {
	err = p.on(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(p.queue(), true, false, false, false, nil)
		if err != nil {
			return err
		}
		arriving, err := ch.ConsumeWithContext(ctx, p.queue(), "", true, false, false, false, nil)
		if err != nil {
			return err
		}
		for range q.Messages {
			select {
			case d, open := <-arriving:
				if !open {
					return amqp.ErrClosed
				}
				found = append(found, d.Body)
			case <-time.After(patience):
				return errors.New("the queue has fewer messages than it says")
			}
		}
		return nil
	})
	return found, err
}

package doctor

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybillhq/waybill/broker/rabbitbroker"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
)

type amqpProbe struct {
	conn   *amqp.Connection
	queues bool
	// management is the API that knows the bindings.
	management management
}

func (a *amqpProbe) close() { _ = a.conn.Close() }

func dialAMQP(ctx context.Context, u *url.URL) (probe, error) {
	dial, err := rabbitbroker.Dialer(connect.Client(u))
	if err != nil { // err may quote the URL
		return nil, errors.New("rejected by RabbitMQ's client")
	}
	conn, err := dial(ctx, amqp.Config{Dial: amqp.DefaultDial(5 * time.Second), Properties: amqp.Table{"connection_name": "waybill doctor"}})
	if err != nil {
		return nil, err
	}
	api, err := managementOf(u)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &amqpProbe{conn, u.Query().Get("queues") == "true", api}, nil
}

func amqpChecks() []Check {
	return []Check{{
		Name: "rabbitmq durability", For: amqpSink, Looks: "the exchanges or queues of events in the tables",
		Wants: "existing and durable ones", run: amqpDurable,
	}, {
		Name: "rabbitmq routing", For: amqpSink, Looks: "the bindings of those exchanges, in RabbitMQ's management API (port 15672, or 15671 for amqps://)",
		Wants: "a queue for the routing key of every event", run: amqpRouted,
	}}
}

func amqpDurable(ctx context.Context, p *patient) (Finding, error) {
	a, ok := p.sink.(*amqpProbe)
	if !ok {
		return Finding{}, errors.New("no connection")
	}
	topics, err := p.topics(ctx, rabbitbroker.Names())
	if err != nil {
		return Finding{}, err
	}
	if len(topics) == 0 {
		return noTopic(), nil
	}
	kind, there, durable := "exchange", a.exchangeThere, a.exchangeDurable
	if a.queues {
		kind, there, durable = "queue", a.queueThere, a.queueDurable
	}
	for _, topic := range topics {
		if err := there(topic); code(err) == amqp.NotFound {
			return fail("rabbitmqadmin declare "+kind+" name="+topic+" durable=true, or add ?create=true to sink.url", "%s %s does not exist", kind, topic), nil
		} else if err != nil {
			return Finding{}, err
		}
		ok, err := durable(topic)
		if err != nil {
			return Finding{}, err
		}
		if !ok {
			return fail("rabbitmqadmin delete "+kind+" name="+topic+"; then rabbitmqadmin declare "+kind+" name="+topic+" durable=true",
				"%s %s is not durable: a restart of the server deletes it", kind, topic), nil
		}
	}
	return good("%d durable", len(topics)), nil
}

// code returns the AMQP code of a refusal, or 0.
func code(err error) int {
	var refused *amqp.Error
	if errors.As(err, &refused) {
		return refused.Code
	}
	return 0
}

// on runs a function on its own channel, because a refusal closes the channel.
func (a *amqpProbe) on(do func(ch *amqp.Channel) error) error {
	ch, err := a.conn.Channel()
	if err != nil {
		return err
	}
	err = do(ch)
	_ = ch.Close() // already closed after a refusal
	return err
}

func (a *amqpProbe) exchangeThere(name string) error {
	return a.on(func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(name, amqp.ExchangeTopic, true, false, false, false, nil)
	})
}

func (a *amqpProbe) queueThere(name string) error {
	return a.on(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
}

// exchangeDurable declares an existing exchange as durable: no other AMQP
// request reports durability. The declaration changes nothing. The server
// compares the type first, so every type is tried.
func (a *amqpProbe) exchangeDurable(name string) (bool, error) {
	for _, kind := range []string{amqp.ExchangeTopic, amqp.ExchangeFanout, amqp.ExchangeDirect, amqp.ExchangeHeaders} {
		err := a.on(func(ch *amqp.Channel) error { return ch.ExchangeDeclare(name, kind, true, false, false, false, nil) })
		if otherType := code(err) == amqp.PreconditionFailed && strings.Contains(err.Error(), "'type'"); otherType {
			continue
		}
		return judged(err)
	}
	return true, nil // a plugin's type
}

func (a *amqpProbe) queueDurable(name string) (bool, error) {
	return judged(a.on(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, nil)
		return err
	}))
}

// judged interprets the result of a declaration of an existing object. A
// refusal because of another property is ignored.
func judged(err error) (bool, error) {
	if code(err) != amqp.PreconditionFailed {
		return err == nil, err
	}
	return !strings.Contains(err.Error(), "'durable'"), nil
}

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
}

func (a *amqpProbe) close() { _ = a.conn.Close() }

func dialAMQP(u *url.URL) (probe, error) {
	address, secure, err := rabbitbroker.Address(connect.Client(u))
	if err != nil { // the error may quote the URL
		return nil, errors.New("RabbitMQ's client cannot read it")
	}
	conn, err := amqp.DialConfig(address, amqp.Config{
		TLSClientConfig: secure, Dial: amqp.DefaultDial(5 * time.Second), Properties: amqp.Table{"connection_name": "waybill doctor"},
	})
	if err != nil {
		return nil, err
	}
	return &amqpProbe{conn, u.Query().Get("queues") == "true"}, nil
}

func amqpChecks() []Check {
	return []Check{{
		Name: "rabbitmq durability", For: amqpSink, Looks: "the exchanges, or queues, that events of the tables go to",
		Wants: "durable ones that are there", run: amqpDurable,
	}}
}

func amqpDurable(ctx context.Context, p *patient) (Finding, error) {
	a, ok := p.sink.(*amqpProbe)
	if !ok {
		return Finding{}, errors.New("there is no connection")
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
			return fail("rabbitmqadmin declare "+kind+" name="+topic+" durable=true, or add ?declare=true to sink.url", "there is no %s %s", kind, topic), nil
		} else if err != nil {
			return Finding{}, err
		}
		ok, err := durable(topic)
		if err != nil {
			return Finding{}, err
		}
		if !ok {
			return fail("rabbitmqadmin delete "+kind+" name="+topic+"; then rabbitmqadmin declare "+kind+" name="+topic+" durable=true",
				"the %s %s is not durable: a restart of the server takes it away", kind, topic), nil
		}
	}
	if a.queues {
		return good("%d durable", len(topics)), nil
	}
	return good("%d durable; AMQP does not tell whether a queue is bound: the relay's log has NO_ROUTE if none is, and waybill_destination_paused the exchange and key", len(topics)), nil
}

// code returns the number of a refusal, or 0.
func code(err error) int {
	var refused *amqp.Error
	if errors.As(err, &refused) {
		return refused.Code
	}
	return 0
}

// on runs something on a channel of its own: a refusal closes it.
func (a *amqpProbe) on(do func(ch *amqp.Channel) error) error {
	ch, err := a.conn.Channel()
	if err != nil {
		return err
	}
	err = do(ch)
	_ = ch.Close() // after a refusal it is closed already
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

// exchangeDurable declares what is there as a durable one: it is the only question that AMQP answers. Nothing changes by it. The server compares the
// type first, so every type is tried.
func (a *amqpProbe) exchangeDurable(name string) (bool, error) {
	for _, kind := range []string{amqp.ExchangeTopic, amqp.ExchangeFanout, amqp.ExchangeDirect, amqp.ExchangeHeaders} {
		err := a.on(func(ch *amqp.Channel) error { return ch.ExchangeDeclare(name, kind, true, false, false, false, nil) })
		if otherType := code(err) == amqp.PreconditionFailed && strings.Contains(err.Error(), "'type'"); otherType {
			continue
		}
		return judged(err)
	}
	return true, nil // of a plugin's type
}

func (a *amqpProbe) queueDurable(name string) (bool, error) {
	return judged(a.on(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, nil)
		return err
	}))
}

// judged reads the answer to a declaration of something that is there: that another property differs is not what was asked.
func judged(err error) (bool, error) {
	if code(err) != amqp.PreconditionFailed {
		return err == nil, err
	}
	return !strings.Contains(err.Error(), "'durable'"), nil
}

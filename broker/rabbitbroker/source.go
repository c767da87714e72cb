package rabbitbroker

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// Binding binds a queue to an exchange.
type Binding struct {
	// Exchange is declared (durable, of type topic) if it does not exist.
	Exchange string
	// Key is the routing key pattern: "#" for all.
	Key string
}

// SourceConfig configures a [Source]. Zero fields have their defaults.
type SourceConfig struct {
	// Queue is the queue to read. Required.
	Queue string
	// Name identifies the source in logs, metrics and dead letters. Defaults to
	// Queue.
	Name string
	// Bind lists the bindings of the queue. With Bind, the queue is declared as
	// well: durable and replicated (a quorum queue, which counts deliveries),
	// with one active consumer at a time, which keeps the order. Defaults to no
	// bindings: the queue must exist.
	Bind []Binding
	// Classic declares a classic queue instead. It does not count deliveries: a
	// redelivered message has the count 2. Defaults to false.
	Classic bool
	// Shared lets all consumers of the queue work concurrently. Order per
	// aggregate is lost. Defaults to false.
	Shared bool
	// DeadLetter is the queue for messages that can never be handled. It is
	// declared: durable, and replicated unless Classic is set. An existing
	// queue is used unchanged. Defaults to the queue's name and ".dead".
	DeadLetter string
	// Receive configures how messages are passed to the consumer. Deferred
	// messages stay in memory, unacknowledged; RabbitMQ's consumer_timeout, 30
	// minutes by default, must be longer than the longest delay. Defaults to
	// the defaults of [broker.ReceiverConfig].
	Receive broker.ReceiverConfig
}

// Source reads a queue.
type Source struct {
	b     *Broker
	cfg   SourceConfig
	codec *broker.Codec
}

// Source returns a source.
func (b *Broker) Source(cfg SourceConfig) (*Source, error) {
	var errs []error
	name := func(field, value string) {
		if err := names.Check(value); err != nil {
			errs = append(errs, fmt.Errorf("SourceConfig.%s: %w", field, err))
		}
	}
	name("Queue", cfg.Queue)
	for _, bind := range cfg.Bind {
		name("Bind.Exchange", bind.Exchange)
	}
	if cfg.Name == "" {
		cfg.Name = cfg.Queue
	}
	byName := cfg.DeadLetter == ""
	if byName {
		cfg.DeadLetter = cfg.Queue + ".dead"
	}
	if !byName || names.Check(cfg.Queue) == nil {
		name("DeadLetter", cfg.DeadLetter)
	}
	if cfg.DeadLetter == cfg.Queue {
		errs = append(errs, errors.New("SourceConfig.DeadLetter: equal to Queue"))
	}
	codec, err := broker.NewCodec(broker.AMQP, broker.CodecConfig{})
	errs = append(errs, err, cfg.Receive.Validate())
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("rabbitbroker: %w", err)
	}
	return &Source{b: b, cfg: cfg, codec: codec}, nil
}

// Name implements broker.Source.
func (s *Source) Name() string { return s.cfg.Name }

// Run implements broker.Source.
func (s *Source) Run(ctx context.Context, c waybill.Sink) error {
	return driver.Receive(ctx, s.cfg.Name, s.codec, c, s.cfg.Receive, s.open)
}

// open opens a separate connection for the source: a broker that is short of
// memory blocks publishing connections, and acknowledgments must continue.
func (s *Source) open(ctx context.Context) (driver.Session, error) {
	opening, cancel := context.WithTimeoutCause(ctx, s.b.cfg.PublishTimeout, errSilent)
	defer cancel()
	l, err := dial(opening, s.b)
	if err != nil {
		return nil, s.b.hide(fmt.Errorf("rabbitbroker: connect: %w", err))
	}
	release := l.guard(opening)
	defer release()
	sess, err := s.prepare(l)
	if err != nil {
		err = errors.Join(orCause(opening, err), l.close(opening))
		if exception(err, amqp.NotFound, amqp.PreconditionFailed, amqp.AccessRefused) {
			// The configuration is wrong: one error is better than retrying
			// forever.
			err = waybill.Permanent(err)
		}
		return nil, s.hideClass(fmt.Errorf("rabbitbroker: queue %s: %w", s.cfg.Queue, err))
	}
	return sess, nil
}

// hideClass redacts secrets in an error and keeps its class.
func (s *Source) hideClass(err error) error {
	if class, _ := waybill.Classify(err); class == waybill.ClassPermanent {
		return waybill.Permanent(s.b.hide(err))
	}
	return s.b.hide(err)
}

func (s *Source) prepare(l *link) (*session, error) {
	ch, err := l.conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := s.declare(ch); err != nil {
		return nil, err
	}
	if err := s.declareDead(l); err != nil {
		return nil, err
	}
	limit := s.cfg.Receive.MaxInFlight
	if limit == 0 {
		limit = 1024
	}
	if err := ch.Qos(limit, 0, false); err != nil {
		return nil, err
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	deliveries, err := ch.Consume(s.cfg.Queue, "", false, false, false, false, nil)
	if err != nil {
		return nil, err
	}
	dead, err := newPublisher(l)
	if err != nil {
		return nil, err
	}
	return &session{Source: s, link: l, ch: ch, limit: limit, deliveries: deliveries, closed: closed, dead: dead, low: 1, done: make(map[uint64]bool)}, nil
}

func (s *Source) declare(ch *amqp.Channel) error {
	if len(s.cfg.Bind) > 0 {
		args := amqp.Table{}
		if !s.cfg.Classic {
			args["x-queue-type"] = "quorum"
		}
		if !s.cfg.Shared {
			args["x-single-active-consumer"] = true
		}
		if _, err := ch.QueueDeclare(s.cfg.Queue, true, false, false, false, args); err != nil {
			return err
		}
	}
	for _, bind := range s.cfg.Bind {
		if err := ch.ExchangeDeclare(bind.Exchange, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
			return err
		}
		if err := ch.QueueBind(s.cfg.Queue, bind.Key, bind.Exchange, false, nil); err != nil {
			return err
		}
	}
	return nil
}

// declareDead declares the queue of dead letters, replicated like that of the
// messages: with its only server, a queue that is not would stop the source. An
// existing queue with other properties is used unchanged.
func (s *Source) declareDead(l *link) error {
	ch, err := l.conn.Channel()
	if err != nil {
		return err
	}
	args := amqp.Table{}
	if !s.cfg.Classic {
		args["x-queue-type"] = "quorum"
	}
	if _, err = ch.QueueDeclare(s.cfg.DeadLetter, true, false, false, false, args); err != nil {
		if exception(err, amqp.PreconditionFailed) {
			return nil
		}
		return err
	}
	return ch.Close()
}

package rabbitbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// SinkConfig configures a [Sink]. The zero value is valid.
type SinkConfig struct {
	// EventSource is the CloudEvents attribute source. Defaults to "waybill".
	EventSource string
	// Topics returns the exchange of an event. Defaults to the event's Topic.
	Topics broker.Topics
	// ToQueues makes the topic the name of a queue: messages go there through
	// the default exchange. Defaults to false.
	ToQueues bool
	// Create declares exchanges (durable, of type topic), or with ToQueues
	// durable queues, when they are first used. An exchange without a bound
	// queue still accepts no event, because no consumer would receive it.
	// Defaults to false.
	Create bool
}

// Sink publishes events. It is safe for concurrent use.
type Sink struct {
	b     *Broker
	cfg   SinkConfig
	codec *broker.Codec
	table driver.Failures

	keys  sync.Map     // named destinations
	known atomic.Int64 // number of keys

	mu       sync.Mutex
	owner    *link           // connection of the fields below
	idle     []*publisher    // idle channels
	declared map[string]bool // exchanges and queues declared over this connection
}

// Sink returns a sink.
func (b *Broker) Sink(cfg SinkConfig) (*Sink, error) {
	codec, err := driver.SinkCodec("rabbitbroker", broker.AMQP, cfg.EventSource, names.Checked(cfg.Topics))
	if err != nil {
		return nil, err
	}
	return &Sink{b: b, cfg: cfg, codec: codec, table: Failures()}, nil
}

// StopsAtFailure implements relay.OrderedSink.
func (*Sink) StopsAtFailure() {}

// maxKeys is the maximum number of routing keys that a sink treats as
// destinations.
const maxKeys = 256

// Destination implements relay.DestinationSink: each queue is a destination, or
// each exchange together with one of the first 256 routing keys. A key without
// a bound queue does not delay the others. Further keys, such as identifiers,
// share the destination of their exchange, because a relay remembers and probes
// each destination.
func (s *Sink) Destination(ev *waybill.Event) string {
	topic, err := s.codec.Topic(ev)
	if err != nil {
		return ""
	}
	if s.cfg.ToQueues {
		return topic
	}
	name := topic + " " + cmp.Or(ev.RoutingKey, ev.Type) // exchange names contain no space
	if _, known := s.keys.Load(name); known {
		return name
	}
	if s.known.Add(1) > maxKeys { // known destinations are kept
		s.known.Add(-1)
		return topic
	}
	if _, known := s.keys.LoadOrStore(name, struct{}{}); known {
		s.known.Add(-1)
	}
	return name
}

// Deliver implements waybill.Sink.
func (s *Sink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return driver.PublishInOrder(batch, func(wave []int, results []error) { s.wave(ctx, batch, wave, results) })
}

// outgoing is an event that is being published.
type outgoing struct {
	index   int
	message broker.Message
}

// wave publishes events of different aggregates. Each topic has a separate
// channel: for an invalid topic the broker closes the channel, with all
// messages in flight on it.
func (s *Sink) wave(ctx context.Context, batch []waybill.Delivery, wave []int, results []error) {
	topics := make(map[string][]outgoing, 1)
	for i, m := range driver.Encoded(s.codec, batch, wave, results) {
		if err := fits(&m); err != nil {
			results[i] = err
			continue
		}
		topics[m.Topic] = append(topics[m.Topic], outgoing{i, m})
	}
	for topic, out := range topics {
		failed, err := s.publish(ctx, topic, out)
		for n := range out {
			if e := errors.Join(failed[n], err); e != nil {
				results[out[n].index] = s.table.EventError("rabbitbroker", s.b.url, &batch[out[n].index].Event, e)
			}
		}
	}
}

// publish sends messages of one topic and waits for their results. Its error
// applies to all messages without a result of their own.
func (s *Sink) publish(ctx context.Context, topic string, out []outgoing) (failed map[int]error, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.b.cfg.PublishTimeout, errSilent)
	defer cancel()
	l, err := s.b.connected(ctx)
	if err != nil {
		return nil, err
	}
	release := l.guard(ctx)
	defer release()
	ctx, ended := l.until(ctx)
	defer ended()
	p, err := s.borrow(l, topic)
	if err != nil {
		return nil, orCause(ctx, err)
	}
	failed, err = p.send(ctx, s.cfg.ToQueues, out)
	if err != nil {
		if ctx.Err() == nil { // closing the channel is a round trip
			p.discard()
		}
		return failed, orCause(ctx, err)
	}
	s.giveBack(l, p)
	return failed, nil
}

// orCause returns why the context ended, if that is the reason why a client
// call failed.
func orCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// borrow returns a channel for publishing to a topic, and declares the topic if
// needed.
func (s *Sink) borrow(l *link, topic string) (*publisher, error) {
	s.mu.Lock()
	if s.owner != l {
		s.owner, s.idle, s.declared = l, nil, make(map[string]bool)
	}
	declared := s.declared[topic]
	var p *publisher
	if n := len(s.idle); n > 0 {
		p, s.idle = s.idle[n-1], s.idle[:n-1]
	}
	s.mu.Unlock()
	if p == nil {
		var err error
		if p, err = newPublisher(l); err != nil {
			return nil, err
		}
	}
	if declared || !s.cfg.Create {
		return p, nil
	}
	if err := p.declare(topic, s.cfg.ToQueues); err != nil {
		p.discard()
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner == l {
		s.declared[topic] = true
	}
	return p, nil
}

func (s *Sink) giveBack(l *link, p *publisher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner == l && l.gone.Err() == nil {
		s.idle = append(s.idle, p)
	}
}

// publisher is a channel in confirm mode. Only one goroutine at a time uses it.
type publisher struct {
	ch       *amqp.Channel
	returned <-chan amqp.Return
	closed   <-chan *amqp.Error
}

// returnsMax is the capacity for returned messages while a batch is being sent;
// a relay's batch has 500 messages.
const returnsMax = 4096

func newPublisher(l *link) (*publisher, error) {
	ch, err := l.conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		return nil, errors.Join(err, ch.Close())
	}
	return &publisher{
		ch: ch, returned: ch.NotifyReturn(make(chan amqp.Return, returnsMax)), closed: ch.NotifyClose(make(chan *amqp.Error, 1)),
	}, nil
}

func (p *publisher) declare(topic string, queue bool) error {
	if queue {
		_, err := p.ch.QueueDeclare(topic, true, false, false, false, nil)
		return err
	}
	return p.ch.ExchangeDeclare(topic, amqp.ExchangeTopic, true, false, false, false, nil)
}

func (p *publisher) discard() { _ = p.ch.Close() }

// send publishes messages of one topic. It returns errors of single messages by
// index, and an error that applies to all others. After an error the channel
// must not be used again.
func (p *publisher) send(ctx context.Context, queue bool, out []outgoing) (map[int]error, error) {
	confirms := make([]*amqp.DeferredConfirmation, len(out))
	places := make(map[string]int, len(out))
	for n := range out {
		m := &out[n].message
		exchange, key := m.Topic, m.RoutingKey
		switch {
		case queue:
			exchange, key = "", m.Topic
		case key == "":
			key = m.Header(broker.AMQP.Attribute("type"))
		}
		confirm, err := p.ch.PublishWithDeferredConfirm(exchange, key, true, false, publishing(m))
		if err != nil {
			return nil, p.reason(err)
		}
		confirms[n], places[m.PublishID] = confirm, n
	}
	failed := make(map[int]error)
	for n, confirm := range confirms {
		acked, err := confirm.WaitContext(ctx)
		switch {
		case err != nil:
			return nil, err // the results are unknown: some may have arrived
		case !acked && p.ch.IsClosed():
			return nil, p.reason(amqp.ErrClosed)
		case !acked:
			failed[n] = errNack
		}
	}
	// A message that reached no queue is returned before it is confirmed, so
	// all returns have arrived.
	for {
		select {
		case r, open := <-p.returned:
			if !open {
				return failed, nil
			}
			if n, ok := places[r.MessageId]; ok {
				failed[n] = &returnedError{code: r.ReplyCode, text: r.ReplyText}
			}
		default:
			return failed, nil
		}
	}
}

// reason returns the broker's reason for closing the channel, if there is one.
func (p *publisher) reason(err error) error {
	select {
	case why, open := <-p.closed:
		if open && why != nil {
			return why
		}
	default:
	}
	return err
}

// shortMax is the maximum length of a name or property in AMQP 0-9-1. The
// client notices longer ones when half of the message is sent, and then closes
// the connection with all messages in flight.
const shortMax = 255

// fits rejects a message whose names or properties are longer than the protocol
// permits. Header names may have any length elsewhere.
func fits(m *broker.Message) error {
	longest := max(len(m.RoutingKey), len(m.Header(broker.AMQP.Attribute("type"))), len(m.ContentType), len(m.PublishID))
	for _, h := range m.Headers {
		longest = max(longest, len(h.Name))
	}
	if longest > shortMax {
		return waybill.Permanent(fmt.Errorf("rabbitbroker: event %s: name, type, routing key or content type of %d bytes, at most %d", m.ID, longest, shortMax))
	}
	return nil
}

// publishing converts a message for the client.
func publishing(m *broker.Message) amqp.Publishing {
	headers := make(amqp.Table, len(m.Headers))
	for _, h := range m.Headers {
		headers[h.Name] = h.Value
	}
	p := amqp.Publishing{
		Headers: headers, ContentType: m.ContentType, DeliveryMode: amqp.Persistent, MessageId: m.PublishID,
		Type: m.Header(broker.AMQP.Attribute("type")), AppId: "waybill", Body: m.Payload,
	}
	if !m.ID.IsZero() { // a dead letter may have no id
		p.Timestamp = m.ID.Time()
	}
	return p
}

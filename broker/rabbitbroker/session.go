package rabbitbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybillhq/waybill/broker"
)

// session is one connection of a source.
type session struct {
	*Source
	link       *link
	ch         *amqp.Channel
	most       int // in hand
	deliveries <-chan amqp.Delivery
	closed     <-chan *amqp.Error

	acking sync.Mutex
	low    uint64          // the first delivery that is not done; the broker counts them from 1
	done   map[uint64]bool // those behind it that are; true if the broker knows
	untold int             // how many it does not know of

	setting sync.Mutex // one dead letter at a time
	dead    *publisher
}

// Take implements broker.Session.
func (s *session) Take(ctx context.Context, r *broker.Receiver) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case d, open := <-s.deliveries:
			if !open {
				if ctx.Err() != nil {
					return nil
				}
				return s.why()
			}
			if err := r.Put(ctx, incoming(s.cfg.Queue, &d)); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
		}
	}
}

// why returns what the broker said when it ended the channel.
func (s *session) why() error {
	select {
	case err, open := <-s.closed:
		if open && err != nil {
			return s.b.hide(fmt.Errorf("rabbitbroker: %w", err))
		}
	default:
	}
	return errors.New("rabbitbroker: the connection is lost")
}

// incoming returns a message as the receiver takes it. RabbitMQ puts a message that comes back where it was, so it needs no number of its own.
func incoming(queue string, d *amqp.Delivery) *broker.Incoming {
	m := broker.Message{
		PublishID: d.MessageId, Topic: queue, Key: d.RoutingKey, RoutingKey: d.RoutingKey, ContentType: d.ContentType, Payload: d.Body,
	}
	attempt := 1
	if d.Redelivered {
		attempt = 2
	}
	for name, value := range d.Headers {
		switch v := value.(type) {
		case string:
			m.Headers = append(m.Headers, broker.Header{Name: name, Value: v})
		case []byte:
			m.Headers = append(m.Headers, broker.Header{Name: name, Value: string(v)})
		case int64, int32, int16, int8, bool: // of foreign producers
			m.Headers = append(m.Headers, broker.Header{Name: name, Value: fmt.Sprint(v)})
		}
		if n, ok := value.(int64); ok && name == "x-delivery-count" {
			attempt = int(n) + 1
		}
	}
	return &broker.Incoming{Message: m, Attempt: attempt, Handle: d.DeliveryTag}
}

// untoldMost is how many deliveries may be done, behind one that is not, without the broker being told. It is less than what may be in hand.
const untoldMost = 128

// Ack implements broker.Session. The broker does not answer; what does not reach it comes again. All up to the first that is not done are acknowledged
// with one word, and those behind it wait for that: a quorum queue takes in some thirty words at a time, and when the channel is closed it forgets
// those that it has not taken in.
func (s *session) Ack(ctx context.Context, batch []*broker.Incoming) error {
	release := s.link.guard(ctx)
	defer release()
	s.acking.Lock()
	defer s.acking.Unlock()
	for _, in := range batch {
		if tag, ok := in.Handle.(uint64); ok {
			s.done[tag] = false
			s.untold++
		}
	}
	err := s.tellPrefix()
	if err == nil && s.untold > min(untoldMost, s.most/2) {
		err = s.tellAll()
	}
	return s.b.hide(orCause(ctx, err))
}

// tellPrefix acknowledges all up to the first that is not done.
func (s *session) tellPrefix() error {
	var last uint64
	for told, done := s.done[s.low]; done; told, done = s.done[s.low] {
		if !told {
			last = s.low // the broker closes a channel on which a message is acknowledged twice
			s.untold--
		}
		delete(s.done, s.low)
		s.low++
	}
	if last == 0 {
		return nil
	}
	return s.ch.Ack(last, true)
}

// tellAll acknowledges those that are done one by one.
func (s *session) tellAll() error {
	for tag, told := range s.done {
		if told {
			continue
		}
		if err := s.ch.Ack(tag, false); err != nil {
			return err
		}
		s.done[tag] = true
		s.untold--
	}
	return nil
}

// DeadLettered implements broker.Session.
func (s *session) DeadLetter(ctx context.Context, in *broker.Incoming, reason error) error {
	s.setting.Lock()
	defer s.setting.Unlock()
	release := s.link.guard(ctx)
	defer release()
	ctx, ended := s.link.until(ctx)
	defer ended()
	letter := s.codec.DeadLetter(s.cfg.Queue, in, reason)
	letter.Topic = s.cfg.DeadLetter
	failed, err := s.dead.send(ctx, true, []outgoing{{message: letter}})
	if err != nil {
		// The channel is of no more use. Without one, nothing can be set aside: another session has to.
		s.link.cut(err)
	}
	return s.b.hide(errors.Join(failed[0], orCause(ctx, err)))
}

// Close implements broker.Session. The broker delivers again what was not acknowledged.
func (s *session) Close(ctx context.Context) error {
	release := s.link.guard(ctx)
	defer release()
	var err error
	if s.link.gone.Err() == nil {
		s.acking.Lock()
		err = s.tellAll()
		s.acking.Unlock()
	}
	return s.b.hide(errors.Join(err, s.link.close(ctx)))
}

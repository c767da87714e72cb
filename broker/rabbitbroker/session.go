package rabbitbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// session is one connection of a source.
type session struct {
	*Source
	link       *link
	ch         *amqp.Channel
	limit      int // maximum in flight
	deliveries <-chan amqp.Delivery
	closed     <-chan *amqp.Error

	acking  sync.Mutex
	low     uint64          // first delivery tag that is not done; tags start at 1
	done    map[uint64]bool // tags above low that are done; true if acknowledged
	unacked int             // number of done tags that are not acknowledged

	setting sync.Mutex // one dead letter at a time
	dead    *publisher
}

// Take implements driver.Session.
func (s *session) Take(ctx context.Context, r *driver.Receiver) error {
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

// why returns the broker's reason for closing the channel.
func (s *session) why() error {
	select {
	case err, open := <-s.closed:
		if open && err != nil {
			return s.b.hide(fmt.Errorf("rabbitbroker: %w", err))
		}
	default:
	}
	return errors.New("rabbitbroker: connection lost")
}

// incoming converts a message for the receiver. RabbitMQ returns a message to
// its original position, so it needs no order of its own.
func incoming(queue string, d *amqp.Delivery) *driver.Incoming {
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
		case int64, int32, int16, int8, bool: // from other producers
			m.Headers = append(m.Headers, broker.Header{Name: name, Value: fmt.Sprint(v)})
		}
		if n, ok := value.(int64); ok && name == "x-delivery-count" {
			attempt = int(n) + 1
		}
	}
	return &driver.Incoming{Message: m, Attempt: attempt, Handle: d.DeliveryTag}
}

// unackedMax is the maximum number of deliveries that are done behind one that
// is not, without being acknowledged. It is lower than the number of messages
// in flight.
const unackedMax = 128

// Ack implements driver.Session. The broker does not confirm acknowledgments;
// it redelivers a message whose acknowledgment was lost. One acknowledgment
// covers all deliveries before the first that is not done; deliveries behind it
// wait. A quorum queue processes about thirty acknowledgments at a time and,
// when the channel is closed, forgets those that it has not processed.
func (s *session) Ack(ctx context.Context, batch []*driver.Incoming) error {
	release := s.link.guard(ctx)
	defer release()
	s.acking.Lock()
	defer s.acking.Unlock()
	for _, in := range batch {
		if tag, ok := in.Handle.(uint64); ok {
			s.done[tag] = false
			s.unacked++
		}
	}
	err := s.ackPrefix()
	if err == nil && s.unacked > min(unackedMax, s.limit/2) {
		err = s.ackAll()
	}
	return s.b.hide(orCause(ctx, err))
}

// ackPrefix acknowledges all deliveries before the first that is not done.
func (s *session) ackPrefix() error {
	var last uint64
	for acked, done := s.done[s.low]; done; acked, done = s.done[s.low] {
		if !acked {
			// RabbitMQ closes a channel on which a message is acknowledged
			// twice.
			last = s.low
			s.unacked--
		}
		delete(s.done, s.low)
		s.low++
	}
	if last == 0 {
		return nil
	}
	return s.ch.Ack(last, true)
}

// ackAll acknowledges the remaining deliveries that are done, one by one.
func (s *session) ackAll() error {
	for tag, acked := range s.done {
		if acked {
			continue
		}
		if err := s.ch.Ack(tag, false); err != nil {
			return err
		}
		s.done[tag] = true
		s.unacked--
	}
	return nil
}

// DeadLetter implements driver.Session.
func (s *session) DeadLetter(ctx context.Context, in *driver.Incoming, reason error) error {
	s.setting.Lock()
	defer s.setting.Unlock()
	release := s.link.guard(ctx)
	defer release()
	ctx, ended := s.link.until(ctx)
	defer ended()
	letter := driver.DeadLetter(s.codec, s.cfg.Name, in, reason)
	letter.Topic = s.cfg.DeadLetter
	failed, err := s.dead.send(ctx, true, []outgoing{{message: letter}})
	if err != nil {
		// The channel is unusable. This session cannot dead-letter any more; a
		// new session must.
		s.link.cut(err)
	}
	return s.b.hide(errors.Join(failed[0], orCause(ctx, err)))
}

// Close implements driver.Session. The broker redelivers unacknowledged
// messages.
func (s *session) Close(ctx context.Context) error {
	release := s.link.guard(ctx)
	defer release()
	var err error
	if s.link.gone.Err() == nil {
		s.acking.Lock()
		err = s.ackAll()
		s.acking.Unlock()
	}
	return s.b.hide(errors.Join(err, s.link.close(ctx)))
}

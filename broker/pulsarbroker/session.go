package pulsarbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/waybillhq/waybill/broker"
)

// session is one consumer of the subscription. The client connects it again by itself, without saying so.
type session struct {
	*Source
	consumer pulsar.Consumer
	arrived  atomic.Bool // something has, since the last heartbeat
	lost     chan tenure

	mu      sync.Mutex
	tenures map[string]*reign // by topic, or partition
}

// reign is a topic, or a partition of one, since it was last taken away.
type reign struct {
	number int // how often it was taken away
	tenure *broker.Tenure
	order  uint64 // of the last message, and of those with the same
	within [2]uint64
}

// suspects returns the tenure of a message. With Key_Shared the messages of a process that died go
// to others, which may have had many from the topic: they come behind later ones, and nothing else
// says what they are. Each has a tenure of its own then.
func (r *reign) suspects(order uint64, within [2]uint64) *broker.Tenure {
	if cmp.Or(cmp.Compare(order, r.order), slices.Compare(within[:], r.within[:])) < 0 {
		return new(broker.Tenure)
	}
	r.order, r.within = order, within
	return r.tenure
}

// of returns what is known of a topic. The session is locked.
func (s *session) of(topic string) *reign {
	if s.tenures[topic] == nil {
		s.tenures[topic] = &reign{tenure: new(broker.Tenure)}
	}
	return s.tenures[topic]
}

// tenure is the time between two moments at which a topic, or a partition of one, was taken away.
type tenure struct {
	topic  string
	number int
}

// handle is a message, and when it came: what comes again after the topic has come back is another's.
type handle struct {
	pulsar.Message
	number int
}

// Take implements broker.Session.
func (s *session) Take(ctx context.Context, r *broker.Receiver) error {
	taking, end := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { end(s.watch(taking, r)) })
	defer watching.Wait()
	defer end(nil)
	for {
		m, err := s.consumer.Receive(taking)
		if err == nil {
			s.arrived.Store(true)
			err = r.Put(taking, s.incoming(m))
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if taking.Err() != nil {
				err = context.Cause(taking)
			}
			return s.b.hide(fmt.Errorf("pulsarbroker: subscription %s: %w", s.cfg.Subscription, err))
		}
	}
}

// watch looks after the consumer until ctx ends, or the consumer is of no more use.
func (s *session) watch(ctx context.Context, r *broker.Receiver) error {
	tick := time.NewTicker(s.b.cfg.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case gone := <-s.lost:
			// Another process gets what is in hand here.
			_ = r.Drop(ctx, func(in *broker.Incoming) bool {
				h, ok := in.Handle.(handle)
				return ok && h.Topic() == gone.topic && h.number <= gone.number
			})
		case <-tick.C:
			if s.arrived.Swap(false) {
				continue
			}
			if err := s.alive(ctx); err != nil {
				return err
			}
		}
	}
}

// alive asks the broker for something. The client gives up for good, and says nothing, when a topic is gone while it connects again. It is waited for
// when the session ends, too: a question that a consumer gets while it is being closed is never answered.
func (s *session) alive(ctx context.Context) error {
	ctx, cancel := s.b.timeout(context.WithoutCancel(ctx))
	defer cancel()
	_, err := await(ctx, s.b, s.consumer.GetLastMessageIDs, nil)
	return err
}

// BecameActive implements pulsar.ConsumerEventListener.
func (*session) BecameActive(pulsar.Consumer, string, int32) {}

// BecameInactive implements pulsar.ConsumerEventListener. The client's connection waits for it.
func (s *session) BecameInactive(_ pulsar.Consumer, topic string, _ int32) {
	s.mu.Lock()
	gone := tenure{topic, s.of(topic).number}
	s.tenures[topic] = &reign{number: gone.number + 1, tenure: new(broker.Tenure)}
	s.mu.Unlock()
	select {
	case s.lost <- gone:
	default: // more partitions than room; what is in hand is handled twice, which the inbox is for
	}
}

// incoming returns a message as the receiver takes it.
func (s *session) incoming(m pulsar.Message) *broker.Incoming {
	in := &broker.Incoming{
		Message: broker.Message{Topic: m.Topic(), Key: m.Key(), Payload: m.Payload()},
		OrderBy: m.Key(), Attempt: int(m.RedeliveryCount()) + 1,
	}
	in.Order, in.Within = order(m.ID())
	s.mu.Lock()
	reign := s.of(m.Topic())
	in.Handle, in.Tenure = handle{m, reign.number}, reign.suspects(in.Order, in.Within)
	s.mu.Unlock()
	for name, value := range m.Properties() {
		switch name {
		case broker.HeaderPublishID:
			in.PublishID = value
			continue
		case "content-type":
			in.ContentType = value
		}
		in.Headers = append(in.Headers, broker.Header{Name: name, Value: value})
	}
	return in
}

// order returns the place of a message within its partition: its ledger, the entry in that, and the
// place in a batch. Each is a number of 64 bits. A cluster numbers its ledgers together, so
// partitions have no place in common.
func order(id pulsar.MessageID) (uint64, [2]uint64) {
	number := func(n int64) uint64 { return uint64(max(n, -1) + 1) } // -1 says that there is none, and zero would be no place at all
	return max(number(id.LedgerID()), 1), [2]uint64{number(id.EntryID()), number(int64(id.BatchIdx()))}
}

// Ack implements broker.Session.
func (s *session) Ack(ctx context.Context, batch []*broker.Incoming) error {
	ids := make([]pulsar.MessageID, 0, len(batch))
	for _, in := range batch {
		if m, ok := in.Handle.(handle); ok {
			ids = append(ids, m.ID())
		}
	}
	_, err := await(ctx, s.b, func() (struct{}, error) { return struct{}{}, s.consumer.AckIDList(ids) }, nil)
	return s.b.hide(err)
}

// DeadLettered implements broker.Session.
func (s *session) DeadLetter(ctx context.Context, in *broker.Incoming, reason error) error {
	topic := s.cfg.DeadLetter
	if topic == "" {
		topic = whole(in.Topic) + "-dead"
	}
	var at time.Time
	if m, ok := in.Handle.(handle); ok && m.EventTime().UnixMilli() > 0 {
		at = m.EventTime()
	}
	ctx, cancel := s.b.timeout(ctx)
	defer cancel()
	letter := s.codec.DeadLetter(s.cfg.Subscription, in, reason)
	return s.b.hide(errors.Join(s.b.dead.send(ctx, topic, []*pulsar.ProducerMessage{publishing(&letter, at)})...))
}

// whole returns the topic that a partition belongs to.
func whole(topic string) string {
	if at := strings.LastIndex(topic, "-partition-"); at > 0 && strings.Trim(topic[at+len("-partition-"):], "0123456789") == "" {
		return topic[:at]
	}
	return topic
}

// Close implements broker.Session. The broker delivers again what was not acknowledged.
func (s *session) Close(ctx context.Context) error {
	_, err := await(ctx, s.b, func() (struct{}, error) { s.consumer.Close(); return struct{}{}, nil }, nil)
	return s.b.hide(err)
}

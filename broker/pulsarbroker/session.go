package pulsarbroker

import (
	"context"
	"errors"
	"fmt"
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
	tenures map[string]int // by topic, or partition: how often it was taken away
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
	gone := tenure{topic, s.tenures[topic]}
	s.tenures[topic]++
	s.mu.Unlock()
	select {
	case s.lost <- gone:
	default: // more partitions than room; what is in hand is handled twice, which the inbox is for
	}
}

// incoming returns a message as the receiver takes it.
func (s *session) incoming(m pulsar.Message) *broker.Incoming {
	s.mu.Lock()
	number := s.tenures[m.Topic()]
	s.mu.Unlock()
	in := &broker.Incoming{
		Message: broker.Message{Topic: m.Topic(), Key: m.Key(), Payload: m.Payload()},
		Order:   order(m.ID()), OrderBy: m.Key(), Attempt: int(m.RedeliveryCount()) + 1, Handle: handle{m, number},
	}
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

// order makes a number of a message's id, so that they compare alike within a partition: 30 bits for the ledger, 24 for the entry in it and 10 for the place
// in a batch. Ledgers and batches that are larger than that are unusual, and what is beyond counts as equal: it stays as it arrived.
func order(id pulsar.MessageID) uint64 {
	ledger, entry, batch := uint64(max(id.LedgerID(), 0)), uint64(max(id.EntryID(), 0)), uint64(max(id.BatchIdx(), 0))
	return ledger&(1<<30-1)<<34 | min(entry, 1<<24-1)<<10 | min(batch, 1<<10-2) + 1
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

// SetAside implements broker.Session.
func (s *session) SetAside(ctx context.Context, in *broker.Incoming, reason error) error {
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

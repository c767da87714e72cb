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
	"github.com/waybillhq/waybill/broker/driver"
)

// session is one consumer of the subscription. The client reconnects the
// consumer by itself and does not report that.
type session struct {
	*Source
	consumer pulsar.Consumer
	arrived  atomic.Bool // a message has arrived since the last heartbeat
	lost     chan tenure

	mu      sync.Mutex
	tenures map[string]*reign // by topic or partition
}

// reign is the state of a topic, or a partition of one, since it was last taken
// away.
type reign struct {
	number int // how often the topic was taken away
	tenure *driver.Tenure
	order  uint64 // position of the last message
	within [2]uint64
}

// suspects returns the tenure of a message. With Key_Shared the messages of a
// crashed process go to other consumers, which may already have handled many
// messages of the topic. Such messages arrive behind later ones, and nothing
// else identifies them, so each gets its own tenure.
func (r *reign) suspects(order uint64, within [2]uint64) *driver.Tenure {
	if cmp.Or(cmp.Compare(order, r.order), slices.Compare(within[:], r.within[:])) < 0 {
		return new(driver.Tenure)
	}
	r.order, r.within = order, within
	return r.tenure
}

// of returns the state of a topic. The caller holds s.mu.
func (s *session) of(topic string) *reign {
	if s.tenures[topic] == nil {
		s.tenures[topic] = &reign{tenure: new(driver.Tenure)}
	}
	return s.tenures[topic]
}

// tenure identifies the time between two moments at which a topic, or a
// partition of one, was taken away.
type tenure struct {
	topic  string
	number int
}

// handle is a message and the tenure in which it arrived. A redelivery after
// the topic was reassigned belongs to a later tenure.
type handle struct {
	pulsar.Message
	number int
}

// Take implements driver.Session.
func (s *session) Take(ctx context.Context, r *driver.Receiver) error {
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

// watch monitors the consumer until ctx ends or the consumer is unusable.
func (s *session) watch(ctx context.Context, r *driver.Receiver) error {
	tick := time.NewTicker(s.b.cfg.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case gone := <-s.lost:
			// Another process receives the messages that are in flight here.
			_ = r.Drop(ctx, func(in *driver.Incoming) bool {
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

// alive sends a request to the broker. If a topic is deleted while the client
// reconnects, the client gives up permanently without an error. alive waits for
// the answer even if the session ends: a request to a consumer that is being
// closed is never answered.
func (s *session) alive(ctx context.Context) error {
	ctx, cancel := s.b.timeout(context.WithoutCancel(ctx))
	defer cancel()
	_, err := await(ctx, s.b, s.consumer.GetLastMessageIDs, nil)
	return err
}

// BecameActive implements pulsar.ConsumerEventListener.
func (*session) BecameActive(pulsar.Consumer, string, int32) {}

// BecameInactive implements pulsar.ConsumerEventListener. It must not block,
// because the client's connection waits for it.
func (s *session) BecameInactive(_ pulsar.Consumer, topic string, _ int32) {
	s.mu.Lock()
	gone := tenure{topic, s.of(topic).number}
	s.tenures[topic] = &reign{number: gone.number + 1, tenure: new(driver.Tenure)}
	s.mu.Unlock()
	select {
	case s.lost <- gone:
	// More partitions than room: messages in flight are handled twice, and the
	// inbox deduplicates them.
	default:
	}
}

// incoming converts a message for the receiver.
func (s *session) incoming(m pulsar.Message) *driver.Incoming {
	in := &driver.Incoming{
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

// order returns the position of a message within its partition: ledger, entry,
// and index in a batch. Each is a 64-bit number. Ledger numbers are unique in a
// cluster, so two partitions never share a position.
func order(id pulsar.MessageID) (uint64, [2]uint64) {
	// -1 means none, and an Order of zero would mean no position.
	number := func(n int64) uint64 { return uint64(max(n, -1) + 1) }
	return max(number(id.LedgerID()), 1), [2]uint64{number(id.EntryID()), number(int64(id.BatchIdx()))}
}

// Ack implements driver.Session.
func (s *session) Ack(ctx context.Context, batch []*driver.Incoming) error {
	ids := make([]pulsar.MessageID, 0, len(batch))
	for _, in := range batch {
		if m, ok := in.Handle.(handle); ok {
			ids = append(ids, m.ID())
		}
	}
	_, err := await(ctx, s.b, func() (struct{}, error) { return struct{}{}, s.consumer.AckIDList(ids) }, nil)
	return s.b.hide(err)
}

// DeadLetter implements driver.Session.
func (s *session) DeadLetter(ctx context.Context, in *driver.Incoming, reason error) error {
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
	letter := driver.DeadLetter(s.codec, s.cfg.Name, in, reason)
	return s.b.hide(errors.Join(s.b.dead.send(ctx, topic, []*pulsar.ProducerMessage{publishing(&letter, at)})...))
}

// whole returns the topic of a partition.
func whole(topic string) string {
	if at := strings.LastIndex(topic, "-partition-"); at > 0 && strings.Trim(topic[at+len("-partition-"):], "0123456789") == "" {
		return topic[:at]
	}
	return topic
}

// Close implements driver.Session. The broker redelivers unacknowledged
// messages.
func (s *session) Close(ctx context.Context) error {
	_, err := await(ctx, s.b, func() (struct{}, error) { s.consumer.Close(); return struct{}{}, nil }, nil)
	return s.b.hide(err)
}

package watermillbridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
)

// SubscriberConfig configures a [Subscriber]. Zero fields have their defaults.
type SubscriberConfig struct {
	// Logger receives the error of a source that has ended, because Watermill
	// cannot report it. Defaults to [slog.Default].
	Logger *slog.Logger
}

// Subscriber is a message.Subscriber over sources: each subscription runs a
// source, and the source's events are its messages.
//
// A message is acknowledged to the broker after Ack. After Nack, the source
// redelivers the message according to its backoff ([broker.ReceiverConfig]).
// Messages of one aggregate arrive one at a time, each after the previous one
// was acknowledged. Messages of different aggregates, and messages without one,
// arrive in no order, at most as many at a time as the source has workers. A
// message's context ends with its Ack or Nack, and with the subscription.
type Subscriber struct {
	open  func(topic string) (broker.Source, error)
	log   *slog.Logger
	codec *broker.Codec

	mu      sync.Mutex
	closing context.Context // ends with Close
	end     context.CancelFunc
	closed  bool
	running sync.WaitGroup
}

// ErrClosed is the error of Subscribe after Close.
var ErrClosed = errors.New("watermillbridge: subscriber closed")

var errNack = errors.New("watermillbridge: negatively acknowledged")

// NewSubscriber returns a subscriber for the sources that open returns for a
// topic. Sources that share a durable consumer share its messages, like
// Watermill's consumer groups.
func NewSubscriber(open func(topic string) (broker.Source, error), cfg SubscriberConfig) (*Subscriber, error) {
	if open == nil {
		return nil, errors.New("watermillbridge: open: nil")
	}
	codec, err := newCodec("", nil)
	if err != nil {
		return nil, fmt.Errorf("watermillbridge: %w", err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Subscriber{open: open, log: cfg.Logger, codec: codec}
	s.closing, s.end = context.WithCancel(context.Background())
	return s, nil
}

// Subscribe implements message.Subscriber. The channel is closed when ctx ends,
// after Close, and when the source ends.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	source, err := s.open(topic)
	if err != nil {
		return nil, fmt.Errorf("watermillbridge: topic %s: %w", topic, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.closing, cancel)
	out := &subscription{ctx: ctx, codec: s.codec, messages: make(chan *message.Message)}
	s.running.Go(func() {
		defer close(out.messages) // after Run has returned, no Deliver is running
		defer cancel()
		defer stop()
		if err := source.Run(ctx, out); err != nil {
			s.log.Error("source of a Watermill subscription ended", "topic", topic, "source", source.Name(), "error", err)
		}
	})
	return out.messages, nil
}

// Close implements message.Subscriber: it ends all subscriptions and returns
// when their sources have returned unacknowledged messages to the broker. Close
// may be called several times.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.running.Wait()
	return nil
}

// subscription is a consumer that passes events to the reader of the channel.
type subscription struct {
	// ctx must end sooner than the source's context, because the source waits
	// for running deliveries.
	ctx      context.Context
	codec    *broker.Codec
	messages chan *message.Message
}

// Deliver implements waybill.Sink.
func (s *subscription) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	results := make([]error, len(batch))
	for i := range batch {
		results[i] = s.one(&batch[i])
	}
	return results
}

func (s *subscription) one(d *waybill.Delivery) error {
	msg, _, err := outgoing(s.codec, d)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	msg.SetContext(ctx)
	ended := func() error { return waybill.Unavailable(errors.New("watermillbridge: subscription ended")) }
	if s.ctx.Err() != nil {
		return ended()
	}
	select {
	case s.messages <- msg:
	case <-s.ctx.Done():
		return ended()
	}
	select {
	case <-msg.Acked():
		return nil
	case <-msg.Nacked():
		return errNack
	case <-s.ctx.Done():
	}
	// Both may have happened; an acknowledgment takes precedence.
	select {
	case <-msg.Acked():
		return nil
	default:
		return ended()
	}
}

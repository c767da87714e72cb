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

// SubscriberConfig holds what may be tuned. A field that is zero has its default.
type SubscriberConfig struct {
	// Logger gets the errors with which a source has ended: Watermill has no way to report them.
	// Defaults to [slog.Default].
	Logger *slog.Logger
}

// Subscriber is sources as a message.Subscriber: each subscription runs a source, and its messages
// are the source's events.
//
// A message is acknowledged to the broker after Ack. After Nack, the source hands it out again,
// when its backoff says so ([broker.ReceiverConfig]). Messages of one aggregate come one at a time,
// each after the one before was acknowledged; those of several aggregates, and those without one,
// come without an order, at most as many at a time as the source has workers. A message's context
// ends with its Ack or Nack, and with the subscription.
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

// ErrClosed is what Subscribe returns after Close.
var ErrClosed = errors.New("watermillbridge: the subscriber is closed")

var errNack = errors.New("watermillbridge: negatively acknowledged")

// NewSubscriber returns a subscriber over the sources that open returns for a topic. Sources that
// share a durable consumer share the messages, as Watermill's consumer groups do.
func NewSubscriber(open func(topic string) (broker.Source, error), cfg SubscriberConfig) (*Subscriber, error) {
	if open == nil {
		return nil, errors.New("watermillbridge: no sources")
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

// Subscribe implements message.Subscriber. The channel is closed when ctx ends, after Close, and
// when the source gives up.
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
		defer close(out.messages) // when Run has returned, no call of Deliver is under way
		defer cancel()
		defer stop()
		if err := source.Run(ctx, out); err != nil {
			s.log.Error("waybill: a source of a Watermill subscription has ended", "topic", topic, "source", source.Name(), "error", err)
		}
	})
	return out.messages, nil
}

// Close implements message.Subscriber: it ends all subscriptions, and returns when their sources
// have given back what was not acknowledged. It may be called several times.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.running.Wait()
	return nil
}

// subscription is a consumer that hands events to the reader of the channel.
type subscription struct {
	ctx      context.Context // its own: it has to end sooner than the source's, which waits for what is under way
	codec    *broker.Codec
	messages chan *message.Message
}

// Deliver implements broker.Consumer.
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
	ended := func() error { return waybill.Unavailable(errors.New("watermillbridge: the subscription has ended")) }
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
	select { // both may have happened, and an acknowledgement counts
	case <-msg.Acked():
		return nil
	default:
		return ended()
	}
}

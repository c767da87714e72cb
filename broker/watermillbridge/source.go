package watermillbridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// SourceConfig configures a [Source]. Zero fields have their defaults.
type SourceConfig struct {
	// Name identifies the source in logs, metrics and dead letters. Defaults to
	// the topic.
	Name string
	// DeadLetters publishes messages that can never be handled to DeadTopic.
	// Defaults to nil: such messages are logged, reported, and acknowledged.
	DeadLetters message.Publisher
	// DeadTopic is the topic for messages that can never be handled. Defaults
	// to the topic and ".dead".
	DeadTopic string
	// Receive configures how messages are passed to the consumer. Defaults to
	// the defaults of [broker.ReceiverConfig].
	Receive broker.ReceiverConfig
}

// Source is a Watermill subscriber as a source. A message is acknowledged after
// the consumer is done with it, and negatively acknowledged when it is deferred
// for longer than [broker.ReceiverConfig.MaxHold]; the subscriber then decides
// when to redeliver it.
//
// Most subscribers deliver a message only after the previous one was
// acknowledged.
type Source struct {
	subscriber message.Subscriber
	topic      string
	cfg        SourceConfig
	codec      *broker.Codec
}

// NewSource returns a source for one topic of a subscriber. The source does not
// close the subscriber.
func NewSource(s message.Subscriber, topic string, cfg SourceConfig) (*Source, error) {
	var errs []error
	if s == nil {
		errs = append(errs, errors.New("subscriber: nil"))
	}
	if topic == "" {
		errs = append(errs, errors.New("topic: empty"))
	}
	codec, err := newCodec("", nil)
	errs = append(errs, err, cfg.Receive.Validate())
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("watermillbridge: %w", err)
	}
	if cfg.Name == "" {
		cfg.Name = topic
	}
	if cfg.DeadTopic == "" {
		cfg.DeadTopic = topic + ".dead"
	}
	return &Source{subscriber: s, topic: topic, cfg: cfg, codec: codec}, nil
}

// Name implements broker.Source.
func (s *Source) Name() string { return s.cfg.Name }

// Run implements broker.Source.
func (s *Source) Run(ctx context.Context, c waybill.Sink) error {
	return driver.Receive(ctx, s.cfg.Name, s.codec, c, s.cfg.Receive, s.open)
}

func (s *Source) open(ctx context.Context) (driver.Session, error) {
	// The subscription outlives ctx, so that messages in flight can still be
	// acknowledged after ctx has ended.
	sub, cancel := context.WithCancel(context.WithoutCancel(ctx))
	messages, err := s.subscriber.Subscribe(sub, s.topic)
	if err != nil {
		cancel()
		return nil, err
	}
	return &session{source: s, messages: messages, cancel: cancel}, nil
}

type session struct {
	source   *Source
	messages <-chan *message.Message
	cancel   context.CancelFunc
	order    uint64
	tenure   driver.Tenure // Watermill reports no delivery counts
}

// Take implements driver.Session.
func (s *session) Take(ctx context.Context, r *driver.Receiver) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case msg, open := <-s.messages:
			if !open {
				return errors.New("watermillbridge: subscription closed by the subscriber")
			}
			s.order++
			in := &driver.Incoming{Message: *incoming(s.source.topic, msg), Order: s.order, Tenure: &s.tenure, Handle: msg}
			if err := r.Put(ctx, in); err != nil {
				msg.Nack()
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
		}
	}
}

// Ack implements driver.Session.
func (s *session) Ack(_ context.Context, batch []*driver.Incoming) error {
	for _, in := range batch {
		if msg, ok := in.Handle.(*message.Message); ok {
			msg.Ack()
		}
	}
	return nil
}

// NakWithDelay implements driver.Nakker. Watermill does not support delays.
func (s *session) NakWithDelay(_ context.Context, in *driver.Incoming, _ time.Duration) error {
	if msg, ok := in.Handle.(*message.Message); ok {
		msg.Nack()
	}
	return nil
}

// DeadLetter implements driver.Session.
func (s *session) DeadLetter(ctx context.Context, in *driver.Incoming, reason error) error {
	if s.source.cfg.DeadLetters == nil {
		return nil
	}
	dead := driver.DeadLetter(s.source.codec, s.source.cfg.Name, in, reason)
	msg := message.NewMessage(dead.PublishID, dead.Payload)
	msg.SetContext(ctx)
	for _, h := range dead.Headers {
		msg.Metadata.Set(h.Name, h.Value)
	}
	if err := s.source.cfg.DeadLetters.Publish(s.source.cfg.DeadTopic, msg); err != nil {
		return waybill.Unavailable(fmt.Errorf("watermillbridge: dead letter: %w", err))
	}
	return nil
}

// Close implements driver.Session.
func (s *session) Close(context.Context) error {
	s.cancel()
	for msg := range s.messages { // return the messages that the subscriber still holds
		msg.Nack()
	}
	return nil
}

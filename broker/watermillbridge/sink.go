package watermillbridge

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// SinkConfig configures a [Sink]. Zero fields have their defaults.
type SinkConfig struct {
	// EventSource is the CloudEvents attribute source. Defaults to "waybill".
	EventSource string
	// Topics returns the topic of an event. Defaults to the event's Topic.
	Topics broker.Topics
	// Parallel is the number of messages of one batch that are published
	// concurrently. Defaults to 8. Events of one aggregate are never in the
	// same batch.
	Parallel int
	// Classify gives the publisher's errors a class: [waybill.Unavailable],
	// [waybill.Permanent] and so on. Defaults to the rule in the package
	// comment.
	Classify func(error) error
}

// Sink publishes events with a Watermill publisher. A Sink is safe for
// concurrent use if the publisher is, as Watermill requires.
type Sink struct {
	publisher message.Publisher
	cfg       SinkConfig
	codec     *broker.Codec
}

// NewSink returns a sink that uses a publisher. The sink does not close the
// publisher.
func NewSink(p message.Publisher, cfg SinkConfig) (*Sink, error) {
	var errs []error
	if p == nil {
		errs = append(errs, errors.New("publisher: nil"))
	}
	if err := driver.CheckEventSource(cfg.EventSource); err != nil {
		errs = append(errs, fmt.Errorf("SinkConfig.EventSource: %w", err))
	}
	if cfg.Parallel < 0 {
		errs = append(errs, fmt.Errorf("SinkConfig.Parallel: %d is negative", cfg.Parallel))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("watermillbridge: %w", err)
	}
	if cfg.Parallel == 0 {
		cfg.Parallel = 8
	}
	if cfg.Classify == nil {
		cfg.Classify = driver.Failures{driver.Unreachable()}.Classify
	}
	codec, err := newCodec(cfg.EventSource, cfg.Topics)
	if err != nil {
		return nil, err
	}
	return &Sink{publisher: p, cfg: cfg, codec: codec}, nil
}

// newCodec returns the codec for messages. Watermill has no binding of its own:
// its metadata look like Kafka's headers.
func newCodec(source string, topics broker.Topics) (*broker.Codec, error) {
	return broker.NewCodec(broker.Kafka, broker.CodecConfig{EventSource: source, Topics: topics})
}

// Destination implements relay.DestinationSink: each topic is a destination.
func (s *Sink) Destination(ev *waybill.Event) string { return driver.Destination(s.codec, ev) }

// Deliver implements waybill.Sink. Every message is published separately: a
// publisher that fails with several messages does not report which one failed.
func (s *Sink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return driver.PublishEach(batch, s.cfg.Parallel, func(d *waybill.Delivery) error { return s.one(ctx, d) })
}

func (s *Sink) one(ctx context.Context, d *waybill.Delivery) (err error) {
	if ctx.Err() != nil {
		return waybill.Unavailable(context.Cause(ctx))
	}
	msg, topic, err := outgoing(s.codec, d)
	if err != nil {
		return err
	}
	msg.SetContext(ctx)
	defer func() { // a publisher that panics must not stop the relay
		if v := recover(); v != nil {
			err = fmt.Errorf("watermillbridge: the publisher panicked: %v", v)
		}
	}()
	if err := s.publisher.Publish(topic, msg); err != nil {
		return s.cfg.Classify(fmt.Errorf("watermillbridge: publish to %s: %w", topic, err))
	}
	return nil
}

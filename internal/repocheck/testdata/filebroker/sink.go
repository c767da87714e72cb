package filebroker

import (
	"context"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// SinkConfig configures a [Sink]. The zero value is valid.
type SinkConfig struct {
	// EventSource is the CloudEvents attribute source. Defaults to "waybill".
	EventSource string
	// Topics returns the topic of an event. Defaults to the event's Topic.
	Topics broker.Topics
}

// Sink publishes events. It is safe for concurrent use.
type Sink struct {
	b     *Broker
	codec *broker.Codec
}

// Sink returns a sink.
func (b *Broker) Sink(cfg SinkConfig) (*Sink, error) {
	codec, err := driver.SinkCodec("filebroker", broker.Kafka, cfg.EventSource, names.Checked(cfg.Topics))
	if err != nil {
		return nil, err
	}
	return &Sink{b: b, codec: codec}, nil
}

// StopsAtFailure implements relay.OrderedSink: a batch may hold several events
// of an aggregate.
func (*Sink) StopsAtFailure() {}

// Destination implements relay.DestinationSink: each topic is a destination.
func (s *Sink) Destination(ev *waybill.Event) string { return driver.Destination(s.codec, ev) }

// Deliver implements waybill.Sink.
func (s *Sink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return driver.PublishInOrder(batch, func(wave []int, results []error) {
		encoder := s.codec.Encoder(len(wave))
		for _, i := range wave {
			results[i] = s.deliver(ctx, encoder, &batch[i])
		}
	})
}

func (s *Sink) deliver(ctx context.Context, encoder *broker.Encoder, d *waybill.Delivery) error {
	if ctx.Err() != nil {
		return waybill.Unavailable(context.Cause(ctx))
	}
	m, err := encoder.Encode(d)
	if err != nil {
		return err // permanent: the event cannot be sent to any topic
	}
	if err := s.b.publish(&m); err != nil {
		return Failures().EventError("filebroker", "", &d.Event, err)
	}
	return nil
}

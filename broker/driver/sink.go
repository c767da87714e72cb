package driver

import (
	"fmt"
	"iter"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
)

// SinkCodec returns the codec of a sink whose SinkConfig has the fields
// EventSource and Topics. Errors begin with pkg, the name of the sink's
// package.
func SinkCodec(pkg string, b broker.Binding, eventSource string, topics broker.Topics) (*broker.Codec, error) {
	if err := CheckEventSource(eventSource); err != nil {
		return nil, fmt.Errorf("%s: SinkConfig.EventSource: %w", pkg, err)
	}
	return broker.NewCodec(b, broker.CodecConfig{EventSource: eventSource, Topics: topics})
}

// Destination implements relay.DestinationSink for a sink whose destinations
// are its topics. An event without a valid topic has no destination.
func Destination(codec *broker.Codec, ev *waybill.Event) string {
	topic, err := codec.Topic(ev)
	if err != nil {
		return ""
	}
	return topic
}

// Encoded encodes the events of a wave of [PublishInOrder], and returns their
// indices and messages. The result of an event that cannot be encoded is its
// error.
func Encoded(codec *broker.Codec, batch []waybill.Delivery, wave []int, results []error) iter.Seq2[int, broker.Message] {
	return func(yield func(int, broker.Message) bool) {
		encoder := codec.Encoder(len(wave))
		for _, i := range wave {
			m, err := encoder.Encode(&batch[i])
			if err != nil {
				results[i] = err
			} else if !yield(i, m) {
				return
			}
		}
	}
}

// PublishEach implements Deliver for a sink that publishes every message
// separately and does not implement relay.OrderedSink: a batch has at most one
// event per aggregate. At most limit calls of publish run concurrently, and at
// least one.
func PublishEach(batch []waybill.Delivery, limit int, publish func(d *waybill.Delivery) error) []error {
	results := make([]error, len(batch))
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(max(limit, 1), len(batch)) {
		wg.Go(func() {
			for i := range next {
				results[i] = publish(&batch[i])
			}
		})
	}
	for i := range batch {
		next <- i
	}
	close(next)
	wg.Wait()
	return results
}

// Package membroker is the reference broker: topics and durable consumers in
// the memory of one process, for tests. Messages are lost when the process
// ends. On demand, the broker loses, repeats, delays and reorders messages, and
// becomes unavailable.
//
//	b, err := membroker.New(membroker.Config{})
//	…
//	sink, err := b.Sink(membroker.SinkConfig{})
//	r, err := relay.New(db, sink, relay.Config{})
//	src, err := b.Source(membroker.SourceConfig{Durable: "billing"})
//	b.SetFaults(membroker.Faults{Duplicate: 0.1, DropAck: 0.1, Seed: 7})
package membroker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// Config configures a [Broker]. The zero value is valid.
type Config struct {
	// AckWait is how long a consumer may leave a message unanswered before the
	// broker redelivers it. Defaults to 30 s.
	AckWait time.Duration
	// DedupWindow is how long the broker remembers a publish id. A message with
	// a known publish id is confirmed and dropped. Defaults to 2 min; negative:
	// no deduplication.
	DedupWindow time.Duration
	// MaxMessage is the maximum size of a message in bytes. Defaults to 2 MiB.
	MaxMessage int
}

// Faults holds the probabilities of faults, between 0 and 1. The zero value
// injects none.
type Faults struct {
	// DropConfirm loses the confirmation of a stored message.
	DropConfirm float64
	// DropDelivery loses a message on its way to the consumer; the broker
	// redelivers it after AckWait.
	DropDelivery float64
	// DropAck loses an acknowledgment.
	DropAck float64
	// Duplicate delivers a message twice.
	Duplicate float64
	// Reorder swaps a message with the one that follows it.
	Reorder float64
	// Delay delays a message by a random time of at most MaxDelay, which
	// defaults to 10 ms.
	Delay    float64
	MaxDelay time.Duration
	// Seed seeds the random choices: the same seed and the same calls give the
	// same faults.
	Seed uint64
}

// Errors of the broker; see [Failures] for their classes.
var (
	errDown    = errors.New("membroker: unavailable")
	errConfirm = errors.New("membroker: not confirmed in time")
	errSize    = errors.New("membroker: message too large")
)

// Failures returns the failure table.
func Failures() driver.Failures {
	return driver.Failures{
		{Name: "down", Class: waybill.ClassUnavailable, Scope: "broker", Why: "SetDown was called", Match: driver.IsAny(errDown)},
		{Name: "not confirmed in time", Class: waybill.ClassUnavailable, Scope: "broker", Why: "the broker may or may not have the message", Match: driver.IsAny(errConfirm)},
		{Name: "message too large", Class: waybill.ClassPermanent, Why: "its size does not change", Match: driver.IsAny(errSize)},
		driver.Unreachable(),
	}
}

// Broker is an in-memory broker.
type Broker struct {
	cfg   Config
	codec *broker.Codec // of the sources

	mu      sync.Mutex
	log     []*stored
	groups  map[string]*group
	seen    map[string]time.Time // publish id → when it expires
	faults  Faults
	random  *rand.Rand
	down    bool
	outages int           // how often connections were cut
	changed chan struct{} // closed and replaced when a message may be deliverable
}

// stored is a message in the log.
type stored struct {
	seq     uint64
	message broker.Message
}

// New returns an empty broker.
func New(cfg Config) (*Broker, error) {
	var errs []error
	if cfg.AckWait < 0 {
		errs = append(errs, fmt.Errorf("Config.AckWait: %v is negative", cfg.AckWait))
	}
	if cfg.MaxMessage < 0 {
		errs = append(errs, fmt.Errorf("Config.MaxMessage: %d is negative", cfg.MaxMessage))
	}
	if cfg.AckWait == 0 {
		cfg.AckWait = 30 * time.Second
	}
	if cfg.DedupWindow == 0 {
		cfg.DedupWindow = 2 * time.Minute
	}
	if cfg.MaxMessage == 0 {
		cfg.MaxMessage = 2 << 20
	}
	codec, err := broker.NewCodec(broker.Kafka, broker.CodecConfig{})
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("membroker: %w", err)
	}
	b := &Broker{
		cfg: cfg, codec: codec, groups: make(map[string]*group), seen: make(map[string]time.Time), changed: make(chan struct{}),
		random: rand.New(rand.NewPCG(0, 0)), //nolint:gosec // faults want to be repeatable, not secret
	}
	return b, nil
}

// Open returns an empty broker for the URL "mem:", like Open of other brokers.
func Open(_ context.Context, address string, cfg Config) (*Broker, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "mem" {
		return nil, fmt.Errorf("membroker: %s: not a URL with the scheme mem", driver.Redact(address))
	}
	return New(cfg)
}

// SetFaults sets the faults from now on.
func (b *Broker) SetFaults(f Faults) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f.MaxDelay <= 0 {
		f.MaxDelay = 10 * time.Millisecond
	}
	b.faults, b.random = f, rand.New(rand.NewPCG(f.Seed, 0)) //nolint:gosec // see New
}

// SetDown makes the broker unavailable or available. While it is unavailable,
// publishing fails and every consumer is disconnected. Messages are kept.
func (b *Broker) SetDown(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = down
	b.outages++
	b.signal()
}

// Messages returns the messages that were published to a topic, in order.
func (b *Broker) Messages(topic string) []broker.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []broker.Message
	for _, s := range b.log {
		if s.message.Topic == topic {
			found = append(found, s.message)
		}
	}
	return found
}

// Publish stores an arbitrary message and confirms it.
func (b *Broker) Publish(ctx context.Context, m broker.Message) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.publish(m)
}

// publish stores a message. The caller holds b.mu.
func (b *Broker) publish(m broker.Message) error {
	switch {
	case b.down:
		return errDown
	case m.Size() > b.cfg.MaxMessage:
		return fmt.Errorf("%w: %d bytes, at most %d", errSize, m.Size(), b.cfg.MaxMessage)
	}
	if !b.repeated(m.Topic + "\x00" + m.PublishID) {
		m.Headers, m.Payload = append([]broker.Header(nil), m.Headers...), append([]byte(nil), m.Payload...)
		b.log = append(b.log, &stored{seq: uint64(len(b.log)) + 1, message: m})
		b.signal()
	}
	if b.happens(b.faults.DropConfirm) {
		return errConfirm
	}
	return nil
}

// repeated reports whether a publish id was used within the window, and
// remembers it.
func (b *Broker) repeated(id string) bool {
	if b.cfg.DedupWindow < 0 || strings.HasSuffix(id, "\x00") {
		return false
	}
	now := time.Now()
	if until, known := b.seen[id]; known && now.Before(until) {
		return true
	}
	b.seen[id] = now.Add(b.cfg.DedupWindow)
	return false
}

// happens reports whether a fault of probability p occurs. The caller holds
// b.mu.
func (b *Broker) happens(p float64) bool { return p > 0 && b.random.Float64() < p }

// signal wakes all consumers. The caller holds b.mu.
func (b *Broker) signal() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// SinkConfig configures a [Sink]. The zero value is valid.
type SinkConfig struct {
	// EventSource is the CloudEvents attribute source. Defaults to "waybill".
	EventSource string
	// Topics returns the topic of an event. Defaults to the event's Topic.
	Topics broker.Topics
}

// Sink publishes the relay's deliveries, in the binding of Kafka.
type Sink struct {
	b     *Broker
	codec *broker.Codec
}

// Sink returns a sink.
func (b *Broker) Sink(cfg SinkConfig) (*Sink, error) {
	codec, err := driver.SinkCodec("membroker", broker.Kafka, cfg.EventSource, broker.TopicRules{}.Checked(cfg.Topics))
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

// Deliver publishes a batch.
func (s *Sink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return driver.PublishInOrder(batch, func(wave []int, results []error) {
		for _, i := range wave {
			m, err := s.codec.Encode(&batch[i])
			if err == nil {
				err = s.b.Publish(ctx, m)
			}
			results[i] = Failures().Classify(err)
		}
	})
}

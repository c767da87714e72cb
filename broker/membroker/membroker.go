// Package membroker is the reference broker: topics and durable consumers in the memory of one process. It keeps nothing when the process ends. Its use
// is in tests: it can lose, repeat, delay and reorder messages, and go down, on demand.
//
//	b, err := membroker.New(membroker.Config{})
//	…
//	r, err := relay.New(db, b.Sink(), relay.Config{})
//	src, err := b.Source(membroker.SourceConfig{Name: "billing"})
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
)

// Config holds what may be tuned; its zero value is ready.
type Config struct {
	// Topics says where an event goes. Defaults to its Topic.
	Topics broker.Topics
	// EventSource is the CloudEvents attribute "source". Defaults to "waybill".
	EventSource string
	// AckWait is how long a consumer may be silent about a message before it is delivered again. Defaults to 30 s.
	AckWait time.Duration
	// DedupWindow is for how long a publish id is remembered; a message with the same one is confirmed and dropped. Defaults to 2 min;
	// negative: none is.
	DedupWindow time.Duration
	// MaxMessage is the largest message, in bytes. Defaults to 2 MiB.
	MaxMessage int
}

// Faults is what goes wrong, each as a probability between 0 and 1. The zero value is a broker without fault.
type Faults struct {
	// DropConfirm loses the confirmation of a message that was stored.
	DropConfirm float64
	// DropDelivery loses a message on its way to the consumer; it is delivered again after AckWait.
	DropDelivery float64
	// DropAck loses an acknowledgement.
	DropAck float64
	// Duplicate delivers a message twice.
	Duplicate float64
	// Reorder delivers a message behind the one that follows it.
	Reorder float64
	// Delay holds a message up for a random time of at most MaxDelay, which defaults to 10 ms.
	Delay    float64
	MaxDelay time.Duration
	// Seed makes the choices. With the same seed and the same calls they are the same.
	Seed uint64
}

// The errors of the broker; see [Failures] for what they mean.
var (
	errDown    = errors.New("membroker: down")
	errConfirm = errors.New("membroker: not confirmed in time")
	errSize    = errors.New("membroker: message too large")
)

// Failures is the table of errors.
func Failures() broker.Failures {
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	return broker.Failures{
		{Name: "down", Class: waybill.ClassUnavailable, Scope: "broker", Why: "it was told to be", Match: is(errDown)},
		{Name: "not confirmed in time", Class: waybill.ClassUnavailable, Scope: "broker", Why: "it may have the message, or not", Match: is(errConfirm)},
		{Name: "message too large", Class: waybill.ClassPermanent, Why: "it will not shrink", Match: is(errSize)},
		broker.Unreachable(),
	}
}

// Broker is a broker in memory.
type Broker struct {
	cfg   Config
	codec *broker.Codec

	mu      sync.Mutex
	log     []*stored
	groups  map[string]*group
	seen    map[string]time.Time // publish id → when it is forgotten
	faults  Faults
	random  *rand.Rand
	down    bool
	outages int           // how often sessions were cut
	changed chan struct{} // closed and replaced whenever there may be something to deliver
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
		errs = append(errs, fmt.Errorf("field AckWait: %v is negative", cfg.AckWait))
	}
	if cfg.MaxMessage < 0 {
		errs = append(errs, fmt.Errorf("field MaxMessage: %d is negative", cfg.MaxMessage))
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
	codec, err := broker.NewCodec(broker.Kafka, broker.CodecConfig{Source: cfg.EventSource, Topics: broker.TopicRules{}.Checked(cfg.Topics)})
	if err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("membroker: %w", err)
	}
	b := &Broker{
		cfg: cfg, codec: codec, groups: make(map[string]*group), seen: make(map[string]time.Time), changed: make(chan struct{}),
		random: rand.New(rand.NewPCG(0, 0)), //nolint:gosec // faults want to be repeatable, not secret
	}
	return b, nil
}

// Open returns an empty broker for a URL "mem:", as other brokers do for theirs.
func Open(_ context.Context, address string, cfg Config) (*Broker, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "mem" {
		return nil, fmt.Errorf("membroker: %s: want a URL with the scheme mem", broker.Redact(address))
	}
	return New(cfg)
}

// Codec returns the form in which messages travel: that of Kafka.
func (b *Broker) Codec() *broker.Codec { return b.codec }

// SetFaults says what goes wrong from now on.
func (b *Broker) SetFaults(f Faults) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f.MaxDelay <= 0 {
		f.MaxDelay = 10 * time.Millisecond
	}
	b.faults, b.random = f, rand.New(rand.NewPCG(f.Seed, 0)) //nolint:gosec // see New
}

// SetDown takes the broker down, or up again. While it is down nothing can be published, and every consumer loses its connection. Messages are kept.
func (b *Broker) SetDown(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = down
	b.outages++
	b.signal()
}

// Messages returns what was published to a topic, in order.
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

// Publish stores a message, of whatever content, and confirms it.
func (b *Broker) Publish(ctx context.Context, m broker.Message) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.publish(m)
}

// publish stores a message. The broker is locked.
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

// repeated reports whether a publish id was used within the window, and remembers it.
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

// happens reports whether a fault of a probability strikes. The broker is locked.
func (b *Broker) happens(p float64) bool { return p > 0 && b.random.Float64() < p }

// signal wakes all consumers. The broker is locked.
func (b *Broker) signal() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Sink publishes what a relay delivers.
type Sink struct{ b *Broker }

// Sink returns the broker's sink.
func (b *Broker) Sink() *Sink { return &Sink{b: b} }

// StopsAtFailure tells the relay that one batch may hold several events of an aggregate.
func (*Sink) StopsAtFailure() {}

// Destination tells the relay what waits when a topic is down.
func (s *Sink) Destination(ev *waybill.Event) string {
	topic, err := s.b.codec.Topic(ev)
	if err != nil {
		return ""
	}
	return topic
}

// Deliver publishes a batch.
func (s *Sink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return broker.PublishInOrder(batch, func(wave []int, results []error) {
		for _, i := range wave {
			m, err := s.b.codec.Encode(&batch[i])
			if err == nil {
				err = s.b.Publish(ctx, m)
			}
			results[i] = Failures().Classify(err)
		}
	})
}

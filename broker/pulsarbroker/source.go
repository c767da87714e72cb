package pulsarbroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// DeadLetterSubscription is the subscription that keeps dead letters until they
// are acknowledged.
const DeadLetterSubscription = "waybill-dead"

// SourceConfig configures a [Source]. Zero fields have their defaults.
type SourceConfig struct {
	// Subscription is shared by all processes of a consumer. It is created at
	// the beginning of the topics if it does not exist. Required.
	Subscription string
	// Name identifies the source in logs, metrics and dead letters. Defaults to
	// Subscription.
	Name string
	// Topics are the topics to read. At least one is required.
	Topics []string
	// KeyShared lets all processes work concurrently, each on different keys;
	// messages must then not be sent in batches ([SinkConfig.Batching]). By
	// default one process at a time receives the messages of a topic, or of
	// each partition, and another process takes over when it ends (Failover).
	KeyShared bool
	// DeadLetter is the topic for messages that can never be handled. Defaults
	// to the topic's name and "-dead".
	DeadLetter string
	// Receive configures how messages are passed to the consumer. Deferred
	// messages stay in memory, unacknowledged. Defaults to the defaults of
	// [broker.ReceiverConfig].
	Receive broker.ReceiverConfig
}

// Source reads topics as one of the consumers of a subscription.
type Source struct {
	b      *Broker
	cfg    SourceConfig
	codec  *broker.Codec
	opened atomic.Bool // a session has been opened before
}

// Source returns a source.
func (b *Broker) Source(cfg SourceConfig) (*Source, error) {
	var errs []error
	if cfg.Subscription == "" {
		errs = append(errs, errors.New("SourceConfig.Subscription: empty"))
	}
	if cfg.Name == "" {
		cfg.Name = cfg.Subscription
	}
	if len(cfg.Topics) == 0 {
		errs = append(errs, errors.New("SourceConfig.Topics: empty"))
	}
	cfg.Topics = slices.Clone(cfg.Topics)
	for i, name := range cfg.Topics {
		var err error
		if cfg.Topics[i], err = b.topic(name); err != nil {
			errs = append(errs, fmt.Errorf("SourceConfig.Topics: %w", err))
		}
	}
	if cfg.DeadLetter != "" {
		var err error
		if cfg.DeadLetter, err = b.topic(cfg.DeadLetter); err != nil {
			errs = append(errs, fmt.Errorf("SourceConfig.DeadLetter: %w", err))
		} else if slices.Contains(cfg.Topics, cfg.DeadLetter) {
			errs = append(errs, fmt.Errorf("SourceConfig.DeadLetter: %s is one of Topics", cfg.DeadLetter))
		}
	}
	codec, err := broker.NewCodec(broker.Pulsar, broker.CodecConfig{})
	errs = append(errs, err, cfg.Receive.Validate())
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("pulsarbroker: %w", err)
	}
	return &Source{b: b, cfg: cfg, codec: codec}, nil
}

// Name implements broker.Source.
func (s *Source) Name() string { return s.cfg.Name }

// Run implements broker.Source.
func (s *Source) Run(ctx context.Context, c waybill.Sink) error {
	return driver.Receive(ctx, s.cfg.Name, s.codec, c, s.cfg.Receive, s.open)
}

func (s *Source) open(ctx context.Context) (driver.Session, error) {
	opening, cancel := s.b.timeout(ctx)
	defer cancel()
	sess := &session{Source: s, lost: make(chan tenure, 64), tenures: make(map[string]*reign)}
	opts := pulsar.ConsumerOptions{
		Topics: s.cfg.Topics, SubscriptionName: s.cfg.Subscription, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		Type: pulsar.Failover, EventListener: sess, AckWithResponse: true, ReceiverQueueSize: s.cfg.Receive.MaxInFlight,
	}
	if s.cfg.KeyShared {
		opts.Type = pulsar.KeyShared
	}
	if len(opts.Topics) == 1 {
		opts.Topic, opts.Topics = opts.Topics[0], nil
	}
	consumer, err := await(opening, s.b, func() (pulsar.Consumer, error) { return s.b.client.Subscribe(opts) }, pulsar.Consumer.Close)
	if err != nil {
		err = fmt.Errorf("pulsarbroker: subscription %s: %w", s.cfg.Subscription, err)
		// The configuration is wrong: one error is better than retrying
		// forever. A source that has worked before may work again.
		if !s.opened.Load() && reports(err, "TopicNotFound", "SubscriptionNotFound", "AuthenticationError", "AuthorizationError", "NotAllowedError",
			"InvalidTopicName", "IncompatibleSchema") {
			err = waybill.Permanent(err)
		}
		return nil, s.b.hide(err)
	}
	s.opened.Store(true)
	sess.consumer = consumer
	return sess, nil
}

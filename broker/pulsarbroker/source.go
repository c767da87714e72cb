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
)

// DeadLetterSubscription is the name of the subscription that keeps dead letters until somebody has looked at them.
const DeadLetterSubscription = "waybill-dead"

// SourceConfig holds what a source is, and what may be tuned. A field that is zero has its default.
type SourceConfig struct {
	// Subscription is what all processes of a consumer share. It is made if it is not there, at the beginning of the topics. Required.
	Subscription string
	// Topics are read. At least one.
	Topics []string
	// KeyShared lets all processes work at a time, each on keys of its own; messages must not be sent in batches then ([SinkConfig.Batch]). By
	// default one process at a time gets the messages of a topic, or of each partition, and others take over when it goes away (Failover).
	KeyShared bool
	// DeadLetter is the topic for what can never be handled. Defaults to the topic's name and "-dead".
	DeadLetter string
	// Receive tunes the source as any other's. Messages that are put off stay here, unacknowledged.
	Receive broker.ReceiverConfig
}

// Source reads topics as one of the consumers of a subscription.
type Source struct {
	b      *Broker
	cfg    SourceConfig
	codec  *broker.Codec
	opened atomic.Bool // it has worked before
}

// Source returns a source.
func (b *Broker) Source(cfg SourceConfig) (*Source, error) {
	var errs []error
	if cfg.Subscription == "" {
		errs = append(errs, errors.New("field Subscription: empty"))
	}
	if len(cfg.Topics) == 0 {
		errs = append(errs, errors.New("field Topics: none"))
	}
	cfg.Topics = slices.Clone(cfg.Topics)
	for i, name := range cfg.Topics {
		var err error
		if cfg.Topics[i], err = b.topic(name); err != nil {
			errs = append(errs, fmt.Errorf("field Topics: %w", err))
		}
	}
	if cfg.DeadLetter != "" {
		var err error
		if cfg.DeadLetter, err = b.topic(cfg.DeadLetter); err != nil {
			errs = append(errs, fmt.Errorf("field DeadLetter: %w", err))
		} else if slices.Contains(cfg.Topics, cfg.DeadLetter) {
			errs = append(errs, errors.New("field DeadLetter: it is one of the topics that are read"))
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
func (s *Source) Name() string { return s.cfg.Subscription }

// Run implements broker.Source.
func (s *Source) Run(ctx context.Context, c broker.Consumer) error {
	return broker.Receive(ctx, s.cfg.Subscription, s.codec, c, s.cfg.Receive, s.open)
}

func (s *Source) open(ctx context.Context) (broker.Session, error) {
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
		// Somebody has to do something, and saying it once is better than trying for ever. What has worked before may do so again.
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

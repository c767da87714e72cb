package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// SourceConfig configures a [Source]. Zero fields have their defaults.
type SourceConfig struct {
	// Group is the consumer group. A new group starts at the earliest record.
	// Required.
	Group string
	// Name identifies the source in logs, metrics and dead letters. Defaults to
	// Group.
	Name string
	// Topics are the topics to read. At least one is required.
	Topics []string
	// DeadLetter is the topic for messages that can never be handled. Defaults
	// to the topic's name and ".dead". The topic must exist before the source
	// takes a message: a message that could not be dead-lettered would block
	// its partition.
	DeadLetter string
	// SessionTimeout is how long the partitions of a crashed process stay
	// assigned to it. Defaults to 45 s.
	SessionTimeout time.Duration
	// Receive configures how messages are passed to the consumer. Defaults to
	// the defaults of [broker.ReceiverConfig].
	Receive broker.ReceiverConfig
}

// Source reads topics as a member of a consumer group.
type Source struct {
	b     *Broker
	cfg   SourceConfig
	codec *broker.Codec
}

// Source returns a source.
func (b *Broker) Source(cfg SourceConfig) (*Source, error) {
	var errs []error
	if cfg.Group == "" {
		errs = append(errs, errors.New("SourceConfig.Group: empty"))
	}
	if cfg.Name == "" {
		cfg.Name = cfg.Group
	}
	if len(cfg.Topics) == 0 {
		errs = append(errs, errors.New("SourceConfig.Topics: empty"))
	}
	cfg.Topics = slices.Clone(cfg.Topics)
	for _, name := range cfg.Topics {
		if err := names.Check(name); err != nil {
			errs = append(errs, fmt.Errorf("SourceConfig.Topics: %w", err))
		}
	}
	for _, name := range cfg.Topics {
		dead := deadLetter(&cfg, name)
		if err := names.Check(dead); err != nil && names.Check(name) == nil {
			errs = append(errs, fmt.Errorf("SourceConfig.DeadLetter: %w", err))
		}
		if slices.Contains(cfg.Topics, dead) {
			errs = append(errs, fmt.Errorf("SourceConfig.DeadLetter: %s is one of Topics", dead))
		}
	}
	if cfg.SessionTimeout == 0 {
		cfg.SessionTimeout = 45 * time.Second
	}
	if cfg.SessionTimeout < time.Second {
		errs = append(errs, fmt.Errorf("SourceConfig.SessionTimeout: %v is less than 1s", cfg.SessionTimeout))
	}
	codec, err := broker.NewCodec(broker.Kafka, broker.CodecConfig{})
	errs = append(errs, err, cfg.Receive.Validate())
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("kafkabroker: %w", err)
	}
	return &Source{b: b, cfg: cfg, codec: codec}, nil
}

func deadLetter(cfg *SourceConfig, topic string) string {
	if cfg.DeadLetter != "" {
		return cfg.DeadLetter
	}
	return topic + ".dead"
}

// Name implements broker.Source.
func (s *Source) Name() string { return s.cfg.Name }

// Run implements broker.Source. It waits for topics that do not exist.
func (s *Source) Run(ctx context.Context, c waybill.Sink) error {
	return driver.Receive(ctx, s.cfg.Name, s.codec, c, s.cfg.Receive, s.open)
}

const (
	// rebalance is how long the group waits for its members when partitions are
	// reassigned.
	rebalance = time.Minute
	// handOver is the part of rebalance for messages in flight. A message that
	// takes longer is also delivered to the next member, and the inbox
	// deduplicates it.
	handOver = 40 * time.Second
)

func (s *Source) open(ctx context.Context) (driver.Session, error) {
	if err := s.find(ctx); err != nil {
		return nil, s.b.hide(err)
	}
	living, end := context.WithCancel(context.WithoutCancel(ctx))
	ses := &session{Source: s, end: end}
	client, err := kgo.NewClient(append(s.b.common[:len(s.b.common):len(s.b.common)],
		kgo.WithContext(living), // ends Close even if the cluster does not answer
		kgo.ConsumerGroup(s.cfg.Group), kgo.ConsumeTopics(s.cfg.Topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		// No partition is revoked between a poll and the last Put of its
		// records.
		kgo.BlockRebalanceOnPoll(), kgo.OnPartitionsRevoked(ses.revoked), kgo.OnPartitionsLost(ses.lost),
		kgo.SessionTimeout(s.cfg.SessionTimeout), kgo.RebalanceTimeout(rebalance), kgo.HeartbeatInterval(min(s.cfg.SessionTimeout/3, 3*time.Second)),
		kgo.FetchMaxWait(500*time.Millisecond), // also bounds the time to stop
	)...)
	if err != nil {
		end()
		return nil, s.b.hide(fmt.Errorf("kafkabroker: %w", err))
	}
	ses.client = client
	return ses, nil
}

// find checks that all topics exist, and requests the creation of missing ones
// if allowed.
func (s *Source) find(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.b.cfg.PublishTimeout)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = s.b.cfg.Create
	wanted := slices.Clone(s.cfg.Topics)
	for _, topic := range s.cfg.Topics {
		wanted = append(wanted, deadLetter(&s.cfg, topic))
	}
	slices.Sort(wanted)
	for _, topic := range slices.Compact(wanted) {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(topic)
		req.Topics = append(req.Topics, t)
	}
	client, err := s.b.batches.current()
	if err != nil {
		return waybill.Permanent(err)
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return fmt.Errorf("kafkabroker: topics: %w", err)
	}
	for _, t := range resp.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return fmt.Errorf("kafkabroker: topic %s: %w", *t.Topic, err)
		}
	}
	return nil
}

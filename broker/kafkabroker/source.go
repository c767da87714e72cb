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
)

// SourceConfig holds what a source is, and what may be tuned. A field that is zero has its default.
type SourceConfig struct {
	// Group is the consumer group. A new one begins with the earliest record. Required.
	Group string
	// Name says which source it is, in logs, metrics and dead letters. Defaults to Group.
	Name string
	// Topics are read. At least one.
	Topics []string
	// DeadLetter is the topic for what can never be handled. Defaults to the topic's name and ".dead". It has to be there before anything is taken: a
	// message that could not be set aside would hold its partition.
	DeadLetter string
	// SessionTimeout is after how long the partitions of a process that has vanished go to others. Defaults to 45 s.
	SessionTimeout time.Duration
	// Receive tunes the source as any other's.
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
		errs = append(errs, errors.New("field Group: empty"))
	}
	if len(cfg.Topics) == 0 {
		errs = append(errs, errors.New("field Topics: none"))
	}
	if cfg.Name == "" {
		cfg.Name = cfg.Group
	}
	cfg.Topics = slices.Clone(cfg.Topics)
	if cfg.SessionTimeout == 0 {
		cfg.SessionTimeout = 45 * time.Second
	}
	if cfg.SessionTimeout < time.Second {
		errs = append(errs, fmt.Errorf("field SessionTimeout: %v is less than 1s", cfg.SessionTimeout))
	}
	for _, name := range cfg.Topics {
		if err := names.Check(name); err != nil {
			errs = append(errs, fmt.Errorf("field Topics: %w", err))
		}
		dead := deadLetter(&cfg, name)
		if err := names.Check(dead); err != nil {
			errs = append(errs, fmt.Errorf("field DeadLetter: %w", err))
		}
		if slices.Contains(cfg.Topics, dead) {
			errs = append(errs, fmt.Errorf("field DeadLetter: %s is one of the topics that are read", dead))
		}
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

// Run implements broker.Source. A topic that is not there is waited for.
func (s *Source) Run(ctx context.Context, c broker.Consumer) error {
	return broker.Receive(ctx, s.cfg.Name, s.codec, c, s.cfg.Receive, s.open)
}

const (
	// rebalance is how long the group waits for its members when partitions change hands.
	rebalance = time.Minute
	// handOver is how much of that is for messages in hand. What takes longer is not waited for: somebody else will get it as well, and the inbox is the fence.
	handOver = 40 * time.Second
)

func (s *Source) open(ctx context.Context) (broker.Session, error) {
	if err := s.find(ctx); err != nil {
		return nil, s.b.hide(err)
	}
	living, end := context.WithCancel(context.WithoutCancel(ctx))
	ses := &session{Source: s, end: end}
	client, err := kgo.NewClient(append(s.b.common[:len(s.b.common):len(s.b.common)],
		kgo.WithContext(living), // its end makes Close return though the cluster does not answer
		kgo.ConsumerGroup(s.cfg.Group), kgo.ConsumeTopics(s.cfg.Topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		// Between a poll and the end of what is put into the receiver, no partition is taken away.
		kgo.BlockRebalanceOnPoll(), kgo.OnPartitionsRevoked(ses.revoked), kgo.OnPartitionsLost(ses.lost),
		kgo.SessionTimeout(s.cfg.SessionTimeout), kgo.RebalanceTimeout(rebalance), kgo.HeartbeatInterval(min(s.cfg.SessionTimeout/3, 3*time.Second)),
		kgo.FetchMaxWait(500*time.Millisecond), // it also bounds how long it takes to stop
	)...)
	if err != nil {
		end()
		return nil, s.b.hide(fmt.Errorf("kafkabroker: %w", err))
	}
	ses.client = client
	return ses, nil
}

// find wants all topics to be there, and asks for those that may be made.
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

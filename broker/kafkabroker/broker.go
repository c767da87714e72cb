package kafkabroker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// Config configures the connections. The zero value is valid; zero fields have
// their defaults.
type Config struct {
	// ClientID identifies the connections in Kafka's tools. Defaults to
	// "waybill", with New to the id of the caller's client.
	ClientID string
	// PublishTimeout is how long the brokers may take to confirm a batch. At
	// least 2 s. Defaults to 15 s.
	PublishTimeout time.Duration
	// MaxMessageBytes is the maximum size of a message; larger ones are dead.
	// The topic's max.message.bytes must permit it. Defaults to 1000012.
	MaxMessageBytes int32
	// Create asks the brokers to create missing topics, which they do if
	// auto.create.topics.enable is on. Defaults to false: events for a missing
	// topic are deferred.
	Create bool
	// TLS sets certificates that the system does not trust by default, for
	// Open. Defaults to nil, or to the system's certificates if the URL has
	// tls=true. New rejects it.
	TLS *tls.Config
	// Options are additional client options of Open, such as another SASL
	// mechanism or a dialer. They cannot override the options on which the
	// guarantees of this package depend. New rejects them. Defaults to none.
	Options []kgo.Opt
	// Logger receives a warning if the connection, or the password on it, is
	// not protected. Defaults to [slog.Default].
	Logger *slog.Logger
}

// complete returns the config with defaults, or an error that lists every
// invalid field.
func (c Config) complete() (Config, error) { return c.check() }

// check is complete with errors of the last fields.
func (c Config) check(last ...error) (Config, error) {
	var errs []error
	if c.PublishTimeout == 0 {
		c.PublishTimeout = 15 * time.Second
	}
	if c.PublishTimeout < 2*time.Second {
		errs = append(errs, fmt.Errorf("Config.PublishTimeout: %v is less than 2s", c.PublishTimeout))
	}
	if c.MaxMessageBytes == 0 {
		c.MaxMessageBytes = 1000012
	}
	if c.MaxMessageBytes < 1024 {
		errs = append(errs, fmt.Errorf("Config.MaxMessageBytes: %d is less than 1024", c.MaxMessageBytes))
	}
	if c.ClientID == "" {
		c.ClientID = "waybill"
	}
	if err := errors.Join(append(errs, last...)...); err != nil {
		return c, fmt.Errorf("kafkabroker: %w", err)
	}
	return c, nil
}

// Broker is a Kafka cluster. It is safe for concurrent use.
type Broker struct {
	url    string // to redact its secrets in errors
	cfg    Config
	common []kgo.Opt // options of every client

	batches producer
	singles producer      // for records that must be published alone
	turn    chan struct{} // token for the use of singles
}

// Open connects to a cluster: kafka://user:password@host:9092,host2:9092. The
// query may contain tls=true; ca, cert and key, which name PEM files;
// insecure=true, which accepts any certificate; and sasl=plain (the default if
// there is a user), scram-sha-256 or scram-sha-512. Open returns an error if
// the cluster is unreachable. Connections that are lost later are restored
// automatically.
func Open(ctx context.Context, url string, cfg Config) (*Broker, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	fromURL, err := options(url, cfg)
	if err != nil {
		return nil, driver.RedactError(fmt.Errorf("kafkabroker: URL: %w", err), url)
	}
	b := newBroker(url, append(slices.Clone(cfg.Options), fromURL...), cfg)
	client, err := b.batches.current()
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, cfg.PublishTimeout)
		defer cancel()
		err = client.Ping(ctx)
	}
	if err != nil {
		return nil, errors.Join(b.hide(fmt.Errorf("kafkabroker: connect: %w", err)), b.Close())
	}
	return b, nil
}

// New returns a broker for the cluster of the caller's client. Kafka's clients
// have one role each, so the broker opens further clients, with the options of
// the caller's: seed brokers, TLS, SASL, dialer and hooks. The client must have
// neither a consumer group nor topics nor a transactional id, and may be closed
// at any time. New does not connect.
func New(client *kgo.Client, cfg Config) (*Broker, error) {
	var errs []error
	if cfg.TLS != nil {
		errs = append(errs, errors.New("Config.TLS: not nil, but New uses the caller's client"))
	}
	if len(cfg.Options) > 0 {
		errs = append(errs, errors.New("Config.Options: not empty, but New uses the caller's client"))
	}
	clientID := cfg.ClientID
	cfg, err := cfg.check(errs...)
	if err != nil {
		return nil, err
	}
	if client == nil {
		return nil, errors.New("kafkabroker: client: nil")
	}
	for _, option := range []any{kgo.ConsumerGroup, kgo.TransactionalID} {
		if name, ok := client.OptValue(option).(string); ok && name != "" {
			return nil, fmt.Errorf("kafkabroker: client: it has the consumer group or transactional id %s; want a client without", name)
		}
	}
	for _, option := range []any{kgo.ConsumeTopics, kgo.ConsumePartitions} {
		if topics := reflect.ValueOf(client.OptValue(option)); topics.Kind() == reflect.Map && topics.Len() > 0 {
			return nil, errors.New("kafkabroker: client: it consumes topics; want a client without topics")
		}
	}
	if id, ok := client.OptValue(kgo.ClientID).(string); ok && clientID == "" {
		cfg.ClientID = id
	}
	return newBroker("", client.Opts(), cfg), nil
}

// newBroker returns a broker whose clients have the options.
func newBroker(url string, options []kgo.Opt, cfg Config) *Broker {
	b := &Broker{url: url, cfg: cfg, turn: make(chan struct{}, 1)}
	b.common = append(slices.Clone(options), kgo.ClientID(cfg.ClientID), kgo.DisableClientMetrics(), kgo.MetadataMinAge(metadataEvery))
	b.batches.make, b.batches.timeout = func() (*kgo.Client, error) { return b.producing(cfg.MaxMessageBytes) }, cfg.PublishTimeout
	b.singles.make, b.singles.timeout = func() (*kgo.Client, error) { return b.producing(cfg.MaxMessageBytes + deadLetterBytes) }, cfg.PublishTimeout
	return b
}

// metadataEvery is the interval at which the client queries a topic that is
// missing or has no leader.
const metadataEvery = 250 * time.Millisecond

// deadLetterBytes is the maximum growth of a dead letter over its message.
const deadLetterBytes = 4096

// producing returns a client for messages of at most limit bytes.
func (b *Broker) producing(limit int32) (*kgo.Client, error) {
	third := b.cfg.PublishTimeout / 3
	opts := append(b.common[:len(b.common):len(b.common)],
		kgo.RequiredAcks(kgo.AllISRAcks()),
		// Lost sequence numbers mean that the cluster has lost messages. The
		// relay must see that, and a new producer starts over.
		kgo.StopProducerOnDataLossDetected(),
		kgo.ProducerBatchMaxBytes(limit),
		// The client repeats a request whose answer was lost, with the same
		// sequence number. That keeps the order and creates no duplicate.
		kgo.RecordDeliveryTimeout(2*third), kgo.ProduceRequestTimeout(third), kgo.RequestTimeoutOverhead(third),
		// A wave is sent as soon as it is complete; the client lingers only
		// while the wave is being assembled.
		kgo.ProducerLinger(5*time.Millisecond),
		kgo.UnknownTopicRetries(1),
	)
	if b.cfg.Create {
		// A new topic takes time to reach every broker.
		opts = append(opts, kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(20))
	}
	return kgo.NewClient(opts...)
}

// Close closes the connections of the sinks. Sources close their own.
func (b *Broker) Close() error {
	b.batches.close()
	b.singles.close()
	return nil
}

// hide redacts the URL's secrets in an error and keeps its class.
func (b *Broker) hide(err error) error { return driver.RedactError(err, b.url) }

// names holds the rules for topic names.
var names = broker.TopicRules{
	Allowed: func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
	},
	Separator: '.', Max: 249,
}

// Names returns the rules for topic names, for templates such as
// "orders.{type}".
func Names() broker.TopicRules { return names }

package kafkabroker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybillhq/waybill/broker"
)

// Config holds what may be tuned of the connections; its zero value is ready. A field that is zero has its default.
type Config struct {
	// ClientID is what the brokers' own tools show for the connections. Defaults to "waybill".
	ClientID string
	// Timeout is how long the brokers may take to confirm a batch. At least 2 s. Defaults to 15 s.
	PublishTimeout time.Duration
	// MaxMessageBytes is how large a message may be; larger ones are dead. The topic's max.message.bytes has to permit it. Defaults to 1000012.
	MaxMessageBytes int32
	// Create asks the brokers to make topics that are missing, which they do if their auto.create.topics.enable is on. Without it an
	// event for such a topic is put off.
	Create bool
	// TLS is for certificates that the system does not know. Defaults to none, or to the system's if the URL says tls=true.
	TLS *tls.Config
	// Options are for the client, such as another SASL mechanism or a dialer. Those that this package's promises rest on cannot be changed by them.
	Options []kgo.Opt
	// Logger gets what an operator should know: that the connection, or the password on it, is not
	// safe. Defaults to [slog.Default].
	Logger *slog.Logger
}

func (c Config) complete() (Config, error) {
	var errs []error
	if c.PublishTimeout == 0 {
		c.PublishTimeout = 15 * time.Second
	}
	if c.PublishTimeout < 2*time.Second {
		errs = append(errs, fmt.Errorf("field Timeout: %v is less than 2s", c.PublishTimeout))
	}
	if c.MaxMessageBytes == 0 {
		c.MaxMessageBytes = 1000012
	}
	if c.MaxMessageBytes < 1024 {
		errs = append(errs, fmt.Errorf("field MaxMessageBytes: %d is less than 1024", c.MaxMessageBytes))
	}
	if c.ClientID == "" {
		c.ClientID = "waybill"
	}
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("kafkabroker: %w", err)
	}
	return c, nil
}

// Broker is a Kafka cluster. It is safe for concurrent use.
type Broker struct {
	url    string // for hiding its secrets in errors
	cfg    Config
	common []kgo.Opt // of every client

	batches producer
	singles producer      // for what has to travel alone
	turn    chan struct{} // a token for using singles
}

// Open connects to the cluster that a URL names: kafka://user:password@host:9092,host2:9092. Its
// query may say tls=true, ca, cert and key, which name files in PEM, insecure=true, which takes any
// certificate, and sasl=plain (the default if there is a user), scram-sha-256 or scram-sha-512.
// Open reports a cluster that cannot be reached; one that goes away later is connected to again.
func Open(ctx context.Context, url string, cfg Config) (*Broker, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	fromURL, err := options(url, cfg)
	if err != nil {
		return nil, broker.RedactError(fmt.Errorf("kafkabroker: the URL: %w", err), url)
	}
	b := &Broker{url: url, cfg: cfg, turn: make(chan struct{}, 1)}
	b.common = append(append(b.common, cfg.Options...), fromURL...)
	b.common = append(b.common, kgo.ClientID(cfg.ClientID), kgo.DisableClientMetrics(), kgo.MetadataMinAge(metadataEvery))
	b.batches.make, b.batches.timeout = func() (*kgo.Client, error) { return b.producing(cfg.MaxMessageBytes) }, cfg.PublishTimeout
	b.singles.make, b.singles.timeout = func() (*kgo.Client, error) { return b.producing(cfg.MaxMessageBytes + deadLetterBytes) }, cfg.PublishTimeout
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

// metadataEvery is how soon the client asks again for a topic that was not there, or has no leader.
const metadataEvery = 250 * time.Millisecond

// deadLetterBytes is by how much a dead letter may be larger than its message.
const deadLetterBytes = 4096

// producing returns a client that publishes messages up to a size.
func (b *Broker) producing(most int32) (*kgo.Client, error) {
	third := b.cfg.PublishTimeout / 3
	opts := append(b.common[:len(b.common):len(b.common)],
		kgo.RequiredAcks(kgo.AllISRAcks()),
		// Lost sequence numbers mean that the cluster has lost messages: that is for the relay to see, and for a new producer to begin again.
		kgo.StopProducerOnDataLossDetected(),
		kgo.ProducerBatchMaxBytes(most),
		// The client repeats a request whose answer was lost, under the same sequence number: the order stays, and nothing is there twice.
		kgo.RecordDeliveryTimeout(2*third), kgo.ProduceRequestTimeout(third), kgo.RequestTimeoutOverhead(third),
		// A wave is sent as soon as it is complete; the client lingers only while it is being put together.
		kgo.ProducerLinger(5*time.Millisecond),
		kgo.UnknownTopicRetries(1),
	)
	if b.cfg.Create {
		opts = append(opts, kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(20)) // a new topic is not everywhere at once
	}
	return kgo.NewClient(opts...)
}

// Close closes the connections of the sinks. Sources close their own.
func (b *Broker) Close() error {
	b.batches.close()
	b.singles.close()
	return nil
}

// hide keeps the URL's secrets out of an error; its class stays.
func (b *Broker) hide(err error) error { return broker.RedactError(err, b.url) }

// names is what a topic may be called.
var names = broker.TopicRules{
	Allowed: func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
	},
	Separator: '.', Max: 249,
}

// Names says what a topic may be called, for making topics by a template: "orders.{type}".
func Names() broker.TopicRules { return names }

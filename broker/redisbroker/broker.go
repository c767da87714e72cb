package redisbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"

	"github.com/redis/go-redis/v9"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
)

// Config holds what may be tuned of the connection; its zero value is ready.
type Config struct {
	// PoolSize is how many connections there may be. Defaults to the client's: ten per core.
	PoolSize int
	// Logger gets what an operator should know: that the connection is not safe.
	// Defaults to [slog.Default].
	Logger *slog.Logger
}

// Broker is a connection to Redis. It is safe for concurrent use.
type Broker struct {
	client redis.UniversalClient
	url    string // for hiding its secrets in errors
	owned  bool
}

// Options returns what a URL says, as options of the client. Beside what go-redis knows, rediss://
// URLs may have the parameters ca, cert and key, which name files in PEM, and insecure=true, which
// takes any certificate. Errors may show the URL.
func Options(text string) (*redis.Options, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	query := u.Query()
	secure, err := broker.TakeTLS(query, nil)
	if err != nil {
		return nil, err
	}
	u.RawQuery = query.Encode()
	opts, err := redis.ParseURL(u.String())
	switch {
	case err != nil:
		return nil, err
	case secure != nil && opts.TLSConfig == nil:
		return nil, errors.New("parameters ca, cert, key and insecure are for TLS: want rediss://")
	case secure != nil:
		secure.ServerName = opts.TLSConfig.ServerName
		opts.TLSConfig = secure
	}
	return opts, nil
}

// Open connects to the server that a URL names: redis://user:password@host:port/database, or
// rediss:// for TLS; see [Options]. It reports a server that cannot be reached; one that goes away
// later is connected to again.
func Open(ctx context.Context, url string, cfg Config) (*Broker, error) {
	if cfg.PoolSize < 0 {
		return nil, errors.New("redisbroker: field PoolSize: not negative")
	}
	opts, err := Options(url)
	if err != nil {
		return nil, broker.RedactError(fmt.Errorf("redisbroker: the URL: %w", err), url)
	}
	broker.WarnInsecure(cmp.Or(cfg.Logger, slog.Default()), opts.TLSConfig, url)
	if cfg.PoolSize > 0 {
		opts.PoolSize = cfg.PoolSize
	}
	// A command that was sent and not answered may have been carried out: who repeats it is decided by the relay, which knows the order.
	opts.MaxRetries = -1
	opts.DialerRetries = 1
	opts.ContextTimeoutEnabled = true
	client := redis.NewClient(opts)
	b := &Broker{client: client, url: url, owned: true}
	if err := client.Ping(ctx).Err(); err != nil {
		return nil, errors.Join(b.hide(fmt.Errorf("redisbroker: connect: %w", err)), client.Close())
	}
	return b, nil
}

// New returns a broker over a client that the caller has made, for Sentinel or Cluster, and closes. The client should not repeat commands by itself
// (MaxRetries: -1), or entries may change their order.
func New(client redis.UniversalClient) *Broker { return &Broker{client: client} }

// Close closes the connection, if Open made it.
func (b *Broker) Close() error {
	if !b.owned {
		return nil
	}
	return b.hide(b.client.Close())
}

// hide keeps the URL's secrets out of an error; its class stays.
func (b *Broker) hide(err error) error { return broker.RedactError(err, b.url) }

// names is what a stream may be called: any bytes in principle, but what people can type.
var names = broker.TopicRules{Separator: ':', Max: 512}

// Names says what a stream may be called, for making topics by a template: "orders:{type}".
func Names() broker.TopicRules { return names }

// SinkConfig holds what may be tuned; its zero value is ready.
type SinkConfig struct {
	// Source is the CloudEvents attribute of that name. Defaults to "waybill".
	EventSource string
	// Topics says to which stream an event goes. Defaults to its Topic.
	Topics broker.Topics
	// ExistingOnly refuses to make streams: an event for one that is not there is put off.
	ExistingOnly bool
}

// Sink publishes events as entries of streams. It is safe for concurrent use.
type Sink struct {
	b     *Broker
	cfg   SinkConfig
	codec *broker.Codec
	table broker.Failures
}

// Sink returns a sink.
func (b *Broker) Sink(cfg SinkConfig) (*Sink, error) {
	codec, err := broker.NewCodec(broker.Redis, broker.CodecConfig{Source: cfg.EventSource, Topics: names.Checked(cfg.Topics)})
	if err != nil {
		return nil, err
	}
	return &Sink{b: b, cfg: cfg, codec: codec, table: Failures()}, nil
}

// StopsAtFailure implements relay.OrderedSink.
func (*Sink) StopsAtFailure() {}

// Destination implements relay.DestinationSink: streams are told apart.
func (s *Sink) Destination(ev *waybill.Event) string {
	topic, err := s.codec.Topic(ev)
	if err != nil {
		return ""
	}
	return topic
}

// Deliver implements relay.Sink.
func (s *Sink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return broker.PublishInOrder(batch, func(wave []int, results []error) { s.publish(ctx, batch, wave, results) })
}

// errNoStream is what a stream that must exist and does not is reported as.
var errNoStream = errors.New("redisbroker: there is no such stream")

// errNoAnswer is what an entry is reported as that has no id and no error.
var errNoAnswer = waybill.Unavailable(errors.New("redisbroker: no answer"))

// publish sends one pipeline. Every entry has its own answer; of those whose answer did not come, nobody knows.
func (s *Sink) publish(ctx context.Context, batch []waybill.Delivery, wave []int, results []error) {
	pipe := s.b.client.Pipeline()
	sent := make([]*redis.StringCmd, len(wave))
	encoder := s.codec.Encoder(len(wave))
	for n, i := range wave {
		m, err := encoder.Encode(&batch[i])
		if err != nil {
			results[i] = err
			continue
		}
		sent[n] = pipe.XAdd(ctx, &redis.XAddArgs{Stream: m.Topic, NoMkStream: s.cfg.ExistingOnly, Values: fields(&m)})
	}
	if pipe.Len() == 0 {
		return
	}
	_, failed := pipe.Exec(ctx)
	for n, i := range wave {
		if sent[n] == nil {
			continue
		}
		err := sent[n].Err()
		if err == nil && sent[n].Val() == "" {
			// Without a connection the client reports the pipeline as failed, and its commands as nothing. Only an entry's id is a confirmation.
			err = cmp.Or(failed, errNoAnswer)
		}
		if errors.Is(err, redis.Nil) {
			err = waybill.Unavailable(errNoStream)
		}
		if err != nil {
			results[i] = s.failure(err, &batch[i].Event)
		}
	}
}

func (s *Sink) failure(err error, ev *waybill.Event) error {
	class, _ := waybill.Classify(s.table.Classify(err))
	shown := s.b.hide(fmt.Errorf("redisbroker: event %s: %w", ev.ID, err))
	switch class {
	case waybill.ClassUnavailable:
		return waybill.Unavailable(shown)
	case waybill.ClassPermanent:
		return waybill.Permanent(shown)
	case waybill.ClassDone, waybill.ClassRetry, waybill.ClassDefer:
	}
	return shown
}

// fieldData and fieldPublishID are the fields of an entry beside attributes and headers.
const (
	fieldData      = "data"
	fieldPublishID = "publish_id"
)

// fields returns a message as the fields and values of an entry.
func fields(m *broker.Message) []any {
	values := make([]any, 0, 2*len(m.Headers)+4)
	for _, h := range m.Headers {
		values = append(values, h.Name, h.Value)
	}
	return append(values, fieldPublishID, m.PublishID, fieldData, m.Payload)
}

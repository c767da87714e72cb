package redisbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// Config configures the connection. The zero value is valid.
type Config struct {
	// PoolSize is the maximum number of connections of Open. Defaults to the
	// client's default: ten per core. New rejects it.
	PoolSize int
	// Logger receives a warning of Open if the connection is not secure.
	// Defaults to [slog.Default].
	Logger *slog.Logger
}

// Broker is a connection to Redis. It is safe for concurrent use.
type Broker struct {
	client redis.UniversalClient
	url    string // to redact its secrets in errors
	owned  bool
}

// Open connects to a server: redis://user:password@host:port/database, or
// rediss:// for TLS. With sentinels it connects to the primary that they name,
// and to its successor after a failover:
// redis://user:password@host:26379,host2:26379/database?sentinel=NAME. With
// cluster=true it finds the primary of each stream in a Redis Cluster:
// redis://user:password@host,host2?cluster=true; see [Options]. Open returns an
// error if the server is unreachable. Connections that are lost later are
// restored automatically.
func Open(ctx context.Context, url string, cfg Config) (*Broker, error) {
	if cfg.PoolSize < 0 {
		return nil, fmt.Errorf("redisbroker: Config.PoolSize: %d is negative", cfg.PoolSize)
	}
	opts, err := Options(url)
	if err != nil {
		return nil, driver.RedactError(fmt.Errorf("redisbroker: URL: %w", err), url)
	}
	driver.WarnInsecure(cmp.Or(cfg.Logger, slog.Default()), opts.TLSConfig, url)
	if cfg.PoolSize > 0 {
		opts.PoolSize = cfg.PoolSize
	}
	// A command without an answer may have been executed. Only the relay may
	// retry it, because only the relay knows the order.
	opts.MaxRetries, opts.MaxRedirects = -1, -1
	opts.DialerRetries = 1
	opts.ContextTimeoutEnabled = true
	client := redis.NewUniversalClient(opts)
	watchCluster(client)
	b := &Broker{client: client, url: url, owned: true}
	if err := reachable(ctx, client); err != nil {
		return nil, errors.Join(b.hide(fmt.Errorf("redisbroker: connect: %w", err)), client.Close())
	}
	return b, nil
}

// New returns a broker that uses the caller's client, for settings that a URL
// does not have.
// The caller closes the client. The client should not retry commands
// (MaxRetries: -1, and MaxRedirects: -1 in a cluster), because retries may
// reorder entries. New does not connect.
func New(client redis.UniversalClient, cfg Config) (*Broker, error) {
	switch {
	case client == nil:
		return nil, errors.New("redisbroker: client: nil")
	case cfg.PoolSize != 0:
		return nil, fmt.Errorf("redisbroker: Config.PoolSize: %d, but New uses the caller's client", cfg.PoolSize)
	}
	watchCluster(client)
	return &Broker{client: client}, nil
}

// Close closes the connection, if Open created it.
func (b *Broker) Close() error {
	if !b.owned {
		return nil
	}
	return b.hide(b.client.Close())
}

// hide redacts the URL's secrets in an error and keeps its class.
func (b *Broker) hide(err error) error { return driver.RedactError(err, b.url) }

// names holds the rules for stream names. Redis permits any bytes; the rules
// permit printable ASCII.
var names = broker.TopicRules{Separator: ':', Max: 512}

// Names returns the rules for stream names, for templates such as
// "orders:{type}".
func Names() broker.TopicRules { return names }

// SinkConfig configures a [Sink]. The zero value is valid.
type SinkConfig struct {
	// EventSource is the CloudEvents attribute source. Defaults to "waybill".
	EventSource string
	// Topics returns the stream of an event. Defaults to the event's Topic.
	Topics broker.Topics
	// NoCreate does not create streams: events for a missing stream are
	// deferred. By default Redis creates a stream with its first entry.
	NoCreate bool
	// Replicas is the number of replicas that must have received an event
	// before it counts as delivered (WAIT). A failover loses entries that the
	// new primary has not received. While fewer replicas answer, events are
	// deferred, and each attempt adds an entry; min-replicas-to-write of the
	// server prevents that. Defaults to 0: the primary's confirmation is
	// enough.
	Replicas int
}

// Sink publishes events as entries of streams. It is safe for concurrent use.
type Sink struct {
	b     *Broker
	cfg   SinkConfig
	codec *broker.Codec
	table driver.Failures
}

// Sink returns a sink.
func (b *Broker) Sink(cfg SinkConfig) (*Sink, error) {
	codec, err := driver.SinkCodec("redisbroker", broker.Redis, cfg.EventSource, names.Checked(cfg.Topics))
	if err != nil {
		return nil, err
	}
	if cfg.Replicas < 0 {
		return nil, fmt.Errorf("redisbroker: SinkConfig.Replicas: %d is negative", cfg.Replicas)
	}
	return &Sink{b: b, cfg: cfg, codec: codec, table: Failures()}, nil
}

// StopsAtFailure implements relay.OrderedSink.
func (*Sink) StopsAtFailure() {}

// Destination implements relay.DestinationSink: each stream is a destination.
func (s *Sink) Destination(ev *waybill.Event) string { return driver.Destination(s.codec, ev) }

// Deliver implements waybill.Sink.
func (s *Sink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return driver.PublishInOrder(batch, func(wave []int, results []error) { s.publish(ctx, batch, wave, results) })
}

// errNoStream reports a stream that must exist and does not.
var errNoStream = errors.New("redisbroker: stream does not exist")

// errNoAnswer reports an entry with neither an id nor an error.
var errNoAnswer = waybill.Unavailable(errors.New("redisbroker: no answer"))

// publish sends one pipeline, or in a cluster one to each primary. Every entry
// has its own answer; the state of entries without an answer is unknown.
func (s *Sink) publish(ctx context.Context, batch []waybill.Delivery, wave []int, results []error) {
	all := pipes{b: s.b, list: make(map[redis.UniversalClient]*pipe, 1)}
	sent, by := make([]*redis.StringCmd, len(batch)), make([]*pipe, len(batch))
	reject := func(i int, err error) {
		results[i] = s.table.EventError("redisbroker", s.b.url, &batch[i].Event, err)
	}
	for i, m := range driver.Encoded(s.codec, batch, wave, results) {
		p, err := all.of(ctx, m.Topic)
		if err != nil {
			reject(i, err)
			continue
		}
		sent[i], by[i] = p.XAdd(ctx, &redis.XAddArgs{Stream: m.Topic, NoMkStream: s.cfg.NoCreate, Values: fields(&m)}), p
	}
	all.exec(ctx, s.cfg.Replicas)
	for _, i := range wave {
		if sent[i] == nil {
			continue
		}
		if err := cmp.Or(s.refused(sent[i], by[i].failed), s.lacking(by[i].received)); err != nil {
			reject(i, err)
		}
	}
}

// refused returns why an entry has no confirmation.
func (s *Sink) refused(sent *redis.StringCmd, failed error) error {
	err := sent.Err()
	if err == nil && sent.Val() == "" {
		// Without a connection the client reports an error for the pipeline
		// and none for its commands. Only an entry's id is a confirmation.
		return cmp.Or(failed, errNoAnswer)
	}
	switch {
	case errors.Is(err, redis.Nil) && s.cfg.NoCreate:
		return waybill.Unavailable(errNoStream)
	case errors.Is(err, redis.Nil): // of sentinels that do not know the primary
		return waybill.Unavailable(err)
	}
	return err
}

// replicaPatience is how long a primary waits for its replicas. It is shorter
// than the client's default timeout.
const replicaPatience = time.Second

// lacking returns an error unless enough replicas have received everything that
// this connection has written. A primary that is replaced while it waits has no
// answer.
func (s *Sink) lacking(received *redis.Cmd) error {
	if received == nil {
		return nil
	}
	n, err := received.Int()
	switch {
	case err != nil:
		return waybill.Unavailable(fmt.Errorf("redisbroker: wait for replicas: %w", err))
	case n < s.cfg.Replicas:
		return waybill.Unavailable(fmt.Errorf("redisbroker: %d of %d replicas have received the event", n, s.cfg.Replicas))
	}
	return nil
}

// fieldData and fieldPublishID are the fields of an entry other than attributes
// and headers.
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

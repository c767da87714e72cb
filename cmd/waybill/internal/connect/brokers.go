package connect

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/kafkabroker"
	"github.com/waybillhq/waybill/broker/pulsarbroker"
	"github.com/waybillhq/waybill/broker/rabbitbroker"
	"github.com/waybillhq/waybill/broker/redisbroker"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// templated returns the topics of a template, or nil for the events' own
// topics.
func templated(names broker.TopicRules, pattern string) (broker.Topics, error) {
	if pattern == "" {
		return nil, nil
	}
	topics, err := names.Template(pattern)
	if err != nil {
		return nil, wrongTopic(err)
	}
	return topics, nil
}

// take removes this program's parameters from a URL; the rest is for the client
// library.
func take(u *url.URL, names ...string) (map[string]string, string) {
	rest, query := *u, u.Query()
	out := make(map[string]string)
	for _, name := range names {
		out[name] = query.Get(name)
		query.Del(name)
	}
	rest.RawQuery = query.Encode()
	return out, rest.String()
}

// withHosts returns a URL with all hosts of an address: a parsed [url.URL] has
// only the first.
func withHosts(u *url.URL, address settings.Secret) (*url.URL, error) {
	_, hosts, err := settings.ParseURL(address.Reveal())
	if err != nil {
		return nil, badURL("sink.url", "separate the hosts with commas", "malformed")
	}
	all := *u
	all.Host = hosts
	return &all, nil
}

// QuietRedis stops go-redis from writing to standard error, past the log and
// its scrubber. The client also returns the errors that it writes there. The
// client has one logger for the whole process and no lock around it, so the
// logger is set once.
var QuietRedis = sync.OnceFunc(func() { redis.SetLogger(silence{}) })

type silence struct{}

// Printf implements the client's logger.
func (silence) Printf(context.Context, string, ...any) {}

// RedisReplicas returns the number of replicas that must have received an event
// before it counts as delivered.
func RedisReplicas(u *url.URL) (int, error) {
	text := u.Query().Get("replicas")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxReplicas {
		return 0, badURL("sink.url", "write redis://host:26379,host2:26379/0?sentinel=NAME&replicas=1", "replicas=%s is not a number from 0 to %d", text, maxReplicas)
	}
	return n, nil
}

func openRedis(ctx context.Context, u *url.URL, cfg SinkConfig) (*Sink, error) {
	topics, err := templated(redisbroker.Names(), cfg.Topic)
	if err != nil {
		return nil, err
	}
	replicas, err := RedisReplicas(u)
	if err != nil {
		return nil, err
	}
	if u, err = withHosts(u, cfg.URL); err != nil {
		return nil, err
	}
	QuietRedis()
	given, address := take(u, "existing", "replicas")
	b, err := redisbroker.Open(ctx, address, redisbroker.Config{Logger: cfg.Logger})
	if err != nil {
		return nil, unreachable("sink.url", cfg.URL, "check that the server is running, and the user name and password", err)
	}
	s, err := b.Sink(redisbroker.SinkConfig{EventSource: cfg.EventSource, Topics: topics, NoCreate: given["existing"] == "true", Replicas: replicas})
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return &Sink{Sink: s, close: b.Close}, nil
}

func openRabbit(ctx context.Context, u *url.URL, cfg SinkConfig) (*Sink, error) {
	topics, err := templated(rabbitbroker.Names(), cfg.Topic)
	if err != nil {
		return nil, err
	}
	if u, err = withHosts(u, cfg.URL); err != nil {
		return nil, err
	}
	given, address := take(u, "create", "queues")
	b, err := rabbitbroker.Open(ctx, address, rabbitbroker.Config{Logger: cfg.Logger})
	if err != nil {
		return nil, unreachable("sink.url", cfg.URL, "check that the server is running, and the user name, password and vhost", err)
	}
	s, err := b.Sink(rabbitbroker.SinkConfig{
		EventSource: cfg.EventSource, Topics: topics, Create: given["create"] == "true", ToQueues: given["queues"] == "true",
	})
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return &Sink{Sink: s, close: b.Close}, nil
}

func openKafka(ctx context.Context, u *url.URL, cfg SinkConfig) (*Sink, error) {
	topics, err := templated(kafkabroker.Names(), cfg.Topic)
	if err != nil {
		return nil, err
	}
	if u, err = withHosts(u, cfg.URL); err != nil {
		return nil, err
	}
	given, address := take(u, "create")
	b, err := kafkabroker.Open(ctx, address, kafkabroker.Config{Create: given["create"] == "true", Logger: cfg.Logger})
	if err != nil {
		return nil, unreachable("sink.url", cfg.URL, "check that the broker is running, and the user name, password, tls and sasl", err)
	}
	s, err := b.Sink(kafkabroker.SinkConfig{EventSource: cfg.EventSource, Topics: topics})
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return &Sink{Sink: s, close: b.Close}, nil
}

func openPulsar(ctx context.Context, u *url.URL, cfg SinkConfig) (*Sink, error) {
	topics, err := templated(pulsarbroker.Names(), cfg.Topic)
	if err != nil {
		return nil, err
	}
	if u, err = withHosts(u, cfg.URL); err != nil {
		return nil, err
	}
	namespace := strings.Trim(u.Path, "/")
	u.Path = ""
	given, address := take(u, "subscriptions")
	// Silent: the client logs every step at every level, and returns relevant
	// failures as errors.
	b, err := pulsarbroker.Open(ctx, address, pulsarbroker.Config{Namespace: namespace, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, unreachable("sink.url", cfg.URL, "check that the broker is running, the token, and the path, which is tenant/namespace", err)
	}
	s, err := b.Sink(pulsarbroker.SinkConfig{EventSource: cfg.EventSource, Topics: topics, Subscriptions: list(given["subscriptions"])})
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return &Sink{Sink: s, close: b.Close}, nil
}

// list splits a comma-separated text.
func list(text string) []string {
	return slices.DeleteFunc(strings.Split(text, ","), func(word string) bool { return word == "" })
}

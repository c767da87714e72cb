package soak

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/kafkabroker"
	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/broker/rabbitbroker"
	"github.com/waybillhq/waybill/broker/redisbroker"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// consumerGroup is the group of the consumers at the broker.
const consumerGroup = "soak"

// bus is the broker, as the consumers use it and as the soak prepares it.
type bus struct {
	// source returns the source of a topic.
	source func(topic string) (broker.Source, error)
	// prepare creates the topics, and remove removes everything of the run.
	prepare, remove func(ctx context.Context) error
	// version returns the name and version of the server.
	version func(ctx context.Context) string
	close   func()
}

// shares reports whether two consumers of one topic keep the order of its
// aggregates. On the other brokers each topic has one consumer.
func shares(scheme string) bool { return scheme == "kafka" || strings.HasPrefix(scheme, "amqp") }

// sinkFor returns the address of the sink for a run: its topics are created.
func sinkFor(address, run string) (string, error) {
	u, hosts, err := settings.ParseURL(address)
	if err != nil {
		return "", fmt.Errorf("%w: the URL of the broker is malformed", ErrConfig)
	}
	query := u.Query()
	switch u.Scheme {
	case "nats", "tls":
		u.Path = "/" + run
		query.Set("create", "true")
	case "amqp", "amqps":
		query.Set("create", "true")
		query.Del("queues")
	case "redis", "rediss":
		query.Del("existing")
	case "kafka":
	default:
		return "", fmt.Errorf("%w: %w", ErrConfig, hint.New("use nats://, kafka://, amqp:// or redis://, or no --sink for a JetStream server in this process",
			"soak has no consumer for a sink %s:", u.Scheme))
	}
	u.RawQuery = query.Encode()
	u.Host = hosts
	return u.String(), nil
}

// openBus connects to the broker.
func openBus(ctx context.Context, s *spec, log *slog.Logger) (*bus, error) {
	u, err := connect.SinkAddress(s.sinkSettings())
	if err != nil {
		return nil, err
	}
	switch u.Scheme {
	case "nats", "tls":
		return openNATS(ctx, s, u, log)
	case "kafka":
		return openKafka(ctx, s, u, log)
	case "amqp", "amqps":
		return openRabbit(ctx, s, u, log)
	}
	return openRedis(ctx, s, u, log)
}

// receive is the configuration of the sources.
func receive(log *slog.Logger) broker.ReceiverConfig {
	return broker.ReceiverConfig{BackoffBase: 50 * time.Millisecond, BackoffMax: time.Second, DrainTimeout: 2 * time.Second, ReconnectMax: time.Second, Logger: log}
}

// topic returns the name of a topic at the broker.
func (s *spec) topic(name string) string { return s.Run + "." + name }

func unreachable(err error, s *spec) error {
	return fmt.Errorf("sink.url %s %w: %s", settings.NewSecret(s.Sink), connect.ErrUnreachable, settings.NewScrubber(settings.NewSecret(s.Sink)).Clean(err.Error()))
}

func openNATS(ctx context.Context, s *spec, _ *url.URL, log *slog.Logger) (*bus, error) {
	at, err := connect.JetStreamOf(s.sinkSettings())
	if err != nil {
		return nil, err
	}
	b, err := natsbroker.Open(ctx, at.Servers, natsbroker.Config{Stream: at.Stream, Create: true, Replicas: at.Replicas, Subjects: []string{s.Run + ".>"}, Logger: log})
	if err != nil {
		return nil, unreachable(err, s)
	}
	out := &bus{prepare: func(context.Context) error { return nil }, close: func() { _ = b.Close() }}
	out.source = func(topic string) (broker.Source, error) {
		return b.Source(natsbroker.SourceConfig{
			Durable: consumerGroup + "_" + topic, Subjects: []string{s.topic(topic)}, AckWait: s.Lease, Receive: receive(log),
		})
	}
	bare := func() (*nats.Conn, error) {
		servers, secure, err := natsbroker.Address(at.Servers, slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		return nats.Connect(servers, secure...)
	}
	out.remove = func(ctx context.Context) error {
		conn, err := bare()
		if err != nil {
			return err
		}
		defer conn.Close()
		js, err := jetstream.New(conn)
		if err != nil {
			return err
		}
		for _, name := range []string{s.Run, s.Run + "_dead"} {
			if err := js.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
				return err
			}
		}
		return nil
	}
	out.version = func(context.Context) string {
		conn, err := bare()
		if err != nil {
			return "NATS"
		}
		defer conn.Close()
		return "NATS " + conn.ConnectedServerVersion()
	}
	return out, nil
}

func openKafka(ctx context.Context, s *spec, u *url.URL, log *slog.Logger) (*bus, error) {
	address := connect.Client(u)
	b, err := kafkabroker.Open(ctx, address, kafkabroker.Config{Logger: log})
	if err != nil {
		return nil, unreachable(err, s)
	}
	opts, err := kafkabroker.ClientOptions(address, log)
	if err != nil {
		return nil, errors.Join(unreachable(err, s), b.Close())
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, errors.Join(unreachable(err, s), b.Close())
	}
	admin := kadm.NewClient(client)
	out := &bus{close: func() { admin.Close(); _ = b.Close() }}
	var all []string
	for _, t := range topics {
		all = append(all, s.topic(t), s.topic(t)+".dead")
	}
	out.prepare = func(ctx context.Context) error {
		made, err := admin.CreateTopics(ctx, 4, -1, nil, all...)
		if err != nil {
			return unreachable(err, s)
		}
		return made.Error()
	}
	out.remove = func(ctx context.Context) error {
		_, err := admin.DeleteGroups(ctx, s.Run)
		if _, err2 := admin.DeleteTopics(ctx, all...); err2 != nil {
			err = errors.Join(err, err2)
		}
		return err
	}
	out.version = func(ctx context.Context) string {
		versions, err := admin.ApiVersions(ctx)
		if err != nil {
			return "Kafka"
		}
		all := versions.Sorted()
		if len(all) == 0 {
			return "Kafka"
		}
		return "Kafka " + all[0].VersionGuess()
	}
	out.source = func(topic string) (broker.Source, error) {
		return b.Source(kafkabroker.SourceConfig{Group: s.Run, Topics: []string{s.topic(topic)}, SessionTimeout: 6 * time.Second, Receive: receive(log)})
	}
	return out, nil
}

func openRabbit(ctx context.Context, s *spec, u *url.URL, log *slog.Logger) (*bus, error) {
	address := connect.Client(u)
	b, err := rabbitbroker.Open(ctx, address, rabbitbroker.Config{Logger: log})
	if err != nil {
		return nil, unreachable(err, s)
	}
	out := &bus{close: func() { _ = b.Close() }}
	queue := func(topic string) string { return s.topic(topic) + ".queue" }
	out.prepare = func(ctx context.Context) error {
		return s.onRabbit(ctx, address, func(_ *amqp.Connection, ch *amqp.Channel) error {
			for _, t := range topics {
				if err := ch.ExchangeDeclare(s.topic(t), "topic", true, false, false, false, nil); err != nil {
					return err
				}
			}
			return nil
		})
	}
	out.remove = func(ctx context.Context) error {
		return s.onRabbit(ctx, address, func(_ *amqp.Connection, ch *amqp.Channel) error {
			for _, t := range topics {
				_, err := ch.QueueDelete(queue(t), false, false, false)
				_, err2 := ch.QueueDelete(queue(t)+".dead", false, false, false)
				if err := errors.Join(err, err2, ch.ExchangeDelete(s.topic(t), false, false)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	out.version = func(ctx context.Context) string {
		version := ""
		_ = s.onRabbit(ctx, address, func(conn *amqp.Connection, _ *amqp.Channel) error { // without a version, the name is enough
			version, _ = conn.Properties["version"].(string)
			return nil
		})
		return strings.TrimSpace("RabbitMQ " + version)
	}
	out.source = func(topic string) (broker.Source, error) {
		return b.Source(rabbitbroker.SourceConfig{Queue: queue(topic), Bind: []rabbitbroker.Binding{{Exchange: s.topic(topic), Key: "#"}}, Receive: receive(log)})
	}
	return out, nil
}

// onRabbit runs fn on a connection of its own.
func (s *spec) onRabbit(ctx context.Context, address string, fn func(conn *amqp.Connection, ch *amqp.Channel) error) error {
	dial, err := rabbitbroker.Dialer(address)
	if err != nil {
		return unreachable(err, s)
	}
	conn, err := dial(ctx, amqp.Config{Dial: amqp.DefaultDial(connectTimeout), Properties: amqp.Table{"connection_name": "waybill soak"}})
	if err != nil {
		return unreachable(err, s)
	}
	ch, err := conn.Channel()
	if err == nil {
		err = fn(conn, ch)
	}
	return errors.Join(err, conn.Close())
}

func openRedis(ctx context.Context, s *spec, u *url.URL, log *slog.Logger) (*bus, error) {
	connect.QuietRedis()
	address := connect.Client(u)
	b, err := redisbroker.Open(ctx, address, redisbroker.Config{Logger: log})
	if err != nil {
		return nil, unreachable(err, s)
	}
	opts, err := redisbroker.Options(address)
	if err != nil {
		return nil, errors.Join(unreachable(err, s), b.Close())
	}
	client := redis.NewUniversalClient(opts)
	out := &bus{prepare: func(context.Context) error { return nil }, close: func() { _ = errors.Join(client.Close(), b.Close()) }}
	out.remove = func(ctx context.Context) error {
		for _, t := range topics {
			// In a cluster the two may be at different nodes.
			for _, stream := range []string{s.topic(t), s.topic(t) + ":dead"} {
				if err := client.Del(ctx, stream).Err(); err != nil {
					return err
				}
			}
		}
		return nil
	}
	out.version = func(ctx context.Context) string {
		text, err := client.Info(ctx, "server").Result()
		if err != nil {
			return "Redis"
		}
		_, rest, _ := strings.Cut(text, "redis_version:")
		version, _, _ := strings.Cut(rest, "\r\n")
		return strings.TrimSpace("Redis " + version)
	}
	out.source = func(topic string) (broker.Source, error) {
		return b.Source(redisbroker.SourceConfig{
			Group: consumerGroup, Streams: []string{s.topic(topic)}, Consumer: s.Name + "-" + topic, ClaimIdle: 2 * s.Lease, DeleteAcked: true, Receive: receive(log),
		})
	}
	return out, nil
}

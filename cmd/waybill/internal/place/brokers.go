package place

import (
	"context"
	"errors"
	"net/url"

	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/rabbitbroker"
	"github.com/waybillhq/waybill/broker/redisbroker"
)

// templated returns the topics that a template means; the events' own without one.
func templated(names broker.Names, pattern string) (broker.Topics, error) {
	if pattern == "" {
		return nil, nil
	}
	topics, err := names.Template(pattern)
	if err != nil {
		return nil, wrongTopic(err)
	}
	return topics, nil
}

// take takes parameters that are ours out of a URL; what is left is the client's.
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

func openRedis(ctx context.Context, u *url.URL, cfg SinkConfig) (*Sink, error) {
	topics, err := templated(redisbroker.Names(), cfg.Topic)
	if err != nil {
		return nil, err
	}
	given, address := take(u, "existing")
	b, err := redisbroker.Open(ctx, address, redisbroker.Config{})
	if err != nil {
		return nil, unreachable("sink.url", cfg.URL, "is the server running, and are name and password right?", err)
	}
	s, err := b.Sink(redisbroker.SinkConfig{Source: cfg.Source, Topics: topics, ExistingOnly: given["existing"] == "true"})
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
	given, address := take(u, "declare", "queues")
	b, err := rabbitbroker.Open(ctx, address, rabbitbroker.Config{})
	if err != nil {
		return nil, unreachable("sink.url", cfg.URL, "is the server running, and are name, password and vhost right?", err)
	}
	s, err := b.Sink(rabbitbroker.SinkConfig{
		Source: cfg.Source, Topics: topics, Declare: given["declare"] == "true", ToQueues: given["queues"] == "true",
	})
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return &Sink{Sink: s, close: b.Close}, nil
}

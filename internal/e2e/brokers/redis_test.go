//go:build linux || darwin

package brokers_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/redisbroker"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/relay"
)

func redisStand() stand {
	return stand{
		name: "redis", timeout: time.Second, start: startPrivate(testserver.RedisName), shared: testserver.Redis,
		place: func(t *testing.T, address string, _ victim) place {
			t.Helper()
			p := redisPlace{address, "flow:" + waybill.NewID().String()}
			t.Cleanup(func() {
				if c, err := p.client(); err == nil {
					_ = c.Del(context.WithoutCancel(t.Context()), p.name).Err()
					_ = c.Close()
				}
			})
			return p
		},
	}
}

type redisPlace struct{ address, name string }

func (p redisPlace) topic() string { return p.name }

func (p redisPlace) sink(ctx context.Context, via *proxy) (relay.DestinationSink, func(), error) {
	b, err := redisbroker.Open(ctx, via.instead(p.address)+"?read_timeout=1s&dial_timeout=1s", redisbroker.Config{})
	if err != nil {
		return nil, nil, err
	}
	s, err := b.Sink(redisbroker.SinkConfig{})
	return s, func() { _ = b.Close() }, err
}

func (p redisPlace) source(ctx context.Context, cfg broker.ReceiverConfig) (broker.Source, func(), error) {
	b, err := redisbroker.Open(ctx, p.address, redisbroker.Config{})
	if err != nil {
		return nil, nil, err
	}
	s, err := b.Source(redisbroker.SourceConfig{Group: "flow", Consumer: "only", Streams: []string{p.name}, Receive: cfg})
	return s, func() { _ = b.Close() }, err
}

func (p redisPlace) client() (*redis.Client, error) {
	opts, err := redis.ParseURL(p.address)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(opts), nil
}

func (p redisPlace) read(ctx context.Context) ([][]byte, error) {
	c, err := p.client()
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	var found [][]byte
	for from := "-"; ; {
		entries, err := c.XRangeN(ctx, p.name, from, "+", 1000).Result()
		if err != nil || len(entries) == 0 {
			return found, err
		}
		for _, e := range entries {
			found, from = append(found, []byte(fmt.Sprint(e.Values["data"]))), "("+e.ID
		}
	}
}

package doctor

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/waybillhq/waybill/broker/redisbroker"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
)

type redisProbe struct{ client *redis.Client }

func (r *redisProbe) close() { _ = r.client.Close() }

func dialRedis(ctx context.Context, u *url.URL) (probe, error) {
	connect.QuietRedis()
	opts, err := redisbroker.Options(connect.Client(u))
	if err != nil { // err may quote the URL
		return nil, errors.New("rejected by Redis's client")
	}
	client := redis.NewClient(opts)
	if err := client.Ping(ctx).Err(); err != nil {
		_ = client.Close()
		return nil, err
	}
	return &redisProbe{client}, nil
}

func redisChecks() []Check {
	return []Check{
		{Name: "redis persistence", For: redisSink, Looks: "`appendonly`, `appendfsync`", Wants: "yes, and always; everysec loses a second", run: redisPersistence},
		{Name: "redis eviction", For: redisSink, Looks: "`maxmemory-policy`", Wants: "noeviction; other policies may evict streams", run: redisEviction},
	}
}

// redisSetting reads a setting of the server. Managed servers and restricted
// accounts do not permit it.
func (p *patient) redisSetting(ctx context.Context, name string) (string, error) {
	r, ok := p.sink.(*redisProbe)
	if !ok {
		return "", errors.New("no connection")
	}
	all, err := r.client.ConfigGet(ctx, name).Result()
	if err != nil {
		return "", err
	}
	value, ok := all[name]
	if !ok {
		return "", errors.New("the server does not report " + name)
	}
	return value, nil
}

func redisPersistence(ctx context.Context, p *patient) (Finding, error) {
	on, err := p.redisSetting(ctx, "appendonly")
	if err != nil {
		return Finding{}, err
	}
	sync, err := p.redisSetting(ctx, "appendfsync")
	switch {
	case err != nil:
		return Finding{}, err
	case on != "yes":
		return fail("redis-cli CONFIG SET appendonly yes; redis-cli CONFIG REWRITE", "no append-only file: a crash loses all events since the last snapshot"), nil
	case sync == "no":
		return fail("redis-cli CONFIG SET appendfsync always; redis-cli CONFIG REWRITE", "appendfsync is no: a crash loses events that the operating system has not written"), nil
	case sync != "always":
		return warn("redis-cli CONFIG SET appendfsync always; redis-cli CONFIG REWRITE", "appendfsync is %s: a crash loses about a second of events", sync), nil
	}
	return good("accepted events are on disk"), nil
}

func redisEviction(ctx context.Context, p *patient) (Finding, error) {
	policy, err := p.redisSetting(ctx, "maxmemory-policy")
	if err != nil {
		return Finding{}, err
	}
	const advice = "redis-cli CONFIG SET maxmemory-policy noeviction; redis-cli CONFIG REWRITE"
	switch {
	case strings.HasPrefix(policy, "allkeys"):
		return fail(advice, "maxmemory-policy is %s: a full server evicts whole streams", policy), nil
	case policy != "noeviction":
		return warn(advice, "maxmemory-policy is %s: a full server evicts streams with a time to live", policy), nil
	}
	return good("maxmemory-policy is noeviction"), nil
}

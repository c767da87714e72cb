package doctor

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/waybillhq/waybill/broker/redisbroker"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
)

type redisProbe struct {
	client redis.UniversalClient
	// servers are the server, or the primaries of a cluster.
	servers []redis.UniversalClient
	// replicas is the number that sink.url requires.
	replicas int
}

func (r *redisProbe) close() { _ = r.client.Close() }

func dialRedis(ctx context.Context, u *url.URL) (probe, error) {
	connect.QuietRedis()
	replicas, err := connect.RedisReplicas(u)
	if err != nil {
		return nil, err
	}
	opts, err := redisbroker.Options(connect.Client(u))
	if err != nil { // err may quote the URL
		return nil, errors.New("rejected by Redis's client")
	}
	client := redis.NewUniversalClient(opts)
	servers, err := redisServers(ctx, client)
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	return &redisProbe{client, servers, replicas}, nil
}

// redisServers returns the server of a client, or the primaries of a cluster.
func redisServers(ctx context.Context, client redis.UniversalClient) ([]redis.UniversalClient, error) {
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return []redis.UniversalClient{client}, client.Ping(ctx).Err()
	}
	var mu sync.Mutex
	var primaries []*redis.Client
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, server *redis.Client) error {
		mu.Lock()
		primaries = append(primaries, server)
		mu.Unlock()
		return server.Ping(ctx).Err()
	})
	slices.SortFunc(primaries, func(a, b *redis.Client) int { return strings.Compare(a.Options().Addr, b.Options().Addr) })
	var all []redis.UniversalClient
	for _, server := range primaries {
		all = append(all, server)
	}
	return all, err
}

// onRedis runs a check on every server, until one fails.
func onRedis(check func(ctx context.Context, server redis.UniversalClient, replicas int) (Finding, error)) func(context.Context, *patient) (Finding, error) {
	return func(ctx context.Context, p *patient) (Finding, error) {
		r, ok := p.sink.(*redisProbe)
		if !ok {
			return Finding{}, errors.New("no connection")
		}
		var worst Finding
		for _, server := range r.servers {
			f, err := check(ctx, server, r.replicas)
			if err != nil || f.Status == Fail {
				return f, err
			}
			if worst.Status == OK || worst == (Finding{}) {
				worst = f
			}
		}
		return worst, nil
	}
}

func redisChecks() []Check {
	return []Check{
		{Name: "redis persistence", For: redisSink, Looks: "`appendonly`, `appendfsync`", Wants: "yes, and always; everysec loses a second", run: onRedis(redisPersistence)},
		{Name: "redis eviction", For: redisSink, Looks: "`maxmemory-policy`", Wants: "noeviction; other policies may evict streams", run: onRedis(redisEviction)},
		{
			Name: "redis replication", For: redisSink, Looks: "`replicas` of `sink.url`, `connected_slaves`, `min-replicas-to-write`",
			Wants: "replicas=1 where replicas exist; otherwise a failover loses accepted events", run: onRedis(redisReplication),
		},
	}
}

// redisSetting reads a setting of the server. Managed servers and restricted
// accounts do not permit it.
func redisSetting(ctx context.Context, server redis.UniversalClient, name string) (string, error) {
	all, err := server.ConfigGet(ctx, name).Result()
	if err != nil {
		return "", err
	}
	value, ok := all[name]
	if !ok {
		return "", errors.New("the server does not report " + name)
	}
	return value, nil
}

func redisPersistence(ctx context.Context, server redis.UniversalClient, _ int) (Finding, error) {
	on, err := redisSetting(ctx, server, "appendonly")
	if err != nil {
		return Finding{}, err
	}
	flush, err := redisSetting(ctx, server, "appendfsync")
	switch {
	case err != nil:
		return Finding{}, err
	case on != "yes":
		return fail("redis-cli CONFIG SET appendonly yes; redis-cli CONFIG REWRITE", "no append-only file: a crash loses all events since the last snapshot"), nil
	case flush == "no":
		return fail("redis-cli CONFIG SET appendfsync always; redis-cli CONFIG REWRITE", "appendfsync is no: a crash loses events that the operating system has not written"), nil
	case flush != "always":
		return warn("redis-cli CONFIG SET appendfsync always; redis-cli CONFIG REWRITE", "appendfsync is %s: a crash loses about a second of events", flush), nil
	}
	return good("accepted events are on disk"), nil
}

func redisEviction(ctx context.Context, server redis.UniversalClient, _ int) (Finding, error) {
	policy, err := redisSetting(ctx, server, "maxmemory-policy")
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

func redisReplication(ctx context.Context, server redis.UniversalClient, replicas int) (Finding, error) {
	text, err := server.Info(ctx, "replication").Result()
	if err != nil {
		return Finding{}, err
	}
	_, rest, _ := strings.Cut(text, "\nconnected_slaves:")
	number, _, _ := strings.Cut(rest, "\r")
	connected, err := strconv.Atoi(number)
	if err != nil {
		return Finding{}, errors.New("the server does not report connected_slaves")
	}
	switch {
	case connected < replicas:
		return fail("redis-cli INFO replication", "sink.url requires %d replicas, %d are connected: no event counts as delivered", replicas, connected), nil
	case replicas > 0:
		return good("events wait for %d of %d replicas", replicas, connected), nil
	case connected == 0:
		return good("no replicas"), nil
	}
	least, err := redisSetting(ctx, server, "min-replicas-to-write")
	switch {
	case err == nil && least != "0":
		return warn("add replicas=1 to sink.url", "a failover loses accepted events that no replica has received: those of min-replicas-max-lag seconds at most"), nil
	default: // without the right to read settings, too
		return warn("add replicas=1 to sink.url", "a failover loses accepted events that no replica has received"), nil
	}
}

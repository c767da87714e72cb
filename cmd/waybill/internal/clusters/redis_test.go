//go:build unix

package clusters_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybillhq/waybill/broker/redisbroker"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/soak"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
)

// redisServers is the number of servers beside the sentinels.
const redisServers = 3

// TestRedisSentinelKilled: the primary is killed, sentinels promote a replica.
// Every promise is kept, because events wait for a replica.
func TestRedisSentinelKilled(t *testing.T) {
	failures(t)
	r := newRedisSentinels(t)
	runBrokers(t, &r.brokers, r.url+"&replicas=1")
}

// TestRedisSentinelFrozen: the primary hangs, sentinels promote a replica, and
// the old primary continues beside it until the sentinels demote it. Every
// promise is kept, because events wait for a replica.
func TestRedisSentinelFrozen(t *testing.T) {
	failures(t)
	r := newRedisSentinels(t)
	r.frozen = true
	runBrokers(t, &r.brokers, r.url+"&replicas=1")
}

// TestRedisSentinelBehind: the replicas receive nothing for a while, then the
// primary is killed. Every promise is kept, because events wait for a replica.
func TestRedisSentinelBehind(t *testing.T) {
	failures(t)
	r := newRedisSentinels(t)
	r.fault = r.killAhead
	runBrokers(t, &r.brokers, r.url+"&replicas=1")
}

// TestRedisSentinelUnconfirmed is TestRedisSentinelBehind where events wait for
// no replica: what the primary has confirmed is lost with it.
func TestRedisSentinelUnconfirmed(t *testing.T) {
	failures(t)
	r := newRedisSentinels(t)
	r.fault, r.unconfirmed = r.killAhead, true
	runBrokers(t, &r.brokers, r.url, soak.Delivered, soak.Ordered, soak.Once)
}

// redisCluster is a set of Redis servers of which some are replicas of others.
type redisCluster struct {
	brokers
	url string
	// key is a stream that no consumer of the soak reads, on the server that
	// the next failure hits.
	key string
	// peers returns the replicas of a server.
	peers func(ctx context.Context, i int) ([]manage.Server, error)
	// unconfirmed: events wait for no replica.
	unconfirmed bool
}

func newRedisSentinels(t *testing.T) *redisCluster {
	t.Helper()
	connect.QuietRedis()
	r := &redisCluster{brokers: brokers{Cluster: private.RedisSentinels(t, redisServers)}, key: "served"}
	r.leader, r.publish = r.leads, r.published
	r.peers = func(_ context.Context, i int) ([]manage.Server, error) {
		return slices.Delete(slices.Clone(r.Servers[:redisServers]), i, i+1), nil
	}
	var hosts []string
	for _, s := range r.Servers[redisServers:] {
		hosts = append(hosts, fmt.Sprintf("127.0.0.1:%d", s.Port))
	}
	r.url = "redis://" + strings.Join(hosts, ",") + "/0?sentinel=" + manage.RedisPrimary
	return r
}

// leads returns the primary that a majority of the sentinels name.
func (r *redisCluster) leads(ctx context.Context, _ int) (name string, err error) {
	votes := make(map[string]int)
	for _, s := range r.Servers[redisServers:] {
		client := redis.NewSentinelClient(&redis.Options{Addr: address(s), MaxRetries: -1})
		at, err := client.GetMasterAddrByName(ctx, manage.RedisPrimary).Result()
		if err := errors.Join(err, client.Close()); err != nil {
			return "", err
		}
		votes[strings.Join(at, ":")]++
	}
	for _, s := range r.Servers[:redisServers] {
		if votes[address(s)] > len(r.Servers[redisServers:])/2 {
			return s.Name, nil
		}
	}
	return "", fmt.Errorf("the sentinels name %v", votes)
}

func address(s manage.Server) string { return fmt.Sprintf("127.0.0.1:%d", s.Port) }

// published adds an entry to a stream.
func (r *redisCluster) published(ctx context.Context) error {
	opts, err := redisbroker.Options(r.url)
	if err != nil {
		return err
	}
	opts.MaxRetries, opts.DialTimeout, opts.ReadTimeout = -1, time.Second, 2*time.Second
	client := redis.NewUniversalClient(opts)
	defer client.Close() //nolint:errcheck // its server may hang
	if cluster, ok := client.(*redis.ClusterClient); ok {
		if client, err = cluster.MasterForKey(ctx, r.key); err != nil {
			return err
		}
	}
	pipe := client.Pipeline()
	pipe.XAdd(ctx, &redis.XAddArgs{Stream: r.key, Values: []string{"a", "b"}})
	replicas := 1
	if r.unconfirmed {
		replicas = 0
	}
	received := pipe.Do(ctx, "WAIT", replicas, time.Second.Milliseconds())
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	if n, err := received.Int(); err != nil || n < replicas {
		return fmt.Errorf("%d replicas: %w", n, errors.Join(err, errBehind))
	}
	return nil
}

var errBehind = errors.New("the replicas do not receive what the primary has")

// killAhead kills the primary when it has entries that no replica has.
func (r *redisCluster) killAhead(ctx context.Context, i int) error {
	replicas, err := r.peers(ctx, i)
	if err != nil {
		return err
	}
	for _, s := range replicas {
		if err := s.Freeze(ctx); err != nil {
			return err
		}
	}
	// A replica that hangs would still find in its connection what the primary
	// has written.
	client := redis.NewClient(&redis.Options{Addr: address(r.Servers[i]), MaxRetries: -1})
	err = client.ClientKillByFilter(ctx, "TYPE", "replica").Err()
	if err := errors.Join(err, client.Close()); err != nil {
		return err
	}
	if err := r.ahead(ctx); err != nil {
		return err
	}
	if err := r.Servers[i].Kill(ctx); err != nil {
		return err
	}
	for _, s := range replicas {
		if err := s.Thaw(ctx); err != nil {
			return err
		}
	}
	return nil
}

// ahead returns when the primary has entries that no replica has. Without
// confirmation of a replica, events arrive all the same.
func (r *redisCluster) ahead(ctx context.Context) error {
	if r.unconfirmed {
		return arrive(ctx, r)
	}
	for range 2 {
		if err := r.published(ctx); !errors.Is(err, errBehind) {
			return fmt.Errorf("a primary without replicas: %w", err)
		}
	}
	return nil
}

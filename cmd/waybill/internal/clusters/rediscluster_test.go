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

// TestRedisClusterKilled: the primary of a stream is killed, one of its
// replicas takes its slots over. Every promise is kept, because events wait for
// a replica.
func TestRedisClusterKilled(t *testing.T) {
	failures(t)
	r := newRedisSlots(t)
	runBrokers(t, &r.brokers, r.url+"&replicas=1")
}

// TestRedisClusterFrozen: the primary of a stream hangs, one of its replicas
// takes its slots over, and the old primary continues beside it until it knows.
// Every promise is kept, because events wait for a replica.
func TestRedisClusterFrozen(t *testing.T) {
	failures(t)
	r := newRedisSlots(t)
	r.frozen = true
	runBrokers(t, &r.brokers, r.url+"&replicas=1")
}

// TestRedisClusterBehind: the replicas receive nothing for a while, then the
// primary of a stream is killed. Every promise is kept, because events wait for
// a replica.
func TestRedisClusterBehind(t *testing.T) {
	failures(t)
	r := newRedisSlots(t)
	r.fault = r.killAhead
	runBrokers(t, &r.brokers, r.url+"&replicas=1")
}

// TestRedisClusterUnconfirmed is TestRedisClusterBehind where events wait for
// no replica: what the primary has confirmed is lost with it.
func TestRedisClusterUnconfirmed(t *testing.T) {
	failures(t)
	r := newRedisSlots(t)
	r.fault, r.unconfirmed = r.killAhead, true
	runBrokers(t, &r.brokers, r.url, soak.Delivered, soak.Ordered, soak.Once)
}

// newRedisSlots returns a Redis Cluster: three primaries with two replicas
// each, so that a new primary has a replica for which events can wait.
func newRedisSlots(t *testing.T) *redisCluster {
	t.Helper()
	connect.QuietRedis()
	r := &redisCluster{brokers: brokers{Cluster: private.RedisCluster(t, 3, 2)}}
	r.leader, r.publish, r.peers = r.leadsStream, r.published, r.replicasOf
	var hosts []string
	for _, s := range r.Servers {
		hosts = append(hosts, address(s))
	}
	r.url = "redis://" + strings.Join(hosts, ",") + "/?cluster=true"
	return r
}

// leadsStream returns the primary of one of the soak's streams.
func (r *redisCluster) leadsStream(ctx context.Context, turn int) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var last error
	err = until(ctx, func(ctx context.Context) bool {
		name, last = r.leadsStreamNow(ctx, turn)
		return last == nil
	})
	return name, errors.Join(err, last)
}

func (r *redisCluster) leadsStreamNow(ctx context.Context, turn int) (string, error) {
	opts, err := redisbroker.Options(r.url)
	if err != nil {
		return "", err
	}
	cluster := redis.NewClusterClient(opts.Cluster())
	defer cluster.Close() //nolint:errcheck // it has read what it needs
	var streams []string
	for _, s := range r.Servers {
		found, err := onServer(s, func(client *redis.Client) ([]string, error) { return client.Keys(ctx, "soak_*").Result() })
		if err != nil {
			return "", err
		}
		streams = append(streams, found...) // a replica has those of its primary
	}
	streams = slices.DeleteFunc(streams, func(name string) bool { return strings.HasSuffix(name, ":dead") })
	slices.Sort(streams)
	if streams = slices.Compact(streams); len(streams) == 0 {
		return "", errors.New("the soak has no stream")
	}
	stream := streams[turn%len(streams)]
	r.key = "served{" + stream + "}" // in the same slot
	primary, err := cluster.MasterForKey(ctx, stream)
	if err != nil {
		return "", err
	}
	for _, s := range r.Servers {
		if address(s) == primary.Options().Addr {
			return s.Name, nil
		}
	}
	return "", fmt.Errorf("%s is no server of the test", primary.Options().Addr)
}

// replicasOf returns the replicas that follow a server.
func (r *redisCluster) replicasOf(ctx context.Context, i int) (out []manage.Server, err error) {
	for _, s := range r.Servers {
		state, err := onServer(s, func(client *redis.Client) (string, error) { return client.Info(ctx, "replication").Result() })
		if err != nil {
			return nil, err
		}
		if strings.Contains(state, fmt.Sprintf("\r\nmaster_port:%d\r\n", r.Servers[i].Port)) {
			out = append(out, s)
		}
	}
	return out, nil
}

// onServer asks one server.
func onServer[A any](s manage.Server, ask func(client *redis.Client) (A, error)) (A, error) {
	client := redis.NewClient(&redis.Options{Addr: address(s), MaxRetries: -1})
	answer, err := ask(client)
	return answer, errors.Join(err, client.Close())
}

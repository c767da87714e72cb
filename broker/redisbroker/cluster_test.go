//go:build linux || darwin

package redisbroker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/redisbroker"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
	"github.com/waybillhq/waybill/relay"
)

// slots is a Redis Cluster of three primaries with one replica each.
type slots struct {
	*manage.Cluster
	url    string
	client *redis.ClusterClient
}

func newSlots(t *testing.T) *slots {
	t.Helper()
	testserver.Redis(t) // it is skipped, or fails, as the others
	s := &slots{Cluster: private.RedisCluster(t, 3, 1)}
	var hosts []string
	for _, one := range s.Servers {
		hosts = append(hosts, fmt.Sprintf("127.0.0.1:%d", one.Port))
	}
	s.url = "redis://" + strings.Join(hosts, ",") + "/?cluster=true"
	s.client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: hosts})
	t.Cleanup(func() { _ = s.client.Close() })
	return s
}

// primary returns the server that has a stream.
func (s *slots) primary(t *testing.T, stream string) manage.Server {
	t.Helper()
	at, err := s.client.MasterForKey(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range s.Servers {
		if at.Options().Addr == fmt.Sprintf("127.0.0.1:%d", one.Port) {
			return one
		}
	}
	t.Fatalf("no server has the address %s", at.Options().Addr)
	return manage.Server{}
}

// replica returns the replica of a primary.
func (s *slots) replica(t *testing.T, primary manage.Server) manage.Server {
	t.Helper()
	for _, one := range s.Servers {
		state, err := plain(t, one.DSN).Info(t.Context(), "replication").Result()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(state, fmt.Sprintf("\r\nmaster_port:%d\r\n", primary.Port)) {
			return one
		}
	}
	t.Fatalf("%s has no replica", primary.Name)
	return manage.Server{}
}

// apart returns streams of which each primary has one.
func (s *slots) apart(t *testing.T) []string {
	t.Helper()
	names := make(map[string]string)
	for i := 0; len(names) < 3; i++ {
		stream := fmt.Sprintf("orders:%d", i)
		names[s.primary(t, stream).Name] = stream
	}
	var out []string
	for _, stream := range names {
		out = append(out, stream)
	}
	return out
}

func toStreams(streams ...string) []waybill.Delivery {
	var batch []waybill.Delivery
	for _, stream := range streams {
		ev := waybill.NewEvent("x", 1)
		ev.Topic = stream
		batch = append(batch, waybill.Delivery{Event: eventfill.Defaults(ev), Attempt: 1})
	}
	return batch
}

// In a cluster each event goes to the primary of its stream, waits for that
// primary's replicas, and for no others.
func TestClusterReplicas(t *testing.T) {
	s := newSlots(t)
	out := sink(t, open(t, s.url), redisbroker.SinkConfig{Replicas: 1})
	streams := s.apart(t)
	for i, err := range out.Deliver(t.Context(), toStreams(streams...)) {
		if n := s.client.XLen(t.Context(), streams[i]).Val(); err != nil || n != 1 {
			t.Errorf("stream %s: %d entries, %v", streams[i], n, err)
		}
	}
	slow := s.replica(t, s.primary(t, streams[1]))
	if err := slow.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := out.Deliver(t.Context(), toStreams(streams...))
	if err := slow.Thaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, err := range got {
		if class, _ := waybill.Classify(err); (i == 1) != (err != nil) || err != nil && class != waybill.ClassUnavailable {
			t.Errorf("stream %d without the replica of stream 1: class %v, %v", i, class, err)
		}
	}
}

// A sink finds the primary that replaces a dead one, although no node has told
// it.
func TestClusterFailover(t *testing.T) {
	s := newSlots(t)
	out := sink(t, open(t, s.url), redisbroker.SinkConfig{})
	const stream = "orders"
	if err := errors.Join(out.Deliver(t.Context(), toStreams(stream))...); err != nil {
		t.Fatal(err)
	}
	if err := s.primary(t, stream).Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := errors.Join(out.Deliver(ctx, toStreams(stream))...)
		if err == nil {
			return
		}
		if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable {
			t.Fatalf("class %v: %v", class, err)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the sink does not find the new primary: %v", err)
		case <-tick.C:
		}
	}
}

// A source reads streams of one slot.
func TestClusterSource(t *testing.T) {
	s := newSlots(t)
	b := open(t, s.url)
	run := func(ctx context.Context, streams ...string) error {
		source, err := b.Source(redisbroker.SourceConfig{Group: "g", Streams: streams})
		if err != nil {
			t.Fatal(err)
		}
		return source.Run(ctx, relay.SinkFunc(func(context.Context, waybill.Delivery) error { return nil }))
	}
	streams := s.apart(t)
	if err := run(t.Context(), streams...); err == nil || !strings.Contains(err.Error(), "different hash slots") {
		t.Errorf("streams of three primaries: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	out := sink(t, b, redisbroker.SinkConfig{})
	if err := errors.Join(out.Deliver(ctx, toStreams("orders:{eu}", "refunds:{eu}"))...); err != nil {
		t.Fatal(err)
	}
	source, err := b.Source(redisbroker.SourceConfig{Group: "g", Streams: []string{"orders:{eu}", "refunds:{eu}"}})
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan string, 2)
	done := make(chan error, 1)
	go func() {
		done <- source.Run(ctx, relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
			received <- d.Topic
			return nil
		}))
	}()
	<-received
	<-received
	stop()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

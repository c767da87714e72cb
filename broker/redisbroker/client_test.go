package redisbroker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/redisbroker"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testserver"
)

// A URL with sentinel has the sentinels as hosts, and two accounts.
func TestOptions(t *testing.T) {
	opts, err := redisbroker.Options("redis://u:p@a,b:1,[::1]/3?sentinel=prime&sentinel_username=su&sentinel_password=sp&dial_timeout=2s")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(opts.Addrs, " "); got != "a:26379 b:1 [::1]:26379" {
		t.Errorf("the addresses are %s", got)
	}
	if opts.MasterName != "prime" || opts.Username != "u" || opts.Password != "p" || opts.SentinelUsername != "su" || opts.SentinelPassword != "sp" ||
		opts.DB != 3 || opts.DialTimeout != 2*time.Second {
		t.Errorf("the options are %+v", opts)
	}
	opts, err = redisbroker.Options("redis://u:p@a,b:1?cluster=true")
	if err != nil || !opts.IsClusterMode || strings.Join(opts.Addrs, " ") != "a:6379 b:1" {
		t.Errorf("a cluster: %+v, %v", opts, err)
	}
	opts, err = redisbroker.Options("rediss://a,b?sentinel=prime&insecure=true")
	if err != nil || opts.TLSConfig == nil || opts.TLSConfig.ServerName != "" || !opts.TLSConfig.InsecureSkipVerify {
		t.Errorf("TLS with sentinels: %+v, %v", opts, err)
	}
	opts, err = redisbroker.Options("rediss://a")
	if err != nil || opts.TLSConfig == nil || opts.TLSConfig.ServerName != "a" || opts.Addrs[0] != "a:6379" {
		t.Errorf("TLS with one host: %+v, %v", opts, err)
	}
	opts, err = redisbroker.Options("unix://u:p@/run/redis.sock?db=2")
	if err != nil || strings.Join(opts.Addrs, " ") != "/run/redis.sock" || opts.Username != "u" || opts.DB != 2 {
		t.Errorf("a Unix socket: %+v, %v", opts, err)
	}
	for text, want := range map[string]string{
		"unix:///run/redis.sock?sentinel=prime": "a Unix socket has no sentinels",
		"unix:///run/redis.sock?cluster=true":   "a Unix socket has no cluster",
		"redis://a,b":                           "several hosts require the parameter sentinel or cluster",
		"redis://a?cluster=yes":                 "parameter cluster: want true or false",
		"redis://a/1?cluster=true":              "a Redis Cluster has no database but 0",
		"redis://a?cluster=true&sentinel=prime": "parameters sentinel and cluster exclude each other",
		"redis://a,b?sentinel=":                 "parameter sentinel: want the name of the primary",
		"redis://a?sentinel_password=sp":        "parameters sentinel_username and sentinel_password require the parameter sentinel",
		"redis://a,b c?sentinel=prime":          `host "b c" is malformed`,
	} {
		if _, err := redisbroker.Options(text); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// Without the replicas that a sink waits for, no event is delivered, and none
// is rejected.
func TestReplicasAreMissing(t *testing.T) {
	address := testserver.Redis(t)
	stream := "replicas-" + waybill.NewID().String()
	s := sink(t, open(t, address), redisbroker.SinkConfig{Topics: broker.OneTopic(stream), Replicas: 1})
	d := waybill.Delivery{Event: eventfill.Defaults(waybill.NewEvent("x", 1)), Attempt: 1}
	err := s.Deliver(t.Context(), []waybill.Delivery{d})[0]
	if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable || !strings.Contains(err.Error(), "0 of 1 replicas have received the event") {
		t.Errorf("class %v: %v", class, err)
	}
	client := plain(t, address)
	if n, err := client.XLen(t.Context(), stream).Result(); err != nil || n != 1 {
		t.Errorf("%d entries, %v", n, err)
	}
}

// A primary that becomes a replica while it waits for its replicas has no
// answer: the event is not delivered, and not rejected.
func TestAWaitIsCutOff(t *testing.T) {
	address := testserver.Redis(t)
	stream := "replicas-" + waybill.NewID().String()
	s := sink(t, open(t, address), redisbroker.SinkConfig{Topics: broker.OneTopic(stream), Replicas: 1})
	client := plain(t, address)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil { // only connections that wait can be unblocked
			unblock(ctx, client)
		}
	}()
	d := waybill.Delivery{Event: eventfill.Defaults(waybill.NewEvent("x", 1)), Attempt: 1}
	err := s.Deliver(t.Context(), []waybill.Delivery{d})[0]
	stop()
	<-done
	if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable || !strings.Contains(err.Error(), "UNBLOCKED") {
		t.Errorf("class %v: %v", class, err)
	}
}

// unblock ends every WAIT with an error.
func unblock(ctx context.Context, client *redis.Client) {
	list, err := client.ClientList(ctx).Result()
	if err != nil {
		return
	}
	for line := range strings.Lines(list) {
		if !strings.Contains(line, " cmd=wait ") {
			continue
		}
		_, rest, _ := strings.Cut(line, "id=")
		id, _, _ := strings.Cut(rest, " ")
		client.Do(ctx, "CLIENT", "UNBLOCK", id, "ERROR")
	}
}

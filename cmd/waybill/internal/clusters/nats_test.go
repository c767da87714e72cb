//go:build unix

package clusters_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill/internal/testproxy"
	"github.com/waybillhq/waybill/internal/testserver/private"
)

// TestNATSKilled: the leaders of the stream, of a durable consumer and of the
// cluster are killed, in turn. Every promise is kept.
func TestNATSKilled(t *testing.T) {
	failures(t)
	runNATS(t, false)
}

// TestNATSFrozen: the leaders hang, in turn, until the others do the work, and
// continue beside them. Every promise is kept.
func TestNATSFrozen(t *testing.T) {
	failures(t)
	runNATS(t, true)
}

// TestNATSCutOff: the leaders run on, in turn, and neither the other servers
// nor clients reach them. Then the network comes back, with all that it has
// held. Every promise is kept.
func TestNATSCutOff(t *testing.T) {
	failures(t)
	var mu sync.Mutex
	ways := make(map[int][]*testproxy.Proxy) // those of each server
	proxy := func(port int, numbers ...int) string {
		p := testproxy.New(t, fmt.Sprintf("127.0.0.1:%d", port))
		mu.Lock()
		defer mu.Unlock()
		for _, n := range numbers {
			ways[n] = append(ways[n], p)
		}
		return p.Addr()
	}
	cluster := private.NATSCluster(t, 3, func(from, to, port int) int {
		_, text, _ := net.SplitHostPort(proxy(port, from, to))
		port, _ = strconv.Atoi(text)
		return port
	})
	n := &natsCluster{brokers: brokers{Cluster: cluster}}
	n.fault = func(_ context.Context, i int) error {
		for _, p := range ways[i+1] {
			p.Freeze()
		}
		return nil
	}
	n.rejoin = func(_ context.Context, i int) error {
		for _, p := range ways[i+1] {
			p.Thaw()
		}
		return nil
	}
	var hosts []string
	for i, s := range n.Servers {
		hosts = append(hosts, proxy(s.Port, i+1))
	}
	soakNATS(t, n, hosts)
}

func runNATS(t *testing.T, frozen bool) {
	t.Helper()
	n := &natsCluster{brokers: brokers{Cluster: private.NATSCluster(t, 3, nil), frozen: frozen}}
	var hosts []string
	for _, s := range n.Servers {
		hosts = append(hosts, address(s))
	}
	soakNATS(t, n, hosts)
}

// soakNATS soaks on the cluster, whose clients connect to the hosts.
func soakNATS(t *testing.T, n *natsCluster, hosts []string) {
	t.Helper()
	n.leader, n.publish = n.leads, n.published
	for _, host := range hosts {
		n.urls = append(n.urls, "nats://"+host)
	}
	runBrokers(t, &n.brokers, "nats://"+strings.Join(hosts, ",")+"/?replicas=3")
}

// natsCluster is a cluster of NATS servers.
type natsCluster struct {
	brokers
	urls   []string
	stream string // the soak's
}

// connected calls f with a new client.
func (n *natsCluster) connected(f func(js jetstream.JetStream) error) error {
	conn, err := nats.Connect(strings.Join(n.urls, ","), nats.Timeout(time.Second))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	return f(js)
}

// leads returns the leader of the soak's stream, of one of its consumers, or of
// the cluster.
func (n *natsCluster) leads(ctx context.Context, turn int) (name string, err error) {
	err = n.connected(func(js jetstream.JetStream) error {
		for s := range js.StreamNames(ctx).Name() {
			if strings.HasPrefix(s, "soak_") && !strings.HasSuffix(s, "_dead") {
				n.stream = s
			}
		}
		stream, err := js.Stream(ctx, n.stream)
		if err != nil {
			return err
		}
		at := stream.CachedInfo()
		if at.Config.Replicas != len(n.urls) {
			return fmt.Errorf("the stream has %d replicas", at.Config.Replicas)
		}
		switch turn % 3 {
		case 0:
			name = at.Cluster.Leader
		case 1:
			for c := range stream.ListConsumers(ctx).Info() {
				name = c.Cluster.Leader
			}
		default:
			name, err = n.leadsAll(ctx)
		}
		return err
	})
	return name, err
}

// leadsAll returns the leader of the cluster, which creates streams.
func (n *natsCluster) leadsAll(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/jsz", n.Servers[0].Ports[1]), nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // it is read
	var state struct {
		Meta struct{ Leader string } `json:"meta_cluster"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&state); err != nil {
		return "", err
	}
	if state.Meta.Leader == "" {
		return "", errors.New("the cluster has no leader")
	}
	return state.Meta.Leader, nil
}

// published publishes a message that no consumer of the soak takes.
func (n *natsCluster) published(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return n.connected(func(js jetstream.JetStream) error {
		_, err := js.Publish(ctx, n.stream+".served", nil)
		return err
	})
}

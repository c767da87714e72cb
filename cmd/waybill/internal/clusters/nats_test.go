//go:build unix

package clusters_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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

func runNATS(t *testing.T, frozen bool) {
	t.Helper()
	n := &natsCluster{brokers: brokers{Cluster: private.NATSCluster(t, 3), frozen: frozen}}
	n.leader, n.publish = n.leads, n.published
	var hosts []string
	for _, s := range n.Servers {
		n.urls = append(n.urls, s.DSN)
		hosts = append(hosts, strings.TrimPrefix(s.DSN, "nats://"))
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

//go:build linux || darwin

package brokers_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/pulsarbroker"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/relay"
)

func pulsarStand() stand {
	return stand{
		name: "pulsar", timeout: 2 * time.Second, start: startPrivate(testserver.PulsarName), shared: testserver.Pulsar,
		place: func(_ *testing.T, address string, _ victim) place {
			return pulsarPlace{address, "flow-" + waybill.NewID().String()}
		},
	}
}

type pulsarPlace struct{ address, name string }

func (p pulsarPlace) topic() string { return p.name }

// subscription retains the topic's messages.
const subscription = "flow"

func (p pulsarPlace) sink(ctx context.Context, via *proxy) (relay.DestinationSink, func(), error) {
	if via != nil {
		// Pulsar advertises its own address to clients.
		_, from, err := net.SplitHostPort(hostPort(p.address))
		if err != nil {
			return nil, nil, err
		}
		_, to, err := net.SplitHostPort(via.addr)
		if err != nil {
			return nil, nil, err
		}
		toxics.Register("readdress", new(readdress))
		if err := via.toxic("readdress", "downstream", fmt.Sprintf(`"from":":%s","to":":%s"`, from, to)); err != nil {
			return nil, nil, err
		}
	}
	b, err := pulsarbroker.Open(ctx, via.instead(p.address), pulsarbroker.Config{PublishTimeout: 2 * time.Second, Heartbeat: time.Second})
	if err != nil {
		return nil, nil, err
	}
	s, err := b.Sink(pulsarbroker.SinkConfig{Subscriptions: []string{subscription}})
	return s, func() { _ = b.Close() }, err
}

func (p pulsarPlace) source(ctx context.Context, cfg broker.ReceiverConfig) (broker.Source, func(), error) {
	b, err := pulsarbroker.Open(ctx, p.address, pulsarbroker.Config{})
	if err != nil {
		return nil, nil, err
	}
	s, err := b.Source(pulsarbroker.SourceConfig{Subscription: subscription, Topics: []string{p.name}, Receive: cfg})
	return s, func() { _ = b.Close() }, err
}

func (p pulsarPlace) read(ctx context.Context) ([][]byte, error) {
	c, err := pulsar.NewClient(pulsar.ClientOptions{URL: p.address, Logger: log.DefaultNopLogger(), MetricsRegisterer: prometheus.NewRegistry()})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r, err := c.CreateReader(pulsar.ReaderOptions{Topic: p.name, StartMessageID: pulsar.EarliestMessageID(), ReceiverQueueSize: 1000})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var found [][]byte
	for r.HasNext() {
		m, err := r.Next(ctx)
		if err != nil {
			return found, err
		}
		found = append(found, m.Payload())
	}
	return found, nil
}

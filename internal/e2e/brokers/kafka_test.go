//go:build linux || darwin

package brokers_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/kafkabroker"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/relay"
)

func kafkaStand() stand {
	return stand{
		name: "kafka", timeout: 3 * time.Second, start: startPrivate(testserver.KafkaName), shared: testserver.Kafka,
		place: func(t *testing.T, address string, _ victim) place {
			t.Helper()
			p := kafkaPlace{address: address, name: "flow." + waybill.NewID().String()}
			client, err := kgo.NewClient(kgo.SeedBrokers(address))
			must(t, err)
			defer client.Close()
			made, err := kadm.NewClient(client).CreateTopics(t.Context(), 3, 1, nil, p.name, p.name+".dead")
			must(t, err)
			must(t, made.Error())
			return p
		},
	}
}

// kafkaPlace has the session timeout of its sources; zero: the default.
type kafkaPlace struct {
	address, name string
	session       time.Duration
}

func (p kafkaPlace) topic() string { return p.name }

func (p kafkaPlace) sink(ctx context.Context, via *proxy) (relay.DestinationSink, func(), error) {
	cfg := kafkabroker.Config{PublishTimeout: 3 * time.Second}
	// Kafka advertises its own address, so the dialer redirects to the proxy
	if via != nil {
		cfg.Options = append(cfg.Options, kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, via.addr)
		}))
	}
	b, err := kafkabroker.Open(ctx, "kafka://"+p.address, cfg)
	if err != nil {
		return nil, nil, err
	}
	s, err := b.Sink(kafkabroker.SinkConfig{})
	return s, func() { _ = b.Close() }, err
}

func (p kafkaPlace) source(ctx context.Context, cfg broker.ReceiverConfig) (broker.Source, func(), error) {
	b, err := kafkabroker.Open(ctx, "kafka://"+p.address, kafkabroker.Config{})
	if err != nil {
		return nil, nil, err
	}
	s, err := b.Source(kafkabroker.SourceConfig{Group: p.name, Topics: []string{p.name}, SessionTimeout: p.session, Receive: cfg})
	return s, func() { _ = b.Close() }, err
}

// read returns the messages of all partitions. The messages of one aggregate
// are in one partition.
func (p kafkaPlace) read(ctx context.Context) ([][]byte, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(p.address), kgo.ConsumeTopics(p.name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, p.name)
	if err != nil {
		return nil, err
	}
	left := 0
	ends.Each(func(o kadm.ListedOffset) { left += int(max(o.Offset, 0)) })
	found := make([][]byte, 0, left)
	for len(found) < left {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return found, err
		}
		fetches.EachRecord(func(r *kgo.Record) { found = append(found, r.Value) })
	}
	return found, nil
}

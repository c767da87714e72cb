package natsbroker_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/drivertest"
	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/broker/natsembed"
)

func TestConformance(t *testing.T) {
	drivertest.Run(t, drivertest.Harness{
		Name: "natsbroker", Parallel: true,
		Capabilities: drivertest.Capabilities{
			Source: true, Counts: true, Dedup: true, MaxPayload: 256 << 10, Unroutable: waybill.ClassUnavailable, Outage: true, Restart: true, Secrets: true,
		},
		Open: instance,
	})
}

func instance(t *testing.T) drivertest.Instance {
	s := startServer(t, natsembed.Config{MaxPayload: 300 << 10})
	p := startProxy(t, s.url())
	b := open(t, p.url(), natsbroker.Config{PublishTimeout: 2 * time.Second})
	sink, err := b.Sink(natsbroker.SinkConfig{})
	if err != nil {
		t.Fatal(err)
	}
	codec, err := broker.NewCodec(broker.NATS, broker.CodecConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return drivertest.Instance{
		Topic: "orders.placed", Nowhere: "elsewhere.placed", Sink: sink, Codec: codec,
		Source: func(name string, cfg broker.ReceiverConfig) broker.Source {
			src, err := b.Source(natsbroker.SourceConfig{Durable: name, AckWait: 2 * time.Second, Receive: cfg})
			if err != nil {
				t.Fatal(err)
			}
			return src
		},
		Read: func(ctx context.Context) ([]broker.Message, error) {
			return readAll(ctx, s.url(), "orders", "orders.placed")
		},
		DeadLetters: func(ctx context.Context, source string) ([]broker.Message, error) {
			return readAll(ctx, s.url(), "orders_dead", "dead.orders."+source)
		},
		Publish: func(ctx context.Context, m broker.Message) error {
			conn, err := nats.Connect(s.url())
			if err != nil {
				return err
			}
			defer conn.Close()
			js, err := jetstream.New(conn)
			if err != nil {
				return err
			}
			msg := &nats.Msg{Subject: m.Topic, Header: nats.Header{}, Data: m.Payload}
			for _, h := range m.Headers {
				msg.Header.Add(h.Name, h.Value)
			}
			if m.ContentType != "" {
				msg.Header.Set("Content-Type", m.ContentType)
			}
			_, err = js.PublishMsg(ctx, msg)
			return err
		},
		Break: p.cut, Heal: p.heal,
		Restart: func() {
			s.stop()
			s.start()
		},
		OpenWith: func(ctx context.Context, password string) error {
			guarded := startServer(t, natsembed.Config{User: "waybill", Password: "another"})
			address := "nats://waybill:" + url.QueryEscape(password) + "@" + strings.TrimPrefix(guarded.url(), "nats://")
			_, err := natsbroker.Open(ctx, address, natsbroker.Config{Stream: "orders"})
			_, bad := natsbroker.Open(ctx, "nats://waybill:"+password+"@[::1", natsbroker.Config{Stream: "orders"})
			if err == nil || bad == nil {
				return nil
			}
			return fmt.Errorf("%v; %v", err, bad) //nolint:errorlint // the texts are what counts
		},
	}
}

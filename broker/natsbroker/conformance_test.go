package natsbroker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/brokertest"
	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/broker/natsbroker/natsembed"
)

func TestConformance(t *testing.T) {
	brokertest.Run(t, brokertest.Harness{
		Name: "natsbroker", Parallel: true,
		Capabilities: brokertest.Capabilities{
			Source: true, Counts: true, Dedup: true, MaxPayload: 256 << 10, Unroutable: waybill.ClassUnavailable, Outage: true, Restart: true, Secrets: true,
		},
		Open: instance,
	})
}

func instance(t *testing.T) brokertest.Instance {
	s := startServer(t, natsembed.Config{MaxPayload: 300 << 10})
	p := startProxy(t, s.url())
	b := open(t, p.url(), natsbroker.Config{PublishTimeout: 2 * time.Second})
	sink, err := b.Sink()
	if err != nil {
		t.Fatal(err)
	}
	return brokertest.Instance{
		Topic: "orders.placed", Nowhere: "elsewhere.placed", Sink: sink, Codec: b.Codec(),
		Source: func(name string, cfg broker.ReceiverConfig) broker.Source {
			src, err := b.Source(natsbroker.SourceConfig{Name: name, AckWait: 2 * time.Second, Receive: cfg})
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

// The documentation shows the failure table, and each row matches the error of
// the client or the server.
func TestFailures(t *testing.T) {
	api := func(code int, number jetstream.ErrorCode) error {
		return fmt.Errorf("publishing: %w", &jetstream.APIError{Code: code, ErrorCode: number, Description: "x"})
	}
	brokertest.Failures(t, natsbroker.Failures(), map[string]error{
		"message or headers larger than the server or the stream permits": api(400, 10054),
		"a subject that is not valid":                                     fmt.Errorf("x: %w", nats.ErrBadSubject),
		"no stream listens to the subject":                                jetstream.ErrNoStreamResponse,
		"another stream listens to the subject":                           api(400, 10060),
		"stream full, sealed or offline, or no storage left":              api(500, 10047),
		"any other error with code 503":                                   api(503, 10077),
		"too many messages without a PubAck":                              jetstream.ErrTooManyStalledMsgs,
		"no PubAck in time":                                               jetstream.ErrAsyncPublishTimeout,
		"disconnected, or closed":                                         nats.ErrReconnectBufExceeded,
		"connection lost, refused or silent":                              &net.OpError{Op: "read", Err: errors.New("x")},
	}, "../../docs/brokers.md")
}

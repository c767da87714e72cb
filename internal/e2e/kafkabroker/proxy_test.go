package kafkabroker_test

import (
	"context"
	"net"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybillhq/waybill/internal/testproxy"
)

// proxy is a connection between the broker under test and its server that can
// be cut. Kafka announces its own address to clients, so the proxy is inserted
// by a dialer.
type proxy struct{ proxy *testproxy.Proxy }

func newProxy(t *testing.T, address string) *proxy {
	t.Helper()
	return &proxy{testproxy.New(t, address)}
}

func (p *proxy) dial() kgo.Opt {
	listen := p.proxy.Addr()
	return kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, listen)
	})
}

func (p *proxy) start() { p.proxy.Join() }

func (p *proxy) stop() { p.proxy.Cut() }

package kafkabroker_test

import (
	"context"
	"net"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybillhq/waybill/internal/testproxy"
)

// proxy stands between the broker under test and its server, and can be cut. Kafka names its own address to clients, so the proxy is put in by a dialer.
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

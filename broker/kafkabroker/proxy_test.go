package kafkabroker_test

import (
	"context"
	"net"
	"testing"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"
)

// proxy stands between the broker under test and its server, and can be cut. Kafka names its own address to clients, so the proxy is put in by a dialer.
type proxy struct {
	t     *testing.T
	proxy *toxiproxy.Proxy
}

func newProxy(t *testing.T, address string) *proxy {
	t.Helper()
	p := &proxy{t: t, proxy: toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()), "cut", "127.0.0.1:0", address)}
	p.start()
	t.Cleanup(p.proxy.Stop)
	return p
}

func (p *proxy) dial() kgo.Opt {
	listen := p.proxy.Listen
	return kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, listen)
	})
}

func (p *proxy) start() {
	if err := p.proxy.Start(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *proxy) stop() { p.proxy.Stop() }

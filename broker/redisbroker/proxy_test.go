package redisbroker_test

import (
	"net/url"
	"testing"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// proxy stands between the broker under test and its server, and can be cut.
type proxy struct {
	t     *testing.T
	proxy *toxiproxy.Proxy
	url   string
}

func newProxy(t *testing.T, address string) *proxy {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, proxy: toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()), "cut", "127.0.0.1:0", u.Host)}
	p.start()
	t.Cleanup(p.proxy.Stop)
	u.Host = p.proxy.Listen
	p.url = u.String()
	return p
}

func (p *proxy) start() {
	if err := p.proxy.Start(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *proxy) stop() { p.proxy.Stop() }

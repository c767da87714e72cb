package redisbroker_test

import (
	"net/url"
	"testing"

	"github.com/waybillhq/waybill/internal/testproxy"
)

// proxy is a connection between the broker under test and its server that can
// be cut.
type proxy struct {
	proxy *testproxy.Proxy
	url   string
}

func newProxy(t *testing.T, address string) *proxy {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{proxy: testproxy.New(t, u.Host)}
	u.Host = p.proxy.Addr()
	p.url = u.String()
	return p
}

func (p *proxy) start() { p.proxy.Join() }

func (p *proxy) stop() { p.proxy.Cut() }

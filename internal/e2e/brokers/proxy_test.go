//go:build linux || darwin

package brokers_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	toxistream "github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"
)

// proxy simulates the network between a client and its server.
type proxy struct {
	p    *toxiproxy.Proxy
	addr string // host:port
}

func newProxy(t *testing.T, upstream string) *proxy {
	t.Helper()
	p := toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()), t.Name(), "127.0.0.1:0", upstream)
	must(t, p.Start())
	t.Cleanup(p.Stop)
	return &proxy{p: p, addr: p.Listen}
}

// instead returns an address with the proxy's host and port in place of the
// server's.
func (p *proxy) instead(address string) string {
	if p == nil {
		return address
	}
	return strings.Replace(address, hostPort(address), p.addr, 1)
}

// hostPort returns the host and port of a URL, or a plain host:port.
func hostPort(address string) string {
	if _, rest, ok := strings.Cut(address, "://"); ok {
		address = rest
	}
	address, _, _ = strings.Cut(address, "/")
	return address[strings.LastIndexByte(address, '@')+1:]
}

// cut ends all connections and accepts no new ones.
func (p *proxy) cut(context.Context) error {
	p.p.Stop()
	return nil
}

func (p *proxy) join(context.Context) error { return p.p.Start() }

// silence keeps connections open and lets no data through.
func (p *proxy) silence(context.Context) error {
	for _, direction := range []string{"upstream", "downstream"} {
		if err := p.toxic("timeout", direction, `"timeout":0`); err != nil {
			return err
		}
	}
	return nil
}

func (p *proxy) speak(ctx context.Context) error {
	for _, direction := range []string{"upstream", "downstream"} {
		if err := p.p.Toxics.RemoveToxic(ctx, "timeout "+direction); err != nil {
			return err
		}
	}
	return nil
}

func (p *proxy) toxic(kind, direction, attributes string) error {
	_, err := p.p.Toxics.AddToxicJson(strings.NewReader(
		fmt.Sprintf(`{"name":"%[1]s %[2]s","type":"%[1]s","stream":"%[2]s","attributes":{%[3]s}}`, kind, direction, attributes)))
	return err
}

// readdress is for a server that advertises its address to clients: it replaces
// the address in the server's data. Both addresses have the same length, so
// that messages stay valid.
type readdress struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Pipe implements [toxics.Toxic].
func (r *readdress) Pipe(stub *toxics.ToxicStub) {
	for {
		select {
		case <-stub.Interrupt:
			return
		case c := <-stub.Input:
			if c == nil {
				stub.Close()
				return
			}
			stub.Output <- &toxistream.StreamChunk{Data: bytes.ReplaceAll(c.Data, []byte(r.From), []byte(r.To)), Timestamp: c.Timestamp}
		}
	}
}

// Package testproxy simulates the network between a client under test and its
// server: a TCP proxy that can be cut, rejoined at the same address, and
// frozen. It uses only the standard library, so that modules whose tests use it
// need no further requirements.
package testproxy

import (
	"context"
	"net"
	"sync"
	"testing"
)

// Proxy forwards connections to one server.
type Proxy struct {
	t        testing.TB
	upstream string
	addr     string

	mu      sync.Mutex
	stop    func()        // ends the current run; nil while the proxy is cut
	flowing chan struct{} // closed while data may pass
}

// New returns a proxy for an address (host:port), which runs until the test
// ends.
func New(t testing.TB, upstream string) *Proxy {
	t.Helper()
	p := &Proxy{t: t, upstream: upstream, addr: "127.0.0.1:0", flowing: make(chan struct{})}
	close(p.flowing)
	p.Join()
	t.Cleanup(p.Cut)
	return p
}

// Addr returns the listening address, host:port. It does not change.
func (p *Proxy) Addr() string { return p.addr }

// Join starts or restarts listening.
func (p *Proxy) Join() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != nil {
		return
	}
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", p.addr)
	if err != nil {
		p.t.Fatal(err)
	}
	p.addr = l.Addr().String()
	r := &run{p: p, listener: l, ended: make(chan struct{}), conns: make(map[net.Conn]bool)}
	r.all.Go(r.accept)
	p.stop = r.end
}

// Cut ends all connections and accepts no new ones.
func (p *Proxy) Cut() {
	p.mu.Lock()
	stop := p.stop
	p.stop = nil
	p.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// Freeze keeps connections open and lets no data through.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flowing:
		p.flowing = make(chan struct{})
	default: // frozen
	}
}

// Thaw lets held and later data through.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flowing: // not frozen
	default:
		close(p.flowing)
	}
}

func (p *Proxy) flows() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flowing
}

// run is the state between a Join and a Cut.
type run struct {
	p        *Proxy
	listener net.Listener
	ended    chan struct{}
	all      sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
	over  bool
}

func (r *run) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		r.all.Go(func() { r.serve(client) })
	}
}

func (r *run) serve(client net.Conn) {
	defer client.Close() //nolint:errcheck // it ends
	if !r.keep(client) {
		return
	}
	defer r.forget(client)
	var d net.Dialer
	server, err := d.DialContext(context.Background(), "tcp", r.p.upstream)
	if err != nil {
		return
	}
	defer server.Close() //nolint:errcheck // it ends
	if !r.keep(server) {
		return
	}
	defer r.forget(server)
	var both sync.WaitGroup
	both.Go(func() { r.pass(server, client) })
	both.Go(func() { r.pass(client, server) })
	both.Wait()
}

// pass copies until one of the two connections ends, and then closes both.
func (r *run) pass(to, from net.Conn) {
	defer to.Close()   //nolint:errcheck // it ends
	defer from.Close() //nolint:errcheck // it ends
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			select {
			case <-r.p.flows():
			case <-r.ended:
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// keep registers a connection, unless the run has ended.
func (r *run) keep(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.conns[c] = true
	}
	return !r.over
}

func (r *run) forget(c net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}

// end closes everything, and returns when all goroutines have ended.
func (r *run) end() {
	_ = r.listener.Close()
	r.mu.Lock()
	r.over = true
	close(r.ended)
	for c := range r.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.all.Wait()
}

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/waybillhq/waybill/internal/testserver"
)

// TestFreezingOneDoesNotSlowTheOther runs the program with PostgreSQL behind a
// proxy, and freezes the proxy: deliveries from SQLite continue.
func TestFreezingOneDoesNotSlowTheOther(t *testing.T) {
	address, err := url.Parse(testserver.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, address.Host)
	address.Host = p.listener.Addr().String()
	cmd := exec.CommandContext(t.Context(), "go", "run", ".")
	cmd.Env = append(os.Environ(), "DATABASE_URL="+address.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var orders, billing []int
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var hot, done, billHot, billDone int
		_, err := fmt.Sscanf(lines.Text(), "orders.outbox.enqueue.hot=%d orders.outbox.dispatch.success=%d  billing.outbox.enqueue.hot=%d billing.outbox.dispatch.success=%d",
			&hot, &done, &billHot, &billDone)
		if err != nil {
			t.Fatalf("it says %q: %v", lines.Text(), err)
		}
		orders, billing = append(orders, done), append(billing, billDone)
		switch len(orders) {
		case 1:
			p.freeze()
		case 4:
			p.thaw()
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(orders) != 5 {
		t.Fatalf("%d lines, want 5", len(orders))
	}
	if billing[0] == 0 || orders[0] == 0 {
		t.Fatalf("nothing was delivered before the freeze: %v and %v", orders, billing)
	}
	// By the second line the last delivery in flight may have arrived.
	if billing[3] != billing[2] {
		t.Errorf("billing was delivered through a frozen proxy: %v", billing)
	}
	if orders[3] <= orders[2] || orders[2] <= orders[1] {
		t.Errorf("orders did not go on while the other was frozen: %v", orders)
	}
}

// proxy forwards bytes until it is frozen.
type proxy struct {
	listener net.Listener
	mu       sync.Mutex
	open     *sync.Cond
	frozen   bool
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l}
	p.open = sync.NewCond(&p.mu)
	t.Cleanup(func() { _ = l.Close(); p.thaw() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target) //nolint:noctx // it ends with the test
			if err != nil {
				_ = client.Close()
				continue
			}
			go p.pass(client, server)
			go p.pass(server, client)
		}
	}()
	return p
}

func (p *proxy) pass(to, from net.Conn) {
	defer func() { _ = to.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		for p.frozen {
			p.open.Wait()
		}
		p.mu.Unlock()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if err != io.EOF { //nolint:errorlint // nothing wraps it
				_ = from.Close()
			}
			return
		}
	}
}

func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

func (p *proxy) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = false
	p.open.Broadcast()
}

package testproxy_test

import (
	"bufio"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybillhq/waybill/internal/testproxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is an echo server.
func echo(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

func TestProxy(t *testing.T) {
	p := testproxy.New(t, echo(t))
	dial := func() net.Conn {
		t.Helper()
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	say := func(c net.Conn, text string) {
		t.Helper()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(c net.Conn) (string, error) {
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		return bufio.NewReader(c).ReadString('\n')
	}
	c := dial()
	say(c, "one\n")
	if got, err := hear(c); got != "one\n" {
		t.Fatalf("heard %q: %v", got, err)
	}
	p.Freeze()
	say(c, "two\n")
	heard := make(chan string, 1)
	go func() { got, _ := hear(c); heard <- got }()
	select {
	case got := <-heard:
		t.Errorf("heard %q while it is frozen", got)
	case <-time.After(50 * time.Millisecond):
	}
	p.Thaw()
	if got := <-heard; got != "two\n" {
		t.Errorf("heard %q after it", got)
	}
	p.Freeze()
	say(c, "three\n")
	p.Cut()
	if got, err := hear(c); err == nil {
		t.Errorf("heard %q through a cut", got)
	}
	if _, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.Addr()); err == nil {
		t.Error("it takes connections while it is cut")
	}
	p.Thaw()
	p.Join()
	c = dial()
	say(c, "four\n")
	if got, err := hear(c); got != "four\n" {
		t.Errorf("heard %q: %v", got, err)
	}
}

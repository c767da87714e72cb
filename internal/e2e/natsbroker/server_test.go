package natsbroker_test

import (
	"context"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/broker/natsembed"
	"github.com/waybillhq/waybill/internal/testproxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is an embedded server that can be killed and started again at the same
// address.
type server struct {
	t   *testing.T
	cfg natsembed.Config

	mu sync.Mutex
	s  *natsembed.Server
}

func startServer(t *testing.T, cfg natsembed.Config) *server {
	t.Helper()
	cfg.Dir = t.TempDir()
	s := &server{t: t, cfg: cfg}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *server) start() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	started, err := natsembed.Start(context.Background(), s.cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.s = started
	s.cfg.Port = port(s.t, started.URL())
}

func (s *server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.s.Close()
}

func (s *server) url() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.s.URL()
}

func port(t *testing.T, address string) int {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, c := range u.Port() {
		n = n*10 + int(c-'0')
	}
	return n
}

// proxy is a connection between clients and a server.
type proxy struct {
	p    *testproxy.Proxy
	user *url.Userinfo
}

func startProxy(t *testing.T, upstream string) *proxy {
	t.Helper()
	u, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	return &proxy{p: testproxy.New(t, u.Host), user: u.User}
}

func (p *proxy) url() string {
	return (&url.URL{Scheme: "nats", User: p.user, Host: p.p.Addr()}).String()
}

// cut ends all connections and accepts no new ones.
func (p *proxy) cut() { p.p.Cut() }

func (p *proxy) heal() { p.p.Join() }

// freeze keeps connections open and transmits nothing.
func (p *proxy) freeze() { p.p.Freeze() }

func (p *proxy) thaw() { p.p.Thaw() }

// open connects to a server with fresh streams.
func open(t *testing.T, address string, cfg natsbroker.Config) *natsbroker.Broker {
	t.Helper()
	if cfg.Stream == "" {
		cfg.Stream = "orders"
	}
	cfg.Subjects, cfg.Create = []string{cfg.Stream + ".>"}, true
	b, err := natsbroker.Open(context.Background(), address, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// readAll returns the messages of a stream on a subject, with the plain client.
func readAll(ctx context.Context, address, stream, subject string) ([]broker.Message, error) {
	conn, err := nats.Connect(address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	last := s.CachedInfo().State.LastSeq
	var got []broker.Message
	for seq := s.CachedInfo().State.FirstSeq; seq <= last && last > 0; seq++ {
		m, err := s.GetMsg(ctx, seq)
		if err != nil {
			return nil, err
		}
		if m.Subject != subject {
			continue
		}
		msg := broker.Message{Topic: m.Subject, PublishID: m.Header.Get("Nats-Msg-Id"), ContentType: m.Header.Get("Content-Type"), Payload: m.Data}
		for name, values := range m.Header {
			if !strings.HasPrefix(name, "Nats-") {
				msg.Headers = append(msg.Headers, broker.Header{Name: name, Value: values[0]})
			}
		}
		got = append(got, msg)
	}
	return got, nil
}

// await waits for a condition.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("no %s", what)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

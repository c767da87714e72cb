//go:build linux || darwin

package brokers_test

import (
	"context"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/webhook"
	"github.com/waybillhq/waybill/relay"
)

func webhookStand() stand {
	return stand{
		name: "webhook", timeout: time.Second,
		start: func(t *testing.T) (victim, string) {
			t.Helper()
			s := &webServer{thawed: make(chan struct{})}
			close(s.thawed)
			must(t, s.Restart(t.Context()))
			t.Cleanup(func() { _ = s.Kill(context.WithoutCancel(t.Context())) })
			return s, s.url()
		},
		shared: func(t testing.TB) string {
			t.Helper()
			return "http://127.0.0.1:" + strconv.Itoa(ownPort(t))
		},
		place: func(_ *testing.T, address string, v victim) place {
			s, _ := v.(*webServer) // nil on a shared server, which is not read
			return webhookPlace{address, s}
		},
	}
}

// webServer is an endpoint that stops, hangs and resets connections.
type webServer struct {
	port   int
	server *http.Server

	mu     sync.Mutex
	got    [][]byte
	thawed chan struct{} // closed while it responds
}

func (s *webServer) url() string { return "http://127.0.0.1:" + strconv.Itoa(s.port) }

// ServeHTTP implements [http.Handler].
func (s *webServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	thawed := s.thawed
	s.mu.Unlock()
	select {
	case <-thawed:
	case <-r.Context().Done(): // the client timed out, or the server was killed
		return
	}
	s.mu.Lock()
	s.got = append(s.got, body)
	s.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

// Restart implements victim.
func (s *webServer) Restart(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:"+strconv.Itoa(s.port))
	if err != nil {
		return err
	}
	if at, ok := l.Addr().(*net.TCPAddr); ok {
		s.port = at.Port // chosen the first time, and then unchanged
	}
	s.server = &http.Server{
		Handler: s, ReadHeaderTimeout: patience,
		ConnState: func(c net.Conn, state http.ConnState) {
			if tcp, ok := c.(*net.TCPConn); ok && state == http.StateNew {
				_ = tcp.SetLinger(0) // Close resets the connection
			}
		},
	}
	go func() { _ = s.server.Serve(l) }() // reports that it was closed
	return nil
}

// Kill implements victim.
func (s *webServer) Kill(context.Context) error { return s.server.Close() }

// Freeze implements victim.
func (s *webServer) Freeze(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.thawed = make(chan struct{})
	return nil
}

// Thaw implements victim.
func (s *webServer) Thaw(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.thawed)
	return nil
}

type webhookPlace struct {
	address string
	server  *webServer
}

func (p webhookPlace) topic() string { return "hooks" }

// secret signs the requests.
func secret() []string {
	return []string{"whsec_" + base64.StdEncoding.EncodeToString([]byte("a secret of more than 24 bytes"))}
}

func (p webhookPlace) sink(_ context.Context, via *proxy) (relay.DestinationSink, func(), error) {
	s, err := webhook.NewSink(via.instead(p.address)+"/hooks", webhook.Config{Secrets: secret(), PublishTimeout: time.Second})
	if err != nil {
		return nil, nil, err
	}
	return s, func() { _ = s.Close() }, nil
}

func (p webhookPlace) source(ctx context.Context, cfg broker.ReceiverConfig) (broker.Source, func(), error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", hostPort(p.address))
	if err != nil {
		return nil, nil, err
	}
	s, err := webhook.NewSource(l, webhook.ReceiverConfig{Secrets: secret(), Logger: cfg.Logger})
	return s, func() { _ = l.Close() }, err
}

func (p webhookPlace) read(context.Context) ([][]byte, error) {
	codec, err := broker.NewCodec(broker.HTTP, broker.CodecConfig{})
	if err != nil {
		return nil, err
	}
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	payloads := make([][]byte, 0, len(p.server.got))
	for _, body := range p.server.got {
		// the signature covers the whole event
		d, err := codec.Decode(&broker.Message{ContentType: "application/cloudevents+json", Payload: body})
		if err != nil {
			return nil, err
		}
		payloads = append(payloads, d.Payload)
	}
	return payloads, nil
}

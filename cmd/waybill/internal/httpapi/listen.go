package httpapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// ErrExposed reports that the API would be accessible from the network without
// protection.
var ErrExposed = errors.New("the API would be accessible from the network")

// Limits for clients.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	// writeTimeout is long because a replay of many dead letters takes time.
	writeTimeout = 2 * time.Minute
	idleTimeout  = 2 * time.Minute
	headerBytes  = 16 << 10
	bodyBytes    = 1 << 20
	// stopTimeout is the time limit for requests in flight when the daemon
	// stops.
	stopTimeout = 5 * time.Second
	// atOnce is the maximum number of concurrent requests; others get a
	// Retry-After.
	atOnce = 32
	// probesAtOnce is the maximum number of concurrent probes.
	probesAtOnce = 8
)

// minTokenLength is the minimum length of a token in bytes. At one guess per
// second and a burst of thirty, such a token cannot be guessed.
const minTokenLength = 16

// Loopback reports whether an address is reachable from this machine only. An
// empty host means every interface.
func Loopback(listen string) (bool, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false, hint.New("write http.listen as 127.0.0.1:9292", "http.listen %q is not a valid address: %w", listen, err)
	}
	return loopbackHost(host), nil
}

func loopbackHost(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// Check rejects settings that would open the API to the network without a
// token, or send the token unencrypted. It opens no port.
func Check(s settings.HTTP) error {
	if !s.Enabled {
		return nil
	}
	if n := len(s.Token.Reveal()); n > 0 && n < minTokenLength {
		return hint.New("create one with openssl rand -hex 32", "http.token has %d bytes; the minimum is %d", n, minTokenLength)
	}
	local, err := Loopback(s.Listen)
	switch {
	case err != nil || local:
		return err
	case s.Token.IsZero():
		return hint.New("set http.token (create one with openssl rand -hex 32), or listen on 127.0.0.1", "http.listen %s: %w without http.token", s.Listen, ErrExposed)
	case s.Cert == "":
		return hint.New("set http.cert and http.key, or listen on 127.0.0.1 behind a proxy with TLS",
			"http.listen %s: %w without TLS", s.Listen, ErrExposed)
	}
	return nil
}

// listen opens the port before any event is delivered, so that a port in use is
// reported first.
func listen(s settings.HTTP, log *slog.Logger) (net.Listener, error) {
	var config *tls.Config
	if s.Cert != "" {
		cert, err := readCertificate(s.Cert, s.Key, log)
		if err != nil {
			return nil, err
		}
		config = &tls.Config{GetCertificate: cert.get, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	}
	l, err := net.Listen("tcp", s.Listen) //nolint:noctx // it does not block
	if err != nil {
		return nil, hint.New("another process may use the port; --http-listen 127.0.0.1:9293 uses another one, --http-enabled=false disables the API", "http.listen: %w", err)
	}
	if config != nil {
		l = tls.NewListener(l, config)
	}
	return l, nil
}

// run answers requests until ctx ends, then finishes the requests in flight.
func run(ctx context.Context, l net.Listener, h *handler, log *slog.Logger) error {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: headerBytes, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	server.RegisterOnShutdown(h.end)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("http: %w", err)
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	err := server.Shutdown(ending)
	if errors.Is(err, context.DeadlineExceeded) { // slow clients are disconnected
		err = server.Close()
	}
	<-failed
	return err
}

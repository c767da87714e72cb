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

// ErrExposed says that the API would be open to others without protection.
var ErrExposed = errors.New("the API would be open to everybody who can reach this machine")

// Limits on what a client may do to the server.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	// writeTimeout is generous: replaying a lot of dead letters takes a while.
	writeTimeout = 2 * time.Minute
	idleTimeout  = 2 * time.Minute
	headerBytes  = 16 << 10
	bodyBytes    = 1 << 20
	// stopTimeout is how long requests under way may take when the daemon stops.
	stopTimeout = 5 * time.Second
	// atOnce is how many requests are answered at a time; the rest is told to come back.
	atOnce = 32
	// probesAtOnce is how many probes are.
	probesAtOnce = 8
)

// shortestToken is how long a token is at least, in bytes: at one guess a second, and thirty at
// once, no guess finds one of them.
const shortestToken = 16

// Loopback reports whether only this machine can reach an address. An empty host is every interface.
func Loopback(listen string) (bool, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false, hint.New("write http.listen as 127.0.0.1:9292", "http.listen %q is not an address: %w", listen, err)
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

// Check refuses settings under which the API would be open to others without a token, or send the token in the clear. It opens nothing.
func Check(s settings.HTTP) error {
	if !s.Enabled {
		return nil
	}
	if n := len(s.Token.Reveal()); n > 0 && n < shortestToken {
		return hint.New("openssl rand -hex 32 makes one", "http.token has %d bytes, and needs at least %d: it could be guessed", n, shortestToken)
	}
	local, err := Loopback(s.Listen)
	switch {
	case err != nil || local:
		return err
	case s.Token.IsZero():
		return hint.New("set http.token (openssl rand -hex 32 makes one), or listen at 127.0.0.1", "http.listen %s: %w: there is no http.token", s.Listen, ErrExposed)
	case s.Cert == "":
		return hint.New("set http.cert and http.key, or listen at 127.0.0.1 behind a proxy that has them",
			"http.listen %s: %w: the token would travel in the clear", s.Listen, ErrExposed)
	}
	return nil
}

// listen opens the port. That it is taken is found out before anything is delivered.
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
		return nil, hint.New("does another waybill serve listen there? --http-listen 127.0.0.1:9293 takes another port, --http-enabled=false none", "http.listen: %w", err)
	}
	if config != nil {
		l = tls.NewListener(l, config)
	}
	return l, nil
}

// run answers until ctx ends, then finishes what is under way.
func run(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: headerBytes, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
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
	if errors.Is(err, context.DeadlineExceeded) { // whoever still reads is cut off
		err = server.Close()
	}
	<-failed
	return err
}

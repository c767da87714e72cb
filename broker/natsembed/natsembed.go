// Package natsembed runs a NATS server with JetStream inside the process, for
// programs that need a broker without a separate server. Confirmed messages are
// on disk: the server syncs every message.
package natsembed

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Config configures a [Server]. Zero fields have their defaults.
type Config struct {
	// Dir is the directory of the streams. Required; it is created if it does
	// not exist.
	Dir string
	// Host is the listen address. Defaults to 127.0.0.1.
	Host string
	// Port is the listen port. Defaults to any free port.
	Port int
	// User and Password are the credentials of clients. A Host other than a
	// loopback address requires them. Default to the user "waybill" and a
	// random password, which is part of [Server.URL] and is stored in a file in
	// Dir (see [Password]) that other users of the machine cannot read.
	User, Password string
	// MaxPayload is the maximum size of a message, headers included. Defaults
	// to 2 MiB, which fits the largest event.
	MaxPayload int32
	// ReadyTimeout is how long the server may take to recover its streams.
	// Defaults to 30 s.
	ReadyTimeout time.Duration
	// Logger receives the server's log. Defaults to [slog.Default], which
	// receives only warnings and errors; slog.New(slog.DiscardHandler) disables
	// logging.
	Logger *slog.Logger
}

// Server is a running server.
type Server struct {
	server *server.Server
	own    *url.Userinfo // generated credentials
}

const (
	ownUser = "waybill"
	// passwordFile is the file in Dir that stores the generated password.
	passwordFile = "password"
)

// Password returns the generated credentials of the server whose streams are in
// dir and whose Config has none.
func Password(dir string) (*url.Userinfo, error) {
	text, err := os.ReadFile(filepath.Join(dir, passwordFile))
	if err != nil {
		return nil, fmt.Errorf("natsembed: %w", err)
	}
	return url.UserPassword(ownUser, strings.TrimSpace(string(text))), nil
}

// makePassword generates the password of a directory, if it has none.
func makePassword(dir string) (*url.Userinfo, error) {
	if own, err := Password(dir); !errors.Is(err, os.ErrNotExist) {
		return own, err
	}
	// The file appears under its name only when it is complete, because a
	// second process may read it at any time.
	f, err := os.CreateTemp(dir, passwordFile+"-*") // readable by its owner only
	if err != nil {
		return nil, fmt.Errorf("natsembed: %w", err)
	}
	_, err = f.WriteString(rand.Text() + "\n")
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Link(f.Name(), filepath.Join(dir, passwordFile))
	}
	_ = os.Remove(f.Name())
	if err != nil && !errors.Is(err, os.ErrExist) { // ErrExist: another process was first
		return nil, fmt.Errorf("natsembed: %w", err)
	}
	return Password(dir)
}

// Start starts a server and returns when the server accepts connections and its
// streams are recovered.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Dir == "" {
		return nil, errors.New("natsembed: Config.Dir: empty")
	}
	if cfg.Host == "" {
		cfg.Host = "127.0.0.1"
	}
	if !loopback(cfg.Host) && cfg.Password == "" {
		return nil, fmt.Errorf("natsembed: Config.Host: %s is not a loopback address; set User and Password", cfg.Host)
	}
	if cfg.Port == 0 {
		cfg.Port = server.RANDOM_PORT
	}
	if cfg.MaxPayload == 0 {
		cfg.MaxPayload = 2 << 20
	}
	if cfg.ReadyTimeout == 0 {
		cfg.ReadyTimeout = 30 * time.Second
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("natsembed: %w", err)
	}
	var own *url.Userinfo
	if cfg.Password == "" {
		var err error
		if own, err = makePassword(cfg.Dir); err != nil {
			return nil, err
		}
		cfg.User = own.Username()
		cfg.Password, _ = own.Password()
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "waybill", Host: cfg.Host, Port: cfg.Port, Username: cfg.User, Password: cfg.Password, MaxPayload: cfg.MaxPayload,
		JetStream: true, StoreDir: filepath.Clean(cfg.Dir), SyncAlways: true, NoSigs: true,
	})
	if err != nil {
		return nil, fmt.Errorf("natsembed: %w", err)
	}
	l := &logger{log: cfg.Logger, notices: cfg.Logger != nil}
	if l.log == nil {
		l.log = slog.Default()
	}
	s.SetLogger(l, false, false)
	s.Start()
	if err := ready(ctx, s, cfg.ReadyTimeout); err != nil {
		s.Shutdown()
		s.WaitForShutdown()
		return nil, err
	}
	return &Server{server: s, own: own}, nil
}

func ready(ctx context.Context, s *server.Server, within time.Duration) error {
	deadline := time.Now().Add(within)
	for !s.ReadyForConnections(50 * time.Millisecond) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if time.Now().After(deadline) || !s.Running() {
			return errors.New("natsembed: server not ready in time; see its log")
		}
	}
	if !s.JetStreamEnabled() {
		return errors.New("natsembed: JetStream did not start; see the server's log")
	}
	return nil
}

func loopback(host string) bool { return host == "127.0.0.1" || host == "::1" || host == "localhost" }

// URL returns the address for clients. The URL contains generated credentials,
// so do not show it; it does not contain those of [Config].
func (s *Server) URL() string {
	text := s.server.ClientURL()
	u, err := url.Parse(text)
	if s.own == nil || err != nil {
		return text
	}
	u.User = s.own
	return u.String()
}

// Close stops the server and waits for its end.
func (s *Server) Close() {
	s.server.Shutdown()
	s.server.WaitForShutdown()
}

// logger writes the server's log to slog.
type logger struct {
	log     *slog.Logger
	notices bool // log notices as well as warnings and errors
}

func (l *logger) Noticef(format string, v ...any) {
	if l.notices {
		l.log.Info(fmt.Sprintf(format, v...))
	}
}
func (l *logger) Warnf(format string, v ...any)  { l.log.Warn(fmt.Sprintf(format, v...)) }
func (l *logger) Fatalf(format string, v ...any) { l.log.Error(fmt.Sprintf(format, v...)) }
func (l *logger) Errorf(format string, v ...any) { l.log.Error(fmt.Sprintf(format, v...)) }
func (l *logger) Debugf(format string, v ...any) { l.log.Debug(fmt.Sprintf(format, v...)) }
func (l *logger) Tracef(format string, v ...any) { l.log.Debug(fmt.Sprintf(format, v...)) }

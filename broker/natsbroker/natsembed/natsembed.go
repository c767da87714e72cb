// Package natsembed runs a NATS server with JetStream inside the process, for programs that want a broker without running one. What it confirms is on
// the disk: it syncs every message.
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

// Config holds what may be tuned. A field that is zero has its default.
type Config struct {
	// Dir is where streams are kept. Required; it is made if it does not exist.
	Dir string
	// Host and Port are where it listens. Default to 127.0.0.1 and any free port.
	Host string
	Port int
	// User and Password are what clients have to give. A Host other than a loopback address needs
	// them. Default to the user "waybill" and a random password, which [Server.URL] has and a file
	// in Dir keeps: see [Password]. Other users of the machine cannot read it.
	User, Password string
	// MaxPayload is the largest message, headers included. Defaults to 2 MiB: the largest event fits.
	MaxPayload int32
	// ReadyTimeout is how long the server may take to recover its streams. Defaults to 30 s.
	ReadyTimeout time.Duration
	// Logger gets what the server logs. Defaults to [slog.Default], which gets its warnings and errors only;
	// slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
}

// Server is a running server.
type Server struct {
	server *server.Server
	own    *url.Userinfo // what the server made itself
}

const (
	ownUser = "waybill"
	// passwordFile is in Dir.
	passwordFile = "password"
)

// Password returns the name and password of the server that keeps its streams in dir and was
// started without any.
func Password(dir string) (*url.Userinfo, error) {
	text, err := os.ReadFile(filepath.Join(dir, passwordFile))
	if err != nil {
		return nil, fmt.Errorf("natsembed: %w", err)
	}
	return url.UserPassword(ownUser, strings.TrimSpace(string(text))), nil
}

// makePassword makes the password of a folder, if it has none.
func makePassword(dir string) (*url.Userinfo, error) {
	if own, err := Password(dir); !errors.Is(err, os.ErrNotExist) {
		return own, err
	}
	// The whole file is there at once, under its name: a second process may read it at any time.
	f, err := os.CreateTemp(dir, passwordFile+"-*") // readable by its owner only
	if err != nil {
		return nil, fmt.Errorf("natsembed: %w", err)
	}
	_, err = f.WriteString(rand.Text() + "\n")
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Link(f.Name(), filepath.Join(dir, passwordFile))
	}
	_ = os.Remove(f.Name())
	if err != nil && !errors.Is(err, os.ErrExist) { // another process was faster
		return nil, fmt.Errorf("natsembed: %w", err)
	}
	return Password(dir)
}

// Start starts a server and returns when it takes connections and its streams are recovered.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Dir == "" {
		return nil, errors.New("natsembed: field Dir is empty")
	}
	if cfg.Host == "" {
		cfg.Host = "127.0.0.1"
	}
	if !loopback(cfg.Host) && cfg.Password == "" {
		return nil, fmt.Errorf("natsembed: field Host: %s can be reached from elsewhere: set User and Password", cfg.Host)
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
			return errors.New("natsembed: the server does not become ready; its log says why")
		}
	}
	if !s.JetStreamEnabled() {
		return errors.New("natsembed: JetStream could not be started; the server's log says why")
	}
	return nil
}

func loopback(host string) bool { return host == "127.0.0.1" || host == "::1" || host == "localhost" }

// URL returns where clients connect. It has the name and password that the server made itself, so
// do not show it; those of [Config] it has not.
func (s *Server) URL() string {
	text := s.server.ClientURL()
	u, err := url.Parse(text)
	if s.own == nil || err != nil {
		return text
	}
	u.User = s.own
	return u.String()
}

// Close stops the server and returns when it has.
func (s *Server) Close() {
	s.server.Shutdown()
	s.server.WaitForShutdown()
}

// logger hands the server's log to slog.
type logger struct {
	log     *slog.Logger
	notices bool // also what is neither a warning nor an error
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

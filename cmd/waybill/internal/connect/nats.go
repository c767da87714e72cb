package connect

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/broker/natsembed"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/internal/logkey"
)

const (
	defaultStream = "waybill"
	defaultDir    = "waybill-jetstream"
	defaultListen = "127.0.0.1:4222"
)

func openNATS(ctx context.Context, u *url.URL, cfg SinkConfig) (*Sink, error) {
	if u.Opaque != "" {
		return openEmbedded(ctx, u, cfg)
	}
	create, err := parameters(u, append([]string{"create", "replicas"}, natsSecurity...)...)
	if err != nil {
		return nil, err
	}
	at, err := JetStreamOf(cfg.Sink)
	if err != nil {
		return nil, err
	}
	return connectNATS(ctx, at, create["create"] == "true", cfg)
}

// maxReplicas is the server's limit.
const maxReplicas = 5

// replicasOf returns the parameter replicas, or 0.
func replicasOf(u *url.URL) (int, error) {
	text := u.Query().Get("replicas")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxReplicas {
		return 0, badURL("sink.url", "write nats://host:4222,host2:4222/STREAM?create=true&replicas=3", "replicas=%s is not a number from 1 to %d", text, maxReplicas)
	}
	if u.Query().Get("create") != "true" {
		return 0, badURL("sink.url", "add create=true, or change the stream with: nats stream edit --replicas "+text, "replicas applies to a stream that create=true creates")
	}
	return n, nil
}

// natsSecurity lists the parameters for the client library.
var natsSecurity = []string{"ca", "cert", "key", "insecure", "creds"} //nolint:gochecknoglobals // never changed

// eachHost returns the comma-separated URLs of all hosts of an address, each
// with the user, the password and the parameters.
func eachHost(u *url.URL, address settings.Secret) (string, error) {
	_, hosts, err := settings.ParseURL(address.Reveal())
	if err != nil {
		return "", badURL("sink.url", "separate the hosts with commas", "malformed")
	}
	var all []string
	for host := range strings.SplitSeq(hosts, ",") {
		all = append(all, (&url.URL{Scheme: u.Scheme, User: u.User, Host: host}).String())
	}
	query := url.Values{}
	for _, name := range natsSecurity {
		if text := u.Query().Get(name); text != "" {
			query.Set(name, text)
		}
	}
	if len(query) > 0 {
		return strings.Join(all, ",") + "?" + query.Encode(), nil
	}
	return strings.Join(all, ","), nil
}

// parameters returns the query parameters. An unknown name is an error.
func parameters(u *url.URL, known ...string) (map[string]string, error) {
	out := make(map[string]string)
	for name, values := range u.Query() {
		i := 0
		for i < len(known) && known[i] != name {
			i++
		}
		if i == len(known) {
			advice := "parameters: " + strings.Join(known, ", ")
			if near := hint.Nearest(name, known); near != "" {
				advice = "did you mean " + near + "?"
			}
			return nil, badURL("sink.url", advice, "unknown parameter %s of %s://", name, u.Scheme)
		}
		out[name] = values[len(values)-1]
	}
	return out, nil
}

func connectNATS(ctx context.Context, at JetStream, create bool, cfg SinkConfig) (*Sink, error) {
	pattern := cfg.Topic
	if pattern == "" {
		pattern = at.Stream + ".{topic}"
	}
	topics, err := natsbroker.Names().Template(pattern)
	if err != nil {
		return nil, wrongTopic(err)
	}
	nc := natsbroker.Config{Stream: at.Stream, Create: create, Replicas: at.Replicas, Logger: cfg.Logger}
	if create {
		nc.Subjects = []string{literal(pattern, '.') + ">"}
	}
	b, err := natsbroker.Open(ctx, at.Servers, nc)
	if err != nil {
		return nil, unreachable("sink.url", cfg.URL, "check that the server is running with JetStream (nats-server -js); ?create=true creates the stream", err)
	}
	s, err := b.Sink(natsbroker.SinkConfig{EventSource: cfg.EventSource, Topics: topics})
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return &Sink{Sink: s, close: b.Close}, nil
}

func wrongTopic(err error) error {
	return hint.New("fields are {topic}, {type}, {aggregatetype} and {tenant}", "sink.topic: %w: %w", ErrBadSetting, err)
}

// literal returns the complete parts at the start of a template, with the
// trailing separator: the common prefix of all its topics.
func literal(pattern string, separator byte) string {
	fixed, _, _ := strings.Cut(pattern, "{")
	return fixed[:strings.LastIndexByte(fixed, separator)+1]
}

// openEmbedded starts a server in this process and connects to it.
func openEmbedded(ctx context.Context, u *url.URL, cfg SinkConfig) (*Sink, error) {
	if u.Opaque != "embedded" {
		return nil, badURL("sink.url", "write nats://host:4222 or nats:embedded", "nats: must be followed by embedded")
	}
	given, err := parameters(u, "dir", "listen")
	if err != nil {
		return nil, err
	}
	dir, listen := given["dir"], given["listen"]
	if dir == "" {
		dir = defaultDir
	}
	if listen == "" {
		listen = defaultListen
	}
	host, port, err := net.SplitHostPort(listen)
	number, notNumber := strconv.Atoi(port)
	if err != nil || notNumber != nil {
		return nil, badURL("sink.url", "write nats:embedded?listen=127.0.0.1:4222", "listen is not a valid address")
	}
	server, err := natsembed.Start(ctx, natsembed.Config{Dir: dir, Host: host, Port: number, Logger: slog.New(atLeastWarn{cfg.Logger.Handler()})})
	if err != nil {
		return nil, unreachable("sink.url", cfg.URL, "check whether another server listens at "+listen+"; nats:embedded?listen=127.0.0.1:4223 uses another port", err)
	}
	s, err := connectNATS(ctx, JetStream{Servers: server.URL(), Stream: defaultStream}, true, cfg)
	if err != nil {
		server.Close()
		return nil, err
	}
	cfg.Logger.Info("embedded NATS server with JetStream started", slog.String(logkey.Component, "sink"), slog.Any(logkey.URL, settings.NewSecret(server.URL())), slog.String(logkey.Dir, dir))
	disconnect := s.close
	s.close = func() error {
		err := disconnect()
		server.Close()
		return err
	}
	return s, nil
}

// atLeastWarn drops messages below WARN: the server logs every step, which
// operators do not need.
type atLeastWarn struct{ slog.Handler }

func (h atLeastWarn) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && h.Handler.Enabled(ctx, level)
}

// WithAttrs implements [slog.Handler].
func (h atLeastWarn) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atLeastWarn{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements [slog.Handler].
func (h atLeastWarn) WithGroup(name string) slog.Handler {
	return atLeastWarn{h.Handler.WithGroup(name)}
}

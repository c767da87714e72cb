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
	"github.com/waybillhq/waybill/broker/natsbroker/natsembed"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
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
	create, err := parameters(u, append([]string{"create"}, natsSecurity...)...)
	if err != nil {
		return nil, err
	}
	stream := strings.Trim(u.Path, "/")
	if stream == "" {
		stream = defaultStream
	}
	servers, err := eachHost(u, cfg.URL)
	if err != nil {
		return nil, err
	}
	return connectNATS(ctx, servers, stream, create["create"] == "true", cfg)
}

// natsSecurity is the parameters that are the client's.
var natsSecurity = []string{"ca", "cert", "key", "insecure", "creds"} //nolint:gochecknoglobals // never changed

// eachHost returns the URL of every host that an address names, with commas between them: user,
// password and what says how to connect are those of all.
func eachHost(u *url.URL, address settings.Secret) (string, error) {
	_, hosts, err := settings.ParseURL(address.Reveal())
	if err != nil {
		return "", badURL("sink.url", "name the hosts with commas between them", "it cannot be read")
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

// parameters returns what follows the ?, if it is among the known names.
func parameters(u *url.URL, known ...string) (map[string]string, error) {
	out := make(map[string]string)
	for name, values := range u.Query() {
		i := 0
		for i < len(known) && known[i] != name {
			i++
		}
		if i == len(known) {
			advice := "there are " + strings.Join(known, ", ")
			if near := hint.Nearest(name, known); near != "" {
				advice = "did you mean " + near + "?"
			}
			return nil, badURL("sink.url", advice, "%s:// has no parameter %s", u.Scheme, name)
		}
		out[name] = values[len(values)-1]
	}
	return out, nil
}

func connectNATS(ctx context.Context, servers, stream string, create bool, cfg SinkConfig) (*Sink, error) {
	pattern := cfg.Topic
	if pattern == "" {
		pattern = stream + ".{topic}"
	}
	topics, err := natsbroker.Names().Template(pattern)
	if err != nil {
		return nil, wrongTopic(err)
	}
	nc := natsbroker.Config{Stream: stream, Create: create, Topics: topics, EventSource: cfg.Source, Logger: cfg.Logger}
	if create {
		nc.Subjects = []string{literal(pattern, '.') + ">"}
	}
	b, err := natsbroker.Open(ctx, servers, nc)
	if err != nil {
		return nil, unreachable("sink.url", cfg.URL, "is the server running with JetStream (nats-server -js)? ?create=true makes the stream", err)
	}
	s, err := b.Sink()
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return &Sink{Sink: s, close: b.Close}, nil
}

func wrongTopic(err error) error {
	return hint.New("fields are {topic}, {type}, {aggregatetype} and {tenant}", "sink.topic: %w: %w", ErrBadSetting, err)
}

// literal returns the whole parts that a template begins with, with the separator behind them: all of its topics begin so.
func literal(pattern string, separator byte) string {
	fixed, _, _ := strings.Cut(pattern, "{")
	return fixed[:strings.LastIndexByte(fixed, separator)+1]
}

// openEmbedded starts a server in this process and connects to it.
func openEmbedded(ctx context.Context, u *url.URL, cfg SinkConfig) (*Sink, error) {
	if u.Opaque != "embedded" {
		return nil, badURL("sink.url", "write nats://host:4222 or nats:embedded", "nats: does not know what follows")
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
		return nil, badURL("sink.url", "write nats:embedded?listen=127.0.0.1:4222", "listen is not an address")
	}
	server, err := natsembed.Start(ctx, natsembed.Config{Dir: dir, Host: host, Port: number, Logger: slog.New(atLeastWarn{cfg.Logger.Handler()})})
	if err != nil {
		return nil, unreachable("sink.url", cfg.URL, "is another NATS server at "+listen+"? nats:embedded?listen=127.0.0.1:4223 takes another port", err)
	}
	s, err := connectNATS(ctx, server.URL(), defaultStream, true, cfg)
	if err != nil {
		server.Close()
		return nil, err
	}
	cfg.Logger.Info("waybill: a NATS server with JetStream runs in this process", slog.Any("url", settings.NewSecret(server.URL())), slog.String("dir", dir))
	disconnect := s.close
	s.close = func() error {
		err := disconnect()
		server.Close()
		return err
	}
	return s, nil
}

// atLeastWarn passes warnings and worse on: what a server says about each of its steps is not an operator's business.
type atLeastWarn struct{ slog.Handler }

func (h atLeastWarn) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && h.Handler.Enabled(ctx, level)
}

// WithAttrs and WithGroup keep what they return as quiet.
func (h atLeastWarn) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atLeastWarn{h.Handler.WithAttrs(attrs)}
}

// WithGroup: see WithAttrs.
func (h atLeastWarn) WithGroup(name string) slog.Handler {
	return atLeastWarn{h.Handler.WithGroup(name)}
}

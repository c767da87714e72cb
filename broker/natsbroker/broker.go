package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// Config configures the connection and its streams. Zero fields have their
// defaults.
type Config struct {
	// Stream is the stream that events are published to and consumed from.
	// Required.
	Stream string
	// Create creates the stream, and one for dead letters, if they do not
	// exist. Defaults to false: Open and New fail if the stream does not exist.
	Create bool
	// Subjects are the subjects of the stream; required with Create.
	Subjects []string
	// Replicas is the number of servers that store a created stream. Defaults
	// to 1.
	Replicas int
	// DedupWindow is how long the server drops messages with a known
	// Nats-Msg-Id, for a created stream. Defaults to 2 min.
	DedupWindow time.Duration

	// PublishTimeout is how long a message may wait for its PubAck. Defaults to
	// 10 s.
	PublishTimeout time.Duration
	// Options are client options of Open, for TLS, credentials and so on. The
	// package's own options are applied after them. New rejects them. Defaults
	// to none.
	Options []nats.Option
	// Logger receives connection changes and server errors. Defaults to
	// [slog.Default]; slog.New(slog.DiscardHandler) disables logging.
	Logger *slog.Logger
}

// complete returns the config with defaults, or an error that lists every
// invalid field.
func (c Config) complete() (Config, error) {
	var errs []error
	if err := checkName(c.Stream); err != nil {
		errs = append(errs, fmt.Errorf("Config.Stream: %w", err))
	}
	if c.Create && len(c.Subjects) == 0 {
		errs = append(errs, errors.New("Config.Subjects: empty, but Create is true; want at least one, such as \"orders.>\""))
	}
	if c.Replicas < 0 {
		errs = append(errs, fmt.Errorf("Config.Replicas: %d is negative", c.Replicas))
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{{"DedupWindow", &c.DedupWindow, 2 * time.Minute}, {"PublishTimeout", &c.PublishTimeout, 10 * time.Second}} {
		switch {
		case *d.value == 0:
			*d.value = d.def
		case *d.value < 0:
			errs = append(errs, fmt.Errorf("Config.%s: %v is negative", d.name, *d.value))
		}
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("natsbroker: %w", err)
	}
	return c, nil
}

// checkName checks the name of a stream or consumer.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("empty")
	case len(name) > 200:
		return fmt.Errorf("%d bytes, at most 200", len(name))
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`.*>/\`, r) }):
		return errors.New(`must not contain a space, a control character, or one of .*>/\`)
	}
	return nil
}

// Names returns the rules for subjects; use its Template for
// [SinkConfig.Topics].
func Names() broker.TopicRules {
	return broker.TopicRules{Separator: '.', Max: 255, Allowed: func(c byte) bool { return c > ' ' && c < 0x7f && c != '*' && c != '>' }}
}

// topics returns topics that check every subject. Subjects of the server itself
// are rejected.
func topics(t broker.Topics) broker.Topics {
	checked := Names().Checked(t)
	return func(ev *waybill.Event) (string, error) {
		subject, err := checked(ev)
		if err == nil && (subject[0] == '$' || strings.HasPrefix(subject, "_INBOX.")) {
			return "", fmt.Errorf("%q is reserved for the server", subject)
		}
		return subject, err
	}
}

// Broker is a connection to a NATS server with JetStream.
type Broker struct {
	cfg   Config
	conn  *nats.Conn
	js    jetstream.JetStream
	codec *broker.Codec // of the sources
	log   *slog.Logger
	owned bool                   // the broker opened the connection
	lost  atomic.Pointer[signal] // signaled when the connection is lost next
}

// Address returns URLs in the client's form, and the client options for their
// query. The query follows the last of several URLs and applies to all of them.
// Its parameters are ca, cert and key, which name PEM files; insecure=true,
// which accepts any certificate; and creds, which names a file with NATS
// credentials. Address logs warnings about insecure settings.
func Address(urls string, log *slog.Logger) (string, []nats.Option, error) {
	bare, text, found := strings.Cut(urls, "?")
	if !found {
		return urls, nil, nil
	}
	query, err := url.ParseQuery(text)
	if err != nil || strings.Contains(text, "://") {
		return "", nil, errors.New("URL: invalid query; with several URLs it must follow the last one")
	}
	secure, err := driver.TakeTLS(query, nil)
	if err != nil {
		return "", nil, fmt.Errorf("URL: %w", err)
	}
	var opts []nats.Option
	if secure != nil {
		driver.WarnInsecure(log, secure, bare)
		opts = append(opts, nats.Secure(secure))
	}
	if file := query.Get("creds"); file != "" {
		if _, err := os.Stat(file); err != nil {
			return "", nil, fmt.Errorf("URL: parameter creds: %w", err)
		}
		opts = append(opts, nats.UserCredentials(file))
	}
	query.Del("creds")
	for name := range query {
		return "", nil, fmt.Errorf("URL: unknown parameter %q: want ca, cert, key, insecure or creds", name)
	}
	return bare, opts, nil
}

// Open connects to one or more servers (nats://host:4222, separated by commas;
// see [Address]) and finds the stream. Errors and logs never show the URL's
// password. A lost connection is restored automatically.
func Open(ctx context.Context, url string, cfg Config) (*Broker, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	b, err := open(ctx, url, cfg)
	if err != nil {
		return nil, driver.RedactError(fmt.Errorf("natsbroker: %s: %w", driver.Redact(url), err), url)
	}
	return b, nil
}

func open(ctx context.Context, url string, cfg Config) (*Broker, error) {
	b, err := newBroker(cfg, driver.Redact(url))
	if err != nil {
		return nil, err
	}
	b.owned = true
	bare, secure, err := Address(url, cfg.Logger)
	if err != nil {
		return nil, err
	}
	b.cfg.Options = append(secure, cfg.Options...)
	if b.conn, err = nats.Connect(bare, b.options()...); err != nil {
		return nil, err
	}
	if err := b.start(ctx); err != nil {
		b.conn.Close()
		return nil, err
	}
	return b, nil
}

// New returns a broker that uses the caller's connection, and finds the stream.
// The caller closes the connection, after the broker. The connection must not
// buffer messages while it is lost (nats.ReconnectBufSize(-1)): the client
// would publish events that the relay has long since taken back. It should
// reconnect without end (nats.MaxReconnects(-1)). New adds a handler of lost
// connections in front of the connection's own.
func New(ctx context.Context, conn *nats.Conn, cfg Config) (*Broker, error) {
	options := len(cfg.Options) > 0
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	switch {
	case options:
		return nil, errors.New("natsbroker: Config.Options: not empty, but New uses the caller's connection")
	case conn == nil:
		return nil, errors.New("natsbroker: connection: nil")
	case conn.Opts.ReconnectBufSize >= 0:
		return nil, errors.New("natsbroker: connection: it buffers messages while it is lost; want nats.ReconnectBufSize(-1)")
	}
	b, err := newBroker(cfg, conn.ConnectedUrlRedacted())
	if err != nil {
		return nil, err
	}
	b.conn = conn
	before := conn.DisconnectErrHandler()
	conn.SetDisconnectErrHandler(func(c *nats.Conn, err error) {
		b.disconnected(c, err)
		if before != nil {
			before(c, err)
		}
	})
	if err := b.start(ctx); err != nil {
		return nil, fmt.Errorf("natsbroker: %w", err)
	}
	return b, nil
}

// newBroker returns a broker without a connection.
func newBroker(cfg Config, address string) (*Broker, error) {
	codec, err := broker.NewCodec(broker.NATS, broker.CodecConfig{})
	if err != nil {
		return nil, err
	}
	b := &Broker{cfg: cfg, codec: codec, log: cfg.Logger.With("broker", address)}
	b.lost.Store(newSignal())
	return b, nil
}

// start finds the streams.
func (b *Broker) start(ctx context.Context) error {
	var err error
	b.js, err = jetstream.New(b.conn, jetstream.WithPublishAsyncTimeout(b.cfg.PublishTimeout), jetstream.WithPublishAsyncMaxPending(maxPending))
	if err != nil {
		return err
	}
	return b.ensure(ctx)
}

// maxPending is the maximum number of messages that wait for their PubAck: more
// than a relay has in flight.
const maxPending = 16 << 10

func (b *Broker) options() []nats.Option {
	return append(append([]nats.Option{nats.Name("waybill"), nats.PingInterval(10 * time.Second)}, b.cfg.Options...),
		nats.MaxReconnects(-1), nats.ReconnectWait(250*time.Millisecond), nats.ReconnectJitter(250*time.Millisecond, 250*time.Millisecond),
		// After an outage, a buffer would publish events that the relay has
		// long since taken back.
		nats.ReconnectBufSize(-1),
		// A password that is temporarily wrong, while it is being changed, must
		// not end the connection permanently.
		nats.IgnoreAuthErrorAbort(),
		nats.DisconnectErrHandler(b.disconnected),
		nats.ReconnectHandler(func(*nats.Conn) { b.log.Info("connection to NATS restored") }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { b.log.Warn("NATS error", "error", err) }),
	)
}

// ensure finds the streams, or creates them if allowed.
func (b *Broker) ensure(ctx context.Context) error {
	if !b.cfg.Create {
		_, err := b.js.Stream(ctx, b.cfg.Stream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("stream %s does not exist: create it, or set Config.Create: %w", b.cfg.Stream, err)
		}
		return err
	}
	for _, s := range []jetstream.StreamConfig{
		{Name: b.cfg.Stream, Subjects: b.cfg.Subjects, Duplicates: b.cfg.DedupWindow, Replicas: b.cfg.Replicas},
		{Name: b.deadStream(), Subjects: []string{b.deadSubject(">")}, Duplicates: b.cfg.DedupWindow, Replicas: b.cfg.Replicas},
	} {
		_, err := b.js.CreateStream(ctx, s)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			// An operator may have changed it deliberately.
			b.log.Info("stream exists and is used unchanged", "stream", s.Name)
		} else if err != nil {
			return fmt.Errorf("creating stream %s: %w", s.Name, err)
		}
	}
	return nil
}

// deadStream returns the stream for the dead letters of all sources.
func (b *Broker) deadStream() string { return b.cfg.Stream + "_dead" }

// deadSubject returns the default subject for the dead letters of a source.
func (b *Broker) deadSubject(source string) string { return "dead." + b.cfg.Stream + "." + source }

// apiTimeout bounds a request to the server.
const apiTimeout = 10 * time.Second

// connected returns a context for a request to the server. The context ends
// when the connection is lost, because the client would wait for the answer
// until its timeout.
func (b *Broker) connected(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	lost := b.lost.Load().done
	go func() {
		select {
		case <-lost:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// signal is closed once, when an event happens.
type signal struct{ done chan struct{} }

func newSignal() *signal { return &signal{done: make(chan struct{})} }

// disconnected is called by the client. The client's status listeners are not
// used, because removing one removes all, including the publisher's own.
func (b *Broker) disconnected(_ *nats.Conn, err error) {
	close(b.lost.Swap(newSignal()).done)
	b.log.Warn("connection to NATS lost", "error", err)
}

// Close closes the connection, if Open created it. Sources must have ended
// before.
func (b *Broker) Close() error {
	if b.owned {
		b.conn.Close()
	} else {
		b.js.CleanupPublisher()
	}
	return nil
}

package natsbroker

import (
	"cmp"
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
)

// Config holds what may be tuned. A field that is zero has its default.
type Config struct {
	// Stream is the stream that events go to and come from. Required.
	Stream string
	// Create makes the stream, and one for dead letters, if they do not exist. Otherwise Open fails when the stream does not.
	Create bool
	// Subjects are what the stream listens to; needed with Create.
	Subjects []string
	// Replicas is for Create: on how many servers the stream is kept. Defaults to 1.
	Replicas int
	// DedupWindow is for Create: for how long the server drops a message with the same Nats-Msg-Id. Defaults to 2 min.
	DedupWindow time.Duration

	// Topics says to which subject an event goes. Defaults to its Topic. See [Names] for templates.
	Topics broker.Topics
	// EventSource is the CloudEvents attribute "source". Defaults to "waybill".
	EventSource string
	// PublishTimeout is how long a message may wait for its PubAck. Defaults to 10 s.
	PublishTimeout time.Duration
	// Options are the client's own, for TLS, credentials and the like. Those that Open sets itself come after them.
	Options []nats.Option
	// Logger gets what an operator should know. Defaults to [slog.Default];
	// slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
}

// complete returns the config with its defaults in place, or every field that is wrong.
func (c Config) complete() (Config, error) {
	var errs []error
	if err := checkName(c.Stream); err != nil {
		errs = append(errs, fmt.Errorf("field Stream: %w", err))
	}
	if c.Create && len(c.Subjects) == 0 {
		errs = append(errs, errors.New("field Subjects: Create needs at least one, such as \"orders.>\""))
	}
	if c.Replicas < 0 {
		errs = append(errs, fmt.Errorf("field Replicas: %d is negative", c.Replicas))
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		usual time.Duration
	}{{"DedupWindow", &c.DedupWindow, 2 * time.Minute}, {"PublishTimeout", &c.PublishTimeout, 10 * time.Second}} {
		switch {
		case *d.value == 0:
			*d.value = d.usual
		case *d.value < 0:
			errs = append(errs, fmt.Errorf("field %s: %v is negative", d.name, *d.value))
		}
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, errors.Join(errs...)
}

// checkName checks the name of a stream or consumer.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("is empty")
	case len(name) > 200:
		return fmt.Errorf("%d bytes, at most 200", len(name))
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`.*>/\`, r) }):
		return errors.New(`must not contain a space, a control character, or one of .*>/\`)
	}
	return nil
}

// Names is what a subject may look like; use its Template for [Config.Topics].
func Names() broker.TopicRules {
	return broker.TopicRules{Separator: '.', Max: 255, Allowed: func(c byte) bool { return c > ' ' && c < 0x7f && c != '*' && c != '>' }}
}

// topics returns the topics with every subject checked: the server's own must be out of reach.
func topics(t broker.Topics) broker.Topics {
	checked := Names().Checked(t)
	return func(ev *waybill.Event) (string, error) {
		subject, err := checked(ev)
		if err == nil && (subject[0] == '$' || strings.HasPrefix(subject, "_INBOX.")) {
			return "", fmt.Errorf("%q belongs to the server", subject)
		}
		return subject, err
	}
}

// Broker is a connection to a NATS server with JetStream.
type Broker struct {
	cfg   Config
	conn  *nats.Conn
	js    jetstream.JetStream
	codec *broker.Codec
	log   *slog.Logger
	lost  atomic.Pointer[signal] // for the next time that the connection is lost
}

// Address returns URLs as the client takes them, and the options that their query means. It may
// have the parameters ca, cert and key, which name files in PEM, insecure=true, which takes any
// certificate, and creds, which names a file with an account's credentials. It stands behind the
// last of several URLs and is for all of them. What is not safe is logged.
func Address(urls string, log *slog.Logger) (string, []nats.Option, error) {
	bare, text, found := strings.Cut(urls, "?")
	if !found {
		return urls, nil, nil
	}
	query, err := url.ParseQuery(text)
	if err != nil || strings.Contains(text, "://") {
		return "", nil, errors.New("the URL: its query cannot be read; with several URLs it stands behind the last")
	}
	secure, err := broker.TakeTLS(query, nil)
	if err != nil {
		return "", nil, fmt.Errorf("the URL: %w", err)
	}
	var opts []nats.Option
	if secure != nil {
		broker.WarnInsecure(log, secure, bare)
		opts = append(opts, nats.Secure(secure))
	}
	if file := query.Get("creds"); file != "" {
		if _, err := os.Stat(file); err != nil {
			return "", nil, fmt.Errorf("the URL: parameter creds: %w", err)
		}
		opts = append(opts, nats.UserCredentials(file))
	}
	query.Del("creds")
	for name := range query {
		return "", nil, fmt.Errorf("the URL: no parameter %q: there are ca, cert, key, insecure and creds", name)
	}
	return bare, opts, nil
}

// Open connects to one or more servers (nats://host:4222, with commas between them; see [Address])
// and looks for the stream. Errors and logs never show the URL's password. When the connection is
// lost, it comes back by itself.
func Open(ctx context.Context, url string, cfg Config) (*Broker, error) {
	b, err := open(ctx, url, cfg)
	if err != nil {
		return nil, broker.RedactError(fmt.Errorf("natsbroker: %s: %w", broker.Redact(url), err), url)
	}
	return b, nil
}

func open(ctx context.Context, url string, cfg Config) (*Broker, error) {
	given := cfg.Logger
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	codec, err := broker.NewCodec(broker.NATS, broker.CodecConfig{Source: cfg.EventSource, Topics: topics(cfg.Topics)})
	if err != nil {
		return nil, err
	}
	b := &Broker{cfg: cfg, codec: codec, log: cfg.Logger.With("broker", broker.Redact(url))}
	b.lost.Store(newSignal())
	bare, secure, err := Address(url, cmp.Or(given, slog.Default()))
	if err != nil {
		return nil, err
	}
	b.cfg.Options = append(secure, cfg.Options...)
	if b.conn, err = nats.Connect(bare, b.options()...); err != nil {
		return nil, err
	}
	b.js, err = jetstream.New(b.conn, jetstream.WithPublishAsyncTimeout(cfg.PublishTimeout), jetstream.WithPublishAsyncMaxPending(maxPending))
	if err == nil {
		err = b.ensure(ctx)
	}
	if err != nil {
		b.conn.Close()
		return nil, err
	}
	return b, nil
}

// maxPending is how many messages may wait for their PubAck: more than a relay has under way.
const maxPending = 16 << 10

func (b *Broker) options() []nats.Option {
	return append(append([]nats.Option{nats.Name("waybill"), nats.PingInterval(10 * time.Second)}, b.cfg.Options...),
		nats.MaxReconnects(-1), nats.ReconnectWait(250*time.Millisecond), nats.ReconnectJitter(250*time.Millisecond, 250*time.Millisecond),
		// A buffer would publish, after an outage, what the relay has long since taken back.
		nats.ReconnectBufSize(-1),
		// A password that is wrong for a moment, while somebody changes it, must not end the connection for good.
		nats.IgnoreAuthErrorAbort(),
		nats.DisconnectErrHandler(b.disconnected),
		nats.ReconnectHandler(func(*nats.Conn) { b.log.Info("the connection to NATS is back") }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { b.log.Warn("NATS reports an error", "error", err) }),
	)
}

// ensure looks for the streams, and makes them if it may.
func (b *Broker) ensure(ctx context.Context) error {
	if !b.cfg.Create {
		_, err := b.js.Stream(ctx, b.cfg.Stream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("there is no stream %s: make it, or set Create: %w", b.cfg.Stream, err)
		}
		return err
	}
	for _, s := range []jetstream.StreamConfig{
		{Name: b.cfg.Stream, Subjects: b.cfg.Subjects, Duplicates: b.cfg.DedupWindow, Replicas: b.cfg.Replicas},
		{Name: b.deadStream(), Subjects: []string{b.deadSubject(">")}, Duplicates: b.cfg.DedupWindow, Replicas: b.cfg.Replicas},
	} {
		_, err := b.js.CreateStream(ctx, s)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			b.log.Info("the stream exists and is used as it is", "stream", s.Name) // an operator may have changed it, for a reason
		} else if err != nil {
			return fmt.Errorf("making the stream %s: %w", s.Name, err)
		}
	}
	return nil
}

// deadStream is the stream with the dead letters of all sources.
func (b *Broker) deadStream() string { return b.cfg.Stream + "_dead" }

// deadSubject is where the dead letters of one source go, unless its config says otherwise.
func (b *Broker) deadSubject(source string) string { return "dead." + b.cfg.Stream + "." + source }

// apiTimeout bounds a question to the server.
const apiTimeout = 10 * time.Second

// connected returns a context for a question to the server. It ends when the connection is lost: the client would wait for the answer to the end.
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

// signal is closed when something happens, once.
type signal struct{ done chan struct{} }

func newSignal() *signal { return &signal{done: make(chan struct{})} }

// disconnected is called by the client. The client has listeners for that, too, but removing one removes all, the publisher's own among them.
func (b *Broker) disconnected(_ *nats.Conn, err error) {
	close(b.lost.Swap(newSignal()).done)
	b.log.Warn("the connection to NATS is lost", "error", err)
}

// Codec returns the form in which messages travel.
func (b *Broker) Codec() *broker.Codec { return b.codec }

// Close ends the connection. Sources should have ended before.
func (b *Broker) Close() error {
	b.conn.Close()
	return nil
}

package pulsarbroker

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
)

// Config holds what may be tuned of the client; its zero value is ready. A field that is zero has its default.
type Config struct {
	// Namespace is where topics are whose name has no namespace. Defaults to "public/default".
	Namespace string
	// Timeout is how long the broker may be silent: while connecting, and before it confirms. Defaults to 15 s.
	PublishTimeout time.Duration
	// Heartbeat is how often a connection is tried out that is silent. Defaults to 10 s.
	Heartbeat time.Duration
	// Options, if it is not nil, changes what the client is made with: certificates, other kinds of authentication, metrics.
	Options func(*pulsar.ClientOptions)
	// Logger gets what the client itself has to say, which is a lot. Defaults to [slog.Default], which gets its warnings and
	// errors only; slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
}

// Broker is a Pulsar cluster. It is safe for concurrent use.
type Broker struct {
	url    string
	cfg    Config
	client pulsar.Client
	dead   *producers // of the sources, for dead letters

	mu      sync.Mutex
	pools   []*producers
	running int           // calls of the client whose callers may have left
	idle    chan struct{} // closed when there are none, once the broker is closed
	closed  bool
}

// Open connects to the cluster that a URL names: pulsar://host:port, or pulsar+ssl:// for TLS;
// several hosts have commas between them. A token is given as ?token=…, a name and a password as
// user:password@host. ca, cert and key name files in PEM, and insecure=true takes any certificate.
// It reports a cluster that cannot be reached; one that goes away later is connected to again.
func Open(ctx context.Context, url string, cfg Config) (*Broker, error) {
	if cfg.PublishTimeout < 0 || cfg.Heartbeat < 0 {
		return nil, errors.New("pulsarbroker: fields Timeout and Heartbeat: not negative")
	}
	if cfg.Namespace == "" {
		cfg.Namespace = "public/default"
	}
	if strings.Count(cfg.Namespace, "/") != 1 || names.Check(cfg.Namespace) != nil {
		return nil, fmt.Errorf("pulsarbroker: field Namespace: %q, want tenant/namespace", cfg.Namespace)
	}
	if cfg.PublishTimeout == 0 {
		cfg.PublishTimeout = 15 * time.Second
	}
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = 10 * time.Second
	}
	b := &Broker{url: url, cfg: cfg}
	opts, err := options(url, cfg)
	if err != nil {
		return nil, b.hide(fmt.Errorf("pulsarbroker: the URL: %w", err))
	}
	if err := greet(ctx, &opts); err != nil {
		return nil, b.hide(fmt.Errorf("pulsarbroker: connect: %w", err))
	}
	if b.client, err = pulsar.NewClient(opts); err != nil {
		return nil, b.hide(fmt.Errorf("pulsarbroker: %w", err))
	}
	b.dead = b.newProducers(SinkConfig{Subscriptions: []string{DeadLetterSubscription}, MaxProducers: 64})
	if err := b.reach(ctx); err != nil {
		go func() { _ = b.Close() }() // the client knows no context, and goes on for a while
		return nil, b.hide(fmt.Errorf("pulsarbroker: connect: %w", err))
	}
	return b, nil
}

// options returns what the client is made with.
func options(text string, cfg Config) (pulsar.ClientOptions, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(atLeastWarn{slog.Default().Handler()})
	}
	logger := log.NewLoggerWithSlog(cfg.Logger)
	opts := pulsar.ClientOptions{
		OperationTimeout: cfg.PublishTimeout, ConnectionTimeout: cfg.PublishTimeout, KeepAliveInterval: cfg.Heartbeat,
		TLSValidateHostname: true, Logger: logger, Description: "waybill",
		MetricsRegisterer: prometheus.NewRegistry(), // the default one is the program's
	}
	// By hand: URLs have one host.
	address, query, _ := strings.Cut(text, "?")
	scheme, hosts, ok := strings.Cut(address, "://")
	if !ok || scheme != "pulsar" && scheme != "pulsar+ssl" {
		return opts, errors.New("want pulsar://host:port or pulsar+ssl://host:port")
	}
	if at := strings.LastIndexByte(hosts, '@'); at >= 0 {
		u, err := url.Parse("pulsar://" + hosts[:at] + "@host")
		if err != nil {
			return opts, errors.New("the user or password is not escaped as in a URL")
		}
		password, _ := u.User.Password()
		if opts.Authentication, err = pulsar.NewAuthenticationBasic(u.User.Username(), password); err != nil {
			return opts, err
		}
		hosts = hosts[at+1:]
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return opts, errors.New("the query is not escaped as in a URL")
	}
	// The client reads the files again for every connection, and sets the name of the host that it
	// connects to.
	opts.TLSTrustCertsFilePath, opts.TLSCertificateFile, opts.TLSKeyFilePath = values.Get("ca"), values.Get("cert"), values.Get("key")
	secure, err := broker.TakeTLS(values, nil)
	if err != nil {
		return opts, err
	}
	if secure != nil {
		if scheme != "pulsar+ssl" {
			return opts, errors.New("parameters ca, cert, key and insecure are for TLS: want pulsar+ssl://")
		}
		broker.WarnInsecure(cmp.Or(cfg.Logger, slog.Default()), secure, scheme+"://"+hosts)
		opts.TLSAllowInsecureConnection, opts.TLSValidateHostname = secure.InsecureSkipVerify, !secure.InsecureSkipVerify
	}
	for name := range values {
		if name != "token" {
			return opts, fmt.Errorf("no parameter %q: there are ca, cert, key, insecure and token", name)
		}
		opts.Authentication = pulsar.NewAuthenticationToken(values.Get(name))
	}
	opts.URL = scheme + "://" + hosts
	if cfg.Options != nil {
		cfg.Options(&opts)
	}
	return opts, nil
}

// greet connects to the first server that answers, with TLS, and reports a certificate that is
// not to be trusted. The client keeps such an error to itself, and tries again until its time is
// over. What else goes wrong is for the client to report.
func greet(ctx context.Context, opts *pulsar.ClientOptions) error {
	hosts, ok := strings.CutPrefix(opts.URL, "pulsar+ssl://")
	if !ok {
		return nil
	}
	secure := opts.TLSConfig
	if secure == nil {
		insecure := ""
		if opts.TLSAllowInsecureConnection {
			insecure = "true"
		}
		var err error
		if secure, err = broker.TakeTLS(url.Values{
			"ca": {opts.TLSTrustCertsFilePath}, "cert": {opts.TLSCertificateFile}, "key": {opts.TLSKeyFilePath}, "insecure": {insecure},
		}, nil); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, opts.ConnectionTimeout)
	defer cancel()
	for host := range strings.SplitSeq(hosts, ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), "6651")
		}
		conn, err := (&tls.Dialer{Config: secure}).DialContext(ctx, "tcp", host)
		if err == nil {
			return conn.Close()
		}
		var untrusted *tls.CertificateVerificationError
		if errors.As(err, &untrusted) {
			return err
		}
	}
	return nil
}

// reach asks the cluster for something that every cluster answers. That this account must not know it is an answer, too.
func (b *Broker) reach(ctx context.Context) error {
	ctx, cancel := b.timeout(ctx)
	defer cancel()
	_, err := await(ctx, b, func() ([]string, error) {
		return b.client.TopicPartitions("persistent://" + b.cfg.Namespace + "/waybill")
	}, nil)
	if err == nil {
		return nil
	}
	if _, ok := serverError(err); ok && !reports(err, "AuthenticationError") {
		return nil
	}
	return err
}

// Close closes the client, with everything that was made of this broker. Sources are to be stopped before.
func (b *Broker) Close() error {
	b.mu.Lock()
	pools := b.pools
	b.pools, b.closed = nil, true
	idle := make(chan struct{})
	if b.running == 0 {
		close(idle)
	} else {
		b.idle = idle
	}
	b.mu.Unlock()
	for _, p := range pools {
		p.close()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-idle:
		case <-time.After(b.cfg.PublishTimeout + time.Second): // the client never answers some of them
		}
		b.client.Close()
	}()
	// Calls end after the timeout, and then the client has to say goodbye, for which it takes as long.
	select {
	case <-done:
		return nil
	case <-time.After(2*b.cfg.PublishTimeout + time.Second):
		return errors.New("pulsarbroker: close: " + errSilent.Error())
	}
}

// start runs a call that its caller may not wait for. It reports whether it does: a broker that was closed runs nothing.
func (b *Broker) start(call func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.running++
	go func() {
		call()
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.running--; b.running == 0 && b.idle != nil {
			close(b.idle)
			b.idle = nil
		}
	}()
	return true
}

func (b *Broker) timeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, b.cfg.PublishTimeout, errSilent)
}

func (b *Broker) hide(err error) error { return broker.RedactError(err, b.url) }

// await bounds a call of the client, which knows no context. When ctx ends first the call goes on, until the client's own timeout, and late gets what
// it brings.
func await[T any](ctx context.Context, b *Broker, call func() (T, error), late func(T)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome)
	started := b.start(func() {
		value, err := call()
		select {
		case done <- outcome{value, err}:
		case <-ctx.Done():
			if err == nil && late != nil {
				late(value)
			}
		}
	})
	var none T
	if !started {
		return none, errClosed
	}
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// names is what a topic may be called: its name, or tenant/namespace/name.
var names = broker.TopicRules{Allowed: allowed, Separator: '/', Max: 255}

func allowed(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.=:/", c) >= 0
}

// Names says what a topic may be called, for making topics by a template: "orders.{type}" or "shop/{tenant}/{type}".
func Names() broker.TopicRules { return names }

const persistent = "persistent://"

// topic returns the full name of a topic. Those that are not persistent are refused: the broker confirms what it does not store.
func (b *Broker) topic(name string) (string, error) {
	short := strings.TrimPrefix(name, persistent)
	if strings.Contains(short, "://") {
		return "", fmt.Errorf("%q: only persistent topics keep what they confirm", name)
	}
	if err := names.Check(short); err != nil {
		return "", err
	}
	switch parts := strings.Count(short, "/") + 1; {
	case parts == 3:
		return persistent + short, nil
	case parts == 1 && short == name:
		return persistent + b.cfg.Namespace + "/" + name, nil
	}
	return "", fmt.Errorf("%q: want a name, tenant/namespace/name, or %stenant/namespace/name", name, persistent)
}

// topics returns topics by their full names; nil are the events' own.
func (b *Broker) topics(t broker.Topics) broker.Topics {
	t = broker.TopicRules{Allowed: allowed}.Checked(t)
	return func(ev *waybill.Event) (string, error) {
		name, err := t(ev)
		if err != nil {
			return "", err
		}
		return b.topic(name)
	}
}

// atLeastWarn passes warnings and worse on.
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

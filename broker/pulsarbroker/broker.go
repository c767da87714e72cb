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
	"github.com/waybillhq/waybill/broker/driver"
)

// Config configures the client. The zero value is valid; zero fields have their
// defaults.
type Config struct {
	// Namespace is the namespace of topics whose name has none. Defaults to
	// "public/default".
	Namespace string
	// PublishTimeout is how long the broker may take to answer: while
	// connecting, and to confirm a message. Defaults to 15 s.
	PublishTimeout time.Duration
	// Heartbeat is the interval at which an idle connection is checked.
	// Defaults to 10 s.
	Heartbeat time.Duration
	// Options modifies the client options of Open: certificates, other kinds of
	// authentication, metrics. New rejects it. Defaults to no modification.
	Options func(*pulsar.ClientOptions)
	// Logger receives the log of Open's client. Defaults to [slog.Default],
	// which receives only warnings and errors; slog.New(slog.DiscardHandler)
	// disables logging.
	Logger *slog.Logger
}

// complete returns the config with defaults, or an error that lists every
// invalid field.
func (c Config) complete() (Config, error) {
	var errs []error
	if c.Namespace == "" {
		c.Namespace = "public/default"
	}
	if strings.Count(c.Namespace, "/") != 1 || names.Check(c.Namespace) != nil {
		errs = append(errs, fmt.Errorf("Config.Namespace: %q, want tenant/namespace", c.Namespace))
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{{"PublishTimeout", &c.PublishTimeout, 15 * time.Second}, {"Heartbeat", &c.Heartbeat, 10 * time.Second}} {
		switch {
		case *d.value == 0:
			*d.value = d.def
		case *d.value < 0:
			errs = append(errs, fmt.Errorf("Config.%s: %v is negative", d.name, *d.value))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("pulsarbroker: %w", err)
	}
	return c, nil
}

// Broker is a Pulsar cluster. It is safe for concurrent use.
type Broker struct {
	url    string
	cfg    Config
	client pulsar.Client
	owned  bool       // the broker made the client
	dead   *producers // for dead letters of the sources

	mu      sync.Mutex
	pools   []*producers
	running int           // client calls whose callers may have returned
	idle    chan struct{} // closed when running is 0 after Close
	closed  bool
}

// Open connects to a cluster: pulsar://host:port, or pulsar+ssl:// for TLS;
// several hosts are separated by commas. A token is ?token=…, a name and a
// password are user:password@host. ca, cert and key name PEM files, and
// insecure=true accepts any certificate. Open returns an error if the cluster
// is unreachable. Connections that are lost later are restored automatically.
func Open(ctx context.Context, url string, cfg Config) (*Broker, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	b := &Broker{url: url, cfg: cfg, owned: true}
	opts, err := options(url, cfg)
	if err != nil {
		return nil, b.hide(fmt.Errorf("pulsarbroker: URL: %w", err))
	}
	if err := greet(ctx, &opts); err != nil {
		return nil, b.hide(fmt.Errorf("pulsarbroker: connect: %w", err))
	}
	if b.client, err = pulsar.NewClient(opts); err != nil {
		return nil, b.hide(fmt.Errorf("pulsarbroker: %w", err))
	}
	b.dead = b.newProducers(deadLetters)
	if err := b.reach(ctx); err != nil {
		// The client does not support contexts and runs on for a while.
		go func() { _ = b.Close() }()
		return nil, b.hide(fmt.Errorf("pulsarbroker: connect: %w", err))
	}
	return b, nil
}

// deadLetters configures the producers of dead letters.
var deadLetters = SinkConfig{Subscriptions: []string{DeadLetterSubscription}, MaxProducers: 64} //nolint:gochecknoglobals // never changed

// New returns a broker that uses the caller's client. The caller closes the
// client, after the broker. New does not connect.
func New(client pulsar.Client, cfg Config) (*Broker, error) {
	options := cfg.Options != nil
	cfg, err := cfg.complete()
	switch {
	case err != nil:
		return nil, err
	case options:
		return nil, errors.New("pulsarbroker: Config.Options: not nil, but New uses the caller's client")
	case client == nil:
		return nil, errors.New("pulsarbroker: client: nil")
	}
	b := &Broker{cfg: cfg, client: client}
	b.dead = b.newProducers(deadLetters)
	return b, nil
}

// options returns the client options.
func options(text string, cfg Config) (pulsar.ClientOptions, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(atLeastWarn{slog.Default().Handler()})
	}
	logger := log.NewLoggerWithSlog(cfg.Logger)
	opts := pulsar.ClientOptions{
		OperationTimeout: cfg.PublishTimeout, ConnectionTimeout: cfg.PublishTimeout, KeepAliveInterval: cfg.Heartbeat,
		TLSValidateHostname: true, Logger: logger, Description: "waybill",
		MetricsRegisterer: prometheus.NewRegistry(), // the default registry belongs to the program
	}
	// The hosts are split without net/url, which supports only one.
	address, query, _ := strings.Cut(text, "?")
	scheme, hosts, ok := strings.Cut(address, "://")
	if !ok || scheme != "pulsar" && scheme != "pulsar+ssl" {
		return opts, errors.New("want pulsar://host:port or pulsar+ssl://host:port")
	}
	if at := strings.LastIndexByte(hosts, '@'); at >= 0 {
		u, err := url.Parse("pulsar://" + hosts[:at] + "@host")
		if err != nil {
			return opts, errors.New("user or password not percent-encoded")
		}
		password, _ := u.User.Password()
		if opts.Authentication, err = pulsar.NewAuthenticationBasic(u.User.Username(), password); err != nil {
			return opts, err
		}
		hosts = hosts[at+1:]
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return opts, errors.New("query not percent-encoded")
	}
	// The client reads the files again for every connection, and sets the name
	// of the host that it connects to.
	opts.TLSTrustCertsFilePath, opts.TLSCertificateFile, opts.TLSKeyFilePath = values.Get("ca"), values.Get("cert"), values.Get("key")
	secure, err := driver.TakeTLS(values, nil)
	if err != nil {
		return opts, err
	}
	if secure != nil {
		if scheme != "pulsar+ssl" {
			return opts, errors.New("parameters ca, cert, key and insecure require pulsar+ssl://")
		}
		driver.WarnInsecure(cmp.Or(cfg.Logger, slog.Default()), secure, scheme+"://"+hosts)
		opts.TLSAllowInsecureConnection, opts.TLSValidateHostname = secure.InsecureSkipVerify, !secure.InsecureSkipVerify
	}
	for name := range values {
		if name != "token" {
			return opts, fmt.Errorf("unknown parameter %q: want ca, cert, key, insecure or token", name)
		}
		opts.Authentication = pulsar.NewAuthenticationToken(values.Get(name))
	}
	opts.URL = scheme + "://" + hosts
	if cfg.Options != nil {
		cfg.Options(&opts)
	}
	return opts, nil
}

// greet makes a TLS connection to the first server that answers and returns an
// error if the certificate is not trusted. The client would not report that
// error and would retry until its timeout. Other errors are left to the client.
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
		if secure, err = driver.TakeTLS(url.Values{
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

// reach sends a request that every cluster answers. A denial of access is an
// answer as well.
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

// Close closes all sinks and sources of this broker, and the client, if Open
// made it. Sources must have been stopped before.
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
		case <-time.After(b.cfg.PublishTimeout + time.Second): // the client never answers some calls
		}
		if b.owned {
			b.client.Close()
		}
	}()
	// Calls end after the timeout; the client's own close takes as long again.
	select {
	case <-done:
		return nil
	case <-time.After(2*b.cfg.PublishTimeout + time.Second):
		return errors.New("pulsarbroker: close: " + errSilent.Error())
	}
}

// start runs a call whose caller may not wait for it, and reports whether the
// call was started. A closed broker starts none.
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

func (b *Broker) hide(err error) error { return driver.RedactError(err, b.url) }

// await bounds a client call, which does not support contexts. If ctx ends
// first, the call continues until the client's own timeout, and late receives
// its result.
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

// names holds the rules for topic names: a name, or tenant/namespace/name.
var names = broker.TopicRules{Allowed: allowed, Separator: '/', Max: 255}

func allowed(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.=:/", c) >= 0
}

// Names returns the rules for topic names, for templates such as
// "orders.{type}" or "shop/{tenant}/{type}".
func Names() broker.TopicRules { return names }

const persistent = "persistent://"

// topic returns the full name of a topic. Non-persistent topics are rejected,
// because the broker confirms messages that it does not store.
func (b *Broker) topic(name string) (string, error) {
	short := strings.TrimPrefix(name, persistent)
	if strings.Contains(short, "://") {
		return "", fmt.Errorf("%q: not a persistent topic", name)
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

// topics returns topics with full names; nil topics are the events' own.
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

// atLeastWarn drops records below the level warning.
type atLeastWarn struct{ slog.Handler }

func (h atLeastWarn) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && h.Handler.Enabled(ctx, level)
}

// WithAttrs keeps the level filter.
func (h atLeastWarn) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atLeastWarn{h.Handler.WithAttrs(attrs)}
}

// WithGroup keeps the level filter.
func (h atLeastWarn) WithGroup(name string) slog.Handler {
	return atLeastWarn{h.Handler.WithGroup(name)}
}

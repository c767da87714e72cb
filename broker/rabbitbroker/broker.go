package rabbitbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// Config configures the connections. The zero value is valid; zero fields have
// their defaults.
type Config struct {
	// Name identifies the connection in RabbitMQ's tools. Defaults to
	// "waybill".
	Name string
	// PublishTimeout is how long the broker may take to answer: while
	// connecting, and to confirm a message. Defaults to 15 s.
	PublishTimeout time.Duration
	// Heartbeat is the interval of AMQP heartbeats. Defaults to 10 s.
	Heartbeat time.Duration
	// Logger receives a warning if the connection is not secure. Defaults to
	// [slog.Default].
	Logger *slog.Logger
}

// complete returns the config with defaults, or an error that lists every
// invalid field.
func (c Config) complete() (Config, error) {
	var errs []error
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
	if c.Name == "" {
		c.Name = "waybill"
	}
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("rabbitbroker: %w", err)
	}
	return c, nil
}

// Broker is a RabbitMQ server. It is safe for concurrent use.
type Broker struct {
	url  string // to redact its secrets in errors
	dial Dial
	cfg  Config
	// attempt bounds the connection to one host: a host that hangs accepts
	// connections and never answers.
	attempt time.Duration

	mu     sync.Mutex
	link   *link // connection of the sinks; nil until needed
	closed bool
}

// Open connects to a broker: amqp://user:password@host:port/vhost, or amqps://
// for TLS; see [Dialer]. Open returns an error if no host is reachable.
// Connections that are lost later are restored automatically.
func Open(ctx context.Context, url string, cfg Config) (*Broker, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	all, err := hostsOf(url)
	if err != nil {
		return nil, driver.RedactError(fmt.Errorf("rabbitbroker: URL: %w", err), url)
	}
	b := &Broker{url: strings.Join(all.urls, ","), cfg: cfg, dial: all.dial, attempt: cfg.PublishTimeout / time.Duration(len(all.urls))}
	driver.WarnInsecure(cmp.Or(cfg.Logger, slog.Default()), all.secure, b.url)
	if _, err := b.connected(ctx); err != nil {
		return nil, b.hide(fmt.Errorf("rabbitbroker: connect: %w", err))
	}
	return b, nil
}

// Dial opens a connection for a broker. The config has the broker's heartbeat,
// properties and socket; Dial may set everything else, such as SASL and TLS,
// and passes the config to the client:
//
//	func(_ context.Context, config amqp.Config) (*amqp.Connection, error) {
//		config.SASL = []amqp.Authentication{&amqp.ExternalAuth{}}
//		return amqp.DialConfig("amqps://host:5671/", config)
//	}
type Dial func(ctx context.Context, config amqp.Config) (*amqp.Connection, error)

// New returns a broker whose connections the caller's function opens. An AMQP
// connection that is lost does not reconnect, and a source has its own
// connection, so the broker needs a function instead of one connection. New
// does not connect. The broker closes the connections.
func New(dial Dial, cfg Config) (*Broker, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	if dial == nil {
		return nil, errors.New("rabbitbroker: dial: nil")
	}
	return &Broker{cfg: cfg, dial: dial, attempt: cfg.PublishTimeout}, nil
}

// Close closes the connection of the sinks. Sources close their own.
func (b *Broker) Close() error {
	b.mu.Lock()
	l := b.link
	b.link, b.closed = nil, true
	b.mu.Unlock()
	if l == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), b.cfg.PublishTimeout)
	defer cancel()
	return b.hide(l.close(ctx))
}

// connected returns the connection of the sinks and restores it if it is lost.
func (b *Broker) connected(ctx context.Context) (*link, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errClosed
	}
	if b.link != nil && b.link.gone.Err() == nil {
		return b.link, nil
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.PublishTimeout)
	defer cancel()
	l, err := dial(ctx, b)
	if err != nil {
		return nil, err
	}
	b.link = l
	return l, nil
}

func (b *Broker) hide(err error) error { return driver.RedactError(err, b.url) }

// names holds the rules for names of exchanges and queues.
var names = broker.TopicRules{
	Allowed: func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' || c == ':'
	},
	Separator: '.', Max: 255,
}

// Names returns the rules for names of exchanges and queues, for templates such
// as "orders.{type}".
func Names() broker.TopicRules { return names }

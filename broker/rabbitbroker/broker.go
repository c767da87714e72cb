package rabbitbroker

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
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

// Broker is a RabbitMQ server. It is safe for concurrent use.
type Broker struct {
	url  string // to redact its secrets in errors
	bare string // without the parameters that the client does not know
	tls  *tls.Config
	cfg  Config

	mu     sync.Mutex
	link   *link // connection of the sinks; nil until needed
	closed bool
}

// Address returns a URL in the client's form, and the TLS config of its
// parameters, or nil. amqps:// URLs may have the parameters ca, cert and key,
// which name PEM files, and insecure=true, which accepts any certificate.
func Address(text string) (string, *tls.Config, error) {
	if _, err := amqp.ParseURI(text); err != nil {
		return "", nil, err
	}
	u, err := url.Parse(text)
	if err != nil {
		return "", nil, err
	}
	if u.RawQuery == "" {
		return text, nil, nil
	}
	query := u.Query()
	secure, err := driver.TakeTLS(query, nil)
	if err != nil {
		return "", nil, err
	}
	if secure != nil && u.Scheme != "amqps" {
		return "", nil, errors.New("parameters ca, cert, key and insecure require amqps://")
	}
	u.RawQuery = query.Encode()
	return u.String(), secure, nil
}

// Open connects to a broker: amqp://user:password@host:port/vhost, or amqps://
// for TLS; see [Address]. Open returns an error if the broker is unreachable.
// Connections that are lost later are restored automatically.
func Open(ctx context.Context, url string, cfg Config) (*Broker, error) {
	if cfg.PublishTimeout < 0 || cfg.Heartbeat < 0 {
		return nil, errors.New("rabbitbroker: Config.PublishTimeout or Heartbeat: negative")
	}
	bare, secure, err := Address(url)
	if err != nil {
		return nil, driver.RedactError(fmt.Errorf("rabbitbroker: URL: %w", err), url)
	}
	driver.WarnInsecure(cmp.Or(cfg.Logger, slog.Default()), secure, url)
	if cfg.Name == "" {
		cfg.Name = "waybill"
	}
	if cfg.PublishTimeout == 0 {
		cfg.PublishTimeout = 15 * time.Second
	}
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = 10 * time.Second
	}
	b := &Broker{url: url, bare: bare, tls: secure, cfg: cfg}
	if _, err := b.connected(ctx); err != nil {
		return nil, b.hide(fmt.Errorf("rabbitbroker: connect: %w", err))
	}
	return b, nil
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

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
)

// Config holds what may be tuned of the connections; its zero value is ready. A field that is zero has its default.
type Config struct {
	// Name is what the broker's own tools show for the connection. Defaults to "waybill".
	Name string
	// Timeout is how long the broker may be silent: while connecting, and before it confirms. Defaults to 15 s.
	PublishTimeout time.Duration
	// Heartbeat is how often both sides show that they are there. Defaults to 10 s.
	Heartbeat time.Duration
	// Logger gets what an operator should know: that the connection is not safe.
	// Defaults to [slog.Default].
	Logger *slog.Logger
}

// Broker is a RabbitMQ server. It is safe for concurrent use.
type Broker struct {
	url  string // for hiding its secrets in errors
	bare string // without the parameters that the client does not know
	tls  *tls.Config
	cfg  Config

	mu     sync.Mutex
	link   *link // of the sinks; nil until it is needed
	closed bool
}

// Address returns a URL as the client takes it, and what it says of TLS, nil if nothing: amqps://
// URLs may have the parameters ca, cert and key, which name files in PEM, and insecure=true, which
// takes any certificate.
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
	secure, err := broker.TakeTLS(query, nil)
	if err != nil {
		return "", nil, err
	}
	if secure != nil && u.Scheme != "amqps" {
		return "", nil, errors.New("parameters ca, cert, key and insecure are for TLS: want amqps://")
	}
	u.RawQuery = query.Encode()
	return u.String(), secure, nil
}

// Open connects to the broker that a URL names: amqp://user:password@host:port/vhost, or amqps://
// for TLS; see [Address]. It reports a broker that cannot be reached; one that goes away later is
// connected to again.
func Open(ctx context.Context, url string, cfg Config) (*Broker, error) {
	if cfg.PublishTimeout < 0 || cfg.Heartbeat < 0 {
		return nil, errors.New("rabbitbroker: fields Timeout and Heartbeat: not negative")
	}
	bare, secure, err := Address(url)
	if err != nil {
		return nil, broker.RedactError(fmt.Errorf("rabbitbroker: the URL: %w", err), url)
	}
	broker.WarnInsecure(cmp.Or(cfg.Logger, slog.Default()), secure, url)
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

// connected returns the connection of the sinks, which is made again when it is gone.
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

func (b *Broker) hide(err error) error { return broker.RedactError(err, b.url) }

// names is what an exchange or queue may be called.
var names = broker.TopicRules{
	Allowed: func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' || c == ':'
	},
	Separator: '.', Max: 255,
}

// Names says what an exchange or queue may be called, for making topics by a template: "orders.{type}".
func Names() broker.TopicRules { return names }

package connect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// Sink is an open sink.
type Sink struct {
	waybill.Sink
	// Address is the sink's URL. It prints without its password.
	Address settings.Secret

	close func() error
}

// Close closes the sink: accepted events are still published, and no more are
// accepted.
func (s *Sink) Close() error {
	if s.close == nil {
		return nil
	}
	return clean(s.Address, s.close())
}

// SinkConfig is the configuration of a sink.
type SinkConfig struct {
	settings.Sink
	// Out receives the output of the sink log:.
	Out io.Writer
	// Logger receives the messages of the client library.
	Logger *slog.Logger
}

// SinkKind is a kind of sink.
type SinkKind struct {
	// Schemes are the prefixes of its URLs.
	Schemes []string
	// Form is the form of a URL, and Help describes it.
	Form, Help string

	open func(ctx context.Context, u *url.URL, cfg SinkConfig) (*Sink, error)
}

// CheckSink reports whether the address belongs to a kind of sink, without
// opening it.
func CheckSink(cfg settings.Sink) error {
	_, err := sinkURL(cfg)
	return err
}

// ErrNoSink reports that the settings name no sink.
var ErrNoSink = errors.New("no sink is configured")

func sinkURL(cfg settings.Sink) (*url.URL, error) {
	if cfg.URL.IsZero() {
		return nil, hint.New("set sink.url (--sink, WAYBILL_SINK) to the destination of this store's events; --sink nats:embedded is a JetStream server in "+
			"this process. If a service has its own relay, do not run waybill serve on its store", "sink.url: %w: %w for the configured store", ErrBadSetting, ErrNoSink)
	}
	var schemes []string
	for _, kind := range SinkKinds() {
		schemes = append(schemes, kind.Schemes...)
	}
	return parse("sink.url", cfg.URL, schemes)
}

// OpenSink opens a sink.
func OpenSink(ctx context.Context, cfg SinkConfig) (*Sink, error) {
	u, err := sinkURL(cfg.Sink)
	if err != nil {
		return nil, err
	}
	for _, kind := range SinkKinds() {
		for _, scheme := range kind.Schemes {
			if schemeOf(scheme) == u.Scheme {
				s, err := kind.open(ctx, u, cfg)
				if err != nil {
					return nil, err
				}
				s.Address = cfg.URL
				return s, nil
			}
		}
	}
	return nil, badURL("sink.url", "", "unknown kind of sink") // unreachable: parse rejects unknown schemes
}

func schemeOf(prefix string) string {
	scheme, _, _ := strings.Cut(prefix, ":")
	return scheme
}

// printer is the sink log:. It prints a line of JSON for every event. The
// payload is printed only on request, because it may hold personal data.
type printer struct {
	mu      sync.Mutex
	out     *json.Encoder
	topics  broker.Topics
	payload bool
}

type printed struct {
	At        time.Time         `json:"at"`
	ID        waybill.ID        `json:"id"`
	Type      string            `json:"type"`
	Topic     string            `json:"topic"`
	Aggregate string            `json:"aggregate,omitempty"`
	Tenant    string            `json:"tenant,omitempty"`
	Attempt   int               `json:"attempt"`
	Replay    int               `json:"replay,omitempty"`
	Headers   map[string]string `json:"headers,omitempty"`
	Size      int               `json:"payload_bytes"`
	Payload   string            `json:"payload,omitempty"`
}

func openLog(_ context.Context, u *url.URL, cfg SinkConfig) (*Sink, error) {
	p := &printer{out: json.NewEncoder(cfg.Out), topics: broker.TopicRules{}.Checked(nil)}
	if cfg.Topic != "" {
		var err error
		if p.topics, err = (broker.TopicRules{}).Template(cfg.Topic); err != nil {
			return nil, wrongTopic(err)
		}
	}
	switch u.Opaque {
	case "":
	case "payload":
		p.payload = true
	default:
		return nil, badURL("sink.url", "write log: or log:payload", "log: must be followed by nothing or by payload")
	}
	return &Sink{Sink: p}, nil
}

// Deliver implements [waybill.Sink].
func (p *printer) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	errs := make([]error, len(batch))
	for i, d := range batch {
		topic, err := p.topics(&d.Event)
		if err != nil {
			errs[i] = waybill.Permanent(fmt.Errorf("no topic: %w", err))
			continue
		}
		line := printed{
			At: time.Now().UTC(), ID: d.ID, Type: d.Type, Topic: topic, Tenant: d.TenantID, Attempt: d.Attempt, Replay: d.Replay,
			Headers: d.Headers, Size: len(d.Payload),
		}
		if d.AggregateID != "" {
			line.Aggregate = d.AggregateType + "/" + d.AggregateID
		}
		if p.payload {
			line.Payload = string(d.Payload)
		}
		if err := p.out.Encode(line); err != nil { // a closed pipe
			errs[i] = waybill.Unavailable(err)
		}
	}
	return errs
}

package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// Config configures a [Sink]. Zero fields have their defaults.
type Config struct {
	// Secrets sign the requests: "whsec_" and base64, as in the specification.
	// With several secrets, every request has a signature for each, so that
	// secrets can be rotated without a gap. At least one secret is required,
	// unless Unsigned is true.
	Secrets []string
	// Unsigned sends requests without a signature. Receivers cannot verify the
	// sender. Defaults to false.
	Unsigned bool
	// UnsignedAttributes sends signed requests in binary mode: the payload is
	// the body, and the attributes are headers that no signature covers. Any
	// party that has seen one request can then send its body as another event.
	// Use it only for receivers that do not support structured mode yet.
	// Defaults to false.
	UnsignedAttributes bool
	// Endpoint returns the URL for an event, if events go to different
	// endpoints. The function is called often and concurrently, and must not
	// block. An error makes the event a dead letter. All endpoints share the
	// same secrets and headers: any party that knows a secret can sign for each
	// of them. Defaults to the URL of NewSink for every event.
	Endpoint func(ev *waybill.Event) (string, error)
	// Target returns the URL for an event together with its secrets and
	// headers, for endpoints of different customers. Target is called like
	// Endpoint and replaces Endpoint, Secrets, Unsigned and Header. An error
	// makes the event a dead letter; invalid secrets fail the attempt. Defaults
	// to Endpoint, Secrets, Unsigned and Header for every event.
	Target func(ev *waybill.Event) (Target, error)
	// PublicOnly connects to public addresses only; see [PublicDialer]. Use it
	// for endpoints that customers choose. Requests then use no proxy, and
	// Client must be nil. Defaults to false: an endpoint may be in the sender's
	// own network.
	PublicOnly bool
	// EventSource is the CloudEvents attribute source. Defaults to "waybill".
	EventSource string
	// Requests is the number of concurrent requests per batch. Defaults to 16.
	Requests int
	// PublishTimeout bounds one request. Defaults to 15 s.
	PublishTimeout time.Duration
	// MaxRetryAfter is the longest delay that an endpoint may ask for. Defaults
	// to 1 h.
	MaxRetryAfter time.Duration
	// Header is sent with every request, for example for authorization. It
	// cannot override attributes and signatures. Defaults to no header.
	Header http.Header
	// TLS sets the trusted authorities and the client certificate. Client must
	// then be nil, because it has its own TLS config. Defaults to the system's
	// authorities and no certificate.
	TLS *tls.Config
	// Client makes the requests. Defaults to a client that keeps connections
	// open and verifies certificates. Its redirect policy is ignored: the sink
	// treats redirects as responses.
	Client *http.Client
}

// Target is an endpoint with its own secrets and headers.
type Target struct {
	URL string
	// Secrets sign the requests, like [Config.Secrets]. At least one secret is
	// required, unless Unsigned is true.
	Secrets  []string
	Unsigned bool
	// Header is sent with every request, like [Config.Header]. It must not be
	// modified afterwards.
	Header http.Header
}

// keys returns the keys that sign the requests. Errors name the config type.
func (t *Target) keys(config string) ([]key, error) {
	keys, err := parseSecrets(config, t.Secrets)
	switch {
	case err != nil:
		return nil, err
	case len(keys) == 0 && !t.Unsigned:
		return nil, errors.New(config + ".Secrets: empty, and Unsigned is false")
	case len(keys) > 0 && t.Unsigned:
		return nil, errors.New(config + ".Unsigned: true, but Secrets is not empty")
	}
	return keys, nil
}

// Sink posts events to endpoints. It is safe for concurrent use.
type Sink struct {
	url    string
	cfg    Config
	keys   []key
	codec  *broker.Codec
	client *http.Client
	table  driver.Failures
}

// check returns the errors of the fields after Secrets, in their order.
func (c *Config) check(url string) []error {
	var errs []error
	if c.Unsigned && c.UnsignedAttributes {
		errs = append(errs, errors.New("Config.UnsignedAttributes: true, but Unsigned is true as well"))
	}
	if c.Target != nil {
		if url != "" || c.Endpoint != nil || len(c.Secrets) > 0 || c.Unsigned || len(c.Header) > 0 {
			errs = append(errs, errors.New("Config.Target: set together with url, Endpoint, Secrets, Unsigned or Header"))
		}
	}
	if c.PublicOnly && c.Client != nil {
		errs = append(errs, errors.New("Config.PublicOnly: set together with Client (use PublicDialer in the Client)"))
	}
	if err := driver.CheckEventSource(c.EventSource); err != nil {
		errs = append(errs, fmt.Errorf("Config.EventSource: %w", err))
	}
	if c.Requests < 0 {
		errs = append(errs, fmt.Errorf("Config.Requests: %d is negative", c.Requests))
	}
	if c.PublishTimeout < 0 {
		errs = append(errs, fmt.Errorf("Config.PublishTimeout: %v is negative", c.PublishTimeout))
	}
	if c.MaxRetryAfter < 0 {
		errs = append(errs, fmt.Errorf("Config.MaxRetryAfter: %v is negative", c.MaxRetryAfter))
	}
	if c.TLS != nil && c.Client != nil {
		errs = append(errs, errors.New("Config.TLS: set together with Client"))
	}
	return errs
}

// NewSink returns a sink that posts to url. With [Config.Endpoint] or
// [Config.Target] the sink posts to the URL that they return for each event,
// and url may be empty.
func NewSink(url string, cfg Config) (*Sink, error) {
	var errs []error
	if url != "" || cfg.Endpoint == nil && cfg.Target == nil {
		if _, err := checkEndpoint(url); err != nil {
			errs = append(errs, fmt.Errorf("url: %w", err))
		}
	}
	var keys []key
	if cfg.Target == nil {
		var err error
		keys, err = (&Target{Secrets: cfg.Secrets, Unsigned: cfg.Unsigned}).keys("Config")
		errs = append(errs, err)
	}
	errs = append(errs, cfg.check(url)...)
	if err := fieldError(errs...); err != nil {
		return nil, err
	}
	codec, err := broker.NewCodec(broker.HTTP, broker.CodecConfig{EventSource: cfg.EventSource})
	if err != nil {
		return nil, err
	}
	if cfg.Requests == 0 {
		cfg.Requests = 16
	}
	if cfg.PublishTimeout == 0 {
		cfg.PublishTimeout = 15 * time.Second
	}
	if cfg.MaxRetryAfter == 0 {
		cfg.MaxRetryAfter = time.Hour
	}
	cfg.Header = cfg.Header.Clone()
	return &Sink{url: url, cfg: cfg, keys: keys, codec: codec, client: newClient(cfg), table: Failures()}, nil
}

func newClient(cfg Config) *http.Client {
	client := http.Client{}
	if cfg.Client != nil {
		client = *cfg.Client // a copy: the caller's client is not modified
	} else if base, ok := http.DefaultTransport.(*http.Transport); ok {
		transport := base.Clone()
		if cfg.PublicOnly {
			transport.DialContext = PublicDialer().DialContext
			transport.Proxy = nil // a proxy would connect for the sink, to any address
		}
		if cfg.TLS != nil {
			transport.TLSClientConfig = cfg.TLS.Clone()
		}
		// The relay's workers have a batch each.
		transport.MaxIdleConnsPerHost = max(cfg.Requests, 16) * 4
		client.Transport = transport
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &client
}

// checkEndpoint parses an endpoint URL. Its errors do not show the URL, which
// may contain a token.
func checkEndpoint(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("not a valid URL")
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, fmt.Errorf("scheme %q, want https or http", u.Scheme)
	case u.Host == "":
		return nil, errors.New("no host")
	case u.Fragment != "":
		return nil, errors.New("fragment not allowed")
	}
	return u, nil
}

// Close closes idle connections.
func (s *Sink) Close() error {
	s.client.CloseIdleConnections()
	return nil
}

// Destination implements relay.DestinationSink: each combination of scheme and
// host is a destination.
func (s *Sink) Destination(ev *waybill.Event) string {
	_, u, err := s.target(ev)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// target returns the target of an event. Without [Config.Target] the secrets
// are the sink's, and the returned target has none.
func (s *Sink) target(ev *waybill.Event) (Target, *url.URL, error) {
	t := Target{URL: s.url, Header: s.cfg.Header}
	var err error
	switch {
	case s.cfg.Target != nil:
		t, err = s.cfg.Target(ev)
	case s.cfg.Endpoint != nil:
		t.URL, err = s.cfg.Endpoint(ev)
	}
	var u *url.URL
	if err == nil {
		u, err = checkEndpoint(t.URL)
	}
	if err != nil {
		return t, nil, waybill.Permanent(fmt.Errorf("webhook: endpoint of event %s: %w", ev.ID, err))
	}
	return t, u, nil
}

// Deliver implements waybill.Sink. Events of one aggregate are never in the
// same batch, so all requests of a batch may be in flight together.
func (s *Sink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return driver.PublishEach(batch, s.cfg.Requests, func(d *waybill.Delivery) error { return s.one(ctx, d) })
}

func (s *Sink) one(ctx context.Context, d *waybill.Delivery) error {
	t, u, err := s.target(&d.Event)
	if err != nil {
		return err
	}
	keys := s.keys
	if s.cfg.Target != nil {
		if keys, err = t.keys("Target"); err != nil {
			// Only the attempt of this event fails: other customers may have
			// endpoints at the same host.
			return fmt.Errorf("webhook: %s://%s: %w", u.Scheme, u.Host, err)
		}
	}
	encode := s.codec.Encode
	if len(keys) > 0 && !s.cfg.UnsignedAttributes {
		encode = s.codec.EncodeStructured // a signature covers the body and no header
	}
	m, err := encode(d)
	if err != nil {
		return err
	}
	if err := s.post(ctx, u, t.Header, keys, &m); err != nil {
		// The client's own error shows the whole URL.
		var shown *url.Error
		if errors.As(err, &shown) {
			err = shown.Err
		}
		return classify(s.table, fmt.Errorf("webhook: %s://%s: %w", u.Scheme, u.Host, err))
	}
	return nil
}

// excerptLimit is the maximum length of the excerpt of a response, in bytes.
const excerptLimit = 256

func (s *Sink) post(ctx context.Context, u *url.URL, header http.Header, keys []key, m *broker.Message) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.PublishTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(m.Payload))
	if err != nil {
		return err
	}
	setHeader(req.Header, header, keys, m)
	res, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close() //nolint:errcheck // whatever it says, the answer is known
	// Part of the response is read, so that the connection can be reused.
	body, readErr := io.ReadAll(io.LimitReader(res.Body, 4096))
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return nil // the status decides; the body is not needed
	}
	status := &StatusError{Code: res.StatusCode, RetryAfter: retryAfter(res.Header, time.Now(), s.cfg.MaxRetryAfter)}
	if kind := res.Header.Get("Content-Type"); readErr == nil && (strings.HasPrefix(kind, "text/plain") || strings.Contains(kind, "json")) {
		status.Excerpt = excerpt(body[:min(len(body), excerptLimit)])
	}
	return status
}

// reserved reports whether a header could be mistaken for a part of the event.
func reserved(name string) bool {
	return strings.HasPrefix(name, "Ce-") || strings.HasPrefix(name, "Waybill-")
}

func setHeader(h, own http.Header, keys []key, m *broker.Message) {
	for name, values := range own {
		if name = http.CanonicalHeaderKey(name); !reserved(name) {
			h[name] = values
		}
	}
	h.Set("User-Agent", "waybill")
	for _, header := range m.Headers {
		h.Set(header.Name, header.Value)
	}
	now := time.Now().Unix()
	h.Set(HeaderID, m.PublishID)
	h.Set(HeaderTimestamp, strconv.FormatInt(now, 10))
	if len(keys) > 0 {
		h.Set(HeaderSignature, signature(keys, m.PublishID, now, m.Payload))
	}
}

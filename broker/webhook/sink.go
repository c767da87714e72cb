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
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
)

// Config holds what may be tuned. A field that is zero has its default.
type Config struct {
	// Secrets sign the requests: "whsec_" and base64, as the specification writes them. With several, every request has a signature of
	// each, so that they can be changed without a gap. At least one is needed, unless Unsigned says that none is wanted.
	Secrets []string
	// Unsigned sends requests without a signature. Nobody can tell then who sent them.
	Unsigned bool
	// UnsignedAttributes sends signed requests in binary mode: the payload is the body, and the
	// attributes are headers that no signature covers. Anyone who has seen one request can then
	// send its body as another event. It is for receivers that cannot read structured mode yet.
	UnsignedAttributes bool
	// Endpoint says where an event goes, if not all go to one place. It is called often and
	// concurrently, and must not block. An error makes the event a dead letter. All endpoints have
	// the same secrets and headers: anyone who knows a secret can sign for each of them.
	Endpoint func(ev *waybill.Event) (string, error)
	// Target says where an event goes, and has the secrets and headers of that place: for endpoints
	// that belong to several customers. It is called like Endpoint and stands instead of it, of
	// Secrets, Unsigned and Header. An error makes the event a dead letter; secrets that cannot be
	// used fail the attempt.
	Target func(ev *waybill.Event) (Target, error)
	// PublicOnly connects to public addresses only; see [PublicDialer]. It is for endpoints that
	// customers choose. Requests use no proxy then, and Client must be nil. Defaults to false: an
	// endpoint may be in one's own network.
	PublicOnly bool
	// Source is the CloudEvents attribute of that name. Defaults to "waybill".
	EventSource string
	// Requests is how many requests one batch has under way at a time. Defaults to 16.
	Requests int
	// Timeout is how long one request may take. Defaults to 15 s.
	PublishTimeout time.Duration
	// MaxRetryAfter is the longest delay that an endpoint may ask for. Defaults to 1 h.
	MaxRetryAfter time.Duration
	// Header is sent with every request: authorization, say. Attributes and signature cannot be overridden by it.
	Header http.Header
	// TLS says which authorities are trusted, and which certificate the
	// requests show. Client must be nil then: it has a config of its own.
	// Defaults to the system's authorities and no certificate.
	TLS *tls.Config
	// Client makes the requests. Defaults to one that keeps connections open and verifies certificates. Its redirect policy is not used:
	// redirects are answers here.
	Client *http.Client
}

// Target is an endpoint with what belongs to it alone.
type Target struct {
	URL string
	// Secrets sign the requests, as [Config.Secrets] do. At least one is needed, unless Unsigned
	// says that none is wanted.
	Secrets  []string
	Unsigned bool
	// Header is sent with every request, as [Config.Header] is. It must not be changed afterwards.
	Header http.Header
}

// keys returns what the requests are signed with.
func (t *Target) keys() ([]key, error) {
	keys, err := parseSecrets(t.Secrets)
	switch {
	case err != nil:
		return nil, err
	case len(keys) == 0 && !t.Unsigned:
		return nil, errors.New("field Secrets: none; a receiver could not tell who sent a request (Unsigned says that none is wanted)")
	case len(keys) > 0 && t.Unsigned:
		return nil, errors.New("field Unsigned: there are Secrets")
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
	table  broker.Failures
}

// NewSink returns a sink that posts to url, or, with [Config.Endpoint] or [Config.Target], to what
// that says for each event; then url may be empty.
func NewSink(url string, cfg Config) (*Sink, error) {
	var errs []error
	if url != "" || cfg.Endpoint == nil && cfg.Target == nil {
		if _, err := checkEndpoint(url); err != nil {
			errs = append(errs, fmt.Errorf("url: %w", err))
		}
	}
	var keys []key
	if cfg.Target != nil {
		if url != "" || cfg.Endpoint != nil || len(cfg.Secrets) > 0 || cfg.Unsigned || len(cfg.Header) > 0 {
			errs = append(errs, errors.New("field Target: it stands instead of the url, Endpoint, Secrets, Unsigned and Header"))
		}
	} else {
		var err error
		keys, err = (&Target{Secrets: cfg.Secrets, Unsigned: cfg.Unsigned}).keys()
		errs = append(errs, err)
	}
	if cfg.PublicOnly && cfg.Client != nil {
		errs = append(errs, errors.New("field PublicOnly: the Client has a dialer of its own (give it PublicDialer)"))
	}
	if cfg.TLS != nil && cfg.Client != nil {
		errs = append(errs, errors.New("field TLS: the Client has a config of its own"))
	}
	if cfg.Unsigned && cfg.UnsignedAttributes {
		errs = append(errs, errors.New("field UnsignedAttributes: nothing is signed"))
	}
	if cfg.Requests < 0 || cfg.PublishTimeout < 0 || cfg.MaxRetryAfter < 0 {
		errs = append(errs, errors.New("fields Requests, Timeout and MaxRetryAfter: not negative"))
	}
	codec, err := broker.NewCodec(broker.HTTP, broker.CodecConfig{Source: cfg.EventSource})
	errs = append(errs, err)
	if err := fieldError(errs...); err != nil {
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
		client = *cfg.Client // a copy: the caller's own stays as it is
	} else if usual, ok := http.DefaultTransport.(*http.Transport); ok {
		transport := usual.Clone()
		if cfg.PublicOnly {
			transport.DialContext = PublicDialer().DialContext
			transport.Proxy = nil // it would connect in our place, to any address
		}
		if cfg.TLS != nil {
			transport.TLSClientConfig = cfg.TLS.Clone()
		}
		transport.MaxIdleConnsPerHost = max(cfg.Requests, 16) * 4 // the relay's workers, each with a batch
		client.Transport = transport
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &client
}

// checkEndpoint reads an endpoint's URL. Its errors do not show the URL, which may hold a token.
func checkEndpoint(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("it cannot be read as a URL")
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, fmt.Errorf("want https:// or http://, have %q", u.Scheme)
	case u.Host == "":
		return nil, errors.New("it names no host")
	case u.Fragment != "":
		return nil, errors.New("a fragment is never sent")
	}
	return u, nil
}

// Close closes connections that are idle.
func (s *Sink) Close() error {
	s.client.CloseIdleConnections()
	return nil
}

// Destination implements relay.DestinationSink: endpoints are told apart by scheme and host.
func (s *Sink) Destination(ev *waybill.Event) string {
	_, u, err := s.target(ev)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// target returns where an event goes. Without [Config.Target] the secrets are the sink's, and not
// in what it returns.
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

// Deliver implements relay.Sink. Events of one aggregate are never in the same batch, so all requests of one may be under way together.
func (s *Sink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	results := make([]error, len(batch))
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(s.cfg.Requests, len(batch)) {
		wg.Go(func() {
			for i := range next {
				results[i] = s.one(ctx, &batch[i])
			}
		})
	}
	for i := range batch {
		next <- i
	}
	close(next)
	wg.Wait()
	return results
}

func (s *Sink) one(ctx context.Context, d *waybill.Delivery) error {
	t, u, err := s.target(&d.Event)
	if err != nil {
		return err
	}
	keys := s.keys
	if s.cfg.Target != nil {
		if keys, err = t.keys(); err != nil {
			// A failed attempt of this event, and nothing more: other customers may have endpoints
			// at the same host.
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

// excerptLimit is how much of an answer's text is kept for whoever looks at the event.
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
	// A little of the answer is read, so that the connection can be used again.
	body, readErr := io.ReadAll(io.LimitReader(res.Body, 4096))
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return nil // the status is the answer; what follows it is not needed
	}
	status := &StatusError{Code: res.StatusCode, RetryAfter: retryAfter(res.Header, time.Now(), s.cfg.MaxRetryAfter)}
	if kind := res.Header.Get("Content-Type"); readErr == nil && (strings.HasPrefix(kind, "text/plain") || strings.Contains(kind, "json")) {
		status.Excerpt = excerpt(body[:min(len(body), excerptLimit)])
	}
	return status
}

// reserved reports whether a header could pass for a part of the event.
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

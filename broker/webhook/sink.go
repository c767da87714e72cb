package webhook

import (
	"bytes"
	"context"
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
	// Endpoint says where an event goes, if not all go to one place. It is called often and concurrently, and must not block. An
	// error makes the event a dead letter.
	Endpoint func(ev *waybill.Event) (string, error)
	// Source is the CloudEvents attribute of that name. Defaults to "waybill".
	Source string
	// Requests is how many requests one batch has under way at a time. Defaults to 16.
	Requests int
	// Timeout is how long one request may take. Defaults to 15 s.
	Timeout time.Duration
	// MaxRetryAfter is the longest delay that an endpoint may ask for. Defaults to 1 h.
	MaxRetryAfter time.Duration
	// Header is sent with every request: authorization, say. Attributes and signature cannot be overridden by it.
	Header http.Header
	// Client makes the requests. Defaults to one that keeps connections open and verifies certificates. Its redirect policy is not used:
	// redirects are answers here.
	Client *http.Client
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

// NewSink returns a sink that posts to url, or, with [Config.Endpoint], to what that says for each event; then url may be empty.
func NewSink(url string, cfg Config) (*Sink, error) {
	var errs []error
	if url != "" || cfg.Endpoint == nil {
		if _, err := checkEndpoint(url); err != nil {
			errs = append(errs, fmt.Errorf("url: %w", err))
		}
	}
	keys, err := parseSecrets(cfg.Secrets)
	errs = append(errs, err)
	switch {
	case len(cfg.Secrets) == 0 && !cfg.Unsigned:
		errs = append(errs, errors.New("field Secrets: none; a receiver could not tell who sent a request (Unsigned says that none is wanted)"))
	case len(cfg.Secrets) > 0 && cfg.Unsigned:
		errs = append(errs, errors.New("field Unsigned: there are Secrets"))
	}
	if cfg.Requests < 0 || cfg.Timeout < 0 || cfg.MaxRetryAfter < 0 {
		errs = append(errs, errors.New("fields Requests, Timeout and MaxRetryAfter: not negative"))
	}
	codec, err := broker.NewCodec(broker.HTTP, broker.CodecConfig{Source: cfg.Source})
	errs = append(errs, err)
	if err := fieldError(errs...); err != nil {
		return nil, err
	}
	if cfg.Requests == 0 {
		cfg.Requests = 16
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 15 * time.Second
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

// Destination implements relay.DestinedSink: endpoints are told apart by scheme and host.
func (s *Sink) Destination(ev *waybill.Event) string {
	u, err := s.endpoint(ev)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

func (s *Sink) endpoint(ev *waybill.Event) (*url.URL, error) {
	text := s.url
	if s.cfg.Endpoint != nil {
		var err error
		if text, err = s.cfg.Endpoint(ev); err != nil {
			return nil, waybill.Permanent(fmt.Errorf("webhook: endpoint of event %s: %w", ev.ID, err))
		}
	}
	u, err := checkEndpoint(text)
	if err != nil {
		return nil, waybill.Permanent(fmt.Errorf("webhook: endpoint of event %s: %w", ev.ID, err))
	}
	return u, nil
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
	u, err := s.endpoint(&d.Event)
	if err != nil {
		return err
	}
	m, err := s.codec.Encode(d)
	if err != nil {
		return err
	}
	if err := s.post(ctx, u, &m); err != nil {
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

func (s *Sink) post(ctx context.Context, u *url.URL, m *broker.Message) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(m.Payload))
	if err != nil {
		return err
	}
	s.setHeader(req.Header, m)
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

func (s *Sink) setHeader(h http.Header, m *broker.Message) {
	for name, values := range s.cfg.Header {
		h[http.CanonicalHeaderKey(name)] = values
	}
	h.Set("User-Agent", "waybill")
	for _, header := range m.Headers {
		h.Set(header.Name, header.Value)
	}
	now := time.Now().Unix()
	h.Set(HeaderID, m.PublishID)
	h.Set(HeaderTimestamp, strconv.FormatInt(now, 10))
	if len(s.keys) > 0 {
		h.Set(HeaderSignature, signature(s.keys, m.PublishID, now, m.Payload))
	}
}

package httpkey

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Config is what a middleware can be told. Only Scope is required.
type Config struct {
	// Scope says whose key it is. Keys of different scopes never meet, so that nobody gets an answer that was made for somebody else. An error, or
	// a scope that names nobody, refuses the request. Where there are no tenants and no users, say so: [Unscoped].
	Scope func(*http.Request) (Scope, error)
	// Operation names what a request does; the same key for another operation is another key. Paths and queries are compared besides. Defaults to
	// the pattern of http.ServeMux that led here, else method and path.
	Operation func(*http.Request) string
	// StrictRoutes refuses a key that was used for another operation, instead of taking it for another key.
	StrictRoutes bool
	// Methods are those that need a key; others pass through. GET, HEAD, OPTIONS and TRACE are refused. Defaults to POST and PATCH.
	Methods []string

	// Header is the name of the header with the key. Defaults to Idempotency-Key.
	Header string
	// Optional lets requests without a key pass through, unprotected.
	Optional bool
	// Strict refuses a key that is not in double quotes. By default abc is taken for "abc", because most clients write it so.
	Strict bool
	// MinLen is how many bytes a key must have. Defaults to 1. At most 255 are allowed.
	MinLen int

	// MaxBody is how many bytes of a request's body are read to compare it. Defaults to 1 MiB.
	MaxBody int64
	// LargeBody is what becomes of a request whose body is larger. Defaults to [Refuse]. WrapTx always refuses it.
	LargeBody LargeBody
	// DigestHeader names a header whose value stands for a body that is larger: one that a proxy has verified, such as Content-Digest. Whoever can
	// write it freely can make two requests look alike. Defaults to none.
	DigestHeader string

	// MaxReply is how many bytes of an answer are kept. The client gets a larger one as a whole, but a repeat is told that it is not there any
	// more. Defaults to 1 MiB; the limit of the keys themselves counts as well.
	MaxReply int
	// Headers are kept in addition to Content-Type, Content-Encoding, Content-Language, Content-Disposition, Location and ETag. Cookies, credentials,
	// connection headers, dates and trace ids are refused.
	Headers []string
	// Store decides by its status whether an answer is final; any other goes to its client only, and the key may be used again. Defaults to
	// [StoreFinal].
	Store func(status int) bool
	// ReplayedHeader is set to "true" on a stored answer. Defaults to Idempotent-Replayed.
	ReplayedHeader string
	// AuthorizeReplay is asked before a stored answer, or a reference to it, is sent: access that was taken away should not read old answers. An
	// error refuses it. ref is the reference that was stored with the answer. Defaults to allowing it within the same scope.
	AuthorizeReplay func(r *http.Request, ref string) error

	// TTL is for how long a repeat gets the answer, from its completion. Defaults to that of the keys.
	TTL time.Duration
	// WaitMax is for how long a repeat waits for a request that is under way. Defaults to not waiting: it is answered with 409 at once.
	WaitMax time.Duration
	// FailOpen runs requests without protection while the store is down, instead of answering 503. FailedOpen, if set, is told each time: count
	// it. It is for routes whose repeats do no harm. It does not apply to WrapTx.
	FailOpen   bool
	FailedOpen func(operation string, err error)

	// DocsURL is where the rules for keys, and for how long they are kept, are published; refusals link to it. Defaults to Waybill's own
	// description.
	DocsURL string
	// Logger gets what no client should see. Defaults to [slog.Default];
	// slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
}

// LargeBody is what becomes of a request with a large body.
type LargeBody int

const (
	// Refuse answers 413.
	Refuse LargeBody = iota
	// Bypass lets it pass through, unprotected.
	Bypass
)

const (
	maxKey  = 255
	mebi    = 1 << 20
	docsURL = "https://github.com/waybillhq/waybill/blob/main/docs/idempotency.md"
)

// StoreFinal is true for answers that a repeat would get again: successes, redirects, and refusals that do not depend on who asks or when. Left out
// are 401, 403, 408, 421, 423, 425, 429 and everything from 500 on.
func StoreFinal(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusMisdirectedRequest,
		http.StatusLocked, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status < 500
}

// StoreAll is true for every answer: a 500 is repeated, too, as Stripe does.
func StoreAll(int) bool { return true }

// alwaysKept are the headers of an answer that are always kept.
var alwaysKept = []string{"Content-Type", "Content-Encoding", "Content-Language", "Content-Disposition", "Location", "Etag"}

// neverKept are those that must not be: secrets of one client, matters of one connection or one moment.
var neverKept = []string{
	"Set-Cookie", "Set-Cookie2", "Authorization", "Proxy-Authorization", "Www-Authenticate", "Proxy-Authenticate", "Authentication-Info",
	"Proxy-Authentication-Info", "Connection", "Proxy-Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length",
	"Date", "Age", "Server-Timing", "Traceparent", "Tracestate", "X-Request-Id", "X-Correlation-Id", "X-Trace-Id", "X-B3-Traceid", "X-Amzn-Trace-Id",
}

// settle fills in defaults and reports every bad field.
func (c *Config) settle() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("Config."+format, args...)) }
	if c.Scope == nil {
		bad("Scope is nil: say whose keys they are, or httpkey.Unscoped")
	}
	if c.Methods == nil {
		c.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	for _, m := range c.Methods {
		switch m {
		case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
			bad("Methods: %s has no effect that could happen twice", m)
		case http.MethodConnect, "":
			bad("Methods: %q cannot be repeated", m)
		}
	}
	name := func(field string, value *string, def string) {
		if *value == "" {
			*value = def
		}
		if *value != "" && !isToken(*value) {
			bad("%s: %q is not a header", field, *value)
		}
		*value = textproto.CanonicalMIMEHeaderKey(*value)
	}
	name("Header", &c.Header, "Idempotency-Key")
	name("ReplayedHeader", &c.ReplayedHeader, "Idempotent-Replayed")
	name("DigestHeader", &c.DigestHeader, "")
	c.Headers = slices.Clone(c.Headers)
	for i := range c.Headers {
		name("Headers", &c.Headers[i], "")
		if h := c.Headers[i]; h == "" || slices.Contains(neverKept, h) || h == c.ReplayedHeader {
			bad("Headers: %q must not be kept", h)
		}
	}
	if c.MinLen < 0 || c.MinLen > maxKey {
		bad("MinLen: %d is not from 0 to %d", c.MinLen, maxKey)
	}
	if c.MaxBody < 0 || c.MaxReply < 0 {
		bad("MaxBody, MaxReply: %d, %d: negative", c.MaxBody, c.MaxReply)
	}
	if c.LargeBody != Refuse && c.LargeBody != Bypass {
		bad("LargeBody: %d is neither Refuse nor Bypass", c.LargeBody)
	}
	if c.TTL < 0 || c.WaitMax < 0 {
		bad("TTL, WaitMax: %v, %v: negative", c.TTL, c.WaitMax)
	}
	if c.DocsURL == "" {
		c.DocsURL = docsURL
	}
	if u, err := url.Parse(c.DocsURL); err != nil || strings.ContainsAny(c.DocsURL, "<> \"") || u.Host == "" && !strings.HasPrefix(u.Path, "/") {
		bad("DocsURL is not a URL")
	}
	c.fill()
	return errors.Join(errs...)
}

// fill sets the defaults that need no check.
func (c *Config) fill() {
	if c.Operation == nil {
		c.Operation = operationOf
	}
	if c.MinLen == 0 {
		c.MinLen = 1
	}
	if c.MaxBody == 0 {
		c.MaxBody = mebi
	}
	if c.MaxReply == 0 {
		c.MaxReply = mebi
	}
	if c.Store == nil {
		c.Store = StoreFinal
	}
	if c.FailedOpen == nil {
		c.FailedOpen = func(string, error) {}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// isToken reports whether s can be the name of a header.
func isToken(s string) bool {
	for _, c := range []byte(s) {
		alnum := '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
		if !alnum && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

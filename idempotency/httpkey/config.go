package httpkey

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/internal/logkey"
)

// Config configures a [Middleware]. Only Scope is required.
type Config struct {
	// Scope returns the tenant and the principal of a key. Keys of different
	// scopes never collide, so that no caller gets an answer made for another.
	// An error, or an empty scope, refuses the request. For services without
	// tenants and users, use [Unscoped]. Required.
	Scope func(*http.Request) (Scope, error)
	// Operation names the operation of a request; the same key for another
	// operation is another key. Path and query are compared as well. Defaults
	// to the matched pattern of http.ServeMux, or else to method and path.
	Operation func(*http.Request) string
	// StrictRoutes refuses a key that was used for another operation, instead
	// of treating it as another key. Defaults to false.
	StrictRoutes bool
	// Methods are the methods that need a key; others pass through. GET, HEAD,
	// OPTIONS and TRACE are refused. Defaults to POST and PATCH.
	Methods []string

	// Header is the name of the header with the key. Defaults to
	// Idempotency-Key.
	Header string
	// Optional lets requests without a key pass through, unprotected. Defaults
	// to false.
	Optional bool
	// Strict refuses a key that is not in double quotes. By default abc means
	// "abc", because most clients send keys without quotes.
	Strict bool
	// MinLen is the minimum length of a key, in bytes. Defaults to 1. The
	// maximum is 255.
	MinLen int

	// MaxBody is the maximum number of bytes of a request's body that are read
	// to compare it. Defaults to 1 MiB.
	MaxBody int64
	// LargeBody is the treatment of requests with a body larger than MaxBody.
	// Defaults to [Refuse]. WrapTx always refuses them.
	LargeBody LargeBody
	// DigestHeader names a header whose value replaces a body larger than
	// MaxBody: one that a proxy has verified, such as Content-Digest. A client
	// that can set it freely can make two requests look alike. Defaults to
	// none.
	DigestHeader string

	// MaxResult is the maximum size of a stored answer, in bytes. The client
	// gets a larger answer in full, but a repeat is refused with 409. Defaults
	// to 1 MiB; the limit of the keys themselves applies as well.
	MaxResult int
	// Headers are stored in addition to Content-Type, Content-Encoding,
	// Content-Language, Content-Disposition, Location and ETag. Cookies,
	// credentials, connection headers, dates and trace ids are refused.
	// Defaults to none.
	Headers []string
	// Store decides by the status whether an answer is final. Any other answer
	// goes to its client only, and the key may be used again. Defaults to
	// [StoreFinal].
	Store func(status int) bool
	// ReplayedHeader is set to "true" on a stored answer. Defaults to
	// Idempotent-Replayed.
	ReplayedHeader string
	// AuthorizeReplay is called before a stored answer, or its reference, is
	// sent, so that a client whose access was revoked cannot read old answers.
	// An error refuses the request. Defaults to allowing replays within the
	// same scope.
	AuthorizeReplay func(r *http.Request, info AuthorizeReplayInfo) error

	// Hash returns the hash of all parts of a request that define it, such as
	// [idempotency.HashFields] of the decoded body: for clients whose repeats
	// differ in a part that has no meaning, such as a time. body is the whole
	// body. An error refuses the request with 400. A body larger than MaxBody
	// is compared as without Hash. Defaults to a hash of the method, the
	// operation, the path, the query, the type and encoding of the content, and
	// the body; see [idempotency.HashRequest].
	Hash func(r *http.Request, body []byte) (idempotency.Hash, error)
	// Lease returns how long the key of a request stays claimed after the death
	// of its process; 0: the Lease of the keys. Defaults to that of the keys.
	Lease func(*http.Request) time.Duration

	// Retention is how long a repeat gets the answer, counted from its
	// completion. Defaults to the Retention of the keys.
	Retention time.Duration
	// WaitMax is how long a repeat waits for a concurrent request with the same
	// key. Defaults to no waiting: the repeat gets 409 immediately.
	WaitMax time.Duration
	// FailOpen runs requests unprotected while the store is unavailable,
	// instead of answering 503. Use FailOpen for routes whose repeats are
	// harmless. It does not apply to WrapTx. Defaults to false.
	FailOpen bool
	// FailedOpen is called for each request that FailOpen runs, for example to
	// count them. Defaults to no call.
	FailedOpen func(info FailedOpenInfo)

	// DocsURL is the address of the rules for keys and of their retention;
	// refusals link to it. Defaults to the documentation of Waybill.
	DocsURL string
	// Logger receives errors that clients must not see. Defaults to
	// [slog.Default]; slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
}

// AuthorizeReplayInfo is the argument of [Config.AuthorizeReplay].
type AuthorizeReplayInfo struct {
	// Ref is the reference that was stored with the answer.
	Ref string
}

// FailedOpenInfo is the argument of [Config.FailedOpen].
type FailedOpenInfo struct {
	Operation string
	// Err is the error of the store.
	Err error
}

// LargeBody is the treatment of requests with a large body.
type LargeBody int

const (
	// Refuse answers 413.
	Refuse LargeBody = iota
	// Bypass lets the request pass through, unprotected.
	Bypass
)

const (
	maxKey  = 255
	mebi    = 1 << 20
	docsURL = "https://github.com/waybillhq/waybill/blob/main/docs/idempotency.md"
)

// StoreFinal returns true for answers that a repeat would get again: successes,
// redirects, and refusals that depend neither on the caller nor on the time. It
// returns false for 401, 403, 408, 421, 423, 425, 429 and every status from 500
// on.
func StoreFinal(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusMisdirectedRequest,
		http.StatusLocked, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status < 500
}

// StoreAll returns true for every answer: even a 500 is replayed, as Stripe
// does.
func StoreAll(int) bool { return true }

// alwaysKept are the headers of an answer that are always stored.
var alwaysKept = []string{"Content-Type", "Content-Encoding", "Content-Language", "Content-Disposition", "Location", "Etag"}

// neverKept are the headers that must not be stored: secrets of one client, and
// properties of one connection or one moment.
var neverKept = []string{
	"Set-Cookie", "Set-Cookie2", "Authorization", "Proxy-Authorization", "Www-Authenticate", "Proxy-Authenticate", "Authentication-Info",
	"Proxy-Authentication-Info", "Connection", "Proxy-Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length",
	"Date", "Age", "Server-Timing", "Traceparent", "Tracestate", "X-Request-Id", "X-Correlation-Id", "X-Trace-Id", "X-B3-Traceid", "X-Amzn-Trace-Id",
}

// settle fills in defaults and reports every invalid field.
func (c *Config) settle() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("Config."+format, args...)) }
	if c.Scope == nil {
		bad("Scope: nil; set it, or use httpkey.Unscoped")
	}
	if c.Methods == nil {
		c.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	checkMethods(c.Methods, bad)
	name := func(field string, value *string) {
		if *value != "" && !isToken(*value) {
			bad("%s: %q is not a header name", field, *value)
		}
		*value = textproto.CanonicalMIMEHeaderKey(*value)
	}
	c.Header = cmp.Or(c.Header, "Idempotency-Key")
	c.ReplayedHeader = cmp.Or(c.ReplayedHeader, "Idempotent-Replayed")
	name("Header", &c.Header)
	if c.MinLen < 0 || c.MinLen > maxKey {
		bad("MinLen: %d is not between 0 and %d", c.MinLen, maxKey)
	}
	if c.MaxBody < 0 {
		bad("MaxBody: %d is negative", c.MaxBody)
	}
	if c.LargeBody != Refuse && c.LargeBody != Bypass {
		bad("LargeBody: %d is neither Refuse nor Bypass", c.LargeBody)
	}
	name("DigestHeader", &c.DigestHeader)
	if c.MaxResult < 0 {
		bad("MaxResult: %d is negative", c.MaxResult)
	}
	c.settleHeaders(name, bad)
	name("ReplayedHeader", &c.ReplayedHeader)
	if c.Retention < 0 {
		bad("Retention: %v is negative", c.Retention)
	}
	if c.WaitMax < 0 {
		bad("WaitMax: %v is negative", c.WaitMax)
	}
	if c.DocsURL == "" {
		c.DocsURL = docsURL
	}
	if u, err := url.Parse(c.DocsURL); err != nil || strings.ContainsAny(c.DocsURL, "<> \"") || u.Host == "" && !strings.HasPrefix(u.Path, "/") {
		bad("DocsURL: not a URL")
	}
	c.fill()
	return errors.Join(errs...)
}

// checkMethods reports methods that need no key or cannot have one.
func checkMethods(methods []string, bad func(format string, args ...any)) {
	for _, m := range methods {
		switch m {
		case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
			bad("Methods: %s is a safe method and needs no key", m)
		case http.MethodConnect, "":
			bad("Methods: %q cannot be repeated", m)
		}
	}
}

// settleHeaders checks the names of the stored headers; name checks one.
func (c *Config) settleHeaders(name func(field string, value *string), bad func(format string, args ...any)) {
	c.Headers = slices.Clone(c.Headers)
	for i := range c.Headers {
		name("Headers", &c.Headers[i])
		if h := c.Headers[i]; h == "" || slices.Contains(neverKept, h) || h == textproto.CanonicalMIMEHeaderKey(c.ReplayedHeader) {
			bad("Headers: %q must not be stored", h)
		}
	}
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
	if c.MaxResult == 0 {
		c.MaxResult = mebi
	}
	if c.Store == nil {
		c.Store = StoreFinal
	}
	if c.FailedOpen == nil {
		c.FailedOpen = func(FailedOpenInfo) {}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = c.Logger.With(slog.String(logkey.Component, "httpkey"))
}

// isToken reports whether s is a valid header name.
func isToken(s string) bool {
	for _, c := range []byte(s) {
		alnum := '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
		if !alnum && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

package httpkey

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/waybillhq/waybill/idempotency"
)

// Scope is the tenant and the principal of a key.
type Scope struct {
	// Tenant is at most 64 bytes.
	Tenant string
	// Principal is the caller: a user, a client, the id of an API key. A
	// principal never gets the answers of another.
	Principal string
	// open is only set by Unscoped.
	open bool
}

// Unscoped is a [Config.Scope] for services without tenants and users: all
// callers share one scope, so a client that guesses a key gets its answer.
func Unscoped(*http.Request) (Scope, error) { return Scope{open: true}, nil }

// operationOf is the default of Config.Operation.
func operationOf(r *http.Request) string {
	if r.Pattern != "" {
		return r.Pattern
	}
	return r.Method + " " + r.URL.Path
}

// call is one request with a key.
type call struct {
	r   *http.Request
	req idempotency.Request
	// operation is the operation in hooks and logs.
	operation string
	body      []byte
	// rest is the remainder of a body that is too large to be read as a whole.
	rest io.ReadCloser
}

var (
	errTooLarge = errors.New("the body is too large")
	errBodyGone = errors.New("httpkey: the body was read before the middleware")
)

// read reads the body. If the body is larger than allowed, it returns
// errTooLarge and the part read so far.
func (c *Config) read(r *http.Request) ([]byte, error) {
	if len(r.PostForm) > 0 || r.MultipartForm != nil {
		return nil, errBodyGone
	}
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	var buf bytes.Buffer
	if 0 < r.ContentLength && r.ContentLength <= c.MaxBody {
		// Avoids another allocation.
		buf.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	_, err := buf.ReadFrom(io.LimitReader(r.Body, c.MaxBody+1))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge), err == nil && int64(buf.Len()) > c.MaxBody:
		return buf.Bytes(), errTooLarge
	case err != nil:
		return nil, err
	case r.ContentLength >= 0 && int64(buf.Len()) != r.ContentLength:
		return nil, io.ErrUnexpectedEOF
	}
	return buf.Bytes(), nil
}

// content returns the content by which requests are compared.
func (c *call) content(digest string) idempotency.RequestContent {
	content := idempotency.RequestContent{
		Method: c.r.Method, Operation: c.operation, Path: c.r.URL.EscapedPath(), Query: c.r.URL.RawQuery,
		ContentType:     strings.Join(c.r.Header["Content-Type"], ","),
		ContentEncoding: strings.Join(c.r.Header["Content-Encoding"], ","),
		Body:            c.body,
	}
	if c.rest != nil {
		content.Body, content.Digest = nil, digest
	}
	return content
}

// request returns the request for the handler, with a readable body; each call
// returns a fresh body, unless the body was too large.
func (c *call) request(ctx context.Context) *http.Request {
	r := c.r.WithContext(ctx)
	r.Body = http.NoBody
	switch {
	case c.rest != nil:
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(c.body), c.rest), c.rest}
		return r
	case len(c.body) > 0:
		r.Body = io.NopCloser(bytes.NewReader(c.body))
	}
	r.ContentLength, r.TransferEncoding = int64(len(c.body)), nil
	return r
}

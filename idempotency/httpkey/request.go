package httpkey

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/waybillhq/waybill/idempotency"
)

// Scope says whose a key is.
type Scope struct {
	// Tenant is at most 64 bytes.
	Tenant string
	// Principal is who asks: a user, a client, an API key's id. Another principal never gets this one's answers.
	Principal string
	// open is only set by Unscoped.
	open bool
}

// Unscoped is a [Config.Scope] for services without tenants and users: all callers share one scope, so who guesses a key gets its answer.
func Unscoped(*http.Request) (Scope, error) { return Scope{open: true}, nil }

// operationOf is the default of Config.Operation.
func operationOf(r *http.Request) string {
	if r.Pattern != "" {
		return r.Pattern
	}
	return r.Method + " " + r.URL.Path
}

// anyOperation is stored with strict routes.
const anyOperation = "any route"

// maxOperation is how many bytes of an operation can be stored.
const maxOperation = 128

// storable returns an operation that fits into its column; one that does not is hashed.
func storable(operation string) string {
	if 0 < len(operation) && len(operation) <= maxOperation && utf8.ValidString(operation) && !strings.ContainsRune(operation, 0) {
		return operation
	}
	sum := sha256.Sum256([]byte(operation))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// recordKey is the key that is stored. Nobody's key can be made to look like another's: each part has its length in front. And what a client has
// sent is not in the database.
func recordKey(s Scope, operation, key string) string {
	h := sha256.New()
	for _, part := range []string{s.Tenant, s.Principal, operation, key} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		_, _ = h.Write(n[:]) // a hash never fails
		_, _ = io.WriteString(h, part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// call is one request under a key.
type call struct {
	r   *http.Request
	req idempotency.Request
	// operation is what hooks and logs see.
	operation string
	body      []byte
	// rest is what follows body, if that was too large to be read as a whole.
	rest io.ReadCloser
}

var (
	errTooLarge = errors.New("the body is too large")
	errBodyGone = errors.New("httpkey: the body was read before the middleware, which has to see it")
)

// read reads the body. It returns errTooLarge, with what was read so far, if there is more than is allowed.
func (c *Config) read(r *http.Request) ([]byte, error) {
	if len(r.PostForm) > 0 || r.MultipartForm != nil {
		return nil, errBodyGone
	}
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	var buf bytes.Buffer
	if 0 < r.ContentLength && r.ContentLength <= c.MaxBody {
		buf.Grow(int(r.ContentLength) + bytes.MinRead) // so that it does not grow again
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

// content is what the request is compared by.
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

// request returns the request as the handler sees it, with a body that can be read, again each time unless it was too large.
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

package httpkey

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/requestkey"
)

// Middleware makes handlers run once per key. It may be used for any number of
// handlers, concurrently.
type Middleware[T any] struct {
	keys *idempotency.Keys[T]
	cfg  Config
}

// New returns a middleware over keys. The error names every invalid field of
// the configuration.
func New[T any](keys *idempotency.Keys[T], cfg Config) (*Middleware[T], error) {
	err := cfg.settle()
	if keys == nil {
		err = errors.Join(errors.New("keys is nil"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("httpkey: %w", err)
	}
	cfg.Headers = append(slices.Clone(alwaysKept), cfg.Headers...)
	return &Middleware[T]{keys, cfg}, nil
}

// MarkEffect reports an effect outside the database that must not happen twice.
// If the request of ctx then ends in an answer that is not stored (5xx), or in
// a panic, its key becomes uncertain: repeats get 409 until an operator
// resolves it.
func MarkEffect(ctx context.Context) { idempotency.MarkEffect(ctx) }

// DontStore marks the answer to the request of ctx as not final, whatever its
// status: a client may, for example, correct a mistyped one-time code with the
// same key.
func DontStore(ctx context.Context) { idempotency.DontStore(ctx) }

// SetRef sets the reference of the request of ctx, such as a public id. A
// repeat gets it even if the answer could not be stored.
func SetRef(ctx context.Context, ref string) { idempotency.SetRef(ctx, ref) }

// Wrap returns a handler that runs next once per key. The claim of the key is
// committed before next runs; the answer is stored before its first byte is
// sent. The context of the request does not end when the client disconnects:
// next finishes, and its answer is stored.
//
// An answer that next flushes or hijacks, or that is larger than
// [Config.MaxResult], is streamed to the client. The answer is not stored, but
// its completion is: repeats get 409, and next does not run again.
func (m *Middleware[T]) Wrap(next http.Handler) http.Handler {
	if next == nil {
		panic("httpkey: the handler is nil")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(m.cfg.Methods, r.Method) {
			next.ServeHTTP(w, r)
			return
		}
		c, pass, refusal := m.prepare(r)
		switch {
		case refusal != nil:
			m.cfg.refuse(w, *refusal)
		case pass:
			next.ServeHTTP(w, c.request(r.Context()))
		default:
			m.serve(w, c, next)
		}
	})
}

// WrapTx returns a handler that runs fn once per key, in a transaction with the
// key and the answer: all of it is committed, then the answer is sent. It
// serves only the configured methods.
//
// If fn returns an error, everything is rolled back, and the key may be used
// again; the client gets the response that fn wrote if its status is 400 or
// above, or else a plain 500. If the answer is not to be stored
// ([Config.Store], [DontStore]), everything is rolled back as well, without an
// error. fn may be called again if the database aborts a transaction because of
// a conflict with others. Nothing can be flushed or hijacked. With
// [Config.Optional], a request without a key still runs in a transaction, with
// a generated key.
func (m *Middleware[T]) WrapTx(fn func(w http.ResponseWriter, r *http.Request, tx T) error) http.Handler {
	if fn == nil {
		panic("httpkey: the handler is nil")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(m.cfg.Methods, r.Method) {
			w.Header().Set("Allow", strings.Join(m.cfg.Methods, ", "))
			m.cfg.refuse(w, methodRefused)
			return
		}
		c, pass, refusal := m.prepare(r)
		switch {
		case refusal != nil:
			m.cfg.refuse(w, *refusal)
			return
		case c.rest != nil:
			// fn may run twice, but a streamed body can be read only once.
			m.cfg.refuse(w, bodyTooLarge)
			return
		case pass:
			c.req = idempotency.Request{
				Operation: requestkey.Operation(c.operation), Key: waybill.NewID().String(), Hash: idempotency.HashRequest(c.content("")), Retention: time.Minute,
			}
		}
		m.serveTx(w, c, fn)
	})
}

// prepare reads the scope, the operation, the key and the content of a request.
// pass reports that the request runs without protection.
func (m *Middleware[T]) prepare(r *http.Request) (c *call, pass bool, refusal *problem) {
	no := func(p problem) (*call, bool, *problem) { return nil, false, &p }
	c = &call{r: r, operation: m.cfg.Operation(r)}
	key, err := m.cfg.key(r)
	switch {
	case errors.Is(err, errNoKey) && !m.cfg.Optional:
		return no(keyMissing(m.cfg.Header))
	case errors.Is(err, errNoKey):
		pass = true
	case err != nil:
		return no(keyInvalid(err))
	}
	var scope Scope
	if !pass {
		if scope, err = m.scope(r); err != nil {
			m.cfg.Logger.WarnContext(r.Context(), "request refused: unknown scope", logkey.Operation, c.operation, logkey.Error, err)
			return no(scopeRefused)
		}
	}
	c.body, err = m.cfg.read(r)
	digest := ""
	switch {
	case errors.Is(err, errTooLarge):
		if m.cfg.DigestHeader != "" {
			digest = r.Header.Get(m.cfg.DigestHeader)
		}
		if !pass && digest == "" && m.cfg.LargeBody == Refuse {
			return no(bodyTooLarge)
		}
		c.rest, pass = r.Body, pass || digest == ""
	case errors.Is(err, errBodyGone):
		m.cfg.Logger.ErrorContext(r.Context(), "request refused", logkey.Operation, c.operation, logkey.Error, err)
		return no(broken)
	case err != nil:
		return no(bodyUnreadable)
	case r.Body != nil:
		_ = r.Body.Close() // already read to its end
	}
	if pass {
		return c, true, nil
	}
	hash := idempotency.HashRequest(c.content(digest))
	if m.cfg.Hash != nil && c.rest == nil {
		if hash, err = m.cfg.Hash(r, c.body); err != nil {
			m.cfg.Logger.WarnContext(r.Context(), "request refused: no hash", logkey.Operation, c.operation, logkey.Error, err)
			return no(hashRefused)
		}
	}
	operation := requestkey.Operation(c.operation)
	if m.cfg.StrictRoutes {
		operation = requestkey.AnyRoute
	}
	c.req = idempotency.Request{
		TenantID: scope.Tenant, Operation: operation, Key: requestkey.Key(scope.Tenant, scope.Principal, operation, key), Hash: hash,
		Retention: m.cfg.Retention, WaitMax: m.cfg.WaitMax,
	}
	if m.cfg.Lease != nil {
		c.req.Lease = m.cfg.Lease(r)
	}
	if err := c.req.Validate(); err != nil {
		m.cfg.Logger.ErrorContext(r.Context(), "request refused", logkey.Operation, c.operation, logkey.Error, err)
		return no(scopeRefused)
	}
	return c, false, nil
}

// scope returns the scope of a request. An empty scope is an error: all callers
// would share it.
func (m *Middleware[T]) scope(r *http.Request) (Scope, error) {
	s, err := m.cfg.Scope(r)
	if err == nil && s == (Scope{}) {
		err = errors.New("Config.Scope returned an empty scope")
	}
	return s, err
}

// serve runs next, or sends the stored answer.
func (m *Middleware[T]) serve(w http.ResponseWriter, c *call, next http.Handler) {
	ctx, started, end := detach(c.r.Context(), c.req.WaitMax > 0)
	defer end()
	var fresh *capture
	got, err := m.keys.DoBytes(ctx, c.req, func(ctx context.Context) (idempotency.Answer, error) {
		if err := started(); err != nil {
			return idempotency.Answer{}, err
		}
		fresh = newCapture(w, m.cfg.MaxResult, false)
		r := c.request(ctx)
		defer dropForm(r)
		next.ServeHTTP(fresh, r)
		return m.answer(fresh), nil
	})
	if fresh == nil && m.cfg.FailOpen && errors.Is(err, idempotency.ErrStore) {
		m.cfg.FailedOpen(FailedOpenInfo{Operation: c.operation, Err: err})
		m.cfg.Logger.WarnContext(ctx, "request runs unprotected: the store failed", logkey.Operation, c.operation, logkey.Error, err)
		next.ServeHTTP(w, c.request(c.r.Context()))
		return
	}
	m.conclude(w, c, fresh, got, err)
}

// serveTx runs fn in a transaction, or sends the stored answer.
func (m *Middleware[T]) serveTx(w http.ResponseWriter, c *call, fn func(http.ResponseWriter, *http.Request, T) error) {
	ctx, started, end := detach(c.r.Context(), c.req.WaitMax > 0)
	defer end()
	var fresh *capture
	var wrong error // the error of fn
	got, err := m.keys.DoBytesTx(ctx, c.req, func(ctx context.Context, tx T) (idempotency.Answer, error) {
		wrong = nil
		if err := started(); err != nil {
			return idempotency.Answer{}, err
		}
		fresh = newCapture(w, m.cfg.MaxResult, true)
		r := c.request(ctx)
		defer dropForm(r)
		if wrong = fn(fresh, r, tx); wrong != nil {
			return idempotency.Answer{}, wrong
		}
		return m.answer(fresh), nil
	})
	if wrong != nil && err != nil && errors.Is(err, wrong) {
		m.fail(w, c, fresh, wrong)
		return
	}
	m.conclude(w, c, fresh, got, err)
}

// fail answers for a handler that returned an error and was rolled back.
func (m *Middleware[T]) fail(w http.ResponseWriter, c *call, fresh *capture, err error) {
	if fresh.status >= http.StatusBadRequest {
		fresh.finish()
		fresh.send(m.cfg.ReplayedHeader)
		return
	}
	m.cfg.Logger.ErrorContext(c.r.Context(), "handler failed", logkey.Operation, c.operation, logkey.Error, err)
	fresh.discard()
	m.cfg.refuse(w, failed)
}

// detach returns a context that does not end when the client disconnects. A
// request that may wait for another one is different: until it starts, a
// disconnect ends its context. started ends that period, and returns an error
// if the request must not start.
func detach(ctx context.Context, waits bool) (detached context.Context, started func() error, end func()) {
	detached = context.WithoutCancel(ctx)
	if !waits {
		return detached, func() error { return nil }, func() {}
	}
	detached, cancel := context.WithCancelCause(detached)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return detached, func() error {
		if stop() {
			return nil
		}
		return context.Cause(ctx)
	}, func() { stop(); cancel(nil) }
}

// answer returns the stored form of an answer.
func (m *Middleware[T]) answer(fresh *capture) idempotency.Answer {
	fresh.finish()
	switch {
	case !m.cfg.Store(fresh.status):
		return idempotency.Answer{Release: true}
	case fresh.through, fresh.body.Len() > m.cfg.MaxResult:
		return idempotency.Answer{Lost: true}
	}
	return idempotency.Answer{Body: m.cfg.stored(fresh).encode(), ContentType: replyType}
}

// conclude sends the outcome.
func (m *Middleware[T]) conclude(w http.ResponseWriter, c *call, fresh *capture, got idempotency.Reply, err error) {
	if err == nil && !got.Replayed {
		fresh.send(m.cfg.ReplayedHeader)
		return
	}
	if fresh != nil && !fresh.discard() {
		// The run took too long, and another run has answered for this key; the
		// client has already received the beginning of this answer.
		m.cfg.Logger.WarnContext(c.r.Context(), "a streamed answer differs from the stored one", logkey.Operation, c.operation, logkey.Error, err)
		return
	}
	if err == nil {
		m.replay(w, c, got.Answer)
		return
	}
	p := problemOf(err)
	if p.Code == broken.Code || p.Code == unreadable.Code {
		m.cfg.Logger.ErrorContext(c.r.Context(), "request failed", logkey.Operation, c.operation, logkey.Error, err)
	}
	if p.ResultRef != "" && !m.authorized(c, p.ResultRef) {
		p = replayRefused
	}
	m.cfg.refuse(w, p)
}

// replay sends a stored answer.
func (m *Middleware[T]) replay(w http.ResponseWriter, c *call, a idempotency.Answer) {
	if !m.authorized(c, a.Ref) {
		m.cfg.refuse(w, replayRefused)
		return
	}
	r, err := decode(a)
	if err != nil {
		m.cfg.Logger.ErrorContext(c.r.Context(), "stored answer cannot be decoded", logkey.TenantID, c.req.TenantID, logkey.Operation, c.req.Operation,
			// The key is a hash of the client's key.
			logkey.Key, c.req.Key, logkey.Error, err)
		m.cfg.refuse(w, corrupt)
		return
	}
	r.write(w, m.cfg.Headers, m.cfg.ReplayedHeader)
}

func (m *Middleware[T]) authorized(c *call, ref string) bool {
	if m.cfg.AuthorizeReplay == nil {
		return true
	}
	err := m.cfg.AuthorizeReplay(c.r, AuthorizeReplayInfo{Ref: ref})
	if err != nil {
		m.cfg.Logger.InfoContext(c.r.Context(), "replay refused", logkey.Operation, c.operation, logkey.Ref, ref, logkey.Error, err)
	}
	return err == nil
}

// dropForm removes the files of a form that the handler parsed: net/http does
// that only for its own request, and this one is a copy.
func dropForm(r *http.Request) {
	if r.MultipartForm != nil {
		_ = r.MultipartForm.RemoveAll() // a leftover file does no harm
	}
}

// Package ginkey adds idempotency keys to routes of gin. It connects a
// middleware of [httpkey] with *gin.Context, and passes the transaction to the
// handler.
//
//	once, err := httpkey.New(keys, httpkey.Config{Scope: scopeOf})
//	…
//	r.POST("/orders", ginkey.WrapTx(once, func(c *gin.Context, tx pgx.Tx) error {
//		…
//		c.JSON(http.StatusCreated, order)
//		return nil
//	}))
//	r.POST("/mails", ginkey.Wrap(once), sendMail)
//
// The name of the operation is the method and the route, such as
// "POST /orders/:id/pay", unless httpkey.Config.Operation sets another.
// httpkey.SetRef, MarkEffect and DontStore take c.Request.Context().
package ginkey

import (
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/waybillhq/waybill/idempotency/httpkey"
)

// Wrap returns middleware that runs the following handlers of a route once per
// key, as [httpkey.Middleware.Wrap] does. It ends the chain if the request was
// refused, or answered by a stored answer.
func Wrap[T any](m *httpkey.Middleware[T]) gin.HandlerFunc {
	return func(c *gin.Context) {
		outer, request := c.Writer, c.Request
		ran := false
		m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ran = true
			c.Writer, c.Request = &writer{ResponseWriter: outer, w: w}, r
			defer func() { c.Writer, c.Request = outer, request }()
			c.Next()
			c.Writer.WriteHeaderNow() // gin sends a status without a body at its end, which is too late here
		})).ServeHTTP(outer, routed(c))
		if !ran {
			c.Abort()
		}
	}
}

// WrapTx returns the last handler of a route: fn runs once per key, in the
// transaction that also has the key and the answer, as
// [httpkey.Middleware.WrapTx] says. If fn returns an error, everything is
// rolled back; the client gets the response that fn wrote if its status is 400
// or above, or else a plain 500, and the error is added to c.Errors. fn may be
// called again if the database aborts the transaction because of a conflict.
func WrapTx[T any](m *httpkey.Middleware[T], fn func(c *gin.Context, tx T) error) gin.HandlerFunc {
	return func(c *gin.Context) {
		outer, request, before := c.Writer, c.Request, slices.Clone(c.Errors)
		m.WrapTx(func(w http.ResponseWriter, r *http.Request, tx T) error {
			c.Writer, c.Request, c.Errors = &writer{ResponseWriter: outer, w: w}, r, slices.Clone(before)
			defer func() { c.Writer, c.Request = outer, request }()
			err := fn(c, tx)
			if err != nil {
				_ = c.Error(err)
			}
			c.Writer.WriteHeaderNow()
			return err
		}).ServeHTTP(outer, routed(c))
		c.Abort() // the answer has been sent
	}
}

// routed returns the request with the route as its pattern, which names the
// operation.
func routed(c *gin.Context) *http.Request {
	r := c.Request.WithContext(c.Request.Context())
	if route := c.FullPath(); route != "" {
		r.Pattern = r.Method + " " + route
	}
	return r
}

// writer is a writer of gin over that of the middleware.
type writer struct {
	gin.ResponseWriter
	w       http.ResponseWriter
	status  int
	size    int
	written bool
}

func (g *writer) Header() http.Header { return g.w.Header() }

// WriteHeader sets the status, which is sent with the body, as gin does.
func (g *writer) WriteHeader(status int) {
	if status > 0 && !g.written {
		g.status = status
	}
}

func (g *writer) WriteHeaderNow() {
	if !g.written {
		g.written = true
		g.w.WriteHeader(g.Status())
	}
}

func (g *writer) Write(p []byte) (int, error) {
	g.WriteHeaderNow()
	n, err := g.w.Write(p)
	g.size += n
	return n, err
}

func (g *writer) WriteString(s string) (int, error) { return g.Write([]byte(s)) }
func (g *writer) Written() bool                     { return g.written }
func (g *writer) Size() int                         { return g.size }

func (g *writer) Status() int {
	if g.status == 0 {
		return http.StatusOK
	}
	return g.status
}

func (g *writer) Flush() {
	g.WriteHeaderNow()
	_ = http.NewResponseController(g.w).Flush()
}

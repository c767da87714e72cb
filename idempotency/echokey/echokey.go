// Package echokey adds idempotency keys to routes of echo. It connects a
// middleware of [httpkey] with echo.Context, and passes the transaction to the
// handler.
//
//	once, err := httpkey.New(keys, httpkey.Config{Scope: scopeOf})
//	…
//	e.POST("/orders", echokey.WrapTx(once, func(c echo.Context, tx pgx.Tx) error {
//		…
//		return c.JSON(http.StatusCreated, order)
//	}))
//	e.POST("/mails", sendMail, echokey.Wrap(once))
//
// The name of the operation is the method and the route, such as
// "POST /orders/:id/pay", unless httpkey.Config.Operation sets another.
// httpkey.SetRef, MarkEffect and DontStore take c.Request().Context().
package echokey

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/waybillhq/waybill/idempotency/httpkey"
)

// Wrap returns middleware that runs a handler once per key, as
// [httpkey.Middleware.Wrap] does. An error of the handler becomes a response
// inside the middleware, so that the answer is stored or the key is released.
func Wrap[T any](m *httpkey.Middleware[T]) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer swap(c, w, r)()
				if err := next(c); err != nil {
					c.Error(err)
				}
			})).ServeHTTP(c.Response(), routed(c))
			return nil
		}
	}
}

// WrapTx returns the handler of a route: fn runs once per key, in the
// transaction that also has the key and the answer, as
// [httpkey.Middleware.WrapTx] says. If fn returns an error, everything is
// rolled back, and the client gets the response that echo's error handler makes
// of the error. fn may be called again if the database aborts the transaction
// because of a conflict.
func WrapTx[T any](m *httpkey.Middleware[T], fn func(c echo.Context, tx T) error) echo.HandlerFunc {
	return func(c echo.Context) error {
		m.WrapTx(func(w http.ResponseWriter, r *http.Request, tx T) error {
			defer swap(c, w, r)()
			err := fn(c, tx)
			if err != nil {
				c.Error(err)
			}
			return err
		}).ServeHTTP(c.Response(), routed(c))
		return nil
	}
}

// swap gives a context another writer and request until the returned function
// is called.
func swap(c echo.Context, w http.ResponseWriter, r *http.Request) (back func()) {
	outer, request := c.Response(), c.Request()
	c.SetResponse(echo.NewResponse(w, c.Echo()))
	c.SetRequest(r)
	return func() {
		c.SetResponse(outer)
		c.SetRequest(request)
	}
}

// routed returns the request with the route as its pattern, which names the
// operation.
func routed(c echo.Context) *http.Request {
	r := c.Request().WithContext(c.Request().Context())
	if route := c.Path(); route != "" {
		r.Pattern = r.Method + " " + route
	}
	return r
}

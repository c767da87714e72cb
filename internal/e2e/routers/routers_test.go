package routers_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/store/memstore"
)

type once = *httpkey.Middleware[*memstore.Tx]

// newOnce returns a middleware that uses the router's route names as
// operations.
func newOnce(t *testing.T, operation func(*http.Request) string) once {
	t.Helper()
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := idempotency.New(db, idempotency.Config{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := httpkey.New(keys, httpkey.Config{Scope: httpkey.Unscoped, Operation: operation})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// runs counts runs of the handlers.
type runs struct{ atomic.Int64 }

// create is a handler for net/http and compatible routers.
func (n *runs) create(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Location", "/orders/1")
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, "order %d", n.Add(1))
}

// createTx is a handler in a transaction.
func (n *runs) createTx(w http.ResponseWriter, r *http.Request, _ *memstore.Tx) error {
	n.create(w, r)
	return nil
}

// chiRouter: the middleware has the type that chi requires. chi writes the
// pattern into the request's route context while it routes, so it is complete
// only in middleware of the route itself: With, not Use.
func chiRouter(t *testing.T, n *runs) http.Handler {
	m := newOnce(t, func(r *http.Request) string { return r.Method + " " + chi.RouteContext(r.Context()).RoutePattern() })
	r := chi.NewRouter()
	r.With(m.Wrap).Post("/orders", n.create)
	r.With(m.Wrap).Post("/orders/{id}/pay", n.create)
	r.Method(http.MethodPost, "/tx", m.WrapTx(n.createTx))
	r.With(m.Wrap).Post("/fail", func(http.ResponseWriter, *http.Request) { n.Add(1); panic(http.ErrAbortHandler) })
	return r
}

// ginWriter makes a gin writer from the middleware's writer.
type ginWriter struct {
	gin.ResponseWriter
	w      http.ResponseWriter
	status int
	size   int
}

func (g *ginWriter) Header() http.Header { return g.w.Header() }

func (g *ginWriter) WriteHeader(status int) {
	if status > 0 && g.status == 0 {
		g.status = status
		g.w.WriteHeader(status)
	}
}

func (g *ginWriter) WriteHeaderNow() {
	if g.status == 0 {
		g.WriteHeader(http.StatusOK)
	}
}

func (g *ginWriter) Write(p []byte) (int, error) {
	g.WriteHeaderNow()
	n, err := g.w.Write(p)
	g.size += n
	return n, err
}

func (g *ginWriter) WriteString(s string) (int, error) { return g.Write([]byte(s)) }
func (g *ginWriter) Written() bool                     { return g.status != 0 }
func (g *ginWriter) Status() int                       { return max(g.status, http.StatusOK) }
func (g *ginWriter) Size() int                         { return g.size }
func (g *ginWriter) Flush()                            { _ = http.NewResponseController(g.w).Flush() }

// onceGin is the recipe for gin: the rest of the chain runs inside the
// middleware, with its writer and its request.
func onceGin(m once) gin.HandlerFunc {
	return func(c *gin.Context) {
		outer, request := c.Writer, c.Request
		ran := false
		m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ran = true
			c.Writer, c.Request = &ginWriter{ResponseWriter: outer, w: w}, r
			defer func() { c.Writer, c.Request = outer, request }()
			c.Next()
		})).ServeHTTP(outer, request)
		if !ran {
			c.Abort() // answered by a stored answer, or refused
		}
	}
}

func ginRouter(t *testing.T, n *runs) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	// gin does not set the request's pattern: method and path
	m := newOnce(t, nil)
	r := gin.New()
	r.POST("/orders", onceGin(m), func(c *gin.Context) {
		c.Header("Location", "/orders/1")
		c.String(http.StatusCreated, "order %d", n.Add(1))
	})
	r.POST("/orders/:id/pay", onceGin(m), func(c *gin.Context) { c.String(http.StatusCreated, "order %d", n.Add(1)) })
	r.POST("/tx", gin.WrapH(m.WrapTx(n.createTx)))
	r.POST("/fail", onceGin(m), func(*gin.Context) { n.Add(1); panic(http.ErrAbortHandler) })
	return r
}

// onceEcho is the recipe for echo. Its errors become responses inside the
// middleware, so that they are stored, or the key is released.
func onceEcho(m once) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			outer, request := c.Response(), c.Request()
			m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				c.SetResponse(echo.NewResponse(w, c.Echo()))
				c.SetRequest(r)
				defer func() {
					c.SetResponse(outer)
					c.SetRequest(request)
				}()
				if err := next(c); err != nil {
					c.Error(err)
				}
			})).ServeHTTP(outer, request)
			return nil
		}
	}
}

func echoRouter(t *testing.T, n *runs) http.Handler {
	m := newOnce(t, nil)
	e := echo.New()
	e.POST("/orders", func(c echo.Context) error {
		c.Response().Header().Set("Location", "/orders/1")
		return c.String(http.StatusCreated, fmt.Sprintf("order %d", n.Add(1)))
	}, onceEcho(m))
	e.POST("/orders/:id/pay", func(c echo.Context) error { return c.String(http.StatusCreated, fmt.Sprintf("order %d", n.Add(1))) }, onceEcho(m))
	e.POST("/tx", echo.WrapHandler(m.WrapTx(n.createTx)))
	e.POST("/fail", func(echo.Context) error { n.Add(1); return errors.New("no luck") }, onceEcho(m))
	return e
}

// netRouter is net/http's own, for comparison.
func netRouter(t *testing.T, n *runs) http.Handler {
	m := newOnce(t, nil)
	mux := http.NewServeMux()
	mux.Handle("POST /orders", m.Wrap(http.HandlerFunc(n.create)))
	mux.Handle("POST /orders/{id}/pay", m.Wrap(http.HandlerFunc(n.create)))
	mux.Handle("POST /tx", m.WrapTx(n.createTx))
	mux.Handle("POST /fail", m.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { n.Add(1); panic(http.ErrAbortHandler) })))
	return mux
}

type answer struct {
	status   int
	body     string
	location string
	replayed bool
}

func post(t *testing.T, url, key, body string) (answer, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	// on a reused connection, Go's client repeats a request with a key by
	// itself
	r.Close = true
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, string(text), resp.Header.Get("Location"), resp.Header.Get("Idempotent-Replayed") == "true"}, err
}

func TestRouters(t *testing.T) {
	for name, router := range map[string]func(*testing.T, *runs) http.Handler{"net/http": netRouter, "chi": chiRouter, "gin": ginRouter, "echo": echoRouter} {
		t.Run(name, func(t *testing.T) {
			n := &runs{}
			server := httptest.NewServer(router(t, n))
			defer server.Close()
			for _, path := range []string{"/orders", "/tx"} {
				before := n.Load()
				first, err := post(t, server.URL+path, `"k"`, `{"a":1}`)
				if err != nil || first.status != http.StatusCreated || first.location != "/orders/1" || first.replayed {
					t.Errorf("%s: %+v, %v", path, first, err)
				}
				again, err := post(t, server.URL+path, `"k"`, `{ "a": 1.0 }`)
				want := first
				want.replayed = true
				if err != nil || again != want {
					t.Errorf("%s: the repeat got %+v, %v", path, again, err)
				}
				if other, err := post(t, server.URL+path, `"k"`, `{"a":2}`); err != nil || other.status != http.StatusUnprocessableEntity {
					t.Errorf("%s: %+v, %v", path, other, err)
				}
				if none, err := post(t, server.URL+path, "", "{}"); err != nil || none.status != http.StatusBadRequest {
					t.Errorf("%s: %+v, %v", path, none, err)
				}
				if n.Load() != before+1 {
					t.Errorf("%s ran %d times", path, n.Load()-before)
				}
			}
			// Another resource of the same route gets another key, or a
			// refusal, but never the first one's answer.
			if _, err := post(t, server.URL+"/orders/1/pay", `"p"`, "{}"); err != nil {
				t.Error(err)
			}
			if a, err := post(t, server.URL+"/orders/2/pay", `"p"`, "{}"); err != nil || a.replayed {
				t.Errorf("%+v, %v", a, err)
			}
			// A handler that fails releases its key.
			before := n.Load()
			for range 2 {
				if a, err := post(t, server.URL+"/fail", `"f"`, "{}"); err == nil && a.status != http.StatusInternalServerError {
					t.Errorf("%+v", a)
				}
			}
			if n.Load() != before+2 {
				t.Errorf("the failing handler ran %d times", n.Load()-before)
			}
		})
	}
}

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
	"github.com/waybillhq/waybill/idempotency/echokey"
	"github.com/waybillhq/waybill/idempotency/ginkey"
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

func ginRouter(t *testing.T, n *runs) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	m := newOnce(t, nil)
	r := gin.New()
	create := func(c *gin.Context) {
		c.Header("Location", "/orders/1")
		c.String(http.StatusCreated, "order %d", n.Add(1))
	}
	r.POST("/orders", ginkey.Wrap(m), create)
	r.POST("/orders/:id/pay", ginkey.Wrap(m), create)
	r.POST("/tx", ginkey.WrapTx(m, func(c *gin.Context, tx *memstore.Tx) error {
		if tx == nil {
			t.Error("no transaction")
		}
		create(c)
		return nil
	}))
	r.POST("/refuse/:id", ginkey.WrapTx(m, func(c *gin.Context, _ *memstore.Tx) error {
		n.Add(1)
		c.JSON(http.StatusNotFound, gin.H{"missing": c.Param("id")})
		return errors.New("no such order")
	}))
	r.POST("/empty", ginkey.Wrap(m), func(c *gin.Context) { n.Add(1); c.Status(http.StatusAccepted) })
	r.POST("/fail", ginkey.Wrap(m), func(*gin.Context) { n.Add(1); panic(http.ErrAbortHandler) })
	return r
}

func echoRouter(t *testing.T, n *runs) http.Handler {
	m := newOnce(t, nil)
	e := echo.New()
	create := func(c echo.Context) error {
		c.Response().Header().Set("Location", "/orders/1")
		return c.String(http.StatusCreated, fmt.Sprintf("order %d", n.Add(1)))
	}
	e.POST("/orders", create, echokey.Wrap(m))
	e.POST("/orders/:id/pay", create, echokey.Wrap(m))
	e.POST("/tx", echokey.WrapTx(m, func(c echo.Context, tx *memstore.Tx) error {
		if tx == nil {
			t.Error("no transaction")
		}
		return create(c)
	}))
	e.POST("/refuse/:id", echokey.WrapTx(m, func(c echo.Context, _ *memstore.Tx) error {
		n.Add(1)
		return echo.NewHTTPError(http.StatusNotFound, map[string]string{"missing": c.Param("id")})
	}))
	e.POST("/empty", func(c echo.Context) error { n.Add(1); return c.NoContent(http.StatusAccepted) }, echokey.Wrap(m))
	e.POST("/fail", func(echo.Context) error { n.Add(1); return errors.New("no luck") }, echokey.Wrap(m))
	return e
}

// TestContexts: a handler of gin and echo gets its own context, with the
// parameters of the route; its error rolls back and is the response, and its
// key is free again. A status without a body is stored, too.
func TestContexts(t *testing.T) {
	for name, router := range map[string]func(*testing.T, *runs) http.Handler{"gin": ginRouter, "echo": echoRouter} {
		t.Run(name, func(t *testing.T) {
			n := &runs{}
			server := httptest.NewServer(router(t, n))
			defer server.Close()
			for range 2 {
				a, err := post(t, server.URL+"/refuse/17", `"k"`, "{}")
				if err != nil || a.status != http.StatusNotFound || strings.TrimSpace(a.body) != `{"missing":"17"}` || a.replayed {
					t.Errorf("%+v, %v", a, err)
				}
			}
			if n.Load() != 2 {
				t.Errorf("%d runs, want 2: nothing was stored", n.Load())
			}
			for i := range 2 {
				a, err := post(t, server.URL+"/empty", `"e"`, "{}")
				if err != nil || a.status != http.StatusAccepted || a.replayed != (i == 1) {
					t.Errorf("a status without a body: %+v, %v", a, err)
				}
			}
			if n.Load() != 3 {
				t.Errorf("%d runs, want 3", n.Load())
			}
			// The same key at another resource of the route is the same key of
			// the operation, with another request.
			if _, err := post(t, server.URL+"/orders/1/pay", `"p"`, "{}"); err != nil {
				t.Error(err)
			}
			if a, err := post(t, server.URL+"/orders/2/pay", `"p"`, "{}"); err != nil || a.status != http.StatusUnprocessableEntity {
				t.Errorf("the operation is not the route: %+v, %v", a, err)
			}
		})
	}
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

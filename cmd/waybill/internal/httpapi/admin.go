// Package httpapi is the daemon's HTTP API: is it alive, does it get anywhere, its metrics, and what an operator does at the desk. docs/cli.md
// lists the routes.
//
// It listens at loopback unless told otherwise, and then needs a token and a certificate. Where a
// token is set, everything but the probes needs it. Whatever changes something, and payloads, which
// are not an operator's business by default, cannot be had at all until there is one.
package httpapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/daemon"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// Component returns the part of a daemon that answers HTTP, with its port open. metrics answers scrapes; nil: there are none.
func Component(d *daemon.Daemon, metrics http.Handler) (daemon.Component, error) {
	s := d.Loaded.Daemon().HTTP
	if err := Check(s); err != nil {
		return daemon.Component{}, err
	}
	h, err := newHandler(d, metrics)
	if err != nil {
		return daemon.Component{}, err
	}
	l, err := listen(s, d.Log)
	if err != nil {
		return daemon.Component{}, err
	}
	d.Log.Info("waybill: the HTTP API is open", slog.String("address", l.Addr().String()), slog.Bool("changes", !s.Token.IsZero()))
	return daemon.Component{Name: "http", Run: func(ctx context.Context) error { return run(ctx, l, h, d.Log) }}, nil
}

// api answers requests.
type api struct {
	daemon  *daemon.Daemon
	http    settings.HTTP
	scrub   *settings.Scrubber
	metrics http.Handler
	local   bool
	door    door
	// busy and probing are the requests under way. Probes have places of their own: a daemon that
	// is busy is alive.
	busy, probing chan struct{}
}

// access is what a route asks of whoever calls it.
type access int

const (
	// open: anybody may, also from elsewhere. Probes and load balancers have no token.
	open access = iota
	// look: with the token; while none is set, anybody on this machine.
	look
	// change: with the token, and not from another site's page.
	change
)

// Route is one thing that can be asked of the API.
type Route struct {
	Method, Path string
	// Token says who needs one: nobody, whoever is not on this machine, or everybody.
	Token string
	// Help is one sentence.
	Help string

	access access
	answer func(a *api, r *http.Request) (any, error)
}

// problem is an error that knows its status.
type problem struct {
	status int
	text   string
}

func (p *problem) Error() string { return p.text }

func refuse(status int, text string) error { return &problem{status, text} }

// newHandler returns the API of a daemon.
func newHandler(d *daemon.Daemon, metrics http.Handler) (http.Handler, error) {
	s := d.Loaded.Daemon().HTTP
	local, err := Loopback(s.Listen)
	if err != nil {
		return nil, err
	}
	a := &api{
		daemon: d, http: s, scrub: settings.NewScrubber(d.Loaded.Secrets()...), metrics: metrics, local: local,
		busy: make(chan struct{}, atOnce), probing: make(chan struct{}, probesAtOnce),
	}
	mux := http.NewServeMux()
	for _, route := range Routes() {
		mux.Handle(route.Method+" "+route.Path, a.guard(route, a.serve(route)))
	}
	if metrics != nil {
		mux.Handle("GET /metrics", a.guard(Route{access: look}, metrics))
	}
	return a.outside(mux), nil
}

// outside is what holds for every request, whatever it asks for.
func (a *api) outside(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Cache-Control", "no-store")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		// A page whose name was made to point at this machine is a stranger, though it comes from here.
		if host := hostOf(r.Host); a.local && !loopbackHost(host) {
			a.fail(w, refuse(http.StatusForbidden, "ask for localhost or 127.0.0.1"))
			return
		}
		places := a.busy
		if r.URL.Path == healthPath || r.URL.Path == readyPath {
			places = a.probing
		}
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		default:
			header.Set("Retry-After", "1")
			a.fail(w, refuse(http.StatusServiceUnavailable, "too many requests at a time"))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, bodyBytes)
		next.ServeHTTP(w, r)
	})
}

func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.Trim(host, "[]")
}

// guard lets through who may use a route.
func (a *api) guard(route Route, next http.Handler) http.Handler {
	sites := http.NewCrossOriginProtection()
	sites.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		a.fail(w, refuse(http.StatusForbidden, "another site's page must not do this"))
	}))
	return sites.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if route.access == change || route.access == look && !a.unlocked() {
			if err := a.authorised(r); err != nil {
				w.Header().Set("WWW-Authenticate", "Bearer")
				w.Header().Set("Retry-After", "1")
				a.fail(w, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	}))
}

// unlocked reports whether anybody who reaches the API may look.
func (a *api) unlocked() bool { return a.local && a.http.Token.IsZero() }

// authorised checks the token. Who has failed often is refused for a while without a look at the
// token, and every look that fails is logged. The sums are compared, in constant time: how long it
// takes tells neither how much of it was right nor how long it is.
func (a *api) authorised(r *http.Request) error {
	if a.http.Token.IsZero() {
		return refuse(http.StatusForbidden, "there is no http.token, so nothing may be changed")
	}
	from := hostOf(r.RemoteAddr)
	if !a.door.opens(from, time.Now()) {
		return refuse(http.StatusTooManyRequests, "too many wrong tokens came from there; try again in a second")
	}
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	want, got := sha256.Sum256([]byte(a.http.Token.Reveal())), sha256.Sum256([]byte(given))
	if same := subtle.ConstantTimeCompare(want[:], got[:]) == 1; !ok || !same {
		a.door.failed(from)
		a.daemon.Log.Warn("waybill: a request over HTTP without the right token", slog.String("route", r.URL.Path), slog.String("from", r.RemoteAddr), slog.Bool("given", given != ""))
		return refuse(http.StatusUnauthorized, "send the token: Authorization: Bearer …")
	}
	return nil
}

// serve answers a route with JSON.
func (a *api) serve(route Route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := route.answer(a, r)
		if route.access == change {
			a.daemon.Log.Info("waybill: a change over HTTP", slog.String("route", route.Path), slog.String("from", r.RemoteAddr), slog.Bool("done", err == nil))
		}
		if err != nil {
			a.fail(w, err)
			return
		}
		a.write(w, http.StatusOK, v)
	})
}

func (a *api) fail(w http.ResponseWriter, err error) {
	var known *problem
	var large *http.MaxBytesError
	status := http.StatusInternalServerError
	switch {
	case errors.As(err, &known):
		status = known.status
	case errors.As(err, &large):
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, admin.ErrNotFound), errors.Is(err, admin.ErrNoKey):
		status = http.StatusNotFound
	case errors.Is(err, admin.ErrNotUncertain):
		status = http.StatusConflict
	}
	a.write(w, status, map[string]string{"error": a.scrub.Clean(strings.TrimPrefix(err.Error(), "operate: "))})
}

func (a *api) write(w http.ResponseWriter, status int, v any) {
	if s, ok := v.(interface{ status() int }); ok {
		status = s.status()
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // whoever asked has left
}

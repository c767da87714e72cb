// Package httpapi is the daemon's HTTP API: health, readiness, metrics and
// administration. docs/cli.md lists the routes.
//
// The API listens on a loopback address by default; any other address requires
// a token and a certificate. If a token is set, every route but the probes
// requires it. Without a token, changes and payloads are not available.
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
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
	"github.com/waybillhq/waybill/dashboard"
	"github.com/waybillhq/waybill/internal/logkey"
)

// Component returns the component of a daemon that serves HTTP; its port is
// open. metrics serves scrapes; nil: no metrics.
func Component(d *daemon.Daemon, metrics http.Handler, doctor Doctor) (daemon.Component, error) {
	s := d.Loaded.Daemon().HTTP
	if err := Check(s); err != nil {
		return daemon.Component{}, err
	}
	log := logger(d)
	h, err := newHandler(d, metrics, doctor)
	if err != nil {
		return daemon.Component{}, err
	}
	l, err := listen(s, log)
	if err != nil {
		return daemon.Component{}, err
	}
	log.Info("HTTP API started", slog.String(logkey.Address, l.Addr().String()), slog.Bool(logkey.Changes, !s.Token.IsZero()))
	if s.Dashboard {
		scheme := "http"
		if s.Cert != "" {
			scheme = "https"
		}
		log.Info("dashboard started", slog.String(logkey.URL, scheme+"://"+l.Addr().String()+dashboardPath))
	}
	return daemon.Component{Name: "http", Run: func(ctx context.Context) error { return run(ctx, l, h, log) }}, nil
}

func logger(d *daemon.Daemon) *slog.Logger {
	return d.Log.With(slog.String(logkey.Component, "http"))
}

// Doctor runs the checks of waybill doctor, whose package uses this one.
type Doctor func(ctx context.Context, s *settings.Settings) []dashboard.Finding

// api answers requests.
type api struct {
	daemon  *daemon.Daemon
	http    settings.HTTP
	scrub   *settings.Scrubber
	metrics http.Handler
	doctor  Doctor // nil: none
	local   bool
	door    door
	log     *slog.Logger
	// busy, probing and pages limit concurrent requests. Probes have a separate
	// limit, because a busy daemon is alive, and so has the dashboard, whose
	// open pages keep their place.
	busy, probing, pages chan struct{}
}

// access is the permission that a route requires.
type access int

const (
	// open: no token is required, from any address. Probes and load balancers
	// have no token.
	open access = iota
	// look: the token is required; if none is set, every local client has
	// access.
	look
	// change: the token is required, and requests from pages of other sites are
	// rejected.
	change
)

// Route is one route of the API.
type Route struct {
	Method, Path string
	// Token describes when a request needs the token: never, if one is set, or
	// always.
	Token string
	// Help describes the route.
	Help string

	access access
	answer func(a *api, r *http.Request) (any, error)
}

// problem is an error with an HTTP status.
type problem struct {
	status int
	text   string
}

func (p *problem) Error() string { return p.text }

func refuse(status int, text string) error { return &problem{status, text} }

// newHandler returns the API of a daemon.
func newHandler(d *daemon.Daemon, metrics http.Handler, doctor Doctor) (*handler, error) {
	s := d.Loaded.Daemon().HTTP
	local, err := Loopback(s.Listen)
	if err != nil {
		return nil, err
	}
	a := &api{
		daemon: d, http: s, scrub: settings.NewScrubber(d.Loaded.Secrets()...), metrics: metrics, doctor: doctor, local: local, log: logger(d),
		busy: make(chan struct{}, atOnce), probing: make(chan struct{}, probesAtOnce), pages: make(chan struct{}, atOnce),
	}
	mux := http.NewServeMux()
	for _, route := range Routes() {
		mux.Handle(route.Method+" "+route.Path, a.guard(route, a.serve(route)))
	}
	if metrics != nil {
		mux.Handle("GET /metrics", a.guard(Route{access: look}, metrics))
	}
	out := &handler{Handler: a.outside(mux), end: func() {}}
	if s.Dashboard && len(d.Relays) > 0 {
		if out.end, err = a.mountBoards(mux); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// handler answers requests; end ends answers that have no end.
type handler struct {
	http.Handler
	end func()
}

// outside applies the rules for every request: headers, host name, limits.
func (a *api) outside(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Cache-Control", "no-store")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		// A page whose host name was pointed at this machine (DNS rebinding) is
		// not a local client.
		if host := hostOf(r.Host); a.local && !loopbackHost(host) {
			a.fail(w, refuse(http.StatusForbidden, "the host must be localhost or 127.0.0.1"))
			return
		}
		places := a.placesOf(r.URL.Path)
		if r.URL.Path == healthPath || r.URL.Path == readyPath {
			places = a.probing
		}
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		default:
			header.Set("Retry-After", "1")
			a.fail(w, refuse(http.StatusServiceUnavailable, "too many concurrent requests"))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, bodyBytes)
		next.ServeHTTP(w, r)
	})
}

// placesOf returns the limit of a request that is not a probe.
func (a *api) placesOf(path string) chan struct{} {
	if strings.HasPrefix(path, dashboardPath) {
		return a.pages
	}
	return a.busy
}

func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.Trim(host, "[]")
}

// guard checks the permission for a route.
func (a *api) guard(route Route, next http.Handler) http.Handler {
	sites := http.NewCrossOriginProtection()
	sites.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		a.fail(w, refuse(http.StatusForbidden, "cross-origin requests are not allowed"))
	}))
	return sites.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if route.access == change || route.access == look && !a.unlocked() {
			if err := a.authorized(r); err != nil {
				w.Header().Set("WWW-Authenticate", "Bearer")
				w.Header().Set("Retry-After", "1")
				a.fail(w, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	}))
}

// unlocked reports whether read access requires no token.
func (a *api) unlocked() bool { return a.local && a.http.Token.IsZero() }

// authorized checks the token of a request.
func (a *api) authorized(r *http.Request) error {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return a.matches(r, given, ok)
}

// matches checks a token that a client gave; ok is false if it gave none. A
// client with too many failures is rejected for a while without a check, and
// every failed check is logged. The hashes are compared in constant time, so
// that the duration reveals neither a matching prefix nor the length of the
// token.
func (a *api) matches(r *http.Request, given string, ok bool) error {
	if a.http.Token.IsZero() {
		return refuse(http.StatusForbidden, "http.token is not set; changes and payloads are not available")
	}
	from := hostOf(r.RemoteAddr)
	if !a.door.opens(from, time.Now()) {
		return refuse(http.StatusTooManyRequests, "too many invalid tokens from this address; retry in a second")
	}
	want, got := sha256.Sum256([]byte(a.http.Token.Reveal())), sha256.Sum256([]byte(given))
	if same := subtle.ConstantTimeCompare(want[:], got[:]) == 1; !ok || !same {
		a.door.failed(from)
		a.log.Warn("HTTP request without a valid token", slog.String(logkey.Route, r.URL.Path), slog.String(logkey.RemoteAddr, r.RemoteAddr), slog.Bool(logkey.Given, given != ""))
		return refuse(http.StatusUnauthorized, "a valid token is required: Authorization: Bearer …")
	}
	return nil
}

// serve answers a route with JSON.
func (a *api) serve(route Route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if route.access == change {
			r = a.by(r)
		}
		v, err := route.answer(a, r)
		if route.access == change {
			a.log.Info("change over HTTP", slog.String(logkey.Route, route.Path), slog.String(logkey.RemoteAddr, r.RemoteAddr), slog.Bool(logkey.Done, err == nil))
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
	var unknown *admin.UnknownEventError
	status := http.StatusInternalServerError
	switch {
	case errors.As(err, &known):
		status = known.status
	case errors.As(err, &large):
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, admin.ErrInvalid):
		status = http.StatusBadRequest
	case errors.Is(err, admin.ErrNotFound), errors.Is(err, admin.ErrNoKey), errors.Is(err, admin.ErrNoDestination):
		status = http.StatusNotFound
	case errors.Is(err, admin.ErrNotUncertain):
		status = http.StatusConflict
	}
	body := map[string]any{"error": a.scrub.Clean(strings.TrimPrefix(err.Error(), "admin: "))}
	if errors.As(err, &unknown) {
		body["why"] = []view.Reason{view.ReasonOf(unknown.Reason)}
	}
	a.write(w, status, body)
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
	_ = enc.Encode(v) // the client has disconnected
}

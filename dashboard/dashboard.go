package dashboard

import (
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/internal/logkey"
)

// Config configures a [Dashboard]. Outbox is required.
type Config struct {
	// Outbox has the events. Required.
	Outbox *admin.Outbox
	// Destinations are the destinations of the outbox. Defaults to none.
	Destinations *admin.Destinations
	// Inbox has the records of consumer groups. Defaults to none.
	Inbox *admin.Inbox
	// Groups are the consumer groups whose record of an event is on the page of
	// the event, beside the groups with failed or dead records. Defaults to
	// none.
	Groups []string
	// Keys has the idempotency keys. Defaults to none.
	Keys *admin.Keys
	// Audit has the records of changes. Defaults to none.
	Audit *admin.Audit
	// Jobs has the jobs of package reconcile. Defaults to none.
	Jobs *admin.Jobs
	// Doctor runs checks, such as those of waybill doctor, and returns their
	// findings. At most one run is under way, and its findings are shown for 15
	// s. Defaults to none.
	Doctor func(ctx context.Context) ([]Finding, error)
	// Actor returns the name of the user who makes a request, which is recorded
	// with each change. Defaults to a function that returns "unknown".
	Actor func(r *http.Request) string
	// Allow decides whether a request may make a change; an error refuses it.
	// Pages have only the buttons that Allow permits, so it is called for
	// pages, too. Defaults to nil: the dashboard is read-only.
	Allow func(r *http.Request, action Action) error
	// ShowPayloads shows the payloads and headers of events to everyone who
	// reaches the dashboard. Defaults to false.
	ShowPayloads bool
	// Title is the name on every page. Defaults to "Waybill".
	Title string
	// QueryTimeout is the time limit for the queries of a page. Defaults to 5
	// s.
	QueryTimeout time.Duration
	// Interval is the interval between updates of an open overview. Defaults to
	// 3 s.
	Interval time.Duration
	// Logger receives changes and errors. Defaults to [slog.Default];
	// slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
}

// complete checks a configuration, and fills in defaults.
func (c Config) complete() (Config, error) {
	var errs []error
	if c.Outbox == nil {
		errs = append(errs, errors.New("dashboard: Config.Outbox: required"))
	}
	for _, field := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{{"QueryTimeout", &c.QueryTimeout, 5 * time.Second}, {"Interval", &c.Interval, 3 * time.Second}} {
		if *field.value == 0 {
			*field.value = field.def
		}
		if *field.value < 0 {
			errs = append(errs, fmt.Errorf("dashboard: Config.%s: %v is negative", field.name, *field.value))
		}
	}
	if c.Title == "" {
		c.Title = "Waybill"
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = c.Logger.With(slog.String(logkey.Component, "dashboard"))
	return c, errors.Join(errs...)
}

// Limits of the dashboard, so that it cannot harm the database.
const (
	// pagesAtOnce is the maximum number of requests that query concurrently;
	// others wait, within their time limit.
	pagesAtOnce = 8
	// streamsAtOnce is the maximum number of open overviews that are updated.
	streamsAtOnce = 16
	// pageRows is the maximum number of rows of a list.
	pageRows = 50
	// searchRows is the maximum number of delivered events that a page searches
	// for those of a filter, because a history has an index on the id only.
	searchRows = 20_000
	// formBytes is the maximum size of a form.
	formBytes = 1 << 20
)

//go:embed templates/*.html
var templates embed.FS

//go:embed assets
var assets embed.FS

// Dashboard is the handler. Its methods may be called concurrently.
type Dashboard struct {
	cfg     Config
	pages   map[string]*template.Template
	mux     *http.ServeMux
	origins *http.CrossOriginProtection
	busy    chan struct{}
	streams chan struct{}
	done    results
	shared  shared
	doctors examinations
	closing sync.Once
	closed  chan struct{}
	// searchRows is the constant, except in tests.
	searchRows int
}

// New returns a dashboard. The error lists every invalid field.
func New(cfg Config) (*Dashboard, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	d := &Dashboard{
		cfg: cfg, origins: http.NewCrossOriginProtection(), busy: make(chan struct{}, pagesAtOnce), streams: make(chan struct{}, streamsAtOnce),
		closed: make(chan struct{}), searchRows: searchRows,
	}
	if d.pages, err = parse(); err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	static, err := fs.Sub(assets, "assets")
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	d.mux = d.routes(static)
	return d, nil
}

// routes returns the screens that the configuration has data for.
func (d *Dashboard) routes(static fs.FS) *http.ServeMux {
	mux := http.NewServeMux()
	show := func(path, name string, answer func(p *page) (any, error)) {
		mux.Handle("GET "+path, d.show(name, answer))
	}
	show("/{$}", "overview", d.overview)
	show("/dead", "dead", d.dead)
	show("/events", "events", d.events)
	show("/events/{id}", "event", d.event)
	show("/blocked", "blocked", d.blocked)
	show("/relays", "relays", d.relays)
	show("/throughput", "throughput", d.throughput)
	if d.cfg.Destinations != nil {
		show("/destinations", "destinations", d.destinations)
	}
	if d.cfg.Inbox != nil {
		show("/groups", "groups", d.groups)
	}
	if d.cfg.Keys != nil {
		show("/keys", "keys", d.keys)
	}
	if d.cfg.Jobs != nil {
		show("/jobs", "jobs", d.jobs)
	}
	if d.cfg.Doctor != nil {
		show("/doctor", "doctor", d.doctor)
	}
	if d.cfg.Audit != nil {
		show("/audit", "audit", d.audit)
	}
	mux.HandleFunc("GET /live", d.live)
	mux.HandleFunc("POST /do/{action}", d.change)
	mux.Handle("GET /assets/", http.StripPrefix("/assets/", cached(http.FileServerFS(static))))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			d.fail(w, r, refuse(http.StatusMethodNotAllowed, "This address accepts no "+r.Method+"."))
			return
		}
		d.fail(w, r, refuse(http.StatusNotFound, "There is no such page."))
	})
	return mux
}

// cached lets browsers keep the files of the program for an hour.
func cached(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "" || strings.HasSuffix(r.URL.Path, "/") { // no lists of files
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Cache-Control", "private, max-age=3600")
		next.ServeHTTP(w, r)
	})
}

// policy permits what the pages need and nothing else: no inline script or
// style, nothing of another site, no frame.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; " +
	"frame-ancestors 'none'; base-uri 'none'"

// ServeHTTP answers a request whose path begins after the prefix under which
// the dashboard is mounted; see [http.StripPrefix].
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if r.URL.Path == "" { // links are relative to a folder
		mounted, _, _ := strings.Cut(r.RequestURI, "?")
		h.Set("Location", "./"+mounted[strings.LastIndex(mounted, "/")+1:]+"/")
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	d.mux.ServeHTTP(w, r)
}

// Close ends the updates of open overviews, which would otherwise delay the
// shutdown of a server: register it with [http.Server.RegisterOnShutdown]. The
// pages continue to work.
func (d *Dashboard) Close() {
	d.closing.Do(func() { close(d.closed) })
}

// random returns an unguessable text.
func random() string { return rand.Text() }

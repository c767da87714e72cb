package dashboard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/internal/logkey"
)

// page is what the templates see of a request.
type page struct {
	d   *Dashboard
	r   *http.Request
	ctx context.Context // with the time limit of the queries
	// Screen is the name of the template, and Title the text of its heading.
	Screen, Title string
	// Base leads from the address of the page to the root of the dashboard.
	Base string
	// Site is the title of the dashboard.
	Site string
	Now  time.Time
	// Token is the CSRF token; empty if the dashboard is read-only.
	Token string
	// Notice is the result of the change that led to the page, and Refused that
	// the change failed.
	Notice  string
	Refused bool
	Data    any
}

// Screen is an entry of the navigation.
type screen struct {
	Name, Path, Title string
	Current           bool
}

// Screens returns the navigation.
func (p *page) Screens() []screen {
	c := p.d.cfg
	var out []screen
	for _, one := range []struct {
		screen
		has bool
	}{
		{screen{Name: "overview", Path: "", Title: "Overview"}, true},
		{screen{Name: "throughput", Path: "throughput", Title: "Throughput"}, true},
		{screen{Name: "dead", Path: "dead", Title: "Dead letters"}, true},
		{screen{Name: "events", Path: "events", Title: "Events"}, true},
		{screen{Name: "destinations", Path: "destinations", Title: "Destinations"}, c.Destinations != nil},
		{screen{Name: "blocked", Path: "blocked", Title: "Blocked"}, true},
		{screen{Name: "groups", Path: "groups", Title: "Consumer groups"}, c.Inbox != nil},
		{screen{Name: "relays", Path: "relays", Title: "Relays"}, true},
		{screen{Name: "keys", Path: "keys", Title: "Keys"}, c.Keys != nil},
		{screen{Name: "jobs", Path: "jobs", Title: "Jobs"}, c.Jobs != nil},
		{screen{Name: "doctor", Path: "doctor", Title: "Doctor"}, c.Doctor != nil},
		{screen{Name: "audit", Path: "audit", Title: "Audit"}, c.Audit != nil},
	} {
		if one.has {
			one.Current = one.Name == p.Screen || one.Name == "events" && p.Screen == "event"
			out = append(out, one.screen)
		}
	}
	return out
}

// May reports whether the request may make a change.
func (p *page) May(action string) bool {
	return p.d.cfg.Allow != nil && p.d.cfg.Allow(p.r, Action(action)) == nil
}

// ReadOnly reports whether the dashboard makes no changes.
func (p *page) ReadOnly() bool { return p.d.cfg.Allow == nil }

// Nonce returns a text that makes a form count once.
func (p *page) Nonce() string { return random() }

// Back is the address to which a change returns, from the root of the
// dashboard.
func (p *page) Back() string {
	if p.r.URL.Path == "/live" { // its forms are shown by the overview
		return "/"
	}
	q := p.r.URL.Query()
	q.Del(doneParam)
	return (&url.URL{Path: p.r.URL.Path, RawQuery: q.Encode()}).RequestURI()
}

// With returns the address of the page with other values of its parameters:
// pairs of a name and a value; an empty value removes the parameter.
func (p *page) With(pairs ...string) template.URL {
	q := maps.Clone(p.r.URL.Query())
	q.Del(doneParam)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			q.Del(pairs[i])
		} else {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return template.URL("?" + q.Encode()) //nolint:gosec // encoded
}

// To returns the address of a screen with parameters.
func (p *page) To(screen string, pairs ...string) template.URL {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	address := p.Base + (&url.URL{Path: screen}).EscapedPath()
	if len(q) > 0 {
		address += "?" + q.Encode()
	}
	return template.URL(address) //nolint:gosec // encoded
}

// Link returns the address of the details of a problem.
func (p *page) Link(t trouble) template.URL { return p.To(t.Screen, t.Parameters...) }

// query returns a parameter of the page.
func (p *page) query(name string) string { return strings.TrimSpace(p.r.URL.Query().Get(name)) }

// base leads from a path below the root of the dashboard to the root.
func base(path string) string {
	if depth := strings.Count(path, "/") - 1; depth > 0 {
		return strings.Repeat("../", depth)
	}
	return "./"
}

// problem is an error that a page shows.
type problem struct {
	status int
	text   string
}

func (p *problem) Error() string { return p.text }

func refuse(status int, text string) error { return &problem{status, text} }

// newPage returns the page of a request.
func (d *Dashboard) newPage(ctx context.Context, w http.ResponseWriter, r *http.Request, name string) *page {
	p := &page{d: d, r: r, ctx: ctx, Screen: name, Base: base(r.URL.Path), Site: d.cfg.Title, Now: time.Now()}
	if d.cfg.Allow != nil {
		p.Token = csrfToken(secret(w, r))
	}
	if done := r.URL.Query().Get(doneParam); done != "" {
		if result, ok := d.done.of(done); ok {
			p.Notice, p.Refused = result.text, result.failed
		}
	}
	return p
}

// show returns the handler of a screen.
func (d *Dashboard) show(name string, answer func(p *page) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), d.cfg.QueryTimeout)
		defer cancel()
		leave, err := d.enter(ctx)
		if err != nil {
			d.fail(w, r, err)
			return
		}
		defer leave()
		p := d.newPage(ctx, w, r, name)
		if p.Data, err = answer(p); err != nil {
			var moved *redirect
			if errors.As(err, &moved) {
				w.Header().Set("Location", p.Base+moved.to)
				w.WriteHeader(http.StatusSeeOther)
				return
			}
			d.fail(w, r, err)
			return
		}
		d.render(w, http.StatusOK, p)
	})
}

// enter waits until a request may query.
func (d *Dashboard) enter(ctx context.Context) (leave func(), err error) {
	select {
	case d.busy <- struct{}{}:
		return func() { <-d.busy }, nil
	case <-ctx.Done():
		return nil, refuse(http.StatusServiceUnavailable, "Too many pages are being read at the same time. Try again.")
	}
}

// render writes a page. A template that fails must not leave half a page.
func (d *Dashboard) render(w http.ResponseWriter, status int, p *page) {
	var text bytes.Buffer
	if err := d.pages[p.Screen].ExecuteTemplate(&text, "layout", p); err != nil {
		d.cfg.Logger.Error("page cannot be rendered", slog.String(logkey.Route, p.r.URL.Path), slog.String(logkey.Error, err.Error()))
		http.Error(w, "The page cannot be rendered. The log has the error.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(text.Bytes()) // the client has disconnected
}

// fail writes a page about an error. The text of an unexpected error is only in
// the log: drivers write addresses and users into it.
func (d *Dashboard) fail(w http.ResponseWriter, r *http.Request, err error) {
	known := d.explain(r, err)
	if known.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	p := &page{d: d, r: r, Screen: "error", Title: http.StatusText(known.status), Base: base(r.URL.Path), Site: d.cfg.Title, Now: time.Now(), Data: known.text}
	d.render(w, known.status, p)
}

// explain returns the error that a page shows.
func (d *Dashboard) explain(r *http.Request, err error) *problem {
	var known *problem
	var unknown *admin.UnknownDestinationError
	var event *admin.UnknownEventError
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &unknown):
		return &problem{http.StatusNotFound, sentence(unknown.Error())}
	case errors.Is(err, admin.ErrInvalid):
		return &problem{http.StatusBadRequest, sentence(err.Error())}
	case errors.As(err, &event):
		return &problem{http.StatusNotFound, "The tables do not have this event. " + event.Reason.Text}
	case errors.Is(err, admin.ErrNotFound):
		return &problem{http.StatusNotFound, "The tables do not have this event: it was never written, or it was delivered and its retention has passed."}
	case errors.Is(err, admin.ErrNoDestination):
		return &problem{http.StatusNotFound, "The destination does not exist."}
	case errors.Is(err, context.DeadlineExceeded):
		return &problem{http.StatusGatewayTimeout, fmt.Sprintf("The database did not answer within %v. A narrower filter may help.", d.cfg.QueryTimeout)}
	case r.Context().Err() != nil:
		return &problem{http.StatusServiceUnavailable, "The request was canceled."}
	}
	d.cfg.Logger.Error("query of the dashboard failed", slog.String(logkey.Route, r.URL.Path), slog.String(logkey.Error, err.Error()))
	return &problem{http.StatusInternalServerError, "The query failed. The log of this service has the error; waybill doctor checks the store."}
}

// sentence returns the text of an error without the name of the package.
func sentence(text string) string {
	text = strings.TrimPrefix(strings.TrimPrefix(text, "admin: "), "invalid argument: ")
	if text == "" {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// parse returns the template of every screen.
func parse() (map[string]*template.Template, error) {
	shared, err := template.New("").Funcs(functions()).ParseFS(templates, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, err
	}
	all, err := templates.ReadDir("templates")
	if err != nil {
		return nil, err
	}
	out := make(map[string]*template.Template)
	for _, file := range all {
		name := strings.TrimSuffix(file.Name(), path.Ext(file.Name()))
		if name == "layout" || name == "parts" {
			continue
		}
		one, err := template.Must(shared.Clone()).ParseFS(templates, "templates/"+file.Name())
		if err != nil {
			return nil, err
		}
		out[name] = one
	}
	return out, nil
}

// pair is the data of a shared part of a page.
type pair struct {
	P *page
	V any
}

// functions are the functions of the templates.
func functions() template.FuncMap {
	return template.FuncMap{
		"clean": clean, "short": short, "utc": utc, "stamp": func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"bound": func(t time.Time) string {
			if t.IsZero() {
				return ""
			}
			return t.UTC().Format(time.RFC3339Nano)
		},
		"ago": ago, "count": count, "upto": upTo, "letters": letters, "span": span, "one": one, "seq": func(n int64) string { return fmt.Sprint(n) },
		"id": func(id waybill.ID) string { return id.String() }, "state": func(s fmt.Stringer) string { return s.String() },
		"pair": func(p *page, v any) pair { return pair{p, v} }, "long": func(n int) int64 { return int64(n) }, "last": func(list []string, i int) bool { return i == len(list)-1 },
	}
}

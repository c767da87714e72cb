package httpapi

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/daemon"
	"github.com/waybillhq/waybill/dashboard"
	"github.com/waybillhq/waybill/internal/logkey"
)

// Paths of the dashboard. With several relays, each has a dashboard below
// relayPath, and dashboardPath lists them.
const (
	dashboardPath = "/dashboard/"
	relayPath     = dashboardPath + "relay/"
	loginPath     = dashboardPath + "login"
	logoutPath    = dashboardPath + "logout"
	assetsPath    = dashboardPath + "assets/"
)

const (
	// sessionCookie holds a session of a browser that has given the token.
	sessionCookie = "waybill-session"
	// sessionRetention is the duration of a session.
	sessionRetention = 12 * time.Hour
)

// pagePolicy permits what the pages of this package need.
const pagePolicy = "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// boards are the dashboards of all relays.
type boards struct {
	api   *api
	all   []*dashboard.Dashboard
	sites *http.CrossOriginProtection
}

// mountBoards adds the dashboards to the routes. The returned function ends
// their open streams.
func (a *api) mountBoards(mux *http.ServeMux) (end func(), err error) {
	b := &boards{api: a, sites: http.NewCrossOriginProtection()}
	for _, r := range a.daemon.Relays {
		one, err := b.open(r)
		if err != nil {
			return nil, fmt.Errorf("relay %s: %w", r.Name(), err)
		}
		b.all = append(b.all, one)
	}
	if len(b.all) == 1 {
		mux.Handle(dashboardPath, b.guard(http.StripPrefix(strings.TrimSuffix(dashboardPath, "/"), b.all[0])))
	} else {
		mux.Handle("GET "+dashboardPath+"{$}", b.guard(http.HandlerFunc(b.list)))
		for i, r := range a.daemon.Relays {
			prefix := relayPath + r.Settings.Name // letters and digits
			mux.Handle(prefix+"/", b.guard(http.StripPrefix(prefix, b.all[i])))
		}
	}
	// The files of the program are the same for everyone; the login needs them.
	mux.Handle("GET "+assetsPath, http.StripPrefix(strings.TrimSuffix(dashboardPath, "/"), b.all[0]))
	mux.HandleFunc("GET "+loginPath, b.signIn)
	mux.HandleFunc("POST "+loginPath, b.login)
	mux.HandleFunc("POST "+logoutPath, b.logout)
	return func() {
		for _, one := range b.all {
			one.Close()
		}
	}, nil
}

// open returns the dashboard of a relay. The token permits everything; without
// a token, changes and payloads are not available.
func (b *boards) open(r *daemon.Relay) (*dashboard.Dashboard, error) {
	cfg := dashboard.Config{
		Outbox: r.Outbox, Destinations: r.Destinations, Inbox: r.Groups, Keys: r.Keys, Audit: r.Audit, Jobs: r.JobRecords, Actor: b.api.actor, Title: "Waybill", Logger: r.Log,
		ShowPayloads: !b.api.http.Token.IsZero(),
	}
	if b.api.doctor != nil {
		cfg.Doctor = func(ctx context.Context) ([]dashboard.Finding, error) { return b.api.doctor(ctx, r.Settings), nil }
	}
	if r.Settings.Name != "" {
		cfg.Title = "Waybill: " + r.Settings.Name
	}
	if !b.api.http.Token.IsZero() {
		cfg.Allow = func(*http.Request, dashboard.Action) error { return nil } // guard has checked the token
	}
	return dashboard.New(cfg)
}

// guard admits browsers with a session, and clients with the token.
func (b *boards) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case b.api.unlocked(), b.session(r):
			next.ServeHTTP(w, r)
		case r.Header.Get("Authorization") != "":
			if err := b.api.authorized(r); err != nil {
				w.Header().Set("WWW-Authenticate", "Bearer")
				w.Header().Set("Retry-After", "1")
				b.api.fail(w, err)
				return
			}
			next.ServeHTTP(w, r)
		case r.Method == http.MethodGet && !strings.HasSuffix(r.URL.Path, "/live"):
			http.Redirect(w, r, loginPath+"?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
		default:
			b.form(w, r, http.StatusUnauthorized, "", "The session has ended. Nothing was changed.")
		}
	})
}

// session reports whether a request has a valid session.
func (b *boards) session(r *http.Request) bool {
	c, err := r.Cookie(sessionCookie)
	if err != nil || b.api.http.Token.IsZero() {
		return false
	}
	until, rest, _ := strings.Cut(c.Value, ".")
	id, sum, ok := strings.Cut(rest, ".")
	end, err := strconv.ParseInt(until, 10, 64)
	return ok && err == nil && time.Now().Unix() < end && hmac.Equal([]byte(sum), []byte(b.seal(until+"."+id)))
}

// seal proves that a session is of this daemon: a session ends when the token
// changes.
func (b *boards) seal(text string) string {
	mac := hmac.New(sha256.New, []byte("waybill session "+b.api.http.Token.Reveal()))
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

// login exchanges the token for a session.
func (b *boards) login(w http.ResponseWriter, r *http.Request) {
	if err := b.sites.Check(r); err != nil {
		b.api.fail(w, refuse(http.StatusForbidden, "cross-origin requests are not allowed"))
		return
	}
	if err := r.ParseForm(); err != nil {
		b.api.fail(w, refuse(http.StatusBadRequest, "the form cannot be read"))
		return
	}
	next := r.PostForm.Get("next")
	if err := b.api.matches(r, r.PostForm.Get("token"), true); err != nil {
		text, status := "This is not the token of http.token.", http.StatusUnauthorized
		var known *problem
		if errors.As(err, &known) && known.status != status {
			text, status = known.text, known.status
			w.Header().Set("Retry-After", "1")
		}
		b.form(w, r, status, next, text)
		return
	}
	text := strconv.FormatInt(time.Now().Add(sessionRetention).Unix(), 10) + "." + rand.Text()
	http.SetCookie(w, b.cookie(r, text+"."+b.seal(text), int(sessionRetention.Seconds())))
	b.api.log.Info("dashboard session began", slog.String(logkey.RemoteAddr, r.RemoteAddr))
	if !strings.HasPrefix(next, dashboardPath) {
		next = dashboardPath
	}
	http.Redirect(w, r, next, http.StatusSeeOther)
}

// logout ends the session in this browser.
func (b *boards) logout(w http.ResponseWriter, r *http.Request) {
	if err := b.sites.Check(r); err != nil {
		b.api.fail(w, refuse(http.StatusForbidden, "cross-origin requests are not allowed"))
		return
	}
	http.SetCookie(w, b.cookie(r, "", -1))
	http.Redirect(w, r, loginPath, http.StatusSeeOther)
}

func (b *boards) cookie(r *http.Request, value string, age int) *http.Cookie {
	return &http.Cookie{
		Name: sessionCookie, Value: value, Path: strings.TrimSuffix(dashboardPath, "/"), MaxAge: age, HttpOnly: true, Secure: r.TLS != nil,
		SameSite: http.SameSiteStrictMode,
	}
}

// pageData is the data of a page of this package.
type pageData struct {
	Title, Next, Problem string
	SignedIn             bool
	Names                []string
}

var page = template.Must(template.New("").Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>{{.Title}} · Waybill</title><link rel="stylesheet" href="` + assetsPath + `style.css"></head>
<body><header class="top"><span class="brand">Waybill</span></header><main><h1>{{.Title}}</h1>
{{if .Problem}}<p class="notice bad" role="alert">{{.Problem}}</p>{{end}}
{{if .Names}}<ul>{{range .Names}}<li><a href="` + relayPath + `{{.}}/">{{.}}</a></li>{{end}}</ul>{{else}}
<form class="filters" method="post" action="` + loginPath + `"><input type="hidden" name="next" value="{{.Next}}">
<label>Token (http.token) <input type="password" name="token" autocomplete="current-password" required autofocus></label><button>Open the dashboard</button></form>
{{if .SignedIn}}<form method="post" action="` + logoutPath + `"><button>End the session of this browser</button></form>{{end}}{{end}}
</main></body></html>
`))

// form shows the page that asks for the token.
func (b *boards) form(w http.ResponseWriter, r *http.Request, status int, next, problem string) {
	b.show(w, status, pageData{Title: "Sign in", Next: next, Problem: problem, SignedIn: b.session(r)})
}

// list links to the dashboards of several relays.
func (b *boards) list(w http.ResponseWriter, _ *http.Request) {
	data := pageData{Title: "Relays"}
	for _, r := range b.api.daemon.Relays {
		data.Names = append(data.Names, r.Settings.Name)
	}
	b.show(w, http.StatusOK, data)
}

func (b *boards) show(w http.ResponseWriter, status int, data pageData) {
	var text bytes.Buffer
	if err := page.Execute(&text, data); err != nil {
		b.api.fail(w, err)
		return
	}
	w.Header().Set("Content-Security-Policy", pagePolicy)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(text.Bytes()) // the client has disconnected
}

// signIn answers a request for the page that asks for the token.
func (b *boards) signIn(w http.ResponseWriter, r *http.Request) {
	b.form(w, r, http.StatusOK, r.URL.Query().Get("next"), "")
}

package httpapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/cmd/waybill/internal/daemon"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/store"
)

// browser is a browser in front of an API.
type browser struct {
	t      *testing.T
	url    string
	client *http.Client
}

func newBrowser(t *testing.T, h http.Handler) *browser {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &browser{t, server.URL, &http.Client{Jar: jar}}
}

// send sends a request, with a form if there is one, and returns status, text,
// and the path of the page.
func (b *browser) send(method, path string, form url.Values, headers ...string) (int, string, string) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		b.t.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	a, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	text, err := io.ReadAll(a.Body)
	if err = errors.Join(err, a.Body.Close()); err != nil {
		b.t.Fatal(err)
	}
	return a.StatusCode, string(text), a.Request.URL.Path
}

// replayForm returns the form of the page of a dead letter.
func replayForm(t *testing.T, page string) url.Values {
	t.Helper()
	out := url.Values{}
	_, form, ok := strings.Cut(page, "do/replay")
	if !ok {
		t.Fatalf("the page has no button:\n%s", page)
	}
	form, _, _ = strings.Cut(form, "</form>")
	for _, m := range regexp.MustCompile(`name="([a-z]+)" value="([^"]*)"`).FindAllStringSubmatch(form, -1) {
		out.Set(m[1], m[2])
	}
	return out
}

// TestDashboardSession: with a token, the dashboard asks for it once; a session
// may read payloads and make changes.
func TestDashboardSession(t *testing.T) {
	b := newEnv(t)
	b.fill()
	at := newBrowser(t, b.handler)
	event := "/dashboard/events/" + b.dead[0].String()
	status, text, path := at.send("GET", event, nil)
	if status != http.StatusOK || path != loginPath || !strings.Contains(text, `type="password"`) || strings.Contains(text, "4111") {
		t.Fatalf("without a session: status %d at %s: %s", status, path, text)
	}
	if status, text, _ := at.send("GET", "/dashboard/assets/style.css", nil); status != http.StatusOK || !strings.Contains(text, "prefers-color-scheme") {
		t.Errorf("the login has no style: status %d", status)
	}
	for _, path := range []string{"/dashboard/do/replay", "/dashboard/live"} {
		if status, _, _ := at.send(map[bool]string{true: "POST", false: "GET"}[strings.Contains(path, "do")], path, url.Values{}); status != http.StatusUnauthorized {
			t.Errorf("%s without a session: status %d", path, status)
		}
	}
	if status, text, _ := at.send("POST", loginPath, url.Values{"token": {token[1:]}}); status != http.StatusUnauthorized || !strings.Contains(text, "not the token") {
		t.Errorf("a wrong token: status %d: %s", status, text)
	}
	if status, _, _ := at.send("POST", loginPath, url.Values{"token": {token}}, "Sec-Fetch-Site", "cross-site"); status != http.StatusForbidden {
		t.Errorf("the form of another site: status %d", status)
	}
	if _, _, path := at.send("POST", loginPath, url.Values{"token": {token}, "next": {"//evil.example/"}}); path != dashboardPath {
		t.Errorf("the login leads to %s", path)
	}
	status, text, path = at.send("POST", loginPath, url.Values{"token": {token}, "next": {event}})
	if status != http.StatusOK || path != event || !strings.Contains(text, "4111") {
		t.Fatalf("with a session: status %d at %s: %s", status, path, text)
	}
	form := replayForm(t, text)
	if status, text, _ := at.send("POST", "/dashboard/do/replay", form); status != http.StatusOK || !strings.Contains(text, "Replayed 1 event.") {
		t.Errorf("a replay: status %d: %s", status, text)
	}
	if n, err := b.relay.Outbox.Count(t.Context(), store.Dead, store.Filter{}); err != nil || n != 1 {
		t.Errorf("%d dead letters, %v", n, err)
	}
	if _, _, path := at.send("POST", logoutPath, url.Values{}); path != loginPath {
		t.Errorf("the end of a session leads to %s", path)
	}
	if _, _, path := at.send("GET", "/dashboard/", nil); path != loginPath {
		t.Errorf("after the end of the session: %s", path)
	}
	if status, _, path := at.send("GET", "/dashboard/dead", nil, "Authorization", "Bearer "+token); status != http.StatusOK || path != "/dashboard/dead" {
		t.Errorf("with the token in a header: status %d at %s", status, path)
	}
	if status, _, _ := at.send("GET", "/dashboard/dead", nil, "Authorization", "Bearer "+token[1:]); status != http.StatusUnauthorized {
		t.Errorf("with a wrong token in a header: status %d", status)
	}
}

// TestDashboardCookie: a session cannot be made up, and ends with its token.
func TestDashboardCookie(t *testing.T) {
	b := newEnv(t)
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:9292"+loginPath, strings.NewReader("token="+token))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	b.handler.ServeHTTP(w, r)
	c := w.Result().Cookies()
	if len(c) != 1 || !c[0].HttpOnly || c[0].SameSite != http.SameSiteStrictMode || c[0].Path != "/dashboard" || strings.Contains(c[0].Value, token) {
		t.Fatalf("cookies %v", c)
	}
	try := func(what, value string, h http.Handler, want int) {
		t.Helper()
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:9292/dashboard/", nil)
		r.AddCookie(&http.Cookie{Name: sessionCookie, Value: value})
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%s: status %d", what, w.Code)
		}
	}
	until, rest, _ := strings.Cut(c[0].Value, ".")
	try("the session", c[0].Value, b.handler, http.StatusOK)
	try("no session", "", b.handler, http.StatusSeeOther)
	try("a longer session", until+"0."+rest, b.handler, http.StatusSeeOther)
	try("a session that has ended", "1."+rest, b.handler, http.StatusSeeOther)
	try("a session without a seal", until+".x.", b.handler, http.StatusSeeOther)
	try("a session of another token", c[0].Value, newEnv(t, "http.token", token+"2").handler, http.StatusSeeOther)
}

// TestDashboardReadOnly: without a token, local browsers read, without payloads
// and without changes.
func TestDashboardReadOnly(t *testing.T) {
	b := newEnv(t, "http.token", "")
	b.fill()
	at := newBrowser(t, b.handler)
	status, text, path := at.send("GET", "/dashboard/events/"+b.dead[0].String(), nil)
	if status != http.StatusOK || !strings.Contains(path, b.dead[0].String()) || strings.Contains(text, "4111") || strings.Contains(text, "do/replay") {
		t.Errorf("status %d at %s: %s", status, path, text)
	}
	if status, _, _ := at.send("POST", "/dashboard/do/replay", url.Values{}); status != http.StatusForbidden {
		t.Errorf("a change: status %d", status)
	}
	if status, _ := b.call("GET", "/dashboard/", "", func(r *http.Request) { r.Host = "evil.example" }); status != http.StatusForbidden {
		t.Errorf("another host: status %d", status)
	}
	if status, _ := newEnv(t, "http.token", "", "http.dashboard", "false").call("GET", "/dashboard/", ""); status != http.StatusNotFound {
		t.Errorf("without http.dashboard: status %d", status)
	}
}

// TestDashboards: each of several relays has its dashboard.
func TestDashboards(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "waybill.yaml")
	text := "relays:\n  orders:\n    store: 'sqlite:" + filepath.Join(dir, "a.db") + "'\n    sink: 'log:'\n" +
		"  stock:\n    store: 'sqlite:" + filepath.Join(dir, "b.db") + "'\n    sink: 'log:'\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := settings.Load(settings.Sources{Config: file})
	if err != nil {
		t.Fatal(err)
	}
	d, err := daemon.Open(context.Background(), loaded, daemon.Config{Logger: slog.New(slog.DiscardHandler), Out: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	h, err := newHandler(d, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	at := newBrowser(t, h)
	if _, text, _ := at.send("GET", "/dashboard/", nil); !strings.Contains(text, "/dashboard/relay/orders/") || !strings.Contains(text, "/dashboard/relay/stock/") {
		t.Errorf("the list: %s", text)
	}
	for _, name := range []string{"orders", "stock"} {
		if status, text, _ := at.send("GET", "/dashboard/relay/"+name+"/dead", nil); status != http.StatusOK || !strings.Contains(text, "Waybill: "+name) {
			t.Errorf("%s: status %d: %s", name, status, text)
		}
	}
	if status, _, _ := at.send("GET", "/dashboard/relay/else/", nil); status != http.StatusNotFound {
		t.Errorf("another relay: status %d", status)
	}
}

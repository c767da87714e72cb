package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/daemon"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

const token = "s3cret-of-the-operator"

// env is an API in front of a store with one event in every state.
type env struct {
	t       *testing.T
	handler http.Handler
	daemon  *daemon.Daemon
	relay   *daemon.Relay
	dead    []waybill.ID
	failed  waybill.ID
}

func newEnv(t *testing.T, args ...string) *env {
	t.Helper()
	flags := map[string]string{
		"store.url": "sqlite:" + filepath.Join(t.TempDir(), "waybill.db"), "sink.url": "log:", "http.listen": "127.0.0.1:0", "http.token": token,
	}
	for i := 0; i < len(args); i += 2 {
		flags[args[i]] = args[i+1]
	}
	loaded, err := settings.Load(settings.Sources{Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	b := &env{t: t}
	if b.daemon, err = daemon.Open(t.Context(), loaded, daemon.Config{Logger: slog.New(slog.DiscardHandler), Out: io.Discard}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.daemon.Close() })
	b.relay = b.daemon.Relays[0]
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "waybill_backlog 0\n") })
	if b.handler, err = newHandler(b.daemon, metrics, nil); err != nil {
		t.Fatal(err)
	}
	return b
}

// fill writes events and runs a relay that brings them into their states: two
// dead, one failed that blocks its aggregate.
func (b *env) fill() {
	b.t.Helper()
	evs := []waybill.Event{
		{ID: waybill.NewID(), Type: "OrderPlaced", AggregateType: "order", AggregateID: "1", Payload: []byte(`{"card": "4111"}`)},
		{ID: waybill.NewID(), Type: "OrderPlaced", AggregateType: "order", AggregateID: "2", Payload: []byte(`{"card": "4111"}`)},
		{ID: waybill.NewID(), Type: "OrderShipped", AggregateType: "order", AggregateID: "3", Payload: []byte(`{}`)},
	}
	b.dead, b.failed = []waybill.ID{evs[0].ID, evs[1].ID}, evs[2].ID
	if _, err := b.relay.Store.Send(b.t.Context(), evs...); err != nil {
		b.t.Fatal(err)
	}
	sink := relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		if d.ID == b.failed {
			return waybill.RetryAfter(time.Hour, errors.New("not now"))
		}
		return waybill.Permanent(errors.New("never"))
	})
	r, err := relay.New(b.relay.Store, sink, relay.Config{})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		s, err := b.relay.Outbox.Stats(b.t.Context())
		if err != nil || time.Now().After(deadline) {
			b.t.Fatalf("%+v, %v", s, err)
		}
		if s.Dead == 2 && s.Failed == 1 {
			break
		}
	}
	stop()
	if err := <-done; err != nil {
		b.t.Fatal(err)
	}
}

// call sends a request, which change may modify.
func (b *env) call(method, path, body string, change ...func(*http.Request)) (int, string) {
	b.t.Helper()
	r := httptest.NewRequestWithContext(b.t.Context(), method, "http://127.0.0.1:9292"+path, strings.NewReader(body))
	for _, fn := range change {
		fn(r)
	}
	w := httptest.NewRecorder()
	b.handler.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func withToken(r *http.Request)  { r.Header.Set("Authorization", "Bearer "+token) }
func wrongToken(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token[1:]) }
func bareToken(r *http.Request)  { r.Header.Set("Authorization", token) }
func elsewhere(r *http.Request) {
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	r.Header.Set("Origin", "https://evil.example")
}
func onlyOrigin(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }

// TestEveryChangingRouteRefuses checks requests without a token, with a wrong
// one, from another site's page, and with GET. The routes are those of the API,
// so new ones are included.
func TestEveryChangingRouteRefuses(t *testing.T) {
	b, without := newEnv(t), newEnv(t, "http.token", "")
	b.fill()
	changing := 0
	for _, route := range Routes() {
		if route.Method == http.MethodGet {
			continue
		}
		changing++
		if route.Method != http.MethodPost || route.access != change {
			t.Errorf("%s %s: a change must be a POST that needs the token", route.Method, route.Path)
		}
		body := `{"ids": ["` + b.dead[0].String() + `"]}`
		for name, c := range map[string]struct {
			env    *env
			method string
			change []func(*http.Request)
			want   int
		}{
			"no token":              {b, "POST", nil, http.StatusUnauthorized},
			"a wrong token":         {b, "POST", []func(*http.Request){wrongToken}, http.StatusUnauthorized},
			"a token without form":  {b, "POST", []func(*http.Request){bareToken}, http.StatusUnauthorized},
			"another site":          {b, "POST", []func(*http.Request){withToken, elsewhere}, http.StatusForbidden},
			"an old browser's site": {b, "POST", []func(*http.Request){withToken, onlyOrigin}, http.StatusForbidden},
			"GET":                   {b, "GET", []func(*http.Request){withToken}, http.StatusMethodNotAllowed},
			"PUT":                   {b, "PUT", []func(*http.Request){withToken}, http.StatusMethodNotAllowed},
			"no token is set":       {without, "POST", []func(*http.Request){withToken}, http.StatusForbidden},
			"an empty token":        {without, "POST", []func(*http.Request){func(r *http.Request) { r.Header.Set("Authorization", "Bearer ") }}, http.StatusForbidden},
		} {
			if code, text := c.env.call(c.method, route.Path, body, c.change...); code != c.want {
				t.Errorf("%s, %s: %d, want %d: %s", route.Path, name, code, c.want, text)
			}
		}
	}
	if changing != 9 {
		t.Errorf("%d routes change something", changing)
	}
	if n, err := b.relay.Outbox.Count(t.Context(), store.Dead, store.Filter{}); err != nil || n != 2 {
		t.Errorf("%d dead letters are left, %v: a refused request has changed something", n, err)
	}
}

// TestEveryReadRoute checks that without a token every local client gets JSON,
// and nothing changes.
func TestEveryReadRoute(t *testing.T) {
	b := newEnv(t, "http.token", "")
	b.fill()
	for _, route := range Routes() {
		if route.Method != http.MethodGet || route.Path == "/readyz" {
			continue
		}
		path := strings.Replace(route.Path, "{id}", b.dead[0].String(), 1)
		if path == "/api/events" {
			path += "?state=dead"
		}
		code, text := b.call("GET", path, "")
		if code != http.StatusOK || !json.Valid([]byte(text)) {
			t.Errorf("%s: %d %s", path, code, text)
		}
		if strings.Contains(text, "4111") {
			t.Errorf("%s shows a payload: %s", path, text)
		}
		if code, text := b.call("GET", path, "", func(r *http.Request) { r.Host = "evil.example:9292" }); code != http.StatusForbidden {
			t.Errorf("%s with a foreign host name: %d %s", path, code, text)
		}
	}
	if code, text := b.call("GET", "/metrics", ""); code != http.StatusOK || !strings.Contains(text, "waybill_backlog") {
		t.Errorf("/metrics: %d %s", code, text)
	}
}

// TestReadingCausesChangesNothing: a request for the causes of dead letters
// computes none, and counts the letters without one.
func TestReadingCausesChangesNothing(t *testing.T) {
	b := newEnv(t)
	b.fill()
	read := func(want string) {
		t.Helper()
		if code, text := b.call("GET", "/api/dead/groups", "", withToken); code != http.StatusOK || !strings.Contains(strings.Join(strings.Fields(text), ""), want) {
			t.Errorf("%d %s, want %s", code, text, want)
		}
	}
	for range 2 {
		read(`{"causes":[],"more":false,"unknown":2}`)
	}
	if _, err := b.relay.Outbox.Causes(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	read(`"letters":2`)
	read(`"unknown":0`)
}

// TestAPayloadNeedsTheToken includes local clients.
func TestAPayloadNeedsTheToken(t *testing.T) {
	b := newEnv(t)
	b.fill()
	path := "/api/events/" + b.dead[0].String() + "?payload=1"
	if code, text := b.call("GET", path, ""); code != http.StatusUnauthorized || strings.Contains(text, "4111") {
		t.Errorf("without: %d %s", code, text)
	}
	if code, text := b.call("GET", path, "", withToken); code != http.StatusOK || !strings.Contains(text, "4111") {
		t.Errorf("with: %d %s", code, text)
	}
	open := newEnv(t, "http.token", "") // local clients have read access
	open.fill()
	path = "/api/events/" + open.dead[0].String()
	if code, text := open.call("GET", path, ""); code != http.StatusOK {
		t.Errorf("no token is set: %d %s", code, text)
	}
	if code, text := open.call("GET", path+"?payload=1", ""); code != http.StatusForbidden || strings.Contains(text, "4111") {
		t.Errorf("no token is set, with a payload: %d %s", code, text)
	}
}

// TestRemoteRequestsNeedTheToken checks every route but the probes.
func TestRemoteRequestsNeedTheToken(t *testing.T) {
	b := newEnv(t, "http.listen", "0.0.0.0:0")
	for _, route := range append(Routes(), Route{Method: "GET", Path: "/metrics", access: look}) {
		code, text := b.call(route.Method, strings.Replace(route.Path, "{id}", waybill.NewID().String(), 1), "")
		if refused := code == http.StatusUnauthorized; refused == (route.access == open) {
			t.Errorf("%s: %d %s", route.Path, code, text)
		}
	}
	if code, text := b.call("GET", "/api/stats", "", withToken); code != http.StatusOK {
		t.Errorf("with the token: %d %s", code, text)
	}
}

func TestChanges(t *testing.T) {
	b := newEnv(t)
	b.fill()
	post := func(path, body string) string {
		t.Helper()
		code, text := b.call("POST", path, body, withToken)
		if code != http.StatusOK {
			t.Fatalf("%s: %d %s", path, code, text)
		}
		return text
	}
	ids := func(id waybill.ID) string { return `{"ids": ["` + id.String() + `"]}` }
	if text := post("/api/dead/replay", ids(b.dead[0])); !strings.Contains(text, b.dead[0].String()) {
		t.Error(text)
	}
	if text := post("/api/dead/discard", ids(b.dead[1])); !strings.Contains(text, b.dead[1].String()) {
		t.Error(text)
	}
	if _, err := b.relay.Outbox.Find(t.Context(), b.dead[1]); !errors.Is(err, admin.ErrNotFound) {
		t.Errorf("the event still exists: %v", err)
	}
	if text := post("/api/blocked/unblock", ids(b.failed)); !strings.Contains(text, b.failed.String()) {
		t.Error(text)
	}
	group, ok := b.relay.Store.Relay.(driver.Claimer)
	if !ok {
		t.Fatal("no claims")
	}
	key := waybill.NewID()
	_, err := group.FailEvent(t.Context(), store.InboxEntry{Group: "BILLING", Key: key, Event: key, Type: "X"}, driver.Failure{Owner: waybill.NewID(), Dead: true, Error: "no"})
	if err != nil {
		t.Fatal(err)
	}
	if text := post("/api/inbox/redrive", `{"group": "BILLING", "keys": ["`+key.String()+`"]}`); !strings.Contains(text, `"redriven": 1`) {
		t.Error(text)
	}
	for name, c := range map[string]struct {
		path, body string
		want       int
	}{
		"a misspelt field":    {"/api/dead/discard", `{"ids": ["` + b.failed.String() + `"], "dryrun": true}`, http.StatusBadRequest},
		"nothing":             {"/api/dead/discard", `{"ids": []}`, http.StatusBadRequest},
		"two bodies":          {"/api/dead/discard", ids(b.failed) + "{}", http.StatusBadRequest},
		"too much":            {"/api/dead/discard", `{"ids": ["` + strings.Repeat("A", bodyBytes) + `"]}`, http.StatusRequestEntityTooLarge},
		"no key":              {"/api/keys/resolve", `{"operation": "o", "key": "k", "failed": true}`, http.StatusNotFound},
		"no decision":         {"/api/keys/resolve", `{"operation": "o", "key": "k"}`, http.StatusBadRequest},
		"no relay of a name":  {"/api/dead/discard?relay=other", ids(b.failed), http.StatusNotFound},
		"no event of that id": {"/api/dead/discard", ids(b.failed), http.StatusOK},
	} {
		if code, text := b.call("POST", c.path, c.body, withToken); code != c.want {
			t.Errorf("%s: %d, want %d: %s", name, code, c.want, text)
		}
	}
}

// TestChangesOfACause: the dead letters with a cause are replayed and discarded
// together, oldest first, up to a limit, with a record each in the audit.
func TestChangesOfACause(t *testing.T) {
	b := newEnv(t, "http.actor-header", "X-User")
	b.fill()
	found, err := b.relay.Outbox.Causes(t.Context(), 1)
	if err != nil || len(found.Groups) != 1 {
		t.Fatal(found, err)
	}
	cause := found.Groups[0].ID
	post := func(path, body string, status int, parts ...string) {
		t.Helper()
		code, text := b.call("POST", path, body, withToken, func(r *http.Request) { r.Header.Set("X-User", "alice") })
		text = strings.Join(strings.Fields(text), " ")
		for _, part := range parts {
			if code != status || !strings.Contains(text, part) {
				t.Errorf("%s %s: %d %s, want %d %q", path, body, code, text, status, part)
			}
		}
	}
	for body, want := range map[string]string{
		`{"limit": 1}`: "need a filter, or all",
		`{"rate": 1}`:  "need a filter, or all",
		`{"ids": ["` + b.dead[0].String() + `"], "dry_run": true}`:           "need a filter, or all",
		`{"ids": ["` + b.dead[0].String() + `"], "limit": 1}`:                "need a filter, or all",
		`{"ids": ["` + b.dead[0].String() + `"], "cause": "` + cause + `"}`:  "ids and a filter cannot be combined",
		`{"ids": ["` + b.dead[0].String() + `"], "all": true}`:               "ids and a filter cannot be combined",
		`{"all": true, "type": "OrderPlaced"}`:                               "all and a filter cannot be combined",
		`{"all": true, "rate": -1}`:                                          "not a number of events per second",
		`{"since": "yesterday"}`:                                             "invalid JSON",
		`{"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}`: "is not before Until",
		`{"cause": "` + cause + `", "limit": -1}`:                            "must be a number from 1 to 10000",
		`{"cause": "` + cause + `", "limit": 10001}`:                         "must be a number from 1 to 10000",
		`{"cause": ""}`: "must be 1 to 1000 ids",
		`{"cause": "` + cause + `", "limits": 1}`: "unknown field",
	} {
		for _, path := range []string{"/api/dead/replay", "/api/dead/discard"} {
			post(path, body, http.StatusBadRequest, want)
		}
	}
	post("/api/dead/replay", `{"cause": "000000000000"}`, http.StatusOK, `"ids": []`, `"left": 0`)
	post("/api/dead/replay?destination=partner", `{"cause": "`+cause+`"}`, http.StatusNotFound, "no destinations")
	post("/api/dead/replay", `{"cause": "`+cause+`", "dry_run": true}`, http.StatusOK, `"matched": 2`, `"dry_run": true`)
	post("/api/dead/discard", `{"all": true, "error": "", "dry_run": true}`, http.StatusOK, `"matched": 2`)
	post("/api/dead/discard", `{"since": "2126-01-01T00:00:00Z"}`, http.StatusOK, `"ids": []`, `"left": 0`)
	post("/api/dead/discard", `{"error": "no such text"}`, http.StatusOK, `"ids": []`, `"left": 0`)
	post("/api/dead/replay", `{"cause": "`+cause+`", "limit": 1}`, http.StatusOK, `"ids": [ "`+b.dead[0].String()+`" ]`, `"left": 1`)
	post("/api/dead/discard", `{"cause": "`+cause+`"}`, http.StatusOK, `"ids": [ "`+b.dead[1].String()+`" ]`, `"left": 0`)
	_, text := b.call("GET", "/api/audit", "", withToken)
	text = strings.Join(strings.Fields(text), " ")
	for _, part := range []string{`"actor": "alice"`, `"action": "replay"`, `"action": "discard"`, "cause=" + cause + " limit=1\"", "cause=" + cause + " limit=10000"} {
		if !strings.Contains(text, part) {
			t.Errorf("the audit does not have %s: %s", part, text)
		}
	}
	if n := strings.Count(text, `"action"`); n != 2 {
		t.Errorf("the audit has %d records: %s", n, text)
	}
}

// TestReadinessIsProgress checks that a relay is not ready before its first
// read, and is ready after it.
func TestReadinessIsProgress(t *testing.T) {
	b := newEnv(t)
	if code, text := b.call("GET", "/readyz", ""); code != http.StatusServiceUnavailable || !strings.Contains(text, "the tables have not been read yet") {
		t.Errorf("before the relay runs: %d %s", code, text)
	}
	if code, _ := b.call("GET", "/healthz", ""); code != http.StatusOK {
		t.Errorf("alive: %d", code)
	}
}

// TestExposureIsRefused checks remote addresses without a token, or without a
// certificate that protects it.
func TestExposureIsRefused(t *testing.T) {
	secret := settings.NewSecret(token)
	for _, c := range []struct {
		listen  string
		with    settings.Secret
		cert    string
		refused bool
	}{
		{listen: "127.0.0.1:0"},
		{listen: "localhost:0"},
		{listen: "[::1]:0"},
		{listen: "0.0.0.0:0", refused: true},
		{listen: ":0", refused: true},
		{listen: "[::]:0", refused: true},
		{listen: "10.0.0.1:0", refused: true},
		{listen: "example.com:0", refused: true},
		{listen: "127.0.0.1.example.com:0", refused: true},
		{listen: "0.0.0.0:0", with: secret, refused: true},
		{listen: "0.0.0.0:0", cert: "c.pem", refused: true},
		{listen: "0.0.0.0:0", with: secret, cert: "c.pem"},
	} {
		err := Check(settings.HTTP{Enabled: true, Listen: c.listen, Token: c.with, Cert: c.cert, Key: c.cert})
		if errors.Is(err, ErrExposed) != c.refused {
			t.Errorf("%s, token %v, cert %q: %v", c.listen, !c.with.IsZero(), c.cert, err)
		}
	}
	if err := Check(settings.HTTP{Listen: "0.0.0.0:0"}); err != nil {
		t.Errorf("disabled: %v", err)
	}
}

func TestTooManyConcurrentRequestsAreRejected(t *testing.T) {
	b := newEnv(t)
	inside, leave := make(chan struct{}), make(chan struct{})
	h, err := newHandler(b.daemon, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inside <- struct{}{}; <-leave }), nil)
	if err != nil {
		t.Fatal(err)
	}
	b.handler = h
	codes := make(chan int, atOnce)
	for range atOnce {
		go func() { code, _ := b.call("GET", "/metrics", "", withToken); codes <- code }()
		<-inside
	}
	if code, _ := b.call("GET", "/api/stats", "", withToken); code != http.StatusServiceUnavailable {
		t.Errorf("above the limit: %d", code)
	}
	if code, _ := b.call("GET", "/healthz", ""); code != http.StatusOK {
		t.Errorf("a probe of a busy daemon: %d", code)
	}
	close(leave)
	for range atOnce {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("within the limit: %d", code)
		}
	}
}

// TestErrorsAreScrubbed checks errors of a driver, which may quote its address.
func TestErrorsAreScrubbed(t *testing.T) {
	b := newEnv(t)
	a := &api{scrub: settings.NewScrubber(b.daemon.Loaded.Secrets()...)}
	w := httptest.NewRecorder()
	a.fail(w, errors.New("cannot connect with "+token))
	if w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), token) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestRoutesAreListed checks that the table of routes matches the code.
func TestRoutesAreListed(t *testing.T) {
	if i := slices.IndexFunc(Routes(), func(r Route) bool { return r.Help == "" || r.Token == "" || r.answer == nil }); i >= 0 {
		t.Errorf("%+v", Routes()[i])
	}
}

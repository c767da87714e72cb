package httpkey_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

func newKeys(t *testing.T) *idempotency.Keys[tx] {
	t.Helper()
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := idempotency.New[tx](db, idempotency.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestSafeMethodsPassThrough(t *testing.T) {
	b := newEnv(t, setup{})
	for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace} {
		for range 2 {
			if a := b.post(`"k"`, "", method(m)); a.status != http.StatusOK || a.replayed() {
				t.Errorf("%s: %+v", m, a)
			}
		}
		if _, err := httpkey.New(newKeys(t), httpkey.Config{Scope: httpkey.Unscoped, Methods: []string{m}}); err == nil {
			t.Errorf("%s can be configured", m)
		}
	}
	b.wantRuns(8)
	if n := b.db.claims.Load(); n != 0 {
		t.Errorf("the store was queried %d times", n)
	}
}

func TestMethods(t *testing.T) {
	b := newEnv(t, setup{})
	for i, m := range []string{http.MethodPost, http.MethodPatch} {
		first := b.post(fmt.Sprintf(`"%d"`, i), "{}", method(m))
		b.wantReplay(first, fmt.Sprintf(`"%d"`, i), "{}", method(m))
	}
	b.wantRuns(2)
	// Methods are case-sensitive.
	for _, m := range []string{http.MethodPut, http.MethodDelete, "post"} {
		if a := b.post(`"x"`, "{}", method(m)); a.replayed() {
			t.Errorf("%s is replayed", m)
		}
		if a := b.post(`"x"`, "{}", method(m)); a.replayed() {
			t.Errorf("%s is replayed", m)
		}
	}
	b.wantRuns(8)
	put := newEnv(t, setup{cfg: httpkey.Config{Methods: []string{http.MethodPut}}})
	put.wantReplay(put.post("k", "{}", method(http.MethodPut)), "k", "{}", method(http.MethodPut))
	put.wantRuns(1)
}

func TestMissing(t *testing.T) {
	b := newEnv(t, setup{})
	a := b.post("", "{}")
	b.want(a, http.StatusBadRequest, "key-missing")
	if link := a.header.Get("Link"); !strings.Contains(link, `rel="describedby"`) || !strings.Contains(link, "<http") {
		t.Errorf("Link: %s", link)
	}
	b.wantRuns(0)
	optional := newEnv(t, setup{cfg: httpkey.Config{Optional: true}})
	for range 2 {
		if a := optional.post("", "{}"); a.body != "done" || a.replayed() {
			t.Errorf("%+v", a)
		}
	}
	optional.wantRuns(2)
	// Empty is not missing.
	optional.want(optional.post("", "{}", with("Idempotency-Key", "")), http.StatusBadRequest, "key-invalid")
}

func TestSyntax(t *testing.T) {
	b := newEnv(t, setup{cfg: httpkey.Config{Strict: true}})
	first := b.post(`"a \"b\" \\ ,;~"`, "{}")
	b.want(first, http.StatusOK, "")
	b.wantReplay(first, `  "a \"b\" \\ ,;~"  `, "{}")
	b.wantReplay(first, `"a \"b\" \\ ,;~";a=1`, "{}") // parameters are ignored
	b.wantReplay(first, `"a \"b\" \\ ,;~"; a=1;b;c="x"`, "{}")
	b.wantRuns(1)
	for _, bad := range []string{`"a`, `"a\n"`, `"\a"`, "\"a\tb\"", `"é"`, `"a"x`, `"a";`, `"a";A=1`, `"a" b`, `1`, `?1`, `:YWJj:`, `token`, `("a")`} {
		b.want(b.post(bad, "{}"), http.StatusBadRequest, "key-invalid")
	}
	b.wantRuns(1)
}

func TestBareKey(t *testing.T) {
	b := newEnv(t, setup{})
	first := b.post(`abc;x=1`, "{}")
	b.wantReplay(first, `"abc;x=1"`, "{}")
	b.wantReplay(b.post(`8e03978e-40d5-43dd-bc93-6894a57f9324`, "{}"), `"8e03978e-40d5-43dd-bc93-6894a57f9324"`, "{}")
	for _, bad := range []string{`"abc`, `a b`, `a,b`, "a\tb", `é`, `"a"b`} {
		b.want(b.post(bad, "{}"), http.StatusBadRequest, "key-invalid")
	}
	strict := newEnv(t, setup{cfg: httpkey.Config{Strict: true}})
	strict.want(strict.post(`abc`, "{}"), http.StatusBadRequest, "key-invalid")
}

func TestEmpty(t *testing.T) {
	b := newEnv(t, setup{})
	b.want(b.post(`""`, "{}"), http.StatusBadRequest, "key-invalid")
	b.want(b.post("", "{}", with("Idempotency-Key", "")), http.StatusBadRequest, "key-invalid")
	b.wantRuns(0)
}

func TestLength(t *testing.T) {
	b := newEnv(t, setup{})
	for key, status := range map[string]int{
		"a": 200, strings.Repeat("a", 255): 200, strings.Repeat("a", 256): 400, `"` + strings.Repeat("b", 255) + `"`: 200,
		`"` + strings.Repeat("b", 256) + `"`:  400,
		`"` + strings.Repeat(`\"`, 255) + `"`: 200, // the decoded bytes count
	} {
		if a := b.post(key, "{}"); a.status != status {
			t.Errorf("%d bytes: %d, want %d", len(key), a.status, status)
		}
	}
	long := newEnv(t, setup{cfg: httpkey.Config{MinLen: 20}})
	long.want(long.post(strings.Repeat("a", 19), "{}"), http.StatusBadRequest, "key-invalid")
	long.want(long.post(strings.Repeat("a", 20), "{}"), http.StatusOK, "")
}

func TestTwoLinesOrAList(t *testing.T) {
	b := newEnv(t, setup{})
	for _, lines := range [][]string{{`"a"`, `"b"`}, {`"a"`, `"a"`}, {`"a", "b"`}, {`a,b`}, {`"a",`}} {
		b.want(b.post("", "{}", with("Idempotency-Key", lines...)), http.StatusBadRequest, "key-invalid")
	}
	b.wantRuns(0)
}

func TestKeysAreBytes(t *testing.T) {
	b := newEnv(t, setup{})
	for _, key := range []string{`"abc"`, `"ABC"`, `"abc "`, `" abc"`} {
		if b.post(key, "{}").replayed() {
			t.Errorf("%s is taken for another", key)
		}
	}
	b.wantRuns(4)
}

// callerScope takes the scope from the request itself, which is good enough for
// a test.
func callerScope(r *http.Request) (httpkey.Scope, error) {
	return httpkey.Scope{Tenant: r.Header.Get("Tenant"), Principal: r.Header.Get("Principal")}, nil
}

func TestScope(t *testing.T) {
	b := newEnv(t, setup{cfg: httpkey.Config{Scope: callerScope}, run: func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "for "+r.Header.Get("Tenant")+"/"+r.Header.Get("Principal"))
	}})
	// Parts that would be the same text if they were concatenated.
	for i, s := range [][2]string{{"a", "bc"}, {"ab", "c"}, {"abc", ""}, {"", "abc"}, {"a", "b"}} {
		scope := []change{with("Tenant", s[0]), with("Principal", s[1])}
		first := b.post(`"k"`, "{}", scope...)
		if want := "for " + s[0] + "/" + s[1]; first.body != want || first.replayed() {
			t.Errorf("%v got %q", s, first.body)
		}
		b.wantReplay(first, `"k"`, "{}", scope...)
		b.wantRuns(int64(i + 1))
	}
	one := b.post(`"POST /ordersk"`, "{}", with("Principal", "p"))
	if two := b.post(`"k"`, "{}", with("Principal", "pPOST /orders")); two.replayed() || two.body == one.body {
		t.Error("a principal and an operation run into each other")
	}
	if _, err := httpkey.New(newKeys(t), httpkey.Config{}); err == nil {
		t.Error("a nil scope is accepted")
	}
}

func TestOtherRoute(t *testing.T) {
	b := newEnv(t, setup{})
	if b.post("k", "{}").replayed() || b.post("k", "{}", path("/payments")).replayed() {
		t.Error("another route is treated as the same")
	}
	b.wantRuns(2)
	strict := newEnv(t, setup{cfg: httpkey.Config{StrictRoutes: true}})
	first := strict.post("k", "{}")
	strict.want(strict.post("k", "{}", path("/payments")), http.StatusUnprocessableEntity, "key-reused")
	strict.wantReplay(first, "k", "{}")
	strict.wantRuns(1)
	// With a pattern as the operation, another path is other content.
	named := newEnv(t, setup{cfg: httpkey.Config{Operation: func(*http.Request) string { return "POST /orders/{id}/pay" }}})
	named.post("k", "{}", path("/orders/1/pay"))
	named.want(named.post("k", "{}", path("/orders/2/pay")), http.StatusUnprocessableEntity, "key-reused")
	named.wantRuns(1)
}

func TestScopeError(t *testing.T) {
	for name, scope := range map[string]func(*http.Request) (httpkey.Scope, error){
		"error": func(*http.Request) (httpkey.Scope, error) { return httpkey.Scope{Tenant: "a"}, errors.New("no token") },
		"empty": func(*http.Request) (httpkey.Scope, error) { return httpkey.Scope{}, nil },
		"long":  func(*http.Request) (httpkey.Scope, error) { return httpkey.Scope{Tenant: strings.Repeat("a", 65)}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			b := newEnv(t, setup{cfg: httpkey.Config{Scope: scope}})
			a := b.post("k", "{}")
			b.want(a, http.StatusForbidden, "scope-refused")
			if strings.Contains(a.body, "token") {
				t.Errorf("the client reads the error: %s", a.body)
			}
			b.wantRuns(0)
		})
	}
}

func TestAuthorizeReplay(t *testing.T) {
	b := newEnv(t, setup{cfg: httpkey.Config{Scope: callerScope, AuthorizeReplay: func(r *http.Request, info httpkey.AuthorizeReplayInfo) error {
		if info.Ref != "ord_1" || r.Header.Get("Lowered") != "" {
			return errors.New("not any more")
		}
		return nil
	}}, run: func(w http.ResponseWriter, r *http.Request) {
		httpkey.SetRef(r.Context(), "ord_1")
		if r.URL.Path == "/stream" {
			w.(http.Flusher).Flush()
		}
		_, _ = io.WriteString(w, "secret")
	}})
	alice, bob := with("Principal", "alice"), with("Principal", "bob")
	first := b.post("k", "{}", alice)
	b.wantReplay(first, "k", "{}", alice)
	if b.post("k", "{}", bob).replayed() {
		t.Error("bob gets the answer for alice")
	}
	a := b.post("k", "{}", alice, with("Lowered", "yes"))
	b.want(a, http.StatusForbidden, "replay-refused")
	if strings.Contains(a.body, "secret") {
		t.Error("it exists nevertheless")
	}
	b.post("s", "{}", alice, path("/stream"))
	if a := b.post("s", "{}", alice, path("/stream")); a.problem.Code != "result-unavailable" || a.problem.ResultRef != "ord_1" {
		t.Errorf("%+v", a)
	}
	a = b.post("s", "{}", alice, path("/stream"), with("Lowered", "yes"))
	b.want(a, http.StatusForbidden, "replay-refused")
	if a.problem.ResultRef != "" {
		t.Error("the reference is stored nevertheless")
	}
}

func TestOuterRefusals(t *testing.T) {
	b := newEnv(t, setup{outer: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if s, err := strconv.Atoi(r.Header.Get("Refuse")); err == nil {
				w.WriteHeader(s)
				return
			}
			next.ServeHTTP(w, r)
		})
	}})
	for _, status := range []string{"401", "403", "429"} {
		b.post("k", "{}", with("Refuse", status))
	}
	if n := b.db.claims.Load(); n != 0 {
		t.Errorf("the store was queried %d times", n)
	}
	b.wantReplay(b.post("k", "{}"), "k", "{}")
}

func TestBodyIsThereAgain(t *testing.T) {
	b := newEnv(t, setup{run: func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%d %d %v %v %v", len(body), r.ContentLength, r.TransferEncoding, err, r.Body.Close())
	}})
	chunked := func(r *http.Request) { r.ContentLength = -1 }
	for i, n := range []int{0, 1, 5000, 1 << 20} {
		body := strings.Repeat("x", n)
		for j, c := range []change{func(*http.Request) {}, chunked} {
			if a := b.post(fmt.Sprint(i, "-", j), body, c, with("Content-Type", "text/plain")); a.body != fmt.Sprintf("%d %d [] <nil> <nil>", n, n) {
				t.Errorf("%d bytes: %s", n, a.body)
			}
		}
	}
	forms := newEnv(t, setup{outer: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = r.ParseForm() // an outer middleware that consumes the body
			next.ServeHTTP(w, r)
		})
	}})
	a := forms.post("k", "a=1", with("Content-Type", "application/x-www-form-urlencoded"))
	forms.want(a, http.StatusInternalServerError, "internal-error")
	forms.wantRuns(0)
}

func TestLargeBody(t *testing.T) {
	echo := func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, n, err)
	}
	large := strings.Repeat("x", 101)
	refuse := newEnv(t, setup{cfg: httpkey.Config{MaxBody: 100}, run: echo})
	refuse.want(refuse.post("k", large), http.StatusRequestEntityTooLarge, "body-too-large")
	refuse.want(refuse.post("k", large, func(r *http.Request) { r.ContentLength = -1 }), http.StatusRequestEntityTooLarge, "body-too-large")
	if refuse.wantRuns(0); refuse.db.claims.Load() != 0 {
		t.Error("the store was queried")
	}
	refuse.want(refuse.post("k", large[1:]), http.StatusOK, "")

	bypass := newEnv(t, setup{cfg: httpkey.Config{MaxBody: 100, LargeBody: httpkey.Bypass}, run: echo})
	for range 2 {
		if a := bypass.post("k", large); a.body != "101 <nil>" || a.replayed() {
			t.Errorf("%+v", a)
		}
	}
	bypass.wantRuns(2)

	digest := newEnv(t, setup{cfg: httpkey.Config{MaxBody: 100, DigestHeader: "Content-Digest"}, run: echo})
	first := digest.post("k", large, with("Content-Digest", "a"))
	if first.body != "101 <nil>" {
		t.Errorf("%+v", first)
	}
	digest.wantReplay(first, "k", large, with("Content-Digest", "a"))
	digest.want(digest.post("k", large, with("Content-Digest", "b")), http.StatusUnprocessableEntity, "key-reused")
	digest.want(digest.post("k2", large), http.StatusRequestEntityTooLarge, "body-too-large")
	digest.wantRuns(1)

	inTx := newEnv(t, setup{cfg: httpkey.Config{MaxBody: 100, LargeBody: httpkey.Bypass}, runTx: func(http.ResponseWriter, *http.Request, tx) error { return nil }})
	inTx.want(inTx.post("k", large), http.StatusRequestEntityTooLarge, "body-too-large")
}

func TestTruncatedUpload(t *testing.T) {
	b := newEnv(t, setup{})
	for name, request := range map[string]string{
		"length": "Content-Length: 100\r\n\r\n{\"a\":",
		"chunks": "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n",
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://")) //nolint:noctx // a test's own server
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: \"k\"\r\n"+request); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") || !strings.Contains(string(answer), "body-unreadable") {
			t.Errorf("%s: %s, %v", name, answer, err)
		}
		_ = conn.Close()
	}
	if b.wantRuns(0); b.db.claims.Load() != 0 {
		t.Error("the store was queried")
	}
}

func TestClaimIsCommittedBeforeTheHandler(t *testing.T) {
	var b *env
	b = newEnv(t, setup{run: func(w http.ResponseWriter, _ *http.Request) {
		r := b.record() // in another transaction
		_, _ = fmt.Fprintf(w, "%s %d %t %t", r.State, r.Fence, r.LeaseUntil.After(r.Now), r.Owner.IsZero())
	}})
	if a := b.post("k", "{}"); a.body != "processing 1 true false" {
		t.Error(a.body)
	}
	// In a transaction, nothing is visible before the commit.
	var inTx *env
	inTx = newEnv(t, setup{runTx: func(w http.ResponseWriter, _ *http.Request, _ tx) error {
		all := []store.KeyState{store.KeyProcessing, store.KeySucceeded, store.KeyFailed, store.KeyUncertain}
		records, err := inTx.db.ListKeys(t.Context(), store.KeyFilter{States: all}, store.KeyID{}, 10)
		_, _ = fmt.Fprint(w, len(records), err)
		return nil
	}})
	first := inTx.post("k", "{}")
	if first.body != "0 <nil>" {
		t.Error(first.body)
	}
	inTx.wantReplay(first, "k", "{}")
	inTx.wantRuns(1)
}

func TestOtherContentInEveryState(t *testing.T) {
	g := newGate()
	b := newEnv(t, setup{run: g.ServeHTTP})
	other := b.twin(setup{})
	running := b.later("k", `{"a":1}`)
	receive(t, g.reached)
	// In flight, in this process and in another.
	for _, e := range []*env{b, other} {
		e.want(e.post("k", `{"a":2}`), http.StatusUnprocessableEntity, "key-reused")
	}
	close(g.open)
	first := receive(t, running)
	b.want(b.post("k", `{"a":2}`), http.StatusUnprocessableEntity, "key-reused")
	b.want(b.post("k", `{"a":1}`, path("/orders?x=1")), http.StatusUnprocessableEntity, "key-reused")
	b.want(b.post("k", `{"a":1}`, with("Content-Type", "text/json")), http.StatusUnprocessableEntity, "key-reused")
	b.want(b.post("k", `{"a":1}`, with("Content-Encoding", "x")), http.StatusUnprocessableEntity, "key-reused")
	b.wantReplay(first, "k", ` { "a" : 1.0 } `)
	b.wantRuns(1)

	failed := newEnv(t, setup{run: func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Effect") != "" {
			httpkey.MarkEffect(r.Context())
		}
		w.WriteHeader(500)
	}})
	failed.post("k", `{"a":1}`)
	failed.want(failed.post("k", `{"a":2}`), http.StatusUnprocessableEntity, "key-reused")
	failed.post("u", `{"a":1}`, with("Effect", "yes"))
	failed.want(failed.post("u", `{"a":2}`), http.StatusUnprocessableEntity, "key-reused")
	failed.wantRuns(2)
}

// TestOwnHash: Config.Hash decides which requests are the same.
func TestOwnHash(t *testing.T) {
	type order struct {
		SKU  string `json:"sku"`
		Sent string `json:"sent"`
	}
	b := newEnv(t, setup{cfg: httpkey.Config{Hash: func(_ *http.Request, body []byte) (idempotency.Hash, error) {
		var o order
		if err := json.Unmarshal(body, &o); err != nil {
			return "", err
		}
		return idempotency.HashFields(o, "sku")
	}}})
	if a := b.post(`"k"`, `{"sku":"tea","sent":"10:00"}`); a.status != http.StatusOK || a.replayed() {
		t.Errorf("the first request: %+v", a)
	}
	if a := b.post(`"k"`, `{"sku":"tea","sent":"10:01"}`); a.status != http.StatusOK || !a.replayed() {
		t.Errorf("a repeat: %+v", a)
	}
	if a := b.post(`"k"`, `{"sku":"coffee","sent":"10:00"}`); a.status != http.StatusUnprocessableEntity {
		t.Errorf("another request: %+v", a)
	}
	if a := b.post(`"l"`, `tea`); a.status != http.StatusBadRequest {
		t.Errorf("a body without a hash: %+v", a)
	}
	if n := b.runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// TestLeaseOfARequest: Config.Lease is that of the claim.
func TestLeaseOfARequest(t *testing.T) {
	b := newEnv(t, setup{cfg: httpkey.Config{Lease: func(r *http.Request) time.Duration {
		if r.Header.Get("Idempotency-Key") == `"long"` {
			return time.Hour
		}
		return 0
	}}})
	got := map[string]bool{}
	b.db.claim = func(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
		got[c.Lease.String()] = true
		return b.db.Keys.ClaimKey(ctx, c)
	}
	b.post(`"long"`, "")
	b.post(`"short"`, "")
	if !got["1h0m0s"] || !got["30s"] || len(got) != 2 {
		t.Errorf("the leases are %v", got)
	}
}

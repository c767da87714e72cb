package httpkey_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/store"
)

// respond is a handler that answers with the status in the request's header.
func respond(w http.ResponseWriter, r *http.Request) {
	var status int
	_, _ = fmt.Sscan(r.Header.Get("Status"), &status)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "body")
}

func TestReplay(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		b := newEnv(t, setup{http2: http2, run: func(w http.ResponseWriter, _ *http.Request) {
			// False: a handler may not set it.
			w.Header().Set("Idempotent-Replayed", "true")
			w.Header().Set("Location", "/orders/1")
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte{'{', 0, 0xff, '}'})
		}})
		first := b.post("k", "{}")
		for range 2 {
			b.wantReplay(first, "k", "{}")
		}
		again := b.post("k", "{}")
		for _, name := range []string{"Location", "Content-Type", "Content-Length"} {
			if again.header.Get(name) != first.header.Get(name) || first.header.Get(name) == "" {
				t.Errorf("%s: %q, then %q", name, first.header.Get(name), again.header.Get(name))
			}
		}
		b.wantRuns(1)
	}
	named := newEnv(t, setup{cfg: httpkey.Config{ReplayedHeader: "X-Again"}})
	named.post("k", "{}")
	if a := named.post("k", "{}"); a.header.Get("X-Again") != "true" || a.replayed() {
		t.Errorf("%v", a.header)
	}
}

func TestSuccesses(t *testing.T) {
	b := newEnv(t, setup{run: respond})
	for _, status := range []string{"200", "201", "202", "204", "205", "301", "302", "303", "304", "307", "308"} {
		b.wantReplay(b.post(status, "{}", with("Status", status)), status, "{}", with("Status", status))
	}
	b.wantRuns(11)
	silent := newEnv(t, setup{run: func(http.ResponseWriter, *http.Request) {}})
	first := silent.post("k", "{}")
	if first.status != http.StatusOK || first.body != "" {
		t.Errorf("%+v", first)
	}
	silent.wantReplay(first, "k", "{}")
}

func TestPolicy(t *testing.T) {
	released := []int{401, 403, 408, 421, 423, 425, 429, 500, 501, 502, 503, 504, 599}
	stored := []int{400, 402, 404, 405, 406, 409, 410, 412, 413, 415, 418, 422, 424, 428, 431, 451}
	b := newEnv(t, setup{run: respond})
	all := newEnv(t, setup{run: respond, cfg: httpkey.Config{Store: httpkey.StoreAll}})
	only2xx := newEnv(t, setup{run: respond, cfg: httpkey.Config{Store: func(s int) bool { return s < 300 }}})
	for _, status := range append(released, stored...) {
		s := fmt.Sprint(status)
		for e, keeps := range map[*env]bool{b: slices.Contains(stored, status), all: true, only2xx: false} {
			first := e.post(s, "{}", with("Status", s))
			if again := e.post(s, "{}", with("Status", s)); again.replayed() != keeps || first.status != status || again.status != status {
				t.Errorf("%d: stored %t, want %t", status, again.replayed(), keeps)
			}
		}
	}
}

func TestHeaders(t *testing.T) {
	kept := map[string]string{
		"Content-Type": "text/csv", "Content-Encoding": "x-none", "Content-Language": "de", "Content-Disposition": "attachment",
		"Location": "/1", "Etag": `"1"`, "X-Order": "1",
	}
	dropped := map[string]string{
		"Set-Cookie": "session=1", "Www-Authenticate": "Basic", "Date": "Mon, 02 Jan 2006 15:04:05 GMT", "Traceparent": "00-1", "X-Request-Id": "1",
		"X-Other": "1", "Cache-Control": "private", "Keep-Alive": "timeout=5",
	}
	b := newEnv(t, setup{
		cfg: httpkey.Config{Headers: []string{"x-order"}},
		outer: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Outer", r.Header.Get("Try"))
				w.Header().Set("Content-Language", "xx")
				next.ServeHTTP(w, r)
			})
		},
		run: func(w http.ResponseWriter, _ *http.Request) {
			for _, h := range []map[string]string{kept, dropped} {
				for name, value := range h {
					w.Header().Set(name, value)
				}
			}
			_, _ = io.WriteString(w, "a,b")
		},
	})
	first := b.post("k", "{}", with("Try", "1"))
	again := b.post("k", "{}", with("Try", "2"))
	for name, value := range kept {
		if first.header.Get(name) != value || len(again.header[name]) != 1 || again.header.Get(name) != value {
			t.Errorf("%s: %q, then %q", name, first.header[name], again.header[name])
		}
	}
	for name, value := range dropped {
		if first.header.Get(name) != value || again.header.Get(name) == value {
			t.Errorf("%s: %q, then %q", name, first.header.Get(name), again.header.Get(name))
		}
	}
	if again.header.Get("X-Outer") != "2" {
		t.Error("the outer middleware does not add its headers")
	}
	for _, name := range []string{"set-cookie", "Authorization", "Connection", "Date", "traceparent", "Transfer-Encoding", "", "a b", "Idempotent-Replayed"} {
		if _, err := httpkey.New(newKeys(t), httpkey.Config{Scope: httpkey.Unscoped, Headers: []string{name}}); err == nil {
			t.Errorf("%q is accepted as a stored header", name)
		}
	}
}

func TestTypeIsGuessedOnce(t *testing.T) {
	b := newEnv(t, setup{run: func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("None") != "" {
			w.Header()["Content-Type"] = nil // in net/http: do not guess
		}
		_, _ = io.WriteString(w, "<ht")
		_, _ = io.WriteString(w, "ml>")
	}})
	for i, c := range []change{func(*http.Request) {}, with("None", "yes")} {
		key := fmt.Sprint(i)
		first, again := b.post(key, "{}", c), b.post(key, "{}", c)
		if !again.replayed() || !slices.Equal(first.header["Content-Type"], again.header["Content-Type"]) || (first.header["Content-Type"] == nil) != (i == 1) {
			t.Errorf("%q, then %q", first.header["Content-Type"], again.header["Content-Type"])
		}
	}
}

func TestManyValues(t *testing.T) {
	values := []string{`<a>; rel="x, y"`, "", "<b>", "<a>, <c>"}
	b := newEnv(t, setup{cfg: httpkey.Config{Headers: []string{"Link"}}, run: func(w http.ResponseWriter, _ *http.Request) {
		for _, v := range values {
			w.Header().Add("Link", v)
		}
	}})
	for range 2 {
		if a := b.post("k", "{}"); !slices.Equal(a.header["Link"], values) {
			t.Errorf("replayed %t: %q", a.replayed(), a.header["Link"])
		}
	}
}

func TestHeaderTiming(t *testing.T) {
	b := newEnv(t, setup{run: func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		h.Set("Location", "/1")
		h.Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusCreated)
		w.WriteHeader(http.StatusTeapot) // too late
		h.Set("Location", "/too-late")
		_, _ = io.WriteString(w, "body")
		h.Set("X-Sum", "123")
		h.Set(http.TrailerPrefix+"X-More", "456")
	}})
	var hints []int
	trace := func(r *http.Request) {
		*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				if h.Get("Link") != "" {
					hints = append(hints, code)
				}
				return nil
			},
		}))
	}
	first := b.post("k", "{}", trace)
	if first.status != http.StatusCreated || first.header.Get("Location") != "/1" || !slices.Equal(hints, []int{103}) {
		t.Errorf("%+v, hints %v", first, hints)
	}
	if first.trailer.Get("X-Sum") != "123" || first.trailer.Get("X-More") != "456" {
		t.Errorf("trailers: %v", first.trailer)
	}
	again := b.post("k", "{}", trace)
	if again.status != http.StatusCreated || again.header.Get("Location") != "/1" || len(again.trailer) != 0 || len(hints) != 1 {
		t.Errorf("%+v, hints %v, trailers %v", again, hints, again.trailer)
	}
}

// A handler sees the headers of outer middleware, and can remove them.
func TestHeadersAreRemoved(t *testing.T) {
	b := newEnv(t, setup{
		outer: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Outer", "1")
				next.ServeHTTP(w, r)
			})
		},
		run: func(w http.ResponseWriter, _ *http.Request) {
			if w.Header().Get("X-Outer") != "1" {
				t.Error("the handler does not see the headers of outer middleware")
			}
			w.Header().Del("X-Outer")
		},
	})
	if a := b.post("k", "{}"); a.header.Get("X-Outer") != "" {
		t.Errorf("a removed header was sent: %v", a.header)
	}
}

// The writer refuses what that of net/http refuses.
func TestInvalidAnswers(t *testing.T) {
	panics := func(w http.ResponseWriter, status int) (yes bool) {
		defer func() { yes = recover() != nil }()
		w.WriteHeader(status)
		return false
	}
	write := func(w http.ResponseWriter, r *http.Request) {
		for _, status := range []int{99, 0, -1, 1000} {
			if !panics(w, status) {
				t.Errorf("the status %d is accepted", status)
			}
		}
		status, err := strconv.Atoi(r.Header.Get("Status"))
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusContinue)
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(status)
		_, err = io.WriteString(w, "body")
		if bodyless := status == http.StatusNoContent || status == http.StatusNotModified; errors.Is(err, http.ErrBodyNotAllowed) != bodyless {
			t.Errorf("the body of an answer with the status %d: %v", status, err)
		}
	}
	for name, s := range map[string]setup{
		"Wrap":   {run: write},
		"WrapTx": {runTx: func(w http.ResponseWriter, r *http.Request, _ tx) error { write(w, r); return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			s.cfg.Store = func(int) bool { return true }
			b := newEnv(t, s)
			for _, status := range []int{200, 201, 204, 206, 299, 303, 304, 400, 599, 999} {
				key := strconv.Itoa(status)
				first := b.post(key, "{}", with("Status", key))
				if first.status != status {
					t.Errorf("the status %d was sent as %d", status, first.status)
				}
				b.wantReplay(first, key, "{}", with("Status", key))
			}
		})
	}
}

// An answer of MaxResult bytes is stored; one byte more, and it is not.
func TestMaxResult(t *testing.T) {
	write := func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.Header.Get("Size"))
		if err != nil {
			t.Error(err)
		}
		for range n {
			_, _ = io.WriteString(w, "x")
		}
	}
	for name, s := range map[string]setup{
		"Wrap":   {run: write},
		"WrapTx": {runTx: func(w http.ResponseWriter, r *http.Request, _ tx) error { write(w, r); return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			s.cfg.MaxResult = 100
			b := newEnv(t, s)
			b.wantReplay(b.post("fits", "{}", with("Size", "100")), "fits", "{}", with("Size", "100"))
			if a := b.post("large", "{}", with("Size", "101")); a.status != http.StatusOK || len(a.body) != 101 {
				t.Errorf("%d, %d bytes", a.status, len(a.body))
			}
			b.want(b.post("large", "{}", with("Size", "101")), http.StatusConflict, "result-unavailable")
		})
	}
}

// A large answer in a transaction waits for the commit, too.
func TestLargeReplyOfARollback(t *testing.T) {
	b := newEnv(t, setup{cfg: httpkey.Config{MaxResult: 1000}, runTx: func(w http.ResponseWriter, _ *http.Request, _ tx) error {
		_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
		return errors.New("no")
	}})
	if a := b.post("k", "{}"); a.status != http.StatusInternalServerError || len(a.body) > 1000 {
		t.Errorf("the answer of a transaction that was rolled back was sent: %d, %d bytes", a.status, len(a.body))
	}
}

// A large answer reaches the client while the handler still writes.
func TestLargeReplyIsNotBuffered(t *testing.T) {
	const size = 1 << 20
	next := make(chan struct{})
	b := newEnv(t, setup{cfg: httpkey.Config{MaxResult: 1000}, run: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", size))
		select {
		case <-next:
		case <-time.After(patience):
			t.Error("the client has no answer before the end of the handler")
		}
	}})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/orders", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", "k")
	resp, err := b.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.ReadFull(resp.Body, make([]byte, size/2)); err != nil {
		t.Error(err)
	}
	close(next)
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != size/2 {
		t.Errorf("%d bytes, %v", len(rest), err)
	}
}

func TestLargeReply(t *testing.T) {
	const chunk, chunks = 64 << 10, 17 // more than 1 MiB
	write := func(w http.ResponseWriter, r *http.Request) {
		httpkey.SetRef(r.Context(), "ord_1")
		w.WriteHeader(http.StatusCreated)
		for range chunks {
			_, _ = io.WriteString(w, strings.Repeat("x", chunk))
		}
	}
	for name, s := range map[string]setup{
		"Wrap":   {run: write},
		"WrapTx": {runTx: func(w http.ResponseWriter, r *http.Request, _ tx) error { write(w, r); return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newEnv(t, s)
			if a := b.post("k", "{}"); a.status != http.StatusCreated || len(a.body) != chunk*chunks {
				t.Errorf("%d, %d bytes", a.status, len(a.body))
			}
			for range 2 {
				a := b.post("k", "{}")
				b.want(a, http.StatusConflict, "result-unavailable")
				if a.problem.ResultRef != "ord_1" || a.problem.OperationState != "succeeded" {
					t.Errorf("%+v", a.problem)
				}
			}
			b.wantRuns(1)
		})
	}
}

func TestStreams(t *testing.T) {
	t.Run("flush", func(t *testing.T) {
		next := make(chan struct{})
		b := newEnv(t, setup{run: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 3 {
				_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
				if err := http.NewResponseController(w).Flush(); err != nil {
					t.Error(err)
				}
				<-next
			}
		}})
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/orders", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Idempotency-Key", "k")
		resp, err := b.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		lines := bufio.NewScanner(resp.Body)
		for i := range 3 {
			// Each arrives before the next is written.
			if !lines.Scan() || lines.Text() != fmt.Sprintf("data: %d", i) {
				t.Fatalf("%q, %v", lines.Text(), lines.Err())
			}
			lines.Scan()
			next <- struct{}{}
		}
		if lines.Scan() {
			t.Error("there is more")
		}
		plain := func(r *http.Request) { r.Body, r.ContentLength = http.NoBody, 0; r.Header.Del("Content-Type") }
		b.want(b.post("k", "", plain), http.StatusConflict, "result-unavailable")
		b.wantRuns(1)
	})
	t.Run("hijack", func(t *testing.T) {
		b := newEnv(t, setup{run: func(w http.ResponseWriter, _ *http.Request) {
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = rw.WriteString("HTTP/1.1 202 Mine\r\nContent-Length: 4\r\nConnection: close\r\n\r\nmine")
			_ = rw.Flush()
			_ = conn.Close()
		}})
		if a := b.post("k", "{}"); a.status != http.StatusAccepted || a.body != "mine" {
			t.Errorf("%+v", a)
		}
		b.await("it is over", func() bool { return b.record().State == store.KeySucceeded })
		b.want(b.post("k", "{}"), http.StatusConflict, "result-unavailable")
		b.wantRuns(1)
	})
	t.Run("not in a transaction", func(t *testing.T) {
		b := newEnv(t, setup{runTx: func(w http.ResponseWriter, _ *http.Request, _ tx) error {
			_, _ = io.WriteString(w, "a")
			rc := http.NewResponseController(w)
			_, _, err := rc.Hijack()
			if !errors.Is(rc.Flush(), http.ErrNotSupported) || !errors.Is(err, http.ErrNotSupported) {
				t.Error("something can be sent before the commit")
			}
			return nil
		}})
		b.wantReplay(b.post("k", "{}"), "k", "{}")
	})
	t.Run("a stream that fails", func(t *testing.T) {
		b := newEnv(t, setup{run: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			w.(http.Flusher).Flush()
		}})
		b.post("k", "{}")
		b.post("k", "{}")
		b.wantRuns(2)
	})
}

func TestWrapTx(t *testing.T) {
	fails := errors.New("no")
	b := newEnv(t, setup{runTx: func(w http.ResponseWriter, r *http.Request, _ tx) error {
		switch r.Header.Get("Case") {
		case "error":
			w.WriteHeader(http.StatusCreated)
			return fails
		case "own error":
			http.Error(w, "sold out", http.StatusConflict)
			return fails
		case "5xx":
			w.WriteHeader(http.StatusBadGateway)
		}
		body, err := io.ReadAll(r.Body)
		_, _ = w.Write(body)
		return err
	}})
	b.want(b.post("k", `{"a":1}`, with("Case", "error")), http.StatusInternalServerError, "operation-failed")
	if a := b.post("k", `{"a":1}`, with("Case", "own error")); a.status != http.StatusConflict || a.body != "sold out\n" {
		t.Errorf("%+v", a)
	}
	if a := b.post("k", `{"a":1}`, with("Case", "5xx")); a.status != http.StatusBadGateway {
		t.Errorf("%+v", a)
	}
	first := b.post("k", `{"a":1}`)
	if first.status != http.StatusOK || first.body != `{"a":1}` {
		t.Errorf("%+v", first)
	}
	b.wantReplay(first, "k", `{"a":1}`)
	b.want(b.post("k", `{"a":2}`), http.StatusUnprocessableEntity, "key-reused")
	b.wantRuns(4)
	if a := b.post("k", "", method(http.MethodGet)); a.status != http.StatusMethodNotAllowed || a.header.Get("Allow") != "POST, PATCH" {
		t.Errorf("%+v", a)
	}
	optional := newEnv(t, setup{cfg: httpkey.Config{Optional: true}, runTx: func(http.ResponseWriter, *http.Request, tx) error { return nil }})
	for range 2 {
		if a := optional.post("", "{}"); a.status != http.StatusOK || a.replayed() {
			t.Errorf("%+v", a)
		}
	}
	optional.wantRuns(2)
}

// The boundary of a form differs between tries.
func TestFormsAreCompared(t *testing.T) {
	b := newEnv(t, setup{run: func(w http.ResponseWriter, r *http.Request) {
		// A file on disk, which must be removed.
		if err := r.ParseMultipartForm(1); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, r.FormValue("a"))
	}})
	form := func(boundary, value string) (string, change) {
		var s strings.Builder
		m := multipart.NewWriter(&s)
		if err := errors.Join(m.SetBoundary(boundary), m.WriteField("a", value), m.Close()); err != nil {
			t.Fatal(err)
		}
		return s.String(), with("Content-Type", m.FormDataContentType())
	}
	body, typ := form("one", "1")
	first := b.post("k", body, typ)
	if first.body != "1" {
		t.Errorf("%+v", first)
	}
	body, typ = form("two", "1")
	b.wantReplay(first, "k", body, typ)
	body, typ = form("two", "2")
	b.want(b.post("k", body, typ), http.StatusUnprocessableEntity, "key-reused")
}

func TestNewNamesEveryMistake(t *testing.T) {
	_, err := httpkey.New[tx](nil, httpkey.Config{
		Methods: []string{"GET"}, Header: "a b", MinLen: 256, MaxBody: -1, Retention: -1, LargeBody: 7, DocsURL: "no url", Headers: []string{"Set-Cookie"},
	})
	if err == nil {
		t.Fatal("it is accepted")
	}
	for _, field := range []string{"keys", "Scope", "Methods", "Header:", "MinLen", "MaxBody", "Retention", "LargeBody", "DocsURL", "Headers"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
}

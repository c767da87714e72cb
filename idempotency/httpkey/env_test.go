package httpkey_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the time limit for conditions on a loaded machine.
const patience = 30 * time.Second

// tx is the type of the transactions.
type tx = *memstore.Tx

// keyStore is a store whose responses a test can change.
type keyStore struct {
	driver.Keys[tx]
	claim  func(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error)
	end    func(ctx context.Context, a driver.KeyAttempt, e driver.KeyEnd) (bool, error)
	renew  func(ctx context.Context, a driver.KeyAttempt, lease time.Duration) (bool, error)
	claims atomic.Int64
}

func (s *keyStore) ClaimKey(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
	s.claims.Add(1)
	if s.claim != nil {
		return s.claim(ctx, c)
	}
	return s.Keys.ClaimKey(ctx, c)
}

func (s *keyStore) EndKey(ctx context.Context, a driver.KeyAttempt, e driver.KeyEnd) (bool, error) {
	if s.end != nil {
		return s.end(ctx, a, e)
	}
	return s.Keys.EndKey(ctx, a, e)
}

func (s *keyStore) RenewKey(ctx context.Context, a driver.KeyAttempt, lease time.Duration) (bool, error) {
	if s.renew != nil {
		return s.renew(ctx, a, lease)
	}
	return s.Keys.RenewKey(ctx, a, lease)
}

// env is a server for one test. Several may share a store, as processes do.
type env struct {
	*testing.T
	db   *keyStore
	keys *idempotency.Keys[tx]
	once *httpkey.Middleware[tx]
	url  string
	// runs counts runs of the handler, log holds the log lines.
	runs atomic.Int64
	log  *syncBuffer

	client *http.Client
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

type setup struct {
	cfg   httpkey.Config
	keys  idempotency.Config
	db    driver.Keys[tx] // shared with another bed
	outer func(http.Handler) http.Handler
	// run is the handler, runTx the one in a transaction.
	run   http.HandlerFunc
	runTx func(w http.ResponseWriter, r *http.Request, tx tx) error
	http2 bool
}

func newEnv(t *testing.T, s setup) *env {
	t.Helper()
	b := &env{T: t, log: &syncBuffer{}}
	if s.db == nil {
		db, err := memstore.New(memstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		s.db = db.Driver().Keys
	}
	b.db = &keyStore{Keys: s.db}
	logger := slog.New(slog.NewTextHandler(b.log, nil))
	s.keys.Logger, s.cfg.Logger = logger, logger
	if s.cfg.Scope == nil {
		s.cfg.Scope = httpkey.Unscoped
	}
	var err error
	if b.keys, err = idempotency.New[tx](testroles.Of[tx](b.db), s.keys); err != nil {
		t.Fatal(err)
	}
	if b.once, err = httpkey.New(b.keys, s.cfg); err != nil {
		t.Fatal(err)
	}
	var h http.Handler
	if s.runTx != nil {
		h = b.once.WrapTx(func(w http.ResponseWriter, r *http.Request, tx tx) error {
			b.runs.Add(1)
			return s.runTx(w, r, tx)
		})
	} else {
		if s.run == nil {
			s.run = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "done") }
		}
		h = b.once.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b.runs.Add(1)
			s.run(w, r)
		}))
	}
	if s.outer != nil {
		h = s.outer(h)
	}
	srv := httptest.NewUnstartedServer(h)
	// Includes panics.
	srv.Config.ErrorLog = slog.NewLogLogger(logger.Handler(), slog.LevelError)
	if srv.EnableHTTP2 = s.http2; s.http2 {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	b.url, b.client = srv.URL, srv.Client()
	b.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return b
}

// answer is a client's response.
type answer struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
	problem struct {
		Type, Title, Detail, Code string
		Status                    int
		OperationState            string `json:"operation_state"`
		ResultRef                 string `json:"result_ref"`
	}
}

func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

// change changes a request before it is sent.
type change func(r *http.Request)

func with(name string, values ...string) change {
	return func(r *http.Request) { r.Header[http.CanonicalHeaderKey(name)] = values }
}

func method(m string) change { return func(r *http.Request) { r.Method = m } }

func path(p string) change {
	return func(r *http.Request) {
		to, err := r.URL.Parse(p)
		if err != nil {
			panic(err)
		}
		r.URL = to
	}
}

// try sends a POST with a key.
func (b *env) try(key, body string, changes ...change) (answer, error) {
	r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, b.url+"/orders", strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for _, c := range changes {
		c(r)
	}
	resp, err := b.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	a := answer{status: resp.StatusCode, header: resp.Header, trailer: resp.Trailer, body: string(text)}
	if err == nil && resp.Header.Get("Content-Type") == "application/problem+json" {
		err = json.Unmarshal(text, &a.problem)
	}
	return a, err
}

func (b *env) post(key, body string, changes ...change) answer {
	b.Helper()
	a, err := b.try(key, body, changes...)
	if err != nil {
		b.Fatal(err)
	}
	return a
}

// want reports an answer that differs from the expected one.
func (b *env) want(a answer, status int, code string) {
	b.Helper()
	if a.status != status || a.problem.Code != code {
		b.Errorf("the answer is %d %s, want %d %s\n%s", a.status, a.problem.Code, status, code, a.body)
	}
}

func (b *env) wantRuns(n int64) {
	b.Helper()
	if got := b.runs.Load(); got != n {
		b.Errorf("the handler ran %d times, want %d", got, n)
	}
}

// wantReplay sends a request again and expects the same answer.
func (b *env) wantReplay(first answer, key, body string, changes ...change) {
	b.Helper()
	again := b.post(key, body, changes...)
	if !again.replayed() || again.status != first.status || again.body != first.body {
		b.Errorf("the repeat got %d %q, replayed %t; the first got %d %q", again.status, again.body, again.replayed(), first.status, first.body)
	}
	if first.replayed() {
		b.Error("the first answer is marked as replayed")
	}
}

// await waits for a condition.
func (b *env) await(what string, ok func() bool) {
	b.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			b.Fatalf("timeout waiting for: %s", what)
		}
	}
}

// receive waits for a value.
func receive[V any](t *testing.T, c <-chan V) V {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("timeout waiting for a value")
		panic("unreachable")
	}
}

// record returns the only record of the store.
func (b *env) record() store.KeyRecord {
	b.Helper()
	all := []store.KeyState{store.KeyProcessing, store.KeySucceeded, store.KeyFailed, store.KeyUncertain}
	records, err := b.db.ListKeys(b.Context(), store.KeyFilter{States: all}, store.KeyID{}, 10)
	if err != nil || len(records) != 1 {
		b.Fatalf("%d records, %v", len(records), err)
	}
	return records[0]
}

// twin is another process on the same store.
func (b *env) twin(s setup) *env {
	b.Helper()
	s.db = b.db.Keys
	return newEnv(b.T, s)
}

// gate is a handler that signals when it is reached, and waits until it may
// continue.
type gate struct {
	reached chan context.Context
	open    chan struct{}
}

func newGate() *gate { return &gate{make(chan context.Context, 100), make(chan struct{})} }

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.reached <- r.Context()
	<-g.open
	_, _ = io.WriteString(w, "done")
}

// later sends a request in the background.
func (b *env) later(key, body string, changes ...change) <-chan answer {
	out := make(chan answer, 1)
	go func() {
		a, err := b.try(key, body, changes...)
		if err != nil {
			a.body = err.Error()
		}
		out <- a
	}()
	return out
}

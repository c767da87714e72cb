package httpkey_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

func TestConcurrentDuplicate(t *testing.T) {
	g := newGate()
	b := newEnv(t, setup{run: g.ServeHTTP})
	other := b.twin(setup{})
	var entered, over atomic.Int64
	waiting := b.twin(setup{cfg: httpkey.Config{WaitMax: time.Minute}, outer: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			entered.Add(1)
			defer over.Add(1)
			next.ServeHTTP(w, r)
		})
	}})
	running := b.later("k", "{}")
	receive(t, g.reached)
	for _, e := range []*env{b, other} {
		a := e.post("k", "{}")
		e.want(a, http.StatusConflict, "in-progress")
		if n, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || n < 1 || n > 30 {
			t.Errorf("Retry-After: %s", a.header.Get("Retry-After"))
		}
	}
	waits := waiting.later("k", "{}")
	waiting.await("it has been refused once, and waits", func() bool { return waiting.db.claims.Load() > 0 })

	// A client that disconnects while it waits starts nothing.
	ctx, leave := context.WithCancel(t.Context())
	left := waiting.later("k", "{}", func(r *http.Request) { *r = *r.WithContext(ctx) })
	waiting.await("it waits, too", func() bool { return entered.Load() == 2 })
	leave()
	if a := receive(t, left); !strings.Contains(a.body, context.Canceled.Error()) {
		t.Errorf("%+v", a)
	}
	waiting.await("the server does not wait any longer", func() bool { return over.Load() == 1 })
	close(g.open)
	first := receive(t, running)
	if a := receive(t, waits); a.body != first.body || !a.replayed() {
		t.Errorf("the waiting request got %+v", a)
	}
	b.wantRuns(1)
	waiting.wantRuns(0)
}

func TestParallelRequestsRunOnce(t *testing.T) {
	for name, cfg := range map[string]httpkey.Config{"immediately": {}, "waiting": {WaitMax: time.Minute}} {
		t.Run(name, func(t *testing.T) {
			b := newEnv(t, setup{cfg: cfg})
			twin := b.twin(setup{cfg: cfg})
			var wg sync.WaitGroup
			var done, busy atomic.Int64
			for i := range 100 {
				wg.Go(func() {
					a, err := []*env{b, twin}[i%2].try("k", "{}")
					switch {
					case err == nil && a.status == 200 && a.body == "done":
						done.Add(1)
					case err == nil && a.problem.Code == "in-progress":
						busy.Add(1)
					default:
						t.Errorf("%+v, %v", a, err)
					}
				})
			}
			wg.Wait()
			if b.runs.Load()+twin.runs.Load() != 1 {
				t.Errorf("%d and %d runs", b.runs.Load(), twin.runs.Load())
			}
			if done.Load() == 0 || cfg.WaitMax > 0 && busy.Load() > 0 {
				t.Errorf("%d answers, %d refusals", done.Load(), busy.Load())
			}
		})
	}
}

// A mistyped code may be corrected.
func TestDontStore(t *testing.T) {
	wrap := func(w http.ResponseWriter, r *http.Request) {
		httpkey.DontStore(r.Context())
		w.WriteHeader(http.StatusUnprocessableEntity)
	}
	b := newEnv(t, setup{run: wrap})
	inTx := newEnv(t, setup{runTx: func(w http.ResponseWriter, r *http.Request, _ tx) error { wrap(w, r); return nil }})
	for _, e := range []*env{b, inTx} {
		for range 2 {
			if a := e.post("k", "{}"); a.status != http.StatusUnprocessableEntity || a.replayed() {
				t.Errorf("%+v", a)
			}
		}
		e.wantRuns(2)
	}
}

func TestFailureAfterAnEffect(t *testing.T) {
	for name, end := range map[string]func(w http.ResponseWriter){
		"5xx":   func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) },
		"panic": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	} {
		run := func(w http.ResponseWriter, r *http.Request) {
			httpkey.MarkEffect(r.Context())
			end(w)
		}
		for kind, s := range map[string]setup{
			"Wrap":   {run: run},
			"WrapTx": {runTx: func(w http.ResponseWriter, r *http.Request, _ tx) error { run(w, r); return nil }},
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				b := newEnv(t, s)
				if a, err := b.try("k", "{}"); name == "5xx" && (err != nil || a.status != http.StatusBadGateway) {
					t.Errorf("%+v, %v", a, err)
				}
				a := b.post("k", "{}")
				b.want(a, http.StatusConflict, "outcome-uncertain")
				if a.problem.OperationState != "uncertain" {
					t.Error(a.problem.OperationState)
				}
				// An operator decides that it may run again.
				ok, err := b.db.ResolveKey(t.Context(), b.record().KeyID, driver.KeyEnd{State: store.KeyFailed, Answer: driver.KeyAnswer{Retention: time.Hour}})
				if !ok || err != nil {
					t.Fatal(ok, err)
				}
				_, _ = b.try("k", "{}")
				b.wantRuns(2)
			})
		}
	}
}

func TestPanic(t *testing.T) {
	mine := errors.New("mine")
	for name, end := range map[string]func(){
		"value": func() { panic(mine) },
		"abort": func() { panic(http.ErrAbortHandler) },
		"nil":   func() { panic(nil) }, //nolint:govet // that is the case
		"exit":  runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan any, 10)
			b := newEnv(t, setup{
				run: func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.WriteString(w, "half")
					if r.Header.Get("Fail") != "" {
						end()
					}
				},
				outer: func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						defer func() {
							v := recover()
							seen <- v
							if v != nil {
								panic(v)
							}
						}()
						next.ServeHTTP(w, r)
					})
				},
			})
			if a, err := b.try("k", "{}", with("Fail", "yes")); err == nil {
				t.Errorf("the client got %+v", a)
			}
			v := receive(t, seen)
			var isNil *runtime.PanicNilError
			switch err, _ := v.(error); {
			case name == "value" && err != mine, name == "abort" && err != http.ErrAbortHandler, name == "nil" && !errors.As(err, &isNil), name == "exit" && v != nil: //nolint:errorlint // the very same value
				t.Errorf("the panic became %v", v)
			}
			first := b.post("k", "{}") // the key was released
			if first.body != "half" {
				t.Errorf("%+v", first)
			}
			b.wantReplay(first, "k", "{}")
			b.wantRuns(2)
		})
	}
}

func TestClientGone(t *testing.T) {
	g := newGate()
	outer := make(chan context.Context, 10)
	b := newEnv(t, setup{run: g.ServeHTTP, outer: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			outer <- r.Context()
			next.ServeHTTP(w, r)
		})
	}})
	ctx, leave := context.WithCancel(t.Context())
	gone := b.later("k", "{}", func(r *http.Request) { *r = *r.WithContext(ctx) })
	inner := receive(t, g.reached)
	leave()
	receive(t, gone)
	select { // the server has noticed
	case <-receive(t, outer).Done():
	case <-time.After(patience):
		t.Fatal("the server does not notice that the client has gone")
	}
	if inner.Err() != nil {
		t.Error("the handler's context has ended with the client")
	}
	close(g.open)
	b.await("the answer is stored", func() bool { return b.record().State == store.KeySucceeded })
	if a := b.post("k", "{}"); !a.replayed() || a.body != "done" {
		t.Errorf("%+v", a)
	}
	b.wantRuns(1)
}

// watched reports whether anything was sent.
type watched struct {
	http.ResponseWriter
	sent *atomic.Bool
}

func (w watched) WriteHeader(status int) {
	w.sent.Store(true)
	w.ResponseWriter.WriteHeader(status)
}

func (w watched) Write(p []byte) (int, error) {
	w.sent.Store(true)
	return w.ResponseWriter.Write(p)
}

func TestStoredBeforeTheFirstByte(t *testing.T) {
	var sent, early atomic.Bool
	b := newEnv(t, setup{
		run: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			// More than any buffer below.
			_, _ = io.WriteString(w, strings.Repeat("x", 100_000))
		},
		outer: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(watched{w, &sent}, r) })
		},
	})
	b.db.end = func(ctx context.Context, a driver.KeyAttempt, e driver.KeyEnd) (bool, error) {
		early.Store(sent.Load())
		return b.db.Keys.EndKey(ctx, a, e)
	}
	if a := b.post("k", "{}"); a.status != http.StatusCreated || len(a.body) != 100_000 {
		t.Errorf("%d, %d bytes", a.status, len(a.body))
	}
	if early.Load() {
		t.Error("the client saw an answer that was not stored")
	}
}

func TestPersistFails(t *testing.T) {
	var unkept atomic.Int64
	b := newEnv(t, setup{keys: idempotency.Config{Observe: observe.Hooks{KeyUnkept: func(observe.KeyUnkeptInfo) { unkept.Add(1) }}}})
	b.db.end = func(context.Context, driver.KeyAttempt, driver.KeyEnd) (bool, error) {
		return false, errors.New("disk full")
	}
	if a := b.post("k", "{}"); a.status != http.StatusOK || a.body != "done" {
		t.Errorf("%+v", a)
	}
	b.db.end = nil
	// Not released.
	b.want(b.post("k", "{}"), http.StatusConflict, "in-progress")
	b.wantRuns(1)
	if unkept.Load() != 1 {
		t.Errorf("it was counted %d times", unkept.Load())
	}
}

// stuck is a process whose heartbeats have stopped: its handler waits at a
// gate, and its lease expires.
func stuck(t *testing.T, run http.HandlerFunc) *env {
	t.Helper()
	b := newEnv(t, setup{run: run, keys: idempotency.Config{Lease: 50 * time.Millisecond}})
	b.db.renew = func(ctx context.Context, _ driver.KeyAttempt, _ time.Duration) (bool, error) {
		<-ctx.Done() // as if the process hung
		return false, ctx.Err()
	}
	return b
}

func TestTakeoverAndLateFinisher(t *testing.T) {
	g := newGate()
	b := stuck(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/late")
		w.Header().Set("X-Late", "yes")
		g.reached <- r.Context()
		<-g.open
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "late")
	})
	next := b.twin(setup{run: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/first")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "first")
	}})
	running := b.later("k", "{}")
	receive(t, g.reached)
	b.await("the lease runs out", func() bool { r := b.record(); return !r.LeaseUntil.After(r.Now) })
	// Not even now.
	next.want(next.post("k", `{"other":1}`), http.StatusUnprocessableEntity, "key-reused")
	first := next.post("k", "{}")
	if first.status != http.StatusCreated || first.body != "first" || first.replayed() {
		t.Fatalf("the next one got %+v", first)
	}
	if r := b.record(); r.Fence != 2 || r.Attempts != 2 {
		t.Errorf("fence %d, attempt %d", r.Fence, r.Attempts)
	}
	// The first run continues: one key has one answer, and it is not the first
	// run's.
	close(g.open)
	late := receive(t, running)
	if late.status != http.StatusCreated || late.body != "first" || !late.replayed() || late.header.Get("Location") != "/first" || late.header.Get("X-Late") != "" {
		t.Errorf("the late one got %+v", late)
	}
	next.wantReplay(first, "k", "{}")
	b.wantRuns(1)
	next.wantRuns(1)
}

func TestLateWhileTheSuccessorRuns(t *testing.T) {
	g, h := newGate(), newGate()
	b := stuck(t, g.ServeHTTP)
	next := b.twin(setup{run: h.ServeHTTP})
	late := b.later("k", "{}")
	receive(t, g.reached)
	b.await("the lease runs out", func() bool { r := b.record(); return !r.LeaseUntil.After(r.Now) })
	running := next.later("k", "{}")
	receive(t, h.reached)
	close(g.open)
	b.want(receive(t, late), http.StatusConflict, "in-progress")
	close(h.open)
	b.wantReplay(receive(t, running), "k", "{}")
}

func TestLongHandler(t *testing.T) {
	const lease = 150 * time.Millisecond
	g := newGate()
	b := newEnv(t, setup{run: g.ServeHTTP, keys: idempotency.Config{Lease: lease}})
	var renewed atomic.Int64
	b.db.renew = func(ctx context.Context, a driver.KeyAttempt, d time.Duration) (bool, error) {
		ok, err := b.db.Keys.RenewKey(ctx, a, d)
		if ok {
			renewed.Add(1)
		}
		return ok, err
	}
	other := b.twin(setup{})
	running := b.later("k", "{}")
	receive(t, g.reached)
	b.await("it has taken longer than its lease", func() bool { return renewed.Load() > 4 })
	other.want(other.post("k", "{}"), http.StatusConflict, "in-progress")
	close(g.open)
	b.wantReplay(receive(t, running), "k", "{}")
	other.wantRuns(0)

	t.Run("lost lease", func(t *testing.T) {
		cause := make(chan error, 1)
		b := newEnv(t, setup{keys: idempotency.Config{Lease: lease}, run: func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			cause <- context.Cause(r.Context())
		}})
		b.db.renew = func(context.Context, driver.KeyAttempt, time.Duration) (bool, error) { return false, nil }
		running := b.later("k", "{}")
		if err := receive(t, cause); !errors.Is(err, waybill.ErrLeaseLost) {
			t.Error(err)
		}
		receive(t, running)
	})
	t.Run("MaxExecution", func(t *testing.T) {
		b := newEnv(t, setup{keys: idempotency.Config{MaxExecution: 10 * time.Millisecond}, run: func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			w.WriteHeader(http.StatusGatewayTimeout)
		}})
		if a := b.post("k", "{}"); a.status != http.StatusGatewayTimeout {
			t.Errorf("%+v", a)
		}
	})
}

func TestStoreDown(t *testing.T) {
	down := func(context.Context, driver.KeyClaim) (store.KeyRecord, bool, error) {
		return store.KeyRecord{}, false, errors.New("connection refused: password=secret")
	}
	b := newEnv(t, setup{})
	b.db.claim = down
	a := b.post("k", "{}")
	b.want(a, http.StatusServiceUnavailable, "store-unavailable")
	if a.header.Get("Retry-After") == "" || strings.Contains(a.body, "secret") {
		t.Errorf("%+v", a)
	}
	b.wantRuns(0)

	var open atomic.Int64
	loose := newEnv(t, setup{cfg: httpkey.Config{FailOpen: true, FailedOpen: func(info httpkey.FailedOpenInfo) {
		if info.Operation == "POST /orders" && info.Err != nil {
			open.Add(1)
		}
	}}})
	loose.db.claim = down
	if a := loose.post("k", `{"a":1}`); a.body != "done" || a.replayed() {
		t.Errorf("%+v", a)
	}
	if loose.wantRuns(1); open.Load() != 1 {
		t.Errorf("it was counted %d times", open.Load())
	}
	// Only for an unavailable store: every other refusal stands.
	loose.db.claim = nil
	loose.post("k", `{"a":1}`)
	reused := loose.post("k", `{"a":2}`)
	loose.want(reused, http.StatusUnprocessableEntity, "key-reused")
	if after := reused.header.Values("Retry-After"); len(after) > 0 {
		t.Errorf("a refusal that is final has the header Retry-After: %v", after)
	}
	loose.wantRuns(2)

	quiet := newEnv(t, setup{cfg: httpkey.Config{FailOpen: true}})
	quiet.db.claim = down
	if a := quiet.post("k", "{}"); a.body != "done" {
		t.Errorf("without FailedOpen: %+v", a)
	}
}

// The operation of a request is the pattern of its route.
func TestOperationIsThePattern(t *testing.T) {
	operation := make(chan string, 1)
	b := newEnv(t, setup{
		cfg: httpkey.Config{FailOpen: true, FailedOpen: func(info httpkey.FailedOpenInfo) { operation <- info.Operation }},
		outer: func(next http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("POST /{what}", next)
			return mux
		},
	})
	b.db.claim = func(context.Context, driver.KeyClaim) (store.KeyRecord, bool, error) {
		return store.KeyRecord{}, false, errors.New("connection refused")
	}
	if a := b.post("k", "{}"); a.body != "done" {
		t.Fatalf("%+v", a)
	}
	if got := <-operation; got != "POST /{what}" {
		t.Errorf("the operation is %q", got)
	}
}

func TestCorruptRecord(t *testing.T) {
	b := newEnv(t, setup{})
	b.post("k", "{}")
	for name, damage := range map[string]func(r *store.KeyRecord){
		"a bit":     func(r *store.KeyRecord) { r.Result[len(r.Result)-1] ^= 1 },
		"cut off":   func(r *store.KeyRecord) { r.Result = r.Result[:len(r.Result)-1] },
		"empty":     func(r *store.KeyRecord) { r.Result = nil },
		"not ours":  func(r *store.KeyRecord) { r.Result, r.ContentType = []byte("{}"), "application/json" },
		"no type":   func(r *store.KeyRecord) { r.ContentType = "" },
		"too short": func(r *store.KeyRecord) { r.Result = []byte("abc") },
	} {
		b.db.claim = func(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
			r, ok, err := b.db.Keys.ClaimKey(ctx, c)
			r.Result = append([]byte(nil), r.Result...)
			damage(&r)
			return r, ok, err
		}
		a := b.post("k", "{}")
		if a.status != http.StatusInternalServerError || a.problem.Code != "record-corrupt" {
			t.Errorf("%s: %+v", name, a)
		}
	}
	b.wantRuns(1)
	b.db.claim = nil
	if !b.post("k", "{}").replayed() {
		t.Error("the record is gone")
	}
}

// TestUnknownState: an unknown state is not an unavailable store, so FailOpen
// does not run the request either.
func TestUnknownState(t *testing.T) {
	b := newEnv(t, setup{cfg: httpkey.Config{FailOpen: true, FailedOpen: func(info httpkey.FailedOpenInfo) { t.Error("it failed open:", info.Err) }}})
	b.post("k", "{}")
	b.db.claim = func(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
		r, ok, err := b.db.Keys.ClaimKey(ctx, c)
		r.State = 9
		return r, ok, err
	}
	if a := b.post("k", "{}"); a.status != http.StatusInternalServerError || a.problem.Code != "record-corrupt" {
		t.Errorf("%+v", a)
	}
	b.wantRuns(1)
}

func TestProblems(t *testing.T) {
	const secret = "secret-key-that-must-not-leak"
	b := newEnv(t, setup{cfg: httpkey.Config{DocsURL: "https://example.com/keys", Scope: callerScope}})
	principal := with("Principal", "alice")
	b.post(secret, `{"a":1}`, principal)
	for name, a := range map[string]answer{
		"key-reused":    b.post(secret, `{"a":2}`, principal),
		"key-invalid":   b.post(`"`+secret, "{}", principal),
		"key-missing":   b.post("", "{}", principal),
		"scope-refused": b.post(secret, "{}"),
	} {
		p := a.problem
		if p.Code != name || p.Type != "https://example.com/keys#"+name || p.Status != a.status || p.Title == "" || p.Detail == "" {
			t.Errorf("%s: %s", name, a.body)
		}
		if a.header.Get("Content-Type") != "application/problem+json" || a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", name, a.header)
		}
		if strings.Contains(a.body, secret) {
			t.Errorf("%s contains the key", name)
		}
	}
	if strings.Contains(b.log.String(), secret) || strings.Contains(b.record().Key, secret) {
		t.Error("the key is in the log, or in the store")
	}
}

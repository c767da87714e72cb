package idempotency_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type (
	tx   = *memstore.Tx
	keys = idempotency.Keys[tx]
)

var errBoom = errors.New("boom")

// db is a store with configurable failures, which also fails when a context has
// ended.
type db struct {
	driver.Complete[tx]
	claims, ends, finds, renews atomic.Int64
	// Each replaces the store's method, and may call it.
	commit func(next func() (driver.CommitInfo, error)) (driver.CommitInfo, error)
	claim  func(next func() (store.KeyRecord, bool, error)) (store.KeyRecord, bool, error)
	end    func(next func() (bool, error)) (bool, error)
	find   func(next func() (store.KeyRecord, bool, error)) (store.KeyRecord, bool, error)
	renew  func(next func() (bool, error)) (bool, error)
	stats  func() (store.KeyStats, error)
	purge  func(limit int) (int, error)
	prove  func() error
}

func (d *db) Begin(ctx context.Context, opts *sql.TxOptions) (driver.Session[tx], error) {
	s, err := d.Complete.Begin(ctx, opts)
	return &session{Session: s, db: d}, err
}

type session struct {
	driver.Session[tx]
	db *db
}

func (s *session) Commit(ctx context.Context, accepted []waybill.ID, check bool) (driver.CommitInfo, error) {
	next := func() (driver.CommitInfo, error) { return s.Session.Commit(ctx, accepted, check) }
	if s.db.commit == nil {
		return next()
	}
	end, err := s.db.commit(next)
	if err != nil && !errors.Is(err, waybill.ErrUncertain) {
		_ = s.Rollback(ctx) // as a failed commit does
	}
	return end, err
}

var errCollided = errors.New("could not serialize")

func (*db) IsRetryable(err error) bool { return errors.Is(err, errCollided) }

func (d *db) CheckOpen(context.Context, tx) error {
	if d.prove == nil {
		return nil
	}
	return d.prove()
}

func (d *db) ClaimKey(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
	d.claims.Add(1)
	next := func() (store.KeyRecord, bool, error) { return d.Complete.ClaimKey(ctx, c) }
	if d.claim == nil {
		return next()
	}
	return d.claim(next)
}

func (d *db) EndKey(ctx context.Context, a driver.KeyAttempt, e driver.KeyEnd) (bool, error) {
	d.ends.Add(1)
	if err := ctx.Err(); err != nil {
		return false, err
	}
	next := func() (bool, error) { return d.Complete.EndKey(ctx, a, e) }
	if d.end == nil {
		return next()
	}
	return d.end(next)
}

func (d *db) RenewKey(ctx context.Context, a driver.KeyAttempt, lease time.Duration) (bool, error) {
	d.renews.Add(1)
	next := func() (bool, error) { return d.Complete.RenewKey(ctx, a, lease) }
	if d.renew == nil {
		return next()
	}
	return d.renew(next)
}

func (d *db) FindKey(ctx context.Context, id store.KeyID) (store.KeyRecord, bool, error) {
	d.finds.Add(1)
	if err := ctx.Err(); err != nil {
		return store.KeyRecord{}, false, err
	}
	next := func() (store.KeyRecord, bool, error) { return d.Complete.FindKey(ctx, id) }
	if d.find == nil {
		return next()
	}
	return d.find(next)
}

func (d *db) KeyStats(ctx context.Context) (store.KeyStats, error) {
	if d.stats == nil {
		return d.Complete.KeyStats(ctx)
	}
	return d.stats()
}

func (d *db) PurgeKeys(ctx context.Context, limit int) (int, error) {
	if d.purge == nil {
		return d.Complete.PurgeKeys(ctx, limit)
	}
	return d.purge(limit)
}

func open(t *testing.T, cfg idempotency.Config) (*db, *keys) {
	t.Helper()
	s, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	d := &db{Complete: testroles.Complete[tx](s)}
	return d, another(t, d, cfg)
}

// another returns other keys over the same store, as in another process.
func another(t *testing.T, d *db, cfg idempotency.Config) *keys {
	t.Helper()
	k, err := idempotency.New[tx](testroles.Of[tx](d), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func hash(t *testing.T, v any) idempotency.Hash {
	t.Helper()
	h, err := idempotency.HashJSON(v)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func request(t *testing.T, key string) idempotency.Request {
	t.Helper()
	return idempotency.Request{TenantID: "acme", Operation: "ORDER_CREATE", Key: key, Hash: hash(t, "apples")}
}

func value(s string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return s, nil }
}

func never(t *testing.T) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		t.Error("the function was called")
		return "", nil
	}
}

func stateOf(t *testing.T, d *db, req idempotency.Request) (store.KeyRecord, bool) {
	t.Helper()
	rec, ok, err := d.Complete.FindKey(context.Background(), store.KeyID{Tenant: req.TenantID, Operation: req.Operation, Key: req.Key})
	if err != nil {
		t.Fatal(err)
	}
	return rec, ok
}

// inTx converts a function to the signature for DoTx.
func inTx[R any](fn func(context.Context) (R, error)) func(context.Context, tx) (R, error) {
	return func(ctx context.Context, _ tx) (R, error) { return fn(ctx) }
}

func TestEveryWrongFieldIsNamed(t *testing.T) {
	d, k := open(t, idempotency.Config{})
	long := strings.Repeat("x", 300)
	_, err := idempotency.Do(t.Context(), k, idempotency.Request{TenantID: long, Operation: "", Key: "a\x00", Hash: "md5", Retention: -1, WaitMax: -1}, never(t))
	for _, field := range []string{"TenantID", "Operation", "Key", "Hash", "Retention", "WaitMax"} {
		if err == nil || !strings.Contains(err.Error(), "Request."+field) {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
	for name, change := range map[string]func(r *idempotency.Request){
		"no key":           func(r *idempotency.Request) { r.Key = "" },
		"a long key":       func(r *idempotency.Request) { r.Key = long },
		"a long operation": func(r *idempotency.Request) { r.Operation = long },
		"no hash":          func(r *idempotency.Request) { r.Hash = "" },
		"not text":         func(r *idempotency.Request) { r.Key = "\xff" },
	} {
		req := request(t, "k")
		change(&req)
		if _, err := idempotency.DoTx(t.Context(), k, req, inTx(never(t))); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	_, err = idempotency.New[tx](testroles.Of[tx](d), idempotency.Config{Retention: -1, ResultRetention: -1, Lease: -1, PurgeBatchSize: -1})
	for _, field := range []string{"Retention", "ResultRetention", "Lease", "PurgeBatchSize"} {
		if err == nil || !strings.Contains(err.Error(), "Config."+field) {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
	if _, err := idempotency.New[tx](nil, idempotency.Config{}); err == nil {
		t.Error("a nil store is accepted")
	}
	_, err1 := idempotency.Do[int](t.Context(), k, request(t, "k"), nil)
	_, err2 := idempotency.DoTx[int](t.Context(), k, request(t, "k"), nil)
	_, err3 := k.DoBytes(t.Context(), request(t, "k"), nil)
	_, err4 := k.DoBytesTx(t.Context(), request(t, "k"), nil)
	if err1 == nil || err2 == nil || err3 == nil || err4 == nil {
		t.Error("a nil function is accepted")
	}
}

type named struct{ Name string }

func (n *named) PublicID() string { return n.Name }

func TestRefs(t *testing.T) {
	d, k := open(t, idempotency.Config{})
	run := func(key string, fn func(ctx context.Context) (*named, error)) string {
		t.Helper()
		req := request(t, key)
		first, err := idempotency.Do(t.Context(), k, req, fn)
		if err != nil {
			t.Fatal(err)
		}
		again, err := idempotency.Do(t.Context(), k, req, fn)
		if rec, _ := stateOf(t, d, req); err != nil || again.Ref != first.Ref || rec.Ref != first.Ref {
			t.Errorf("the first has %q, the second %q (%v), the record %q", first.Ref, again.Ref, err, rec.Ref)
		}
		return first.Ref
	}
	said := func(ref string, n *named) func(context.Context) (*named, error) {
		return func(ctx context.Context) (*named, error) { idempotency.SetRef(ctx, ref); return n, nil }
	}
	if got := run("own", said("said", &named{"own"})); got != "own" {
		t.Errorf("a result with a name: %q", got)
	}
	if got := run("said", said("said", &named{})); got != "said" {
		t.Errorf("one without: %q", got)
	}
	if got := run("nil", said("said", nil)); got != "said" {
		t.Errorf("a nil one: %q", got)
	}
	if got := run("long", said(strings.Repeat("x", 256), nil)); got != "" {
		t.Errorf("one that is too long: %q", got)
	}
	idempotency.SetRef(t.Context(), "no run") // no effect
	idempotency.MarkEffect(t.Context())
	idempotency.DontStore(t.Context())
}

// TestAResultThatIsNoJSON: a run must not be repeated because its result cannot
// be stored; a run in a transaction is rolled back.
func TestAResultThatIsNoJSON(t *testing.T) {
	var unkept []error
	d, k := open(t, idempotency.Config{Observe: observe.Hooks{KeyUnkept: func(info observe.KeyUnkeptInfo) { unkept = append(unkept, info.Err) }}})
	bad := func(ctx context.Context) (chan int, error) { idempotency.SetRef(ctx, "R"); return make(chan int), nil }
	req := request(t, "do")
	res, err := idempotency.Do(t.Context(), k, req, bad)
	if err != nil || res.Value == nil || res.Unkept == nil || len(unkept) != 1 {
		t.Errorf("got %+v, %v, reported %v", res, err, unkept)
	}
	_, err = idempotency.Do(t.Context(), k, req, bad)
	var gone *idempotency.NoResultError
	if !errors.As(err, &gone) || gone.Ref != "R" {
		t.Errorf("again: %v", err)
	}
	req = request(t, "tx")
	if _, err = idempotency.DoTx(t.Context(), k, req, inTx(bad)); err == nil {
		t.Error("it is committed")
	}
	if _, ok := stateOf(t, d, req); ok {
		t.Error("there is a record")
	}
}

// TestACorruptRecordRunsNothing: neither an answer that cannot be decoded, nor
// an unknown state.
func TestACorruptRecordRunsNothing(t *testing.T) {
	d, k := open(t, idempotency.Config{})
	req := request(t, "k")
	if _, err := idempotency.Do(t.Context(), k, req, value("text")); err != nil {
		t.Fatal(err)
	}
	res, err := idempotency.Do(t.Context(), k, req, func(context.Context) (int, error) { t.Error("it ran"); return 0, nil })
	if !errors.Is(err, idempotency.ErrCorrupt) || res.Replayed {
		t.Errorf("a text as a number: %+v, %v", res, err)
	}
	d.claim = func(next func() (store.KeyRecord, bool, error)) (store.KeyRecord, bool, error) {
		rec, ok, err := next()
		rec.State = 9
		return rec, ok, err
	}
	if _, err := idempotency.Do(t.Context(), k, req, never(t)); !errors.Is(err, idempotency.ErrCorrupt) || errors.Is(err, idempotency.ErrStore) {
		// Not an error of the store: a retry would not help.
		t.Errorf("an unknown state: %v", err)
	}
}

func TestHooks(t *testing.T) {
	type report struct{ what, err string }
	var got []report
	hooks := observe.Hooks{
		KeyRan: func(info observe.KeyRanInfo) {
			if info.Took < 0 || info.Operation != "ORDER_CREATE" {
				t.Error(info.Operation, info.Took)
			}
			text := ""
			if info.Err != nil {
				text = info.Err.Error()
			}
			got = append(got, report{"ran", text})
		},
		KeyRepeated: func(observe.KeyRepeatedInfo) { got = append(got, report{"repeated", ""}) },
		KeyRefused: func(info observe.KeyRefusedInfo) {
			text := "?"
			for _, known := range []error{waybill.ErrConflict, waybill.ErrInProgress} {
				if errors.Is(info.Err, known) {
					text = known.Error()
				}
			}
			got = append(got, report{"refused", text})
		},
	}
	var log bytes.Buffer
	d, k := open(t, idempotency.Config{Observe: hooks, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for _, way := range []string{"Do", "DoTx"} {
		got = nil
		req := request(t, "my-secret-key "+way)
		do := func(req idempotency.Request, fn func(context.Context) (string, error)) {
			if way == "Do" {
				_, _ = idempotency.Do(t.Context(), k, req, fn)
			} else {
				_, _ = idempotency.DoTx(t.Context(), k, req, inTx(fn))
			}
		}
		do(req, func(context.Context) (string, error) { return "", errBoom })
		do(req, func(context.Context) (string, error) {
			do(req, never(t))
			return "", nil
		})
		do(req, never(t))
		other := req
		other.Hash = hash(t, "pears")
		do(other, never(t))
		func() {
			defer func() { _ = recover() }()
			do(request(t, "panic"+way), func(context.Context) (string, error) { panic(1) })
		}()
		want := []report{
			{"ran", "boom"},
			{"refused", waybill.ErrInProgress.Error()},
			{"ran", ""},
			{"repeated", ""},
			{"refused", waybill.ErrConflict.Error()},
			{"ran", "the function panicked or ended its goroutine"},
		}
		if len(got) != len(want) {
			t.Fatalf("%s: reported %v, want %v", way, got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: reported %v, want %v", way, got[i], want[i])
			}
		}
	}
	// Logs do not contain keys.
	d.end = func(func() (bool, error)) (bool, error) { return false, errBoom }
	_, _ = idempotency.Do(t.Context(), k, request(t, "my-secret-key"), value(""))
	if !strings.Contains(log.String(), "sha256:") || strings.Contains(log.String(), "my-secret-key") {
		t.Errorf("the log: %s", log.String())
	}
}

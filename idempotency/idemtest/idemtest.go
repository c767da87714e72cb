// Package idemtest is the test suite of idempotency keys over a store: the
// guarantees of package idempotency. Each store's tests run it, with the
// harness of its conformance suite.
package idemtest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/drivertest"
)

// check is one test of the suite.
type check[T any] struct {
	name string
	// concurrent reports that the check needs two concurrent write
	// transactions.
	concurrent bool
	run        func(b *env[T])
}

// Run runs the suite, one subtest of t per check.
func Run[T any](t *testing.T, h drivertest.Harness[T]) {
	t.Helper()
	for _, c := range slices.Concat(answerChecks[T](), failChecks[T](), leaseChecks[T](), txChecks[T](), phaseChecks[T]()) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.concurrent && !h.Features.LateCommits {
				t.Skip("this store has one writer at a time")
			}
			c.run(newEnv(t, h))
		})
	}
}

// bed holds keys over a separate store for one check.
type env[T any] struct {
	*testing.T
	drivertest.Instance[T]
	features drivertest.Features
	db       driver.Keys[T]
	box      *outbox.Outbox[T]
	keys     *idempotency.Keys[T]
}

func newEnv[T any](t *testing.T, h drivertest.Harness[T]) *env[T] {
	t.Helper()
	b := &env[T]{T: t, Instance: h.Open(t), features: h.Features}
	b.db = b.DB.Keys
	var err error
	if b.box, err = outbox.New[T](b.DB, outbox.Config{}); err != nil {
		t.Fatal(err)
	}
	b.keys = b.open(b.db, idempotency.Config{})
	return b
}

// open returns other keys over the same tables, as in another process: they
// share only the store.
func (b *env[T]) open(db driver.Keys[T], cfg idempotency.Config) *idempotency.Keys[T] {
	b.Helper()
	k, err := idempotency.New(driver.Roles[T]{Keys: db}, cfg)
	if err != nil {
		b.Fatal(err)
	}
	return k
}

// hash returns the hash of a request with this content.
func hash(what string) idempotency.Hash {
	h, err := idempotency.HashJSON(what)
	if err != nil {
		panic(err)
	}
	return h
}

func request(key string) idempotency.Request {
	return idempotency.Request{TenantID: "acme", Operation: "ORDER_CREATE", Key: key, Hash: hash("two apples")}
}

// order is a result with a PublicID.
type order struct {
	ID    string
	Total int
	Note  string `json:"note,omitempty"`
}

func (o order) PublicID() string { return o.ID }

// making returns a function that creates an order and counts its calls.
func making(calls *int, id string) func(context.Context) (order, error) {
	return func(context.Context) (order, error) {
		*calls++
		return order{ID: id, Total: 100 + *calls}, nil
	}
}

func never[R any](b interface{ Errorf(string, ...any) }) func(context.Context) (R, error) {
	return func(context.Context) (R, error) {
		b.Errorf("the function was called")
		var none R
		return none, nil
	}
}

// doFunc runs fn under a key, with Do or DoTx.
type doFunc[T any] func(
	ctx context.Context, k *idempotency.Keys[T], req idempotency.Request, fn func(context.Context) (order, error),
) (idempotency.Result[order], error)

// ways are Do and DoTx; each calls fn once.
func (b *env[T]) ways() map[string]doFunc[T] {
	return map[string]doFunc[T]{
		"Do": idempotency.Do[order, T],
		"DoTx": func(
			ctx context.Context, k *idempotency.Keys[T], req idempotency.Request, fn func(context.Context) (order, error),
		) (idempotency.Result[order], error) {
			return idempotency.DoTx(ctx, k, req, func(ctx context.Context, _ T) (order, error) { return fn(ctx) })
		},
	}
}

// eachWay runs a test for Do and for DoTx.
func (b *env[T]) eachWay(test func(b *env[T], way string, do doFunc[T])) {
	for name, do := range b.ways() {
		b.Run(name, func(t *testing.T) {
			inner := *b
			inner.T = t
			test(&inner, name, do)
		})
	}
}

// record returns the record of a request.
func (b *env[T]) record(req idempotency.Request) store.KeyRecord {
	b.Helper()
	rec, ok, err := b.keys.Find(context.Background(), req.TenantID, req.Operation, req.Key)
	if err != nil || !ok {
		b.Fatalf("the record of the key: %v, %v", ok, err)
	}
	return rec
}

func (b *env[T]) wantState(req idempotency.Request, want store.KeyState) store.KeyRecord {
	b.Helper()
	rec := b.record(req)
	if rec.State != want {
		b.Errorf("the record is %v, want %v: %+v", rec.State, want, rec)
	}
	return rec
}

func (b *env[T]) wantNone(req idempotency.Request) {
	b.Helper()
	if rec, ok, err := b.keys.Find(context.Background(), req.TenantID, req.Operation, req.Key); err != nil || ok {
		b.Errorf("there is a record: %+v, %v", rec, err)
	}
}

// expired waits until a record has expired.
func (b *env[T]) expired(req idempotency.Request) {
	b.Helper()
	b.until("the record has expired", func() bool {
		_, ok, err := b.keys.Find(context.Background(), req.TenantID, req.Operation, req.Key)
		if err != nil {
			b.Fatal(err)
		}
		return !ok
	})
}

// until waits for a condition.
func (b *env[T]) until(what string, ok func() bool) {
	b.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatal("timeout waiting for: " + what)
		}
	}
}

// dead claims a key as a process that then dies.
func (b *env[T]) dead(req idempotency.Request, lease time.Duration) driver.KeyAttempt {
	b.Helper()
	id := store.KeyID{Tenant: req.TenantID, Operation: req.Operation, Key: req.Key}
	rec, taken, err := b.db.ClaimKey(context.Background(), driver.KeyClaim{KeyID: id, Hash: string(req.Hash), Owner: waybill.NewID(), Lease: lease})
	if err != nil || !taken {
		b.Fatalf("the claim of a process that will die: %v, %v", taken, err)
	}
	return driver.KeyAttempt{KeyID: id, Owner: rec.Owner, Fence: rec.Fence}
}

// effect is the effect of functions in a transaction: an event of that name in
// the outbox, and a row if the store has tables.
func (b *env[T]) effect(ctx context.Context, tx T, name string) error {
	ev := waybill.NewEvent("Effect", 0)
	ev.AggregateType, ev.AggregateID = "effect", name
	var err error
	if b.Insert != nil {
		err = b.Insert(ctx, tx, name)
	}
	return errors.Join(err, b.box.Write(ctx, tx, ev))
}

func (b *env[T]) wantEffects(name string, want int) {
	b.Helper()
	n, err := b.DB.OutboxAdmin.Count(context.Background(), store.Ready, store.Filter{AggregateType: "effect", AggregateID: name})
	if err != nil {
		b.Fatal(err)
	}
	if int(n) != want {
		b.Errorf("%d events of %s, want %d", n, name, want)
	}
	if b.Count == nil {
		return
	}
	rows, err := b.Count(context.Background(), name)
	if err != nil {
		b.Fatal(err)
	}
	if rows != want {
		b.Errorf("%d rows of %s, want %d", rows, name, want)
	}
}

// wantSecret checks that an error does not contain the key.
func (b *env[T]) wantSecret(err error, key string) {
	b.Helper()
	if err != nil && strings.Contains(err.Error(), key) {
		b.Errorf("the error contains the key: %v", err)
	}
}

var errBoom = errors.New("boom")

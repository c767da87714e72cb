package drivertest

import (
	"context"
	"database/sql"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// recorder is a tb that records failures.
type recorder struct {
	mu       sync.Mutex
	failures []string
	panicked string
}

func (r *recorder) Helper()             {}
func (r *recorder) Logf(string, ...any) {}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skipf(string, ...any) { runtime.Goexit() }

type memTx = *memstore.Tx

// complete is a store with all roles in one type.
type complete interface {
	driver.Complete[memTx]
	driver.Backlogs
	driver.Restorer
	driver.Audit
	driver.Causes
	driver.Rollups
	driver.Applied
}

// tamper breaks a store.
type tamper func(db complete) complete

// try runs a check on a fresh, tampered memstore.
func try(t *testing.T, c check[memTx], worse tamper) *recorder {
	t.Helper()
	db, err := memstore.New(memstore.Config{Lanes: 8})
	if err != nil {
		t.Fatal(err)
	}
	worsened := db.Driver().Relay.(complete)
	if worse != nil {
		worsened = worse(worsened)
	}
	in := instance(db, driver.RolesOf(worsened))
	features := Features{SavepointAPI: true, ForeignTx: true}
	if c.lacks(features, in.DB) != "" {
		return &recorder{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	rec := &recorder{}
	b, err := newEnv(ctx, in, features, 300*time.Millisecond)
	if err != nil {
		rec.Errorf("%v", err)
		return rec
	}
	b.short = true
	b.begin("t", c.suite)
	done := make(chan struct{})
	go func() { // Fatalf ends the goroutine
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				rec.panicked = fmt.Sprintf("%v\n%s", p, debug.Stack())
			}
		}()
		c.run(ctx, rec, b)
	}()
	<-done
	b.end()
	return rec
}

// instance returns an instance over a memstore, with these roles.
func instance(db *memstore.Store[memTx], roles driver.Roles[memTx]) Instance[memTx] {
	return Instance[memTx]{
		DB: roles,
		Begin: func(ctx context.Context) (Foreign[memTx], error) {
			tx := memstore.BeginTx(db)
			return Foreign[memTx]{
				Tx: tx, Commit: func() error { return tx.Commit(ctx) }, Rollback: func() error { return tx.Rollback(ctx) },
			}, nil
		},
		Savepoint: func(ctx context.Context, tx memTx, fn func(memTx) error) error {
			sp, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			if err := fn(sp); err != nil {
				_ = sp.Rollback(ctx)
				return err
			}
			return sp.Commit(ctx)
		},
	}
}

// worse is a store in which single methods can be replaced.
type worse struct {
	complete
	begin     func(ctx context.Context, opts *sql.TxOptions) (driver.Session[memTx], error)
	append    func(ctx context.Context, tx memTx, evs []waybill.Event) ([]driver.AppendResult, error)
	committed func(ctx context.Context, id waybill.ID) (bool, error)
	local     func() *driver.Hub
	heartbeat func(ctx context.Context, n store.Node, lease time.Duration) (store.Membership, error)
	acquire   func(ctx context.Context, n store.Node, lanes []int, window int) ([]driver.Lease, error)
	release   func(ctx context.Context, leases []driver.Lease, dirty bool) error
	leave     func(ctx context.Context, n store.Node) error
	fetch     func(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error)
	sweep     func(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error)
	load      func(ctx context.Context, keys []store.Key) (driver.Page, error)
	due       func(ctx context.Context, lanes []int, limit int) (driver.Page, error)
	settle    func(ctx context.Context, s driver.Settlement) (driver.Settled, error)
	worseOperator
	worseRegistry
}

func (w *worse) Begin(ctx context.Context, opts *sql.TxOptions) (driver.Session[memTx], error) {
	if w.begin != nil {
		return w.begin(ctx, opts)
	}
	return w.complete.Begin(ctx, opts)
}

func (w *worse) Append(ctx context.Context, tx memTx, evs []waybill.Event) ([]driver.AppendResult, error) {
	if w.append != nil {
		return w.append(ctx, tx, evs)
	}
	return w.complete.Append(ctx, tx, evs)
}

func (w *worse) Committed(ctx context.Context, id waybill.ID) (bool, error) {
	if w.committed != nil {
		return w.committed(ctx, id)
	}
	return w.complete.Committed(ctx, id)
}

func (w *worse) Local() *driver.Hub {
	if w.local != nil {
		return w.local()
	}
	return w.complete.Local()
}

func (w *worse) Heartbeat(ctx context.Context, n store.Node, lease time.Duration) (store.Membership, error) {
	if w.heartbeat != nil {
		return w.heartbeat(ctx, n, lease)
	}
	return w.complete.Heartbeat(ctx, n, lease)
}

func (w *worse) Acquire(ctx context.Context, n store.Node, lanes []int, window int) ([]driver.Lease, error) {
	if w.acquire != nil {
		return w.acquire(ctx, n, lanes, window)
	}
	return w.complete.Acquire(ctx, n, lanes, window)
}

func (w *worse) Release(ctx context.Context, leases []driver.Lease, dirty bool) error {
	if w.release != nil {
		return w.release(ctx, leases, dirty)
	}
	return w.complete.Release(ctx, leases, dirty)
}

func (w *worse) Leave(ctx context.Context, n store.Node) error {
	if w.leave != nil {
		return w.leave(ctx, n)
	}
	return w.complete.Leave(ctx, n)
}

func (w *worse) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	if w.fetch != nil {
		return w.fetch(ctx, from, limit)
	}
	return w.complete.Fetch(ctx, from, limit)
}

func (w *worse) Sweep(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
	if w.sweep != nil {
		return w.sweep(ctx, from, limit)
	}
	return w.complete.Sweep(ctx, from, limit)
}

func (w *worse) Load(ctx context.Context, keys []store.Key) (driver.Page, error) {
	if w.load != nil {
		return w.load(ctx, keys)
	}
	return w.complete.Load(ctx, keys)
}

func (w *worse) Due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	if w.due != nil {
		return w.due(ctx, lanes, limit)
	}
	return w.complete.Due(ctx, lanes, limit)
}

func (w *worse) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	if w.settle != nil {
		return w.settle(ctx, s)
	}
	return w.complete.Settle(ctx, s)
}

// worseSession is a session in which Commit and Rollback can be replaced.
type worseSession struct {
	driver.Session[memTx]
	commit   func(ctx context.Context, accepted []waybill.ID, check bool) (driver.CommitInfo, error)
	rollback func(ctx context.Context) error
}

func (s *worseSession) Commit(ctx context.Context, accepted []waybill.ID, check bool) (driver.CommitInfo, error) {
	if s.commit != nil {
		return s.commit(ctx, accepted, check)
	}
	return s.Session.Commit(ctx, accepted, check)
}

func (s *worseSession) Rollback(ctx context.Context) error {
	if s.rollback != nil {
		return s.rollback(ctx)
	}
	return s.Session.Rollback(ctx)
}

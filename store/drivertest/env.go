package drivertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// tb is the part of *testing.T that a check needs. The suite's own tests run
// checks against intentionally broken stores, and record their failures.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Skipf(format string, args ...any)
}

// check is one test of a behavior.
type check[T any] struct {
	// row is the name of the behavior.
	row  string
	name string
	// suite is the suite that runs the check.
	suite suiteID
	// needs is the feature that the check requires, roles the roles beyond
	// those of its suite.
	needs feature
	roles []string
	// fresh requires unused tables: because the check needs all of them, or
	// leaves traces.
	fresh bool
	// large means that the check writes thousands of rows or tens of megabytes.
	large bool
	run   func(ctx context.Context, t tb, b *env[T])
}

// env is the environment of one check: an instance and shared helpers.
type env[T any] struct {
	Instance[T]
	features Features
	// lanes is the number of lanes.
	lanes int
	// beginner begins the transactions of the check: the role of its suite.
	beginner driver.Beginner[T]
	// patience is the maximum time for a condition to become true.
	patience time.Duration
	// short requests smaller sizes.
	short bool
	// tag is part of every name in this check, so that checks on shared tables
	// do not conflict.
	tag string
	// written is called with the events that write has committed. noHistory
	// means that delivered events have no record. Both are for checks of a
	// backlog.
	written   func(ctx context.Context, t tb, evs ...waybill.Event)
	noHistory bool
	count     atomic.Int64
	cleanups  []func()
}

// newEnv determines the properties of an instance.
func newEnv[T any](ctx context.Context, in Instance[T], features Features, patience time.Duration) (*env[T], error) {
	b := &env[T]{Instance: in, features: features, lanes: max(in.Lanes, 1), patience: patience}
	if in.DB.Relay == nil {
		return b, nil
	}
	probe := store.Node{ID: waybill.NewID(), Relay: relayName}
	m, err := in.DB.Relay.Heartbeat(ctx, probe, time.Minute)
	if err != nil {
		return nil, fmt.Errorf("drivertest: heartbeat on fresh tables: %w", err)
	}
	if err := in.DB.Relay.Leave(ctx, probe); err != nil {
		return nil, fmt.Errorf("drivertest: leave: %w", err)
	}
	if len(m.Lanes) == 0 {
		return nil, errors.New("drivertest: fresh tables have no lanes")
	}
	b.lanes = len(m.Lanes)
	return b, nil
}

// begin prepares the environment for a check of a suite.
func (b *env[T]) begin(tag string, suite suiteID) {
	b.tag = tag
	b.cleanups = nil
	switch suite {
	case inboxSuite:
		b.beginner = b.DB.Inbox
	case keysSuite:
		b.beginner = b.DB.Keys
	case jobsSuite:
		b.beginner = b.DB.Jobs
	default:
		b.beginner = b.DB.Outbox
	}
}

// end undoes the setup of the check.
func (b *env[T]) end() {
	for _, fn := range slices.Backward(b.cleanups) {
		fn()
	}
	b.cleanups = nil
}

// later runs fn at the end of the check.
func (b *env[T]) later(fn func()) { b.cleanups = append(b.cleanups, fn) }

// cleanupTimeout bounds the cleanup after a check, whose own context may be
// canceled by then.
const cleanupTimeout = 30 * time.Second

// laterDo runs fn at the end of the check, with its own context; the error is
// ignored.
func (b *env[T]) laterDo(fn func(ctx context.Context) error) {
	b.later(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		_ = fn(ctx)
	})
}

// clear delivers all ready and due events, so that the next check finds empty
// tables.
func (b *env[T]) clear(ctx context.Context) error {
	n := store.Node{ID: waybill.NewID(), Relay: relayName}
	if _, err := b.DB.Relay.Heartbeat(ctx, n, time.Minute); err != nil {
		return err
	}
	defer func() { _ = b.DB.Relay.Leave(ctx, n) }()
	leases, err := b.DB.Relay.Acquire(ctx, n, b.allLanes(), 1)
	if err != nil {
		return err
	}
	if len(leases) != b.lanes {
		return fmt.Errorf("drivertest: only %d of %d lanes are free after a check", len(leases), b.lanes)
	}
	for {
		ready, err := b.DB.Relay.Fetch(ctx, b.cursors(), 500)
		if err != nil {
			return err
		}
		due, err := b.DB.Relay.Due(ctx, b.allLanes(), 500)
		if err != nil {
			return err
		}
		rows := append(ready.Rows, due.Rows...)
		if len(rows) == 0 {
			return b.DB.Relay.Release(ctx, leases, false)
		}
		settled, err := b.DB.Relay.Settle(ctx, driver.Settlement{Leases: leases, Done: results(rows), History: true})
		if err != nil {
			return err
		}
		if len(settled.Moved) == 0 {
			return errors.New("drivertest: rows that are ready cannot be settled")
		}
	}
}

// unique returns a name that no other check uses.
func (b *env[T]) unique(name string) string { return b.tag + "." + name }

// event returns an event of the aggregate with that name in this check ("":
// unordered), with its own id.
func (b *env[T]) event(aggregate string) waybill.Event {
	ev := waybill.NewEvent("thing.happened", map[string]int64{"n": b.count.Add(1)})
	ev.ID = waybill.NewID()
	if aggregate != "" {
		ev.AggregateType, ev.AggregateID = "thing", b.unique(aggregate)
	}
	return ev
}

// events returns n events of one aggregate.
func (b *env[T]) events(n int, aggregate string) []waybill.Event {
	evs := make([]waybill.Event, n)
	for i := range evs {
		evs[i] = b.event(aggregate)
	}
	return evs
}

// keyed returns an event with a dedup key of this check.
func (b *env[T]) keyed(aggregate, key string) waybill.Event {
	ev := b.event(aggregate)
	ev.DedupKey = b.unique(key)
	return ev
}

// box returns an outbox over the instance's store.
func (b *env[T]) box(t tb, hooks ...outbox.Hook) *outbox.Outbox[T] {
	t.Helper()
	return boxOver(t, b.DB.Outbox, outbox.Config{Hooks: hooks})
}

func boxOver[T any](t tb, db driver.Outbox[T], cfg outbox.Config) *outbox.Outbox[T] {
	t.Helper()
	box, err := outbox.New(driver.Roles[T]{Outbox: db}, cfg)
	if err != nil {
		t.Fatalf("outbox.New: %v", err)
	}
	return box
}

// write commits events in one transaction.
func (b *env[T]) write(ctx context.Context, t tb, evs ...waybill.Event) {
	t.Helper()
	box := b.box(t)
	if err := box.InTx(ctx, func(ctx context.Context, tx T) error { return box.Write(ctx, tx, evs...) }); err != nil {
		t.Fatalf("writing %d events: %v", len(evs), err)
	}
	if b.written != nil {
		b.written(ctx, t, evs...)
	}
}

// second returns another store value over the same tables, like that of another
// process, if supported.
func (b *env[T]) second() driver.Roles[T] {
	if b.features.SecondStore {
		return b.Second()
	}
	return b.DB
}

// insert adds a row to the business table, if there is one.
func (b *env[T]) insert(ctx context.Context, tx T, note string) error {
	if b.Insert == nil {
		return nil
	}
	return b.Insert(ctx, tx, b.unique(note))
}

// wantNotes asserts how many business rows with the note are committed.
func (b *env[T]) wantNotes(ctx context.Context, t tb, note string, want int) {
	t.Helper()
	if b.Count == nil {
		return
	}
	got, err := b.Count(ctx, b.unique(note))
	if err != nil {
		t.Fatalf("counting business rows: %v", err)
	}
	if got != want {
		t.Errorf("%d business rows are committed, want %d", got, want)
	}
}

// foreign begins a transaction outside the store. It is rolled back at the end
// of the check at the latest.
func (b *env[T]) foreign(ctx context.Context, t tb) Foreign[T] {
	t.Helper()
	f, err := b.Begin(ctx)
	if err != nil {
		t.Fatalf("beginning a foreign transaction: %v", err)
	}
	b.later(func() { _ = f.Rollback() })
	return f
}

// await polls until the condition is true.
func (b *env[T]) await(ctx context.Context, t tb, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waited %v in vain: %s", b.patience, what)
		}
	}
}

// ear records the commits that a hub publishes.
type ear struct {
	mu      sync.Mutex
	commits []driver.Commit
}

// listen attaches an ear to the store's hub until the end of the check.
func (b *env[T]) listen(db driver.Local) *ear {
	e := &ear{}
	b.later(db.Local().Listen(func(c driver.Commit) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.commits = append(e.commits, c)
	}))
	return e
}

func (e *ear) heard() []driver.Commit {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.commits)
}

// record is a hook that records its calls.
type record struct {
	mu                           sync.Mutex
	written, committed, rolledBk [][]waybill.ID
}

func (r *record) hook() outbox.Hook {
	note := func(list *[][]waybill.ID, evs []waybill.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		*list = append(*list, idsOf(evs))
	}
	return outbox.Hook{
		AfterWrite:    func(_ context.Context, info outbox.AfterWriteInfo) { note(&r.written, info.Events) },
		AfterCommit:   func(_ context.Context, info outbox.AfterCommitInfo) { note(&r.committed, info.Events) },
		AfterRollback: func(_ context.Context, info outbox.AfterRollbackInfo) { note(&r.rolledBk, info.Events) },
	}
}

// want asserts the batches of the AfterCommit and AfterRollback hooks, and the
// events of the AfterWrite hook, in any batches.
func (r *record) want(t tb, written []waybill.Event, committed, rolledBack [][]waybill.Event) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if got, want := slices.Concat(r.written...), idsOf(written); !slices.Equal(got, want) {
		t.Errorf("AfterWrite hooks saw %v, want %v", got, want)
	}
	wantBatches(t, "AfterCommit", r.committed, committed)
	wantBatches(t, "AfterRollback", r.rolledBk, rolledBack)
}

func wantBatches(t tb, name string, got [][]waybill.ID, want [][]waybill.Event) {
	t.Helper()
	ids := make([][]waybill.ID, len(want))
	for i, batch := range want {
		ids[i] = idsOf(batch)
	}
	if !slices.EqualFunc(got, ids, slices.Equal[[]waybill.ID]) {
		t.Errorf("%s hooks saw the batches %v, want %v", name, got, ids)
	}
}

func batch(evs ...waybill.Event) [][]waybill.Event { return [][]waybill.Event{evs} }

func idsOf(evs []waybill.Event) []waybill.ID {
	ids := make([]waybill.ID, len(evs))
	for i, ev := range evs {
		ids[i] = ev.ID
	}
	return ids
}

// lines is the target of a slog handler that can be read concurrently.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// nilTx returns the zero transaction, and whether it is nil.
func nilTx[T any]() (T, bool) {
	var zero T
	if any(zero) == nil {
		return zero, true
	}
	return zero, reflect.ValueOf(zero).Kind() == reflect.Pointer
}

// errBoom is an error of the caller.
var errBoom = errors.New("drivertest: boom")

// Package reconciletest is the conformance suite of reconciliation over a
// store, including the jobs over Waybill's own tables. Each store's tests run
// it, with the harness of the store's conformance suite.
package reconciletest

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/drivertest"
)

// check is one test of the suite.
type check[T any] struct {
	name string
	run  func(b *env[T])
}

// Run runs the suite, as subtests of t.
func Run[T any](t *testing.T, h drivertest.Harness[T]) {
	t.Helper()
	for _, c := range slices.Concat(sendChecks[T](), leaseChecks[T](), builtinChecks[T]()) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(newEnv(t, h))
		})
	}
}

// env is a database of its own for one check, with a source of truth.
type env[T any] struct {
	*testing.T
	drivertest.Instance[T]
	harness drivertest.Harness[T]
	box     *outbox.Outbox[T]
	truth   truth
}

func newEnv[T any](t *testing.T, h drivertest.Harness[T]) *env[T] {
	t.Helper()
	b := &env[T]{T: t, harness: h}
	b.reopen()
	return b
}

// reopen replaces the database by an empty one, as after the restart of a
// memory queue or the failover to a lagging standby.
func (b *env[T]) reopen() {
	b.Helper()
	b.Instance = b.harness.Open(b.T)
	var err error
	if b.box, err = outbox.New[T](b.DB, outbox.Config{}); err != nil {
		b.Fatal(err)
	}
}

// nodes returns the store as n processes would open it, where that is possible.
func (b *env[T]) nodes(n int) []driver.Roles[T] {
	out := []driver.Roles[T]{b.DB}
	for len(out) < n {
		db := b.DB
		if b.harness.Features.SecondStore {
			db = b.Second()
		}
		out = append(out, db)
	}
	return out
}

// new returns a reconciler.
func (b *env[T]) new(db driver.Roles[T], cfg reconcile.Config, jobs ...reconcile.Job) *reconcile.Reconciler[T] {
	b.Helper()
	r, err := reconcile.New[T](db, jobs, cfg)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// once runs a job that must find, send and skip the given numbers of events.
func (b *env[T]) once(r *reconcile.Reconciler[T], job string, found, sent, skipped int) reconcile.Report {
	b.Helper()
	rep, err := r.RunOnce(context.Background(), job)
	if err != nil || rep.Found != found || rep.Sent != sent || rep.Skipped != skipped || rep.Failed != 0 {
		b.Errorf("the run: %+v, %v; want %d found, %d sent, %d skipped", rep, err, found, sent, skipped)
	}
	return rep
}

// pending returns all events that wait for their first delivery.
func (b *env[T]) pending() []store.Record {
	b.Helper()
	list, err := b.DB.OutboxAdmin.List(context.Background(), store.Ready, store.Filter{}, 0, 1000)
	if err != nil {
		b.Fatal(err)
	}
	return list
}

// write commits events.
func (b *env[T]) write(evs ...waybill.Event) {
	b.Helper()
	err := b.box.InTx(context.Background(), func(ctx context.Context, tx T) error { return b.box.Write(ctx, tx, evs...) })
	if err != nil {
		b.Fatal(err)
	}
}

// deliver runs a relay until the test ends or stop is called.
func (b *env[T]) deliver(sink waybill.Sink) (stop func()) {
	b.Helper()
	r, err := relay.New(b.DB, sink, relay.Config{PollInterval: 10 * time.Millisecond})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(stop)
	return stop
}

// await waits for a condition.
func (b *env[T]) await(what string, ok func() bool) {
	b.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			b.Fatalf("waited in vain: %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// group returns a consumer group.
func (b *env[T]) group(o inbox.Options) *inbox.Group[T] {
	b.Helper()
	in, err := inbox.New[T](b.DB, inbox.Config{})
	if err != nil {
		b.Fatal(err)
	}
	return in.MustGroup("GROUP", o)
}

// truth is the business table: what happened, when, and which rows have left a
// trace.
type truth struct {
	mu    sync.Mutex
	rows  []row
	looks int
}

type row struct {
	id    string
	at    time.Time
	trace bool
}

// add records that a row was written the given time ago.
func (t *truth) add(id string, ago time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, row{id: id, at: time.Now().Add(-ago)})
}

// looked returns the number of queries of the table.
func (t *truth) looked() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.looks
}

// trace records that a row had its effect.
func (t *truth) trace(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.rows {
		t.rows[i].trace = t.rows[i].trace || t.rows[i].id == id
	}
}

// find yields the rows of the window that have left no trace.
func (t *truth) find(_ context.Context, w reconcile.Window, missing func(waybill.Event) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.looks++
	for _, r := range t.rows {
		if !r.trace && w.Contains(r.at) {
			if err := missing(happened(r.id)); err != nil {
				return err
			}
		}
	}
	return nil
}

// job returns a job over the truth.
func (t *truth) job() reconcile.Job {
	return reconcile.Job{Name: "job", LookBack: time.Hour, Find: t.find}
}

// happened returns the event of a row. It has no dedup key: jobs give it its
// natural one.
func happened(id string) waybill.Event {
	ev := waybill.NewEvent("Happened", map[string]string{"id": id})
	ev.AggregateType, ev.AggregateID = "row", id
	return ev
}

func named(n int) string { return "row-" + strconv.Itoa(n) }

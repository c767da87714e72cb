// Package relaytest is the suite that checks the guarantees of a relay over a
// store. Each store's tests run it after the store's own conformance suite,
// with the same harness.
//
// The processes of these tests are in one program. Tests with processes that
// are killed or stopped are in internal/e2e/process.
package relaytest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/relay/internal/ledger"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/drivertest"
)

// A forbidden change of an event's state panics in every test of a relay.
func init() { ledger.Strict = true }

// patience is how long a condition may take without a change of the outbox:
// long enough for a loaded machine.
const patience = 40 * time.Second

// check is one check of the suite.
type check[T any] struct {
	name  string
	needs func(drivertest.Features) bool
	why   string // what a store without the feature cannot show
	run   func(b *env[T])
}

// Run runs the suite, as subtests of t that are named after the checks.
func Run[T any](t *testing.T, h drivertest.Harness[T]) {
	t.Helper()
	for _, c := range checks[T]() {
		t.Run(c.name, func(t *testing.T) {
			// SQLite works in this process and does not wait for a server:
			// concurrent checks would only slow each other down.
			if !h.Features.OneWriter {
				t.Parallel()
			}
			if c.needs != nil && !c.needs(h.Features) {
				if allowed, known := lacking[h.Name]; known && !slices.Contains(allowed, c.name) {
					t.Errorf("%s must show this", h.Name)
				}
				t.Skip("not shown by this store: " + c.why)
			}
			c.run(newEnv(t, h))
		})
	}
}

// lacking lists the checks that the stores of this project may skip: memstore
// has no SQL, and neither memstore nor SQLite, with its one writer, can have a
// row appear below one that was read.
var lacking = map[string][]string{
	"memstore":    {"late_commit", "late_commit_of_a_held_aggregate", "many_late_commits", "plain_sql"},
	"sqlitestore": {"late_commit", "late_commit_of_a_held_aggregate", "many_late_commits"},
	"mysqlstore":  nil,
	"pgstore":     nil,
	"pgstore/sql": nil,
}

func checks[T any]() []check[T] {
	return slices.Concat(failChecks[T](), handlerChecks[T](), hotChecks[T](), orderChecks[T](), downChecks[T](), stopChecks[T](), suspectChecks[T](),
		lateChecks[T](), deadChecks[T](), sinkChecks[T](), destinationChecks[T](), tenantChecks[T]())
}

// env is the environment of one check, with an outbox of its own.
type env[T any] struct {
	*testing.T
	drivertest.Instance[T]
	features drivertest.Features
	box      *outbox.Outbox[T]
	ops      *admin.Outbox
	logs     *logs
	// reads counts as progress while a test waits for reads.
	reads atomic.Int64
}

func newEnv[T any](t *testing.T, h drivertest.Harness[T]) *env[T] {
	t.Helper()
	b := &env[T]{T: t, Instance: h.Open(t), features: h.Features, logs: &logs{}}
	var err error
	if b.box, err = outbox.New[T](b.DB, outbox.Config{}); err != nil {
		t.Fatal(err)
	}
	if b.ops, err = admin.NewOutbox(b.DB, admin.Config{}); err != nil {
		t.Fatal(err)
	}
	return b
}

// second returns another store over the same tables, as another process would
// have; the same store if there is none.
func (b *env[T]) second() driver.Roles[T] {
	if b.features.SecondStore {
		return b.Second()
	}
	return b.DB
}

// write commits events in one transaction.
func (b *env[T]) write(evs ...waybill.Event) {
	b.Helper()
	if err := b.tryWrite(evs...); err != nil {
		b.Fatalf("write: %v", err)
	}
}

func (b *env[T]) tryWrite(evs ...waybill.Event) error {
	return b.box.InTx(context.Background(), func(ctx context.Context, tx T) error { return b.box.Write(ctx, tx, evs...) })
}

// event returns an event of an aggregate, "" for none, whose payload is n.
func event(aggregate string, n int) waybill.Event {
	ev := waybill.NewEvent("Tested", n)
	ev.ID = waybill.NewID()
	if aggregate != "" {
		ev.AggregateType, ev.AggregateID = "thing", aggregate
	}
	return ev
}

// quick returns a config with short intervals.
func (b *env[T]) quick() relay.Config {
	return relay.Config{
		BackoffBase: 5 * time.Millisecond, BackoffMax: 40 * time.Millisecond, PollInterval: 100 * time.Millisecond,
		SweepInterval: 50 * time.Millisecond, Lease: 3 * time.Second, Heartbeat: 200 * time.Millisecond,
		Logger: slog.New(b.logs),
	}
}

// running is a running relay.
type running struct {
	cancel context.CancelFunc
	done   chan error
	once   sync.Once
	err    error
}

// stop ends the relay and returns Run's error.
func (r *running) stop() error {
	r.cancel()
	r.once.Do(func() { r.err = <-r.done })
	return r.err
}

// start runs a relay over the store until the test ends, or until stop is
// called.
func (b *env[T]) start(sink waybill.Sink, cfg relay.Config) *running {
	b.Helper()
	return b.startOn(b.DB.Relay, sink, cfg)
}

func (b *env[T]) startOn(db driver.Relay, sink waybill.Sink, cfg relay.Config) *running {
	b.Helper()
	rel, err := relay.New(testroles.Of[any](db), sink, cfg)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- rel.Run(ctx) }()
	b.Cleanup(func() {
		if err := r.stop(); err != nil {
			b.Errorf("Run: %v", err)
		}
	})
	return r
}

// await waits for a condition, as long as the outbox changes: the test fails
// when nothing has changed for patience. Time in which this process or the
// database did not get the CPU hardly counts.
func (b *env[T]) await(what string, ok func() bool) {
	b.Helper()
	var left, untilPicture time.Duration
	before, last := "", time.Now().Add(10*patience)
	for {
		began := time.Now()
		if ok() {
			return
		}
		looked := time.Since(began)
		// A look that costs the database much must not slow down the relay.
		pause := min(max(2*time.Millisecond, 3*looked), maxPause)
		<-time.After(pause)
		spent := min(time.Since(began), 2*pause)
		left, untilPicture = left-spent, untilPicture-spent
		if untilPicture > 0 {
			continue
		}
		if now := b.picture(); now != before {
			before, left = now, patience
		}
		untilPicture = pictureInterval
		if left <= 0 || time.Now().After(last) {
			b.Fatalf("timed out waiting for: %s; the outbox: %s\n%s", what, before, b.logs)
		}
	}
}

const (
	// maxPause is the maximum pause between two looks, and pictureInterval the
	// time between two looks at the outbox as a whole.
	maxPause        = 250 * time.Millisecond
	pictureInterval = time.Second
)

// picture describes the state of the outbox, for failure messages.
func (b *env[T]) picture() string {
	s, err := b.ops.Stats(context.Background())
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d ready, %d failed, %d scheduled, %d dead, %d holding, %d nodes, %d reads counted", s.Ready, s.Failed, s.Scheduled, s.Dead, s.Holding,
		len(s.Nodes), b.reads.Load())
}

func (b *env[T]) stats() admin.Stats {
	b.Helper()
	s, err := b.ops.Stats(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// awaitEmpty waits until no event is pending.
func (b *env[T]) awaitEmpty() {
	b.Helper()
	b.await("nothing is pending", func() bool {
		s := b.stats()
		return s.Ready+s.Failed+s.Scheduled == 0
	})
}

func (b *env[T]) find(id waybill.ID) store.Record {
	b.Helper()
	r, err := b.ops.Find(b.Context(), id)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// state returns the state of an event, or "nowhere".
func (b *env[T]) state(id waybill.ID) string {
	records, err := b.DB.OutboxAdmin.Find(b.Context(), id)
	if err != nil {
		b.Fatal(err)
	}
	if len(records) == 0 {
		return "nowhere"
	}
	return records[0].State.String()
}

// logs records the log of a relay.
type logs struct {
	mu    sync.Mutex
	lines []string
}

// Enabled implements [slog.Handler].
func (*logs) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements [slog.Handler].
func (l *logs) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", r.Level, r.Message)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, b.String())
	return nil
}

// WithAttrs implements [slog.Handler].
func (l *logs) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup implements [slog.Handler].
func (l *logs) WithGroup(string) slog.Handler { return l }

// find returns the lines that contain all of the parts.
func (l *logs) find(parts ...string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, line := range l.lines {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			out = append(out, line)
		}
	}
	return out
}

// String returns the last lines.
func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines[max(0, len(l.lines)-40):], "\n")
}

// recorder is a sink that records deliveries; its answers are set by the test.
type recorder struct {
	mu     sync.Mutex
	got    []waybill.Delivery
	answer func(d waybill.Delivery) error
}

func (r *recorder) sink() waybill.Sink {
	return relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error { return r.take(d) })
}

func (r *recorder) take(d waybill.Delivery) error {
	r.mu.Lock()
	r.got = append(r.got, d)
	answer := r.answer
	r.mu.Unlock()
	if answer == nil {
		return nil
	}
	return answer(d)
}

// tell changes the answer.
func (r *recorder) tell(answer func(d waybill.Delivery) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *recorder) all() []waybill.Delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.got)
}

// of returns the deliveries of one event.
func (r *recorder) of(id waybill.ID) []waybill.Delivery {
	return slices.DeleteFunc(r.all(), func(d waybill.Delivery) bool { return d.ID != id })
}

// payloads returns the delivered payloads of an aggregate, in order.
func (r *recorder) payloads(aggregate string) []string {
	var out []string
	for _, d := range r.all() {
		if d.AggregateID == aggregate {
			out = append(out, string(d.Payload))
		}
	}
	return out
}

// numbers returns the texts of 0 to n-1.
func numbers(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint(i)
	}
	return out
}

// wantOnce reports events that were not delivered exactly once.
func (b *env[T]) wantOnce(r *recorder, evs []waybill.Event) {
	b.Helper()
	calls := make(map[waybill.ID]int)
	for _, d := range r.all() {
		calls[d.ID]++
	}
	for _, ev := range evs {
		if n := calls[ev.ID]; n != 1 {
			b.Errorf("event %s (%s of %q) was delivered %d times, want once", ev.ID, ev.Payload, ev.AggregateID, n)
		}
	}
	if len(calls) != len(evs) {
		b.Errorf("%d events were delivered, want %d", len(calls), len(evs))
	}
}

// wantOrder reports aggregates whose first deliveries are out of order.
// Payloads are increasing numbers.
func (b *env[T]) wantOrder(ds []waybill.Delivery) {
	b.Helper()
	last := make(map[string]int)
	seen := make(map[waybill.ID]bool)
	for _, d := range ds {
		if d.AggregateID == "" || seen[d.ID] {
			continue
		}
		seen[d.ID] = true
		var n int
		if _, err := fmt.Sscan(string(d.Payload), &n); err != nil {
			b.Fatal(err)
		}
		if prev, ok := last[d.AggregateID]; ok && n <= prev {
			b.Errorf("aggregate %s: %d was first delivered after %d", d.AggregateID, n, prev)
		}
		last[d.AggregateID] = n
	}
}

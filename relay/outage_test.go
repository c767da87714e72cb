package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// logLines is a log handler that counts lines.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, strings.TrimSpace(string(p)))
		return len(p), nil
	}), nil))
}

// with returns the lines that contain all of the texts.
func (l *logLines) with(texts ...string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.lines), func(line string) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) })
	})
}

// away is a database that can be unavailable.
type away struct {
	driver.Relay
	err    atomic.Pointer[error]
	failed atomic.Int64
	only   string // if not empty, only this operation fails
}

func (a *away) is(operation string) error {
	if err := a.err.Load(); err != nil && *err != nil && (a.only == "" || a.only == operation) {
		a.failed.Add(1)
		return *err
	}
	return nil
}

func (a *away) say(err error) { a.err.Store(&err) }

func (a *away) Heartbeat(ctx context.Context, n store.Node, lease time.Duration) (store.Membership, error) {
	if err := a.is("heartbeat"); err != nil {
		return store.Membership{}, err
	}
	return a.Relay.Heartbeat(ctx, n, lease)
}

func (a *away) Acquire(ctx context.Context, n store.Node, lanes []int, window int) ([]driver.Lease, error) {
	if err := a.is("acquire"); err != nil {
		return nil, err
	}
	return a.Relay.Acquire(ctx, n, lanes, window)
}

func (a *away) Release(ctx context.Context, leases []driver.Lease, dirty bool) error {
	if err := a.is("release"); err != nil {
		return err
	}
	return a.Relay.Release(ctx, leases, dirty)
}

func (a *away) Holds(ctx context.Context, lanes []int) ([]driver.Hold, error) {
	if err := a.is("holds"); err != nil {
		return nil, err
	}
	return a.Relay.Holds(ctx, lanes)
}

func (a *away) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	if err := a.is("fetch"); err != nil {
		return driver.Page{}, err
	}
	return a.Relay.Fetch(ctx, from, limit)
}

func (a *away) Due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	if err := a.is("due"); err != nil {
		return driver.Page{}, err
	}
	return a.Relay.Due(ctx, lanes, limit)
}

func (a *away) Sweep(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
	if err := a.is("sweep"); err != nil {
		return nil, err
	}
	return a.Relay.Sweep(ctx, from, limit)
}

func (a *away) OpenWriters(ctx context.Context) (driver.WriterState, error) {
	if err := a.is("writers"); err != nil {
		return driver.WriterState{}, err
	}
	return a.Relay.OpenWriters(ctx)
}

func (a *away) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	if err := a.is("settle"); err != nil {
		return driver.Settled{}, err
	}
	return a.Relay.Settle(ctx, s)
}

// run runs a relay over any store until stop is called.
func run(t *testing.T, db driver.Relay, sink waybill.Sink, cfg relay.Config) (stop func()) {
	t.Helper()
	r, err := relay.New(testroles.Of[any](db), sink, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

var errRefused = errors.New("connection refused")

// TestLogOfAnUnavailableDatabase: an outage of the database is logged once when
// it begins, once a minute while it lasts, with the failing operation, the
// start and the number of failures, and once when it ends.
func TestLogOfAnUnavailableDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c, log := newFixture(t), &collector{}, &logLines{}
		db := &away{Relay: f.db.Driver().Relay}
		stop := run(t, db, c.sink(), relay.Config{Logger: log.logger()})
		f.write(event("a", 1))
		pass(10 * time.Second)
		db.say(errRefused)
		f.write(event("a", 2), event("", 3))
		pass(5*time.Minute - time.Second)
		if n := db.failed.Load(); n < 500 {
			t.Errorf("only %d calls failed", n)
		}
		db.say(nil)
		pass(time.Minute)
		stop()
		for texts, want := range map[string]int{
			"level=WARN":                        1 + 4 + 1, // the first failure, one a minute, the lease
			"the database fails and is retried": 1,
			"the database still fails":          4,
			"the lease has lapsed":              1,
			"the database recovered":            1,
			"level=ERROR":                       0,
			`error="connection refused"`:        1 + 4,
		} {
			if got := log.with(texts); len(got) != want {
				t.Errorf("%d lines with %s, want %d:\n%s", len(got), texts, want, strings.Join(got, "\n"))
			}
		}
		last := log.with("the database still fails")
		if line := last[len(last)-1]; !strings.Contains(line, "since=2000-01-01T00:00:1") || !strings.Contains(line, "duration=4m0s") ||
			!strings.Contains(line, "heartbeat") || !strings.Contains(line, "settle") || !strings.Contains(line, "failures=") {
			t.Errorf("the line lacks the operation, the start or the number of failures: %s", line)
		}
		if back := log.with("the database recovered", "duration=4m5", "failures="); len(back) != 1 {
			t.Errorf("the line lacks the duration: %s", log.with("recovered"))
		}
		if c.count() < 3 {
			t.Errorf("%d deliveries", c.count())
		}
	})
}

// TestLogOfAnUnavailableDestination: the same for destinations: however many
// are unavailable, there is one line a minute.
func TestLogOfAnUnavailableDestination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, log, sink := newFixture(t), &logLines{}, &partSink{}
		const many = 20
		sink.answer = func(waybill.Delivery) error { return waybill.Unavailable(errRefused) }
		stop := f.start(sink, relay.Config{Logger: log.logger()})
		for n := range many {
			f.write(typed(fmt.Sprint("T", n), "a", n), typed(fmt.Sprint("T", n), "", n))
		}
		pass(5*time.Minute - time.Second)
		sink.mu.Lock()
		sink.answer = nil
		sink.mu.Unlock()
		pass(2 * time.Minute)
		if err := stop(); err != nil {
			t.Error(err)
		}
		down := many // the events of the aggregate wait behind the first one
		for text, want := range map[string]int{
			"destination is down": down, "destinations are still down": 5, "destination is back": down, "level=WARN": down + 5, "level=ERROR": 0,
		} {
			if got := log.with(text); len(got) != want {
				t.Errorf("%d lines with %s, want %d:\n%s", len(got), text, want, strings.Join(got, "\n"))
			}
		}
		line := log.with("destinations are still down")[3]
		for _, want := range []string{"destinations=20", `names="[T0 T1 T10 T11 T12]"`, "since=2000-01-01T00:00:00Z", "duration=4m0s", "failures=", "connection refused"} {
			if !strings.Contains(line, want) {
				t.Errorf("the line lacks %s: %s", want, line)
			}
		}
		if back := log.with("destination is back", "duration=", "failures="); len(back) != down {
			t.Errorf("the line lacks the duration: %s", log.with("destination is back"))
		}
		if s, err := f.db.Driver().OutboxAdmin.Stats(t.Context()); err != nil || s.Ready+s.Failed+s.Dead != 0 {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// TestLogsGoToTheDefault: without a logger the relay logs to slog's default.
func TestLogsGoToTheDefault(t *testing.T) {
	before, log := slog.Default(), &logLines{}
	slog.SetDefault(log.logger())
	defer slog.SetDefault(before)
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		stop := run(t, f.db.Driver().Relay, relay.SinkFunc(func(context.Context, waybill.Delivery) error { return waybill.Permanent(errRefused) }), relay.Config{})
		f.write(event("a", 1))
		pass(time.Second)
		stop()
	})
	if len(log.with("relay started")) != 1 || len(log.with("event is dead")) != 1 {
		t.Errorf("the log says %q", log.lines)
	}
}

// TestLagWhileReadsFail: the lag grows while reads fail, whichever operation
// fails: it is not 0 because no event is in memory.
func TestLagWhileReadsFail(t *testing.T) {
	for _, only := range []string{"", "fetch", "writers", "holds"} {
		for _, fromTheStart := range []bool{false, true} {
			if only == "" && fromTheStart {
				continue // Run returns: the relay cannot start
			}
			t.Run(fmt.Sprintf("only %q, from the start %v", only, fromTheStart), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { lagWithout(t, only, fromTheStart) })
			})
		}
	}
}

func lagWithout(t *testing.T, only string, fromTheStart bool) {
	f, c := newFixture(t), &collector{}
	db := &away{Relay: f.db.Driver().Relay, only: only}
	if fromTheStart {
		db.say(errRefused)
	}
	type sample struct{ at, lag time.Duration }
	var mu sync.Mutex
	var lags []sample
	start := time.Now()
	stop := run(t, db, c.sink(), relay.Config{HotQueue: -1, Logger: slog.New(slog.DiscardHandler), Observe: observe.Hooks{Lag: func(info observe.LagInfo) {
		mu.Lock()
		defer mu.Unlock()
		lags = append(lags, sample{time.Since(start), info.Oldest})
	}}})
	if !fromTheStart {
		pass(time.Minute)
		mu.Lock()
		if len(lags) == 0 || slices.ContainsFunc(lags, func(l sample) bool { return l.lag != 0 }) {
			t.Errorf("while there is nothing: %v", lags)
		}
		lags = nil
		mu.Unlock()
		db.say(errRefused)
	}
	if only == "holds" && !fromTheStart {
		stop()
		return // no aggregate is held: the holds are not read
	}
	failing := time.Since(start)
	f.write(event("", 1))
	pass(2 * time.Minute)
	mu.Lock()
	last := lags[len(lags)-1]
	for _, l := range lags {
		if grown := l.at - failing; l.lag < grown-3*time.Second && only != "writers" || l.lag > l.at {
			t.Errorf("%v after the first failure the lag is %v", grown, l.lag)
		}
	}
	lags = nil
	mu.Unlock()
	if last.lag < 110*time.Second && (only != "writers" || fromTheStart) {
		t.Errorf("after two minutes the lag is %v", last.lag)
	}
	db.say(nil)
	pass(time.Minute)
	mu.Lock()
	defer mu.Unlock()
	if last := lags[len(lags)-1]; last.lag != 0 {
		t.Errorf("when all is delivered the lag is %v", last.lag)
	}
	stop()
	if c.count() != 1 {
		t.Errorf("%d deliveries", c.count())
	}
}

// slow is a database whose first read of rows takes a while.
type slow struct {
	driver.Relay
	open chan struct{}
}

func (s *slow) wait(ctx context.Context) error {
	select {
	case <-s.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *slow) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	if err := s.wait(ctx); err != nil {
		return driver.Page{}, err
	}
	return s.Relay.Fetch(ctx, from, limit)
}

func (s *slow) Due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	if err := s.wait(ctx); err != nil {
		return driver.Page{}, err
	}
	return s.Relay.Due(ctx, lanes, limit)
}

// TestNothingIsEarlyBeforeTheClockIsKnown: the database's clock may be behind
// this node's clock. Before the first page of rows a relay does not know the
// database's clock, and does not use its own instead: the database decides
// whether an event with a due time is due, and the event is not delivered from
// memory before.
func TestNothingIsEarlyBeforeTheClockIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := newFixture(t), &collector{}
		db := &slow{Relay: f.db.Driver().Relay, open: make(chan struct{})}
		stop := run(t, db, c.sink(), relay.Config{})
		pass(time.Second)
		ev := event("", 1)
		// In the future, if the database's clock is an hour behind.
		ev.AvailableAt = time.Now().Add(-30 * time.Minute)
		f.write(ev)
		pass(time.Second)
		if c.count() != 0 {
			t.Error("it was delivered by this node's clock")
		}
		close(db.open)
		pass(time.Minute)
		if c.count() != 1 {
			t.Errorf("when the database said that it was due it was delivered %d times", c.count())
		}
		stop()
	})
}

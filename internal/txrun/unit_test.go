package txrun_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/txrun"
	"github.com/waybillhq/waybill/store/driver"
)

var discard = slog.New(slog.DiscardHandler)

// write runs a unit in which each writer writes its events.
func write(db *fake, r *txrun.Runner[*tx], w *teller, end error, batches ...[]waybill.Event) error {
	return r.Run(context.Background(), nil, func(ctx context.Context, tx *tx) error {
		u, ok := r.From(ctx)
		if !ok {
			return errors.New("the context carries no unit")
		}
		for _, evs := range batches {
			if _, err := u.Write(ctx, db, w, tx, evs, false); err != nil {
				return err
			}
		}
		return end
	})
}

func same(t *testing.T, what string, got [][]waybill.ID, want ...[]waybill.ID) {
	t.Helper()
	if !slices.EqualFunc(got, want, slices.Equal[[]waybill.ID]) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func listen(t *testing.T, hub *driver.Hub) *[]driver.Commit {
	t.Helper()
	var heard []driver.Commit
	t.Cleanup(hub.Listen(func(c driver.Commit) { heard = append(heard, c) }))
	return &heard
}

func TestCommitSaysWhatWasAccepted(t *testing.T) {
	for _, wants := range []bool{false, true} {
		db := newFake()
		r := txrun.NewRunner[*tx](db, discard)
		w := &teller{wants: wants}
		heard := listen(t, db.hub)
		evs := events(3)
		if err := write(db, r, w, nil, evs[:2], evs[2:]); err != nil {
			t.Fatalf("Run: %v", err)
		}
		if c := *heard; len(c) != 1 || c[0].BeganAt.IsZero() || c[0].BeganAt.After(db.sessions[0].asked) {
			t.Errorf("the commit was asked for at %v; the hub heard %v", db.sessions[0].asked, c)
		}
		s := db.sessions[0]
		if s.commits != 1 || s.rollbacks != 0 || s.check != wants || !slices.Equal(s.accepted, ids(evs)) {
			t.Errorf("committed %d times, with check %v (want %v) and %v", s.commits, s.check, wants, s.accepted)
		}
		if _, ok := s.ctx.Deadline(); !ok {
			t.Errorf("the commit is not bounded")
		}
		same(t, "accepted", w.accepted, ids(evs[:2]), ids(evs[2:]))
		if wants {
			same(t, "committed", w.committed, ids(evs))
		}
		same(t, "rolled back", w.rolledBack)
		if len(*heard) != 1 || len((*heard)[0].Entries) != 3 || (*heard)[0].Entries[1].Lane != 7 {
			t.Errorf("the hub heard %v", *heard)
		}
	}
}

// TestCommitSpares: a relay that polls continuously is notified only of commits
// in other lanes; the notifications of the others are skipped, and their hooks
// are called.
func TestCommitSpares(t *testing.T) {
	db := newFake()
	r := txrun.NewRunner[*tx](db, discard)
	w := &teller{wants: true}
	heard := listen(t, db.hub)
	woken := 0
	db.hub.OnRemoteCommit(func() { woken++ })
	db.hub.SetLocalLanes([]int{7})
	db.hub.SetSelfPolling(true)
	evs := events(3)
	if err := write(db, r, w, nil, evs[:2]); err != nil {
		t.Fatal(err)
	}
	if len(*heard) != 0 || woken != 0 {
		t.Errorf("the hub heard %v, and others were woken %d times", *heard, woken)
	}
	same(t, "committed", w.committed, ids(evs[:2]))
	evs[1].Delay = time.Minute
	if err := write(db, r, w, nil, evs); err != nil {
		t.Fatal(err)
	}
	if len(*heard) != 1 || len((*heard)[0].Entries) != 1 || (*heard)[0].Entries[0].Event.ID != evs[1].ID {
		t.Errorf("the hub heard %v, want the one whose time is to come", *heard)
	}
}

// TestDeferredEvents: deferred events are accepted during the commit, and then
// count like the others.
func TestDeferredEvents(t *testing.T) {
	db := newFake()
	evs := events(4)
	db.placed = func(ev waybill.Event) driver.AppendResult {
		if ev.ID == evs[2].ID {
			return driver.AppendResult{ID: waybill.NewID()} // absorbed
		}
		return driver.AppendResult{ID: ev.ID, Lane: 3}
	}
	db.begun = func(s *session) { s.deferring = true }
	r := txrun.NewRunner[*tx](db, discard)
	w := &teller{wants: true}
	heard := listen(t, db.hub)
	err := r.Run(context.Background(), nil, func(ctx context.Context, tx *tx) error {
		u, _ := r.From(ctx)
		// now: it is not deferred
		placed, err := u.Write(ctx, db, w, tx, evs[:1], true)
		if err != nil || len(placed) != 1 || placed[0].Lane != 3 {
			t.Errorf("a write that cannot wait was placed at %v, %v", placed, err)
		}
		placed, err = u.Write(ctx, db, w, tx, evs[1:], false)
		if placed != nil || err != nil {
			t.Errorf("a write that waits was placed at %v, %v", placed, err)
		}
		same(t, "accepted before the commit", w.accepted, ids(evs[:1]))
		return nil
	})
	if err != nil {
		t.Fatalf("Run: %v", err)
	}
	if got := db.sessions[0].accepted; !slices.Equal(got, ids(evs[:1])) {
		t.Errorf("the commit was told that %v are accepted, want only what was", got)
	}
	want := []waybill.ID{evs[0].ID, evs[1].ID, evs[3].ID}
	same(t, "accepted", w.accepted, want[:1], want[1:])
	same(t, "committed", w.committed, want)
	if len(*heard) != 1 || len((*heard)[0].Entries) != 3 || (*heard)[0].Entries[2].Lane != 3 {
		t.Errorf("the hub heard %v", *heard)
	}
}

func TestUndoneEvents(t *testing.T) {
	db := newFake()
	evs := events(5)
	db.begun = func(s *session) { s.ending = driver.CommitInfo{Undone: ids(evs[1:3]), Checked: true} }
	r := txrun.NewRunner[*tx](db, discard)
	w := &teller{wants: true}
	heard := listen(t, db.hub)
	if err := write(db, r, w, nil, evs); err != nil {
		t.Fatalf("Run: %v", err)
	}
	same(t, "committed", w.committed, []waybill.ID{evs[0].ID, evs[3].ID, evs[4].ID})
	if len(*heard) != 1 || len((*heard)[0].Entries) != 3 || !(*heard)[0].Checked {
		t.Errorf("the hub heard %v", *heard)
	}
	// All of them are absorbed: no writer is notified.
	db.begun = func(s *session) { s.ending = driver.CommitInfo{Undone: ids(evs), Checked: true} }
	w, before := &teller{wants: true}, len(*heard)
	if err := write(db, r, w, nil, evs); err != nil {
		t.Fatalf("Run: %v", err)
	}
	same(t, "committed", w.committed)
	if len(*heard) != before {
		t.Errorf("the hub heard of nothing: %v", (*heard)[before:])
	}
}

// TestUncertainCommit: after an uncertain commit neither hook is called; the
// relay polls.
func TestUncertainCommit(t *testing.T) {
	db := newFake()
	cause := errors.New("connection reset")
	db.begun = func(s *session) { s.commitErr = fmt.Errorf("%w: %w", waybill.ErrUncertain, cause) }
	r := txrun.NewRunner[*tx](db, discard)
	w := &teller{wants: true}
	heard := listen(t, db.hub)
	evs := events(2)
	err := write(db, r, w, nil, evs)
	var uncertain *txrun.UncertainError
	if !errors.As(err, &uncertain) || !slices.Equal(uncertain.Events, ids(evs)) || !errors.Is(err, cause) || !errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("Run: %v", err)
	}
	same(t, "committed", w.committed)
	same(t, "rolled back", w.rolledBack)
	if len(*heard) != 1 || len((*heard)[0].Entries) != 0 {
		t.Errorf("the hub heard %v, want a bare wake-up", *heard)
	}
	if db.sessions[0].rollbacks != 0 {
		t.Errorf("the session is over, and was rolled back")
	}
}

func TestFailedCommit(t *testing.T) {
	db := newFake()
	db.begun = func(s *session) { s.commitErr = errBoom }
	r := txrun.NewRunner[*tx](db, discard)
	w := &teller{wants: true}
	heard := listen(t, db.hub)
	evs := events(2)
	if err := write(db, r, w, nil, evs); !errors.Is(err, errBoom) || errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("Run: %v", err)
	}
	same(t, "committed", w.committed)
	same(t, "rolled back", w.rolledBack, ids(evs))
	if len(*heard) != 0 {
		t.Errorf("the hub heard %v", *heard)
	}
}

func TestFailedRollback(t *testing.T) {
	own := errors.New("the function's own")
	db := newFake()
	db.begun = func(s *session) { s.rollbackErr = errBoom }
	r := txrun.NewRunner[*tx](db, discard)
	w := &teller{}
	if err := write(db, r, w, own, events(1)); !errors.Is(err, own) || !errors.Is(err, errBoom) {
		t.Errorf("Run: %v, want both errors", err)
	}
	if len(w.rolledBack) != 1 {
		t.Errorf("rolled back: %v", w.rolledBack)
	}
	// The function has ended the transaction: its outcome is unknown.
	db.begun = func(s *session) { s.rollbackErr = fmt.Errorf("%w: %w", waybill.ErrUncertain, waybill.ErrTxOwned) }
	w = &teller{}
	evs := events(1)
	err := write(db, r, w, own, evs)
	var uncertain *txrun.UncertainError
	if !errors.As(err, &uncertain) || !slices.Equal(uncertain.Events, ids(evs)) || !errors.Is(err, own) || !errors.Is(err, waybill.ErrTxOwned) {
		t.Errorf("Run: %v", err)
	}
	same(t, "rolled back", w.rolledBack)
}

func TestBeginFails(t *testing.T) {
	db := newFake()
	db.beginErr = errBoom
	r := txrun.NewRunner[*tx](db, discard)
	err := r.Run(context.Background(), nil, func(context.Context, *tx) error {
		t.Error("the function ran without a transaction")
		return nil
	})
	if !errors.Is(err, errBoom) {
		t.Errorf("Run: %v", err)
	}
}

func TestBeforeCommit(t *testing.T) {
	db := newFake()
	r := txrun.NewRunner[*tx](db, discard)
	var order []string
	err := r.Run(context.Background(), nil, func(ctx context.Context, _ *tx) error {
		u, _ := r.From(ctx)
		note := func(name string) func(context.Context) error {
			return func(ctx context.Context) error {
				if inner, ok := r.From(ctx); !ok || inner != u {
					t.Errorf("%s runs outside of the unit", name)
				}
				order = append(order, name)
				return nil
			}
		}
		return errors.Join(
			u.BeforeCommit("a", note("a")), u.BeforeCommit("a", note("again")), u.AfterCommit(func() { order = append(order, "after") }),
			u.BeforeCommit("b", func(context.Context) error { return u.BeforeCommit("c", note("c")) }),
		)
	})
	if err != nil || strings.Join(order, " ") != "a c after" {
		t.Errorf("ran %v, %v", order, err)
	}
	// A function that fails rolls back, and the rest does not run.
	ran := false
	err = r.Run(context.Background(), nil, func(ctx context.Context, _ *tx) error {
		u, _ := r.From(ctx)
		return errors.Join(
			u.BeforeCommit(1, func(context.Context) error { return errBoom }),
			u.BeforeCommit(2, func(context.Context) error { ran = true; return nil }),
		)
	})
	if s := db.sessions[1]; !errors.Is(err, errBoom) || ran || s.commits != 0 || s.rollbacks != 1 {
		t.Errorf("Run: %v; the second ran: %v; %d commits, %d rollbacks", err, ran, s.commits, s.rollbacks)
	}
}

func TestBreak(t *testing.T) {
	db := newFake()
	r := txrun.NewRunner[*tx](db, discard)
	for _, cause := range []error{errBoom, waybill.ErrUncertain} {
		err := r.Run(context.Background(), nil, func(ctx context.Context, _ *tx) error {
			u, _ := r.From(ctx)
			u.Break(cause)
			u.Break(errors.New("a later one"))
			return nil
		})
		if !errors.Is(err, cause) {
			t.Errorf("Run: %v, want %v", err, cause)
		}
	}
	for _, s := range db.sessions {
		if s.commits != 0 || s.rollbacks != 1 {
			t.Errorf("a broken unit was committed %d times, rolled back %d times", s.commits, s.rollbacks)
		}
	}
}

// TestAnotherDriverOnTheSameTables: a store may have two drivers over one set
// of tables, and so one hub: their transactions cannot join.
func TestAnotherDriverOnTheSameTables(t *testing.T) {
	db := newFake()
	r := txrun.NewRunner[*tx](db, discard)
	other := txrun.NewRunner[int](otherDriver{db.hub}, discard)
	var kept context.Context
	err := r.Run(context.Background(), nil, func(ctx context.Context, _ *tx) error {
		kept = ctx
		if _, ok := other.From(ctx); ok {
			t.Error("another driver's transaction was found")
		}
		return other.Run(ctx, nil, func(context.Context, int) error {
			t.Error("the inner function ran")
			return nil
		})
	})
	if !errors.Is(err, waybill.ErrNested) {
		t.Errorf("Run: %v, want ErrNested", err)
	}
	ran := false
	if err := other.Run(kept, nil, func(context.Context, int) error { ran = true; return nil }); err != nil || !ran {
		t.Errorf("in the context of a unit that is over: %v, ran: %v", err, ran)
	}
}

type otherDriver struct{ hub *driver.Hub }

func (o otherDriver) Local() *driver.Hub { return o.hub }

func (otherDriver) Begin(context.Context, *sql.TxOptions) (driver.Session[int], error) {
	return otherSession{}, nil
}

type otherSession struct{}

func (otherSession) Tx() int                        { return 1 }
func (otherSession) Owns(int) bool                  { return false }
func (otherSession) Rollback(context.Context) error { return nil }
func (otherSession) Commit(context.Context, []waybill.ID, bool) (driver.CommitInfo, error) {
	return driver.CommitInfo{}, nil
}

// TestOwner: a unit owns its savepoints, and is found without its context only
// while it is live.
func TestOwner(t *testing.T) {
	db := newFake()
	r := txrun.NewRunner[*tx](db, discard)
	var kept *tx
	var inner context.Context
	err := r.Run(context.Background(), nil, func(ctx context.Context, t1 *tx) error {
		kept, inner = t1, ctx
		u, _ := r.From(ctx)
		for _, c := range []context.Context{ctx, context.Background()} {
			if r.Owner(c, t1) != u || r.Owner(c, &tx{parent: t1}) != u || r.Owner(c, &tx{}) != nil {
				t.Error("the owner of a transaction was not found, or found for another")
			}
		}
		if u.Tx() != t1 || u.Usable() != nil {
			t.Error("the unit does not know its own transaction")
		}
		return nil
	})
	if err != nil {
		t.Fatalf("Run: %v", err)
	}
	if r.Owner(context.Background(), kept) != nil {
		t.Error("a unit that is over is still found")
	}
	u, ok := r.From(inner)
	if !ok || !errors.Is(u.Usable(), waybill.ErrTxDone) {
		t.Errorf("the unit that is over is usable: %v, %v", ok, u.Usable())
	}
	if _, err := u.Write(inner, db, &teller{}, kept, events(1), false); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("Write to a unit that is over: %v", err)
	}
	for name, register := range map[string]func() error{
		"AfterCommit":   func() error { return u.AfterCommit(func() {}) },
		"AfterRollback": func() error { return u.AfterRollback(func() {}) },
		"BeforeCommit":  func() error { return u.BeforeCommit(1, func(context.Context) error { return nil }) },
	} {
		if err := register(); !errors.Is(err, waybill.ErrTxDone) {
			t.Errorf("%s on a unit that is over: %v", name, err)
		}
	}
}

// TestTwoWriters: two writers in one unit are each notified of their own
// events.
func TestTwoWriters(t *testing.T) {
	db := newFake()
	r := txrun.NewRunner[*tx](db, discard)
	one, two, deaf := &teller{wants: true}, &teller{wants: true}, &teller{}
	evs := events(4)
	err := r.Run(context.Background(), nil, func(ctx context.Context, tx *tx) error {
		u, _ := r.From(ctx)
		_, err1 := u.Write(ctx, db, one, tx, evs[:1], false)
		_, err2 := u.Write(ctx, db, two, tx, evs[1:2], false)
		_, err3 := u.Write(ctx, db, one, tx, evs[2:3], false)
		_, err4 := u.Write(ctx, db, deaf, tx, evs[3:], false)
		return errors.Join(err1, err2, err3, err4)
	})
	if err != nil || !db.sessions[0].check { // one of them needs it
		t.Errorf("Run: %v, check %v", err, db.sessions[0].check)
	}
	same(t, "the first", one.committed, []waybill.ID{evs[0].ID, evs[2].ID})
	same(t, "the second", two.committed, []waybill.ID{evs[1].ID})
	same(t, "the one that does not want to know", deaf.committed)
}

func TestCallbacksThatPanicAreLogged(t *testing.T) {
	var log strings.Builder
	db := newFake()
	r := txrun.NewRunner[*tx](db, slog.New(slog.NewTextHandler(&log, nil)))
	var ran []string
	run := func(end error) {
		_ = r.Run(context.Background(), nil, func(ctx context.Context, _ *tx) error {
			u, _ := r.From(ctx)
			return errors.Join(
				u.AfterCommit(func() { panic("in commit") }), u.AfterCommit(func() { ran = append(ran, "commit") }),
				u.AfterRollback(func() { panic("in rollback") }), u.AfterRollback(func() { ran = append(ran, "rollback") }), end)
		})
	}
	run(nil)
	run(errBoom)
	if fmt.Sprint(ran) != "[commit rollback]" {
		t.Errorf("callbacks behind one that panicked: %v", ran)
	}
	for _, want := range []string{"in commit", "in rollback", "AfterCommit", "AfterRollback"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q: %s", want, log.String())
		}
	}
}

func ExampleRunner_Run() {
	db := newFake()
	r := txrun.NewRunner[*tx](db, discard)
	err := r.Run(context.Background(), nil, func(ctx context.Context, _ *tx) error {
		u, _ := r.From(ctx)
		_ = u.AfterCommit(func() { fmt.Println("committed once") })
		return r.Run(ctx, nil, func(context.Context, *tx) error { // joins
			fmt.Println("inside")
			return nil
		})
	})
	fmt.Println(err, len(db.sessions))
	// Output:
	// inside
	// committed once
	// <nil> 1
}

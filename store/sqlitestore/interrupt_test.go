package sqlitestore_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// endless inserts rows until it is interrupted.
const endless = `INSERT INTO business (note)
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n`

// interrupt runs a writing statement until its context ends. SQLite then rolls
// the whole transaction back, and neither database/sql nor its caller notices.
func interrupt(ctx context.Context, t *testing.T, tx *sql.Tx) {
	t.Helper()
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if _, err := tx.ExecContext(short, endless); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the statement was not interrupted: %v", err)
	}
}

func withBusiness(t *testing.T) *sqlitestore.Store {
	t.Helper()
	db := open(t, sqlitestore.Config{})
	if _, err := db.DB().ExecContext(t.Context(), `CREATE TABLE business (note TEXT NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	return db
}

// TestWriteAfterSilentRollback ignores the error of an interrupted statement
// and writes an event. The write must be rejected: the event alone would be
// committed immediately, and the rest of the transaction never.
func TestWriteAfterSilentRollback(t *testing.T) {
	db := withBusiness(t)
	box := newBox(t, db.Driver().Outbox)
	write(t, box, placed("0")) // prepares the statements
	ids := []waybill.ID{waybill.NewID(), waybill.NewID()}
	event := func(i int) waybill.Event {
		ev := placed("1")
		ev.ID = ids[i]
		return ev
	}
	err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		if err := box.Write(ctx, tx, event(0)); err != nil {
			return err
		}
		interrupt(ctx, t, tx)
		if err := box.Write(ctx, tx, event(1)); !errors.Is(err, waybill.ErrTxDone) {
			t.Errorf("a write after SQLite has rolled back: %v, want ErrTxDone", err)
		}
		return nil
	})
	if err == nil || errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("InTx: %v, want an error that says rolled back", err)
	}

	tx, err := db.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	interrupt(t.Context(), t, tx)
	for _, write := range []func() error{
		func() error { return box.Write(t.Context(), tx, event(1)) },
		func() error { return box.Write(t.Context(), tx, event(0), event(1)) },
		func() error {
			_, err := db.Driver().Outbox.(driver.SQLAppender).AppendSQL(t.Context(), hidden{tx}, []waybill.Event{eventfill.Defaults(event(1))})
			return err
		},
	} {
		if err := write(); !errors.Is(err, waybill.ErrTxDone) {
			t.Errorf("a write to a caller's transaction after SQLite has rolled back: %v, want ErrTxDone", err)
		}
	}
	if err := tx.Rollback(); err == nil {
		t.Error("database/sql noticed; is the check still needed?")
	}
	for _, id := range ids {
		if yes, err := db.Driver().Outbox.Committed(t.Context(), id); yes || err != nil {
			t.Errorf("Committed is %v, %v", yes, err)
		}
	}
	if n := len(fetch(t, db.Driver().Relay)); n != 1 {
		t.Errorf("%d rows, want the earlier row", n)
	}
}

// TestInterruptedIsNotUncertain: a request that ends in the middle of a
// statement is the most common failure. It leaves nothing, and the outcome is
// certain.
func TestInterruptedIsNotUncertain(t *testing.T) {
	db := withBusiness(t)
	box := newBox(t, db.Driver().Outbox)
	for _, swallow := range []bool{false, true} {
		err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			if err := box.Write(ctx, tx, placed("1")); err != nil {
				return err
			}
			short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			defer cancel()
			_, err := tx.ExecContext(short, endless)
			if swallow {
				return nil
			}
			return err
		})
		if err == nil || errors.Is(err, waybill.ErrUncertain) {
			t.Errorf("swallowed %v: %v, want a plain error", swallow, err)
		}
		if !swallow && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("InTx: %v, want the statement's own error", err)
		}
	}
	if n := len(fetch(t, db.Driver().Relay)); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
}

// TestEndedByText ends the transaction of InTx with SQL text, which the store
// cannot prevent. The store must not report a commit as a rollback.
func TestEndedByText(t *testing.T) {
	db := withBusiness(t)
	box := newBox(t, db.Driver().Outbox)
	boom := errors.New("boom")
	for _, text := range []string{"COMMIT", "ROLLBACK"} {
		for _, result := range []error{nil, boom} {
			ev := placed("1")
			ev.ID = waybill.NewID()
			err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				if err := box.Write(ctx, tx, ev); err != nil {
					return err
				}
				if _, err := tx.ExecContext(ctx, text); err != nil {
					t.Fatal(err)
				}
				return result
			})
			if err == nil {
				t.Errorf("%s inside InTx: no error", text)
			}
			committed := text == "COMMIT"
			if errors.Is(err, waybill.ErrUncertain) != committed || errors.Is(err, waybill.ErrTxOwned) != committed {
				t.Errorf("%s inside InTx, which returns %v: %v", text, result, err)
			}
			if yes, err := db.Driver().Outbox.Committed(t.Context(), ev.ID); yes != committed || err != nil {
				t.Errorf("%s: Committed is %v, %v", text, yes, err)
			}
		}
	}
}

// TestCanceledWriteKeepsTheTransaction cancels the context of one write inside
// InTx: the write fails, and the transaction is still intact, because nothing
// was interrupted.
func TestCanceledWriteKeepsTheTransaction(t *testing.T) {
	db := withBusiness(t)
	session, err := db.Driver().Outbox.Begin(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := db.Driver().Outbox.Append(canceled, session.Tx(), []waybill.Event{eventfill.Defaults(placed("1"))}); !errors.Is(err, context.Canceled) {
		t.Errorf("a write with a context that has ended: %v", err)
	}
	if _, err := db.Driver().Outbox.Append(t.Context(), session.Tx(), []waybill.Event{eventfill.Defaults(placed("2"))}); err != nil {
		t.Error(err)
	}
	if _, err := session.Commit(t.Context(), nil, false); err != nil {
		t.Fatal(err)
	}
	if n := len(fetch(t, db.Driver().Relay)); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

// TestCanceledHalfway ends the context in the middle of long writes: an
// interrupted insert would roll back the transaction, so no insert is
// interrupted.
func TestCanceledHalfway(t *testing.T) {
	db := withBusiness(t)
	evs := make([]waybill.Event, 512)
	for round := range 50 {
		for i := range evs {
			evs[i] = eventfill.Defaults(placed("1"))
		}
		session, err := db.Driver().Outbox.Begin(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Duration(round+1)*50*time.Microsecond)
		if _, err := db.Driver().Outbox.Append(short, session.Tx(), evs); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a write whose context ends: %v", err)
		}
		cancel()
		if _, err := db.Driver().Outbox.Append(t.Context(), session.Tx(), []waybill.Event{eventfill.Defaults(placed("2"))}); err != nil {
			t.Fatalf("round %d: the next write: %v", round, err)
		}
		if err := session.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestCanceledHalfwayElsewhere does the same to a caller's transaction, which
// the write must leave intact. A context that ends at the moment in which the
// lock is taken may still interrupt taking the lock, but nothing else.
func TestCanceledHalfwayElsewhere(t *testing.T) {
	db := withBusiness(t)
	evs := make([]waybill.Event, 800)
	lost := 0
	for round := range 20 {
		for i := range evs {
			evs[i] = eventfill.Defaults(placed("1"))
		}
		tx, err := db.DB().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Duration(round+10)*200*time.Microsecond)
		if _, err := db.Driver().Outbox.Append(short, tx, evs); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a write whose context ends: %v", err)
		}
		cancel()
		switch _, err := db.Driver().Outbox.Append(t.Context(), tx, []waybill.Event{eventfill.Defaults(placed("2"))}); {
		case errors.Is(err, waybill.ErrTxDone):
			lost++
		case err != nil:
			t.Fatalf("round %d: the next write: %v", round, err)
		}
		_ = tx.Rollback()
	}
	if lost > 5 {
		t.Errorf("%d of 20 transactions were lost", lost)
	}
}

// TestCommitThatFails makes a COMMIT fail by a deferred constraint, which is a
// certain rollback.
func TestCommitThatFails(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	if _, err := db.DB().ExecContext(t.Context(), `CREATE TABLE parent (id INTEGER PRIMARY KEY);
CREATE TABLE child (parent INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)`); err != nil {
		t.Fatal(err)
	}
	box := newBox(t, db.Driver().Outbox)
	err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO child (parent) VALUES (1)`); err != nil {
			return err
		}
		return box.Write(ctx, tx, placed("1"))
	})
	if err == nil || errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("a commit that violates a constraint: %v, want a definite error", err)
	}
	if n := len(fetch(t, db.Driver().Relay)); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
	write(t, box, placed("2")) // the connection is clean
}

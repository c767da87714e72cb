package sqlitestore_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// delivery returns a row as a delivery in flight.
func delivery(row store.Row, lease driver.Lease, history bool) waybill.Delivery {
	return waybill.Delivery{Event: row.Event, Attempt: 1, Position: waybill.Position{Lane: lease.Lane, Epoch: lease.Epoch, Seq: row.Seq}, Claim: &driver.Claim{Token: lease.Token, History: history}}
}

func counts(t testing.TB, db *sqlitestore.Store) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, table := range []string{"outbox", "delayed", "dead", "history", "dedup"} {
		n[table] = value[int](t, db, `SELECT count(*) FROM waybill_`+table)
	}
	return n
}

// TestFinish settles in transactions of the store, of its handle, and of
// another handle on the same file.
func TestFinish(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	db := openAt(t, path, sqlitestore.Config{})
	run(t, db, `CREATE TABLE business (note TEXT NOT NULL)`)
	other := over(t, path, deferred, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	lease := owner(t, db)[0]
	foreign := func(db *sqlitestore.Store) func(fn func(ctx context.Context, tx *sql.Tx) error) error {
		return func(fn func(ctx context.Context, tx *sql.Tx) error) error {
			tx, err := db.DB().BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
			if err := fn(t.Context(), tx); err != nil {
				return err
			}
			return tx.Commit()
		}
	}
	for name, inTx := range map[string]func(fn func(ctx context.Context, tx *sql.Tx) error) error{
		"own":          func(fn func(ctx context.Context, tx *sql.Tx) error) error { return box.InTx(t.Context(), fn) },
		"foreign":      foreign(db),
		"other handle": foreign(other),
	} {
		keyed := placed("1")
		keyed.DedupKey = "k"
		write(t, box, keyed)
		write(t, box, placed("2"))
		rows := fetch(t, db.Driver().Relay)
		settle(t, db, driver.Settlement{Leases: []driver.Lease{lease}, Retry: []driver.Result{{ID: rows[1].ID, Attempts: 3}}})
		done := []waybill.Delivery{delivery(rows[0], lease, true), delivery(rows[1], lease, true), delivery(rows[0], lease, true)}
		before := counts(t, db)
		undo := errors.New("undo")
		err := inTx(func(ctx context.Context, tx *sql.Tx) error {
			if err := db.Driver().Finisher.Finish(ctx, tx, done); err != nil {
				t.Error(err)
			}
			return undo
		})
		if after := counts(t, db); !errors.Is(err, undo) || after["history"] != before["history"] || after["dedup"] != 1 {
			t.Errorf("%s: rolled back with %v: %v, before %v", name, err, after, before)
		}
		err = inTx(func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO business (note) VALUES (?)`, name); err != nil {
				return err
			}
			return db.Driver().Finisher.Finish(ctx, tx, done)
		})
		after := counts(t, db)
		if err != nil || after["history"] != before["history"]+2 || after["outbox"] != 0 || after["delayed"] != 0 || after["dedup"] != 0 {
			t.Errorf("%s: %v: %v, before %v", name, err, after, before)
		}
		if n := value[int](t, db, `SELECT attempts FROM waybill_history WHERE id = ?`, rows[1].ID[:]); n != 3 {
			t.Errorf("%s: the history says %d attempts", name, n)
		}
	}
	if n := value[int](t, db, `SELECT count(*) FROM waybill_setting WHERE name = 'history_from'`); n != 0 {
		t.Error("a gap in the history was noted where there is none")
	}
}

// TestFinishWithoutHistory: the gap in the history is recorded in the same
// transaction; a rollback removes the record.
func TestFinishWithoutHistory(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	lease := owner(t, db)[0]
	write(t, box, placed("1"))
	write(t, box, placed("2"))
	rows := fetch(t, db.Driver().Relay)
	done := []waybill.Delivery{delivery(rows[0], lease, false), delivery(rows[1], lease, true)}
	for _, commit := range []bool{false, true} {
		tx, err := db.DB().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Driver().Finisher.Finish(t.Context(), tx, done); err != nil {
			t.Fatal(err)
		}
		if commit {
			err = tx.Commit()
		} else {
			err = tx.Rollback()
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = db.Driver().Outbox.Committed(t.Context(), waybill.NewID())
		if errors.Is(err, waybill.ErrUncertain) != commit {
			t.Errorf("committed %t: Committed of an event that never was: %v", commit, err)
		}
	}
	if n := counts(t, db); n["history"] != 1 || n["outbox"] != 0 {
		t.Errorf("after it: %v", n)
	}
}

// TestFinishLost: if one of several fences is lost, nothing changes, and the
// error names the lane.
func TestFinishLost(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	lease := owner(t, db)[0]
	write(t, box, placed("1"))
	write(t, box, placed("2"))
	rows := fetch(t, db.Driver().Relay)
	stale, elsewhere := lease, lease
	stale.Epoch--
	elsewhere.Lane = 7
	for _, lost := range []driver.Lease{stale, elsewhere, {Epoch: lease.Epoch, Token: waybill.NewID()}} {
		err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			err := db.Driver().Finisher.Finish(ctx, tx, []waybill.Delivery{delivery(rows[0], lease, true), delivery(rows[1], lost, false)})
			if !errors.Is(err, waybill.ErrLeaseLost) || !strings.Contains(err.Error(), "lane ") {
				t.Errorf("Finish: %v, want ErrLeaseLost", err)
			}
			return nil // the error is ignored, and still nothing has changed
		})
		if n := counts(t, db); err != nil || n["outbox"] != 2 || n["history"] != 0 {
			t.Errorf("InTx: %v: %v", err, n)
		}
	}
	if err := db.Driver().Finisher.Finish(t.Context(), nil, nil); err != nil {
		t.Errorf("nothing to finish: %v", err)
	}
}

// TestFinishNeedsTx: an ended transaction and a read-only transaction are
// rejected.
func TestFinishNeedsTx(t *testing.T) {
	db := withBusiness(t)
	box := newBox(t, db.Driver().Outbox)
	lease := owner(t, db)[0]
	write(t, box, placed("1"))
	done := []waybill.Delivery{delivery(fetch(t, db.Driver().Relay)[0], lease, true)}
	tx, err := db.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	interrupt(t.Context(), t, tx)
	if err := db.Driver().Finisher.Finish(t.Context(), tx, done); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("after SQLite has rolled back: %v, want ErrTxDone", err)
	}
	_ = tx.Rollback()
	if err := db.Driver().Finisher.Finish(t.Context(), tx, done); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("after a rollback: %v, want ErrTxDone", err)
	}
	session, err := db.Driver().Outbox.Begin(t.Context(), &sql.TxOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Driver().Finisher.Finish(t.Context(), session.Tx(), done); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("in a transaction that reads: %v", err)
	}
	if err := session.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	if n := counts(t, db); n["outbox"] != 1 || n["history"] != 0 {
		t.Errorf("after it: %v", n)
	}
}

// TestFinishFails: an error in the middle leaves nothing, in a transaction that
// continues.
func TestFinishFails(t *testing.T) {
	db := withBusiness(t)
	lease := owner(t, db)[0]
	write(t, newBox(t, db.Driver().Outbox), placed("1"))
	run(t, db, `CREATE TRIGGER refused BEFORE DELETE ON waybill_outbox BEGIN SELECT RAISE(ABORT, 'refused'); END`)
	tx, err := db.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	if _, err := tx.ExecContext(t.Context(), `INSERT INTO business (note) VALUES ('x')`); err != nil {
		t.Fatal(err)
	}
	err = db.Driver().Finisher.Finish(t.Context(), tx, []waybill.Delivery{delivery(fetch(t, db.Driver().Relay)[0], lease, true)})
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("Finish: %v", err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if n := counts(t, db); n["outbox"] != 1 || n["history"] != 0 || value[int](t, db, `SELECT count(*) FROM business`) != 1 {
		t.Errorf("after it: %v", n)
	}
}

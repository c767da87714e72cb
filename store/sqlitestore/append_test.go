package sqlitestore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// TestAppendSizes writes every number of events around the sizes of the
// prepared statements: all arrive, in order, from the statement's text (the
// first transaction) and from its prepared form (the later transactions).
func TestAppendSizes(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	var want []string
	for round := range 2 {
		for _, n := range []int{1, 2, 7, 8, 9, 63, 64, 65, 73, 200} {
			var evs []waybill.Event
			for i := range n {
				note := fmt.Sprintf(`"%d/%d/%d"`, round, n, i)
				evs, want = append(evs, placed(note)), append(want, note)
			}
			err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error { return box.Write(ctx, tx, evs...) })
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	rows := fetch(t, db.Driver().Relay)
	if len(rows) != len(want) {
		t.Fatalf("%d rows, want %d", len(rows), len(want))
	}
	for i, row := range rows {
		if string(row.Event.Payload) != want[i] {
			t.Fatalf("row %d is %s, want %s", i, row.Event.Payload, want[i])
		}
		if row.Seq != int64(i)+1 {
			t.Fatalf("row %d has seq %d: a gap", i, row.Seq)
		}
	}
}

// TestDelayedKeepsItsPlace mixes ready and delayed events in one write: seqs
// are drawn in the order of the slice.
func TestDelayedKeepsItsPlace(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	var evs []waybill.Event
	for i := range 100 {
		ev := placed(fmt.Sprint(i))
		switch i % 4 {
		case 1:
			ev.Delay = time.Hour
		case 2:
			ev.AvailableAt = time.Now().Add(time.Hour)
		case 3:
			ev.AvailableAt = time.Now().Add(-time.Hour)
		}
		evs = append(evs, ev)
	}
	err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error { return box.Write(ctx, tx, evs...) })
	if err != nil {
		t.Fatal(err)
	}
	ready := fetch(t, db.Driver().Relay)
	if len(ready) != 50 {
		t.Fatalf("%d rows are ready, want 50", len(ready))
	}
	for i, row := range ready {
		want := i/2*4 + i%2*3
		if row.Seq != int64(want)+1 || string(row.Event.Payload) != fmt.Sprint(want) || !row.DueAt.IsZero() {
			t.Errorf("ready row %d: seq %d, payload %s, due %v; want event %d", i, row.Seq, row.Event.Payload, row.DueAt, want)
		}
	}
	var late int
	if err := db.DB().QueryRowContext(t.Context(),
		`SELECT count(*) FROM waybill_delayed WHERE seq = CAST(payload AS TEXT) + 1 AND due_at > created_at`).Scan(&late); err != nil {
		t.Fatal(err)
	}
	if late != 50 {
		t.Errorf("%d events are delayed with their own seq, want 50", late)
	}
}

// TestAppendOtherHandle writes to a transaction of another handle on the same
// file, with and without prepared statements.
func TestAppendOtherHandle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	db := openAt(t, path, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	other := openAt(t, path, sqlitestore.Config{})
	for i := range 3 {
		tx, err := other.DB().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := box.Write(t.Context(), tx, placed("1"), placed("2")); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		write(t, box, placed("3")) // prepares the statements
		if n := len(fetch(t, db.Driver().Relay)); n != (i+1)*3 {
			t.Fatalf("%d rows, want %d", n, (i+1)*3)
		}
	}
}

// hidden is a transaction of a library that hides its *sql.Tx.
type hidden struct{ tx *sql.Tx }

func (h hidden) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return h.tx.ExecContext(ctx, query, args...)
}

func (h hidden) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return h.tx.QueryContext(ctx, query, args...)
}
func (h hidden) Commit() error   { return h.tx.Commit() }
func (h hidden) Rollback() error { return h.tx.Rollback() }

func TestAppendSQL(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	tx, err := db.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	keyed := placed("1")
	keyed.DedupKey = "k"
	if err := outbox.WriteSQL(t.Context(), box, hidden{tx}, keyed, placed("2"), keyed); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if n := len(fetch(t, db.Driver().Relay)); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
	if err := outbox.WriteSQL(t.Context(), box, hidden{tx}, placed("3")); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("on a finished transaction: %v, want ErrTxDone", err)
	}
}

// TestAppendAllOrNone makes a write fail in its last statement, in a caller's
// transaction that commits anyway.
func TestAppendAllOrNone(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	taken := write(t, box, placed("0"))
	var evs []waybill.Event
	for i := range 70 {
		ev := placed(fmt.Sprint(i))
		if i == 3 {
			ev.DedupKey = "k"
		}
		evs = append(evs, ev)
	}
	evs[69].ID = taken
	tx, err := db.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Write(t.Context(), tx, placed("before")); err == nil {
		t.Fatal("an invalid payload was accepted")
	}
	if err := box.Write(t.Context(), tx, placed(`"before"`)); err != nil {
		t.Fatal(err)
	}
	if err := box.Write(t.Context(), tx, evs...); err == nil {
		t.Fatal("an id that is taken was accepted")
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if rows := fetch(t, db.Driver().Relay); len(rows) != 2 {
		t.Errorf("%d rows, want the first event and the event before the failure", len(rows))
	}
	evs[69].ID = waybill.ID{}
	tx, err = db.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // the test is over then
	receipts, err := box.WriteEach(t.Context(), tx, evs...)
	if err != nil {
		t.Fatal(err)
	}
	if receipts[3].Outcome != outbox.Written {
		t.Errorf("the key was kept by a write that failed: %v", receipts[3].Outcome)
	}
}

func TestAppendReadOnly(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	err := box.InTxWith(t.Context(), &sql.TxOptions{ReadOnly: true}, func(ctx context.Context, tx *sql.Tx) error {
		return box.Write(ctx, tx, placed("1"))
	})
	if err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a write in a read-only transaction: %v", err)
	}
}

// TestReadOnlyDoesNotQueue opens a read-only transaction while another
// transaction writes.
func TestReadOnlyDoesNotQueue(t *testing.T) {
	db := open(t, sqlitestore.Config{BusyTimeout: -1})
	box := newBox(t, db.Driver().Outbox)
	err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		if err := box.Write(ctx, tx, placed("1")); err != nil {
			return err
		}
		reader, err := db.Driver().Outbox.Begin(ctx, &sql.TxOptions{ReadOnly: true})
		if err != nil {
			return err
		}
		var n int
		if err := reader.Tx().QueryRowContext(ctx, `SELECT count(*) FROM waybill_outbox`).Scan(&n); err != nil || n != 0 {
			t.Errorf("the reader sees %d rows, %v", n, err)
		}
		return reader.Rollback(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestSameEventTwice writes an event with a dedup key again under its own id,
// which must not be reported as written.
func TestSameEventTwice(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	ev := placed("1")
	ev.DedupKey = "k"
	ev = eventfill.Defaults(ev)
	for i := range 2 {
		session, err := db.Driver().Outbox.Begin(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = db.Driver().Outbox.Append(t.Context(), session.Tx(), []waybill.Event{ev})
		if (err == nil) != (i == 0) {
			t.Errorf("write %d: %v", i+1, err)
		}
		if i == 0 {
			_, err = session.Commit(t.Context(), nil, false)
		} else {
			err = session.Rollback(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

var _ driver.SQLTx = hidden{}

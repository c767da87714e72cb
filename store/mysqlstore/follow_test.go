package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// The number of lanes changes while a service that remembers the old number
// continues to write: every event is in an existing lane, and every aggregate
// in its own.
func TestWritersFollowTheLanes(t *testing.T) { onBoth(t, testWritersFollowTheLanes) }

func testWritersFollowTheLanes(t *testing.T) {
	for _, c := range []struct{ from, to int }{{32, 4}, {4, 32}, {32, 1}} {
		t.Run(fmt.Sprint(c.from, " to ", c.to), func(t *testing.T) {
			db, _ := openDB(t, nil)
			writer, err := mysqlstore.New(db, mysqlstore.Config{Lanes: c.from})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := writer.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			exec(t, db, "CREATE TABLE business (note VARCHAR(190)) ENGINE=InnoDB")
			write(t, writer, db, event("first"))
			old := begin(t, db, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
			var n int
			// Takes the snapshot.
			if err := old.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM business").Scan(&n); err != nil {
				t.Fatal(err)
			}
			operator := newStore(t, db)
			if err := operator.Driver().OutboxAdmin.SetLanes(t.Context(), c.to); err != nil {
				t.Fatal(err)
			}
			// Each kind of write has statements of its own.
			late, dedup := event("late"), keyed("k")
			late.Delay = time.Hour
			var many []waybill.Event
			for i := range 250 {
				many = append(many, event(fmt.Sprint("a", i%50)), event(""))
			}
			all := append([]waybill.Event{late, dedup}, many...)
			// The server does not show changed tables to an older snapshot; the
			// transaction has to be run again.
			if _, err := writer.Driver().Outbox.Append(t.Context(), old, all); err == nil || !writer.Driver().Inbox.(driver.RetryClassifier).IsRetryable(err) {
				t.Errorf("a write behind an old snapshot: %v, want a retryable error", err)
			}
			if err := old.Rollback(); err != nil {
				t.Fatal(err)
			}
			placed := write(t, writer, db, all...)
			for _, one := range append(placed, write(t, writer, db, event("x"), event(""))...) {
				if one.Lane >= c.to {
					t.Fatalf("the writer says that an event is in lane %d of %d", one.Lane, c.to)
				}
			}
			for i := range 50 {
				write(t, operator, db, event(fmt.Sprint("a", i)))
			}
			for _, table := range []string{"waybill_outbox", "waybill_delayed"} {
				if n := ask[int](t, db, "SELECT COUNT(*) FROM "+table+" WHERE lane < 0 OR lane >= ?", c.to); n != 0 {
					t.Errorf("%d rows of %s are in missing lanes", n, table)
				}
				if n := ask[int](t, db, "SELECT COUNT(*) FROM (SELECT aggregate_id FROM "+table+" WHERE aggregate_id <> '' GROUP BY aggregate_id HAVING COUNT(DISTINCT lane) > 1) AS s"); n != 0 {
					t.Errorf("%d aggregates of %s are in two lanes", n, table)
				}
			}
			// A plain insert cannot use a missing lane, either.
			if _, err := db.ExecContext(t.Context(), "INSERT INTO waybill_outbox (type, lane, payload) VALUES ('x', ?, '')", c.to); err == nil {
				t.Error("a plain insert into a missing lane was accepted")
			}
		})
	}
}

// InTx reports the real outcome, even if the server ended the transaction on
// its own and no hook checks for that.
func TestInTxTellsTheTruth(t *testing.T) { onBoth(t, testInTxTellsTheTruth) }

func testInTxTellsTheTruth(t *testing.T) {
	s, db := openStore(t, nil)
	exec(t, db, "CREATE TABLE business_rows (id INT PRIMARY KEY, n INT) ENGINE=InnoDB")
	exec(t, db, "CREATE TABLE made_inside (id INT) ENGINE=InnoDB")
	box := newBox(t, s)
	failure := errors.New("the caller's")
	ddl := func(tx *sql.Tx) { exec(t, tx, "ALTER TABLE made_inside COMMENT = ''") }
	for _, c := range []struct {
		name      string
		inside    func(tx *sql.Tx) error
		uncertain bool
		committed bool
	}{
		{"a deadlock is swallowed", func(tx *sql.Tx) error { deadlock(t, db, tx); return nil }, true, false},
		{"a deadlock is swallowed, and work goes on", func(tx *sql.Tx) error {
			deadlock(t, db, tx)
			exec(t, tx, "INSERT INTO business (note) VALUES ('alone')")
			return nil
		}, true, false},
		{"a deadlock is swallowed, and something else fails", func(tx *sql.Tx) error { deadlock(t, db, tx); return failure }, false, false},
		{"a DDL statement", func(tx *sql.Tx) error { ddl(tx); return nil }, true, true},
		{"a DDL statement, and then something fails", func(tx *sql.Tx) error { ddl(tx); return failure }, true, true},
		{"something fails", func(*sql.Tx) error { return failure }, false, false},
		{"nothing special", func(*sql.Tx) error { return nil }, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ev := event("a")
			err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				if err := box.Write(ctx, tx, ev); err != nil {
					return err
				}
				return c.inside(tx)
			})
			var uncertain *outbox.UncertainError
			switch {
			case errors.As(err, &uncertain) != c.uncertain:
				t.Errorf("InTx: %v; want an UncertainError: %t", err, c.uncertain)
			case !c.uncertain && (err == nil) != c.committed:
				t.Errorf("InTx: %v, but the event is committed: %t", err, c.committed)
			case c.uncertain && !errors.Is(err, waybill.ErrTxDone):
				t.Errorf("InTx: %v, want ErrTxDone", err)
			}
			if got, err := box.Committed(t.Context(), ev.ID); err != nil || got != c.committed {
				t.Errorf("Committed is %v, %v; want %v", got, err, c.committed)
			}
		})
	}
	// A swallowed deadlock is not a success without an event, either.
	err := box.InTx(t.Context(), func(_ context.Context, tx *sql.Tx) error {
		exec(t, tx, "INSERT INTO business (note) VALUES ('lost')")
		deadlock(t, db, tx)
		return nil
	})
	if !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("InTx without an event: %v, want ErrTxDone", err)
	}
	if n := ask[int](t, db, "SELECT COUNT(*) FROM business WHERE note = 'lost'"); n != 0 {
		t.Errorf("%d rows", n)
	}
}

// TestNewTablesRefuseOtherLanes: the tables that a migration creates refuse an
// event in a lane that does not exist, or in the lane of another aggregate.
func TestNewTablesRefuseOtherLanes(t *testing.T) { onBoth(t, testNewTablesRefuseOtherLanes) }

func testNewTablesRefuseOtherLanes(t *testing.T) {
	db, _ := openDB(t, nil)
	writer := newStore(t, db)
	if _, err := writer.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	write(t, writer, db, event("first"), event(""))
	for what, change := range map[string]string{
		"a lane that does not exist":    "UPDATE waybill_outbox SET lane = 32 WHERE aggregate_id IS NULL",
		"a negative lane":               "UPDATE waybill_outbox SET lane = -1 WHERE aggregate_id IS NULL",
		"the lane of another aggregate": "UPDATE waybill_outbox SET lane = (lane + 1) % 32 WHERE aggregate_id = 'first'",
	} {
		if _, err := db.ExecContext(t.Context(), change); err == nil {
			t.Errorf("an event is in %s", what)
		}
	}
}

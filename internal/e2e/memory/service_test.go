package memory

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/memstore"
)

// service is a service whose code begins its transactions itself. The test
// reads what its relay delivers.
type service struct {
	db    *sql.DB
	store *memstore.Store[*sql.Tx]
	box   *outbox.Outbox[*sql.Tx]
}

func newService(t *testing.T, db *sql.DB) service {
	t.Helper()
	store, err := memstore.OverDB(db, memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(store, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return service{db: db, store: store, box: box}
}

// event returns an event whose id the test knows before the write.
func event(name string) waybill.Event {
	ev := waybill.NewEvent("NoteTaken", name)
	ev.ID, ev.AggregateType, ev.AggregateID = waybill.NewID(), "note", "1"
	return ev
}

// delivers fails the test unless the relay delivers exactly these payloads, in
// this order.
func (s service) delivers(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	sink := relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		got = append(got, strings.Trim(string(d.Payload), `"`))
		return nil
	})
	r, err := relay.New(s.store, sink, relay.Config{Logger: slog.New(slog.DiscardHandler), TakeOver: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("delivered %q, want %q", got, want)
	}
}

func exec(t *testing.T, tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, statements ...string,
) {
	t.Helper()
	for _, statement := range statements {
		if _, err := tx.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
}

// TestServiceTransactions: in transactions of db.BeginTx an event exists when,
// and only when, the transaction has committed.
func TestServiceTransactions(t *testing.T) {
	for name, open := range map[string]database{"sqlite": sqlite, "postgres": postgres} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, open(t, memstore.OpenDB))
			run(t, s.db, `CREATE TABLE note (name VARCHAR(20) PRIMARY KEY)`)
			begin := func(ctx context.Context, events ...string) *sql.Tx {
				tx, err := s.db.BeginTx(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				exec(t, tx, `INSERT INTO note VALUES ('`+strings.Join(events, `'), ('`)+`')`)
				for _, name := range events {
					if err := s.box.Write(t.Context(), tx, event(name)); err != nil {
						t.Fatal(err)
					}
				}
				return tx
			}

			tx := begin(t.Context(), "a", "b")
			s.delivers(t)
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			s.delivers(t, "a", "b")

			tx = begin(t.Context(), "c")
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			// database/sql rolls back when the context ends
			ctx, cancel := context.WithCancel(t.Context())
			tx = begin(ctx, "c")
			cancel()
			if err := tx.Commit(); !errors.Is(err, context.Canceled) && !errors.Is(err, sql.ErrTxDone) {
				t.Errorf("Commit: %v", err)
			}
			_ = tx.Rollback() // or database/sql has done so; pgx fails, and closes the connection
			if err := s.box.Write(t.Context(), tx, event("late")); !errors.Is(err, waybill.ErrTxDone) {
				t.Errorf("Write after the end: %v, want ErrTxDone", err)
			}
			s.delivers(t)
			// The connection is used again.
			if err := begin(t.Context(), "c").Commit(); err != nil {
				t.Fatal(err)
			}
			s.delivers(t, "c")
		})
	}
}

// TestTwoStores: stores over one database keep their events apart, one in its
// own transaction and one as a guest.
func TestTwoStores(t *testing.T) {
	first := newService(t, sqlite(t, memstore.OpenDB))
	second := newService(t, first.db)
	write := func(end error) error {
		return first.box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			exec(t, tx, `SAVEPOINT a`)
			err := errors.Join(second.box.Write(ctx, tx, event("second")), first.box.Write(ctx, tx, event("first")))
			exec(t, tx, `SAVEPOINT b`)
			err = errors.Join(err, second.box.Write(ctx, tx, event("lost")), first.box.Write(ctx, tx, event("lost")))
			exec(t, tx, `ROLLBACK TO b`, `RELEASE a`)
			return errors.Join(err, end)
		})
	}
	if err := write(errors.New("no")); err == nil {
		t.Error("InTx has lost the function's error")
	}
	first.delivers(t)
	second.delivers(t)
	if err := write(nil); err != nil {
		t.Fatal(err)
	}
	first.delivers(t, "first")
	second.delivers(t, "second")
}

// TestSavepointTexts: the texts of savepoints that databases accept, as plain
// and as prepared statements, and names with and without quotes.
func TestSavepointTexts(t *testing.T) {
	for _, c := range []struct{ name, set, back string }{
		{"plain", `SAVEPOINT s1`, `ROLLBACK TO s1`},
		{"of PostgreSQL", `savepoint S1 ;`, "ROLLBACK\n WORK to savepoint s1;"},
		{"of SQLite", `SAVEPOINT "s1"`, `ROLLBACK TRANSACTION TO SAVEPOINT s1`},
	} {
		for _, prepared := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/prepared=%t", c.name, prepared), func(t *testing.T) {
				open := postgres
				if strings.Contains(c.back, "TRANSACTION") {
					open = sqlite
				}
				s := newService(t, open(t, memstore.OpenDB))
				tx, err := s.db.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tx.Rollback() }()
				do := func(text string) {
					t.Helper()
					if !prepared {
						exec(t, tx, text)
						return
					}
					stmt, err := tx.PrepareContext(t.Context(), text)
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = stmt.Close() }()
					if _, err := stmt.ExecContext(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				write := func(name string) {
					t.Helper()
					if err := s.box.Write(t.Context(), tx, event(name)); err != nil {
						t.Fatal(err)
					}
				}
				write("a")
				do(c.set)
				write("lost")
				do(`SAVEPOINT s2`)
				write("lost")
				do(c.back)
				write("b")
				do(c.back) // it is still there
				write("c")
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				s.delivers(t, "a", "c")
			})
		}
	}
}

// TestUnseenSavepoint: a savepoint that came with other statements is refused
// when the transaction returns to it: the events could not follow.
func TestUnseenSavepoint(t *testing.T) {
	s := newService(t, sqlite(t, memstore.OpenDB))
	err := s.box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		exec(t, tx, `SELECT 1; SAVEPOINT a`)
		if err := s.box.Write(ctx, tx, event("a")); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `ROLLBACK TO a`)
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "has not seen the SAVEPOINT") {
		t.Errorf("InTx: %v", err)
	}
	s.delivers(t)
}

// TestHiddenTransaction: WriteSQL joins transactions of libraries.
func TestHiddenTransaction(t *testing.T) {
	s := newService(t, postgres(t, memstore.OpenDB))
	for _, commit := range []bool{false, true} {
		tx, err := sqlx.NewDb(s.db, "pgx").BeginTxx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := outbox.WriteSQL(t.Context(), s.box, tx, event("a")); err != nil {
			t.Fatal(err)
		}
		end := tx.Rollback
		if commit {
			end = tx.Commit
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	s.delivers(t, "a")
}

// TestFailedCommit: an event of a commit that the server refused does not
// exist. If the error does not say so, the outcome is uncertain.
func TestFailedCommit(t *testing.T) {
	for _, c := range []struct {
		name      string
		open      database
		uncertain bool
	}{{"postgres", postgres, false}, {"sqlite", sqlite, true}} {
		t.Run(c.name, func(t *testing.T) {
			s := newService(t, c.open(t, memstore.OpenDB))
			run(t, s.db, `CREATE TABLE parent (id INT PRIMARY KEY)`)
			run(t, s.db, `CREATE TABLE child (parent INT REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)`)
			mine, guest := event("a"), event("b")
			err := s.box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				exec(t, tx, `INSERT INTO child VALUES (7)`)
				return s.box.Write(ctx, tx, mine)
			})
			if err == nil || errors.Is(err, waybill.ErrUncertain) != c.uncertain {
				t.Errorf("InTx: %v", err)
			}
			tx, err := s.db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			exec(t, tx, `INSERT INTO child VALUES (7)`)
			if err := s.box.Write(t.Context(), tx, guest); err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(); err == nil {
				t.Error("the commit of a child without its parent succeeded")
			}
			for _, ev := range []waybill.Event{mine, guest} {
				if yes, err := s.box.Committed(t.Context(), ev.ID); yes || errors.Is(err, waybill.ErrUncertain) != c.uncertain {
					t.Errorf("Committed: %v, %v", yes, err)
				}
			}
			s.delivers(t)
		})
	}
}

// TestUnfollowedDatabase: over a database of sql.Open the store follows its own
// transactions only. A write to another one is refused and leaves it usable,
// also a write to a transaction of another database than the store's.
func TestUnfollowedDatabase(t *testing.T) {
	plain := newService(t, postgres(t, sql.Open))
	followed := newService(t, sqlite(t, memstore.OpenDB))
	run(t, plain.db, `CREATE TABLE note (name TEXT)`)
	tx, err := plain.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, box := range []*outbox.Outbox[*sql.Tx]{plain.box, followed.box} {
		if err := box.Write(t.Context(), tx, event("a")); err == nil {
			t.Error("an event was written to a transaction that the store cannot follow")
		} else if box == plain.box && !errors.Is(err, waybill.ErrNoTx) {
			t.Errorf("Write: %v, want ErrNoTx", err)
		}
	}
	if err := outbox.WriteSQL(t.Context(), plain.box, sqlx.Tx{Tx: tx}, event("a")); !errors.Is(err, waybill.ErrNoTx) {
		t.Errorf("WriteSQL: %v, want ErrNoTx", err)
	}
	exec(t, tx, `INSERT INTO note VALUES ('kept')`)
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
	err = plain.box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error { return plain.box.Write(ctx, tx, event("b")) })
	if err != nil {
		t.Error(err)
	}
	plain.delivers(t, "b")
	followed.delivers(t)
}

// TestOpenDBFails: a driver or a database that does not exist.
func TestOpenDBFails(t *testing.T) {
	if _, err := memstore.OpenDB("nothing", ""); err == nil {
		t.Error("OpenDB accepted an unknown driver")
	}
	if _, err := memstore.OpenDB("mysql", "no address"); err == nil {
		t.Error("OpenDB accepted an address that is none")
	}
	if _, err := memstore.OverDB(nil, memstore.Config{}); err == nil {
		t.Error("OverDB accepted no database")
	}
}

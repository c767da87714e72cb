package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// deadlock makes the transaction tx the victim of a deadlock, and swallows the
// server's error. tx must have changed little so far, because the server picks
// the victim by the number of changes.
func deadlock(t *testing.T, db *sql.DB, tx *sql.Tx) {
	t.Helper()
	exec(t, db, "REPLACE INTO business_rows (id, n) VALUES (1, 0), (2, 0)")
	other := begin(t, db, nil)
	exec(t, other, "UPDATE business_rows SET n = n + 1 WHERE id = 1")
	// The server picks the transaction that has changed less.
	for id := 100; id < 200; id++ {
		exec(t, other, "INSERT INTO business_rows (id, n) VALUES (?, 0)", id)
	}
	exec(t, tx, "UPDATE business_rows SET n = n + 1 WHERE id = 2")
	done := make(chan error, 1)
	go func() {
		_, err := other.ExecContext(context.WithoutCancel(t.Context()), "UPDATE business_rows SET n = n + 1 WHERE id = 2")
		done <- err
	}()
	_, err := tx.ExecContext(t.Context(), "UPDATE business_rows SET n = n + 1 WHERE id = 1")
	var answer *mysql.MySQLError
	if !errors.As(err, &answer) || answer.Number != 1213 {
		t.Fatalf("the deadlock ended with %v", err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := other.Rollback(); err != nil {
		t.Fatal(err)
	}
}

// conn is a connection without a transaction that implements the methods of
// one.
type conn struct{ *sql.Conn }

func (conn) Commit() error   { return nil }
func (conn) Rollback() error { return nil }

// writes lists the kinds of writes, each with statements of its own.
func writes() map[string][]waybill.Event {
	many := make([]waybill.Event, 150)
	for i := range many {
		many[i] = event("a")
	}
	late := event("a")
	late.Delay = time.Hour
	large := []waybill.Event{event("a"), event("b"), event("c")}
	for i := range large {
		large[i].ContentType, large[i].Payload = "x", make([]byte, 1<<20)
	}
	return map[string][]waybill.Event{
		"one": {event("a")}, "several": many[:7], "many": many, "keyed": {keyed("k")}, "late": {late}, "large": large,
	}
}

// A write to a transaction that the server has ended, or that was never begun,
// is refused, and leaves nothing behind.
func TestWriteNeedsAnOpenTransaction(t *testing.T) { onBoth(t, testWriteNeedsAnOpenTransaction) }

func testWriteNeedsAnOpenTransaction(t *testing.T) {
	ways := map[string]func(t *testing.T, db *sql.DB, tx *sql.Tx) driver.SQLTx{
		"deadlock": func(t *testing.T, db *sql.DB, tx *sql.Tx) driver.SQLTx { deadlock(t, db, tx); return tx },
		"DDL": func(t *testing.T, _ *sql.DB, tx *sql.Tx) driver.SQLTx {
			exec(t, tx, "CREATE TABLE IF NOT EXISTS made_inside (id INT) ENGINE=InnoDB")
			return tx
		},
		"COMMIT as text": func(t *testing.T, _ *sql.DB, tx *sql.Tx) driver.SQLTx { exec(t, tx, "COMMIT"); return tx },
		"autocommit": func(t *testing.T, db *sql.DB, _ *sql.Tx) driver.SQLTx {
			c, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			return conn{c}
		},
	}
	for _, asMySQL := range []bool{false, true} {
		s, db := openStore(t, nil)
		exec(t, db, "CREATE TABLE business_rows (id INT PRIMARY KEY, n INT) ENGINE=InnoDB")
		if asMySQL {
			if err := s.PretendMySQL(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		// The prepared statements must prove the transaction as well.
		box := newBox(t, s)
		for range 2 {
			for _, evs := range writes() {
				if err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
					return errors.Join(box.Write(ctx, tx, evs...), errRollback)
				}); !errors.Is(err, errRollback) {
					t.Fatal(err)
				}
			}
		}
		if s.Prepared() == 0 {
			t.Error("nothing is prepared")
		}
		for way, end := range ways {
			for what, evs := range writes() {
				tx := end(t, db, begin(t, db, nil))
				for name, write := range map[string]func() ([]driver.AppendResult, error){
					"Append": func() ([]driver.AppendResult, error) {
						if plain, ok := tx.(*sql.Tx); ok {
							return s.Driver().Outbox.Append(t.Context(), plain, evs)
						}
						return s.Driver().Outbox.(driver.SQLAppender).AppendSQL(t.Context(), tx, evs)
					},
					"AppendSQL": func() ([]driver.AppendResult, error) {
						return s.Driver().Outbox.(driver.SQLAppender).AppendSQL(t.Context(), tx, evs)
					},
				} {
					if _, err := write(); !errors.Is(err, waybill.ErrTxDone) {
						t.Errorf("%s after %s, %s (as MySQL: %t): %v, want ErrTxDone", name, way, what, asMySQL, err)
					}
				}
				if plain, ok := tx.(*sql.Tx); ok {
					_ = plain.Rollback()
				}
			}
		}
		for _, table := range []string{"waybill_outbox", "waybill_delayed", "waybill_dedup"} {
			if n := ask[int](t, db, "SELECT COUNT(*) FROM "+table); n != 0 {
				t.Errorf("%s has %d rows, want none (as MySQL: %t)", table, n, asMySQL)
			}
		}
	}
}

// The transaction check on MySQL changes nothing outside of a transaction: the
// session is still read-only after its ROLLBACK.
func TestProofChangesNothing(t *testing.T) { onBoth(t, testProofChangesNothing) }

func testProofChangesNothing(t *testing.T) {
	s, db := openStore(t, nil)
	if err := s.PretendMySQL(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // nothing is left on it
	exec(t, c, "SET SESSION TRANSACTION READ ONLY")
	tx, err := c.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, tx, "COMMIT")
	if _, err := s.Driver().Outbox.Append(t.Context(), tx, []waybill.Event{event("a")}); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("Append: %v, want ErrTxDone", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if tx, err = c.BeginTx(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // the test is over then
	_, err = s.Driver().Outbox.Append(t.Context(), tx, []waybill.Event{event("a")})
	var answer *mysql.MySQLError
	if !errors.As(err, &answer) || answer.Number != 1792 {
		t.Errorf("a write to a transaction of a read-only session: %v, want the server's refusal", err)
	}
}

var errRollback = errors.New("roll back")

func newBox(t testing.TB, s *mysqlstore.Store, hooks ...outbox.Hook) *outbox.Outbox[*sql.Tx] {
	t.Helper()
	box, err := outbox.New(s, outbox.Config{Hooks: hooks})
	if err != nil {
		t.Fatal(err)
	}
	return box
}

// A transaction that the server ended after the write must not be announced: a
// deadlock has rolled the event back, a DDL statement has committed it.
func TestEndedBeforeTheCommit(t *testing.T) { onBoth(t, testEndedBeforeTheCommit) }

func testEndedBeforeTheCommit(t *testing.T) {
	for _, asMySQL := range []bool{false, true} {
		s, db := openStore(t, nil)
		exec(t, db, "CREATE TABLE business_rows (id INT PRIMARY KEY, n INT) ENGINE=InnoDB")
		if asMySQL {
			if err := s.PretendMySQL(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		announced := 0
		box := newBox(t, s, outbox.Hook{AfterCommit: func(context.Context, outbox.AfterCommitInfo) { announced++ }})
		for _, committed := range []bool{false, true} {
			ev := event("a")
			err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				if err := box.Write(ctx, tx, ev); err != nil {
					return err
				}
				if committed {
					exec(t, tx, "CREATE TABLE IF NOT EXISTS made_inside (id INT) ENGINE=InnoDB")
				} else {
					deadlock(t, db, tx)
				}
				return nil
			})
			var uncertain *outbox.UncertainError
			if !errors.As(err, &uncertain) || !errors.Is(err, waybill.ErrTxDone) {
				t.Errorf("InTx: %v, want an UncertainError with ErrTxDone", err)
			}
			if got, err := box.Committed(t.Context(), ev.ID); err != nil || got != committed {
				t.Errorf("Committed is %v, %v; want %v", got, err, committed)
			}
		}
		if announced != 0 {
			t.Errorf("AfterCommit ran %d times", announced)
		}
	}
}

// A lock wait timeout fails the write, and the unit rolls back even if the
// error is swallowed: the server has undone only one statement.
func TestLockWaitTimeout(t *testing.T) { onBoth(t, testLockWaitTimeout) }

func testLockWaitTimeout(t *testing.T) {
	s, db := openStore(t, func(c *mysql.Config) { c.Params = map[string]string{"innodb_lock_wait_timeout": "1"} })
	box := newBox(t, s)
	holder := begin(t, db, nil)
	if _, err := s.Driver().Outbox.Append(t.Context(), holder, []waybill.Event{keyed("k")}); err != nil {
		t.Fatal(err)
	}
	var inside error
	err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		exec(t, tx, "INSERT INTO business (note) VALUES ('lost')")
		inside = box.Write(ctx, tx, event("a"), keyed("k"))
		return nil
	})
	var answer *mysql.MySQLError
	if !errors.As(inside, &answer) || answer.Number != 1205 {
		t.Errorf("Write: %v, want the server's timeout", inside)
	}
	if err == nil || errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("InTx: %v, want a rollback", err)
	}
	if n := ask[int](t, db, "SELECT COUNT(*) FROM business"); n != 0 {
		t.Errorf("%d business rows are committed, want none", n)
	}
	// The caller's transaction may continue; it contains nothing of the write.
	foreign := begin(t, db, nil)
	exec(t, foreign, "INSERT INTO business (note) VALUES ('kept')")
	if _, err := s.Driver().Outbox.Append(t.Context(), foreign, []waybill.Event{event("a"), keyed("j"), keyed("k")}); err == nil {
		t.Error("a write that had to wait succeeded")
	}
	if err := foreign.Commit(); err != nil {
		t.Fatal(err)
	}
	if rows := ready(t, s); len(rows) != 0 {
		t.Errorf("%d events of a write that failed are committed", len(rows))
	}
	if n := ask[int](t, db, "SELECT COUNT(*) FROM waybill_dedup"); n != 0 {
		t.Errorf("%d dedup keys of a write that failed are committed", n)
	}
	if n := ask[int](t, db, "SELECT COUNT(*) FROM business"); n != 1 {
		t.Errorf("%d business rows are committed, want 1", n)
	}
}

// A transaction of another pool on the same database cannot use the prepared
// statements; the write succeeds without them.
func TestTransactionOfAnotherPool(t *testing.T) { onBoth(t, testTransactionOfAnotherPool) }

func testTransactionOfAnotherPool(t *testing.T) {
	s, db := openStore(t, nil)
	box := newBox(t, s)
	for range 2 {
		if err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error { return box.Write(ctx, tx, event("a")) }); err != nil {
			t.Fatal(err)
		}
	}
	if s.Prepared() == 0 {
		t.Fatal("nothing is prepared")
	}
	other := pool(t, configOf(t, ask[string](t, db, "SELECT DATABASE()")))
	tx := begin(t, other, nil)
	if _, err := s.Driver().Outbox.Append(t.Context(), tx, []waybill.Event{event("a")}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if rows := ready(t, s); len(rows) != 3 {
		t.Errorf("%d events are ready, want 3", len(rows))
	}
}

// With a single connection, nothing waits for a second one.
func TestPoolOfOne(t *testing.T) { onBoth(t, testPoolOfOne) }

func testPoolOfOne(t *testing.T) {
	s, db := openStore(t, nil)
	db.SetMaxOpenConns(1)
	box := newBox(t, s, outbox.Hook{AfterCommit: func(context.Context, outbox.AfterCommitInfo) {}})
	for range 3 {
		for _, evs := range writes() {
			if err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				return errors.Join(box.Write(ctx, tx, evs...), errRollback)
			}); !errors.Is(err, errRollback) {
				t.Fatal(err)
			}
		}
	}
	fresh := newStore(t, db) // has no cached facts
	tx := begin(t, db, nil)
	if _, err := fresh.Driver().Outbox.Append(t.Context(), tx, []waybill.Event{event("a"), keyed("k")}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if rows := ready(t, s); len(rows) != 2 {
		t.Errorf("%d events are ready, want 2", len(rows))
	}
}

package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// deliveries returns rows as deliveries to a sink. leases cover all lanes, in
// order.
func deliveries(rows []store.Row, leases []driver.Lease, history bool) []waybill.Delivery {
	var list []waybill.Delivery
	for _, row := range rows {
		l := leases[row.Lane]
		list = append(list, waybill.Delivery{Event: row.Event, Attempt: 1, Position: waybill.Position{Lane: l.Lane, Epoch: l.Epoch, Seq: row.Seq}, Claim: &driver.Claim{Token: l.Token, History: history}})
	}
	return list
}

func finish(t testing.TB, s *mysqlstore.Store, tx *sql.Tx, done []waybill.Delivery) {
	t.Helper()
	if err := s.Driver().Finisher.Finish(t.Context(), tx, done); err != nil {
		t.Fatal(err)
	}
}

var levels = []sql.IsolationLevel{sql.LevelDefault, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}

// Finish works at every isolation level, although the transaction's snapshot is
// older than the events and than their later states: some events were deferred
// in the meantime.
func TestFinishWithAnOldSnapshot(t *testing.T) { onBoth(t, testFinishWithAnOldSnapshot) }

func testFinishWithAnOldSnapshot(t *testing.T) {
	for _, level := range levels {
		for _, pretend := range []bool{false, true} {
			s, db := openStore(t, impatient)
			if pretend {
				if err := s.PretendMySQL(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			_, leases := own(t, s)
			write(t, s, db, event("before"))
			tx := begin(t, db, &sql.TxOptions{Isolation: level})
			takeSnapshot(t, tx)
			write(t, s, db, keyed("k"), event("b"), event("c"))
			rows := ready(t, s)
			put := slices.DeleteFunc(results(rows), func(r driver.Result) bool {
				i := slices.IndexFunc(rows, func(row store.Row) bool { return row.ID == r.ID })
				return rows[i].Event.AggregateID == "a" || rows[i].Event.AggregateID == "c"
			})
			settle(t, s, driver.Settlement{Leases: leases, Retry: put})
			done := deliveries(rows, leases, true)
			finish(t, s, tx, append(done, done[0]))
			exec(t, tx, "INSERT INTO business (note) VALUES ('x')")
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			if n := counts(t, db); n["history"] != 4 || n["outbox"] != 0 || n["delayed"] != 0 || n["dedup"] != 0 {
				t.Errorf("%v, as MySQL %t: %v", level, pretend, n)
			}
			if n := ask[int](t, db, "SELECT SUM(attempts) FROM waybill_history"); n != 2 {
				t.Errorf("%v: the history has %d attempts", level, n)
			}
		}
	}
}

// A rolled-back Finish has no effect; the history gap is recorded in the same
// transaction.
func TestFinishWithoutHistory(t *testing.T) { onBoth(t, testFinishWithoutHistory) }

func testFinishWithoutHistory(t *testing.T) {
	s, db := openStore(t, nil)
	_, leases := own(t, s)
	write(t, s, db, keyed("k"), event("b"))
	rows := ready(t, s)
	done := append(deliveries(rows[:1], leases, false), deliveries(rows[1:], leases, true)...)
	for _, commit := range []bool{false, true} {
		tx := begin(t, db, nil)
		finish(t, s, tx, done)
		end := tx.Rollback
		if commit {
			end = tx.Commit
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Driver().Outbox.Committed(t.Context(), waybill.NewID()); errors.Is(err, waybill.ErrUncertain) != commit {
			t.Errorf("committed %t: Committed of an unknown event: %v", commit, err)
		}
		if n := counts(t, db); commit && (n["history"] != 1 || n["outbox"] != 0 || n["dedup"] != 0) || !commit && (n["outbox"] != 2 || n["dedup"] != 1) {
			t.Errorf("committed %t: %v", commit, n)
		}
	}
}

// If one of several fences is lost, nothing changes, and the error names the
// lane.
func TestFinishLost(t *testing.T) { onBoth(t, testFinishLost) }

func testFinishLost(t *testing.T) {
	s, db := openStore(t, nil)
	_, leases := own(t, s)
	write(t, s, db, event("a"), event("b"))
	rows := ready(t, s)
	for _, spoil := range []func(*driver.Lease){
		func(l *driver.Lease) { l.Epoch-- },
		func(l *driver.Lease) { l.Token = waybill.NewID() },
		func(l *driver.Lease) { l.Lane = 99 },
	} {
		stale := slices.Clone(leases)
		spoil(&stale[rows[1].Lane])
		tx := begin(t, db, nil)
		err := s.Driver().Finisher.Finish(t.Context(), tx, append(deliveries(rows[:1], leases, false), deliveries(rows[1:], stale, true)...))
		if !errors.Is(err, waybill.ErrLeaseLost) || !strings.HasPrefix(err.Error(), "mysqlstore: finish: lane ") {
			t.Errorf("Finish: %v, want ErrLeaseLost", err)
		}
		// The error was swallowed: still nothing has changed.
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if n := counts(t, db); n["outbox"] != 2 || n["history"] != 0 {
			t.Errorf("after it: %v", n)
		}
	}
	if err := s.Driver().Finisher.Finish(t.Context(), nil, nil); err != nil {
		t.Errorf("nothing to finish: %v", err)
	}
}

// A transaction that the server has ended is refused: the events would be
// settled on their own.
func TestFinishNeedsAnOpenTransaction(t *testing.T) { onBoth(t, testFinishNeedsAnOpenTransaction) }

func testFinishNeedsAnOpenTransaction(t *testing.T) {
	for _, pretend := range []bool{false, true} {
		s, db := openStore(t, nil)
		if pretend {
			if err := s.PretendMySQL(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		exec(t, db, "CREATE TABLE business_rows (id INT PRIMARY KEY, n INT) ENGINE=InnoDB")
		_, leases := own(t, s)
		write(t, s, db, event("a"))
		done := deliveries(ready(t, s), leases, true)
		ways := map[string]func(tx *sql.Tx){
			"deadlock": func(tx *sql.Tx) { deadlock(t, db, tx) },
			"DDL":      func(tx *sql.Tx) { exec(t, tx, "CREATE TABLE IF NOT EXISTS business_other (id INT)") },
			"rollback": func(tx *sql.Tx) { _ = tx.Rollback() },
		}
		for name, end := range ways {
			tx := begin(t, db, nil)
			end(tx)
			if err := s.Driver().Finisher.Finish(t.Context(), tx, done); !errors.Is(err, waybill.ErrTxDone) {
				t.Errorf("%s: %v, want ErrTxDone", name, err)
			}
			_ = tx.Rollback()
			if n := counts(t, db); n["outbox"] != 1 || n["history"] != 0 {
				t.Fatalf("%s: %v", name, n)
			}
		}
	}
}

// The fence is a lock until the transaction ends: a take-over waits for it.
func TestTakeOverWaitsForFinish(t *testing.T) { onBoth(t, testTakeOverWaitsForFinish) }

func testTakeOverWaitsForFinish(t *testing.T) {
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) { takeOverWaits(t, level) })
	}
}

func takeOverWaits(t *testing.T, level sql.IsolationLevel) {
	s, db := openStore(t, nil)
	old, leases := own(t, s)
	write(t, s, db, event("a"))
	rows := ready(t, s)
	tx := begin(t, db, &sql.TxOptions{Isolation: level})
	finish(t, s, tx, deliveries(rows, leases, true))
	exec(t, db, "UPDATE waybill_node SET expires_at = UTC_TIMESTAMP(6) WHERE id = ?", old.ID[:])
	heir := store.Node{ID: waybill.NewID(), Relay: "test"}
	if _, err := s.Driver().Relay.Heartbeat(t.Context(), heir, time.Hour); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		leases []driver.Lease
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		leases, err := s.Driver().Relay.Acquire(t.Context(), heir, []int{rows[0].Lane}, 5)
		answers <- answer{leases, err}
	}()
	await(t, "the take-over waits, or has ended", func() bool {
		return len(answers) > 0 ||
			lockWaits(t, db) > 0
	})
	if len(answers) > 0 {
		t.Error("the take-over did not wait")
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if got := <-answers; got.err != nil || len(got.leases) != 1 {
		t.Errorf("the take-over: %+v", got)
	}
	if n := counts(t, db); n["outbox"] != 0 || n["history"] != 1 {
		t.Errorf("after it: %v", n)
	}
}

// A take-over that committed after the transaction's snapshot is detected.
func TestFinishSeesATakeOver(t *testing.T) { onBoth(t, testFinishSeesATakeOver) }

func testFinishSeesATakeOver(t *testing.T) {
	for _, level := range levels {
		s, db := openStore(t, nil)
		_, leases := own(t, s)
		write(t, s, db, event("a"))
		rows := ready(t, s)
		tx := begin(t, db, &sql.TxOptions{Isolation: level})
		takeSnapshot(t, tx)
		exec(t, db, "UPDATE waybill_lane SET epoch = epoch + 1, token = RANDOM_BYTES(16) WHERE lane = ?", rows[0].Lane)
		if err := s.Driver().Finisher.Finish(t.Context(), tx, deliveries(rows, leases, true)); !errors.Is(err, waybill.ErrLeaseLost) {
			t.Errorf("%v: %v, want ErrLeaseLost", level, err)
		}
		_ = tx.Rollback()
	}
}

// Until the transaction ends, producers, other settlements and the owners of
// other lanes continue.
func TestFinishBlocksNoOtherSession(t *testing.T) { onBoth(t, testFinishBlocksNoOtherSession) }

func testFinishBlocksNoOtherSession(t *testing.T) {
	for _, late := range []bool{false, true} {
		s, db := openStore(t, impatient)
		_, leases := own(t, s)
		write(t, s, db, event("a"), event("b"))
		rows := ready(t, s)
		if late {
			settle(t, s, driver.Settlement{Leases: leases, Retry: results(rows[:1])})
		}
		tx := begin(t, db, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		takeSnapshot(t, tx)
		finish(t, s, tx, deliveries(rows[:1], leases, true))
		later := event("c")
		later.Delay = time.Hour
		write(t, s, db, event("c"), later, keyed("k"))
		settle(t, s, driver.Settlement{Leases: leases, Retry: results(rows[1:])})
		node := store.Node{ID: waybill.NewID(), Relay: "test"}
		if _, err := s.Driver().Relay.Heartbeat(t.Context(), node, time.Hour); err != nil {
			t.Error(err)
		}
		if err := s.Driver().Relay.Release(t.Context(), leases[(rows[0].Lane+1)%32:][:1], false); err != nil {
			t.Error(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

// A dedup key that a producer has locked is left behind: Finish does not wait
// for it, and the next writer can take it.
func TestFinishNeverWaitsForAProducer(t *testing.T) { onBoth(t, testFinishNeverWaitsForAProducer) }

func testFinishNeverWaitsForAProducer(t *testing.T) {
	s, db := openStore(t, impatient)
	_, leases := own(t, s)
	write(t, s, db, keyed("k"))
	producer := begin(t, db, nil)
	if _, err := s.Driver().Outbox.Append(t.Context(), producer, []waybill.Event{keyed("k")}); err != nil {
		t.Fatal(err)
	}
	tx := begin(t, db, nil)
	finish(t, s, tx, deliveries(ready(t, s), leases, true))
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := producer.Commit(); err != nil {
		t.Fatal(err)
	}
	if keys(t, db) != 1 {
		t.Errorf("%d keys, want the locked one", keys(t, db))
	}
	if err := s.Driver().OutboxAdmin.Tidy(t.Context(), 0); err != nil || keys(t, db) != 0 {
		t.Errorf("%d keys are left after Tidy, %v", keys(t, db), err)
	}
}

// An error in the middle leaves nothing behind, in a transaction that
// continues; more events than one call takes are still all or nothing.
func TestFinishFails(t *testing.T) { onBoth(t, testFinishFails) }

func testFinishFails(t *testing.T) {
	for _, events := range []int{2, 2500} {
		s, db := openStore(t, nil)
		_, leases := own(t, s)
		evs := make([]waybill.Event, events)
		for i := range evs {
			evs[i] = event("a")
		}
		write(t, s, db, evs...)
		rows := ready(t, s)
		last := slices.MaxFunc(rows, func(a, b store.Row) int { return slices.Compare(a.ID[:], b.ID[:]) })
		exec(t, db, fmt.Sprintf("CREATE TRIGGER refused BEFORE DELETE ON waybill_outbox FOR EACH ROW "+
			"IF OLD.seq = %d THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'; END IF", last.Seq))
		tx := begin(t, db, nil)
		exec(t, tx, "INSERT INTO business (note) VALUES ('x')")
		if err := s.Driver().Finisher.Finish(t.Context(), tx, deliveries(rows, leases, true)); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%d events: %v, want the server's error", events, err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if n := counts(t, db); n["outbox"] != events || n["history"] != 0 || ask[int](t, db, "SELECT COUNT(*) FROM business") != 1 {
			t.Errorf("%d events: %v", events, n)
		}
		exec(t, db, "DROP TRIGGER refused")
		tx = begin(t, db, nil)
		finish(t, s, tx, deliveries(rows, leases, true))
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if n := counts(t, db); n["outbox"] != 0 || n["history"] != events {
			t.Errorf("%d events, in the end: %v", events, n)
		}
	}
}

// A deadlock in the middle is reported as such: the transaction has ended and
// can be run again.
func TestFinishInADeadlock(t *testing.T) { onBoth(t, testFinishInADeadlock) }

func testFinishInADeadlock(t *testing.T) {
	s, db := openStore(t, nil)
	_, leases := own(t, s)
	write(t, s, db, event("a"))
	rows := ready(t, s)
	exec(t, db, "CREATE TABLE business_rows (id INT PRIMARY KEY, n INT) ENGINE=InnoDB")
	exec(t, db, "INSERT INTO business_rows (id, n) VALUES (1, 0)")
	other := begin(t, db, nil)
	// The server picks the transaction that has changed less.
	for id := 100; id < 200; id++ {
		exec(t, other, "INSERT INTO business_rows (id, n) VALUES (?, 0)", id)
	}
	exec(t, other, "UPDATE waybill_outbox SET priority = 1 WHERE id = ?", rows[0].ID[:])
	tx := begin(t, db, nil)
	exec(t, tx, "UPDATE business_rows SET n = 1 WHERE id = 1")
	done := make(chan error, 1)
	go func() {
		_, err := other.ExecContext(context.WithoutCancel(t.Context()), "UPDATE business_rows SET n = 2 WHERE id = 1")
		done <- err
	}()
	err := s.Driver().Finisher.Finish(t.Context(), tx, deliveries(rows, leases, true))
	var answer *mysql.MySQLError
	if !errors.As(err, &answer) || answer.Number != 1213 {
		t.Errorf("Finish: %v, want a deadlock", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

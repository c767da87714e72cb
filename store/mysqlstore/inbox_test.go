package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// intakes returns n new events for a group.
func intakes(group string, n int) []store.InboxEntry {
	list := make([]store.InboxEntry, n)
	for i := range list {
		id := waybill.NewID()
		list[i] = store.InboxEntry{Group: group, Key: id, Event: id, Tenant: "t", Type: "OrderPlaced", Hash: [16]byte{1, byte(i)}}
	}
	return list
}

func accept(t testing.TB, s *mysqlstore.Store, tx *sql.Tx, owner waybill.ID, in []store.InboxEntry) []driver.AcceptResult {
	t.Helper()
	out, err := s.Driver().Inbox.Accept(t.Context(), tx, owner, in)
	if err != nil || len(out) != len(in) {
		t.Fatalf("Accept of %d: %d answers, %v", len(in), len(out), err)
	}
	return out
}

// received accepts and commits events.
func received(t testing.TB, s *mysqlstore.Store, db *sql.DB, owner waybill.ID, in []store.InboxEntry) {
	t.Helper()
	tx := begin(t, db, nil)
	accept(t, s, tx, owner, in)
	commit(t, tx)
}

func commit(t testing.TB, tx *sql.Tx) {
	t.Helper()
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func claim(t testing.TB, s *mysqlstore.Store, in store.InboxEntry, lease time.Duration, maxAttempts int, kept []byte) (store.InboxRecord, bool) {
	t.Helper()
	record, taken, err := s.Driver().Inbox.ClaimEvent(t.Context(), in, waybill.NewID(), lease, maxAttempts, kept)
	if err != nil {
		t.Fatal(err)
	}
	return record, taken
}

func findRecord(t testing.TB, s *mysqlstore.Store, in store.InboxEntry) store.InboxRecord {
	t.Helper()
	record, found, err := s.Driver().InboxRecords.FindRecord(t.Context(), in.Group, in.Key)
	if err != nil || !found {
		t.Fatalf("FindRecord: %t, %v", found, err)
	}
	return record
}

// Batches of many sizes are accepted, with any settings; some events already
// have a record, and records are read as they were written.
func TestAcceptMany(t *testing.T) { onBoth(t, testAcceptMany) }

func testAcceptMany(t *testing.T) {
	databases := shelve(t)
	for name, change := range settings {
		t.Run(name, func(t *testing.T) {
			s, db := databases.store(t, change)
			for _, n := range []int{1, 2, 7, 501, 1200} {
				if n > 100 && change != nil {
					continue
				}
				in := intakes("größe ABC "+strconv.Itoa(n), n)
				first, owner := waybill.NewID(), waybill.NewID()
				var there []store.InboxEntry
				for i := range in {
					in[i].Tenant, in[i].Type = `a'b\"`, "ÄöÜ "
					if i%3 == 1 {
						there = append(there, in[i])
					}
				}
				if len(there) > 0 {
					received(t, s, db, first, there)
				}
				tx := begin(t, db, nil)
				answers := accept(t, s, tx, owner, in)
				commit(t, tx)
				for i, a := range answers {
					r := a.Record
					want := first
					if i%3 != 1 {
						r, want = findRecord(t, s, in[i]), owner
					}
					if a.Busy || a.Accepted != (i%3 != 1) || r.Owner != want || r.InboxEntry != in[i] || r.State != store.InboxSucceeded ||
						r.Fence != 1 || r.Attempts != 1 || r.ProcessedAt != r.ReceivedAt || r.Now.Sub(r.ProcessedAt).Abs() > time.Minute {
						t.Fatalf("%d of %d: %+v, stored %+v", i, n, a, r)
					}
				}
			}
			in := intakes("größe abc", 1)[0]
			text := strings.Repeat("ä\\'", 2000)
			if did, err := s.Driver().Inbox.FailEvent(t.Context(), in, driver.Failure{Error: text, Stored: []byte("\x00\\'ä\xff")}); !did || err != nil {
				t.Fatalf("FailEvent: %t, %v", did, err)
			}
			r := findRecord(t, s, in)
			if r.LastError != driver.CutError(text) || string(r.Stored) != "\x00\\'ä\xff" || r.NextRetryAt.IsZero() || !r.LeaseUntil.IsZero() || !r.ProcessedAt.IsZero() {
				t.Errorf("%+v", r)
			}
			if r, taken := claim(t, s, in, time.Hour, 2, nil); !taken || r.LeaseUntil.Sub(r.Now).Round(time.Minute) != time.Hour || string(r.Stored) != "\x00\\'ä\xff" {
				t.Errorf("ClaimEvent: %t, %+v", taken, r)
			}
			if stats, err := s.Driver().InboxRecords.GroupStats(t.Context(), true); err != nil || len(stats) < 3 {
				t.Errorf("GroupStats: %+v, %v", stats, err)
			}
		})
	}
}

// A transaction that accepts an event waits neither for another that is
// accepting the same event, nor for one that accepts adjacent keys. The
// transaction continues: the server undid only the statement that met a lock.
func TestAcceptDoesNotWait(t *testing.T) { t.Parallel(); onBoth(t, testAcceptDoesNotWait) }

func testAcceptDoesNotWait(t *testing.T) {
	for _, mine := range levels {
		for _, theirs := range levels {
			t.Run(mine.String()+" beside "+theirs.String(), func(t *testing.T) {
				t.Parallel()
				acceptBeside(t, mine, theirs)
			})
		}
	}
}

func acceptBeside(t *testing.T, mine, theirs sql.IsolationLevel) {
	t.Helper()
	busyOnes := 20 // every other event up to here; on MySQL each costs a second
	if serverOf(t) == testserver.MySQLName {
		busyOnes = 4
	}
	s, db := openStore(t, nil)
	in := intakes("g", 40)
	seen := intakes("g", 2)
	received(t, s, db, waybill.NewID(), seen[:1])
	a, b := begin(t, db, &sql.TxOptions{Isolation: theirs}), begin(t, db, &sql.TxOptions{Isolation: mine})
	var odd, mixed []store.InboxEntry
	for i := range in {
		if i%2 == 1 && i < busyOnes {
			odd = append(odd, in[i])
		}
	}
	mixed = append(append(mixed, in[:30]...), seen...)
	exec(t, b, "INSERT INTO business (note) VALUES ('kept')")
	accept(t, s, a, waybill.NewID(), odd)
	for i, answer := range accept(t, s, b, waybill.NewID(), mixed) {
		busy := i%2 == 1 && i < busyOnes
		if known := i == 30; answer.Busy != busy || answer.Accepted == (busy || known) || (answer.Record.Key == seen[0].Key) != known {
			t.Errorf("%v beside %v: %d: %+v", mine, theirs, i, answer)
		}
	}
	adjacent := in[30:]
	// Above READ COMMITTED, MySQL locks the gap below an existing record, and
	// an event in that gap is busy until the transaction ends. MariaDB locks
	// only the record.
	gaps := serverOf(t) == testserver.MySQLName && mine != sql.LevelReadCommitted
	if gaps {
		adjacent = in[38:]
	}
	for i, answer := range accept(t, s, a, waybill.NewID(), adjacent) {
		if !answer.Accepted && (!gaps || !answer.Busy) {
			t.Errorf("%v beside %v: the adjacent event %d: %+v", mine, theirs, i, answer)
		}
	}
	commit(t, b)
	if err := a.Rollback(); err != nil {
		t.Fatal(err)
	}
	if n, want := ask[int](t, db, "SELECT COUNT(*) FROM waybill_inbox"), 32-busyOnes/2; n != want {
		t.Errorf("%v beside %v: %d records, want %d", mine, theirs, n, want)
	}
	if n := ask[int](t, db, "SELECT COUNT(*) FROM business"); n != 1 {
		t.Errorf("%v beside %v: the transaction has lost its earlier writes", mine, theirs)
	}
}

// Transactions that meet the same succeeded event do not block each other, and
// each sees the record, however old its snapshot.
func TestReplaysTogether(t *testing.T) { t.Parallel(); onBoth(t, testReplaysTogether) }

func testReplaysTogether(t *testing.T) {
	for _, level := range levels[:3] {
		s, db := openStore(t, nil)
		in := intakes("g", 3)
		old := begin(t, db, &sql.TxOptions{Isolation: level})
		takeSnapshot(t, old)
		received(t, s, db, waybill.NewID(), in)
		for range 3 {
			tx := begin(t, db, &sql.TxOptions{Isolation: level})
			for i, a := range accept(t, s, tx, waybill.NewID(), in) {
				if a.Record.InboxEntry != in[i] {
					t.Errorf("%v: %+v", level, a)
				}
			}
			defer tx.Rollback() //nolint:errcheck // the test is over then
		}
		other := intakes("g", 1)
		received(t, s, db, waybill.NewID(), other)
		if a := accept(t, s, old, waybill.NewID(), other)[0]; a.Record.InboxEntry != other[0] {
			t.Errorf("%v, with an old snapshot: %+v", level, a)
		}
		_ = old.Rollback()
	}
}

// A transaction that meets an event or a key of another one is reported busy
// long before the session's own lock wait timeout, which stays unchanged.
func TestBusyIsToldSoon(t *testing.T) { onBoth(t, testBusyIsToldSoon) }

func testBusyIsToldSoon(t *testing.T) {
	const patience = 1000 // seconds: longer than any test
	s, db := openStore(t, func(c *mysql.Config) {
		c.Params = map[string]string{"innodb_lock_wait_timeout": strconv.Itoa(patience)}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in := intakes("g", 20)
	key := driver.KeyClaim{KeyID: store.KeyID{Operation: "op", Key: "k"}, Owner: waybill.NewID(), Hash: "h"}
	first, second := begin(t, db, nil), begin(t, db, nil)
	accept(t, s, first, waybill.NewID(), in[7:8])
	if got, err := s.Driver().Keys.TakeKey(ctx, first, key); err != nil || !got.Taken {
		t.Fatalf("TakeKey: %+v, %v", got, err)
	}
	answers, err := s.Driver().Inbox.Accept(ctx, second, waybill.NewID(), in)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		if a.Busy != (i == 7) || a.Accepted != (i != 7) {
			t.Errorf("event %d: %+v", i, a)
		}
	}
	key.Owner = waybill.NewID()
	if got, err := s.Driver().Keys.TakeKey(ctx, second, key); err != nil || !got.Busy {
		t.Errorf("TakeKey: %+v, %v; want busy", got, err)
	}
	var now int
	if err := second.QueryRowContext(ctx, "SELECT @@innodb_lock_wait_timeout").Scan(&now); err != nil || now != patience {
		t.Errorf("the session waits for %d s afterwards, %v; want %d", now, err, patience)
	}
}

// On MySQL a statement waits. At READ COMMITTED the store probes first;
// otherwise the lock wait timeout ends the statement, and the event is busy as
// well.
func TestAcceptAsMySQL(t *testing.T) { onBoth(t, testAcceptAsMySQL) }

func testAcceptAsMySQL(t *testing.T) {
	for _, level := range []string{"READ-COMMITTED", "REPEATABLE-READ"} {
		s, db := openStore(t, func(c *mysql.Config) {
			c.Params = map[string]string{isolation: "'" + level + "'", "innodb_lock_wait_timeout": "1"}
		})
		if err := s.PretendWaiting(t.Context()); err != nil {
			t.Fatal(err)
		}
		in := intakes("g", 4)
		received(t, s, db, waybill.NewID(), in[:1])
		a, b := begin(t, db, nil), begin(t, db, nil)
		accept(t, s, a, waybill.NewID(), in[1:2])
		start := time.Now()
		answers := accept(t, s, b, waybill.NewID(), in)
		if d := time.Since(start); level == "READ-COMMITTED" && d > 900*time.Millisecond {
			t.Errorf("%s: it took %v", level, d)
		}
		if answers[0].Record.Key != in[0].Key || !answers[1].Busy || !answers[2].Accepted || !answers[3].Accepted {
			t.Errorf("%s: %+v", level, answers)
		}
		commit(t, b)
		_ = a.Rollback()
	}
}

// An event that is accepted in a transaction that the server has ended would be
// committed on its own: it is refused.
func TestAcceptNeedsAnOpenTransaction(t *testing.T) { onBoth(t, testAcceptNeedsAnOpenTransaction) }

func testAcceptNeedsAnOpenTransaction(t *testing.T) {
	for _, asMySQL := range []bool{false, true} {
		s, db := openStore(t, nil)
		exec(t, db, "CREATE TABLE business_rows (id INT PRIMARY KEY, n INT) ENGINE=InnoDB")
		if asMySQL {
			if err := s.PretendMySQL(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		claimed, _ := claim(t, s, intakes("g", 1)[0], time.Hour, 3, nil)
		attempt := driver.Attempt{Group: "g", Key: claimed.Key, Owner: claimed.Owner, Fence: claimed.Fence}
		refused := func(tx *sql.Tx, when string) {
			if _, err := s.Driver().Inbox.Accept(t.Context(), tx, waybill.NewID(), intakes("g", 2)); !errors.Is(err, waybill.ErrTxDone) {
				t.Errorf("Accept %s (as MySQL: %t): %v, want ErrTxDone", when, asMySQL, err)
			}
			if did, err := s.Driver().Inbox.Succeed(t.Context(), tx, attempt); did || !errors.Is(err, waybill.ErrTxDone) {
				t.Errorf("Succeed %s (as MySQL: %t): %t, %v, want ErrTxDone", when, asMySQL, did, err)
			}
		}
		tx := begin(t, db, nil)
		deadlock(t, db, tx)
		refused(tx, "after a deadlock")
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		refused(tx, "after a rollback")
		if n := ask[int](t, db, "SELECT COUNT(*) FROM waybill_inbox WHERE status = 1"); n != 0 {
			t.Errorf("%d records are committed", n)
		}
	}
}

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
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// register registers destinations.
func register(t testing.TB, db *sqlitestore.Store, names ...string) []store.Destination {
	t.Helper()
	all, err := db.Driver().Backlogs.AddDestinations(t.Context(), names...)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// diverted writes n events and diverts them to destinations.
func diverted(t testing.TB, db *sqlitestore.Store, leases []driver.Lease, n int, numbers ...int) []waybill.ID {
	t.Helper()
	box := newBox(t, db.Driver().Outbox)
	var ids []waybill.ID
	s := driver.Settlement{Leases: leases, History: true}
	for range n {
		id := write(t, box, placed("1"))
		ids = append(ids, id)
		s.Done = append(s.Done, driver.Result{ID: id})
		for _, number := range numbers {
			s.Divert = append(s.Divert, driver.Diversion{Destination: number, ID: id})
		}
	}
	settle(t, db, s)
	return ids
}

// settleIn settles in a backlog.
func settleIn(t testing.TB, backlog driver.Backlog, s driver.Settlement) driver.Settled {
	t.Helper()
	settled, err := backlog.Settle(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return settled
}

// TestBacklogPlans checks SQLite's plans of the statements about a backlog: all
// use a key or an index, and none sorts. Every search of a table of the
// backlogs is limited to the rows of one destination.
func TestBacklogPlans(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	args := make([]any, 400)
	for i := range args {
		args[i] = i
	}
	for name, text := range db.BacklogStatements(2) {
		if strings.Contains(text, "_outbox") || strings.Contains(text, "{") {
			t.Errorf("%s: %s", name, text)
		}
		for _, step := range plan(t, db, text, args) {
			if strings.Contains(step, "TEMP B-TREE") || strings.Contains(step, "AUTOMATIC") ||
				strings.HasPrefix(step, "SCAN") && strings.Contains(step, "waybill_") {
				t.Errorf("%s: %s", name, step)
			}
			if strings.HasPrefix(step, "SEARCH main.waybill_backlog") && !strings.Contains(step, "lane=?") && !strings.Contains(step, "rowid=?") {
				t.Errorf("%s: %s", name, step)
			}
		}
	}
}

// TestRefillPlan: a refill reads the history in the order of delivery times,
// and sorts only the events of one time.
func TestRefillPlan(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	run(t, db, `ANALYZE`)
	steps := strings.Join(plan(t, db, db.PageOfHistory(), []any{1, 2, nil, nil, nil, nil, 1, []byte{0}, 10}), "\n")
	if !strings.Contains(steps, "waybill_history_done_idx (done_at>? AND done_at<?)") || strings.Contains(steps, "FOR ORDER BY") {
		t.Errorf("the plan is\n%s", steps)
	}
}

// TestBacklogStatsPlan: the statistics read one ready row as a whole, the
// oldest; they count the others in an index.
func TestBacklogStatsPlan(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	whole := 0
	steps := plan(t, db, db.BacklogStatements(2)["stats"], nil)
	for _, step := range steps {
		if strings.HasPrefix(step, "SEARCH main.waybill_backlog USING") && !strings.Contains(step, "COVERING") {
			whole++
		}
	}
	if whole != 1 || !strings.Contains(strings.Join(steps, " "), "COVERING INDEX waybill_backlog_tried_idx") {
		t.Errorf("the plan is %q", steps)
	}
}

// TestOneIDTwiceInABacklog: a faulty producer writes an id again while the
// first event waits in a backlog, in any state. The lane never stops.
func TestOneIDTwiceInABacklog(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	register(t, db, "a", "b")
	leases := owner(t, db)
	backlog := db.Driver().Backlogs.Backlog(1)
	id := diverted(t, db, leases, 1, 1, 2)[0]
	again := func() {
		t.Helper()
		run(t, db, `INSERT INTO waybill_outbox (type, payload, id) VALUES ('Again', '2', ?)`, id[:])
		settled := settle(t, db, driver.Settlement{
			Leases: leases, History: true, Done: []driver.Result{{ID: id}}, Divert: []driver.Diversion{{Destination: 1, ID: id}},
		})
		if len(settled.Moved) != 1 {
			t.Errorf("moved: %+v", settled)
		}
	}
	result := func(replay int) []driver.Result {
		return []driver.Result{{ID: id, Attempts: 1, Error: "boom", Delay: time.Hour, Replay: replay}}
	}
	again() // ready
	if rows := fetch(t, backlog); len(rows) != 1 || rows[0].Event.Type != "OrderPlaced" {
		t.Errorf("ready twice: %+v", rows)
	}
	settleIn(t, backlog, driver.Settlement{Leases: leases, Retry: result(0)})
	again() // deferred
	settleIn(t, backlog, driver.Settlement{Leases: leases, Retry: result(0)})
	settleIn(t, backlog, driver.Settlement{Leases: leases, Dead: result(0)})
	if replayed, err := backlog.Replay(t.Context(), []waybill.ID{id}); err != nil || len(replayed.Refused) != 1 {
		t.Errorf("the replay of a dead letter whose id is ready: %+v, %v", replayed, err)
	}
	settleIn(t, backlog, driver.Settlement{Leases: leases, Done: result(0)})
	if replayed, err := backlog.Replay(t.Context(), []waybill.ID{id}); err != nil || len(replayed.IDs) != 1 {
		t.Errorf("Replay: %+v, %v", replayed, err)
	}
	again() // deferred, and replayed
	if settled := settleIn(t, backlog, driver.Settlement{Leases: leases, Retry: result(0)}); len(settled.Moved) != 1 {
		t.Errorf("deferring a ready row whose id is deferred: %+v", settled)
	}
	settleIn(t, backlog, driver.Settlement{Leases: leases, Dead: result(0)})
	again() // dead
	settleIn(t, backlog, driver.Settlement{Leases: leases, Dead: result(0)})
	if found, err := backlog.Find(t.Context(), id); err != nil || len(found) != 1 || found[0].State != store.Dead {
		t.Errorf("in the end: %+v, %v", found, err)
	}
	if rows := fetch(t, db.Driver().Backlogs.Backlog(2)); len(rows) != 1 || rows[0].Attempts != 0 {
		t.Errorf("the other destination has %+v", rows)
	}
}

// TestRemovedNumber: a relay whose lease ended long ago wakes up when its
// destination was removed and another has its number. It settles nothing under
// that number.
func TestRemovedNumber(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	register(t, db, "a")
	leases := owner(t, db)
	id := write(t, newBox(t, db.Driver().Outbox), placed("1"))
	run(t, db, `UPDATE waybill_node SET expires_at = 0`)
	if _, err := db.Driver().Backlogs.RemoveDestination(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	register(t, db, "b")
	settled := settle(t, db, driver.Settlement{Leases: leases, Done: []driver.Result{{ID: id}}, Divert: []driver.Diversion{{Destination: 1, ID: id}}})
	if len(settled.Held)+len(settled.Moved) > 0 {
		t.Errorf("the settlement was accepted: %+v", settled)
	}
	if rows := fetch(t, db.Driver().Backlogs.Backlog(1)); len(rows) > 0 {
		t.Errorf("the new destination has %+v", rows)
	}
}

// TestUnknownNumber: a refill of a destination that is not registered fails,
// and numbers that no destination can have are no error for reads.
func TestUnknownNumber(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	register(t, db, "a")
	diverted(t, db, owner(t, db), 3, 1, 2, 0, -1, 32, 1<<40)
	for _, number := range []int{2, 0, -1, 32, 1 << 40} {
		backlog := db.Driver().Backlogs.Backlog(number)
		if rows := fetch(t, backlog); len(rows) > 0 {
			t.Errorf("backlog %d has %+v", number, rows)
		}
		got, err := backlog.Refill(t.Context(), driver.HistoryQuery{}, driver.HistoryCursor{}, 10)
		if !errors.Is(err, driver.ErrNoDestination) || got.Copied > 0 {
			t.Errorf("Refill of backlog %d: %+v, %v", number, got, err)
		}
	}
	if rows := fetch(t, db.Driver().Backlogs.Backlog(1)); len(rows) != 3 {
		t.Errorf("%d rows, want 3", len(rows))
	}
}

// TestRefillSameID: the history has an event twice, because a producer has used
// its id twice. A refill copies one of them.
func TestRefillSameID(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	register(t, db, "a")
	leases := owner(t, db)
	id := diverted(t, db, leases, 1)[0]
	run(t, db, `INSERT INTO waybill_outbox (type, payload, id) VALUES ('Again', '2', ?)`, id[:])
	settle(t, db, driver.Settlement{Leases: leases, History: true, Done: []driver.Result{{ID: id}}})
	got, err := db.Driver().Backlogs.Backlog(1).Refill(t.Context(), driver.HistoryQuery{}, driver.HistoryCursor{}, 10)
	if err != nil || got.Matched != 2 || got.Copied != 1 {
		t.Errorf("Refill: %+v, %v", got, err)
	}
}

// TestBacklogRows: the tables reject rows that no backlog would have.
func TestBacklogRows(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	register(t, db, "a", "b")
	diverted(t, db, owner(t, db), 1, 1)
	for _, change := range []string{
		`UPDATE waybill_backlog SET lane = 0`,
		`UPDATE waybill_backlog SET lane = 1025`,
		`UPDATE waybill_backlog SET lane = 32768`,
		`UPDATE waybill_backlog SET final = NULL`,
		`UPDATE waybill_destination SET number = 32 WHERE number = 1`,
		`UPDATE waybill_destination SET number = 0 WHERE number = 1`,
		`UPDATE waybill_destination SET name = 'b' WHERE name = 'a'`,
	} {
		if _, err := db.DB().ExecContext(t.Context(), change); err == nil {
			t.Errorf("%s was accepted", change)
		}
	}
}

// TestOneConnectionForBacklogs uses backlogs over a handle with one connection,
// which a transaction of the store occupies.
func TestOneConnectionForBacklogs(t *testing.T) {
	db := over(t, filepath.Join(t.TempDir(), "x.db"), deferred, sqlitestore.Config{})
	db.DB().SetMaxOpenConns(1)
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	register(t, db, "a", "b")
	leases := owner(t, db)
	for range 2 { // with statements from their text, then prepared
		ids := diverted(t, db, leases, 70, 1, 2)
		backlog := db.Driver().Backlogs.Backlog(2)
		var done, dead []driver.Result
		for i, id := range ids {
			if result := (driver.Result{ID: id}); i%2 == 0 {
				done = append(done, result)
			} else {
				dead = append(dead, result)
			}
		}
		settled := settleIn(t, backlog, driver.Settlement{Leases: leases, Done: done, Dead: dead, History: true})
		if len(settled.Moved) != len(ids) {
			t.Errorf("%d of %d moved", len(settled.Moved), len(ids))
		}
		if purged, err := backlog.PurgeDead(t.Context(), -time.Second, 1); err == nil {
			t.Errorf("PurgeDead of a negative age purged %d", purged)
		}
	}
	stats, err := db.Driver().Backlogs.Backlog(1).Stats(t.Context())
	if err != nil || stats.Ready != 140 {
		t.Errorf("the other destination: %+v, %v", stats, err)
	}
	if dead := value[int](t, db, `SELECT count(*) FROM waybill_backlog_dead WHERE lane = 2048`); dead != 70 {
		t.Errorf("%d dead letters, want 70", dead)
	}
}

// TestTablesWithoutBacklogs: a relay with one destination works over tables
// that do not have the migration. What needs it says what to do.
func TestTablesWithoutBacklogs(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	for _, table := range []string{"destination", "backlog", "backlog_delayed", "backlog_dead"} {
		run(t, db, `DROP TABLE waybill_`+table)
	}
	box := newBox(t, db.Driver().Outbox)
	leases := owner(t, db)
	id := write(t, box, placed("1"))
	done := driver.Settlement{Leases: leases, Done: []driver.Result{{ID: id}}, History: true}
	divert := done
	divert.Divert = []driver.Diversion{{Destination: 1, ID: id}}
	_, err := db.Driver().Relay.Settle(t.Context(), divert)
	_, addErr := db.Driver().Backlogs.AddDestinations(t.Context(), "a")
	_, readErr := db.Driver().Backlogs.Backlog(1).Stats(t.Context())
	for _, err := range []error{err, addErr, readErr} {
		if err == nil || !strings.Contains(err.Error(), "call Migrate") {
			t.Errorf("without the tables: %v", err)
		}
	}
	if settled := settle(t, db, done); len(settled.Moved) != 1 {
		t.Errorf("the outbox: %+v", settled)
	}
}

// TestRestoredEmpty: the tables have no sequence before the first event.
func TestRestoredEmpty(t *testing.T) {
	db := open(t, sqlitestore.Config{Prefix: "Other_"})
	for range 2 {
		if err := db.Driver().Restorer.Restored(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	write(t, newBox(t, db.Driver().Outbox), placed("1"))
	if seq := fetch(t, db.Driver().Relay)[0].Seq; seq != 2*driver.RestoreSeqs+1 {
		t.Errorf("the first seq is %d", seq)
	}
}

// TestRestoredBackup restores a backup that is older than some events: their
// positions are not issued again.
func TestRestoredBackup(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	write(t, box, placed("1"))
	path := filepath.Join(t.TempDir(), "backup.db")
	run(t, db, `VACUUM INTO ?`, path)
	write(t, box, placed("2"))
	lease := owner(t, db)[0]
	used := fetch(t, db.Driver().Relay)[1].Seq

	backup := openAt(t, path, sqlitestore.Config{})
	if err := backup.Driver().Restorer.Restored(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	write(t, newBox(t, backup.Driver().Outbox), placed("3"))
	rows := fetch(t, backup.Driver().Relay)
	if next := owner(t, backup)[0]; len(rows) != 2 || rows[1].Seq <= used || next.Epoch <= lease.Epoch {
		t.Errorf("rows %+v, lease %+v; before: %d, %+v", rows, next, used, lease)
	}
}

// BenchmarkDivert settles batches of 100 events, with diversions to none, one
// and two destinations.
func BenchmarkDivert(b *testing.B) {
	for destinations := range 3 {
		b.Run(fmt.Sprintf("destinations=%d", destinations), func(b *testing.B) {
			db := open(b, sqlitestore.Config{})
			register(b, db, "a", "b")
			box := newBox(b, db.Driver().Outbox)
			leases := owner(b, db)
			const batch = 100
			for b.Loop() {
				b.StopTimer()
				s := driver.Settlement{Leases: leases, History: true}
				err := box.InTx(b.Context(), func(ctx context.Context, tx *sql.Tx) error {
					for range batch {
						ev := placed(`"` + strings.Repeat("x", 500) + `"`)
						ev.ID = waybill.NewID()
						s.Done = append(s.Done, driver.Result{ID: ev.ID})
						for number := range destinations {
							s.Divert = append(s.Divert, driver.Diversion{Destination: number + 1, ID: ev.ID})
						}
						if err := box.Write(ctx, tx, ev); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				settle(b, db, s)
			}
			b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

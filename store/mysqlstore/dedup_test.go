package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// impatient limits lock waits to one second, so that a test whose session waits
// for itself ends.
func impatient(c *mysql.Config) { c.Params = map[string]string{"innodb_lock_wait_timeout": "1"} }

// write commits events in a transaction of their own and returns the results.
func write(t testing.TB, s *mysqlstore.Store, db *sql.DB, evs ...waybill.Event) []driver.AppendResult {
	t.Helper()
	tx := begin(t, db, nil)
	placed, err := s.Driver().Outbox.Append(t.Context(), tx, evs)
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	return placed
}

// deliver settles an event as done.
func deliver(t testing.TB, s *mysqlstore.Store, leases []driver.Lease, ev waybill.Event) {
	t.Helper()
	lane := driver.LaneOf(ev.TenantID, ev.AggregateType, ev.AggregateID, 32)
	settled, err := s.Driver().Relay.Settle(t.Context(), driver.Settlement{Leases: leases, Done: []driver.Result{{Lane: lane, ID: ev.ID}}, History: true})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(settled.Moved, []waybill.ID{ev.ID}) {
		t.Fatalf("Settle moved %v, want %v", settled.Moved, ev.ID)
	}
}

// takeSnapshot takes the transaction's snapshot, as any read does at REPEATABLE
// READ.
func takeSnapshot(t testing.TB, tx *sql.Tx) {
	t.Helper()
	var n int
	if err := tx.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM business").Scan(&n); err != nil {
		t.Fatal(err)
	}
}

func keys(t testing.TB, db *sql.DB) int {
	t.Helper()
	return ask[int](t, db, "SELECT COUNT(*) FROM waybill_dedup")
}

// An absorbed producer has the key's row locked until its transaction ends. The
// settlement of the event does not wait for it; the next writer of the key is
// not absorbed by an event that is no longer pending.
func TestSettlementNeverWaitsForAProducer(t *testing.T) {
	onBoth(t, testSettlementNeverWaitsForAProducer)
}

func testSettlementNeverWaitsForAProducer(t *testing.T) {
	s, db := openStore(t, impatient)
	_, leases := own(t, s)
	first, second, third := keyed("k"), keyed("k"), keyed("k")
	write(t, s, db, first)
	open := begin(t, db, nil)
	placed, err := s.Driver().Outbox.Append(t.Context(), open, []waybill.Event{second})
	if err != nil {
		t.Fatal(err)
	}
	if placed[0].ID != first.ID {
		t.Fatalf("the second is %v, want absorbed by %v", placed[0].ID, first.ID)
	}
	deliver(t, s, leases, first) // fails if it waits
	if s.Leftover() != 1 || keys(t, db) != 1 {
		t.Errorf("%d keys are left behind, %d are in the table; want the locked one", s.Leftover(), keys(t, db))
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	if placed := write(t, s, db, third); placed[0].ID != third.ID {
		t.Errorf("the third was absorbed by %v, which is delivered", placed[0].ID)
	}
	if placed := write(t, s, db, keyed("k")); placed[0].ID != third.ID {
		t.Errorf("the fourth is %v, want absorbed by the third, %v", placed[0].ID, third.ID)
	}
	// The row that was left behind now belongs to the third event: another
	// attempt to free it leaves it alone.
	other := event("b")
	write(t, s, db, other)
	deliver(t, s, leases, other)
	if s.Leftover() != 0 || keys(t, db) != 1 {
		t.Errorf("%d keys are left behind, %d are in the table; want none and one", s.Leftover(), keys(t, db))
	}
	deliver(t, s, leases, third)
	if keys(t, db) != 0 {
		t.Errorf("%d keys are left", keys(t, db))
	}
}

// A key that could not be freed is freed by the next settlement, whatever that
// settles.
func TestLeftBehindKeyIsFreedLater(t *testing.T) { onBoth(t, testLeftBehindKeyIsFreedLater) }

func testLeftBehindKeyIsFreedLater(t *testing.T) {
	s, db := openStore(t, impatient)
	_, leases := own(t, s)
	first, other, last := keyed("k"), event("b"), event("b")
	write(t, s, db, first, other, last)
	open := begin(t, db, nil)
	if _, err := s.Driver().Outbox.Append(t.Context(), open, []waybill.Event{keyed("k")}); err != nil {
		t.Fatal(err)
	}
	deliver(t, s, leases, first)
	deliver(t, s, leases, other) // it is still locked
	if s.Leftover() != 1 {
		t.Errorf("%d keys are left behind, want 1", s.Leftover())
	}
	if err := open.Rollback(); err != nil {
		t.Fatal(err)
	}
	deliver(t, s, leases, last)
	if s.Leftover() != 0 || keys(t, db) != 0 {
		t.Errorf("%d keys are left behind, %d are in the table; want none", s.Leftover(), keys(t, db))
	}
}

// leaveBehind leaves a row of the key "k" whose event is delivered.
func leaveBehind(t *testing.T, s *mysqlstore.Store, db *sql.DB, leases []driver.Lease) {
	t.Helper()
	first := keyed("k")
	write(t, s, db, first)
	open := begin(t, db, nil)
	if _, err := s.Driver().Outbox.Append(t.Context(), open, []waybill.Event{keyed("k")}); err != nil {
		t.Fatal(err)
	}
	deliver(t, s, leases, first)
	if err := open.Rollback(); err != nil {
		t.Fatal(err)
	}
	if keys(t, db) != 1 {
		t.Fatalf("%d keys are left behind, want 1", keys(t, db))
	}
}

// Many producers find the row that was left behind at the same time: one takes
// it over, the others are absorbed by that one. None is the victim of a
// deadlock.
func TestTakeOverHasOneWinner(t *testing.T) { onBoth(t, testTakeOverHasOneWinner) }

func testTakeOverHasOneWinner(t *testing.T) {
	for _, asMySQL := range []bool{false, true} {
		s, db := openStore(t, nil)
		_, leases := own(t, s)
		if asMySQL {
			if err := s.PretendMySQL(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for range 10 {
			leaveBehind(t, s, db, leases)
			const writers = 6
			evs, got := make([]waybill.Event, writers), make([]waybill.ID, writers)
			var wg sync.WaitGroup
			for i := range writers {
				evs[i] = keyed("k")
				wg.Go(func() {
					tx, err := db.BeginTx(t.Context(), nil)
					if err != nil {
						t.Error(err)
						return
					}
					defer tx.Rollback() //nolint:errcheck // harmless after the commit
					placed, err := s.Driver().Outbox.Append(t.Context(), tx, evs[i:i+1])
					if err == nil {
						got[i], err = placed[0].ID, tx.Commit()
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			rows := ready(t, s)
			if len(rows) != 1 {
				t.Fatalf("%d events are pending, want 1", len(rows))
			}
			for i, id := range got {
				if id != rows[0].ID {
					t.Errorf("writer %d got %v, want %v", i, id, rows[0].ID)
				}
			}
			deliver(t, s, leases, rows[0].Event)
		}
	}
}

// A transaction at REPEATABLE READ, the default, reads an old snapshot. The
// current rows decide whether a key is taken.
func TestSnapshotsDoNotDecide(t *testing.T) { onBoth(t, testSnapshotsDoNotDecide) }

func testSnapshotsDoNotDecide(t *testing.T) {
	s, db := openStore(t, impatient)
	_, leases := own(t, s)
	for _, isolation := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelRepeatableRead, sql.LevelReadCommitted} {
		opts := &sql.TxOptions{Isolation: isolation}
		t.Run(isolation.String(), func(t *testing.T) {
			cases := map[string]struct {
				// Steps before and after the snapshot; the id that must hold
				// the key, or zero.
				before, since func() waybill.ID
			}{
				"taken since": {
					since: func() waybill.ID {
						ev := keyed("k")
						write(t, s, db, ev)
						return ev.ID
					},
				},
				"freed since": {
					before: func() waybill.ID {
						ev := keyed("k")
						write(t, s, db, ev)
						return ev.ID
					},
					since: func() waybill.ID { deliver(t, s, leases, ready(t, s)[0].Event); return waybill.ID{} },
				},
				"taken and freed since": {
					since: func() waybill.ID {
						ev := keyed("k")
						write(t, s, db, ev)
						deliver(t, s, leases, ev)
						return waybill.ID{}
					},
				},
				"taken by another since": {
					before: func() waybill.ID {
						ev := keyed("k")
						write(t, s, db, ev)
						return ev.ID
					},
					since: func() waybill.ID {
						deliver(t, s, leases, ready(t, s)[0].Event)
						ev := keyed("k")
						write(t, s, db, ev)
						return ev.ID
					},
				},
				"taken over since": {
					before: func() waybill.ID { leaveBehind(t, s, db, leases); return waybill.ID{} },
					since: func() waybill.ID {
						ev := keyed("k")
						write(t, s, db, ev)
						return ev.ID
					},
				},
				"left behind before": {
					before: func() waybill.ID { leaveBehind(t, s, db, leases); return waybill.ID{} },
					since:  func() waybill.ID { return waybill.ID{} },
				},
			}
			for name, c := range cases {
				t.Run(name, func(t *testing.T) {
					if c.before != nil {
						c.before()
					}
					tx := begin(t, db, opts)
					takeSnapshot(t, tx)
					holder := c.since()
					ev := keyed("k")
					placed, err := s.Driver().Outbox.Append(t.Context(), tx, []waybill.Event{ev})
					if err != nil {
						t.Fatal(err)
					}
					if holder.IsZero() {
						holder = ev.ID
					}
					if placed[0].ID != holder {
						t.Errorf("the key is with %v, want %v (mine is %v)", placed[0].ID, holder, ev.ID)
					}
					if err := tx.Commit(); err != nil {
						t.Fatal(err)
					}
					rows := ready(t, s)
					if len(rows) != 1 || rows[0].ID != holder {
						t.Fatalf("%d events are pending, want the holder of the key", len(rows))
					}
					deliver(t, s, leases, rows[0].Event)
				})
			}
		})
	}
}

// Writers that read before they write, and settlements, run concurrently on the
// same keys: every written event is delivered once, no event is absorbed by one
// that does not exist, and there is no deadlock.
func TestConcurrentWritersAtRepeatableRead(t *testing.T) {
	onBoth(t, testConcurrentWritersAtRepeatableRead)
}

func testConcurrentWritersAtRepeatableRead(t *testing.T) {
	s, db := openStore(t, nil)
	_, leases := own(t, s)
	const writers, each = 4, 40
	var mu sync.Mutex
	written, absorbed := map[waybill.ID]bool{}, map[waybill.ID]bool{}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				evs := []waybill.Event{keyed(fmt.Sprint("k", i%3)), event("a"), keyed(fmt.Sprint("k", (i+w)%3))}
				placed, err := func() ([]driver.AppendResult, error) {
					tx, err := db.BeginTx(t.Context(), nil)
					if err != nil {
						return nil, err
					}
					defer tx.Rollback() //nolint:errcheck // harmless after the commit
					var n int
					if err := tx.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM business").Scan(&n); err != nil {
						return nil, err
					}
					placed, err := s.Driver().Outbox.Append(t.Context(), tx, evs)
					return placed, errors.Join(err, tx.Commit())
				}()
				if err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
				mu.Lock()
				for k, p := range placed {
					if p.ID == evs[k].ID {
						written[p.ID] = true
					} else {
						absorbed[p.ID] = true
					}
				}
				mu.Unlock()
			}
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	delivered := map[waybill.ID]bool{}
	for last := false; ; {
		rows := ready(t, s)
		settlement := driver.Settlement{Leases: leases, History: true}
		pending := map[string]waybill.ID{}
		for _, row := range rows {
			if delivered[row.ID] {
				t.Fatalf("event %s came back", row.ID)
			}
			delivered[row.ID] = true
			settlement.Done = append(settlement.Done, driver.Result{Lane: row.Lane, ID: row.ID})
			if key := row.Event.DedupKey; key != "" {
				if other, twice := pending[key]; twice {
					t.Errorf("%s and %s are pending with the same key", other, row.ID)
				}
				pending[key] = row.ID
			}
		}
		if _, err := s.Driver().Relay.Settle(t.Context(), settlement); err != nil {
			t.Fatal(err)
		}
		if last && len(rows) == 0 {
			break
		}
		select {
		case <-finished:
			last = true
		default:
		}
	}
	if len(delivered) != len(written) {
		t.Errorf("%d events were written and %d delivered", len(written), len(delivered))
	}
	for id := range absorbed {
		if !delivered[id] {
			t.Errorf("%s absorbed an event and was never delivered", id)
		}
	}
	if len(absorbed) == 0 {
		t.Log("no event was absorbed")
	}
}

// Two producers of delayed events do not block each other: only their own rows
// are locked.
func TestDelayedWritesDoNotBlockOthers(t *testing.T) { onBoth(t, testDelayedWritesDoNotBlockOthers) }

func testDelayedWritesDoNotBlockOthers(t *testing.T) {
	s, db := openStore(t, impatient)
	ids := make([]waybill.ID, 6)
	for i := range ids {
		ids[i] = waybill.NewID()
	}
	late := func(i int) waybill.Event {
		ev := event("a")
		ev.ID, ev.Delay = ids[i], 1<<40
		return ev
	}
	plain := func(i int) waybill.Event {
		ev := event("a")
		ev.ID = ids[i]
		return ev
	}
	one, two := begin(t, db, nil), begin(t, db, nil)
	for _, step := range []struct {
		tx *sql.Tx
		ev waybill.Event
	}{{one, late(2)}, {two, late(4)}, {two, plain(1)}, {one, plain(3)}, {one, late(5)}, {two, late(0)}} {
		if _, err := s.Driver().Outbox.Append(context.WithoutCancel(t.Context()), step.tx, []waybill.Event{step.ev}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(two.Commit(), one.Commit()); err != nil {
		t.Fatal(err)
	}
	if n := ask[int](t, db, "SELECT COUNT(*) FROM waybill_delayed"); n != 4 {
		t.Errorf("%d events are delayed, want 4", n)
	}
	if rows := ready(t, s); len(rows) != 2 {
		t.Errorf("%d events are ready, want 2", len(rows))
	}
}

package sqlitestore_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// bury dead-letters every ready event and returns their rows.
func bury(t testing.TB, db *sqlitestore.Store, leases []driver.Lease, holds bool) []store.Row {
	t.Helper()
	rows := fetch(t, db.Driver().Relay)
	var dead []driver.Result
	for _, row := range rows {
		dead = append(dead, driver.Result{ID: row.ID, Attempts: 5, Holds: holds, Error: "boom"})
	}
	settle(t, db, driver.Settlement{Leases: leases, Dead: dead})
	return rows
}

func ids(rows []store.Row) []waybill.ID {
	list := make([]waybill.ID, len(rows))
	for i, row := range rows {
		list[i] = row.ID
	}
	return list
}

// TestStats counts one event of each state, and reads the live nodes without
// changing them.
func TestStats(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	if st, err := db.Driver().OutboxAdmin.Stats(t.Context()); err != nil || st.Ready != 0 || !st.Oldest.IsZero() || len(st.Lanes) != 1 || len(st.Nodes) != 0 {
		t.Errorf("of nothing: %+v, %v", st, err)
	}
	box := newBox(t, db.Driver().Outbox)
	leases := owner(t, db)
	write(t, box, placed("1"))
	bury(t, db, leases, true)
	write(t, box, placed("2"))
	settle(t, db, driver.Settlement{Leases: leases, Retry: []driver.Result{{ID: fetch(t, db.Driver().Relay)[0].ID, Attempts: 4, Holds: true, Delay: time.Hour}}})
	later := placed("3")
	later.Delay = time.Hour
	write(t, box, later)
	write(t, box, placed("4"))
	write(t, box, placed("5"))
	st, err := db.Driver().OutboxAdmin.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.Ready != 2 || st.Scheduled != 1 || st.Failed != 1 || st.Dead != 1 || st.Holding != 2 || st.MaxAttempts != 4 ||
		!st.Oldest.Equal(fetch(t, db.Driver().Relay)[0].CreatedAt) || st.Now.Before(st.Oldest) {
		t.Errorf("Stats: %+v", st)
	}
	if len(st.Nodes) != 1 || st.Nodes[0].Relay != "test" || len(st.Lanes) != 1 || !st.Lanes[0].Live || st.Lanes[0].Epoch != leases[0].Epoch {
		t.Errorf("Membership: %+v", st.Membership)
	}
}

// TestBrowse filters rows of every state; texts compare as bytes.
func TestBrowse(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	leases := owner(t, db)
	insert := func(n int) {
		run(t, db, `INSERT INTO waybill_outbox (type, payload, aggregate_type, aggregate_id, tenant_id) VALUES
('A', '1', 'order', 'x', 't'), ('a', '1', 'order', 'X', NULL), ('A', '1', '', 'x ', 'T'), ('b', '1', '__GLOBAL__', NULL, NULL)`)
		if rows := fetch(t, db.Driver().Relay); len(rows) != n {
			t.Fatalf("%d rows, want %d", len(rows), n)
		}
	}
	results := func(rows []store.Row) (list []driver.Result) {
		for _, row := range rows {
			list = append(list, driver.Result{ID: row.ID, Attempts: 1, Holds: row.Event.Type == "A", Error: "boom", Delay: time.Hour})
		}
		return list
	}
	insert(4)
	settle(t, db, driver.Settlement{Leases: leases, Done: results(fetch(t, db.Driver().Relay)), History: true})
	insert(4)
	settle(t, db, driver.Settlement{Leases: leases, Dead: results(fetch(t, db.Driver().Relay))})
	insert(4)
	settle(t, db, driver.Settlement{Leases: leases, Retry: results(fetch(t, db.Driver().Relay))})
	insert(4)
	for _, c := range []struct {
		filter store.Filter
		want   [4]int // ready, delayed, dead, delivered
	}{
		{store.Filter{}, [4]int{4, 4, 4, 4}},
		{store.Filter{Type: "A"}, [4]int{2, 2, 2, 2}},
		{store.Filter{Type: "A", TenantID: "t"}, [4]int{1, 1, 1, 1}},
		{store.Filter{AggregateID: "x"}, [4]int{1, 1, 1, 1}},
		{store.Filter{AggregateType: waybill.GlobalAggregate}, [4]int{2, 2, 2, 2}},
		{store.Filter{Holding: true}, [4]int{0, 2, 2, 0}},
		{store.Filter{Failed: true}, [4]int{0, 4, 4, 0}},
		{store.Filter{Type: "' OR 1 --"}, [4]int{}},
	} {
		for state, want := range c.want {
			state := store.State(state)
			n, err := db.Driver().OutboxAdmin.Count(t.Context(), state, c.filter)
			if err != nil || n != int64(want) {
				t.Errorf("Count %v %+v: %d, %v; want %d", state, c.filter, n, err, want)
			}
			var listed []store.Record
			for after := int64(0); ; {
				page, err := db.Driver().OutboxAdmin.List(t.Context(), state, c.filter, after, 3)
				if err != nil {
					t.Fatal(err)
				}
				listed = append(listed, page...)
				if len(page) < 3 {
					break
				}
				after = page[2].Seq
			}
			if len(listed) != want || !slices.IsSortedFunc(listed, func(a, b store.Record) int { return int(a.Seq - b.Seq) }) {
				t.Errorf("List %v %+v: %d, want %d", state, c.filter, len(listed), want)
			}
			for _, r := range listed {
				found, err := db.Driver().OutboxAdmin.Find(t.Context(), r.ID)
				if err != nil || len(found) != 1 || fmt.Sprint(found[0]) != fmt.Sprint(r) {
					t.Errorf("Find: %+v, %v; want %+v", found, err, r)
				}
				ended := state == store.Dead || state == store.Delivered
				if r.State != state || r.EndedAt.IsZero() == ended || r.CreatedAt.IsZero() || r.DueAt.IsZero() != (state != store.Delayed) ||
					(r.LastError == "boom") != (state == store.Delayed || state == store.Dead) {
					t.Errorf("a %v row is %+v", state, r)
				}
			}
		}
	}
	for _, state := range []store.State{-1, 4} {
		if _, err := db.Driver().OutboxAdmin.Count(t.Context(), state, store.Filter{}); err == nil {
			t.Errorf("Count of %v", state)
		}
		if _, err := db.Driver().OutboxAdmin.List(t.Context(), state, store.Filter{}, 0, 1); err == nil {
			t.Errorf("List of %v", state)
		}
	}
	if found, err := db.Driver().OutboxAdmin.Find(t.Context(), waybill.NewID()); err != nil || len(found) != 0 {
		t.Errorf("Find of nothing: %+v, %v", found, err)
	}
}

// TestReplaySizes replays every number of dead letters around the sizes of the
// prepared statements.
func TestReplaySizes(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	leases := owner(t, db)
	for _, n := range []int{1, 7, 8, 9, 64, 65, 150} {
		for range n {
			write(t, box, placed("1"))
		}
		rows := bury(t, db, leases, true)
		asked := append(slices.Clone(ids(rows)), waybill.NewID(), rows[0].ID)
		slices.Reverse(asked)
		replayed, err := db.Driver().OutboxAdmin.Replay(t.Context(), asked)
		if err != nil || !slices.Equal(replayed.IDs, ids(rows)) || len(replayed.Refused) != 0 {
			t.Fatalf("%d: %d replayed, %d refused, %v", n, len(replayed.IDs), len(replayed.Refused), err)
		}
		if again, err := db.Driver().OutboxAdmin.Replay(t.Context(), asked); err != nil || len(again.IDs) != 0 {
			t.Errorf("%d: once more: %+v, %v", n, again, err)
		}
		page, err := db.Driver().Relay.Due(t.Context(), []int{0}, 1000)
		if err != nil || len(page.Rows) != n {
			t.Fatalf("%d: %d are due, %v", n, len(page.Rows), err)
		}
		var done []driver.Result
		for i, row := range page.Rows {
			if row.Key != rows[i].Key || row.Attempts != 0 || row.Replay != 1 || !row.Holds || row.LastError != "boom" || !row.DueAt.Equal(page.Rows[0].DueAt) {
				t.Errorf("%d: row %d is %+v", n, i, row)
			}
			done = append(done, driver.Result{ID: row.ID})
		}
		settle(t, db, driver.Settlement{Leases: leases, Done: done, History: true})
		if n := counts(t, db); n["dead"] != 0 || n["delayed"] != 0 {
			t.Errorf("after it: %v", n)
		}
	}
}

// TestReplayKeys: a key belongs to one pending event at a time, and the oldest
// dead letter gets it.
func TestReplayKeys(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	leases := owner(t, db)
	keyed := placed("1")
	keyed.DedupKey = "k"
	for range 2 {
		write(t, box, keyed)
		bury(t, db, leases, false)
	}
	dead, err := db.Driver().OutboxAdmin.List(t.Context(), store.Dead, store.Filter{}, 0, 10)
	if err != nil || len(dead) != 2 {
		t.Fatal(dead, err)
	}
	both := []waybill.ID{dead[1].ID, dead[0].ID}
	pending := write(t, box, keyed)
	replayed, err := db.Driver().OutboxAdmin.Replay(t.Context(), both)
	want := []store.Refusal{{ID: dead[0].ID, Holder: pending}, {ID: dead[1].ID, Holder: pending}}
	if err != nil || len(replayed.IDs) != 0 || !slices.Equal(replayed.Refused, want) {
		t.Errorf("with a pending event: %+v, %v; want %+v", replayed, err, want)
	}
	settle(t, db, driver.Settlement{Leases: leases, Done: []driver.Result{{ID: pending}}, History: true})
	replayed, err = db.Driver().OutboxAdmin.Replay(t.Context(), both)
	if err != nil || !slices.Equal(replayed.IDs, both[1:]) || !slices.Equal(replayed.Refused, []store.Refusal{{ID: both[0], Holder: both[1]}}) {
		t.Errorf("two events with one key: %+v, %v", replayed, err)
	}
	if n := counts(t, db); n["dedup"] != 1 || n["dead"] != 1 || n["delayed"] != 1 {
		t.Errorf("after it: %v", n)
	}
}

// TestReplayOneIDTwice: a dead letter whose id a producer used again is
// refused, and the others are replayed.
func TestReplayOneIDTwice(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	leases := owner(t, db)
	write(t, newBox(t, db.Driver().Outbox), placed("1"))
	write(t, newBox(t, db.Driver().Outbox), waybill.Event{Type: "Alone", Payload: []byte("1")})
	rows := bury(t, db, leases, false)
	run(t, db, `INSERT INTO waybill_outbox (type, payload, id) VALUES ('Again', '2', ?)`, rows[0].ID[:])
	replayed, err := db.Driver().OutboxAdmin.Replay(t.Context(), ids(rows))
	if err != nil || !slices.Equal(replayed.IDs, ids(rows)[1:]) || !slices.Equal(replayed.Refused, []store.Refusal{{ID: rows[0].ID, Holder: rows[0].ID}}) {
		t.Errorf("Replay: %+v, %v", replayed, err)
	}
	page, err := db.Driver().Relay.Due(t.Context(), []int{0}, 10)
	if err != nil || len(page.Rows) != 1 || page.Rows[0].Holds {
		t.Errorf("an unordered event is due as %+v, %v; want it to hold nothing", page.Rows, err)
	}
}

// TestReplayAndDiscardTogether lets two stores replay and discard the same dead
// letters: each dead letter is either replayed or discarded, once.
func TestReplayAndDiscardTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	one, two := openAt(t, path, sqlitestore.Config{}), over(t, path, deferred, sqlitestore.Config{})
	box := newBox(t, one.Driver().Outbox)
	for range 100 {
		write(t, box, placed("1"))
	}
	rows := bury(t, one, owner(t, one), true)
	var mu sync.Mutex
	changed := map[waybill.ID]int{}
	var wg sync.WaitGroup
	for part := range slices.Chunk(ids(rows), 10) {
		for _, db := range []*sqlitestore.Store{one, two} {
			wg.Go(func() {
				replayed, err := db.Driver().OutboxAdmin.Replay(t.Context(), part[:7])
				if err != nil {
					t.Error(err)
				}
				discarded, err := db.Driver().OutboxAdmin.Discard(t.Context(), part[3:])
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, id := range append(replayed.IDs, discarded...) {
					changed[id]++
				}
			})
		}
	}
	wg.Wait()
	for _, id := range ids(rows) {
		if changed[id] != 1 {
			t.Errorf("%s was changed %d times", id, changed[id])
		}
	}
	if n := counts(t, one); n["dead"] != 0 || n["delayed"] == 0 {
		t.Errorf("after it: %v", n)
	}
}

// TestUnblock ends holds in both tables, and returns their ids.
func TestUnblock(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	leases := owner(t, db)
	write(t, box, placed("1"))
	dead := bury(t, db, leases, true)[0].ID
	put := write(t, box, placed("2"))
	settle(t, db, driver.Settlement{Leases: leases, Retry: []driver.Result{{ID: put, Attempts: 1, Holds: true}}})
	asked := []waybill.ID{put, waybill.NewID(), dead, put}
	if done, err := db.Driver().OutboxAdmin.Unblock(t.Context(), asked); err != nil || !slices.Equal(done, []waybill.ID{put, dead}) {
		t.Errorf("Unblock: %v, %v", done, err)
	}
	if done, err := db.Driver().OutboxAdmin.Unblock(t.Context(), asked); err != nil || len(done) != 0 {
		t.Errorf("once more: %v, %v", done, err)
	}
	if holds, err := db.Driver().Relay.Holds(t.Context(), []int{0}); err != nil || len(holds) != 0 {
		t.Errorf("Holds: %v, %v", holds, err)
	}
	if n := counts(t, db); n["dead"] != 1 || n["delayed"] != 1 {
		t.Errorf("after it: %v", n)
	}
}

// TestPurge deletes the oldest rows first, and records the new start of the
// history.
func TestPurge(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	leases := owner(t, db)
	for range 5 {
		write(t, box, placed("1"))
	}
	var done []driver.Result
	for _, row := range fetch(t, db.Driver().Relay) {
		done = append(done, driver.Result{ID: row.ID})
	}
	settle(t, db, driver.Settlement{Leases: leases, Done: done, History: true})
	now := time.Now()
	for i, r := range done {
		run(t, db, `UPDATE waybill_history SET done_at = ? WHERE id = ?`, now.Add(-time.Duration(5-i)*24*time.Hour).UnixMicro(), r.ID[:])
	}
	from := func() string {
		return value[string](t, db, `SELECT ifnull((SELECT value FROM waybill_setting WHERE name = 'history_from'), '')`)
	}
	purge := func(age time.Duration, limit, want int) {
		t.Helper()
		if n, err := db.Driver().OutboxAdmin.Purge(t.Context(), store.Delivered, age, limit); err != nil || n != want {
			t.Errorf("Purge: %d, %v; want %d", n, err, want)
		}
	}
	purge(100*24*time.Hour, 10, 0)
	if from() != "" {
		t.Errorf("nothing was purged, and the history begins at %s", from())
	}
	age := 36 * time.Hour
	purge(age, 2, 2)
	first := from()
	at, err := time.Parse(time.RFC3339, first)
	if cutoff := now.Add(-age); err != nil || at.Before(cutoff) || at.After(cutoff.Add(time.Minute)) {
		t.Errorf("the history begins at %s, want %v, rounded up", first, cutoff)
	}
	if left := value[int](t, db, `SELECT count(*) FROM waybill_history WHERE id = ? OR id = ?`, done[0].ID[:], done[1].ID[:]); left != 0 {
		t.Error("the oldest are still there")
	}
	purge(60*time.Hour, 10, 1) // an older cutoff does not move the setting back
	if from() < first {
		t.Errorf("it went back from %s to %s", first, from())
	}
	purge(age, 10, 1)
	run(t, db, `UPDATE waybill_setting SET value = 'never' WHERE name = 'history_from'`)
	purge(0, 10, 1)
	if from() != "never" {
		t.Errorf("never has become %s", from())
	}
	for _, state := range []store.State{store.Ready, store.Delayed, 7} {
		if _, err := db.Driver().OutboxAdmin.Purge(t.Context(), state, 0, 1); err == nil {
			t.Errorf("Purge of %v", state)
		}
	}
}

func TestPurgeDead(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	for range 3 {
		write(t, box, placed("1"))
	}
	rows := bury(t, db, owner(t, db), true)
	run(t, db, `UPDATE waybill_dead SET died_at = died_at - 1000000 * seq`)
	if n, err := db.Driver().OutboxAdmin.Purge(t.Context(), store.Dead, time.Hour, 10); err != nil || n != 0 {
		t.Errorf("of the last hour: %d, %v", n, err)
	}
	if n, err := db.Driver().OutboxAdmin.Purge(t.Context(), store.Dead, 0, 2); err != nil || n != 2 {
		t.Errorf("two: %d, %v", n, err)
	}
	left, err := db.Driver().OutboxAdmin.List(t.Context(), store.Dead, store.Filter{}, 0, 10)
	// This event died last.
	if err != nil || len(left) != 1 || left[0].ID != rows[0].ID {
		t.Errorf("left: %+v, %v", left, err)
	}
}

// TestPurgeWritten deletes ready events and their keys if no relay runs, and
// records the gap in the history. Delayed events stay.
func TestPurgeWritten(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	for i := range 6 {
		ev := placed("1")
		ev.DedupKey = string(rune('a' + i))
		if i >= 4 {
			ev.Delay = time.Hour
		}
		write(t, box, ev)
	}
	node := store.Node{ID: waybill.NewID(), Relay: "test"}
	if _, err := db.Driver().Relay.Heartbeat(t.Context(), node, time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Driver().OutboxAdmin.PurgeWritten(t.Context(), 0, 10); !errors.Is(err, store.ErrRelayLive) {
		t.Errorf("with a relay: %v, want ErrRelayLive", err)
	}
	if err := db.Driver().OutboxAdmin.SetLanes(t.Context(), 1); !errors.Is(err, store.ErrRelayLive) {
		t.Errorf("SetLanes with a relay: %v, want ErrRelayLive", err)
	}
	if err := db.Driver().Relay.Leave(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		age         time.Duration
		limit, want int
	}{{time.Hour, 10, 0}, {0, 3, 3}, {0, 3, 1}, {0, 3, 0}} {
		_, err := db.Driver().Outbox.Committed(t.Context(), waybill.NewID())
		if n := counts(t, db); errors.Is(err, waybill.ErrUncertain) != (n["dedup"] < 6) {
			t.Errorf("with %d events left: %v", n["dedup"], err)
		}
		if n, err := db.Driver().OutboxAdmin.PurgeWritten(t.Context(), step.age, step.limit); err != nil || n != step.want {
			t.Errorf("%v, %d: %d, %v; want %d", step.age, step.limit, n, err, step.want)
		}
	}
	if n := counts(t, db); n["outbox"] != 0 || n["delayed"] != 2 || n["dedup"] != 2 {
		t.Errorf("after it: %v", n)
	}
	// A row that was deleted by hand leaves its key behind, until Tidy runs.
	run(t, db, `DELETE FROM waybill_delayed WHERE dedup_key = 'e'`)
	if err := db.Driver().OutboxAdmin.Tidy(t.Context(), -1); err != nil {
		t.Fatal(err)
	}
	if n := counts(t, db); n["delayed"] != 1 || n["dedup"] != 1 {
		t.Errorf("after Tidy: %v", n)
	}
}

func TestTidyAndSetLanes(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	lease := owner(t, db)[0]
	run(t, db, `UPDATE waybill_node SET expires_at = 1`)
	if err := db.Driver().OutboxAdmin.Tidy(t.Context(), -1); err != nil {
		t.Error(err)
	}
	if n := value[int](t, db, `SELECT count(*) FROM waybill_node`); n != 0 {
		t.Errorf("%d nodes are left", n)
	}
	for _, n := range []int{-1, 0, 2, 32} {
		if err := db.Driver().OutboxAdmin.SetLanes(t.Context(), n); err == nil {
			t.Errorf("%d lanes are accepted", n)
		}
	}
	if err := db.Driver().OutboxAdmin.SetLanes(t.Context(), 1); err != nil {
		t.Error(err)
	}
	next := owner(t, db)[0]
	if next.Epoch != lease.Epoch+2 || !next.Unclean || next.Window != 100 {
		t.Errorf("after SetLanes: %+v, before %+v", next, lease)
	}
}

package mysqlstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// deadLetterAll dead-letters every ready event and returns the rows, in the
// order of seq.
func deadLetterAll(t testing.TB, s *mysqlstore.Store, leases []driver.Lease, holds bool) []store.Row {
	t.Helper()
	rows := ready(t, s)
	dead := results(rows)
	for i := range dead {
		dead[i].Attempts, dead[i].Holds, dead[i].Error = 5, holds, "boom"
	}
	settle(t, s, driver.Settlement{Leases: leases, Dead: dead})
	slices.SortFunc(rows, func(a, b store.Row) int { return int(a.Seq - b.Seq) })
	return rows
}

func TestStats(t *testing.T) { onBoth(t, testStats) }

func testStats(t *testing.T) {
	s, db := openStore(t, nil)
	if st, err := s.Driver().OutboxAdmin.Stats(t.Context()); err != nil || st.Ready != 0 || !st.Oldest.IsZero() || len(st.Lanes) != 32 || len(st.Nodes) != 0 || st.Now.IsZero() {
		t.Errorf("of nothing: %+v, %v", st, err)
	}
	node, leases := own(t, s)
	write(t, s, db, event("a"))
	deadLetterAll(t, s, leases, true)
	write(t, s, db, event("b"))
	retry := results(ready(t, s))
	retry[0].Attempts, retry[0].Holds = 4, true
	settle(t, s, driver.Settlement{Leases: leases, Retry: retry})
	later := event("c")
	later.Delay = time.Hour
	write(t, s, db, later, event("d"))
	write(t, s, db, event("e"))
	oldest := ask[int64](t, db, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MIN(created_at)) FROM waybill_outbox")
	st, err := s.Driver().OutboxAdmin.Stats(t.Context())
	if err != nil || st.Ready != 2 || st.Scheduled != 1 || st.Failed != 1 || st.Dead != 1 || st.Holding != 2 || st.MaxAttempts != 4 ||
		st.Oldest.UnixMicro() != oldest || st.Now.Before(st.Oldest) {
		t.Errorf("Stats: %+v, %v", st, err)
	}
	if len(st.Nodes) != 1 || st.Nodes[0].ID != node.ID || st.Nodes[0].Relay != node.Relay || len(st.Lanes) != 32 || !st.Lanes[7].Live || st.Lanes[7].Lane != 7 ||
		st.Lanes[7].Owner != node.ID || st.Lanes[7].Epoch != leases[7].Epoch {
		t.Errorf("Membership: %+v", st.Membership)
	}
}

// Rows of every state, filtered. Texts compare as bytes.
func TestBrowse(t *testing.T) { onBoth(t, testBrowse) }

func testBrowse(t *testing.T) {
	s, db := openStore(t, nil)
	_, leases := own(t, s)
	verdict := func() []driver.Result {
		exec(t, db, `INSERT INTO waybill_outbox (type, payload, aggregate_type, aggregate_id, tenant_id) VALUES
('A', '1', 'order', 'x', 't'), ('a', '1', 'order', 'X', NULL), ('A', '1', '', 'x ', 'T'), ('b', '1', '__GLOBAL__', NULL, NULL)`)
		list := results(ready(t, s))
		for i, row := range ready(t, s) {
			list[i].Holds, list[i].Delay, list[i].Error = row.Event.Type == "A", time.Hour, "boom"
		}
		return list
	}
	settle(t, s, driver.Settlement{Leases: leases, Done: verdict(), History: true})
	settle(t, s, driver.Settlement{Leases: leases, Dead: verdict()})
	settle(t, s, driver.Settlement{Leases: leases, Retry: verdict()})
	verdict()
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
		{store.Filter{Type: "' OR 1 -- {fits}"}, [4]int{}},
	} {
		for state, want := range c.want {
			browse(t, s, store.State(state), c.filter, want)
		}
	}
	for _, state := range []store.State{-1, 4} {
		if _, err := s.Driver().OutboxAdmin.Count(t.Context(), state, store.Filter{}); err == nil {
			t.Errorf("Count of %v", state)
		}
		if _, err := s.Driver().OutboxAdmin.List(t.Context(), state, store.Filter{}, 0, 1); err == nil {
			t.Errorf("List of %v", state)
		}
	}
	if found, err := s.Driver().OutboxAdmin.Find(t.Context(), waybill.NewID()); err != nil || len(found) != 0 {
		t.Errorf("Find of nothing: %+v, %v", found, err)
	}
}

// browse counts and lists rows, in pages, and finds every listed row.
func browse(t *testing.T, s *mysqlstore.Store, state store.State, f store.Filter, want int) {
	t.Helper()
	if n, err := s.Driver().OutboxAdmin.Count(t.Context(), state, f); err != nil || n != int64(want) {
		t.Errorf("Count %v %+v: %d, %v; want %d", state, f, n, err, want)
	}
	var listed []store.Record
	for after := int64(0); ; after = listed[len(listed)-1].Seq {
		page, err := s.Driver().OutboxAdmin.List(t.Context(), state, f, after, 3)
		if err != nil {
			t.Fatal(err)
		}
		if listed = append(listed, page...); len(page) < 3 {
			break
		}
	}
	if len(listed) != want || !slices.IsSortedFunc(listed, func(a, b store.Record) int { return int(a.Seq - b.Seq) }) {
		t.Errorf("List %v %+v: %d, want %d", state, f, len(listed), want)
	}
	for _, r := range listed {
		found, err := s.Driver().OutboxAdmin.Find(t.Context(), r.ID)
		if err != nil || len(found) != 1 || fmt.Sprint(found[0]) != fmt.Sprint(r) {
			t.Errorf("Find: %+v, %v; want %+v", found, err, r)
		}
		ended := state == store.Dead || state == store.Delivered
		if r.State != state || r.EndedAt.IsZero() == ended || r.CreatedAt.IsZero() || r.DueAt.IsZero() != (state != store.Delayed) ||
			(r.LastError == "boom") != (state == store.Delayed || state == store.Dead) || string(r.Event.Payload) != "1" {
			t.Errorf("a %v row is %+v", state, r)
		}
	}
}

// More dead letters than one statement takes, in any order, with duplicates and
// missing ids.
func TestReplayMany(t *testing.T) { onBoth(t, testReplayMany) }

func testReplayMany(t *testing.T) {
	s, db := openStore(t, nil)
	_, leases := own(t, s)
	evs := make([]waybill.Event, 2300)
	for i := range evs {
		evs[i] = event(fmt.Sprint(i % 50))
		evs[i].DedupKey = fmt.Sprint("k", i)
	}
	write(t, s, db, evs...)
	rows := deadLetterAll(t, s, leases, false)
	asked := append(idsOf(rows), waybill.NewID(), rows[0].ID)
	slices.Reverse(asked)
	replayed, err := s.Driver().OutboxAdmin.Replay(t.Context(), asked)
	if err != nil || !slices.Equal(replayed.IDs, idsOf(rows)) || len(replayed.Refused) != 0 {
		t.Fatalf("%d replayed, %d refused, %v", len(replayed.IDs), len(replayed.Refused), err)
	}
	if again, err := s.Driver().OutboxAdmin.Replay(t.Context(), asked); err != nil || len(again.IDs) != 0 || len(again.Refused) != 0 {
		t.Errorf("once more: %+v, %v", again, err)
	}
	page, err := s.Driver().Relay.Due(t.Context(), allLanes(), 5000)
	if err != nil || len(page.Rows) != len(rows) || keys(t, db) != len(rows) {
		t.Fatalf("%d are due, %d keys, %v", len(page.Rows), keys(t, db), err)
	}
	for i, row := range page.Rows {
		if row.Key != rows[i].Key || row.Attempts != 0 || row.Replay != 1 || !row.Holds || row.LastError != "boom" || !row.DueAt.Equal(page.Rows[0].DueAt) {
			t.Fatalf("row %d is %+v", i, row)
		}
	}
	settle(t, s, driver.Settlement{Leases: leases, Dead: results(page.Rows)})
	if gone, err := s.Driver().OutboxAdmin.Discard(t.Context(), asked); err != nil || len(gone) != len(rows) {
		t.Errorf("%d discarded, %v", len(gone), err)
	}
	if n := counts(t, db); n["dead"] != 0 || n["delayed"] != 0 || n["dedup"] != 0 {
		t.Errorf("after it: %v", n)
	}
	if _, err := s.Driver().Outbox.Committed(t.Context(), rows[0].ID); !errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("Committed of an event that was discarded: %v, want uncertain", err)
	}
}

// A key belongs to one pending event at a time, and the oldest dead letter gets
// it.
func TestReplayKeys(t *testing.T) { onBoth(t, testReplayKeys) }

func testReplayKeys(t *testing.T) {
	s, db := openStore(t, impatient)
	_, leases := own(t, s)
	for range 2 {
		write(t, s, db, keyed("k"))
		deadLetterAll(t, s, leases, false)
	}
	dead, err := s.Driver().OutboxAdmin.List(t.Context(), store.Dead, store.Filter{}, 0, 10)
	if err != nil || len(dead) != 2 {
		t.Fatal(dead, err)
	}
	both := []waybill.ID{dead[1].ID, dead[0].ID}
	pending := keyed("k")
	write(t, s, db, pending)
	// Absorbed, and locks nothing.
	producer := begin(t, db, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if _, err := s.Driver().Outbox.Append(t.Context(), producer, []waybill.Event{event("z")}); err != nil {
		t.Fatal(err)
	}
	replayed, err := s.Driver().OutboxAdmin.Replay(t.Context(), both)
	want := []store.Refusal{{ID: dead[0].ID, Holder: pending.ID}, {ID: dead[1].ID, Holder: pending.ID}}
	if err != nil || len(replayed.IDs) != 0 || !slices.Equal(replayed.Refused, want) {
		t.Errorf("with a pending one: %+v, %v; want %+v", replayed, err, want)
	}
	deliver(t, s, leases, pending)
	replayed, err = s.Driver().OutboxAdmin.Replay(t.Context(), both)
	if err != nil || !slices.Equal(replayed.IDs, both[1:]) || !slices.Equal(replayed.Refused, []store.Refusal{{ID: both[0], Holder: both[1]}}) {
		t.Errorf("two of one key: %+v, %v", replayed, err)
	}
	if n := counts(t, db); n["dedup"] != 1 || n["dead"] != 1 || n["delayed"] != 1 {
		t.Errorf("after it: %v", n)
	}
	if placed := write(t, s, db, keyed("k")); placed[0].ID != both[1] {
		t.Errorf("the next one is %v, want absorbed by %v", placed[0].ID, both[1])
	}
}

// A dead letter whose id a producer used again is refused, and the others are
// replayed.
func TestReplayOneIDTwice(t *testing.T) { onBoth(t, testReplayOneIDTwice) }

func testReplayOneIDTwice(t *testing.T) {
	s, db := openStore(t, nil)
	_, leases := own(t, s)
	write(t, s, db, event("a"), event(""))
	rows := deadLetterAll(t, s, leases, false)
	exec(t, db, "INSERT INTO waybill_outbox (type, payload, id) VALUES ('again', '', ?)", rows[0].ID[:])
	replayed, err := s.Driver().OutboxAdmin.Replay(t.Context(), idsOf(rows))
	if err != nil || !slices.Equal(replayed.IDs, idsOf(rows)[1:]) || !slices.Equal(replayed.Refused, []store.Refusal{{ID: rows[0].ID, Holder: rows[0].ID}}) {
		t.Errorf("Replay: %+v, %v", replayed, err)
	}
	page, err := s.Driver().Relay.Due(t.Context(), allLanes(), 10)
	if err != nil || len(page.Rows) != 1 || page.Rows[0].Holds {
		t.Errorf("an unordered event is due as %+v, %v; want no hold", page.Rows, err)
	}
}

// A key was left behind because a producer had it locked when its event died.
// The replayed event takes the key again; the later attempt to free the key
// must not take it away.
func TestReplayedEventKeepsItsKey(t *testing.T) { onBoth(t, testReplayedEventKeepsItsKey) }

func testReplayedEventKeepsItsKey(t *testing.T) {
	s, db := openStore(t, impatient)
	_, leases := own(t, s)
	first := keyed("k")
	write(t, s, db, first)
	producer := begin(t, db, nil)
	if _, err := s.Driver().Outbox.Append(t.Context(), producer, []waybill.Event{keyed("k")}); err != nil {
		t.Fatal(err)
	}
	deadLetterAll(t, s, leases, false)
	if err := producer.Rollback(); err != nil {
		t.Fatal(err)
	}
	if s.Leftover() != 1 {
		t.Fatalf("%d keys are left behind, want 1", s.Leftover())
	}
	if replayed, err := s.Driver().OutboxAdmin.Replay(t.Context(), []waybill.ID{first.ID}); err != nil || len(replayed.IDs) != 1 {
		t.Fatalf("Replay: %+v, %v", replayed, err)
	}
	other := event("b")
	write(t, s, db, other)
	deliver(t, s, leases, other)
	if err := s.Driver().OutboxAdmin.Tidy(t.Context(), 0); err != nil {
		t.Error(err)
	}
	if s.Leftover() != 0 || keys(t, db) != 1 {
		t.Errorf("%d keys are left behind, %d are in the table; want none and one", s.Leftover(), keys(t, db))
	}
	if placed := write(t, s, db, keyed("k")); placed[0].ID != first.ID {
		t.Errorf("the next one is %v, want absorbed by %v", placed[0].ID, first.ID)
	}
}

// Many operators replay and discard the same dead letters, and producers write
// the same keys: each dead letter is either replayed or discarded, once, and no
// key has two holders.
func TestReplayAndDiscardTogether(t *testing.T) { onBoth(t, testReplayAndDiscardTogether) }

func testReplayAndDiscardTogether(t *testing.T) {
	s, db := openStore(t, nil)
	_, leases := own(t, s)
	evs := make([]waybill.Event, 100)
	for i := range evs {
		evs[i] = event("a")
		evs[i].DedupKey = fmt.Sprint("k", i)
	}
	write(t, s, db, evs...)
	rows := deadLetterAll(t, s, leases, true)
	var mu sync.Mutex
	changed := map[waybill.ID]int{}
	var wg sync.WaitGroup
	for part := range slices.Chunk(idsOf(rows), 25) {
		for range 2 {
			operator := newStore(t, db)
			wg.Go(func() {
				replayed, err := operator.Driver().OutboxAdmin.Replay(t.Context(), part[:20])
				if err != nil {
					t.Error(err)
				}
				discarded, err := operator.Driver().OutboxAdmin.Discard(t.Context(), part[10:])
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
	wg.Go(func() {
		for i := range evs {
			ev := event("b")
			ev.DedupKey = fmt.Sprint("k", 99-i)
			write(t, s, db, ev)
		}
	})
	wg.Wait()
	for _, id := range idsOf(rows) {
		if changed[id] > 1 {
			t.Errorf("%s was changed %d times", id, changed[id])
		}
	}
	pending := ask[int](t, db, "SELECT (SELECT COUNT(*) FROM waybill_outbox) + (SELECT COUNT(*) FROM waybill_delayed)")
	if n := counts(t, db); n["dedup"] != 100 || pending != 100 {
		t.Errorf("%d are pending: %v", pending, n)
	}
}

func TestUnblock(t *testing.T) { onBoth(t, testUnblock) }

func testUnblock(t *testing.T) {
	s, db := openStore(t, nil)
	_, leases := own(t, s)
	write(t, s, db, event("a"))
	dead := deadLetterAll(t, s, leases, true)[0].ID
	write(t, s, db, event("b"))
	retry := results(ready(t, s))
	retry[0].Holds = true
	settle(t, s, driver.Settlement{Leases: leases, Retry: retry})
	put := retry[0].ID
	asked := []waybill.ID{put, waybill.NewID(), dead, put}
	if done, err := s.Driver().OutboxAdmin.Unblock(t.Context(), asked); err != nil || !slices.Equal(done, []waybill.ID{put, dead}) {
		t.Errorf("Unblock: %v, %v", done, err)
	}
	if done, err := s.Driver().OutboxAdmin.Unblock(t.Context(), asked); err != nil || len(done) != 0 {
		t.Errorf("once more: %v, %v", done, err)
	}
	if holds, err := s.Driver().Relay.Holds(t.Context(), allLanes()); err != nil || len(holds) != 0 {
		t.Errorf("Holds: %v, %v", holds, err)
	}
	if n := counts(t, db); n["dead"] != 1 || n["delayed"] != 1 {
		t.Errorf("after it: %v", n)
	}
}

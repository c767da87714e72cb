package mysqlstore_test

import (
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// counts returns the number of rows of each table.
func counts(t testing.TB, db *sql.DB) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, table := range []string{"outbox", "delayed", "dead", "history", "dedup"} {
		n[table] = ask[int](t, db, "SELECT COUNT(*) FROM waybill_"+table)
	}
	return n
}

func idsOf(rows []store.Row) []waybill.ID {
	ids := make([]waybill.ID, len(rows))
	for i, row := range rows {
		ids[i] = row.ID
	}
	return ids
}

// settle records results of held lanes.
func settle(t testing.TB, s *mysqlstore.Store, set driver.Settlement) {
	t.Helper()
	settled, err := s.Driver().Relay.Settle(t.Context(), set)
	if want := len(set.Done) + len(set.Retry) + len(set.Dead); err != nil || len(settled.Moved) != want {
		t.Fatalf("Settle: %d moved, want %d; %v", len(settled.Moved), want, err)
	}
}

// Rows whose aggregate columns are unset or empty: a RowRef shows the same
// aggregate as the whole row. Texts compare as bytes.
func TestSightings(t *testing.T) { onBoth(t, testSightings) }

func testSightings(t *testing.T) {
	s, db := openStore(t, nil)
	// One lane for all aggregates.
	if err := s.Driver().OutboxAdmin.SetLanes(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `INSERT INTO waybill_outbox (lane, type, payload, aggregate_type, aggregate_id, tenant_id) VALUES
(0, 'A', '', '__GLOBAL__', NULL, NULL), (0, 'A', '', 'order', '', 't'), (0, 'A', '', '', 'x', NULL), (0, 'A', '', 'order', 'x', ''),
(0, 'A', '', 'order', 'x', 't'), (0, 'A', '', 'order', 'X', 't'), (0, 'A', '', 'order', 'x ', 't'), (0, 'A', '', 'order', ' ', ''), (0, 'A', '', 'order', 'é', 't')`)
	rows := ready(t, s)
	seen, err := s.Driver().Relay.Sweep(t.Context(), []driver.Cursor{{Lane: 0, UpTo: 100}}, 100)
	if err != nil || len(seen) != len(rows) {
		t.Fatalf("Sweep: %d, %v; want %d", len(seen), err, len(rows))
	}
	if !seen[0].Aggregate.IsZero() || !seen[1].Aggregate.IsZero() || seen[2].Aggregate != (store.Aggregate{Type: waybill.GlobalAggregate, ID: "x"}) {
		t.Errorf("Sweep: %+v", seen[:3])
	}
	for i, row := range rows {
		agg := driver.AggregateOf(&row.Event)
		if seen[i].Key != row.Key || seen[i].Aggregate != agg {
			t.Errorf("%+v, read whole %+v", seen[i], row)
		}
		page, err := s.Driver().Relay.FetchAggregate(t.Context(), agg, driver.Cursor{Lane: 0}, 100)
		var want []waybill.ID
		for _, other := range rows {
			if !agg.IsZero() && driver.AggregateOf(&other.Event) == agg {
				want = append(want, other.ID)
			}
		}
		if err != nil || !slices.Equal(idsOf(page.Rows), want) || page.Now.IsZero() {
			t.Errorf("FetchAggregate %+v: %v, %v; want %v", agg, idsOf(page.Rows), err, want)
		}
	}
}

// A row with a priority is found behind any number of others, without scanning
// the rows of the table.
func TestUrgentFar(t *testing.T) { onBoth(t, testUrgentFar) }

func testUrgentFar(t *testing.T) {
	s, db := openStore(t, nil)
	exec(t, db, `INSERT INTO waybill_outbox (lane, type, payload, priority)
SELECT 1, 'x', '', IF(n IN (3, 900, 999), 1, 0) FROM JSON_TABLE(CONCAT('[', REPEAT('0,', 999), '0]'), '$[*]' COLUMNS (n FOR ORDINALITY)) AS t`)
	rows := ready(t, s)
	for limit, want := range map[int][]waybill.ID{
		0: {}, 1: {rows[2].ID}, 2: {rows[2].ID, rows[899].ID}, 3: {rows[2].ID, rows[899].ID, rows[998].ID},
	} {
		page, err := s.Driver().Relay.FetchPriority(t.Context(), []driver.Cursor{{Lane: 0}, {Lane: 1}}, limit)
		if err != nil || !slices.Equal(idsOf(page.Rows), want) || page.Now.IsZero() {
			t.Errorf("limit %d: %v, %v; want %v", limit, idsOf(page.Rows), err, want)
		}
		if limit > 0 && page.RowsScanned < 1000 {
			t.Errorf("limit %d: scanned %d rows, want at least 1000", limit, page.RowsScanned)
		}
	}
	var columns string
	err := db.QueryRowContext(t.Context(), `SELECT GROUP_CONCAT(column_name ORDER BY seq_in_index) FROM information_schema.statistics
 WHERE table_schema = DATABASE() AND table_name = 'waybill_outbox' AND index_name = 'seq'`).Scan(&columns)
	if err != nil || columns != "seq,priority" {
		t.Errorf("the index on seq has the columns %q, %v; want the priority as well", columns, err)
	}
}

// The lanes of a read share one limit of keys: a lane whose priority rows are
// hidden by those of another lane does not count as a lane without any.
func TestUrgentHidden(t *testing.T) { onBoth(t, testUrgentHidden) }

func testUrgentHidden(t *testing.T) {
	s, db := openStore(t, nil)
	exec(t, db, `INSERT INTO waybill_outbox (lane, type, payload, priority)
SELECT IF(n = 101, 1, 0), 'x', '', 1 FROM JSON_TABLE(CONCAT('[', REPEAT('0,', 100), '0]'), '$[*]' COLUMNS (n FOR ORDINALITY)) AS t`)
	for limit, want := range map[int][]int{1: nil, 10: {2}} {
		page, err := s.Driver().Relay.FetchPriority(t.Context(), []driver.Cursor{{Lane: 0}, {Lane: 1}, {Lane: 2}}, limit)
		if err != nil || !slices.Equal(page.Plain, want) {
			t.Errorf("limit %d: the lanes %v have no row with a priority, %v; want %v", limit, page.Plain, err, want)
		}
	}
}

// The page reports the next due time, whether or not it is full.
func TestNextDue(t *testing.T) { onBoth(t, testNextDue) }

func testNextDue(t *testing.T) {
	s, db := openStore(t, nil)
	if page, err := s.Driver().Relay.Due(t.Context(), allLanes(), 10); err != nil || !page.Next.IsZero() || page.Now.IsZero() {
		t.Errorf("without rows: %+v, %v", page, err)
	}
	soon := clock(t, s.Driver().Relay).Add(time.Hour)
	late, later := event("a"), event("b")
	late.AvailableAt, later.AvailableAt = soon, soon.Add(time.Second)
	write(t, s, db, later, late)
	for _, limit := range []int{0, 1, 10} {
		if page, err := s.Driver().Relay.Due(t.Context(), allLanes(), limit); err != nil || len(page.Rows) != 0 || !page.Next.Equal(soon) {
			t.Errorf("limit %d: next %v, %v; want %v", limit, page.Next, err, soon)
		}
	}
	_, leases := own(t, s)
	write(t, s, db, event("a"), event("b"), event("c"))
	settle(t, s, driver.Settlement{Leases: leases, Retry: results(ready(t, s)), Durable: true})
	if page, err := s.Driver().Relay.Due(t.Context(), allLanes(), 2); err != nil || len(page.Rows) != 2 || !page.Next.Equal(soon) {
		t.Errorf("%d rows, next %v, %v; want 2 and %v", len(page.Rows), page.Next, err, soon)
	}
	lane := driver.LaneOf("", "thing", "b", 32)
	if page, err := s.Driver().Relay.Due(t.Context(), []int{lane}, 2); err != nil || !page.Next.Equal(soon.Add(time.Second)) {
		t.Errorf("of one lane: next %v, %v", page.Next, err)
	}
}

// Reads name every lane in one statement: that must work for the maximum number
// of lanes.
func TestAllTheLanes(t *testing.T) { onBoth(t, testAllTheLanes) }

func testAllTheLanes(t *testing.T) {
	s, db := openStore(t, nil)
	write(t, s, db, event("a"))
	lanes := make([]int, 1024)
	for i := range lanes {
		lanes[i] = i
	}
	if _, err := s.Driver().Relay.Due(t.Context(), lanes, 100); err != nil {
		t.Error(err)
	}
	if _, err := s.Driver().Relay.Holds(t.Context(), lanes); err != nil {
		t.Error(err)
	}
	if seen, err := s.Driver().Relay.Sweep(t.Context(), cursors(1024), 100); err != nil || len(seen) != 1 {
		t.Errorf("Sweep: %v, %v", seen, err)
	}
	if page, err := s.Driver().Relay.FetchPriority(t.Context(), cursors(1024), 100); err != nil || len(page.Rows) != 0 {
		t.Errorf("Urgent: %v, %v", page, err)
	}
}

// Holds come from both tables, in the order of lane and seq.
func TestHolds(t *testing.T) { onBoth(t, testHolds) }

func testHolds(t *testing.T) {
	s, db := openStore(t, nil)
	_, leases := own(t, s)
	write(t, s, db, event("a"), event("b"), event("c"), event("d"))
	rows := ready(t, s)
	verdict := results(rows)
	for i := range verdict {
		verdict[i].Holds, verdict[i].Delay = i < 3, time.Hour
	}
	settle(t, s, driver.Settlement{Leases: leases, Dead: verdict[:1], Retry: verdict[1:]})
	holds, err := s.Driver().Relay.Holds(t.Context(), allLanes())
	if err != nil || len(holds) != 3 {
		t.Fatalf("Holds: %+v, %v", holds, err)
	}
	for i, h := range holds {
		if h.Key != rows[i].Key || h.Dead != (i == 0) || h.Aggregate != driver.AggregateOf(&rows[i].Event) {
			t.Errorf("hold %d: %+v, want %+v", i, h, rows[i])
		}
	}
	if holds, err := s.Driver().Relay.Holds(t.Context(), []int{rows[1].Lane}); err != nil || len(holds) != 1 {
		t.Errorf("of one lane: %+v, %v", holds, err)
	}
}

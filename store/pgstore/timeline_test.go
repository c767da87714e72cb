package pgstore_test

import (
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
)

// timelineTest is a database whose timeline the test chooses, with one lane, a
// ready event with a priority, a delayed event that is due, an event of a
// backlog, and a dead letter of each that holds its aggregate. A real failover
// is in cmd/waybill/internal/clusters.
type timelineTest struct {
	*testing.T
	pool   *pgxpool.Pool
	schema string
}

func newTimelineTest(t *testing.T) *timelineTest {
	t.Helper()
	pool := openPool(t, nil)
	_, schema := openWith(t, pool, pgstore.Config{Lanes: 1})
	x := &timelineTest{t, pool, schema}
	x.exec(`INSERT INTO waybill_outbox (type, aggregate_id, payload, priority) VALUES ('A', 'a', '', 1)`)
	x.exec(`INSERT INTO waybill_delayed (lane, seq, id, type, aggregate_type, schema_version, occurred_at, priority, payload, created_at, due_at, attempts, replay, holds)
SELECT 0, 1000, gen_random_uuid(), 'B', '', 1, now(), 0, '', now(), now(), 0, 0, false`)
	x.exec(`INSERT INTO waybill_backlog (lane, seq, id, type, aggregate_type, aggregate_id, schema_version, occurred_at, priority, payload, created_at, attempts, replay, final)
SELECT 1024, 1, gen_random_uuid(), 'C', '', 'a', 1, now(), 1, '', now(), 0, 0, false`)
	x.exec(`INSERT INTO waybill_dead (lane, seq, id, type, aggregate_type, aggregate_id, schema_version, occurred_at, priority, payload, created_at, died_at, attempts, replay, holds)
SELECT 0, 1001, gen_random_uuid(), 'D', '', 'd', 1, now(), 0, '', now(), now(), 0, 0, true`)
	x.exec(`INSERT INTO waybill_backlog_dead (lane, seq, id, type, aggregate_type, aggregate_id, schema_version, occurred_at, priority, payload, created_at, died_at, attempts, replay, holds)
SELECT 1024, 1001, gen_random_uuid(), 'D', '', 'd', 1, now(), 0, '', now(), now(), 0, 0, true`)
	x.promote(1)
	return x
}

// exec runs a statement in the schema.
func (t *timelineTest) exec(statement string) {
	t.Helper()
	tx, err := t.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // harmless after the commit
	for _, one := range []string{`SET LOCAL search_path = "` + t.schema + `"`, statement} {
		if _, err := tx.Exec(t.Context(), one); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// promote sets the timeline.
func (t *timelineTest) promote(timeline int) {
	t.Helper()
	t.exec(`CREATE OR REPLACE FUNCTION waybill_timeline() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT ` + strconv.Itoa(timeline) + `::bigint'`)
}

// promoteEach sets the timeline of each call, and of all later ones.
func (t *timelineTest) promoteEach(timelines string, later int) {
	t.Helper()
	t.exec(`DROP SEQUENCE IF EXISTS calls`)
	t.exec(`CREATE SEQUENCE calls`)
	t.exec(`CREATE OR REPLACE FUNCTION waybill_timeline() RETURNS bigint LANGUAGE sql VOLATILE AS
'SELECT coalesce((ARRAY[` + timelines + `]::bigint[])[nextval(''"` + t.schema + `".calls'')::int], ` + strconv.Itoa(later) + `)'`)
}

// relayOf is a node of a process of its own.
type relayOf struct {
	driver.Relay
	backlog driver.Backlog
	node    store.Node
}

// relay returns a new process.
func (t *timelineTest) relay() *relayOf {
	t.Helper()
	db, err := pgstore.New(t.pool, pgstore.Config{Schema: t.schema, NotifyInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	roles := db.Driver()
	return &relayOf{roles.Relay, roles.Backlogs.Backlog(1), store.Node{ID: waybill.NewID(), Relay: "r"}}
}

// beat renews the lease, and returns the epoch of the lane and whether it has
// an owner.
func (t *timelineTest) beat(r *relayOf) (epoch int64, owned bool) {
	t.Helper()
	view, err := r.Heartbeat(t.Context(), r.node, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return view.Lanes[0].Epoch, !view.Lanes[0].Owner.IsZero()
}

// refused requires that a heartbeat fails, with these words.
func (t *timelineTest) refused(r *relayOf, words ...string) {
	t.Helper()
	if _, err := r.Heartbeat(t.Context(), r.node, time.Hour); err == nil || !containsAll(err.Error(), words...) {
		t.Errorf("Heartbeat: %v, want %q", err, words)
	}
}

// acquire acquires the lane.
func (t *timelineTest) acquire(r *relayOf) driver.Lease {
	t.Helper()
	leases, err := r.Acquire(t.Context(), r.node, []int{0}, 8)
	if err != nil || len(leases) != 1 {
		t.Fatalf("Acquire = %v, %v", leases, err)
	}
	return leases[0]
}

// read returns the number of rows of each read that decides on deliveries.
func (r *relayOf) read(t *timelineTest) (rows map[string]int, errs map[string]error) {
	rows, errs = make(map[string]int), make(map[string]error)
	from, agg := []driver.Cursor{{Lane: 0}}, store.Aggregate{Type: waybill.GlobalAggregate, ID: "a"}
	for of, reads := range map[string]interface {
		driver.Reader
		driver.Seeker
	}{"outbox": r.Relay, "backlog": r.backlog} {
		for name, read := range map[string]func() (int, error){
			"Fetch":          pageOf(func() (driver.Page, error) { return reads.Fetch(t.Context(), from, 10) }),
			"Load":           pageOf(func() (driver.Page, error) { return reads.Load(t.Context(), []store.Key{{Lane: 0, Seq: 1}}) }),
			"FetchAggregate": pageOf(func() (driver.Page, error) { return reads.FetchAggregate(t.Context(), agg, from[0], 10) }),
			"FetchPriority":  pageOf(func() (driver.Page, error) { return reads.FetchPriority(t.Context(), from, 10) }),
			"Sweep": func() (int, error) {
				seen, err := reads.Sweep(t.Context(), from, 10)
				return len(seen), err
			},
			"Holds": func() (int, error) {
				holds, err := reads.Holds(t.Context(), []int{0})
				return len(holds), err
			},
		} {
			rows[of+" "+name], errs[of+" "+name] = read()
		}
	}
	rows["Due"], errs["Due"] = pageOf(func() (driver.Page, error) { return r.Due(t.Context(), []int{0}, 10) })()
	return rows, errs
}

// pageOf returns the number of rows of a page.
func pageOf(read func() (driver.Page, error)) func() (int, error) {
	return func() (int, error) {
		page, err := read()
		return len(page.Rows), err
	}
}

// reads requires that each read returns its row.
func (t *timelineTest) reads(r *relayOf) {
	t.Helper()
	rows, errs := r.read(t)
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		if errs[name] != nil || rows[name] != 1 {
			t.Errorf("%s returned %d rows, %v", name, rows[name], errs[name])
		}
	}
}

// refuses requires that each read fails, with these words.
func (t *timelineTest) refuses(r *relayOf, words ...string) {
	t.Helper()
	rows, errs := r.read(t)
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		if errs[name] == nil || !containsAll(errs[name].Error(), words...) || rows[name] != 0 {
			t.Errorf("%s returned %d rows, %v, want %q", name, rows[name], errs[name], words)
		}
	}
}

// TestFailoverVoidsLeases: after a failover no relay reads anything under a
// lease of before, and the epochs are raised once, above all that the former
// primary can have issued.
func TestFailoverVoidsLeases(t *testing.T) {
	x := newTimelineTest(t)
	a, b := x.relay(), x.relay()
	x.beat(a)
	before := x.acquire(a)
	x.beat(b)
	x.reads(a)

	x.promote(2)
	x.refuses(a, "failed over", "timeline 2 follows 1")
	x.refused(a, "failed over", "timeline 2 follows 1")
	x.refuses(a, "failed over") // until it has acquired the lane again
	if epoch, owned := x.beat(a); epoch != before.Epoch+driver.RestoreEpochs || owned {
		t.Errorf("epoch %d, owned %v; want %d without an owner", epoch, owned, before.Epoch+driver.RestoreEpochs)
	}
	if after := x.acquire(a); after.Epoch != before.Epoch+driver.RestoreEpochs+1 || !after.Unclean {
		t.Errorf("acquired %+v", after)
	}
	x.reads(a)

	x.refused(b, "failed over", "timeline 2 follows 1")
	if epoch, owned := x.beat(b); epoch != before.Epoch+driver.RestoreEpochs+1 || !owned {
		t.Errorf("the second relay: epoch %d, owned %v", epoch, owned)
	}
	if epoch, _ := x.beat(x.relay()); epoch != before.Epoch+driver.RestoreEpochs+1 {
		t.Errorf("a new relay: epoch %d", epoch)
	}

	// A relay that starts after the failover is the first to see it.
	x.promote(3)
	if epoch, _ := x.beat(x.relay()); epoch != before.Epoch+driver.RestoreEpochs+1 { // as of before
		t.Errorf("the first relay: epoch %d", epoch)
	}
	if epoch, owned := x.beat(x.relay()); epoch != before.Epoch+2*driver.RestoreEpochs+1 || owned {
		t.Errorf("after the third timeline: epoch %d, owned %v", epoch, owned)
	}
}

// TestFormerPrimary: a relay that has seen a timeline refuses servers that are
// on an older one.
func TestFormerPrimary(t *testing.T) {
	x := newTimelineTest(t)
	x.promote(2)
	r := x.relay()
	x.beat(r)
	x.acquire(r)
	x.promote(1)
	x.refuses(r, "former primary", "timeline 1", "timeline 2")
	x.refused(r, "former primary", "timeline 1", "timeline 2")
	if _, err := r.OpenWriters(t.Context()); err == nil || !containsAll(err.Error(), "former primary") {
		t.Errorf("OpenWriters: %v", err)
	}
	if lanes, err := r.backlog.Occupied(t.Context()); err == nil || !containsAll(err.Error(), "former primary") || len(lanes) > 0 {
		t.Errorf("Occupied = %v, %v", lanes, err)
	}
	x.exec(`UPDATE waybill_lane SET owner = NULL`)
	if leases, err := r.Acquire(t.Context(), r.node, []int{0}, 8); err == nil || !containsAll(err.Error(), "former primary") || len(leases) > 0 {
		t.Errorf("Acquire = %v, %v", leases, err)
	}
	x.promote(2)
	x.reads(r)

	// One of the statements of a read goes to the former primary.
	for calls, later := range map[string]int{"1": 2, "2": 1} {
		x.promoteEach(calls, later)
		if w, err := r.OpenWriters(t.Context()); err == nil || !containsAll(err.Error(), "former primary") {
			t.Errorf("OpenWriters with timelines %s, %d: %v, %v", calls, later, w, err)
		}
	}
	for _, calls := range []string{"1", "2, 1"} {
		x.promoteEach(calls, 2)
		if page, err := r.FetchPriority(t.Context(), []driver.Cursor{{Lane: 0}}, 10); err == nil || !containsAll(err.Error(), "former primary") {
			t.Errorf("FetchPriority with timelines %s: %d rows, %v", calls, len(page.Rows), err)
		}
	}
}

// TestFailoverBeforeAcquire: a lane that is acquired before a heartbeat has
// seen the new timeline has an epoch that the former primary may have issued.
func TestFailoverBeforeAcquire(t *testing.T) {
	x := newTimelineTest(t)
	r := x.relay()
	x.beat(r)
	x.promote(2)
	if leases, err := r.Acquire(t.Context(), r.node, []int{0}, 8); err == nil || !containsAll(err.Error(), "failed over", "timeline 2 follows 1") || len(leases) > 0 {
		t.Errorf("Acquire = %v, %v", leases, err)
	}
}

// TestTimelineUnknown: a server that does not tell its timeline is never
// refused.
func TestTimelineUnknown(t *testing.T) {
	x := newTimelineTest(t)
	r := x.relay()
	x.promote(0)
	x.beat(r)
	x.acquire(r)
	x.reads(r)
	x.promote(7)
	x.beat(r)
	x.reads(r)
	x.promote(0)
	x.beat(r)
	x.reads(r)
}

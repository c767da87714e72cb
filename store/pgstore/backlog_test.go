package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
)

// register registers destinations, which get the numbers from 1 on.
func register(t *testing.T, db *pgstore.Store, names ...string) {
	t.Helper()
	if _, err := db.Driver().Backlogs.AddDestinations(t.Context(), names...); err != nil {
		t.Fatal(err)
	}
}

// diverting returns a settlement that diverts rows to destinations.
func diverting(leases []driver.Lease, rows []store.Row, numbers ...int) driver.Settlement {
	s := driver.Settlement{Leases: leases, History: true}
	for _, r := range rows {
		s.Done = append(s.Done, driver.Result{Lane: r.Lane, ID: r.ID})
		for _, number := range numbers {
			s.Divert = append(s.Divert, driver.Diversion{Destination: number, ID: r.ID})
		}
	}
	return s
}

// settled is the answer of a settlement.
type settled struct {
	driver.Settled
	err error
}

// settleBehind settles while another transaction holds the lock of the lane.
// end, with that transaction, ends it once the settlement waits for it.
func settleBehind(
	t *testing.T, pool *pgxpool.Pool, schema string, lane int, settle func(context.Context) (driver.Settled, error), end func(tx pgx.Tx) error,
) settled {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // harmless after the end
	if _, err := tx.Exec(t.Context(), `SELECT FROM "`+schema+`".waybill_lane WHERE lane = $1 FOR UPDATE`, lane); err != nil {
		t.Fatal(err)
	}
	answers := make(chan settled, 1)
	go func() {
		s, err := settle(t.Context())
		answers <- settled{s, err}
	}()
	awaitLockWait(t, pool, schema, answers)
	if err := end(tx); err != nil {
		t.Fatal(err)
	}
	return <-answers
}

// A settlement that diverts, or that settles a backlog, and meets a takeover in
// progress, waits for the takeover and is then rejected.
func TestBacklogsWaitForTakeOver(t *testing.T) {
	pool := openPool(t, nil)
	db, schema, rows, leases := owned(t, pool, 2)
	register(t, db, "a", "b")
	relay, backlog := db.Driver().Relay, db.Driver().Backlogs.Backlog(2)
	if s, err := relay.Settle(t.Context(), diverting(leases, rows[:1], 2)); err != nil || len(s.Moved) != 1 {
		t.Fatal(s, err)
	}
	takeOver := func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `UPDATE "`+schema+`".waybill_lane SET token = gen_random_uuid() WHERE lane = $1`, rows[0].Lane)
		if err != nil {
			return err
		}
		return tx.Commit(t.Context())
	}
	for name, settle := range map[string]func(context.Context) (driver.Settled, error){
		"diverting": func(ctx context.Context) (driver.Settled, error) {
			return relay.Settle(ctx, diverting(leases, rows[1:], 1, 2))
		},
		"a backlog": func(ctx context.Context) (driver.Settled, error) {
			return backlog.Settle(ctx, diverting(leases, rows[:1]))
		},
	} {
		got := settleBehind(t, pool, schema, rows[0].Lane, settle, takeOver)
		if got.err != nil || len(got.Held) > 0 || len(got.Moved) > 0 {
			t.Errorf("%s: the stale settlement: %+v, %v; want nothing held and nothing moved", name, got.Settled, got.err)
		}
		if _, err := pool.Exec(t.Context(), `UPDATE "`+schema+`".waybill_lane SET token = $2 WHERE lane = $1`, rows[0].Lane, leases[0].Token.UUID()); err != nil {
			t.Fatal(err)
		}
	}
	for number, want := range map[int]int64{1: 0, 2: 1} {
		if n, err := db.Driver().Backlogs.Backlog(number).Count(t.Context(), store.Ready, store.Filter{}); err != nil || n != want {
			t.Errorf("in backlog %d there are %d rows, %v; want %d", number, n, err, want)
		}
	}
	if n, err := db.Driver().OutboxAdmin.Count(t.Context(), store.Ready, store.Filter{}); err != nil || n != 1 {
		t.Errorf("in the outbox there are %d rows, %v; want 1", n, err)
	}
}

// Two destinations receive an event at the same moment, on a day after its
// delivery to the others. The row of the history moves to another partition
// between the snapshot of a settlement and its own update; the settlement is
// repeated.
func TestDeliveryTimeMovesBetweenPartitions(t *testing.T) {
	pool := openPool(t, nil)
	db, schema, rows, leases := owned(t, pool, 1)
	register(t, db, "a", "b")
	now := dayOf(t, db.Driver().OutboxAdmin)
	if s, err := db.Driver().Relay.Settle(t.Context(), diverting(leases, rows, 1, 2)); err != nil || len(s.Moved) != 1 {
		t.Fatal(s, err)
	}
	history := `"` + schema + `".waybill_history`
	day := func(days int) string { return now.UTC().AddDate(0, 0, days).Format("2006-01-02 00:00:00+00") }
	for _, statement := range []string{
		`UPDATE ` + history + ` SET done_at = '` + day(-1) + `', created_at = '` + day(-1) + `'`,
		`CREATE TABLE "` + schema + `".yesterday PARTITION OF ` + history + ` FOR VALUES FROM ('` + day(-3) + `') TO ('` + day(-2) + `')`,
		`UPDATE ` + history + ` SET done_at = '` + day(-3) + `', created_at = '` + day(-3) + `'`,
		`UPDATE "` + schema + `".waybill_backlog SET created_at = '` + day(-3) + `'`,
	} {
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	settle := func(number int) func(context.Context) (driver.Settled, error) {
		return func(ctx context.Context) (driver.Settled, error) {
			return db.Driver().Backlogs.Backlog(number).Settle(ctx, diverting(leases, rows))
		}
	}
	got := settleBehind(t, pool, schema, rows[0].Lane, settle(1), func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `UPDATE `+history+` SET done_at = '`+day(-1)+`'`); err != nil { // as the other settlement
			return err
		}
		return tx.Commit(t.Context())
	})
	if got.err != nil || len(got.Moved) != 1 {
		t.Errorf("the first destination: %+v, %v", got.Settled, got.err)
	}
	// A row that another settlement has locked is not waited for.
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // always rolled back
	if _, err := tx.Exec(t.Context(), `SELECT FROM `+history+` FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	if s, err := settle(2)(t.Context()); err != nil || len(s.Moved) != 1 {
		t.Errorf("the second destination: %+v, %v", s, err)
	}
	recs, err := db.Driver().OutboxAdmin.Find(t.Context(), rows[0].ID)
	if err != nil || len(recs) != 1 || recs[0].EndedAt.Before(now) {
		t.Errorf("the history has %+v, %v; want a delivery after %v", recs, err, now)
	}
}

// An event whose id was written again while it waits in a backlog waits there
// once. Events with the same seq, which the history of a restored database can
// have, both wait.
func TestDivertedTwice(t *testing.T) {
	pool := openPool(t, nil)
	db, schema, rows, leases := owned(t, pool, 1)
	register(t, db, "a")
	again := `INSERT INTO "` + schema + `".waybill_outbox (lane, seq, id, type, payload) VALUES ($1, $2, $3, 'A', '1')`
	other := waybill.NewID()
	for _, id := range []waybill.ID{rows[0].ID, rows[0].ID, other} {
		if id == other {
			if _, err := pool.Exec(t.Context(), again, rows[0].Lane, rows[0].Seq, id.UUID()); err != nil {
				t.Fatal(err)
			}
		}
		rows[0].ID = id
		if s, err := db.Driver().Relay.Settle(t.Context(), diverting(leases, rows, 1)); err != nil || len(s.Moved) != 1 {
			t.Fatal(s, err)
		}
		if id != other {
			if _, err := pool.Exec(t.Context(), again, rows[0].Lane, rows[0].Seq+1, id.UUID()); err != nil {
				t.Fatal(err)
			}
		}
	}
	page, err := db.Driver().Backlogs.Backlog(1).Fetch(t.Context(), []driver.Cursor{{Lane: rows[0].Lane}}, 10)
	if err != nil || len(page.Rows) != 2 || page.Rows[0].Seq != page.Rows[1].Seq {
		t.Errorf("the backlog has %+v, %v; want two rows with one seq", page.Rows, err)
	}
}

// TestBacklogDurability: a settlement that diverts commits without waiting for
// the disk, a dead letter and a refill commit synchronously.
func TestBacklogDurability(t *testing.T) {
	pool := openPool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = "off" })
	db, schema, rows, leases := owned(t, pool, 2)
	register(t, db, "a")
	for _, statement := range []string{
		`CREATE TABLE "` + schema + `".seen (what text)`,
		`CREATE FUNCTION "` + schema + `".note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		  INSERT INTO "` + schema + `".seen VALUES (TG_TABLE_NAME || ' ' || current_setting('synchronous_commit')); RETURN NULL; END $$`,
		`CREATE TRIGGER note AFTER INSERT ON "` + schema + `".waybill_backlog FOR EACH ROW EXECUTE FUNCTION "` + schema + `".note()`,
		`CREATE TRIGGER note AFTER INSERT ON "` + schema + `".waybill_backlog_dead FOR EACH ROW EXECUTE FUNCTION "` + schema + `".note()`,
		`CREATE TRIGGER note AFTER UPDATE ON "` + schema + `".waybill_lane FOR EACH ROW EXECUTE FUNCTION "` + schema + `".note()`,
		`CREATE TRIGGER note AFTER UPDATE ON "` + schema + `".waybill_destination FOR EACH ROW EXECUTE FUNCTION "` + schema + `".note()`,
	} {
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	backlog := db.Driver().Backlogs.Backlog(1)
	for _, step := range []struct {
		name, want string
		do         func() error
	}{
		{"divert", "waybill_backlog off", func() error { return second(db.Driver().Relay.Settle(t.Context(), diverting(leases, rows, 1))) }},
		{"dead", "waybill_backlog_dead on", func() error {
			return second(backlog.Settle(t.Context(), driver.Settlement{Leases: leases, Dead: []driver.Result{{Lane: rows[0].Lane, ID: rows[0].ID}}}))
		}},
		{"discard", "", func() error { return second(backlog.Discard(t.Context(), []waybill.ID{rows[0].ID})) }},
		{"refill", "waybill_backlog on", func() error {
			return second(backlog.Refill(t.Context(), driver.HistoryQuery{}, driver.HistoryCursor{}, 10))
		}},
		{"pause", "waybill_destination on", func() error { return second(db.Driver().Backlogs.PauseDestination(t.Context(), "a", "")) }},
		{"restored", "waybill_lane on", func() error { return db.Driver().Restorer.Restored(t.Context(), true) }},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		seen, err := pool.Query(t.Context(), `DELETE FROM "`+schema+`".seen RETURNING what`)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(seen, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		got = slices.Compact(got)
		if step.want == "" && len(got) > 0 || step.want != "" && !slices.Equal(got, []string{step.want}) {
			t.Errorf("%s: %v, want %q", step.name, got, step.want)
		}
	}
}

// A destination is removed while the settlement of a silent node is diverting
// to it: the removal waits for the settlement, and its rows are gone, too. The
// node's later settlements divert nothing to a destination that got the same
// number.
func TestRemovalWaitsForSilentNodes(t *testing.T) {
	pool := openPool(t, nil)
	db, schema, rows, leases := owned(t, pool, 2)
	register(t, db, "old")
	if _, err := pool.Exec(t.Context(), `UPDATE "`+schema+`".waybill_node SET expires_at = now() - interval '1 second'`); err != nil {
		t.Fatal(err)
	}
	// The settlement has its locks and its snapshot, and waits in the insert.
	lock, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Rollback(context.Background()) //nolint:errcheck // always rolled back
	row := `(` + fmt.Sprint(1024+rows[0].Lane) + `, ` + fmt.Sprint(rows[0].Seq) + `, '` + rows[0].ID.UUID() + `', 'A', '', 1, now(), 0, '1', now(), 0, 0, false)`
	if _, err := lock.Exec(t.Context(), `INSERT INTO "`+schema+`".waybill_backlog
		(lane, seq, id, type, aggregate_type, schema_version, occurred_at, priority, payload, created_at, attempts, replay, final) VALUES `+row); err != nil {
		t.Fatal(err)
	}
	answers := make(chan settled, 1)
	go func() {
		s, err := db.Driver().Relay.Settle(t.Context(), diverting(leases, rows[:1], 1))
		answers <- settled{s, err}
	}()
	awaitLockWait(t, pool, schema, answers)
	type removal struct {
		rows int64
		err  error
	}
	removals := make(chan removal, 1)
	go func() {
		n, err := db.Driver().Backlogs.RemoveDestination(t.Context(), "old")
		removals <- removal{n, err}
	}()
	for waiting := 0; waiting < 2 && len(removals) == 0; {
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%'`, schema).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-answers; got.err != nil || len(got.Moved) != 1 {
		t.Errorf("the settlement: %+v, %v", got.Settled, got.err)
	}
	if got := <-removals; got.err != nil || got.rows != 1 {
		t.Errorf("the removal deleted %d rows, %v; want 1", got.rows, got.err)
	}
	register(t, db, "new")
	if s, err := db.Driver().Relay.Settle(t.Context(), diverting(leases, rows[1:], 1)); err != nil || len(s.Held)+len(s.Moved) > 0 {
		t.Errorf("a settlement after the removal: %+v, %v; want nothing held and nothing moved", s, err)
	}
	var left int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM "`+schema+`".waybill_backlog`).Scan(&left); err != nil || left != 0 {
		t.Errorf("the backlogs have %d rows, %v", left, err)
	}
}

// SetLanes moves the rows of backlogs, in every state, to the new lane of their
// aggregate, each in its destination.
func TestSetLanesMovesBacklogs(t *testing.T) {
	pool := openPool(t, nil)
	db, schema := openStore(t, pool)
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var evs []waybill.Event
	for i := range 60 {
		ev := waybill.Event{ID: waybill.NewID(), Type: "A", AggregateType: "t", AggregateID: fmt.Sprint(i), TenantID: "x", Payload: []byte("1")}
		if i%5 == 0 {
			ev.AggregateID, ev.AggregateType = "", ""
		}
		evs = append(evs, ev)
	}
	if err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, evs...) }); err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range driver.MaxDestinations {
		names = append(names, fmt.Sprint("d", i+1))
	}
	register(t, db, names...)
	numbers := []int{1, 2, driver.MaxDestinations}
	node := store.Node{ID: waybill.NewID(), Relay: "relay"}
	if _, err := db.Driver().Relay.Heartbeat(t.Context(), node, time.Hour); err != nil {
		t.Fatal(err)
	}
	var lanes []int
	var from []driver.Cursor
	for lane := range 32 {
		lanes, from = append(lanes, lane), append(from, driver.Cursor{Lane: lane})
	}
	leases, err := db.Driver().Relay.Acquire(t.Context(), node, lanes, 1)
	if err != nil {
		t.Fatal(err)
	}
	page, err := db.Driver().Relay.Fetch(t.Context(), from, len(evs))
	if err != nil || len(page.Rows) != len(evs) {
		t.Fatal(len(page.Rows), err)
	}
	if s, err := db.Driver().Relay.Settle(t.Context(), diverting(leases, page.Rows, numbers...)); err != nil || len(s.Moved) != len(evs) {
		t.Fatal(s, err)
	}
	for _, number := range numbers {
		s := driver.Settlement{Leases: leases}
		for i, r := range page.Rows {
			switch i % 3 {
			case 1:
				s.Retry = append(s.Retry, driver.Result{Lane: r.Lane, ID: r.ID, Delay: time.Hour})
			case 2:
				s.Dead = append(s.Dead, driver.Result{Lane: r.Lane, ID: r.ID})
			}
		}
		if got, err := db.Driver().Backlogs.Backlog(number).Settle(t.Context(), s); err != nil || len(got.Moved) != 40 {
			t.Fatal(got, err)
		}
	}
	if err := db.Driver().Relay.Leave(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{5, 1024, 1, 32} {
		if err := db.Driver().OutboxAdmin.SetLanes(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		for _, table := range []string{"backlog", "backlog_delayed", "backlog_dead"} {
			found, err := pool.Query(t.Context(), `SELECT lane, id::text FROM "`+schema+`".waybill_`+table)
			if err != nil {
				t.Fatal(err)
			}
			var lane int
			var id string
			rows := map[int]int{}
			_, err = pgx.ForEachRow(found, []any{&lane, &id}, func() error {
				rows[lane/1024]++
				ev := evs[slices.IndexFunc(evs, func(ev waybill.Event) bool { return ev.ID.UUID() == id })]
				if want := driver.LaneOf(ev.TenantID, ev.AggregateType, ev.AggregateID, n); ev.Ordered() && lane%1024 != want || lane%1024 >= n {
					t.Errorf("%d lanes: %s of destination %d has lane %d, want %d", n, table, lane/1024, lane%1024, want)
				}
				return nil
			})
			if want := map[int]int{1: 20, 2: 20, driver.MaxDestinations: 20}; err != nil || fmt.Sprint(rows) != fmt.Sprint(want) {
				t.Errorf("%d lanes: %s has the rows %v by destination, %v; want %v", n, table, rows, err, want)
			}
		}
	}
}

// A destination that is not registered cannot be refilled.
func TestRefillNeedsItsDestination(t *testing.T) {
	pool := openPool(t, nil)
	db, _ := openStore(t, pool)
	deliver(t, db)
	backlog := db.Driver().Backlogs.Backlog(1)
	if got, err := backlog.Refill(t.Context(), driver.HistoryQuery{}, driver.HistoryCursor{}, 10); !errors.Is(err, driver.ErrNoDestination) || got.Copied > 0 {
		t.Errorf("Refill without a destination: %+v, %v", got, err)
	}
	register(t, db, "a")
	if got, err := backlog.Refill(t.Context(), driver.HistoryQuery{}, driver.HistoryCursor{}, 10); err != nil || got.Copied != 1 {
		t.Errorf("Refill: %+v, %v", got, err)
	}
}

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
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
)

// partitions returns the names of the history's partitions, except the default
// partition.
func partitions(t *testing.T, pool *pgxpool.Pool, schema string) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = $1::regclass AND c.relname NOT LIKE '%rest' ORDER BY 1`, `"`+schema+`".waybill_history`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// days returns the names of the partitions of some days, relative to the day of
// now.
func days(now time.Time, from, to int) []string {
	var names []string
	for i := from; i <= to; i++ {
		names = append(names, "waybill_history_"+now.UTC().AddDate(0, 0, i).Format("20060102"))
	}
	return names
}

// dayOf returns the database's clock. A test that starts right before midnight
// waits until midnight has passed, because the test depends on the day.
func dayOf(t *testing.T, db driver.Inspector) time.Time {
	t.Helper()
	for {
		stats, err := db.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if stats.Now.Add(20*time.Second).Day() == stats.Now.Day() {
			return stats.Now
		}
	}
}

// deliver writes an event and delivers it.
func deliver(t *testing.T, db *pgstore.Store) waybill.Event {
	t.Helper()
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ev := event("A")
	ev.ID = waybill.NewID()
	if err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, ev) }); err != nil {
		t.Fatal(err)
	}
	lease, leave := acquire(t, db.Driver().Relay)
	defer leave()
	settled, err := db.Driver().Relay.Settle(t.Context(), driver.Settlement{
		Leases: []driver.Lease{lease}, Done: []driver.Result{{Lane: lease.Lane, ID: ev.ID}}, History: true,
	})
	if err != nil || len(settled.Moved) != 1 {
		t.Fatal(settled, err)
	}
	return ev
}

// acquire returns a lease on the lane of the events that event returns, and a
// function with which its node leaves.
func acquire(t *testing.T, db driver.Lanes) (lease driver.Lease, leave func()) {
	t.Helper()
	node := store.Node{ID: waybill.NewID(), Relay: "r"}
	if _, err := db.Heartbeat(t.Context(), node, time.Hour); err != nil {
		t.Fatal(err)
	}
	leases, err := db.Acquire(t.Context(), node, []int{driver.LaneOf("", waybill.GlobalAggregate, "a", 32)}, 1)
	if err != nil || len(leases) != 1 {
		t.Fatal(leases, err)
	}
	return leases[0], func() {
		if err := db.Leave(context.Background(), node); err != nil {
			t.Error(err)
		}
	}
}

// Daily partitions are created three days ahead, used, and dropped when they
// are old. After that, Committed does not report their events as never
// committed.
func TestDays(t *testing.T) {
	pool := openPool(t, nil)
	db, schema := openStore(t, pool)
	now := dayOf(t, db.Driver().OutboxAdmin)
	tidy := func(age time.Duration, want []string) {
		t.Helper()
		if err := db.Driver().OutboxAdmin.Tidy(t.Context(), age); err != nil {
			t.Fatal(err)
		}
		if got := partitions(t, pool, schema); !slices.Equal(got, want) {
			t.Errorf("after Tidy(%v) the days are %v, want %v", age, got, want)
		}
	}
	tidy(-1, days(now, 0, 3))
	tidy(-1, days(now, 0, 3))
	ev := deliver(t, db)
	var table string
	err := pool.QueryRow(t.Context(), `SELECT relname FROM pg_class WHERE oid = (SELECT tableoid FROM "`+schema+`".waybill_history WHERE id = $1)`, ev.ID.UUID()).Scan(&table)
	if err != nil || table != days(now, 0, 0)[0] {
		t.Errorf("the event that was delivered today is in %q, %v", table, err)
	}
	// Past days, and events in them.
	ids := map[int]waybill.ID{}
	for _, back := range []int{6, 3, 1} {
		day := now.UTC().Truncate(24*time.Hour).AddDate(0, 0, -back)
		ids[back] = deliver(t, db).ID
		for _, query := range []string{
			fmt.Sprintf(`CREATE TABLE "%[1]s".%[2]s PARTITION OF "%[1]s".waybill_history FOR VALUES FROM ('%[3]s') TO ('%[4]s')`,
				schema, days(now, -back, -back)[0], day.Format(time.RFC3339), day.AddDate(0, 0, 1).Format(time.RFC3339)),
			fmt.Sprintf(`UPDATE "%s".waybill_history SET done_at = '%s' WHERE id = '%s'`, schema, day.Add(time.Hour).Format(time.RFC3339), ids[back].UUID()),
		} {
			if _, err := pool.Exec(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
	}
	old := slices.Concat(days(now, -6, -6), days(now, -3, -3), days(now, -1, -1), days(now, 0, 3))
	tidy(-1, old)
	tidy(30*24*time.Hour, old)
	// A day is dropped only when all of it is older than the age.
	tidy(2*24*time.Hour, old[2:])
	var from string
	err = pool.QueryRow(t.Context(), `SELECT value FROM "`+schema+`".waybill_setting WHERE name = 'history_from'`).Scan(&from)
	if want := now.UTC().Truncate(24*time.Hour).AddDate(0, 0, -2).Format(time.RFC3339); err != nil || from != want {
		t.Errorf("the history reaches back to %q, %v; want %q", from, err, want)
	}
	for back, there := range map[int]bool{6: false, 3: false, 1: true} {
		if recs, err := db.Driver().OutboxAdmin.Find(t.Context(), ids[back]); err != nil || (len(recs) == 1) != there {
			t.Errorf("the event that was delivered %d days ago: %v, %v", back, recs, err)
		}
	}
	gone := waybill.ID{15: 1} // an id from the year 1970
	if yes, err := db.Driver().Outbox.Committed(t.Context(), gone); yes || !errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("Committed of an event from before the history: %v, %v", yes, err)
	}
}

// Rows of a day in the default partition keep that day there, without an error.
func TestTheDefaultPartitionKeepsItsDays(t *testing.T) {
	pool := openPool(t, nil)
	db, schema := openStore(t, pool)
	now := dayOf(t, db.Driver().OutboxAdmin)
	ev := deliver(t, db)
	for range 2 {
		if err := db.Driver().OutboxAdmin.Tidy(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if got, want := partitions(t, pool, schema), days(now, 1, 3); !slices.Equal(got, want) {
			t.Errorf("the days are %v, want %v", got, want)
		}
		if recs, err := db.Driver().OutboxAdmin.Find(t.Context(), ev.ID); err != nil || len(recs) != 1 {
			t.Errorf("the delivered event is %v, %v", recs, err)
		}
		ev = deliver(t, db)
	}
}

// An account without DDL privileges has only the default partition, and Tidy
// does what the account may do.
func TestWithoutRights(t *testing.T) {
	pool := openPool(t, nil)
	owner, schema := openStore(t, pool)
	role := schema + "_user"
	for _, query := range []string{
		`CREATE ROLE "` + role + `"`,
		`GRANT USAGE ON SCHEMA "` + schema + `" TO "` + role + `"`,
		`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "` + schema + `" TO "` + role + `"`,
		`GRANT USAGE ON ALL SEQUENCES IN SCHEMA "` + schema + `" TO "` + role + `"`,
	} {
		if _, err := pool.Exec(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, query := range []string{`DROP OWNED BY "` + role + `"`, `DROP ROLE "` + role + `"`} {
			if _, err := pool.Exec(context.Background(), query); err != nil {
				t.Error(err)
			}
		}
	})
	db, err := pgstore.New(openPool(t, func(c *pgxpool.Config) {
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `SET ROLE "`+role+`"`)
			return err
		}
	}), pgstore.Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Driver().OutboxAdmin.Tidy(t.Context(), 0); err != nil {
		t.Errorf("Tidy without rights: %v", err)
	}
	if got := partitions(t, pool, schema); len(got) > 0 {
		t.Errorf("the days are %v", got)
	}
	deliver(t, db)
	if n, err := db.Driver().OutboxAdmin.Purge(t.Context(), store.Delivered, 0, 10); err != nil || n != 1 {
		t.Errorf("Purge deleted %d, %v; want 1", n, err)
	}
	// SetLanes needs more privileges, and returns an error.
	if err := db.Driver().OutboxAdmin.SetLanes(t.Context(), 8); err == nil || errors.Is(err, store.ErrRelayLive) {
		t.Errorf("SetLanes without rights: %v", err)
	}
	if stats, err := owner.Driver().OutboxAdmin.Stats(t.Context()); err != nil || len(stats.Lanes) != 32 {
		t.Errorf("after SetLanes failed there are %d lanes, %v", len(stats.Lanes), err)
	}
}

// Creating a day's partition waits only briefly for its lock, because later
// statements queue behind it, and is retried.
func TestTidyTriesAgain(t *testing.T) {
	pool := openPool(t, nil)
	db, schema := openStore(t, pool)
	now := dayOf(t, db.Driver().OutboxAdmin)
	busy, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Rollback(context.Background()) //nolint:errcheck // harmless after the commit
	if _, err := busy.Exec(t.Context(), `LOCK TABLE "`+schema+`".waybill_history IN ROW EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- db.Driver().OutboxAdmin.Tidy(t.Context(), -1) }()
	awaitLockWait(t, pool, schema, done)
	deliver(t, db) // waits behind the lock until its first attempt has failed
	if err := busy.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("Tidy: %v", err)
	}
	if got := partitions(t, pool, schema); !slices.Contains(got, days(now, 3, 3)[0]) {
		t.Errorf("the days are %v", got)
	}
}

// Finish needs an open transaction: outside a transaction it would commit by
// itself.
func TestFinishNeedsAnOpenTransaction(t *testing.T) {
	pool := openPool(t, nil)
	db, _ := openStore(t, pool)
	sqldb := stdlib.OpenDBFromPool(pool)
	defer sqldb.Close() //nolint:errcheck // nothing can fail
	face := db.SQL(sqldb)
	lease, leave := acquire(t, db.Driver().Relay)
	defer leave()
	done := []waybill.Delivery{{Event: eventfill.Defaults(event("A")), Position: waybill.Position{Lane: lease.Lane, Epoch: lease.Epoch, Seq: 1}, Claim: &driver.Claim{Token: lease.Token}}}

	if err := db.Driver().Finisher.Finish(t.Context(), nil, done); !errors.Is(err, waybill.ErrNoTx) {
		t.Errorf("no transaction: %v", err)
	}
	if err := face.Driver().Finisher.Finish(t.Context(), nil, done); !errors.Is(err, waybill.ErrNoTx) {
		t.Errorf("no transaction of database/sql: %v", err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // harmless
	if err := db.Driver().Finisher.Finish(t.Context(), tx, done); err != nil {
		t.Errorf("an open transaction, an event that is gone: %v", err)
	}
	if _, err := tx.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := db.Driver().Finisher.Finish(t.Context(), tx, done); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("a transaction that a statement ended: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := db.Driver().Finisher.Finish(t.Context(), tx, done); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("a transaction that has ended: %v", err)
	}
	stx, err := sqldb.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := stx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := face.Driver().Finisher.Finish(t.Context(), stx, done); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("a transaction of database/sql that has ended: %v", err)
	}
}

// The fence of Finish, in the caller's transaction, is a lock, too.
func TestFinishWaitsForTakeOver(t *testing.T) {
	pool := openPool(t, nil)
	db, schema := openStore(t, pool)
	lease, leave := acquire(t, db.Driver().Relay)
	defer leave()
	takeOver, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer takeOver.Rollback(context.Background()) //nolint:errcheck // harmless after the commit
	if _, err := takeOver.Exec(t.Context(), `UPDATE "`+schema+`".waybill_lane SET epoch = epoch + 1 WHERE lane = $1`, lease.Lane); err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			return db.Driver().Finisher.Finish(ctx, tx, []waybill.Delivery{{Event: eventfill.Defaults(event("A")), Position: waybill.Position{Lane: lease.Lane, Epoch: lease.Epoch, Seq: 1}, Claim: &driver.Claim{Token: lease.Token}}})
		})
	}()
	awaitLockWait(t, pool, schema, done)
	if err := takeOver.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, waybill.ErrLeaseLost) || !containsAll(err.Error(), fmt.Sprintf("lane %d", lease.Lane)) {
		t.Errorf("Finish behind a takeover: %v, want ErrLeaseLost and the lane", err)
	}
}

// A store whose tables have another number of lanes returns an error when it
// starts. The store that changed the number, and its SQL counterpart, know the
// new number.
func TestSetLanesIsKnownAtOnce(t *testing.T) {
	pool := openPool(t, nil)
	schema := schemaOf(t, pool)
	db, err := pgstore.New(pool, pgstore.Config{Schema: schema, Lanes: 4})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	sqldb := stdlib.OpenDBFromPool(pool)
	defer sqldb.Close() //nolint:errcheck // nothing can fail
	face := db.SQL(sqldb)
	if err := face.Driver().OutboxAdmin.SetLanes(t.Context(), 9); err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // always rolled back
	for i := range 20 {
		ev := eventfill.Defaults(waybill.Event{Type: "A", AggregateID: fmt.Sprint(i), Payload: []byte("1")})
		placed, err := db.Driver().Outbox.Append(t.Context(), tx, []waybill.Event{ev})
		if err != nil {
			t.Fatal(err)
		}
		if want := driver.LaneOf("", waybill.GlobalAggregate, ev.AggregateID, 9); placed[0].Lane != want {
			t.Fatalf("lane %d, want %d of 9", placed[0].Lane, want)
		}
	}
	again, err := pgstore.New(pool, pgstore.Config{Schema: schema, Lanes: 4})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Driver().Outbox.Begin(t.Context(), nil); err == nil || !containsAll(err.Error(), "Config.Lanes: 4", "the tables have 9") {
		t.Errorf("a store that wants 4 lanes: %v", err)
	}
}

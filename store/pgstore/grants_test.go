package pgstore_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/docblock"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
)

// rolesOf applies the grants of docs/operating.md to fresh tables, with roles
// of the test's own, and returns a pool per role.
func rolesOf(t *testing.T) (schema string, as func(role string) *pgxpool.Pool) {
	t.Helper()
	pool := openPool(t, nil)
	_, schema = openStore(t, pool)
	unique := strings.ToLower(waybill.NewID().String())
	grants := docblock.Blocks(t, "docs/operating.md", "sql postgresql-grants")[0]
	grants = strings.ReplaceAll(strings.ReplaceAll(grants, "outbox_", unique+"_"), "waybill_"+unique+"_seq", "waybill_outbox_seq")
	grants = strings.ReplaceAll(strings.ReplaceAll(grants, `waybill_`+unique, `waybill_outbox`), "SCHEMA public", `SCHEMA "`+schema+`"`)
	for _, role := range []string{"writer", "consumer", "relay", "reader"} {
		grants = strings.ReplaceAll(grants, unique+"_"+role, `"`+unique+`_`+role+`"`)
	}
	psql(t, grants, schema)
	t.Cleanup(func() {
		for _, role := range []string{"consumer", "writer", "relay", "reader"} {
			for _, statement := range []string{`DROP OWNED BY "%s"`, `DROP ROLE "%s"`, `DROP ROLE "%s_login"`} {
				if _, err := pool.Exec(context.Background(), strings.ReplaceAll(statement, "%s", unique+"_"+role)); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for _, role := range []string{"writer", "consumer", "relay", "reader"} {
		name := unique + "_" + role
		if _, err := pool.Exec(t.Context(), `CREATE ROLE "`+name+`_login" LOGIN PASSWORD 'x' IN ROLE "`+name+`"`); err != nil {
			t.Fatal(err)
		}
	}
	return schema, func(role string) *pgxpool.Pool {
		return openPool(t, func(c *pgxpool.Config) {
			c.ConnConfig.User, c.ConnConfig.Password = unique+"_"+role+"_login", "x"
			c.MaxConns = 4
		})
	}
}

// refused asserts that a role may not run the statements.
func refused(t *testing.T, pool *pgxpool.Pool, schema string, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		_, err := pool.Exec(t.Context(), strings.ReplaceAll(statement, "waybill_", `"`+schema+`".waybill_`), pgx.QueryExecModeSimpleProtocol)
		var coded interface{ SQLState() string }
		if !errors.As(err, &coded) || coded.SQLState() != "42501" {
			t.Errorf("%s: %v, want that it is not allowed", statement, err)
		}
	}
}

func second[A any](_ A, err error) error { return err }

// grantedOperator runs what the relay's role may do besides delivering: jobs,
// replay, discard, unblock, and the purges of the inbox and of keys.
func grantedOperator(t *testing.T, db *pgstore.Store, box *outbox.Outbox[pgx.Tx]) {
	t.Helper()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	ev := func(aggregate string) waybill.Event {
		return waybill.Event{ID: waybill.NewID(), Type: "A", AggregateType: "t", AggregateID: aggregate, Payload: []byte("1")}
	}
	evs := []waybill.Event{ev("one"), ev("two"), ev("three")}
	must("InTx", box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, evs...) }))
	r, err := relay.New(db, relay.SinkFunc(func(context.Context, waybill.Delivery) error {
		return waybill.Permanent(errors.New("no such customer"))
	}), relay.Config{OnDead: relay.Block})
	must("relay.New", err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	for deadline := time.Now().Add(time.Minute); ; {
		n, err := db.Driver().OutboxAdmin.Count(t.Context(), store.Dead, store.Filter{AggregateType: "t"})
		must("Count", err)
		if n == int64(len(evs)) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the relay does not deliver")
		}
		<-time.After(2 * time.Millisecond)
	}
	cancel()
	must("Run", <-done)
	if sink, err := db.Driver().SinkGuard.RecordedSink(t.Context()); err != nil || !strings.Contains(sink, "in-process") {
		t.Errorf("RecordedSink: %q, %v", sink, err)
	}
	ops, err := admin.NewOutbox(db, admin.Config{})
	must("operate.New", err)
	if n, err := ops.Unblock(t.Context(), evs[0].ID); err != nil || len(n) != 1 {
		t.Errorf("Unblock: %v, %v", n, err)
	}
	if n, err := ops.Discard(t.Context(), evs[1].ID); err != nil || len(n) != 1 {
		t.Errorf("Discard: %v, %v", n, err)
	}
	if n, err := ops.Replay(t.Context(), evs[2].ID); err != nil || len(n.IDs) != 1 {
		t.Errorf("Replay: %+v, %v", n, err)
	}
	if n, err := ops.MakeReady(t.Context()); err != nil || n != 1 {
		t.Errorf("MakeReady: %d, %v", n, err)
	}
	// Purges the consumer's record.
	if n, err := db.Driver().InboxRecords.PurgeRecords(t.Context(), "G", time.Nanosecond, 10); err != nil || n != 1 {
		t.Errorf("PurgeRecords: %d, %v", n, err)
	}
	_, err = db.Driver().InboxRecords.Redrive(t.Context(), "G", nil, 10)
	must("Redrive", err)
	_, err = db.Driver().KeyRecords.PurgeKeys(t.Context(), 10)
	must("PurgeKeys", err)
	_, err = db.Driver().KeyRecords.ResolveKey(t.Context(), store.KeyID{Operation: "op", Key: "none"}, driver.KeyEnd{State: store.KeyFailed})
	must("ResolveKey", err)
	rec, err := reconcile.New(db, []reconcile.Job{
		{Name: "sends", LookBack: time.Hour, Find: func(_ context.Context, _ reconcile.Window, missing func(waybill.Event) error) error {
			return missing(ev("lost"))
		}},
		reconcile.UnrecordedReport(db, "G", 7*24*time.Hour, nil), reconcile.StuckLeases(db, time.Minute), reconcile.StuckKeys(db, time.Minute),
	}, reconcile.Config{})
	must("reconcile.New", err)
	for _, job := range []string{"sends", "unrecorded:G", "stuck-leases", "stuck-keys"} {
		if rep, err := rec.RunOnce(t.Context(), job); err != nil || job == "sends" && rep.Sent != 1 {
			t.Errorf("the job %s: %+v, %v", job, rep, err)
		}
	}
	if n, err := db.Driver().JobRecords.ForgetSent(t.Context(), "sends", 0, 10); err != nil || n != 1 {
		t.Errorf("ForgetSent: %d, %v", n, err)
	}
}

// The grants of docs/operating.md are what each role needs, and no more.
func TestDocumentedGrants(t *testing.T) {
	schema, as := rolesOf(t)
	cfg := pgstore.Config{Schema: schema}
	open := func(pool *pgxpool.Pool) (*pgstore.Store, *outbox.Outbox[pgx.Tx]) {
		t.Helper()
		db, err := pgstore.New(pool, cfg)
		if err != nil {
			t.Fatal(err)
		}
		box, err := outbox.New(db, outbox.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return db, box
	}
	ev := func(key string, delay time.Duration) waybill.Event {
		return waybill.Event{Type: "A", AggregateID: "1", DedupKey: key, Delay: delay, Payload: []byte("1")}
	}
	events := 0
	write := func(box *outbox.Outbox[pgx.Tx], evs ...waybill.Event) []outbox.Receipt {
		t.Helper()
		var out []outbox.Receipt
		err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) (err error) {
			out, err = box.WriteEach(ctx, tx, evs...)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		events += len(evs)
		return out
	}

	writer := as("writer")
	db, box := open(writer)
	write(box, ev("", 0))                                        // one event
	write(box, ev("", 0), ev("", 0))                             // several events
	write(box, ev("k", 0))                                       // with a dedup key
	late := write(box, ev("late", time.Hour), ev("", time.Hour)) // delayed
	if r := write(box, ev("late", 0)); r[0].Outcome != outbox.Duplicate || r[0].ID != late[0].ID {
		t.Errorf("the receipt of a duplicate is %+v", r)
	}
	events--
	// A savepoint that is rolled back, with a hook that needs the remaining
	// events.
	err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_ = box.AfterCommit(ctx, func() {})
		if err := box.Write(ctx, tx, ev("", 0)); err != nil {
			return err
		}
		inner, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if err := box.Write(ctx, inner, ev("gone", 0)); err != nil {
			return err
		}
		return inner.Rollback(ctx)
	})
	if err != nil {
		t.Errorf("with a savepoint: %v", err)
	}
	events++
	sqldb := stdlib.OpenDBFromPool(writer)
	defer func() { _ = sqldb.Close() }()
	sqlbox, err := outbox.New(db.SQL(sqldb), outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	err = sqlbox.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error { return sqlbox.Write(ctx, tx, ev("sql", 0)) })
	if err != nil {
		t.Errorf("database/sql: %v", err)
	}
	events++
	if yes, err := db.Driver().Outbox.Committed(t.Context(), late[0].ID); !yes || err != nil {
		t.Errorf("Committed: %v, %v", yes, err)
	}
	if _, err := db.Migrations(t.Context()); err != nil {
		t.Errorf("Migrations: %v", err)
	}
	psqlInsert := `INSERT INTO waybill_outbox (type, payload) VALUES ('A', '1')`
	if _, err := writer.Exec(t.Context(), strings.ReplaceAll(psqlInsert, "waybill_", `"`+schema+`".waybill_`)); err != nil {
		t.Errorf("plain SQL: %v", err)
	}
	events++
	refused(
		t, writer, schema, `DELETE FROM waybill_outbox`, `UPDATE waybill_outbox SET lane = 0`, `SELECT payload FROM waybill_outbox`, `DELETE FROM waybill_dedup`,
		`UPDATE waybill_setting SET value = '1'`, `SELECT * FROM waybill_inbox`, `INSERT INTO waybill_history SELECT * FROM waybill_history`,
		`UPDATE waybill_lane SET epoch = 0`, `INSERT INTO waybill_migration VALUES (1, 'x')`, `SELECT setval('waybill_outbox_seq', 1)`,
		`CREATE TABLE waybill_x (a int)`, `DROP TABLE waybill_outbox`, `TRUNCATE waybill_outbox`,
	)

	consumer := as("consumer")
	cdb, cbox := open(consumer)
	in, err := inbox.New(cdb, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = in.MustGroup("G", inbox.Options{}).Consume(t.Context(), eventfill.Defaults(ev("", 0)), func(ctx context.Context, tx pgx.Tx, _ waybill.Event) error {
		events++
		return cbox.Write(ctx, tx, ev("", 0))
	})
	if err != nil {
		t.Errorf("Consume: %v", err)
	}
	keys, err := idempotency.New(cdb, idempotency.Config{})
	if err != nil {
		t.Fatal(err)
	}
	hash, err := idempotency.HashJSON("request")
	if err != nil {
		t.Fatal(err)
	}
	_, err = idempotency.Do(t.Context(), keys, idempotency.Request{Operation: "op", Key: "key", Hash: hash}, func(context.Context) (int, error) { return 1, nil })
	if err != nil {
		t.Errorf("Do: %v", err)
	}
	refused(t, consumer, schema, `DELETE FROM waybill_outbox`, `SELECT payload FROM waybill_outbox`, `DELETE FROM waybill_lane`)

	relayPool := as("relay")
	rdb, rbox := open(relayPool)
	write(rbox, ev("", 0)) // waybill send, as the relay's role
	ctx, cancel := context.WithCancel(t.Context())
	delivered, failed := make(chan struct{}, 100), false
	r, err := relay.New(rdb, relay.SinkFunc(func(context.Context, waybill.Delivery) error {
		if !failed {
			failed = true
			return waybill.Permanent(errors.New("dead"))
		}
		delivered <- struct{}{}
		return nil
	}), relay.Config{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	ready := events - 2 - 1 // two are delayed, one is dead
	for range ready {
		select {
		case <-delivered:
		case err := <-done:
			t.Fatalf("the relay ended: %v", err)
		case <-time.After(time.Minute):
			t.Fatal("the relay does not deliver")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	ops, err := admin.NewOutbox(rdb, admin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	purger, err := ops.Purger(admin.Retention{History: time.Nanosecond, Dead: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if gone, err := purger.Once(t.Context(), nil); err != nil || gone.Delivered != ready {
		t.Errorf("purging: %+v, %v; want %d", gone, err, ready)
	}
	if done, err := ops.ReplayAll(t.Context(), store.Filter{}, admin.DeadLetterOptions{}); err != nil || len(done.IDs) != 1 {
		t.Errorf("ReplayAll: %+v, %v", done, err)
	}
	if _, err := ops.MakeReady(t.Context()); err != nil {
		t.Errorf("MakeReady: %v", err)
	}
	if _, err := ops.PurgeWritten(t.Context(), time.Nanosecond, nil); err != nil {
		t.Errorf("PurgeWritten: %v", err)
	}
	grantedOperator(t, rdb, rbox)
	refused(t, relayPool, schema, `DROP TABLE waybill_outbox`, `CREATE TABLE waybill_x (a int)`, `INSERT INTO waybill_migration VALUES (1, 'x')`)

	reader := as("reader")
	sdb, _ := open(reader)
	look, err := admin.NewOutbox(sdb, admin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := look.Stats(t.Context()); err != nil {
		t.Errorf("Stats: %v", err)
	}
	if _, err := look.List(t.Context(), store.Delayed, store.Filter{}, 0, 10); err != nil {
		t.Errorf("List: %v", err)
	}
	if _, err := look.Find(t.Context(), late[0].ID); err != nil {
		t.Errorf("Find: %v", err)
	}
	for what, err := range map[string]error{ // the queries of waybill doctor
		"RecordedSink": second(sdb.Driver().SinkGuard.RecordedSink(t.Context())), "Migrations": second(sdb.Migrations(t.Context())),
		"GroupStats": second(sdb.Driver().InboxRecords.GroupStats(t.Context(), true)), "KeyStats": second(sdb.Driver().KeyRecords.KeyStats(t.Context())),
		"ListJobs":    second(sdb.Driver().JobRecords.ListJobs(t.Context())),
		"ListRecords": second(sdb.Driver().InboxRecords.ListRecords(t.Context(), store.RecordFilter{}, "", waybill.ID{}, 10)),
		"ListKeys":    second(sdb.Driver().KeyRecords.ListKeys(t.Context(), store.KeyFilter{}, store.KeyID{}, 10)),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused(t, reader, schema, `INSERT INTO waybill_outbox (type, payload) VALUES ('A', '1')`, `DELETE FROM waybill_dead`, `UPDATE waybill_delayed SET holds = false`)
}

package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/docblock"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// accounts are the accounts of docs/operating.md, in a database of the test.
type accounts struct {
	t          *testing.T
	root       *sql.DB
	name, mark string
}

// grant runs the statements of a block.
func (a *accounts) grant(info string) {
	a.t.Helper()
	for _, block := range docblock.Blocks(a.t, "docs/operating.md", info) {
		block = strings.NewReplacer("shop.waybill_", a.name+".waybill_", "shop.*", a.name+".*", "'shop_", "'"+a.mark).Replace(block)
		for statement := range strings.SplitSeq(block, ";\n") {
			if strings.TrimSpace(statement) != "" {
				exec(a.t, a.root, statement)
			}
		}
	}
}

// replace drops procedures and creates them again.
func (a *accounts) replace(procedures ...string) {
	a.t.Helper()
	for _, name := range procedures {
		var text string
		err := a.root.QueryRowContext(a.t.Context(), `SELECT CONCAT('CREATE PROCEDURE waybill_', ?, '(',
			(SELECT GROUP_CONCAT(parameter_mode, ' ', parameter_name, ' ', dtd_identifier ORDER BY ordinal_position) FROM information_schema.parameters
			WHERE specific_schema = DATABASE() AND specific_name = CONCAT('waybill_', ?)),
			') MODIFIES SQL DATA SQL SECURITY INVOKER ', routine_definition)
			FROM information_schema.routines WHERE routine_schema = DATABASE() AND routine_name = CONCAT('waybill_', ?)`, name, name, name).Scan(&text)
		if err != nil {
			a.t.Fatal(err)
		}
		exec(a.t, a.root, "DROP PROCEDURE waybill_"+name)
		exec(a.t, a.root, text)
	}
}

// as returns a store that uses one of the accounts, and its pool.
func (a *accounts) as(role, password string) (*mysqlstore.Store, *sql.DB) {
	a.t.Helper()
	a.t.Cleanup(func() { exec(a.t, a.root, "DROP USER IF EXISTS '"+a.mark+role+"'@'%'") })
	cfg := configOf(a.t, a.name)
	cfg.User, cfg.Passwd = a.mark+role, password
	db := pool(a.t, cfg)
	return newStore(a.t, db), db
}

// The grants of docs/operating.md suffice for the work of each account, and not
// for that of the next.
func TestDocumentedGrants(t *testing.T) { onBoth(t, testDocumentedGrants) }

func testDocumentedGrants(t *testing.T) {
	root, name := openDB(t, nil)
	a := &accounts{t, root, name, "g" + name[len(name)-8:] + "_"}
	migrator, _ := a.as("migrator", "a-long-password-1")
	a.grant("sql mysql-migrator")
	if _, err := migrator.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := migrator.Driver().OutboxAdmin.SetLanes(t.Context(), 32); err != nil {
		t.Fatal(err)
	}
	writer, writerDB := a.as("writer", "a-long-password-2")
	node, relayDB := a.as("relay", "a-long-password-3")
	reader, readerDB := a.as("reader", "a-long-password-4")
	consumer, consumerDB := a.as("consumer", "a-long-password-5")
	a.grant("sql mysql-grants")
	a.grant("sql mysql-procedures")
	a.replace("settle", "heartbeat") // as a migration does
	denied(t, relayDB, "CALL waybill_heartbeat('', '', 0)")
	a.grant("sql mysql-procedures")

	evs := grantedWriter(t, writer)
	denied(t, writerDB, "UPDATE waybill_lane SET epoch = epoch + 1", "DELETE FROM waybill_history", "DROP TABLE waybill_outbox",
		"SELECT * FROM waybill_inbox", "SELECT * FROM waybill_idempotency")
	evs = append(evs, grantedConsumer(t, consumer)...)
	denied(t, consumerDB, "UPDATE waybill_lane SET epoch = epoch + 1", "UPDATE waybill_setting SET value = '1'", "DELETE FROM waybill_history",
		"DROP TABLE waybill_inbox")
	grantedRelay(t, node, len(evs))
	grantedOperator(t, node)
	denied(t, relayDB, "DROP TABLE waybill_outbox", "ALTER TABLE waybill_outbox COMMENT = ''", "INSERT INTO waybill_migration (version, name) VALUES (99, 'x')")
	grantedReader(t, reader)
	denied(t, readerDB, "DELETE FROM waybill_outbox", "INSERT INTO waybill_setting (name, value) VALUES ('x', 'y')")
}

func denied(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := db.ExecContext(t.Context(), statement); err == nil || !strings.Contains(err.Error(), "denied") {
			t.Errorf("%s: %v, want access denied", statement, err)
		}
	}
}

// grantedWriter writes in all ways, and returns the pending events.
func grantedWriter(t *testing.T, s *mysqlstore.Store) []waybill.Event {
	t.Helper()
	// The hook makes InTx look for its rows.
	box := newBox(t, s, outbox.Hook{AfterCommit: func(context.Context, outbox.AfterCommitInfo) {}})
	late := event("late")
	late.Delay = time.Hour
	evs := []waybill.Event{event("a"), event(""), keyed("k"), late, event("b")}
	// Including a key that is taken.
	for _, batch := range [][]waybill.Event{evs[:1], evs[1:4], {keyed("k")}, evs[4:]} {
		err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error { return box.Write(ctx, tx, batch...) })
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, ev := range evs {
		if there, err := box.Committed(t.Context(), ev.ID); err != nil || !there {
			t.Errorf("Committed: %t, %v", there, err)
		}
	}
	if _, err := s.Migrations(t.Context()); err != nil {
		t.Errorf("Migrations: %v", err)
	}
	return evs
}

// grantedRelay runs the statements of a relay and of an operator.
func grantedRelay(t *testing.T, s *mysqlstore.Store, pending int) {
	t.Helper()
	me, leases := own(t, s)
	if w, err := s.Driver().Relay.OpenWriters(t.Context()); err != nil || w.Unknown {
		t.Errorf("OpenWriters: %+v, %v; want known writers", w, err)
	}
	rows := ready(t, s)
	if len(rows) != pending-1 {
		t.Fatalf("%d events are ready, want %d", len(rows), pending-1)
	}
	all := results(rows)
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	_, err := s.Driver().Relay.Settle(t.Context(), driver.Settlement{Leases: leases, Done: all[:1], Retry: all[1:2], Dead: all[2:3], History: true})
	must("Settle", err)
	_, err = s.Driver().Relay.Settle(t.Context(), driver.Settlement{Leases: leases, Done: all[3:]})
	must("Settle without a history", err)
	_, err = s.Driver().Relay.Due(t.Context(), allLanes(), 10)
	must("Due", err)
	_, err = s.Driver().Relay.Holds(t.Context(), allLanes())
	must("Holds", err)
	_, err = s.Driver().OutboxAdmin.Replay(t.Context(), []waybill.ID{all[2].ID})
	must("Replay", err)
	_, err = s.Driver().OutboxAdmin.Unblock(t.Context(), []waybill.ID{all[2].ID})
	must("Unblock", err)
	_, err = s.Driver().OutboxAdmin.Discard(t.Context(), []waybill.ID{all[2].ID})
	must("Discard", err)
	_, err = s.Driver().OutboxAdmin.Purge(t.Context(), store.Delivered, 0, 10)
	must("Purge", err)
	must("Tidy", s.Driver().OutboxAdmin.Tidy(t.Context(), time.Hour))
	must("Release", s.Driver().Relay.Release(t.Context(), leases, false))
	must("Leave", s.Driver().Relay.Leave(t.Context(), me))
	_, err = s.Driver().OutboxAdmin.PurgeWritten(t.Context(), 0, 10)
	must("PurgeWritten", err)
	if _, took, err := s.Driver().Inbox.ClaimEvent(t.Context(), intakes("g", 1)[0], waybill.NewID(), time.Minute, 3, nil); err != nil || !took {
		t.Errorf("ClaimEvent: %t, %v", took, err)
	}
	_, _, err = s.Driver().Keys.ClaimKey(t.Context(), driver.KeyClaim{KeyID: store.KeyID{Operation: "o", Key: "k"}, Owner: waybill.NewID(), Hash: "h", Lease: time.Minute})
	must("ClaimKey", err)
	_, err = s.Driver().KeyRecords.PurgeKeys(t.Context(), 10)
	must("PurgeKeys", err)
}

// grantedConsumer consumes events and answers requests, both of which write
// events, and returns the pending events.
func grantedConsumer(t *testing.T, s *mysqlstore.Store) []waybill.Event {
	t.Helper()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	box := newBox(t, s)
	caused := []waybill.Event{event("consumed"), event("asked")}
	in, err := inbox.New(s, inbox.Config{})
	must("inbox.New", err)
	group := in.MustGroup("G", inbox.Options{StoreEvent: true})
	ev := event("x")
	for range 2 { // the second finds the record
		_, err = group.Consume(t.Context(), ev, func(ctx context.Context, tx *sql.Tx, _ waybill.Event) error { return box.Write(ctx, tx, caused[0]) })
		must("Consume", err)
	}
	boom := errors.New("out of stock")
	_, err = group.Consume(t.Context(), event("y"), func(context.Context, *sql.Tx, waybill.Event) error { return boom })
	if !errors.Is(err, boom) {
		t.Fatalf("Consume of a failing event: %v", err)
	}
	intake, owner := intakes("G", 1)[0], waybill.NewID()
	rec, took, err := s.Driver().Inbox.ClaimEvent(t.Context(), intake, owner, time.Minute, 3, nil)
	if err != nil || !took {
		t.Fatalf("ClaimEvent: %t, %v", took, err)
	}
	_, err = s.Driver().Inbox.FailEvent(t.Context(), intake, driver.Failure{Owner: owner, Fence: rec.Fence, Dead: true, Error: "x"})
	must("FailEvent", err)
	_, err = s.Driver().InboxRecords.DueRecords(t.Context(), "G", 10)
	must("DueRecords", err)
	_, err = s.Driver().InboxRecords.PurgeRecords(t.Context(), "G", time.Hour, 10)
	must("PurgeRecords", err)

	keys, err := idempotency.New(s, idempotency.Config{})
	must("idempotency.New", err)
	hash, err := idempotency.HashJSON("request")
	must("HashJSON", err)
	_, err = idempotency.Do(t.Context(), keys, idempotency.Request{Operation: "op", Key: "do", Hash: hash}, func(context.Context) (int, error) { return 1, nil })
	must("Do", err)
	for range 2 { // the second gets the answer of the first
		_, err = idempotency.DoTx(t.Context(), keys, idempotency.Request{Operation: "op", Key: "tx", Hash: hash}, func(ctx context.Context, tx *sql.Tx) (int, error) {
			return 1, box.Write(ctx, tx, caused[1])
		})
		must("DoTx", err)
	}
	_, err = keys.Purge(t.Context())
	must("Purge of keys", err)
	return caused
}

// grantedOperator runs a relay, and the other tasks of its account: jobs,
// replay, discard, unblock, purges.
func grantedOperator(t *testing.T, s *mysqlstore.Store) {
	t.Helper()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	box := newBox(t, s) // waybill send, as the relay's account
	evs := []waybill.Event{event("dies"), event("dies, too"), event("arrives")}
	must("InTx", box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error { return box.Write(ctx, tx, evs...) }))
	r, err := relay.New(s, relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		if d.ID == evs[0].ID || d.ID == evs[1].ID {
			return waybill.Permanent(errors.New("no such customer"))
		}
		return nil
	}), relay.Config{OnDead: relay.Block, PollInterval: 10 * time.Millisecond})
	must("relay.New", err)
	ops, err := admin.NewOutbox(s, admin.Config{})
	must("operate.New", err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	state := func(ev waybill.Event) store.State {
		rec, err := ops.Find(t.Context(), ev.ID)
		must("Find", err)
		return rec.State
	}
	until(t, "the relay to settle", func() bool {
		return state(evs[0]) == store.Dead && state(evs[1]) == store.Dead && state(evs[2]) == store.Delivered
	})
	cancel()
	must("Run", <-done)
	if sink, err := s.Driver().SinkGuard.RecordedSink(t.Context()); err != nil || !strings.Contains(sink, "in-process") {
		t.Errorf("RecordedSink: %q, %v", sink, err)
	}
	if n, err := ops.Unblock(t.Context(), evs[0].ID); err != nil || len(n) != 1 {
		t.Errorf("Unblock: %v, %v", n, err)
	}
	if n, err := ops.Replay(t.Context(), evs[0].ID); err != nil || len(n.IDs) != 1 {
		t.Errorf("Replay: %+v, %v", n, err)
	}
	if n, err := ops.Discard(t.Context(), evs[1].ID); err != nil || len(n) != 1 {
		t.Errorf("Discard: %v, %v", n, err)
	}
	// The replayed event.
	if n, err := ops.MakeReady(t.Context()); err != nil || n != 1 {
		t.Errorf("MakeReady: %d, %v", n, err)
	}
	if n, err := ops.PurgeWritten(t.Context(), time.Nanosecond, nil); err != nil || n == 0 {
		t.Errorf("PurgeWritten: %d, %v", n, err)
	}
	p, err := ops.Purger(admin.Retention{History: time.Nanosecond, Dead: time.Nanosecond})
	must("Purger", err)
	if gone, err := p.Once(t.Context(), nil); err != nil || gone.Delivered == 0 {
		t.Errorf("Purger.Once: %+v, %v", gone, err)
	}
	if n, err := s.Driver().InboxRecords.Redrive(t.Context(), "G", nil, 10); err != nil || n == 0 {
		t.Errorf("Redrive: %d, %v", n, err)
	}
	if n, err := s.Driver().InboxRecords.PurgeRecords(t.Context(), "G", time.Nanosecond, 10); err != nil || n == 0 {
		t.Errorf("PurgeRecords: %d, %v", n, err)
	}
	_, err = s.Driver().KeyRecords.PurgeKeys(t.Context(), 10)
	must("PurgeKeys", err)
	_, err = s.Driver().KeyRecords.ResolveKey(t.Context(), store.KeyID{Operation: "op", Key: "none"}, driver.KeyEnd{State: store.KeyFailed})
	must("ResolveKey", err)
	grantedJobs(t, s)
}

// grantedJobs runs a job that sends, and one that scans the tables.
func grantedJobs(t *testing.T, s *mysqlstore.Store) {
	t.Helper()
	rec, err := reconcile.New(s, []reconcile.Job{
		{Name: "sends", LookBack: time.Hour, Find: func(_ context.Context, _ reconcile.Window, missing func(waybill.Event) error) error {
			return missing(event("lost"))
		}},
		reconcile.UnrecordedReport(s, "G", 7*24*time.Hour, nil), reconcile.StuckLeases(s, time.Minute), reconcile.StuckKeys(s, time.Minute),
	}, reconcile.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, job := range []string{"sends", "unrecorded:G", "stuck-leases", "stuck-keys"} {
		if rep, err := rec.RunOnce(t.Context(), job); err != nil || job == "sends" && rep.Sent != 1 {
			t.Errorf("the job %s: %+v, %v", job, rep, err)
		}
	}
	if n, err := s.Driver().JobRecords.ForgetSent(t.Context(), "sends", 0, 10); err != nil || n != 1 {
		t.Errorf("ForgetSent: %d, %v", n, err)
	}
}

// until waits for a condition.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("timeout while waiting for %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// grantedReader reads everything.
func grantedReader(t *testing.T, s *mysqlstore.Store) {
	t.Helper()
	if _, err := s.Driver().OutboxAdmin.Stats(t.Context()); err != nil {
		t.Errorf("Stats: %v", err)
	}
	for _, state := range []store.State{store.Ready, store.Delayed, store.Dead, store.Delivered} {
		if _, err := s.Driver().OutboxAdmin.List(t.Context(), state, store.Filter{}, 0, 10); err != nil {
			t.Errorf("List: %v", err)
		}
	}
	if _, err := s.Driver().InboxRecords.GroupStats(t.Context(), true); err != nil {
		t.Errorf("GroupStats: %v", err)
	}
	if _, err := s.Driver().KeyRecords.KeyStats(t.Context()); err != nil {
		t.Errorf("KeyStats: %v", err)
	}
	if _, err := s.Driver().JobRecords.ListJobs(t.Context()); err != nil {
		t.Errorf("ListJobs: %v", err)
	}
	if _, err := s.Driver().SinkGuard.RecordedSink(t.Context()); err != nil { // waybill doctor
		t.Errorf("RecordedSink: %v", err)
	}
	if _, err := s.Driver().InboxRecords.ListRecords(t.Context(), store.RecordFilter{}, "", waybill.ID{}, 10); err != nil {
		t.Errorf("ListRecords: %v", err)
	}
	if _, err := s.Driver().KeyRecords.ListKeys(t.Context(), store.KeyFilter{}, store.KeyID{}, 10); err != nil {
		t.Errorf("ListKeys: %v", err)
	}
	if _, err := s.Migrations(t.Context()); err != nil {
		t.Errorf("Migrations: %v", err)
	}
}

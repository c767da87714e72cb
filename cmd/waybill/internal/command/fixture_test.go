package command_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/internal/requestkey"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// mariadb is the other server of the store "mysql".
const mariadb = testserver.MariaDBName

// useStore points the settings at a private store of a kind. Servers get one
// lane, like SQLite, so that the output is the same.
func (s *script) useStore(kind string) {
	s.t.Helper()
	name := strings.ToLower("cmd_" + waybill.NewID().String())
	s.database = name
	switch kind {
	case connect.SQLite:
		s.environ = []string{"WAYBILL_STORE=sqlite:waybill.db"}
		s.dialect("orders", "?1", "?2", "TEXT")
	case "none":
	case connect.Postgres:
		address := testserver.Postgres(s.t)
		s.environ = []string{"WAYBILL_STORE=" + address, "WAYBILL_STORE_SCHEMA=" + name, "WAYBILL_STORE_LANES=1"}
		s.hideAddress(address)
		s.dialect(name+".orders", "$1", "$2", "timestamptz")
		s.t.Cleanup(func() { execSQL(s.t, "pgx", address, "DROP SCHEMA IF EXISTS "+name+" CASCADE") })
	case connect.MySQL, mariadb:
		dsn := testserver.Address(s.t, kind)
		execSQL(s.t, "mysql", dsn, "CREATE DATABASE "+name)
		s.t.Cleanup(func() { execSQL(s.t, "mysql", dsn, "DROP DATABASE "+name) })
		cfg, err := mysql.ParseDSN(dsn)
		if err != nil {
			s.t.Fatal(err)
		}
		address := (&url.URL{Scheme: "mysql", User: url.UserPassword(cfg.User, cfg.Passwd), Host: cfg.Addr, Path: "/" + name}).String()
		s.environ = []string{"WAYBILL_STORE=" + address, "WAYBILL_STORE_LANES=1"}
		s.hideAddress(address)
		s.dialect("orders", "?", "?", "datetime(6)")
	default:
		s.t.Fatalf("unknown store %s", kind)
	}
	s.environ = append(s.environ, "WAYBILL_ACTOR=alice")
}

// dialect returns the spelling of a service's table, of the bounds of a job's
// window, and of the type of a time.
func (s *script) dialect(orders, from, to, timestamp string) {
	s.names["orders"], s.names["from"], s.names["to"], s.names["timestamp"] = orders, from, to, timestamp
}

// spell replaces the names in braces.
func (s *script) spell(text string) string {
	for name, word := range s.names {
		text = strings.ReplaceAll(text, "{"+name+"}", word)
	}
	return text
}

// hideAddress replaces an address by STORE, also in its redacted form: the
// password of a test server may be part of other words.
func (s *script) hideAddress(address string) {
	secret := settings.NewSecret(address)
	s.hidden = append(s.hidden, secret.String(), "STORE", settings.NewScrubber(secret).Clean(secret.String()), "STORE")
}

func execSQL(t *testing.T, driver, dsn, statement string) {
	t.Helper()
	_ = stdlib.GetDefaultDriver() // registers pgx
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(context.WithoutCancel(t.Context()), statement); err != nil {
		t.Errorf("%s: %v", statement, err)
	}
}

// open opens the store of the script.
func (s *script) open() *connect.Store {
	s.t.Helper()
	loaded, err := settings.Load(settings.Sources{Environ: s.environ})
	if err != nil {
		s.t.Fatal(err)
	}
	st, err := connect.OpenStore(s.t.Context(), loaded.Relays[0].Store, true)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := st.Migrator.Migrate(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	return st
}

func (s *script) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// fixture brings the store, or the folder, into a state.
func (s *script) fixture(words []string, text string) {
	s.t.Helper()
	if words[0] == "file" {
		s.must(os.WriteFile(words[1], []byte(s.spell(text)), 0o600))
		return
	}
	if words[0] == "shell" { // the database's shell runs the output of a command
		s.pipe(words[1:])
		return
	}
	st := s.open()
	defer func() { _ = st.Close() }()
	ctx := s.t.Context()
	switch words[0] {
	case "tables":
	case "sql": // tables of other systems
		_, err := st.SQL.ExecContext(ctx, text)
		s.must(err)
	case "events": // the name of each event is its state
		s.events(ctx, st, relay.Continue)
	case "blocked":
		s.events(ctx, st, relay.Block)
	case "destinations":
		s.destinations(ctx, st)
	case "live": // a relay whose lease has not ended
		_, err := st.Relay.Heartbeat(ctx, store.Node{ID: waybill.NewID(), Relay: "relay"}, time.Hour)
		s.must(err)
	case "inbox":
		s.inbox(ctx, st)
	case "keys":
		s.keys(ctx, st)
	case "orders": // a service's table, for jobs
		s.orders(ctx, st)
	default:
		s.t.Fatalf("unknown fixture %s", words[0])
	}
}

// events writes events and runs a relay until each is in the state of its name.
func (s *script) events(ctx context.Context, st *connect.Store, onDead relay.OnDead) {
	s.t.Helper()
	event := func(name, kind, aggregate, tenant string) waybill.Event {
		ev := waybill.Event{ID: waybill.NewID(), Type: kind, AggregateID: aggregate, TenantID: tenant, Payload: []byte(`{"total": 9990}`)}
		ev.OccurredAt = time.Now().Add(-time.Hour)
		if aggregate != "" {
			ev.AggregateType = "order"
		}
		s.names[name] = ev.ID.String()
		return ev
	}
	first := []waybill.Event{
		event("delivered", "OrderPlaced", "16", ""), event("dead", "OrderPlaced", "17", ""), event("dead2", "InvoiceSent", "", "acme"),
		event("failed", "OrderShipped", "18", ""),
	}
	_, err := st.Send(ctx, first...)
	s.must(err)
	r, err := relay.New(st, relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		switch d.ID.String() {
		case s.names["dead"]:
			return waybill.Permanent(errors.New("no such customer"))
		case s.names["dead2"]:
			return waybill.Permanent(errors.New("the\x1b[31m printer\nis out of paper"))
		case s.names["failed"]:
			return waybill.RetryAfter(time.Hour, errors.New("the carrier does not answer"))
		}
		return nil
	}), relay.Config{OnDead: onDead})
	s.must(err)
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- r.Run(running) }()
	waitFor(s.t, "the events to arrive", func() bool {
		stats, err := st.OutboxAdmin.Stats(ctx)
		s.must(err)
		delivered, err := st.OutboxAdmin.Count(ctx, store.Delivered, store.Filter{})
		s.must(err)
		return stats.Ready == 0 && stats.Dead == 2 && stats.Failed == 1 && delivered == 1
	})
	stop()
	s.must(<-done)
	scheduled := event("scheduled", "ReminderDue", "", "")
	scheduled.Delay = time.Hour
	_, err = st.Send(ctx, event("behind", "OrderPaid", "17", ""), event("ready", "OrderPaid", "19", ""), scheduled)
	s.must(err)
}

// destinations writes events and runs a relay with two destinations: billing
// receives all of them, and partner refuses some.
func (s *script) destinations(ctx context.Context, st *connect.Store) {
	s.t.Helper()
	event := func(name, kind, aggregate string) waybill.Event {
		ev := waybill.NewEvent(kind, 9990)
		ev.ID, ev.AggregateType, ev.AggregateID, ev.OccurredAt = waybill.NewID(), "order", aggregate, time.Now().Add(-time.Hour)
		s.names[name] = ev.ID.String()
		return ev
	}
	_, err := st.Send(ctx, event("received", "OrderPlaced", "26"), event("dead", "OrderPlaced", "27"), event("failed", "OrderShipped", "28"),
		event("behind", "OrderPaid", "28"))
	s.must(err)
	billing := relay.Destination{Name: "billing", Sink: relay.SinkFunc(func(context.Context, waybill.Delivery) error { return nil })}
	partner := relay.Destination{Name: "partner", Sink: relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		switch d.ID.String() {
		case s.names["dead"]:
			return waybill.Permanent(errors.New("no such customer"))
		case s.names["failed"]:
			return waybill.RetryAfter(time.Hour, errors.New("the carrier does not answer"))
		}
		return nil
	})}
	r, err := relay.NewTo(st, relay.Config{TakeOver: true}, billing, partner)
	s.must(err)
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- r.Run(running) }()
	waitFor(s.t, "the events to arrive", func() bool {
		main, err := st.OutboxAdmin.Stats(ctx)
		s.must(err)
		there, err := st.Backlogs.Backlog(2).Stats(ctx)
		s.must(err)
		return main.Ready == 0 && there.Ready == 1 && there.Failed == 1 && there.Dead == 1
	})
	stop()
	s.must(<-done)
}

// waitFor waits for a condition.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(60 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

func (s *script) inbox(ctx context.Context, st *connect.Store) {
	s.t.Helper()
	db, ok := st.Relay.(driver.Claimer)
	if !ok {
		s.t.Fatal("the store claims no events")
	}
	for _, r := range []struct {
		name, group string
		dead        bool
	}{{"i1", "BILLING", true}, {"i2", "BILLING", false}, {"i3", "INVENTORY", true}} {
		id := waybill.NewID()
		s.names[r.name] = id.String()
		in := store.InboxEntry{Group: r.group, Key: id, Event: id, Type: "OrderPlaced"}
		_, err := db.FailEvent(ctx, in, driver.Failure{Owner: waybill.NewID(), Delay: time.Hour, Dead: r.dead, Error: "out of stock"})
		s.must(err)
	}
	s.names["unknown"] = waybill.NewID().String()
}

func (s *script) keys(ctx context.Context, st *connect.Store) {
	s.t.Helper()
	db, ok := st.Relay.(driver.KeyClaimer)
	if !ok {
		s.t.Fatal("the store claims no keys")
	}
	for _, k := range []struct {
		key string
		end driver.KeyEnd
	}{
		{"k-failed", driver.KeyEnd{State: store.KeyFailed, Error: "card refused", Answer: driver.KeyAnswer{Retention: time.Hour}}},
		{"k-done", driver.KeyEnd{State: store.KeySucceeded, Answer: driver.KeyAnswer{Ref: "ord_1", Result: []byte(`{}`), ContentType: "application/json", Retention: time.Hour}}},
		{"k-unsure", driver.KeyEnd{State: store.KeyUncertain, Error: "no answer from the bank"}},
		{"k-unsure2", driver.KeyEnd{State: store.KeyUncertain, Error: "no answer from the bank"}},
		// Ann's key k-1, sent over HTTP.
		{requestkey.Key("acme", "ann", "POST /orders", "k-1"), driver.KeyEnd{State: store.KeyUncertain, Error: "no answer from the bank"}},
	} {
		id := store.KeyID{Tenant: "acme", Operation: "POST /orders", Key: k.key}
		claim := driver.KeyClaim{KeyID: id, Hash: "v1:" + strings.Repeat("a", 64), Owner: waybill.NewID(), Lease: time.Minute}
		rec, taken, err := db.ClaimKey(ctx, claim)
		if err != nil || !taken {
			s.t.Fatalf("claiming %s: %v, %v", k.key, taken, err)
		}
		ended, err := db.EndKey(ctx, driver.KeyAttempt{KeyID: id, Owner: claim.Owner, Fence: rec.Fence}, k.end)
		if err != nil || !ended {
			s.t.Fatalf("ending %s: %v, %v", k.key, ended, err)
		}
	}
}

// orders creates a service's table with two orders of ten minutes ago without
// events, and one of a week ago, outside the window.
func (s *script) orders(ctx context.Context, st *connect.Store) {
	s.t.Helper()
	_, err := st.SQL.ExecContext(ctx, s.spell("CREATE TABLE {orders} (id varchar(20) PRIMARY KEY, created_at {timestamp} NOT NULL)"))
	s.must(err)
	for id, age := range map[string]time.Duration{"o-1": 10 * time.Minute, "o-2": 10 * time.Minute, "o-0": 7 * 24 * time.Hour} {
		_, err := st.SQL.ExecContext(ctx, s.spell("INSERT INTO {orders} VALUES ('"+id+"', {from})"), time.Now().UTC().Add(-age))
		s.must(err)
	}
}

package orm_test

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/outbox/outboxtest"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
)

func TestMain(m *testing.M) {
	// gorm's cache of prepared statements starts a goroutine that cannot be
	// stopped, as its own comment says.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

// Order is a row of the business table; the libraries derive the name orders.
type Order struct {
	ID    string `db:"id" bun:"id,pk"`
	Total int64  `db:"total"`
}

// Placed is the payload of OrderPlaced.
type Placed struct{ Total int64 }

// OrderPlaced is the event that every recipe writes.
var OrderPlaced = waybill.Define[Placed]("OrderPlaced", waybill.Spec{AggregateType: "order"})

//go:embed sqlc/schema.sql
var ordersTable string

// shop is a database with the table of orders and an outbox. T is the type of
// the transactions.
type shop[T any] struct {
	db    driver.Roles[T]
	box   *outbox.Outbox[T]
	rec   *outboxtest.Recorder
	pool  *pgxpool.Pool
	sqldb *sql.DB
}

// openSQL returns a shop for transactions of database/sql, over a schema of its
// own.
func openSQL(t *testing.T) shop[*sql.Tx] {
	t.Helper()
	s := shop[*sql.Tx]{}
	s.pool, s.sqldb = connect(t)
	// a wake-up would hold a connection that this test counts
	db, err := pgstore.NewSQL(s.sqldb, pgstore.Config{NotifyInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	s.db = db.Driver()
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.box, s.rec = openBox[*sql.Tx](t, db.Driver().Outbox)
	return s
}

// openPGX returns a shop for transactions of pgx, over a schema of its own.
func openPGX(t *testing.T) shop[pgx.Tx] {
	t.Helper()
	s := shop[pgx.Tx]{}
	s.pool, s.sqldb = connect(t)
	db, err := pgstore.New(s.pool, pgstore.Config{NotifyInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	s.db = db.Driver()
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.box, s.rec = openBox[pgx.Tx](t, db.Driver().Outbox)
	return s
}

func openBox[T any](t *testing.T, db driver.Outbox[T]) (*outbox.Outbox[T], *outboxtest.Recorder) {
	t.Helper()
	var rec outboxtest.Recorder
	box, err := outbox.New(testroles.Of[T](db), outbox.Config{Hooks: []outbox.Hook{rec.Hook()}})
	if err != nil {
		t.Fatal(err)
	}
	return box, &rec
}

// connect creates a schema of its own, with the table of orders, and returns
// handles that find it by their search path.
func connect(t *testing.T) (*pgxpool.Pool, *sql.DB) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(testserver.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	schema := "t_" + strings.ToLower(waybill.NewID().String())
	cfg.MaxConns = 4
	cfg.ConnConfig.RuntimeParams["search_path"] = schema
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), `CREATE SCHEMA "`+schema+`"`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), `DROP SCHEMA "`+schema+`" CASCADE`); err != nil {
			t.Error(err)
		}
	})
	if _, err := pool.Exec(t.Context(), ordersTable); err != nil {
		t.Fatal(err)
	}
	sqldb := stdlib.OpenDB(*cfg.ConnConfig)
	t.Cleanup(func() {
		if err := sqldb.Close(); err != nil {
			t.Error(err)
		}
	})
	return pool, sqldb
}

// wants fails the test unless exactly these orders, and an event for each and
// no other, are committed, and no transaction is open.
func (s shop[T]) wants(t *testing.T, orders ...Order) {
	t.Helper()
	if n := s.sqldb.Stats().InUse; n != 0 {
		t.Errorf("%d connections of the *sql.DB are still in use", n)
	}
	if n := s.pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections of the pool are still in use", n)
	}
	rows, err := s.pool.Query(t.Context(), `SELECT id, total FROM orders ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Order])
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[Order]int)
	for _, o := range stored {
		got[o]++
	}
	events := s.events(t)
	for _, ev := range events {
		p, err := OrderPlaced.Decode(ev)
		if err != nil {
			t.Fatal(err)
		}
		got[Order{ID: ev.AggregateID, Total: p.Total}]++
	}
	for _, o := range orders {
		if got[o] != 2 {
			t.Errorf("%v: got %d of a row and an event", o, got[o])
		}
	}
	if len(stored) != len(orders) || len(events) != len(orders) {
		t.Errorf("got the orders %v and %d events, want the orders %v and an event for each", stored, len(events), orders)
	}
}

// events returns the events that a relay would find, in the order of their
// lanes.
func (s shop[T]) events(t *testing.T) []waybill.Event {
	t.Helper()
	cursors := make([]driver.Cursor, 32)
	for lane := range cursors {
		cursors[lane].Lane = lane
	}
	page, err := s.db.Relay.Fetch(t.Context(), cursors, 100)
	if err != nil {
		t.Fatal(err)
	}
	events := make([]waybill.Event, len(page.Rows))
	for i, row := range page.Rows {
		if row.Err != nil {
			t.Fatal(row.Err)
		}
		events[i] = row.Event
	}
	return events
}

// listen returns the hub's notifications until the test ends.
func (s shop[T]) listen(t *testing.T) *[]driver.Commit {
	t.Helper()
	heard := new([]driver.Commit)
	t.Cleanup(s.db.Outbox.Local().Listen(func(c driver.Commit) { *heard = append(*heard, c) }))
	return heard
}

var errChanged = errors.New("the customer has changed his mind")

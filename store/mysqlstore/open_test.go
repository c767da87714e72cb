package mysqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/drivertest"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// onBoth runs a test on MariaDB and on MySQL concurrently, with no other test
// on either server. The server is the second part of the test's name; see
// serverOf.
func onBoth(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	for _, server := range []string{testserver.MariaDBName, testserver.MySQLName} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// serverOf returns the server of a test: MariaDB, unless the name of the test
// contains another.
func serverOf(t testing.TB) string {
	t.Helper()
	if parts := strings.Split(t.Name(), "/"); len(parts) > 1 && parts[1] == testserver.MySQLName {
		return testserver.MySQLName
	}
	return testserver.MariaDBName
}

// isolation is, in the parameters of a data source name, the variable that has
// different names on the two servers.
const isolation = "isolation"

// lockWaits returns the number of statements on the server that wait for a row
// lock.
func lockWaits(t testing.TB, db *sql.DB) int {
	t.Helper()
	schema := "information_schema"
	if serverOf(t) == testserver.MySQLName {
		schema = "performance_schema"
	}
	return ask[int](t, db, "SELECT variable_value FROM "+schema+".global_status WHERE variable_name = 'Innodb_row_lock_current_waits'")
}

// openDB returns a pool on a fresh database of the test server, and the
// database's name; change may adjust the data source name.
func openDB(t testing.TB, change func(*mysql.Config)) (*sql.DB, string) {
	t.Helper()
	name := databaseName()
	root := pool(t, configOf(t, ""))
	exec(t, root, "CREATE DATABASE "+name)
	t.Cleanup(func() {
		if _, err := root.ExecContext(context.Background(), "DROP DATABASE "+name); err != nil {
			t.Error(err)
		}
	})
	return poolOn(t, name, change), name
}

// databaseName returns the name of an unused database.
func databaseName() string {
	return "t_" + strings.ToLower(waybill.NewID().String())
}

// poolOn returns a pool on a database of the test server.
func poolOn(t testing.TB, name string, change func(*mysql.Config)) *sql.DB {
	t.Helper()
	cfg := configOf(t, name)
	if change != nil {
		change(cfg)
	}
	if level, ok := cfg.Params[isolation]; ok {
		delete(cfg.Params, isolation)
		variable := "tx_isolation"
		if serverOf(t) == testserver.MySQLName {
			variable = "transaction_isolation"
		}
		cfg.Params[variable] = level
	}
	return pool(t, cfg)
}

// configOf returns the data source name of a database of the test server.
func configOf(t testing.TB, name string) *mysql.Config {
	t.Helper()
	cfg, err := mysql.ParseDSN(testserver.Address(t, serverOf(t)))
	if err != nil {
		t.Fatal(err)
	}
	cfg.DBName = name
	return cfg
}

// pool returns a pool that is closed after the test.
func pool(t testing.TB, cfg *mysql.Config) *sql.DB {
	t.Helper()
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(8)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// exec runs a statement, on a pool, a connection or a transaction.
func exec(t testing.TB, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, query string, args ...any,
) {
	t.Helper()
	if _, err := db.ExecContext(context.WithoutCancel(t.Context()), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// ask returns the single value of a query.
func ask[V any](t testing.TB, db *sql.DB, query string, args ...any) V {
	t.Helper()
	var value V
	if err := db.QueryRowContext(t.Context(), query, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}

// newStore returns a store over existing tables.
func newStore(t testing.TB, db *sql.DB) *mysqlstore.Store {
	t.Helper()
	s, err := mysqlstore.New(db, mysqlstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// openStore returns a store over fresh tables.
func openStore(t testing.TB, change func(*mysql.Config)) (*mysqlstore.Store, *sql.DB) {
	t.Helper()
	db, _ := openDB(t, change)
	return migrated(t, db), db
}

// migrated returns a store over tables that it creates, and creates a table of
// the service.
func migrated(t testing.TB, db *sql.DB) *mysqlstore.Store {
	t.Helper()
	s := newStore(t, db)
	if _, err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, db, "CREATE TABLE business (note VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, n INT DEFAULT 0, KEY (note)) ENGINE=InnoDB")
	return s
}

// await polls until the condition is true.
func await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("timeout waiting for: " + what)
		}
	}
}

func begin(t testing.TB, db *sql.DB, opts *sql.TxOptions) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.WithoutCancel(t.Context()), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// event returns a complete event, as a store receives it.
func event(aggregate string) waybill.Event {
	ev := waybill.NewEvent("thing.happened", map[string]int{"n": 1})
	if aggregate != "" {
		ev.AggregateType, ev.AggregateID = "thing", aggregate
	}
	return eventfill.Defaults(ev)
}

func keyed(key string) waybill.Event {
	ev := event("a")
	ev.DedupKey = key
	return ev
}

// cursors returns cursors at the beginning of all lanes.
func cursors(lanes int) []driver.Cursor {
	from := make([]driver.Cursor, lanes)
	for i := range from {
		from[i].Lane = i
	}
	return from
}

// allLanes returns the numbers of all lanes.
func allLanes() []int {
	lanes := make([]int, 32)
	for i := range lanes {
		lanes[i] = i
	}
	return lanes
}

// ready returns all ready rows.
func ready(t testing.TB, s *mysqlstore.Store) []store.Row {
	t.Helper()
	page, err := s.Driver().Relay.Fetch(t.Context(), cursors(32), 10_000)
	if err != nil {
		t.Fatal(err)
	}
	return page.Rows
}

// own registers a live node that owns all lanes.
func own(t testing.TB, s *mysqlstore.Store) (store.Node, []driver.Lease) {
	t.Helper()
	node := store.Node{ID: waybill.NewID(), Relay: "test"}
	if _, err := s.Driver().Relay.Heartbeat(t.Context(), node, time.Hour); err != nil {
		t.Fatal(err)
	}
	leases, err := s.Driver().Relay.Acquire(t.Context(), node, allLanes(), 7)
	if err != nil || len(leases) != 32 {
		t.Fatalf("Acquire: %d leases, %v", len(leases), err)
	}
	return node, leases
}

// instanceOf returns an instance over an existing store.
func instanceOf(t *testing.T, s *mysqlstore.Store, db *sql.DB, with func(*mysqlstore.Store)) drivertest.Instance[*sql.Tx] {
	if with == nil {
		with = func(*mysqlstore.Store) {}
	}
	with(s)
	return drivertest.Instance[*sql.Tx]{
		DB: s.Driver(),
		Second: func() driver.Roles[*sql.Tx] {
			second := newStore(t, db)
			with(second)
			return second.Driver()
		},
		Insert: func(ctx context.Context, tx *sql.Tx, note string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO business (note) VALUES (?)", note)
			return err
		},
		Count: func(ctx context.Context, note string) (n int, err error) {
			err = db.QueryRowContext(ctx, "SELECT COUNT(*) FROM business WHERE note = ?", note).Scan(&n)
			return n, err
		},
		Begin: func(ctx context.Context) (drivertest.Foreign[*sql.Tx], error) {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return drivertest.Foreign[*sql.Tx]{}, err
			}
			return drivertest.Foreign[*sql.Tx]{Tx: tx, Commit: tx.Commit, Rollback: tx.Rollback}, nil
		},
		Exec: func(ctx context.Context, tx *sql.Tx, query string) error {
			_, err := tx.ExecContext(ctx, query)
			return err
		},
		InsertPlain: func(ctx context.Context, p drivertest.Plain) error { return insertPlain(ctx, db, p) },
		SetHeaders: func(ctx context.Context, id waybill.ID, text string) error {
			res, err := db.ExecContext(ctx, "UPDATE waybill_outbox SET headers = ? WHERE id = ?", text, id[:])
			if err != nil {
				return err
			}
			if n, err := res.RowsAffected(); err != nil || n != 1 {
				return fmt.Errorf("%d rows have the id: %w", n, err)
			}
			return nil
		},
		ExpireNode: func(ctx context.Context, id waybill.ID) error {
			_, err := db.ExecContext(ctx, "UPDATE waybill_node SET expires_at = UTC_TIMESTAMP(6) WHERE id = ?", id[:])
			return err
		},
		Pending: func(ctx context.Context) ([]store.Row, error) { return pending(ctx, db, s.Driver().Relay) },
	}
}

func insertPlain(ctx context.Context, db *sql.DB, p drivertest.Plain) error {
	columns, values := []string{"type", "payload"}, []any{p.Type, p.Payload}
	for name, value := range map[string]string{
		"aggregate_type": p.AggregateType, "aggregate_id": p.AggregateID, "tenant_id": p.TenantID,
	} {
		if value != "" {
			columns, values = append(columns, name), append(values, value)
		}
	}
	_, err := db.ExecContext(ctx, fmt.Sprintf("INSERT INTO waybill_outbox (%s) VALUES (?%s)",
		strings.Join(columns, ", "), strings.Repeat(", ?", len(columns)-1)), values...)
	return err
}

// pending reads the tables directly, so that it sees events that are not due,
// too.
func pending(ctx context.Context, db *sql.DB, s driver.Reader) ([]store.Row, error) {
	var lanes int
	if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM waybill_lane").Scan(&lanes); err != nil {
		return nil, err
	}
	page, err := s.Fetch(ctx, cursors(lanes), 100_000)
	if err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, `SELECT lane, seq, id, type, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', due_at),
 attempts, replay, holds, COALESCE(last_error, '') FROM waybill_delayed`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var row store.Row
		var id []byte
		var due int64
		if err := rows.Scan(&row.Lane, &row.Seq, &id, &row.Event.Type, &due, &row.Attempts, &row.Replay, &row.Holds, &row.LastError); err != nil {
			return nil, err
		}
		row.ID, row.DueAt = waybill.ID(id), time.UnixMicro(due).UTC()
		row.Event.ID = row.ID
		page.Rows = append(page.Rows, row)
	}
	return page.Rows, rows.Err()
}

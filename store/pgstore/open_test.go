package pgstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/drivertest"
	"github.com/waybillhq/waybill/store/pgstore"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// schemaOf returns the name of an unused schema, and drops it after the test.
func schemaOf(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	schema := schemaName()
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), `DROP SCHEMA IF EXISTS "`+schema+`" CASCADE`); err != nil {
			t.Error(err)
		}
	})
	return schema
}

// schemaName returns the name of an unused schema.
func schemaName() string {
	return "t_" + strings.ToLower(waybill.NewID().String())
}

// openPool returns a pool on the test server; change may adjust its
// configuration.
func openPool(t testing.TB, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	return openPoolAt(t, testserver.Postgres(t), change)
}

// manyConns is for a pool that the concurrent checks of a suite share.
func manyConns(c *pgxpool.Config) { c.MaxConns = 64 }

// openPoolAt is openPool on another server.
func openPoolAt(t testing.TB, dsn string, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 16
	if change != nil {
		change(cfg)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// openStore returns a store over fresh tables.
func openStore(t testing.TB, pool *pgxpool.Pool) (*pgstore.Store, string) {
	t.Helper()
	return openWith(t, pool, pgstore.Config{})
}

// openWith returns a store over fresh tables, with a config.
func openWith(t testing.TB, pool *pgxpool.Pool, cfg pgstore.Config) (*pgstore.Store, string) {
	t.Helper()
	schema := schemaOf(t, pool)
	cfg.Schema = schema
	return createTables(t, pool, cfg), schema
}

// createTables returns a store over tables that it creates, and creates a table
// of the service.
func createTables(t testing.TB, pool *pgxpool.Pool, cfg pgstore.Config) *pgstore.Store {
	t.Helper()
	db, err := pgstore.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `CREATE TABLE "`+cfg.Schema+`".business (note text)`); err != nil {
		t.Fatal(err)
	}
	return db
}

func count(pool *pgxpool.Pool, schema string) func(context.Context, string) (int, error) {
	return func(ctx context.Context, note string) (n int, err error) {
		err = pool.QueryRow(ctx, `SELECT count(*) FROM "`+schema+`".business WHERE note = $1`, note).Scan(&n)
		return n, err
	}
}

func insertPlain(pool *pgxpool.Pool, schema string) func(context.Context, drivertest.Plain) error {
	return func(ctx context.Context, p drivertest.Plain) error {
		columns, values := []string{"type", "payload"}, []any{p.Type, p.Payload}
		for name, value := range map[string]string{
			"aggregate_type": p.AggregateType, "aggregate_id": p.AggregateID, "tenant_id": p.TenantID,
		} {
			if value != "" {
				columns, values = append(columns, name), append(values, value)
			}
		}
		var marks []string
		for i := range columns {
			marks = append(marks, fmt.Sprintf("$%d", i+1))
		}
		_, err := pool.Exec(ctx, fmt.Sprintf(`INSERT INTO "%s".waybill_outbox (%s) VALUES (%s)`,
			schema, strings.Join(columns, ", "), strings.Join(marks, ", ")), values...)
		return err
	}
}

func setHeaders(pool *pgxpool.Pool, schema string) func(context.Context, waybill.ID, string) error {
	return func(ctx context.Context, id waybill.ID, text string) error {
		tag, err := pool.Exec(ctx, `UPDATE "`+schema+`".waybill_outbox SET headers = $2 WHERE id = $1`, id.UUID(), text)
		if err == nil && tag.RowsAffected() != 1 {
			err = fmt.Errorf("%d rows have the id", tag.RowsAffected())
		}
		return err
	}
}

func expireNode(pool *pgxpool.Pool, schema string) func(context.Context, waybill.ID) error {
	return func(ctx context.Context, id waybill.ID) error {
		_, err := pool.Exec(ctx, `UPDATE "`+schema+`".waybill_node SET expires_at = clock_timestamp() WHERE id = $1`, id.UUID())
		return err
	}
}

// pending reads the tables themselves, so that it also returns rows that are
// not due.
func pending(pool *pgxpool.Pool, schema string, db driver.Reader) func(context.Context) ([]store.Row, error) {
	return func(ctx context.Context) ([]store.Row, error) {
		var cursors []driver.Cursor
		for lane := range 32 {
			cursors = append(cursors, driver.Cursor{Lane: lane})
		}
		page, err := db.Fetch(ctx, cursors, 100_000)
		if err != nil {
			return nil, err
		}
		rows, err := pool.Query(ctx, `SELECT lane, seq, id, type, due_at, attempts, replay, holds, coalesce(last_error, '') FROM "`+schema+`".waybill_delayed`)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		for rows.Next() {
			var row store.Row
			var id [16]byte
			if err := rows.Scan(&row.Lane, &row.Seq, &id, &row.Event.Type, &row.DueAt, &row.Attempts, &row.Replay, &row.Holds, &row.LastError); err != nil {
				return nil, err
			}
			row.ID, row.Event.ID = id, id
			page.Rows = append(page.Rows, row)
		}
		return page.Rows, rows.Err()
	}
}

func pgxInstance(t *testing.T, pool *pgxpool.Pool) drivertest.Instance[pgx.Tx] {
	_, schema := openStore(t, pool)
	return pgxInstanceOn(t, pool, schema)
}

func pgxInstanceOn(t *testing.T, pool *pgxpool.Pool, schema string) drivertest.Instance[pgx.Tx] {
	db, err := pgstore.New(pool, pgstore.Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	return drivertest.Instance[pgx.Tx]{
		DB: db.Driver(),
		Second: func() driver.Roles[pgx.Tx] {
			second, err := pgstore.New(pool, pgstore.Config{Schema: schema})
			if err != nil {
				t.Fatal(err)
			}
			return second.Driver()
		},
		Insert: func(ctx context.Context, tx pgx.Tx, note string) error {
			_, err := tx.Exec(ctx, `INSERT INTO "`+schema+`".business VALUES ($1)`, note)
			return err
		},
		Count: count(pool, schema),
		Begin: func(ctx context.Context) (drivertest.Foreign[pgx.Tx], error) {
			tx, err := pool.Begin(ctx)
			if err != nil {
				return drivertest.Foreign[pgx.Tx]{}, err
			}
			return drivertest.Foreign[pgx.Tx]{
				Tx:       tx,
				Commit:   func() error { return tx.Commit(context.WithoutCancel(ctx)) },
				Rollback: func() error { return tx.Rollback(context.WithoutCancel(ctx)) },
			}, nil
		},
		Savepoint: func(ctx context.Context, tx pgx.Tx, fn func(pgx.Tx) error) error {
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			if err := fn(inner); err != nil {
				if rerr := inner.Rollback(ctx); rerr != nil {
					return rerr
				}
				return err
			}
			return inner.Commit(ctx)
		},
		Exec: func(ctx context.Context, tx pgx.Tx, sql string) error {
			_, err := tx.Exec(ctx, sql)
			return err
		},
		InsertPlain: insertPlain(pool, schema), SetHeaders: setHeaders(pool, schema), ExpireNode: expireNode(pool, schema),
		Pending: pending(pool, schema, db.Driver().Relay),
	}
}

func sqlInstance(t *testing.T, pool *pgxpool.Pool) drivertest.Instance[*sql.Tx] {
	_, schema := openStore(t, pool)
	return sqlInstanceOn(t, pool, schema)
}

func sqlInstanceOn(t *testing.T, pool *pgxpool.Pool, schema string) drivertest.Instance[*sql.Tx] {
	sqldb := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = sqldb.Close() })
	open := func() driver.Roles[*sql.Tx] {
		db, err := pgstore.NewSQL(sqldb, pgstore.Config{Schema: schema})
		if err != nil {
			t.Fatal(err)
		}
		return db.Driver()
	}
	db := open()
	exec := func(ctx context.Context, tx *sql.Tx, query string) error {
		_, err := tx.ExecContext(ctx, query)
		return err
	}
	return drivertest.Instance[*sql.Tx]{
		DB:     db,
		Second: open,
		Insert: func(ctx context.Context, tx *sql.Tx, note string) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO "`+schema+`".business VALUES ($1)`, note)
			return err
		},
		Count: count(pool, schema),
		Begin: func(ctx context.Context) (drivertest.Foreign[*sql.Tx], error) {
			tx, err := sqldb.BeginTx(ctx, nil)
			if err != nil {
				return drivertest.Foreign[*sql.Tx]{}, err
			}
			return drivertest.Foreign[*sql.Tx]{Tx: tx, Commit: tx.Commit, Rollback: tx.Rollback}, nil
		},
		Exec:        exec,
		InsertPlain: insertPlain(pool, schema), SetHeaders: setHeaders(pool, schema), ExpireNode: expireNode(pool, schema),
		Pending: pending(pool, schema, db.Relay),
	}
}

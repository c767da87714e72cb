package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybillhq/waybill/internal/testserver"
)

// pgServer is the PostgreSQL server that all contenders share.
type pgServer struct {
	config     *pgxpool.Config
	admin      *pgx.Conn // for measurements only
	version    string
	number     int    // 150018 is version 15.18
	postmaster int    // process id; 0: remote
	detailed   bool   // list statements
	schema     string // of the next field
}

func connectPostgres(ctx context.Context) (*pgServer, error) {
	config, err := pgxpool.ParseConfig(os.Getenv(testserver.EnvPostgres))
	if err != nil {
		return nil, err
	}
	// Unqualified names in statements refer to the schema of the turn.
	config.ConnConfig.RuntimeParams["search_path"] = schema
	// oagudo/outbox compares with times of the connection's zone
	config.ConnConfig.RuntimeParams["timezone"] = "UTC"
	admin, err := pgx.ConnectConfig(ctx, config.ConnConfig.Copy())
	if err != nil {
		return nil, err
	}
	s := &pgServer{config: config, admin: admin, schema: schema}
	var backend int
	err = admin.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, pg_backend_pid()`).Scan(&s.number, &backend)
	if err != nil {
		return nil, err
	}
	s.version = fmt.Sprintf("PostgreSQL %d.%d", s.number/10000, s.number%10000)
	if host := config.ConnConfig.Host; host == "127.0.0.1" || host == "localhost" || host == "::1" || strings.HasPrefix(host, "/") {
		if p, err := readProcess(strconv.Itoa(backend)); err == nil {
			s.postmaster = p.parent
		}
	}
	return s, nil
}

func (s *pgServer) close() {
	_ = s.admin.Close(context.Background())
}

// schema is the schema of a contender's tables, unless several keep theirs.
const schema = "bench"

// field is a fresh schema, and connections to it.
type field struct {
	server  *pgServer
	schema  string
	pool    *pgxpool.Pool
	counter *statementCounter
}

// fieldConns is the maximum number of connections of a contender.
const fieldConns = 16

// fresh drops the last turn's tables and returns an empty schema.
func (s *pgServer) fresh(ctx context.Context) (*field, error) {
	for _, statement := range []string{`DROP SCHEMA IF EXISTS ` + s.schema + ` CASCADE`, `CREATE SCHEMA ` + s.schema} {
		if _, err := s.admin.Exec(ctx, statement); err != nil {
			return nil, err
		}
	}
	return s.attach(ctx)
}

// attach returns a field over a schema that exists.
func (s *pgServer) attach(ctx context.Context) (*field, error) {
	f := &field{server: s, schema: s.schema, counter: &statementCounter{detailed: s.detailed}}
	config := s.config.Copy()
	config.ConnConfig.RuntimeParams["search_path"] = f.schema
	config.MaxConns = fieldConns
	config.ConnConfig.Tracer = f.counter
	var err error
	f.pool, err = pgxpool.NewWithConfig(ctx, config)
	return f, err
}

func (f *field) close() { f.pool.Close() }

// sql returns a database/sql handle to the same schema, over the same driver.
func (f *field) sql() *sql.DB {
	db := stdlib.OpenDB(*f.pool.Config().ConnConfig)
	db.SetMaxOpenConns(fieldConns)
	db.SetMaxIdleConns(fieldConns)
	return db
}

// calm keeps the leftovers of loading from slowing the drain.
func (f *field) calm(ctx context.Context) error {
	rows, err := f.server.admin.Query(ctx, `SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables WHERE schemaname = $1`, f.schema)
	if err != nil {
		return err
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, table := range tables {
		if _, err := f.server.admin.Exec(ctx, `ANALYZE `+table); err != nil {
			return err
		}
	}
	f.counter.forget()
	_, err = f.server.admin.Exec(ctx, `CHECKPOINT`)
	return err
}

// exec runs statements that create tables.
func (f *field) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := f.pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// gauge reads the counters of a turn.
func (f *field) gauge(ctx context.Context) (gauge, error) {
	g := gauge{statements: f.counter.n.Load(), server: treeCPU(f.server.postmaster), own: ownCPU(), machine: machineCPU()}
	err := f.server.admin.QueryRow(ctx, `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint`).Scan(&g.wal)
	return g, err
}

// statements returns a function that lists the statements of a turn, if
// requested.
func (f *field) statements() func(out io.Writer) {
	if !f.counter.detailed {
		return nil
	}
	return func(out io.Writer) { f.counter.write(out, listed) }
}

// listed is the maximum number of listed statements.
const listed = 8

// until polls the database until the result is true. It detects when a
// contender that does not report it has acknowledged everything.
func (f *field) until(ctx context.Context, query string, args ...any) error {
	for {
		var done bool
		if err := f.server.admin.QueryRow(ctx, query, args...).Scan(&done); err != nil {
			return err
		}
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(askAgain):
		}
	}
}

const askAgain = 2 * time.Millisecond

// holdSnapshot opens a transaction on a connection of its own that keeps rows
// deleted from now on visible, and so prevents their cleanup; with an xid it is
// also a transaction that others may wait for. end ends it.
func (s *pgServer) holdSnapshot(ctx context.Context, xid bool) (end func(), err error) {
	conn, err := pgx.ConnectConfig(ctx, s.config.ConnConfig.Copy())
	if err != nil {
		return nil, err
	}
	begin, look := `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`, `SELECT count(*) FROM pg_class`
	if xid {
		begin, look = `BEGIN ISOLATION LEVEL REPEATABLE READ`, `SELECT pg_current_xact_id()`
	}
	for _, statement := range []string{begin, look} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			_ = conn.Close(ctx)
			return nil, err
		}
	}
	return func() { _ = conn.Close(context.Background()) }, nil
}

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
	admin      *pgx.Conn // what measures; never what is measured
	version    string
	number     int    // 150018 is version 15.18
	postmaster int    // process id; 0: elsewhere
	detailed   bool   // list statements
	schema     string // of the next field
}

func connectPostgres(ctx context.Context) (*pgServer, error) {
	config, err := pgxpool.ParseConfig(os.Getenv(testserver.EnvPostgres))
	if err != nil {
		return nil, err
	}
	// The names that statements do not qualify are in the schema of the turn.
	config.ConnConfig.RuntimeParams["search_path"] = schema
	config.ConnConfig.RuntimeParams["timezone"] = "UTC" // oagudo/outbox compares with times of the connection's zone
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

// schema is where a contender has its tables, unless several keep theirs.
const schema = "bench"

// field is a fresh schema, and connections to it.
type field struct {
	server  *pgServer
	schema  string
	pool    *pgxpool.Pool
	counter *statementCounter
}

// fieldConns is how many connections a contender may have.
const fieldConns = 16

// fresh throws the last turn's tables away and returns an empty schema.
func (s *pgServer) fresh(ctx context.Context) (*field, error) {
	f := &field{server: s, schema: s.schema, counter: &statementCounter{detailed: s.detailed}}
	for _, statement := range []string{`DROP SCHEMA IF EXISTS ` + f.schema + ` CASCADE`, `CREATE SCHEMA ` + f.schema} {
		if _, err := s.admin.Exec(ctx, statement); err != nil {
			return nil, err
		}
	}
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

// calm lets what loading left behind not be the drain's burden.
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

// exec runs statements that make tables.
func (f *field) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := f.pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// gauge reads the counters that a turn moves.
func (f *field) gauge(ctx context.Context) (gauge, error) {
	g := gauge{statements: f.counter.n.Load(), server: treeCPU(f.server.postmaster), own: ownCPU(), machine: machineCPU()}
	err := f.server.admin.QueryRow(ctx, `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint`).Scan(&g.wal)
	return g, err
}

// statements returns what lists the statements of a turn, if that was asked for.
func (f *field) statements() func(out io.Writer) {
	if !f.counter.detailed {
		return nil
	}
	return func(out io.Writer) { f.counter.write(out, listed) }
}

// listed is how many statements are worth looking at.
const listed = 8

// until asks the database again and again until the answer is true. It is how a contender that does not say so itself is seen
// to have acknowledged everything.
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

// holdSnapshot opens a transaction on a connection of its own that keeps what is deleted from now on visible, and with it from
// being cleaned up; with an xid it is also a transaction that others may wait for. end ends it.
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

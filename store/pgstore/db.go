package pgstore

import (
	"context"
	"database/sql"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
)

// database is the part of a pool that both stores need, so that one set of
// statements serves pgx and database/sql.
type database interface {
	exec(ctx context.Context, query string, args ...any) error
	// changed runs a statement and returns the number of changed rows.
	// RETURNING would report the same number, but the server first writes the
	// returned rows into a tuple store.
	changed(ctx context.Context, query string, args ...any) (int64, error)
	query(ctx context.Context, query string, args ...any) (rows, error)
	// ordered is query for statements that must follow an index from a given
	// position, regardless of the planner's statistics; see walkIndex.
	ordered(ctx context.Context, query string, args ...any) (rows, error)
	// within runs fn in a READ COMMITTED transaction, regardless of the
	// server's default.
	within(ctx context.Context, fn func(database) error) error
	encoder
}

// encoder turns values into arguments. pgx accepts slices; other drivers get
// the text form of an array.
type encoder interface {
	ids(ids []waybill.ID) any
	int16s(ns []int16) any
	int32s(ns []int32) any
	int64s(ns []int64) any
	bools(bs []bool) any
	texts(ss []string) any
	scanID(id *waybill.ID) any
}

type rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close()
}

// pgxDB is a database over pgx: a pool or a transaction.
type pgxDB struct{ q pgxQuerier }

type pgxQuerier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

func (d pgxDB) exec(ctx context.Context, query string, args ...any) error {
	_, err := d.q.Exec(ctx, query, args...)
	return err
}

func (d pgxDB) changed(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := d.q.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (d pgxDB) query(ctx context.Context, query string, args ...any) (rows, error) {
	return d.q.Query(ctx, query, args...) //nolint:sqlclosecheck // collect closes it
}

// walkIndex keeps the planner from reading and sorting a whole lane. An outbox
// is empty most of the time, and a plan or statistics from that time would be
// used on the next backlog of a million rows. With these settings one plan fits
// all arguments, and the server keeps it. Otherwise the server would plan a
// read of fewer lanes than expected anew each time, which took longer than the
// read. walkIndex is sent in front of the statement, in the same round trip and
// the same implicit transaction, and its effect ends with that transaction.
const walkIndex = `SELECT set_config('enable_sort', 'off', true), set_config('enable_seqscan', 'off', true),
 set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true)`

func (d pgxDB) ordered(ctx context.Context, query string, args ...any) (rows, error) {
	return d.walk(ctx, query, args...)
}

func (d pgxDB) walk(ctx context.Context, query string, args ...any) (*sharedRows, error) {
	batch := &pgx.Batch{}
	batch.Queue(walkIndex)
	batch.Queue(query, args...)
	results := d.q.SendBatch(ctx, batch)
	if _, err := results.Exec(); err != nil {
		_ = results.Close()
		return nil, err
	}
	r, err := results.Query()
	if err != nil {
		_ = results.Close()
		return nil, err
	}
	return &sharedRows{Rows: r, results: results}, nil
}

func (d pgxDB) within(ctx context.Context, fn func(database) error) error {
	pool := d.q.(*pgxpool.Pool)
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		return fn(pgxDB{tx})
	})
}

func (pgxDB) ids(ids []waybill.ID) any  { return uuids(ids) }
func (pgxDB) int16s(ns []int16) any     { return ns }
func (pgxDB) int32s(ns []int32) any     { return ns }
func (pgxDB) int64s(ns []int64) any     { return ns }
func (pgxDB) bools(bs []bool) any       { return bs }
func (pgxDB) texts(ss []string) any     { return ss }
func (pgxDB) scanID(id *waybill.ID) any { return (*scanUUID)(id) }

// scanUUID lets pgx scan a uuid directly into an id. NULL is the zero id.
type scanUUID waybill.ID

// ScanUUID implements pgtype.UUIDScanner.
func (id *scanUUID) ScanUUID(v pgtype.UUID) error {
	*id = scanUUID(v.Bytes)
	return nil
}

func uuids(ids []waybill.ID) []pgtype.UUID {
	out := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		out[i] = pgtype.UUID{Bytes: id, Valid: true}
	}
	return out
}

// sqlDB is a database over database/sql with any driver.
type sqlDB struct{ q sqlQuerier }

type sqlQuerier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func (d sqlDB) exec(ctx context.Context, query string, args ...any) error {
	_, err := d.q.ExecContext(ctx, query, args...)
	return err
}

func (d sqlDB) changed(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := d.q.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (d sqlDB) query(ctx context.Context, query string, args ...any) (rows, error) {
	r, err := d.q.QueryContext(ctx, query, args...) //nolint:rowserrcheck // collect checks it
	if err != nil {
		return nil, err
	}
	return sqlRows{r}, nil
}

func (d sqlDB) ordered(ctx context.Context, query string, args ...any) (rows, error) {
	db, ok := d.q.(*sql.DB)
	if !ok {
		return d.query(ctx, query, args...)
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	var r *sql.Rows
	if _, err = tx.ExecContext(ctx, walkIndex); err == nil {
		r, err = tx.QueryContext(ctx, query, args...) //nolint:rowserrcheck // collect does
	}
	if err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return &txRows{sqlRows{r}, tx}, nil
}

// txRows are rows that own their transaction.
type txRows struct {
	sqlRows
	tx *sql.Tx
}

// Close closes the rows and rolls back their read-only transaction.
func (r *txRows) Close() {
	r.sqlRows.Close()
	_ = r.tx.Rollback()
}

func (d sqlDB) within(ctx context.Context, fn func(database) error) error {
	tx, err := d.q.(*sql.DB).BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // harmless after the commit
	if err := fn(sqlDB{tx}); err != nil {
		return err
	}
	return tx.Commit()
}

type sqlRows struct{ *sql.Rows }

func (r sqlRows) Close() { _ = r.Rows.Close() }

func (sqlDB) ids(ids []waybill.ID) any {
	return array(ids, func(id waybill.ID) string { return id.UUID() })
}

func (sqlDB) int16s(ns []int16) any {
	return array(ns, func(n int16) string { return strconv.Itoa(int(n)) })
}

func (sqlDB) int32s(ns []int32) any {
	return array(ns, func(n int32) string { return strconv.Itoa(int(n)) })
}

func (sqlDB) int64s(ns []int64) any {
	return array(ns, func(n int64) string { return strconv.FormatInt(n, 10) })
}
func (sqlDB) bools(bs []bool) any       { return array(bs, strconv.FormatBool) }
func (sqlDB) texts(ss []string) any     { return array(ss, quoteElement) }
func (sqlDB) scanID(id *waybill.ID) any { return (*scanText)(id) }

// array returns the text form of an array, which every driver can send.
func array[E any](elements []E, text func(E) string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, e := range elements {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(text(e))
	}
	b.WriteByte('}')
	return b.String()
}

// quoteElement quotes a text for the text form of an array.
func quoteElement(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// scanText lets database/sql scan the text of a uuid into an id. NULL is the
// zero id.
type scanText waybill.ID

// Scan implements sql.Scanner.
func (id *scanText) Scan(src any) error {
	if src == nil {
		*id = scanText{}
		return nil
	}
	var u pgtype.UUID
	if b, ok := src.([]byte); ok {
		src = string(b)
	}
	if err := u.Scan(src); err != nil {
		return err
	}
	*id = scanText(u.Bytes)
	return nil
}

// seconds returns a duration as an argument for "$n * interval '1 second'".
func seconds(d time.Duration) float64 { return d.Seconds() }

// collect scans all rows and calls scan after each row.
func collect(r rows, err error, scan func() error, dest ...any) error {
	if err != nil {
		return err
	}
	defer r.Close()
	for r.Next() {
		if err := r.Scan(dest...); err != nil {
			return err
		}
		if err := scan(); err != nil {
			return err
		}
	}
	return r.Err()
}

package pgstore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybillhq/waybill"
)

// guard is the pgx.Tx that InTx passes to its function, or a savepoint in that
// transaction. It sends buffered events in front of every statement, and does
// not let the caller end the transaction.
type guard struct {
	s         *session
	parent    *guard
	savepoint string
	done      bool
}

var _ pgx.Tx = (*guard)(nil)

// usable returns nil while the transaction and every enclosing savepoint are
// open.
func (g *guard) usable() error {
	if g.s.over || g.s.ending {
		return fmt.Errorf("%w: %w", waybill.ErrTxDone, pgx.ErrTxClosed)
	}
	for p := g; p != nil; p = p.parent {
		if p.done {
			return fmt.Errorf("%w: %w", waybill.ErrTxDone, pgx.ErrTxClosed)
		}
	}
	return nil
}

// atCommit adds the last statement of the transaction. It reports false if the
// transaction has not begun or has a last statement, and for a savepoint.
func (g *guard) atCommit(last func() *lastStatement) (bool, error) {
	if g.parent != nil || !g.s.begun || g.s.last != nil {
		return false, nil
	}
	if err := g.usable(); err != nil {
		return false, err
	}
	g.s.last = last()
	return true, nil
}

// Begin sets a savepoint.
func (g *guard) Begin(ctx context.Context) (pgx.Tx, error) {
	g.s.savepoints++
	inner := &guard{s: g.s, parent: g, savepoint: "waybill_" + strconv.Itoa(g.s.savepoints)}
	if _, err := g.Exec(ctx, "savepoint "+inner.savepoint); err != nil {
		return nil, err
	}
	return inner, nil
}

// Commit releases a savepoint. InTx commits the transaction itself.
func (g *guard) Commit(ctx context.Context) error {
	if g.parent == nil {
		return g.owned()
	}
	if err := g.usable(); err != nil {
		return err
	}
	_, err := g.Exec(ctx, "release savepoint "+g.savepoint)
	g.done = true
	return err
}

// Rollback rolls back to a savepoint. InTx rolls back the transaction itself.
func (g *guard) Rollback(ctx context.Context) error {
	if g.parent == nil {
		return g.owned()
	}
	if err := g.usable(); err != nil {
		return err
	}
	g.done = true
	g.s.revoked = true
	if _, err := g.s.conn.Exec(ctx, "rollback to savepoint "+g.savepoint); err != nil {
		// The statement may not have reached the server. In that case the
		// changes after the savepoint remain, and so do the events.
		return err
	}
	// Setting the savepoint sent all events in front of it, so the buffered
	// events were written after the savepoint and can be dropped unsent.
	g.s.drop()
	return nil
}

func (g *guard) owned() error {
	if err := g.usable(); err != nil {
		return err
	}
	return fmt.Errorf("%w: return from the InTx function instead; return an error to roll back", waybill.ErrTxOwned)
}

// ends matches statements that would end the transaction of InTx. goesTo
// matches the subset that only rolls back to a savepoint.
var (
	ends   = regexp.MustCompile(`(?i)^[\s(]*(commit|end|abort|rollback|prepare\s+transaction)\b`)
	goesTo = regexp.MustCompile(`(?i)^[\s(]*rollback\s+((work|transaction)\s+)?to\b`)
)

// mayEnd is a fast check of whether ends can match. It runs for every
// statement, and nearly all statements begin with another letter.
func mayEnd(sql string) bool {
	sql = strings.TrimLeft(sql, " \t\r\n\f\v(")
	return sql != "" && strings.IndexByte("ceaprCEAPR", sql[0]) >= 0
}

// mayRevoke reports whether a text contains "rollback", in any case.
func mayRevoke(sql string) bool {
	const word = "rollback"
	for i := 0; i+len(word) <= len(sql); i++ {
		if sql[i]|0x20 == 'r' && strings.EqualFold(sql[i:i+len(word)], word) {
			return true
		}
	}
	return false
}

// watch inspects a statement before it is sent. It inspects only the text: a
// ROLLBACK TO inside a string literal counts as a rollback, which costs one
// extra query at the commit and has no other effect.
func (g *guard) watch(sql string) error {
	if err := g.usable(); err != nil {
		return err
	}
	if mayEnd(sql) && ends.MatchString(sql) && !goesTo.MatchString(sql) {
		return g.owned()
	}
	if mayRevoke(sql) {
		g.s.revoked = true
	}
	return nil
}

// rides reports whether a statement can share a round trip with buffered
// events. A text with several statements cannot, and neither can arguments that
// change the protocol.
func rides(sql string, args []any) bool {
	if len(args) > 0 {
		switch args[0].(type) {
		case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
			return false
		}
		return true
	}
	return !strings.Contains(strings.TrimRight(sql, "; \t\r\n"), ";")
}

// front sends the buffered events if the statement cannot share their round
// trip, and reports whether it can.
func (g *guard) front(ctx context.Context, sql string, args []any) (shared bool, err error) {
	if err := g.watch(sql); err != nil {
		return false, err
	}
	switch {
	case !g.s.pending():
		return false, nil
	case rides(sql, args):
		return true, nil
	}
	return false, g.s.flush(ctx)
}

// Exec implements pgx.Tx.
func (g *guard) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	shared, err := g.front(ctx, sql, args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	if !shared {
		return g.s.conn.Exec(ctx, sql, args...)
	}
	behind := &pgx.Batch{}
	behind.Queue(sql, args...)
	results, err := g.s.send(ctx, behind)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := results.Exec()
	if cerr := results.Close(); err == nil {
		err = cerr
	}
	return tag, err
}

// Query implements pgx.Tx.
func (g *guard) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	shared, err := g.front(ctx, sql, args)
	if err != nil {
		return failedRows{err}, err
	}
	if !shared {
		return g.s.conn.Query(ctx, sql, args...)
	}
	behind := &pgx.Batch{}
	behind.Queue(sql, args...)
	results, err := g.s.send(ctx, behind)
	if err != nil {
		return failedRows{err}, err
	}
	rows, err := results.Query()
	if err != nil {
		_ = results.Close()
		return failedRows{err}, err
	}
	return &sharedRows{Rows: rows, results: results}, nil
}

// QueryRow implements pgx.Tx.
func (g *guard) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := g.Query(ctx, sql, args...)
	return oneRow{rows, err}
}

// SendBatch implements pgx.Tx.
func (g *guard) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		if err := g.watch(q.SQL); err != nil {
			return pgx.FailedBatchResults(b, err)
		}
	}
	if err := g.usable(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	if begins(b) {
		return pgx.FailedBatchResults(b, errBegins)
	}
	if len(b.QueuedQueries) == 0 || !g.s.pending() {
		return g.s.conn.SendBatch(ctx, b)
	}
	results, err := g.s.send(ctx, b)
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return results
}

// errBegins rejects a batch that pgx also rejects inside a transaction.
var errBegins = errors.New("pgstore: Batch.BeginTx cannot be used within a transaction: use Begin for a savepoint")

// begins reports whether a batch begins a transaction. The server would only
// warn and continue in the open transaction, but the results would return a
// transaction of pgx's own, whose Commit commits the transaction of InTx. pgx
// does not export the flag, but shows it in the results of a batch that was
// never sent.
func begins(b *pgx.Batch) bool {
	return pgx.FailedBatchResults(b, errBegins).Tx() != nil
}

// CopyFrom implements pgx.Tx.
func (g *guard) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if err := g.usable(); err != nil {
		return 0, err
	}
	if err := g.s.flush(ctx); err != nil {
		return 0, err
	}
	return g.s.conn.CopyFrom(ctx, table, columns, src)
}

// Prepare implements pgx.Tx. It changes nothing, so no events are sent in front
// of it.
func (g *guard) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := g.usable(); err != nil {
		return nil, err
	}
	return g.s.conn.Conn().Prepare(ctx, name, sql)
}

// LargeObjects implements pgx.Tx. Large objects need a transaction of pgx's
// own, which is created here. Its BEGIN is a statement without effect, because
// the transaction has already begun.
func (g *guard) LargeObjects() pgx.LargeObjects {
	g.expose()
	ctx, cancel := context.WithTimeout(g.s.base, exposeTimeout)
	defer cancel()
	tx, err := g.s.conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: "select"})
	if err != nil {
		g.s.fail(err)
		return pgx.LargeObjects{}
	}
	return tx.LargeObjects()
}

// Conn implements pgx.Tx. The store cannot see what the caller does with the
// connection, so all buffered events are sent first, and the commit checks
// which events still exist.
func (g *guard) Conn() *pgx.Conn {
	g.expose()
	return g.s.conn.Conn()
}

// exposeTimeout bounds the flush in methods that take no context.
const exposeTimeout = 30 * time.Second

func (g *guard) expose() {
	if g.usable() != nil {
		return
	}
	g.s.revoked = true
	ctx, cancel := context.WithTimeout(g.s.base, exposeTimeout)
	defer cancel()
	if err := g.s.flush(ctx); err != nil {
		g.s.fail(err) // the commit is the only place that can report the error
	}
}

// fail makes the commit report an error that the caller has not seen. A
// savepoint does not repair this error, because the caller may set a savepoint
// in front of buffered events through the connection itself. A transaction that
// the server has aborted needs no record here: the server keeps that state, and
// knows which rollback to a savepoint repairs it.
func (s *session) fail(err error) {
	if s.failed == nil && s.status() != aborted {
		s.failed = err
	}
}

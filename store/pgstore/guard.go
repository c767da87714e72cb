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

// guard is the pgx.Tx that InTx gives out, or a savepoint in it. It sends waiting events in front of everything, and does not
// let the caller end what is not his.
type guard struct {
	s         *session
	parent    *guard
	savepoint string
	done      bool
}

var _ pgx.Tx = (*guard)(nil)

// usable returns nil while the transaction, and every savepoint around this one, is open.
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

// Begin sets a savepoint.
func (g *guard) Begin(ctx context.Context) (pgx.Tx, error) {
	g.s.savepoints++
	inner := &guard{s: g.s, parent: g, savepoint: "waybill_" + strconv.Itoa(g.s.savepoints)}
	if _, err := g.Exec(ctx, "savepoint "+inner.savepoint); err != nil {
		return nil, err
	}
	return inner, nil
}

// Commit releases a savepoint. The transaction itself belongs to InTx.
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

// Rollback goes back to a savepoint. The transaction itself belongs to InTx.
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
		// It may never have reached the server. Then what was done behind the savepoint stays, and so do the events.
		return err
	}
	// What waits was written behind the savepoint: setting it sent everything in front of it. It need not be sent to be
	// taken back.
	g.s.drop()
	return nil
}

func (g *guard) owned() error {
	if err := g.usable(); err != nil {
		return err
	}
	return fmt.Errorf("%w: return from its function instead, with an error to roll back", waybill.ErrTxOwned)
}

// ends matches statements that would end the transaction under InTx, goesTo those of them that only go back to a savepoint.
var (
	ends   = regexp.MustCompile(`(?i)^[\s(]*(commit|end|abort|rollback|prepare\s+transaction)\b`)
	goesTo = regexp.MustCompile(`(?i)^[\s(]*rollback\s+((work|transaction)\s+)?to\b`)
)

// mayEnd is a quick look at whether ends can match: it runs for every statement, and nearly all begin with another letter.
func mayEnd(sql string) bool {
	sql = strings.TrimLeft(sql, " \t\r\n\f\v(")
	return sql != "" && strings.IndexByte("ceaprCEAPR", sql[0]) >= 0
}

// mayRevoke reports whether a text contains "rollback", in whatever case.
func mayRevoke(sql string) bool {
	const word = "rollback"
	for i := 0; i+len(word) <= len(sql); i++ {
		if sql[i]|0x20 == 'r' && strings.EqualFold(sql[i:i+len(word)], word) {
			return true
		}
	}
	return false
}

// watch looks at a statement before it is sent. It sees text only: a ROLLBACK TO that hides in a string is taken for one,
// which costs a question at the commit and nothing else.
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

// rides reports whether a statement can share a round trip with what waits. Several statements in one text, and arguments
// that change the protocol, cannot.
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

// front sends what waits, in front of a statement that cannot share its round trip, and reports whether it can.
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

// errBegins refuses what pgx refuses in a transaction of its own.
var errBegins = errors.New("pgstore: Batch.BeginTx cannot be used within a transaction: use Begin for a savepoint")

// begins reports whether a batch was told to begin a transaction. The server would only warn and go on in the one that
// is open, but the results would hand out a transaction of pgx's own, whose Commit commits what belongs to InTx. pgx keeps
// the mark to itself, and shows it in the results of a batch that was never sent.
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

// Prepare implements pgx.Tx. It changes nothing, so nothing has to go in front of it.
func (g *guard) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := g.usable(); err != nil {
		return nil, err
	}
	return g.s.conn.Conn().Prepare(ctx, name, sql)
}

// LargeObjects implements pgx.Tx. They work on a transaction of pgx's own, which is made here: its BEGIN is a statement that does
// nothing, because the transaction has begun.
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

// Conn implements pgx.Tx. What is done with the connection itself cannot be seen, so everything goes out first, and the commit
// asks which events are still there.
func (g *guard) Conn() *pgx.Conn {
	g.expose()
	return g.s.conn.Conn()
}

// exposeTimeout bounds the flush of methods that take no context.
const exposeTimeout = 30 * time.Second

func (g *guard) expose() {
	if g.usable() != nil {
		return
	}
	g.s.revoked = true
	ctx, cancel := context.WithTimeout(g.s.base, exposeTimeout)
	defer cancel()
	if err := g.s.flush(ctx); err != nil {
		g.s.fail(err) // there is no other way to report it than at the commit
	}
}

// fail makes the commit report an error that the caller has not seen. No savepoint mends it: what is done through the connection
// itself may set one in front of events that wait. A transaction that the server has aborted needs no note: the server
// remembers it, and knows what a rollback to a savepoint mends.
func (s *session) fail(err error) {
	if s.failed == nil && s.status() != aborted {
		s.failed = err
	}
}

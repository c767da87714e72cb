package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// Transaction states, as the connection reports them.
const (
	idle    = 'I' // no transaction
	open    = 'T' // in a transaction
	aborted = 'E' // a statement failed; the transaction needs a rollback
)

// waitBytes is the maximum size of the events that wait for the next round
// trip.
const waitBytes = 4 << 20

// session is a transaction of InTx on pgx. Written events are buffered until
// the next round trip of the transaction.
//
// Buffered events keep their place in the transaction: they are sent in front
// of whatever the caller does next. An event that overtook a statement, or was
// overtaken by a savepoint, would be in the wrong part of the transaction, and
// an event that waited for a COMMIT that the caller sends would be lost.
//
// BEGIN is buffered too, and sent in front of the first round trip. A
// transaction without statements never reaches the server.
type session struct {
	store *pgxBackend
	conn  *pgxpool.Conn
	begin string          // the statement that begins the transaction
	base  context.Context // for flushes without a context of their own
	guard *guard
	lanes int
	begun bool

	waiting []batch
	size    int
	// failed is the error of a flush before the connection was exposed.
	failed  error
	flushed []waybill.ID // sent and accepted
	dropped []waybill.ID // rolled back before they were sent
	// revoked means that a rollback to a savepoint may have removed accepted
	// events.
	revoked    bool
	savepoints int
	// first is the key that the first round trip took, if its answer creates
	// the record.
	first *firstTake
	// last is sent in front of the COMMIT.
	last *lastStatement
	// ending means that the commit is under way: events written now would never
	// be sent.
	ending bool
	over   bool
}

// lastStatement is the last statement of a transaction. It is sent with the
// COMMIT. If the transaction must not be committed, the statement fails, and
// the server skips the COMMIT.
type lastStatement struct {
	query   string
	args    []any
	explain func(error) error
}

// divisionByZero is the code with which a lastStatement fails if a condition of
// the commit is not met.
const divisionByZero = "22012"

// batch is the events of one Write.
type batch struct {
	evs      []waybill.Event
	accepted func([]driver.AppendResult)
}

// Begin implements [driver.Beginner].
func (s *pgxBackend) Begin(ctx context.Context, opts *sql.TxOptions) (driver.Session[pgx.Tx], error) {
	begin, err := beginSQL(opts)
	if err != nil {
		return nil, err
	}
	lanes, err := s.laneCount(ctx, s.db)
	if err != nil {
		return nil, err
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	sess := &session{store: s, conn: conn, begin: begin, base: context.WithoutCancel(ctx), lanes: lanes}
	sess.guard = &guard{s: sess}
	return sess, nil
}

// beginSQL translates database/sql's options.
func beginSQL(opts *sql.TxOptions) (string, error) {
	begin := "begin"
	if opts == nil {
		return begin, nil
	}
	switch opts.Isolation {
	case sql.LevelDefault:
	case sql.LevelReadUncommitted:
		begin += " isolation level read uncommitted"
	case sql.LevelReadCommitted:
		begin += " isolation level read committed"
	case sql.LevelRepeatableRead, sql.LevelSnapshot:
		begin += " isolation level repeatable read"
	case sql.LevelSerializable:
		begin += " isolation level serializable"
	case sql.LevelWriteCommitted, sql.LevelLinearizable:
		return "", fmt.Errorf("pgstore: PostgreSQL has no isolation level %s", opts.Isolation)
	default:
		return "", fmt.Errorf("pgstore: unknown isolation level %d", opts.Isolation)
	}
	if opts.ReadOnly {
		begin += " read only"
	}
	return begin, nil
}

func (s *session) Tx() pgx.Tx { return s.guard }

func (s *session) Owns(tx pgx.Tx) bool {
	g, ok := tx.(*guard)
	return ok && g.s == s
}

// status returns the transaction state that the connection reports.
func (s *session) status() byte { return s.conn.Conn().PgConn().TxStatus() }

// busy reports whether the caller has not read a result to its end. A busy
// connection accepts no statement, and its transaction state is out of date.
func (s *session) busy() bool { return s.conn.Conn().PgConn().IsBusy() }

// pending reports whether events or the BEGIN wait for the next round trip.
func (s *session) pending() bool { return !s.begun || len(s.waiting) > 0 }

// Defer implements [driver.Deferrer].
func (s *session) Defer(ctx context.Context, tx pgx.Tx, evs []waybill.Event, accepted func([]driver.AppendResult)) error {
	if err := tx.(*guard).usable(); err != nil {
		return err
	}
	for _, ev := range evs {
		s.size += len(ev.Payload)
	}
	s.waiting = append(s.waiting, batch{evs, accepted})
	if s.size > waitBytes {
		return s.flush(ctx)
	}
	return nil
}

// flush sends the buffered events in a separate round trip.
func (s *session) flush(ctx context.Context) error {
	if !s.pending() {
		return nil
	}
	results, err := s.send(ctx, &pgx.Batch{})
	if err != nil {
		return err
	}
	return results.Close()
}

// send sends the buffered events and then the given statements, in one round
// trip, and reads the results of the events. On an error the results are
// closed.
func (s *session) send(ctx context.Context, behind *pgx.Batch) (pgx.BatchResults, error) {
	if s.status() == aborted && !s.busy() {
		// The aborted transaction accepts no more events. The caller's next
		// statement may be the ROLLBACK TO that repairs it. The buffered events
		// were written after that savepoint, since setting a savepoint sends
		// everything in front of it.
		s.drop()
	}
	front := s.compose()
	all := &pgx.Batch{}
	if !s.begun {
		all.Queue(s.begin)
	}
	for _, part := range front {
		if part.err != nil {
			return nil, part.err
		}
		all.Queue(part.query, part.args...)
	}
	all.QueuedQueries = append(all.QueuedQueries, behind.QueuedQueries...)
	results := s.conn.SendBatch(ctx, all)
	if err := s.readFront(results, front); err != nil {
		_ = results.Close()
		if !s.unsent() {
			s.drop()
		}
		return nil, s.store.hint(ended(err))
	}
	s.accept(front)
	return results, nil
}

// unsent reports, after a failed round trip, whether the server has seen
// nothing of it: the connection is alive, and the transaction is unchanged. The
// causes are a context that had ended, an argument that could not be encoded, a
// statement that could not be prepared outside the transaction while its BEGIN
// is still buffered, or a busy connection. The events stay buffered: a COMMIT
// without them would lose them, and so would a COMMIT after a rollback to an
// unrelated savepoint.
func (s *session) unsent() bool {
	if s.conn.Conn().IsClosed() {
		return false
	}
	if s.busy() {
		return true
	}
	if !s.begun {
		return s.status() == idle
	}
	return s.status() == open
}

// readFront reads the results of BEGIN, if it was sent, and of the events.
func (s *session) readFront(results pgx.BatchResults, front []part) error {
	if !s.begun {
		if _, err := results.Exec(); err != nil {
			return err
		}
		s.begun = true
	}
	for i := range front {
		if err := front[i].read(s.store.core, results); err != nil {
			return err
		}
	}
	return nil
}

// part is one statement of a flush.
type part struct {
	evs    []waybill.Event
	placed []driver.AppendResult
	query  string
	args   []any
	err    error
}

// compose merges the buffered events into as few statements as possible.
func (s *session) compose() []part {
	if len(s.waiting) == 0 {
		return nil
	}
	evs := s.waiting[0].evs
	if len(s.waiting) > 1 {
		evs = nil
		for _, b := range s.waiting {
			evs = append(evs, b.evs...)
		}
	}
	var parts []part
	for _, chunk := range chunks(evs) {
		p := part{evs: chunk, placed: s.store.place(chunk, s.lanes)}
		p.query, p.args, p.err = s.store.insert(chunk, p.placed, s.lanes)
		parts = append(parts, p)
	}
	return parts
}

// read reads the result of a part. An absorbed event gets the zero id, because
// the holder of its key is unknown.
func (p *part) read(c *core, results pgx.BatchResults) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			return err
		}
		c.answer(p.evs, p.placed, n)
	}
	rows.Close()
	return rows.Err()
}

// accept notifies the writers that the transaction contains their events.
func (s *session) accept(parts []part) {
	if len(parts) == 0 {
		return
	}
	placed := parts[0].placed
	if len(parts) > 1 {
		placed = nil
		for _, p := range parts {
			placed = append(placed, p.placed...)
		}
	}
	waiting := s.waiting
	s.waiting, s.size = nil, 0
	for _, b := range waiting {
		mine := placed[:len(b.evs):len(b.evs)]
		placed = placed[len(b.evs):]
		for i, ev := range b.evs {
			if mine[i].ID == ev.ID {
				s.flushed = append(s.flushed, ev.ID)
			}
		}
		if b.accepted != nil {
			b.accepted(mine)
		}
	}
}

// drop discards the buffered events, which were rolled back before they were
// sent.
func (s *session) drop() {
	for _, b := range s.waiting {
		for _, ev := range b.evs {
			s.dropped = append(s.dropped, ev.ID)
		}
	}
	s.waiting, s.size = nil, 0
}

// Commit implements [driver.Session]. The buffered events, the check for
// surviving events if one is needed, and the COMMIT are one round trip with one
// Sync: if the INSERT fails, the server skips the COMMIT.
func (s *session) Commit(ctx context.Context, _ []waybill.ID, _ bool) (driver.CommitInfo, error) {
	if s.over {
		return driver.CommitInfo{}, waybill.ErrTxDone
	}
	defer s.end()
	s.ending = true
	switch {
	case s.conn.Conn().IsClosed():
		return driver.CommitInfo{}, errors.New("pgstore: connection lost before the commit")
	case !s.begun && s.failed == nil && len(s.waiting) == 0:
		// Nothing was ever sent.
		return driver.CommitInfo{Undone: s.dropped, Checked: true}, nil
	case s.begun && s.status() == idle:
		return driver.CommitInfo{}, fmt.Errorf("%w: %w: ended inside InTx", waybill.ErrUncertain, waybill.ErrTxOwned)
	case s.failed != nil:
		_ = s.undo(ctx)
		return driver.CommitInfo{}, fmt.Errorf("pgstore: rolled back: sending events failed: %w", s.failed)
	}
	ending, err := s.commit(ctx)
	if err == nil {
		return ending, nil
	}
	if pg := s.conn.Conn().PgConn(); !pg.IsClosed() && pg.TxStatus() != idle {
		// The server did not reach the COMMIT, because an INSERT in front of it
		// failed.
		_ = s.undo(ctx)
		return driver.CommitInfo{}, s.store.explain(err)
	}
	if answeredNo(err) {
		return driver.CommitInfo{}, s.store.explain(err)
	}
	return driver.CommitInfo{}, fmt.Errorf("%w: commit: %w", waybill.ErrUncertain, err)
}

func (s *session) commit(ctx context.Context) (driver.CommitInfo, error) {
	ending := driver.CommitInfo{Checked: true}
	var tag pgconn.CommandTag
	var err error
	if !s.begun {
		// A COMMIT must not be sent in the same round trip as its BEGIN. If the
		// reply is lost, Committed searches for an open transaction, and a
		// request that the server has not read yet is not one.
		if err := s.flush(ctx); err != nil {
			return ending, err
		}
	}
	if !s.pending() && !s.revoked && s.last == nil {
		tag, err = s.conn.Exec(ctx, "commit")
	} else {
		tag, err = s.commitBehind(ctx, &ending)
	}
	if err == nil && tag.String() != "COMMIT" {
		// A statement failed, the caller ignored its error, and the server
		// answered COMMIT with ROLLBACK.
		err = pgx.ErrTxCommitRollback
	}
	ending.Undone = append(ending.Undone, s.dropped...)
	return ending, err
}

// commitBehind commits after the buffered events and after the last statement.
func (s *session) commitBehind(ctx context.Context, ending *driver.CommitInfo) (pgconn.CommandTag, error) {
	behind := &pgx.Batch{}
	// Events that are still buffered cannot have been rolled back.
	asked := s.flushed
	if s.revoked {
		behind.Queue(s.store.sql.present, uuids(asked))
	}
	if s.last != nil {
		behind.Queue(s.last.query, s.last.args...)
	}
	behind.Queue("commit")
	results, err := s.send(ctx, behind)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	defer results.Close() //nolint:errcheck // closed for good below; this is for the errors in between
	if s.revoked {
		there := make(map[waybill.ID]bool)
		rows, err := results.Query() //nolint:sqlclosecheck // collect closes it
		var id waybill.ID
		err = collect(rows, err, func() error { there[id] = true; return nil }, (*scanUUID)(&id))
		if err != nil {
			return pgconn.CommandTag{}, err
		}
		for _, id := range asked {
			if !there[id] {
				ending.Undone = append(ending.Undone, id)
			}
		}
	}
	if s.last != nil {
		if _, err := results.Exec(); err != nil {
			return pgconn.CommandTag{}, s.last.explain(err)
		}
	}
	tag, err := results.Exec()
	return tag, errors.Join(err, results.Close())
}

// Rollback implements [driver.Session].
func (s *session) Rollback(ctx context.Context) error {
	if s.over {
		return nil
	}
	defer s.end()
	s.drop()
	switch {
	case !s.begun, s.conn.Conn().IsClosed():
		return nil // the server rolls back the transaction of a lost client
	case s.status() == idle:
		return fmt.Errorf("%w: %w: ended inside InTx", waybill.ErrUncertain, waybill.ErrTxOwned)
	}
	return s.undo(ctx)
}

// undo rolls back the transaction on the server. If the rollback fails, the
// connection is closed.
func (s *session) undo(ctx context.Context) error {
	if s.conn.Conn().IsClosed() || s.status() == idle {
		return nil
	}
	_, err := s.conn.Exec(ctx, "rollback")
	if err != nil {
		_ = s.conn.Conn().Close(ctx)
	}
	return err
}

func (s *session) end() {
	s.over = true
	// The pool destroys a connection that is still in a transaction.
	s.conn.Release()
}

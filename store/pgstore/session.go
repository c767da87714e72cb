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
	"github.com/waybillhq/waybill/store"
)

// The connection's word for where its transaction stands.
const (
	idle    = 'I' // there is none
	open    = 'T' // it can go on
	aborted = 'E' // something failed; only a rollback helps
)

// waitBytes is how much may wait for the next round trip.
const waitBytes = 4 << 20

// session is a transaction of InTx on pgx. Events that are written wait for its next round trip.
//
// Waiting has a rule behind it: an event's place is where it was written. Whatever the caller does next, the events go out
// in front of it. An event that overtook a statement, or was overtaken by a savepoint, would end up in the wrong part of the
// transaction; one that waited for a COMMIT that the caller sent himself would be lost.
//
// BEGIN waits too: it goes out in front of the first round trip. A transaction that does nothing never reaches the server.
type session struct {
	store *Store
	conn  *pgxpool.Conn
	begin string          // the statement that begins the transaction
	base  context.Context // for flushes that come without a context of their own
	guard *guard
	lanes int
	begun bool

	waiting    []batch
	size       int
	failed     error        // the handle was given out though waiting events could not be sent in front of it
	flushed    []waybill.ID // sent and accepted
	dropped    []waybill.ID // never sent: taken back before their round trip came
	revoked    bool         // a rollback to a savepoint may have taken accepted events back
	savepoints int
	last       []any // arguments of keepLast, which goes out in front of the COMMIT
	ending     bool  // the commit is under way: what is written now would never be sent
	over       bool
}

// batch is the events of one Write.
type batch struct {
	evs      []waybill.Event
	accepted func([]store.AppendResult)
}

// Begin implements [store.Beginner].
func (s *Store) Begin(ctx context.Context, opts *sql.TxOptions) (store.Session[pgx.Tx], error) {
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

// status is where the connection says the transaction stands.
func (s *session) status() byte { return s.conn.Conn().PgConn().TxStatus() }

// busy reports whether the connection waits for the caller to read an answer to its end. It takes no statement meanwhile, and
// what it says about the transaction is from before.
func (s *session) busy() bool { return s.conn.Conn().PgConn().IsBusy() }

// pending reports whether something waits for the next round trip: events, or the BEGIN.
func (s *session) pending() bool { return !s.begun || len(s.waiting) > 0 }

// Defer implements [store.Deferrer].
func (s *session) Defer(ctx context.Context, tx pgx.Tx, evs []waybill.Event, accepted func([]store.AppendResult)) error {
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

// flush sends what waits, in a round trip of its own.
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

// send sends what waits and the given statements behind it, in one round trip, and reads the answers to the former. On an
// error the results are closed.
func (s *session) send(ctx context.Context, behind *pgx.Batch) (pgx.BatchResults, error) {
	if s.status() == aborted && !s.busy() {
		// Nothing can be written any more. What the caller sends may be the ROLLBACK TO that mends it; the events that
		// wait were written behind that savepoint, since setting one sends everything in front of it.
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

// unsent reports, behind a round trip that failed, whether the server has seen nothing of it: the connection lives, and the
// transaction is as it was. The context had ended, an argument could not be encoded, or a statement could not be prepared
// outside of the transaction, whose BEGIN waits too, or the connection was busy. The events wait on: a COMMIT without them would lose them, and so
// would one behind a rollback to a savepoint that has nothing to do with them.
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

// readFront reads the answers to BEGIN, if it was sent, and to the events.
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
	placed []store.AppendResult
	query  string
	args   []any
	err    error
}

// compose merges what waits into as few statements as it fits in.
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

// read reads the answer to a part. An event that was absorbed gets the zero id: who holds its key was not asked.
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

// accept tells who wrote the events that the transaction has them.
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

// drop forgets what waits: it was taken back before it was sent.
func (s *session) drop() {
	for _, b := range s.waiting {
		for _, ev := range b.evs {
			s.dropped = append(s.dropped, ev.ID)
		}
	}
	s.waiting, s.size = nil, 0
}

// Commit implements [store.Session]. What waits, the question for survivors if there is one, and the COMMIT are one round
// trip with one Sync: if the INSERT fails, the server skips the COMMIT.
func (s *session) Commit(ctx context.Context, _ []waybill.ID, _ bool) (store.CommitInfo, error) {
	if s.over {
		return store.CommitInfo{}, waybill.ErrTxDone
	}
	defer s.end()
	s.ending = true
	switch {
	case s.conn.Conn().IsClosed():
		return store.CommitInfo{}, errors.New("pgstore: the connection was lost before the commit")
	case !s.begun && s.failed == nil && len(s.waiting) == 0:
		return store.CommitInfo{Undone: s.dropped, Checked: true}, nil // nothing was ever sent
	case s.begun && s.status() == idle:
		return store.CommitInfo{}, fmt.Errorf("%w: %w: it was ended inside", waybill.ErrUncertain, waybill.ErrTxOwned)
	case s.failed != nil:
		_ = s.undo(ctx)
		return store.CommitInfo{}, fmt.Errorf("pgstore: rolled back, because events could not be sent: %w", s.failed)
	}
	ending, err := s.commit(ctx)
	if err == nil {
		return ending, nil
	}
	if pg := s.conn.Conn().PgConn(); !pg.IsClosed() && pg.TxStatus() != idle {
		// The server has not come to the COMMIT: an INSERT in front of it failed.
		_ = s.undo(ctx)
		return store.CommitInfo{}, s.store.explain(err)
	}
	if answeredNo(err) {
		return store.CommitInfo{}, s.store.explain(err)
	}
	return store.CommitInfo{}, fmt.Errorf("%w: commit: %w", waybill.ErrUncertain, err)
}

func (s *session) commit(ctx context.Context) (store.CommitInfo, error) {
	ending := store.CommitInfo{Checked: true}
	var tag pgconn.CommandTag
	var err error
	if !s.begun {
		// A COMMIT must not travel with its BEGIN. If its answer is lost, Committed looks for a transaction that is still open; a
		// request that the server has not read yet would not be one.
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
		// A statement has failed, its error was swallowed, and the server answers COMMIT with ROLLBACK.
		err = pgx.ErrTxCommitRollback
	}
	ending.Undone = append(ending.Undone, s.dropped...)
	return ending, err
}

// commitBehind commits behind what waits, and behind the answer of a key.
func (s *session) commitBehind(ctx context.Context, ending *store.CommitInfo) (pgconn.CommandTag, error) {
	behind := &pgx.Batch{}
	asked := s.flushed // what waits now cannot have been taken back
	if s.revoked {
		behind.Queue(s.store.sql.present, uuids(asked))
	}
	if s.last != nil {
		behind.Queue(s.store.sql.keepLast, s.last...)
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
			if sqlState(err) == divisionByZero {
				err = fmt.Errorf("%w: the transaction does not hold its key any more", waybill.ErrLeaseLost)
			}
			return pgconn.CommandTag{}, err
		}
	}
	tag, err := results.Exec()
	return tag, errors.Join(err, results.Close())
}

// divisionByZero is how keepLast fails.
const divisionByZero = "22012"

// Rollback implements [store.Session].
func (s *session) Rollback(ctx context.Context) error {
	if s.over {
		return nil
	}
	defer s.end()
	s.drop()
	switch {
	case !s.begun, s.conn.Conn().IsClosed():
		return nil // the server rolls back what its client has left
	case s.status() == idle:
		return fmt.Errorf("%w: %w: it was ended inside", waybill.ErrUncertain, waybill.ErrTxOwned)
	}
	return s.undo(ctx)
}

// undo rolls back what the server has. A connection on which that fails is of no use to anybody.
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
	s.conn.Release() // the pool destroys a connection that is still in a transaction
}

package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/internal/sqltx"
	"github.com/waybillhq/waybill/store/driver"
)

// encoder encodes ids and times for SQLite.
var encoder = eventrow.Encoder{
	ID:   idArg,
	Time: func(t time.Time) any { return micros(t) },
}

// Append implements [driver.Appender]. tx may belong to another [*sql.DB] on
// the same file.
func (s *backend) Append(ctx context.Context, tx *sql.Tx, evs []waybill.Event) ([]driver.AppendResult, error) {
	if len(evs) == 0 {
		return nil, nil
	}
	ctx, w, err := s.whose(ctx, tx)
	if err != nil {
		return nil, err
	}
	placed, err := s.append(ctx, txTarget{s, tx}, evs, w != nil)
	if err == nil && w != nil {
		w.took(evs, placed)
	}
	return placed, err
}

// whose returns the store's own write transaction if tx is that transaction,
// and the context for the following statements. It returns an error for a
// read-only transaction.
func (s *backend) whose(ctx context.Context, tx *sql.Tx) (context.Context, *writing, error) {
	if w := s.writer.Load(); w != nil && w.tx == tx {
		// The store's own transaction has the write lock, so there is nothing
		// to wait for; see enter.
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		return context.WithoutCancel(ctx), w, nil
	}
	if _, reading := s.readers.Load(tx); reading {
		return nil, nil, errors.New("sqlitestore: the transaction is read-only")
	}
	return ctx, nil, nil
}

// AppendSQL implements [driver.SQLAppender].
func (s *backend) AppendSQL(ctx context.Context, tx driver.SQLTx, evs []waybill.Event) ([]driver.AppendResult, error) {
	if len(evs) == 0 {
		return nil, nil
	}
	if plain, ok := tx.(*sql.Tx); ok {
		return s.Append(ctx, plain, evs)
	}
	return s.append(ctx, sqlTarget{tx}, evs, false)
}

// savepoint encloses a write of several statements, so that an error leaves
// nothing of the write behind.
const savepoint = `waybill_append`

func (s *backend) append(ctx context.Context, t target, evs []waybill.Event, own bool) ([]driver.AppendResult, error) {
	ctx, err := s.enter(ctx, t, own)
	if err != nil {
		return nil, err
	}
	var placed []driver.AppendResult
	insert := func() error {
		var err error
		placed, err = s.insert(ctx, t, evs)
		return err
	}
	// A single insert undoes itself when it fails. In the store's own
	// transaction the runner rolls everything back.
	undo := !own && !simple(evs)
	if !undo {
		err = s.refused(insert())
	} else {
		err = s.atOnce(ctx, t, insert)
	}
	if err != nil {
		return nil, err
	}
	return placed, nil
}

// enter ensures that a transaction is open and has the write lock, and returns
// the context for the statements in it.
func (s *backend) enter(ctx context.Context, t target, own bool) (context.Context, error) {
	if err := s.prove(ctx, t); err != nil {
		return nil, err
	}
	if err := s.ready(ctx, t); err != nil {
		return nil, err
	}
	if !own {
		// A caller's transaction may not have the write lock yet. The wait for
		// the lock happens here, where ctx can end it and leave the transaction
		// intact. After that there is nothing to wait for, and an insert that
		// was interrupted halfway would make SQLite roll back everything that
		// the caller has written.
		if _, err := t.exec(ctx, s.sql.lock); err != nil {
			return nil, s.refused(err)
		}
	}
	return context.WithoutCancel(ctx), nil
}

// atOnce runs a write of several statements. After an error nothing of the
// write is left.
func (s *backend) atOnce(ctx context.Context, t target, fn func() error) error {
	if err := t.text(ctx, "SAVEPOINT "+savepoint); err != nil {
		return s.refused(err)
	}
	if err := fn(); err != nil {
		// If SQLite has rolled the transaction back, the savepoint is gone, and
		// there is nothing to undo.
		_ = t.text(ctx, "ROLLBACK TO "+savepoint)
		_ = t.text(ctx, "RELEASE "+savepoint)
		return s.refused(err)
	}
	return s.refused(t.text(ctx, "RELEASE "+savepoint))
}

// simple reports whether a single insert writes all events.
func simple(evs []waybill.Event) bool {
	return len(evs) == 1 && evs[0].DedupKey == "" && !evs[0].Delayed()
}

func (s *backend) refused(err error) error { return s.explain(sqltx.Done(err)) }

// prove returns an error unless a transaction is open. SQLite rolls back by
// itself when a writing statement is interrupted (its context ended), when the
// disk is full, and when a trigger requests it. database/sql does not notice
// the rollback, and later statements on the same [*sql.Tx] commit immediately,
// each by itself. An event must not be committed that way. BEGIN fails exactly
// while the transaction is open.
func (s *backend) prove(ctx context.Context, t target) error {
	_, err := t.exec(ctx, s.sql.probe)
	if err == nil {
		_ = t.text(context.WithoutCancel(ctx), "ROLLBACK")
		return fmt.Errorf("sqlitestore: %w: rolled back by SQLite, or ended by a statement", waybill.ErrTxDone)
	}
	if _, primary := code(err); primary == sqlite3.SQLITE_ERROR {
		return nil
	}
	return s.refused(err)
}

func (s *backend) insert(ctx context.Context, t target, evs []waybill.Event) ([]driver.AppendResult, error) {
	placed := make([]driver.AppendResult, len(evs))
	for i, ev := range evs {
		placed[i].ID = ev.ID
	}
	kept, err := s.takeKeys(ctx, t, evs, placed)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	timed := false
	for _, ev := range kept {
		timed = timed || dueAt(ev, now) != nil
	}
	list := s.sql.insert
	if timed {
		list = s.sql.insertTimed
	}
	var args []any
	for len(kept) > 0 {
		index, n := pick(len(kept))
		args = append(args[:0], micros(now))
		for _, ev := range kept[:n] {
			if args, err = encoder.Append(args, ev); err != nil {
				return nil, err
			}
			if timed {
				args = append(args, dueAt(ev, now))
			}
		}
		result, err := t.exec(ctx, list[index], args...)
		if err == nil && timed {
			err = s.deferRows(ctx, t, result, n, now)
		}
		if err != nil {
			return nil, err
		}
		kept = kept[n:]
	}
	return placed, nil
}

// dueAt returns an event's due time as it is stored; nil: immediately.
func dueAt(ev waybill.Event, now time.Time) any {
	switch {
	case ev.Delay > 0:
		return micros(now.Add(ev.Delay))
	case ev.AvailableAt.After(now):
		return micros(ev.AvailableAt)
	}
	return nil
}

// deferRows moves those of the n inserted rows that are not due. Their seqs are
// the last n, because one statement counts up without a gap.
func (s *backend) deferRows(ctx context.Context, t target, result sql.Result, n int, now time.Time) error {
	last, err := result.LastInsertId()
	if err != nil {
		return err
	}
	if _, err := t.exec(ctx, s.sql.deferRows, last-int64(n)+1, last, micros(now)); err != nil {
		return err
	}
	_, err = t.exec(ctx, s.sql.unready, last-int64(n)+1, last, micros(now))
	return err
}

// takeKeys takes the dedup keys of evs, in the order of evs, so that the first
// of several events with one key gets it. It returns the events that remain to
// be inserted. An absorbed event gets the holder's id in placed. SQLite has one
// writer, so the holder cannot vanish in between, and the order of the keys
// cannot cause a deadlock.
func (s *backend) takeKeys(
	ctx context.Context, t target, evs []waybill.Event, placed []driver.AppendResult,
) ([]waybill.Event, error) {
	var kept []waybill.Event
	for i := range evs {
		if evs[i].DedupKey == "" {
			if kept != nil {
				kept = append(kept, evs[i])
			}
			continue
		}
		// The copy limits what escapes to the heap: the driver receives its id.
		ev := evs[i]
		if kept == nil {
			kept = append(make([]waybill.Event, 0, len(evs)), evs[:i]...)
		}
		n, err := affected(t.exec(ctx, s.sql.takeKey, ev.TenantID, ev.DedupKey, ev.ID[:]))
		if err != nil {
			return nil, err
		}
		if n == 1 {
			kept = append(kept, ev)
			continue
		}
		rows, err := t.query(ctx, s.sql.keyHolder, ev.TenantID, ev.DedupKey)
		if _, err := scanOne(rows, err, (*scanID)(&placed[i].ID)); err != nil {
			return nil, err
		}
		if placed[i].ID == ev.ID { // the event would be reported as written now
			return nil, fmt.Errorf("event id %s already exists", ev.ID)
		}
	}
	if kept == nil {
		return evs, nil
	}
	return kept, nil
}

package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqltx"
	"github.com/waybillhq/waybill/store"
)

// savepoint is what a write of several statements goes back to when one of them fails.
const savepoint = "waybill_append"

// Append implements [store.Appender].
func (s *Store) Append(ctx context.Context, tx *sql.Tx, evs []waybill.Event) ([]store.Placed, error) {
	return s.append(ctx, tx, evs)
}

// AppendSQL implements [store.SQLAppender].
func (s *Store) AppendSQL(ctx context.Context, tx store.SQLTx, evs []waybill.Event) ([]store.Placed, error) {
	return s.append(ctx, tx, evs)
}

func (s *Store) append(ctx context.Context, tx querier, evs []waybill.Event) ([]store.Placed, error) {
	if len(evs) == 0 {
		return nil, nil
	}
	f, err := s.facts(ctx, tx)
	if err != nil {
		return nil, sqltx.Done(err)
	}
	placed, err := s.put(ctx, tx, f, evs)
	if err != nil {
		return nil, s.refused(err)
	}
	return placed, nil
}

// refused explains an error of somebody's transaction.
func (s *Store) refused(err error) error {
	if done := ended(err); done != err { //nolint:errorlint // the same error means that the transaction is not over
		return done
	}
	return s.explain(err)
}

func (s *Store) put(ctx context.Context, tx querier, f facts, evs []waybill.Event) ([]store.Placed, error) {
	if !f.proves {
		open, err := inTransaction(ctx, tx)
		if err != nil {
			return nil, err
		}
		if !open {
			return nil, fmt.Errorf("%w: the server has no transaction open on this connection", waybill.ErrTxDone)
		}
	}
	placed := make([]store.Placed, len(evs))
	special := false
	for i, ev := range evs {
		placed[i] = store.Placed{ID: ev.ID, Lane: s.laneFor(ev, f.lanes)}
		special = special || ev.DedupKey != "" || ev.Delayed()
	}
	if special {
		return placed, s.atOnce(ctx, tx, func() error { return s.putSpecial(ctx, tx, f, evs, placed) })
	}
	b, err := encode(evs, placed)
	if err != nil {
		return nil, err
	}
	if s.fits(b, f, 0) == len(evs) {
		return placed, s.insert(ctx, tx, f, b, 0, len(evs))
	}
	return placed, s.atOnce(ctx, tx, func() error { return s.insertAll(ctx, tx, f, b) })
}

// atOnce runs what takes more than one statement. After an error nothing of it is left: the server takes back a statement that failed,
// not those before it, and somebody else's transaction may go on.
func (s *Store) atOnce(ctx context.Context, tx querier, fn func() error) error {
	if _, err := tx.ExecContext(ctx, "SAVEPOINT "+savepoint); err != nil {
		return err
	}
	err := fn()
	if err != nil {
		// It fails when the server has ended the transaction already, and then there is nothing to take back.
		_, _ = tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT "+savepoint)
	}
	return err
}

// putSpecial takes the dedup keys and inserts the events that were not absorbed. One that must wait is inserted among the others,
// which gives it its seq, and then moved.
func (s *Store) putSpecial(ctx context.Context, tx querier, f facts, evs []waybill.Event, placed []store.Placed) error {
	if err := s.takeKeys(ctx, tx, f, evs, placed); err != nil {
		return err
	}
	kept, where := make([]waybill.Event, 0, len(evs)), make([]store.Placed, 0, len(evs))
	var late []waybill.ID
	for i, ev := range evs {
		if placed[i].ID != ev.ID {
			continue
		}
		kept, where = append(kept, ev), append(where, placed[i])
		if ev.Delayed() {
			late = append(late, ev.ID)
		}
	}
	b, err := encode(kept, where)
	if err != nil {
		return err
	}
	if err := s.insertAll(ctx, tx, f, b); err != nil {
		return err
	}
	for part := range parts(late, manyIDs) {
		if err := s.putOff(ctx, tx, part); err != nil {
			return err
		}
	}
	return nil
}

// putOff moves those of the events that are not due, by the database's clock, from the ready ones to the delayed ones.
func (s *Store) putOff(ctx context.Context, tx querier, ids []waybill.ID) error {
	var keys strings.Builder
	var lane, seq int64
	err := each(ctx, tx, fill(s.sql.delayedSeqs, "{marks}", marks(len(ids))), idArgs(ids), func() {
		appendKey(&keys, lane, seq)
	}, &lane, &seq)
	if err != nil || keys.Len() == 0 {
		return err
	}
	keys.WriteByte(']')
	for _, statement := range []string{s.sql.putOff, s.sql.dropReady} {
		if _, err := tx.ExecContext(ctx, fill(statement, "{keys}", keys.String())); err != nil {
			return err
		}
	}
	return nil
}

// appendKey adds a key to a list in JSON, which the caller closes.
func appendKey(b *strings.Builder, lane, seq int64) {
	if b.Len() == 0 {
		b.WriteByte('[')
	} else {
		b.WriteByte(',')
	}
	b.WriteString("[" + strconv.FormatInt(lane, 10) + "," + strconv.FormatInt(seq, 10) + "]")
}

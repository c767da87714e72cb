package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqltx"
	"github.com/waybillhq/waybill/store/driver"
)

// savepoint is the name of the savepoint that a write of several statements
// rolls back to if one of them fails.
const savepoint = "waybill_append"

// Append implements [driver.Appender].
func (s *backend) Append(ctx context.Context, tx *sql.Tx, evs []waybill.Event) ([]driver.AppendResult, error) {
	return s.append(ctx, tx, evs)
}

// AppendSQL implements [driver.SQLAppender].
func (s *backend) AppendSQL(ctx context.Context, tx driver.SQLTx, evs []waybill.Event) ([]driver.AppendResult, error) {
	return s.append(ctx, tx, evs)
}

func (s *backend) append(ctx context.Context, tx querier, evs []waybill.Event) ([]driver.AppendResult, error) {
	if len(evs) == 0 {
		return nil, nil
	}
	f, err := s.facts(ctx, tx)
	if err != nil {
		return nil, sqltx.Done(err)
	}
	placed, err := s.put(ctx, tx, f, evs)
	for range maxRounds { // a failed write leaves nothing behind
		var changed bool
		if f, changed = s.lanesChanged(err, f); !changed {
			break
		}
		placed, err = s.put(ctx, tx, f, evs)
	}
	if err != nil {
		return nil, s.refused(err)
	}
	s.note(tx, evs, placed)
	return placed, nil
}

// refused explains an error inside the caller's transaction.
func (s *backend) refused(err error) error {
	if done := ended(err); done != err { //nolint:errorlint // the same error means that the transaction is not over
		return done
	}
	return s.explain(err)
}

func (s *backend) put(ctx context.Context, tx querier, f facts, evs []waybill.Event) ([]driver.AppendResult, error) {
	if !f.proves {
		open, err := inTransaction(ctx, tx)
		if err != nil {
			return nil, err
		}
		if !open {
			return nil, fmt.Errorf("%w: the server has no transaction open on this connection", waybill.ErrTxDone)
		}
	}
	placed := make([]driver.AppendResult, len(evs))
	special := false
	for i, ev := range evs {
		placed[i] = driver.AppendResult{ID: ev.ID, Lane: s.laneFor(ev, f.lanes)}
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

// atOnce runs fn, which takes more than one statement, all or nothing: the
// server undoes only the statement that failed, not those before it, and the
// caller may continue the transaction.
func (s *backend) atOnce(ctx context.Context, tx querier, fn func() error) error {
	if _, err := tx.ExecContext(ctx, "SAVEPOINT "+savepoint); err != nil {
		return err
	}
	err := fn()
	if err != nil {
		// The rollback fails if the server has already ended the transaction;
		// then there is nothing to undo.
		_, _ = tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT "+savepoint)
	}
	return err
}

// putSpecial takes the dedup keys and inserts the events that were not
// absorbed. A delayed event is first inserted among the others as a row without
// a type and content, which draws its seq and reads the database's clock; that
// row is then deleted. A reader of the binary log therefore sees an event only
// when it may be published, and never a row with a type before that.
func (s *backend) putSpecial(ctx context.Context, tx querier, f facts, evs []waybill.Event, placed []driver.AppendResult) error {
	if err := s.takeKeys(ctx, tx, f, evs, placed); err != nil {
		return err
	}
	kept, where := make([]waybill.Event, 0, len(evs)), make([]driver.AppendResult, 0, len(evs))
	for i, ev := range evs {
		if placed[i].ID == ev.ID {
			kept, where = append(kept, ev), append(where, placed[i])
		}
	}
	b, err := encode(kept, where)
	if err != nil {
		return err
	}
	if !b.late {
		return s.insertAll(ctx, tx, f, b)
	}
	if err := s.insertAll(ctx, tx, f, b.blank()); err != nil {
		return err
	}
	drawn, err := s.takeDrawn(ctx, tx, kept)
	if err != nil {
		return err
	}
	return s.insertDrawn(ctx, tx, f, b, drawn)
}

// draw holds the values that the table of ready events assigned to an event:
// its seq, and its creation and due times by the database's clock.
type draw struct {
	seq          int64
	created, due time.Time // due is zero for an event without a delay
}

// takeDrawn returns the values assigned to delayed events and deletes their
// placeholder rows.
func (s *backend) takeDrawn(ctx context.Context, tx querier, evs []waybill.Event) (map[waybill.ID]draw, error) {
	drawn := make(map[waybill.ID]draw)
	var late []waybill.ID
	for _, ev := range evs {
		if ev.Delayed() {
			late = append(late, ev.ID)
		}
	}
	for part := range parts(late, maxIDs) {
		var keys strings.Builder
		var id scanID
		var lane, seq, created int64
		var due sql.NullInt64
		err := each(ctx, tx, fill(s.sql.drawnSeqs, "{ids}", idList(part)), nil, func() {
			appendKey(&keys, lane, seq)
			d := draw{seq: seq, created: time.UnixMicro(created)}
			if due.Valid {
				d.due = time.UnixMicro(due.Int64)
			}
			drawn[waybill.ID(id)] = d
		}, &id, &lane, &seq, &created, &due)
		if err != nil {
			return nil, err
		}
		if keys.Len() == 0 {
			continue
		}
		keys.WriteByte(']')
		if _, err := tx.ExecContext(ctx, fill(s.sql.dropDrawn, "{keys}", keys.String())); err != nil {
			return nil, err
		}
	}
	return drawn, nil
}

// insertDrawn inserts the events with an assigned seq into their tables.
func (s *backend) insertDrawn(ctx context.Context, tx querier, f facts, b *batch, drawn map[waybill.ID]draw) error {
	ready, late := &batch{used: b.used, drawn: drawn}, &batch{used: allColumns, drawn: drawn, delayed: true}
	for i, ev := range b.evs {
		to := ready
		switch d, ok := drawn[ev.ID]; {
		case !ok: // already inserted
			continue
		case !d.due.IsZero():
			to = late
		}
		to.evs = append(to.evs, ev)
		to.values = append(to.values, b.values[i*len(columns):(i+1)*len(columns)]...)
	}
	if err := s.insertAll(ctx, tx, f, ready); err != nil {
		return err
	}
	return s.insertAll(ctx, tx, f, late)
}

// appendKey appends a key to a JSON list; the caller closes the list.
func appendKey(b *strings.Builder, lane, seq int64) {
	if b.Len() == 0 {
		b.WriteByte('[')
	} else {
		b.WriteByte(',')
	}
	b.WriteString("[" + strconv.FormatInt(lane, 10) + "," + strconv.FormatInt(seq, 10) + "]")
}

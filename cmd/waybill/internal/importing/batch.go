package importing

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
)

// batch is one try to import some rows.
type batch struct {
	*importer
	rows []waiting

	events  []waybill.Event
	keys    []waybill.ID // of the events
	done    []*Row       // to mark or delete
	before  int
	gone    int
	invalid []RowError
	written int // events that no pending event has absorbed
}

// count adds the batch to the report.
func (b *batch) count(written int) {
	r := &b.rep
	r.Imported += written
	r.Before += b.before + len(b.events) - written
	r.Gone += b.gone
	r.Invalid += len(b.invalid)
	room := max(maxInvalid-len(r.InvalidRows), 0)
	r.InvalidRows = append(r.InvalidRows, b.invalid[:min(room, len(b.invalid))]...)
	if b.opts.DryRun {
		return
	}
	switch b.opts.Done {
	case Mark:
		r.Marked += len(b.done)
	case Delete:
		r.Deleted += len(b.done)
	case Leave:
	}
}

// write imports the rows in a transaction.
func (b *batch) write(ctx context.Context, tx *sql.Tx) error {
	if err := b.read(ctx, tx, b.opts.Done != Leave); err != nil {
		return err
	}
	receipts, err := b.box.WriteEach(ctx, tx, b.events...)
	if err != nil {
		return err
	}
	sent := make([]driver.Sent, len(receipts))
	for i, receipt := range receipts {
		sent[i] = driver.Sent{Key: b.keys[i], Event: receipt.ID}
		if receipt.Outcome == outbox.Written {
			b.written++
		}
	}
	held, err := b.st.InSQL.Jobs.RememberSent(ctx, tx, b.attempt, sent)
	if err == nil && !held {
		err = ErrBusy
	}
	if err != nil || len(b.done) == 0 {
		return err
	}
	switch b.opts.Done {
	case Mark:
		err = b.plan.Mark(ctx, tx, b.done)
	case Delete:
		err = execIn(ctx, tx, b.db, "DELETE FROM "+b.plan.Table.SQL+" WHERE ", b.plan.ID, b.done)
	case Leave:
	}
	if err != nil {
		return hint.New("nothing of this batch was imported", "changing the rows of table %s: %w", b.rep.Table, err)
	}
	return nil
}

// read reads the rows again, because the other system may have delivered them
// since they were listed, and makes their events, in the order of the list.
func (b *batch) read(ctx context.Context, from queryer, lock bool) error {
	found, err := b.fetch(ctx, from, lock)
	if err != nil {
		return err
	}
	for _, w := range b.rows {
		row := found[w.text]
		switch {
		case row == nil:
			b.gone++
			continue
		case w.before:
			b.before++
		default:
			ev, err := b.event(row)
			if err != nil {
				wrong := RowError{ID: w.text, Problem: problem(err)}
				if b.opts.SkipInvalid || b.opts.DryRun {
					b.invalid = append(b.invalid, wrong)
					continue
				}
				return hint.New("nothing of its batch was imported; correct the row, or add --skip-invalid to import the others", "table %s: %w", b.rep.Table, &wrong)
			}
			b.events, b.keys = append(b.events, ev), append(b.keys, w.key)
		}
		b.done = append(b.done, row)
	}
	return nil
}

// event returns the event of a row, complete and valid.
func (b *batch) event(row *Row) (waybill.Event, error) {
	ev, err := b.plan.Event(row)
	if err != nil {
		return ev, err
	}
	ev.DedupKey = b.dedupKey(row.ID)
	ev = eventfill.Defaults(ev)
	return ev, ev.Validate()
}

// problem returns an error about an event as one line.
func problem(err error) string {
	var parts []string
	for line := range strings.SplitSeq(strings.TrimPrefix(err.Error(), "waybill: "), "\n") {
		parts = append(parts, line)
	}
	return strings.Join(parts, "; ")
}

// fetch reads the rows of the batch that are still not delivered.
func (b *batch) fetch(ctx context.Context, from queryer, lock bool) (map[string]*Row, error) {
	names := slices.Sorted(maps.Keys(b.plan.Columns))
	columns := []string{b.plan.ID}
	for _, name := range names {
		columns = append(columns, b.plan.Columns[name])
	}
	query, args := b.query(columns, b.rows)
	if lock && b.db.kind != connect.SQLite {
		query += " FOR UPDATE"
	}
	rows, err := from.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, b.reading(err)
	}
	defer rows.Close()
	out := make(map[string]*Row, len(b.rows))
	for rows.Next() {
		values := make([]any, len(columns))
		dest := make([]any, len(columns))
		for i := range values {
			dest[i] = &values[i]
		}
		if err := rows.Scan(dest...); err != nil {
			return nil, b.reading(err)
		}
		r := &Row{values: make(map[string]any, len(names))}
		if r.key, r.ID, err = idOf(values[0]); err != nil {
			return nil, err
		}
		for i, name := range names {
			r.values[name] = values[i+1]
		}
		out[r.ID] = r
	}
	return out, b.reading(rows.Err())
}

// idOf returns a row's id, for statements and as text. Bytes that are no text
// are written in hexadecimal.
func idOf(value any) (any, string, error) {
	switch v := value.(type) {
	case nil:
		return nil, "", errors.New("the id of a row is NULL")
	case []byte:
		if !utf8.Valid(v) || strings.ContainsFunc(string(v), unicode.IsControl) {
			return v, "0x" + hex.EncodeToString(v), nil
		}
		return string(v), string(v), nil
	default:
		r := Row{values: map[string]any{"": v}}
		return v, r.Text(""), nil
	}
}

func names(all []string) string { return strings.Join(all, ", ") }

package mysqlstore

import (
	"context"
	"database/sql"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
)

// What one statement carries at most. The protocol counts placeholders in 16 bits; a driver that puts arguments into the text of the
// statement may have to escape every byte of a payload, so a packet holds at least four times as much.
const (
	chunkRows   = 1000
	chunkPacket = 4 << 20
	rowBytes    = 2 << 10 // what a row has beside its payload and headers
)

// packetBytes returns how much of the events one statement may carry on a server that takes packets of this size.
func packetBytes(maxAllowed int64) int {
	return int(max(min(maxAllowed/4, chunkPacket), 64<<10))
}

// batch is events as they are inserted.
type batch struct {
	evs    []waybill.Event
	values []any // of all events, a row of columns each
	used   uint32
	late   bool // some may have to wait
	// drawn is the numbers of the events, if they are drawn already.
	drawn map[waybill.ID]draw
	// delayed says that the rows are for the table of delayed events.
	delayed bool
}

// blank returns the batch with rows in the places of events that may have to wait which are
// nothing but places: they have what the lane is computed from, and no type and no content.
func (b *batch) blank() *batch {
	out := *b
	out.values = slices.Clone(b.values)
	for i, ev := range b.evs {
		if !ev.Delayed() {
			continue
		}
		row := out.values[i*len(columns):]
		for c, name := range columns {
			switch name {
			case "lane", "id", "tenant_id", "aggregate_type", "aggregate_id", "schema_version", "priority", "occurred_at":
			case "type":
				row[c] = ""
			case "payload":
				row[c] = []byte{}
			default:
				row[c] = nil
			}
		}
	}
	return &out
}

// plain reports whether the rows have nothing behind the columns of the event.
func (b *batch) plain() bool { return !b.late && b.drawn == nil }

// allColumns is a shape that leaves no column to its default: the table of delayed events has none.
const allColumns = ^uint32(0)

// columns of a row, the lane first.
var columns = append([]string{"lane"}, eventrow.Columns()...)

// encoder is how MySQL wants an event.
var encoder = eventrow.Encoder{
	ID:   func(id waybill.ID) any { return id[:] },
	Time: func(t time.Time) any { return utc(t) },
}

// utc returns a time as the text of a DATETIME(6) in UTC: a text means the same whatever the session's time zone is.
func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000000") }

// encode returns events as they are inserted. A column in which no event has anything is not used: most events have half of them. A
// text beyond ASCII goes as bytes, or as hexadecimal where the column is a text, so that nobody on the way converts it to another
// character set.
func encode(evs []waybill.Event, placed []store.AppendResult) (*batch, error) {
	b := &batch{evs: evs, values: make([]any, 0, len(evs)*len(columns))}
	for i, ev := range evs {
		var err error
		if b.values, err = encoder.Append(append(b.values, placed[i].Lane), ev); err != nil {
			return nil, err
		}
		row := b.values[i*len(columns):]
		for c, value := range row {
			if text, ok := value.(string); ok && columns[c] == "headers" {
				row[c] = hex.EncodeToString([]byte(text))
			} else if ok && !ascii(text) {
				row[c] = []byte(text)
			}
			if !isDefault(columns[c], value) {
				b.used |= 1 << c
			}
		}
		b.late = b.late || ev.Delayed()
	}
	return b, nil
}

func ascii(text string) bool {
	for i := range len(text) {
		if text[i] >= 0x80 {
			return false
		}
	}
	return true
}

// isDefault reports whether a column has the value by itself.
func isDefault(column string, value any) bool {
	switch column {
	case "lane":
		return false // what the table would choose for an unordered event is not what was chosen here
	case "schema_version":
		return value == 1
	case "priority":
		return value == 0
	}
	return value == nil
}

// fits returns how many of the events, from start on, go into one statement.
func (s *Store) fits(b *batch, f facts, start int) int {
	n, size := 0, 0
	for start+n < len(b.evs) && n < chunkRows {
		ev := b.evs[start+n]
		next := rowBytes + len(ev.Payload)
		for name, value := range ev.Headers {
			next += len(name) + len(value)
		}
		if n > 0 && size+next > f.packet {
			break
		}
		n, size = n+1, size+next
	}
	if sh := (shape{b.used, hundred}); n > hundred && b.plain() {
		if s.prepared(sh) != nil {
			return hundred
		}
		s.want(sh)
	}
	return n
}

// insertAll writes a batch with as many statements as it takes.
func (s *Store) insertAll(ctx context.Context, tx querier, f facts, b *batch) error {
	for start := 0; start < len(b.evs); {
		n := s.fits(b, f, start)
		if err := s.insert(ctx, tx, f, b, start, n); err != nil {
			return err
		}
		start += n
	}
	return nil
}

// insert writes n events of a batch in one statement, prepared if there is one and the transaction is of this store's pool.
func (s *Store) insert(ctx context.Context, tx querier, f facts, b *batch, start, n int) error {
	width := len(columns)
	args := make([]any, 0, n*(width+3))
	more := s.tailOf(b)
	for i := start; i < start+n; i++ {
		for c, value := range b.values[i*width : (i+1)*width] {
			if b.used&(1<<c) != 0 {
				args = append(args, value)
			}
		}
		if !b.plain() {
			var text string
			text, args = b.tailValues(args, b.evs[i])
			more.rows = append(more.rows, text)
		}
	}
	sh := shape{b.used, n}
	if plain, ok := tx.(*sql.Tx); ok && b.plain() {
		if stmt := s.prepared(sh); stmt != nil {
			_, err := plain.StmtContext(ctx, stmt).ExecContext(ctx, args...) //nolint:sqlclosecheck // ends with the transaction
			if !otherPool(err) {
				return err
			}
		} else {
			s.want(sh)
		}
	}
	_, err := tx.ExecContext(ctx, s.insertText(f, sh, more), args...)
	return err
}

// tail is where rows go, and what follows the columns and the values of each event.
type tail struct {
	head, columns string
	rows          []string
}

// tailOf returns the tail of a batch, without its rows.
func (s *Store) tailOf(b *batch) tail {
	switch {
	case b.delayed:
		return tail{head: s.sql.insertDelayed, columns: ", seq, created_at, due_at"}
	case b.drawn != nil:
		return tail{head: s.sql.insertHead, columns: ", seq, created_at"}
	case b.late:
		return tail{head: s.sql.insertHead, columns: ", available_at"}
	}
	return tail{head: s.sql.insertHead}
}

// tailValues returns what follows an event's values.
func (b *batch) tailValues(args []any, ev waybill.Event) (string, []any) {
	d := b.drawn[ev.ID]
	switch {
	case b.delayed:
		return ", ?, ?, ?", append(args, d.seq, utc(d.created), utc(d.due))
	case b.drawn != nil:
		return ", ?, ?", append(args, d.seq, utc(d.created))
	case b.late:
		return dueValue(args, ev)
	}
	return "", args
}

// dueValue returns when an event may be delivered; NULL is at once. The database's clock decides.
func dueValue(args []any, ev waybill.Event) (string, []any) {
	switch {
	case ev.Delay > 0:
		return ", UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND", append(args, ev.Delay.Microseconds())
	case !ev.AvailableAt.IsZero():
		at := utc(ev.AvailableAt)
		return ", IF(CAST(? AS DATETIME(6)) > UTC_TIMESTAMP(6), CAST(? AS DATETIME(6)), NULL)", append(args, at, at)
	}
	return ", NULL", args
}

// insertText returns the statement that inserts rows of one shape.
func (s *Store) insertText(f facts, sh shape, more tail) string {
	var text strings.Builder
	text.WriteString(more.head)
	row := ""
	for c, name := range columns {
		if sh.used&(1<<c) == 0 {
			continue
		}
		mark := "?"
		if name == "headers" {
			mark = utf8Argument
		}
		if row != "" {
			text.WriteString(", ")
			row += ", "
		}
		text.WriteString(name)
		row += mark
	}
	text.WriteString(more.columns)
	text.WriteString(") VALUES ")
	for i := range sh.rows {
		switch {
		case i > 0:
			text.WriteString(", (" + row)
		case f.proves:
			text.WriteString("(" + proven + row[1:]) // the lane is the first value, and is always there
		default:
			text.WriteString("(" + row)
		}
		if more.rows != nil {
			text.WriteString(more.rows[i])
		}
		text.WriteByte(')')
	}
	return text.String()
}

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
	"github.com/waybillhq/waybill/store/driver"
)

// Limits of one statement. The protocol counts placeholders in 16 bits. A
// driver that interpolates arguments into the statement may have to escape
// every byte of a payload, so a packet must hold four times the event bytes.
const (
	chunkRows   = 1000
	chunkPacket = 4 << 20
	rowBytes    = 2 << 10 // a row without its payload and headers
)

// packetBytes returns the maximum number of event bytes in one statement, for a
// server with the given max_allowed_packet.
func packetBytes(maxAllowed int64) int {
	return int(max(min(maxAllowed/4, chunkPacket), 64<<10))
}

// batch is a list of events encoded for insertion.
type batch struct {
	evs    []waybill.Event
	values []any // of all events, one row of columns each
	used   uint32
	late   bool // some events are delayed
	// drawn maps events to their assigned values, if already drawn.
	drawn map[waybill.ID]draw
	// delayed reports that the rows go to the table of delayed events.
	delayed bool
}

// blank returns the batch with placeholders for delayed events: rows with the
// columns that the lane is computed from, without a type and content.
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

// plain reports whether the rows have no columns after those of the event.
func (b *batch) plain() bool { return !b.late && b.drawn == nil }

// allColumns is a shape that sets every column: the table of delayed events has
// no defaults.
const allColumns = ^uint32(0)

// columns are the columns of a row, the lane first.
var columns = append([]string{"lane"}, eventrow.Columns()...)

// encoder encodes events for MySQL.
var encoder = eventrow.Encoder{
	ID:   func(id waybill.ID) any { return id[:] },
	Time: func(t time.Time) any { return utc(t) },
}

// utc returns a time as the text of a DATETIME(6) in UTC, which does not depend
// on the session's time zone.
func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000000") }

// encode encodes events for insertion. A column that is at its default in every
// event is not used: most events leave half of the columns at their defaults.
// Text beyond ASCII is sent as bytes, or as hexadecimal digits for a text
// column, so that neither the driver nor the server converts it to another
// character set.
func encode(evs []waybill.Event, placed []driver.AppendResult) (*batch, error) {
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

// isDefault reports whether value is the column's default.
func isDefault(column string, value any) bool {
	switch column {
	case "lane":
		// For an unordered event the table's default would choose another lane.
		return false
	case "schema_version":
		return value == 1
	case "priority":
		return value == 0
	}
	return value == nil
}

// fits returns how many events, beginning at start, fit into one statement.
func (s *backend) fits(b *batch, f facts, start int) int {
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

// insertAll inserts a batch with as many statements as needed.
func (s *backend) insertAll(ctx context.Context, tx querier, f facts, b *batch) error {
	for start := 0; start < len(b.evs); {
		n := s.fits(b, f, start)
		if err := s.insert(ctx, tx, f, b, start, n); err != nil {
			return err
		}
		start += n
	}
	return nil
}

// insert inserts n events of a batch with one statement. It uses a prepared
// statement if there is one and the transaction belongs to this store's pool.
func (s *backend) insert(ctx context.Context, tx querier, f facts, b *batch, start, n int) error {
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

// tail is the head of an INSERT and the part that follows the event's columns
// and values.
type tail struct {
	head, columns string
	rows          []string
}

// tailOf returns the tail of a batch, without rows.
func (s *backend) tailOf(b *batch) tail {
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

// tailValues returns the values that follow an event's own.
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

// dueValue returns the time from which an event may be delivered; NULL means
// immediately. The database's clock decides.
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

// insertText returns the INSERT statement for rows of one shape.
func (s *backend) insertText(f facts, sh shape, more tail) string {
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
			// The lane is always the first value.
			text.WriteString("(" + proven + row[1:])
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

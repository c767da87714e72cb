package importing

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
)

// Layout is the table of another system.
type Layout interface {
	// Plan finds the table and its columns, and returns how to read it. It only
	// reads.
	Plan(ctx context.Context, db *Database) (*Plan, error)
}

// Plan describes how rows are read from a table. All expressions are SQL.
type Plan struct {
	// Source is the other system. It is part of the rows' keys.
	Source string
	// Table has the rows.
	Table *Table
	// ID identifies a row.
	ID string
	// Order is the order in which the rows are delivered.
	Order string
	// Where selects the rows that are not delivered; nil: all rows. Values are
	// passed to bind, which returns their placeholder.
	Where func(bind func(value any) string) string
	// Columns are the expressions that Event reads, by name.
	Columns map[string]string
	// Event returns the event of a row. Its dedup key is set by [Run].
	Event func(r *Row) (waybill.Event, error)
	// Mark records in the other system, in the transaction that writes the
	// events, that the rows are delivered. Nil: that system has no state for
	// it.
	Mark func(ctx context.Context, tx *sql.Tx, rows []*Row) error
	// MarksAll: Mark marks every row up to the last one, also those that were
	// skipped.
	MarksAll bool
}

// Row is a row of the other system's table.
type Row struct {
	// ID is the text of the row's id.
	ID     string
	key    any // the id as the driver returned it
	values map[string]any
}

// Text returns a column as text; that of NULL is empty.
func (r *Row) Text(column string) string {
	switch v := r.values[column].(type) {
	case nil:
		return ""
	case string:
		return v
	case []byte:
		return string(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	default:
		return fmt.Sprint(v)
	}
}

// IsNull reports whether a column is NULL or not part of the plan.
func (r *Row) IsNull(column string) bool { return r.values[column] == nil }

// timeForms are the texts of times that databases return. Times without a zone
// are in UTC.
var timeForms = []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999", "2006-01-02T15:04:05.999999999"}

// Limits of Unix times: smaller numbers are seconds, then milliseconds.
const (
	maxUnixSeconds = 100_000_000_000
	maxUnixMillis  = maxUnixSeconds * 1000
)

// Time returns a column as a time; that of NULL is zero. A number is a Unix
// time in seconds, milliseconds or microseconds, according to its size.
func (r *Row) Time(column string) (time.Time, error) {
	switch v := r.values[column].(type) {
	case nil:
		return time.Time{}, nil
	case time.Time:
		return v, nil
	case int64:
		switch {
		case v < maxUnixSeconds:
			return time.Unix(v, 0), nil
		case v < maxUnixMillis:
			return time.UnixMilli(v), nil
		}
		return time.UnixMicro(v), nil
	default:
		text := strings.TrimSpace(r.Text(column))
		for _, form := range timeForms {
			if t, err := time.Parse(form, text); err == nil {
				return t, nil
			}
		}
		return time.Time{}, fmt.Errorf("%s: not a time", column)
	}
}

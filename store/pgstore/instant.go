package pgstore

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/waybillhq/waybill/internal/eventrow"
)

// instant scans a time of a row, in UTC; NULL is the zero time. PostgreSQL has
// times that Go or the text form of an event cannot represent: infinity, and
// years before 1000 or after 9999. A plain-SQL producer may write such times.
// They are read as the nearest time that an event can have, so that one row
// does not fail the read of all rows.
type instant time.Time

// ScanTimestamptz implements pgtype.TimestamptzScanner.
func (t *instant) ScanTimestamptz(v pgtype.Timestamptz) error {
	switch {
	case !v.Valid:
		*t = instant{}
	case v.InfinityModifier == pgtype.Infinity:
		*t = instant(eventrow.Latest())
	case v.InfinityModifier == pgtype.NegativeInfinity:
		*t = instant(eventrow.Earliest())
	default:
		*t = instant(eventrow.Clamp(v.Time))
	}
	return nil
}

// Scan implements sql.Scanner. Drivers of database/sql return infinity as a
// text.
func (t *instant) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*t = instant{}
		return nil
	case time.Time:
		*t = instant(eventrow.Clamp(v))
		return nil
	case string:
		return t.infinite(v)
	case []byte:
		return t.infinite(string(v))
	}
	return fmt.Errorf("pgstore: %T is not a time", src)
}

func (t *instant) infinite(text string) error {
	switch text {
	case "infinity":
		*t = instant(eventrow.Latest())
	case "-infinity":
		*t = instant(eventrow.Earliest())
	default:
		return fmt.Errorf("pgstore: %q is not a time", text)
	}
	return nil
}

package sqlitestore

import (
	"context"
	"math"

	"github.com/waybillhq/waybill/store/driver"
)

// OpenWriters implements [driver.Reader]. One transaction writes at a time, so
// no commit is late.
func (*backend) OpenWriters(context.Context) (driver.WriterState, error) {
	return driver.WriterState{HighSeq: math.MaxInt64, Issued: math.MaxInt64}, nil
}

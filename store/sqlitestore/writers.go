package sqlitestore

import (
	"context"
	"math"

	"github.com/waybillhq/waybill/store/driver"
)

// OpenWriters implements [driver.Reader]. One transaction writes at a time, so
// no commit to the outbox is late. A backlog has no writers.
func (*queue) OpenWriters(context.Context) (driver.WriterState, error) {
	return driver.WriterState{HighSeq: math.MaxInt64, Issued: math.MaxInt64}, nil
}

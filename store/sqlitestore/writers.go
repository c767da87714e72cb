package sqlitestore

import (
	"context"
	"math"

	"github.com/waybillhq/waybill/store"
)

// OpenWriters implements [store.Reader]. One transaction writes at a time, so
// no commit is late.
func (*Store) OpenWriters(context.Context) (store.WriterState, error) {
	return store.WriterState{HighSeq: math.MaxInt64, Issued: math.MaxInt64}, nil
}

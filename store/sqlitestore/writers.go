package sqlitestore

import (
	"context"
	"math"

	"github.com/waybillhq/waybill/store"
)

// Writers implements [store.Reader]. One transaction writes at a time: nothing comes late.
func (*Store) OpenWriters(context.Context) (store.WriterState, error) {
	return store.WriterState{HighSeq: math.MaxInt64, Issued: math.MaxInt64}, nil
}

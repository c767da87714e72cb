package pgstore

import (
	"context"

	"github.com/waybillhq/waybill/store"
)

// insufficientPrivilege is the server's code for what an account may not do.
const insufficientPrivilege = "42501"

// Writers implements [store.Reader]. Whoever has drawn from a sequence holds a lock on it until the end of its transaction, also of one
// that is prepared, also across a restart of the server, and until after its rows can be seen. Every account may look at locks.
func (c *core) OpenWriters(ctx context.Context) (store.WriterState, error) {
	var w store.WriterState
	rows, err := c.db.query(ctx, c.sql.drawn)
	err = collect(rows, err, func() error { return nil }, &w.HighSeq)
	if sqlState(err) == insufficientPrivilege {
		return store.WriterState{Unknown: true}, nil
	}
	if err != nil {
		return store.WriterState{}, c.explain(err)
	}
	w.Issued = w.HighSeq
	// Only now: who draws from here on draws more than that.
	var name string
	rows, err = c.db.query(ctx, c.sql.drawers)
	err = collect(rows, err, func() error {
		w.Open = append(w.Open, name)
		return nil
	}, &name)
	return w, c.explain(err)
}

package pgstore

import (
	"context"

	"github.com/waybillhq/waybill/store/driver"
)

// insufficientPrivilege is the server's code for a missing privilege.
const insufficientPrivilege = "42501"

// OpenWriters implements [driver.Reader]. A transaction that has drawn from a
// sequence holds a lock on it until the transaction ends and its rows are
// visible. This includes prepared transactions, even across a restart of the
// server. Every account may read the locks.
func (c *core) OpenWriters(ctx context.Context) (driver.WriterState, error) {
	var w driver.WriterState
	var timeline int64
	rows, err := c.db.query(ctx, c.sql.drawn)
	err = collect(rows, err, func() error { return nil }, &w.HighSeq, &timeline)
	if sqlState(err) == insufficientPrivilege {
		return driver.WriterState{Unknown: true}, nil
	}
	if err != nil {
		return driver.WriterState{}, c.explain(err)
	}
	if err := c.readOn(timeline, noLanes); err != nil {
		return driver.WriterState{}, err
	}
	w.Issued = w.HighSeq
	// The order matters: transactions that draw after this point draw higher
	// numbers.
	var name string
	rows, err = c.db.query(ctx, c.sql.drawers)
	err = collect(rows, err, func() error {
		if name != "" { // else it is the row of the timeline
			w.Open = append(w.Open, name)
		}
		return nil
	}, &name, &timeline)
	if err != nil {
		return driver.WriterState{}, c.explain(err)
	}
	return w, c.readOn(timeline, noLanes)
}

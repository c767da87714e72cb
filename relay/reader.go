package relay

import (
	"context"
	"time"

	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay/internal/ledger"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

type readReply struct {
	read   ledger.Read
	answer ledger.Answer
	err    error
}

// readTimeout limits a read.
const readTimeout = time.Minute

// reader runs reads until the channel is closed.
func (e *engine) reader() {
	for r := range e.reads {
		ctx, cancel := context.WithTimeout(e.io, readTimeout)
		began := time.Now()
		a, err := e.runRead(ctx, &r)
		cancel()
		a.Took = time.Since(began)
		// The hook is called here, because the answer of the last read is not
		// handled when Run ends.
		if e.observe.Read != nil {
			e.observe.Read(observe.ReadInfo{Kind: r.Kind.String(), Rows: len(a.Page.Rows) + len(a.Refs) + len(a.Holds), Took: a.Took, Err: err})
		}
		e.pages <- readReply{read: r, answer: a, err: err}
	}
}

// runRead runs a read with the checks that follow it.
func (e *engine) runRead(ctx context.Context, r *ledger.Read) (a ledger.Answer, err error) {
	switch r.Kind {
	case ledger.ReadHolds:
		a.Holds, err = e.db.Holds(ctx, r.Lanes)
	case ledger.ReadFast:
		if r.Skip == nil {
			a.Page, err = e.db.Fetch(ctx, r.Cursors, r.Limit)
		} else {
			a.Refs, a.Page, err = e.pick(ctx, r)
		}
	case ledger.ReadDue:
		a.Page, err = e.db.Due(ctx, r.Lanes, r.Limit)
	case ledger.ReadFollow:
		a.Page, err = e.db.FetchAggregate(ctx, r.Aggregate, r.Cursors[0], r.Limit)
	case ledger.ReadLoad:
		a.Page, err = e.db.Load(ctx, r.Keys)
	case ledger.ReadSweep:
		a.Refs, err = e.db.Sweep(ctx, r.Cursors, r.Limit)
	case ledger.ReadUrgent:
		a.Page, err = e.db.FetchPriority(ctx, r.Cursors, r.Limit)
	case ledger.ReadWriters: // only the open transactions, below
	}
	if err == nil && r.Verify {
		var w driver.WriterState
		w, err = e.db.OpenWriters(ctx)
		a.Writers = &w
	}
	if err == nil && len(r.Check) > 0 {
		a.Refs, err = e.db.Sweep(ctx, r.Check, ledger.CheckLimit)
	}
	return a, err
}

// pick lists the next rows of a lane, and loads those that are not to be
// skipped.
func (e *engine) pick(ctx context.Context, r *ledger.Read) ([]driver.RowRef, driver.Page, error) {
	seen, err := e.db.Sweep(ctx, r.Cursors, r.Limit)
	if err != nil {
		return nil, driver.Page{}, err
	}
	var keys []store.Key
	for _, s := range seen {
		if _, skip := r.Skip[s.Aggregate]; !skip {
			keys = append(keys, s.Key)
		}
	}
	page, err := e.db.Load(ctx, keys)
	return seen, page, err
}

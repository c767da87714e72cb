package relay

import (
	"context"
	"errors"
	"time"

	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay/internal/ledger"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

type readReply struct {
	queue  *queue
	read   ledger.Read
	answer ledger.Answer
	err    error
}

// readTimeout limits a read.
const readTimeout = time.Minute

// reader runs reads until the channel is closed.
func (q *queue) reader() {
	e := q.e
	for r := range q.reads {
		ctx, cancel := context.WithTimeout(e.io, readTimeout)
		began := time.Now()
		a, err := q.runRead(ctx, &r)
		cancel()
		a.Took = time.Since(began)
		// The hook is called here, because the answer of the last read is not
		// handled when Run ends.
		if e.observe.Read != nil {
			e.observe.Read(observe.ReadInfo{Kind: r.Kind.String(), Rows: len(a.Page.Rows) + len(a.Refs) + len(a.Holds), Took: a.Took, Err: err})
		}
		e.pages <- readReply{queue: q, read: r, answer: a, err: err}
	}
}

// runRead runs a read with the checks that follow it. If the page is too large,
// runRead repeats the read with fewer rows.
func (q *queue) runRead(ctx context.Context, r *ledger.Read) (a ledger.Answer, err error) {
	for {
		a, err = q.readRows(ctx, r)
		if !errors.Is(err, driver.ErrPageTooLarge) || !r.Shrink() {
			break
		}
	}
	if err == nil && r.Verify {
		var w driver.WriterState
		w, err = q.rows.OpenWriters(ctx)
		a.Writers = &w
	}
	if err == nil && len(r.Check) > 0 {
		a.Refs, err = q.rows.Sweep(ctx, r.Check, ledger.CheckLimit)
	}
	return a, err
}

// readRows runs a read without the checks that follow it.
func (q *queue) readRows(ctx context.Context, r *ledger.Read) (a ledger.Answer, err error) {
	switch r.Kind {
	case ledger.ReadHolds:
		a.Holds, err = q.rows.Holds(ctx, r.Lanes)
	case ledger.ReadFast:
		if r.Skip == nil {
			a.Page, err = q.rows.Fetch(ctx, r.Cursors, r.Limit)
		} else {
			a.Refs, a.Page, err = q.pick(ctx, r)
		}
	case ledger.ReadDue:
		a.Page, err = q.rows.Due(ctx, r.Lanes, r.Limit)
	case ledger.ReadFollow:
		a.Page, err = q.rows.FetchAggregate(ctx, r.Aggregate, r.Cursors[0], r.Limit)
	case ledger.ReadLoad:
		a.Page, err = q.rows.Load(ctx, r.Keys)
	case ledger.ReadSweep:
		a.Refs, err = q.rows.Sweep(ctx, r.Cursors, r.Limit)
	case ledger.ReadUrgent:
		a.Page, err = q.rows.FetchPriority(ctx, r.Cursors, r.Limit)
	case ledger.ReadOthers:
		a.Refs, a.Page, err = q.others(ctx, r)
	case ledger.ReadWriters: // only the open transactions
	}
	return a, err
}

// others lists the next rows of lanes, and loads those of tenants outside the
// crowd.
func (q *queue) others(ctx context.Context, r *ledger.Read) ([]driver.RowRef, driver.Page, error) {
	seen, err := q.rows.Sweep(ctx, r.Cursors, r.Limit)
	if err != nil {
		return nil, driver.Page{}, err
	}
	seen, keys := r.Others(seen)
	if len(keys) == 0 {
		return seen, driver.Page{}, nil
	}
	page, err := q.rows.Load(ctx, keys)
	return seen, page, err
}

// pick lists the next rows of a lane, and loads those that are not to be
// skipped.
func (q *queue) pick(ctx context.Context, r *ledger.Read) ([]driver.RowRef, driver.Page, error) {
	seen, err := q.rows.Sweep(ctx, r.Cursors, r.Limit)
	if err != nil {
		return nil, driver.Page{}, err
	}
	var keys []store.Key
	for _, s := range seen {
		if _, skip := r.Skip[s.Aggregate]; !skip {
			keys = append(keys, s.Key)
		}
	}
	page, err := q.rows.Load(ctx, keys)
	return seen, page, err
}

package mysqlstore

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqltx"
	"github.com/waybillhq/waybill/store/driver"
)

// Finish implements [driver.Finisher]. It takes two round trips: one proves
// that the transaction is open and finds the tables of the events, the other
// calls a procedure that checks the fences and settles the events.
func (s *backend) Finish(ctx context.Context, tx *sql.Tx, done []waybill.Delivery) error {
	if len(done) == 0 {
		return nil
	}
	f, err := s.facts(ctx, tx)
	if err != nil {
		return sqltx.Done(err)
	}
	return s.refused(s.finish(ctx, tx, f, newFinishing(done)))
}

// finishing lists every fence and every event once, in the order in which they
// are locked.
type finishing struct {
	fences []driver.Lease
	events []finished
}

// finished is a delivered event.
type finished struct {
	lane int
	id   waybill.ID
	keep bool
}

func newFinishing(done []waybill.Delivery) finishing {
	var w finishing
	for _, d := range done {
		w.fences = append(w.fences, driver.LeaseOf(&d))
		w.events = append(w.events, finished{d.Position.Lane, d.ID, driver.ClaimOf(&d).History})
	}
	w.fences = sortedFences(w.fences)
	slices.SortStableFunc(w.events, func(a, b finished) int { return bytes.Compare(a.id[:], b.id[:]) })
	w.events = slices.CompactFunc(w.events, func(a, b finished) bool { return a.id == b.id })
	return w
}

func (s *backend) finish(ctx context.Context, tx querier, f facts, w finishing) error {
	late, err := s.lateOnes(ctx, tx, f, w.events)
	if err != nil {
		return err
	}
	if len(w.events) <= maxIDs { // the procedure undoes its own changes
		return s.callFinish(ctx, tx, w, late)
	}
	return s.atOnce(ctx, tx, func() error {
		// The first call checks and locks all fences.
		for part := range parts(w.events, maxIDs) {
			if err := s.callFinish(ctx, tx, finishing{w.fences, part}, late); err != nil {
				return err
			}
		}
		return nil
	})
}

// lateOnes proves that a transaction is open, and returns the events that it
// sees among the delayed ones.
func (s *backend) lateOnes(ctx context.Context, tx querier, f facts, events []finished) (map[waybill.ID]bool, error) {
	query, open := s.sql.lateProven, false
	if !f.proves {
		query = s.sql.late
		var err error
		if open, err = inTransaction(ctx, tx); err != nil {
			return nil, err
		}
	}
	late := make(map[waybill.ID]bool)
	for part := range parts(events, maxIDs) {
		ids := list(part, func(b []byte, e finished) []byte { return appendID(b, e.id) })
		var id scanID
		err := each(ctx, tx, fill(query, "{ids}", string(ids)), nil, func() {
			late[waybill.ID(id)] = true
			open = open || id == (scanID{})
		}, &id)
		if err != nil {
			return nil, err
		}
	}
	if !open {
		return nil, fmt.Errorf("%w: the server has no transaction open on this connection", waybill.ErrTxDone)
	}
	return late, nil
}

func (s *backend) callFinish(ctx context.Context, tx querier, w finishing, late map[waybill.ID]bool) error {
	isLate := func(e finished) bool { return late[e.id] }
	isReady := func(e finished) bool { return !late[e.id] }
	query := fill(s.sql.finish, "{fences}", string(list(w.fences, fenceItem)))
	query = fill(query, "{ready}", string(list(slices.DeleteFunc(slices.Clone(w.events), isLate), finishedItem)))
	query = fill(query, "{late}", string(list(slices.DeleteFunc(slices.Clone(w.events), isReady), finishedItem)))
	var outcome, lane int
	if err := each(ctx, tx, query, nil, nil, &outcome, &lane); err != nil {
		return err
	}
	if outcome == fenceShort {
		return fmt.Errorf("finish: lane %d: %w", lane, waybill.ErrLeaseLost)
	}
	return nil
}

// finishedItem is [lane, id, keep].
func finishedItem(b []byte, e finished) []byte {
	b = strconv.AppendInt(append(b, '['), int64(e.lane), 10)
	b = append(appendID(append(b, ','), e.id), ',', '0')
	if e.keep {
		b[len(b)-1] = '1'
	}
	return append(b, ']')
}

// sortedFences returns every fence once, in the order in which all sessions
// lock several fences.
func sortedFences(fences []driver.Lease) []driver.Lease {
	slices.SortFunc(fences, func(a, b driver.Lease) int {
		return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Epoch, b.Epoch), bytes.Compare(a.Token[:], b.Token[:]))
	})
	return slices.CompactFunc(fences, func(a, b driver.Lease) bool {
		return a.Lane == b.Lane && a.Epoch == b.Epoch && a.Token == b.Token
	})
}

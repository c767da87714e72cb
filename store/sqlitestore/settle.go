package sqlitestore

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// Settle implements [driver.Settler]. It is one write transaction: a takeover,
// which is another write transaction, cannot come between the check of the
// lease and the commit.
func (s *backend) Settle(ctx context.Context, set driver.Settlement) (driver.Settled, error) {
	var out driver.Settled
	gap := false
	err := s.within(ctx, func(ctx context.Context, t txTarget) error {
		var err error
		if out.Held, err = s.heldLanes(ctx, t, set.Leases); err != nil || len(out.Held) == 0 {
			return err
		}
		gap = len(set.Done) > 0 && !set.History
		if gap {
			if err := s.keepNoHistory(ctx, t); err != nil {
				return err
			}
		}
		out.Moved, err = s.settle(ctx, t, out.Held, set)
		return err
	})
	if err != nil {
		return driver.Settled{}, err
	}
	if gap {
		s.gap.Store(true)
	}
	return out, nil
}

// heldLanes returns the lanes whose lease is still held.
func (s *backend) heldLanes(ctx context.Context, t txTarget, leases []driver.Lease) ([]int, error) {
	var held []int
	for _, l := range leases {
		var yes bool
		rows, err := t.query(ctx, s.sql.held, l.Lane, l.Epoch, l.Token[:])
		if _, err := scanOne(rows, err, &yes); err != nil {
			return nil, err
		}
		if yes && !slices.Contains(held, l.Lane) {
			held = append(held, l.Lane)
		}
	}
	slices.Sort(held)
	return held, nil
}

// settle settles the results of held lanes and returns the moved events.
func (q *queue) settle(ctx context.Context, t txTarget, held []int, set driver.Settlement) ([]waybill.ID, error) {
	w := settling{queue: q, t: t, now: clock(), held: held}
	if err := w.divertOnly(ctx, set.Divert); err != nil {
		return nil, err
	}
	if err := w.done(ctx, set.Done, set.History); err != nil {
		return nil, err
	}
	if err := w.each(ctx, set.Retry, w.retry); err != nil {
		return nil, err
	}
	if err := w.each(ctx, set.Dead, w.bury); err != nil {
		return nil, err
	}
	return w.moved, nil
}

// settling is a settlement in progress.
type settling struct {
	queue *queue
	t     txTarget
	now   time.Time
	held  []int
	moved []waybill.ID
	// diverted are the diversions to registered destinations.
	diverted []driver.Diversion
}

// exit is a table that done events leave: the statements that copy them to the
// history, that copy them to backlogs, and that delete them.
type exit struct{ keep, divert, drop []*statement }

// exits returns the tables that done events leave. Most events are in the
// first, the others are in the second.
func (w *settling) exits(history bool) [2]exit {
	q := w.queue
	list := [2]exit{{drop: q.sql.dropReady}, {drop: q.sql.dropDelayed}}
	if q.isBacklog() {
		return list
	}
	outbox := q.store.sql
	if history {
		list[0].keep, list[1].keep = outbox.keepReady, outbox.keepDelayed
	}
	list[0].divert, list[1].divert = outbox.divertReady, outbox.divertDelayed
	return list
}

// done moves events to the history, or drops them. Those of a backlog are in
// the history already.
func (w *settling) done(ctx context.Context, results []driver.Result, history bool) error {
	var ids []waybill.ID
	for _, r := range results {
		if slices.Contains(w.held, r.Lane) {
			ids = append(ids, r.ID)
		}
	}
	exits := w.exits(history)
	gone, err := w.leave(ctx, ids, exits[0])
	if err != nil {
		return err
	}
	if len(gone) < len(ids) {
		rest := slices.DeleteFunc(slices.Clone(ids), func(id waybill.ID) bool { return gone[id] })
		late, err := w.leave(ctx, rest, exits[1])
		if err != nil {
			return err
		}
		for id := range late {
			gone[id] = true
		}
	}
	for _, id := range ids {
		if gone[id] {
			w.moved = append(w.moved, id)
			delete(gone, id) // a repeated id was moved once
		}
	}
	if history && w.queue.isBacklog() {
		return w.redate(ctx)
	}
	return nil
}

// leave removes events from one table, by way of the history and of backlogs,
// and returns the events that were there.
func (w *settling) leave(ctx context.Context, ids []waybill.ID, from exit) (map[waybill.ID]bool, error) {
	if err := w.divert(ctx, ids, from.divert); err != nil {
		return nil, err
	}
	gone := make(map[waybill.ID]bool, len(ids))
	err := lists(ids, idArg, func(index int, args []any) error {
		if from.keep != nil {
			kept := append([]any{micros(w.now)}, args...)
			if _, err := w.t.exec(ctx, from.keep[index], kept...); err != nil {
				return err
			}
		}
		return w.drop(ctx, from.drop[index], args, func(id waybill.ID) { gone[id] = true })
	})
	return gone, err
}

// drop deletes rows and frees their dedup keys.
func (w *settling) drop(ctx context.Context, st *statement, args []any, dropped func(waybill.ID)) error {
	type key struct {
		tenant, key string
		id          waybill.ID
	}
	var keys []key
	rows, err := w.t.query(ctx, st, args...)
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		var id waybill.ID
		var tenant, name sql.NullString
		if err := rows.Scan((*scanID)(&id), &tenant, &name); err != nil {
			return err
		}
		if name.Valid {
			keys = append(keys, key{tenant.String, name.String, id})
		}
		dropped(id)
		return nil
	})
	if err != nil {
		return err
	}
	for _, k := range keys {
		if _, err := w.t.exec(ctx, w.queue.store.sql.freeKey, k.tenant, k.key, k.id[:]); err != nil {
			return err
		}
	}
	return nil
}

// each calls move for every result of a held lane and notes the moved events.
func (w *settling) each(
	ctx context.Context, results []driver.Result, move func(context.Context, driver.Result) (bool, error),
) error {
	for _, r := range results {
		if !slices.Contains(w.held, r.Lane) {
			continue
		}
		moved, err := move(ctx, r)
		if err != nil {
			return err
		}
		if moved {
			w.moved = append(w.moved, r.ID)
		}
	}
	return nil
}

// retry defers an event, from either table. The event keeps its dedup key.
func (w *settling) retry(ctx context.Context, r driver.Result) (bool, error) {
	stmts := w.queue.sql
	args := []any{micros(w.now.Add(r.Delay)), r.Attempts, r.Holds, errorText(r.Error), r.ID[:]}
	n, err := affected(w.t.exec(ctx, stmts.retryDelayed, append(args, r.Replay)...))
	if err != nil || n > 0 {
		return n > 0, err
	}
	n, err = affected(w.t.exec(ctx, stmts.retryReady, w.ofReady(args, r)...))
	if err != nil || n == 0 {
		return false, err
	}
	_, err = w.t.exec(ctx, single(stmts.dropReady), r.ID[:])
	return true, err
}

// bury dead-letters an event and frees its dedup key.
func (w *settling) bury(ctx context.Context, r driver.Result) (bool, error) {
	stmts := w.queue.sql
	args := []any{r.Attempts, r.Holds, errorText(r.Error), micros(w.now), r.ID[:]}
	drop := single(stmts.dropDelayed)
	n, err := affected(w.t.exec(ctx, stmts.buryDelayed, append(args, r.Replay)...))
	if err == nil && n == 0 {
		drop = single(stmts.dropReady)
		n, err = affected(w.t.exec(ctx, stmts.buryReady, w.ofReady(args, r)...))
	}
	if err != nil || n == 0 {
		return false, err
	}
	return true, w.drop(ctx, drop, []any{r.ID[:]}, func(waybill.ID) {})
}

// ofReady returns the arguments of a statement that moves a ready row. Only the
// ready rows of a backlog can have been replayed.
func (w *settling) ofReady(args []any, r driver.Result) []any {
	if w.queue.isBacklog() {
		args = append(args, r.Replay)
	}
	return args
}

// single returns the statement of a list that takes one id.
func single(list []*statement) *statement { return list[len(sizes)-1] }

// errorText returns an error as it is stored.
func errorText(text string) any {
	if text = driver.CutError(text); text == "" {
		return nil
	}
	return text
}

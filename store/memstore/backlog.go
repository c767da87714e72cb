package memstore

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// byID returns diversions by the id of their event; nil for none.
func byID(diversions []driver.Diversion) map[waybill.ID][]driver.Diversion {
	if len(diversions) == 0 {
		return nil
	}
	all := make(map[waybill.ID][]driver.Diversion, len(diversions))
	for _, d := range diversions {
		all[d.ID] = append(all[d.ID], d)
	}
	return all
}

// divert copies a row that has left the outbox to a backlog; mu is held.
func (t *tables) divert(row store.Row, to driver.Diversion, now time.Time) {
	d := t.destination(to.Destination)
	if d == nil || d.rows[row.ID] != nil {
		return
	}
	next := untried(row)
	next.Attempts, next.LastError, next.Final = to.Attempts, driver.CutError(to.Error), to.Final
	if to.Delay > 0 {
		next.deferUntil(now.Add(to.Delay))
	}
	d.put(next)
}

// untried returns a record of a row for a backlog: ready, without an attempt.
func untried(row store.Row) *record {
	r := &record{Row: row}
	r.Attempts, r.LastError, r.Final, r.Holds = 0, "", false, false
	r.DueAt, r.Event.AvailableAt = time.Time{}, time.Time{}
	return r
}

// backlog implements [driver.Backlog]: the rows of one destination.
type backlog struct {
	reads
	tables *tables
	number int
}

var _ driver.Backlog = backlog{}

// Backlog implements [driver.Backlogs].
func (t *tables) Backlog(number int) driver.Backlog {
	set := func() *rowSet {
		if d := t.destination(number); d != nil {
			return &d.rowSet
		}
		none := newRowSet(len(t.lanes))
		return &none
	}
	return backlog{reads: reads{mu: &t.mu, set: set}, tables: t, number: number}
}

// OpenWriters implements [driver.Reader]. Seqs are drawn by the outbox.
func (b backlog) OpenWriters(ctx context.Context) (driver.WriterState, error) {
	return b.tables.OpenWriters(ctx)
}

// Settle implements [driver.Settler].
func (b backlog) Settle(_ context.Context, s driver.Settlement) (driver.Settled, error) {
	rows := b.lock()
	defer b.mu.Unlock()
	found, _ := rows.named(s) // no transaction records rows of a backlog as done
	g := settling{rows: rows, now: clock(), held: b.tables.heldOf(s.Leases), found: found}
	g.each(s.Done, true, func(r *record, _ driver.Result) {
		rows.remove(r)
		if s.History {
			b.tables.redate(r.ID, g.now)
		}
	})
	g.each(s.Retry, false, g.retry)
	g.each(s.Dead, false, g.bury)
	return driver.Settled{Held: g.held, Moved: g.moved}, nil
}

// redate sets the delivery time of an event in the history; mu is held.
func (t *tables) redate(id waybill.ID, now time.Time) {
	if r := t.rows[id]; r != nil && r.state == store.Delivered {
		t.move(r, store.Delivered, func(next *record) { next.ended = now })
	}
}

// Stats implements [driver.Inspector].
func (b backlog) Stats(context.Context) (store.Stats, error) {
	rows := b.lock()
	defer b.mu.Unlock()
	s := rows.stats()
	for i := range rows.queues {
		for r := range rows.queues[i].ready.all {
			s.MaxAttempts = max(s.MaxAttempts, r.Attempts)
		}
	}
	return s, nil
}

// Occupied implements [driver.Backlog].
func (b backlog) Occupied(context.Context) ([]int, error) {
	rows := b.lock()
	defer b.mu.Unlock()
	var lanes []int
	for _, r := range rows.rows {
		if r.pending() || r.Holds {
			lanes = append(lanes, r.Lane)
		}
	}
	return distinct(lanes), nil
}

// Replay implements [driver.DeadLetters].
func (b backlog) Replay(ctx context.Context, ids []waybill.ID) (store.Replayed, error) {
	rows := b.lock()
	defer b.mu.Unlock()
	dead, now := rows.dead(ids), clock()
	for _, r := range dead {
		rows.revive(r, now)
	}
	b.tables.note(ctx, len(dead))
	return store.Replayed{IDs: idsOf(dead)}, nil
}

// Discard implements [driver.DeadLetters].
func (b backlog) Discard(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	rows := b.lock()
	defer b.mu.Unlock()
	dead := rows.dead(ids)
	for _, r := range dead {
		rows.remove(r)
	}
	b.tables.note(ctx, len(dead))
	return idsOf(dead), nil
}

// Unblock implements [driver.DeadLetters].
func (b backlog) Unblock(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	rows := b.lock()
	defer b.mu.Unlock()
	done := rows.unblock(ids)
	b.tables.note(ctx, len(done))
	return done, nil
}

// PurgeDead implements [driver.Backlog].
func (b backlog) PurgeDead(ctx context.Context, age time.Duration, limit int) (int, error) {
	if age < 0 {
		return 0, fmt.Errorf("memstore: purge: negative age %v", age)
	}
	rows := b.lock()
	defer b.mu.Unlock()
	n := rows.purge(&rows.buried, clock().Add(-age), limit)
	b.tables.note(ctx, n)
	return n, nil
}

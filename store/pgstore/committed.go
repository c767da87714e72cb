package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// maxDoubted bounds the number of unresolved ids in memory.
const maxDoubted = 10_000

// Committed implements [driver.Resolver].
//
// Committed queries the open transactions before the tables. In the opposite
// order, a transaction that commits between the two queries would be missing
// from both. A transaction that was open at the first call for an id may still
// commit the event, so the answer is "uncertain" until that transaction has
// ended. A transaction that began later cannot contain the event, so a busy
// database does not delay the answer indefinitely. Only transactions of the
// store's own account count, so a report or a backup under another account does
// not delay the answer. A prepared transaction of any account that has drawn
// from the sequence does delay the answer, because PostgreSQL does not report
// when a prepared transaction began.
func (c *core) Committed(ctx context.Context, id waybill.ID) (bool, error) {
	var now time.Time
	var oldest *time.Time
	var prepared bool
	rows, err := c.db.query(ctx, c.sql.openTransactions)
	if err := collect(rows, err, func() error { return nil }, &now, &oldest, &prepared); err != nil {
		return false, c.explain(err)
	}
	var found bool
	var historyFrom string
	rows, err = c.db.query(ctx, c.sql.found, id.UUID())
	if err := collect(rows, err, func() error { return nil }, &found, &historyFrom); err != nil {
		return false, c.explain(err)
	}
	if found {
		c.forgetDoubt(id)
		return true, nil
	}
	if asked := c.doubtSince(id, now); oldest != nil && !oldest.After(asked) {
		return false, fmt.Errorf("pgstore: event %s: %w: a transaction that may contain the event is still open; retry later", id, waybill.ErrUncertain)
	}
	if prepared {
		return false, fmt.Errorf("pgstore: event %s: %w: a prepared transaction that may contain the event is pending; see pg_prepared_xacts", id, waybill.ErrUncertain)
	}
	if !driver.HistoryReaches(historyFrom, id) {
		return false, fmt.Errorf("pgstore: event %s: %w: the history does not reach back to the event", id, waybill.ErrUncertain)
	}
	c.forgetDoubt(id)
	return false, nil
}

// doubtSince returns the time of the first call for the id, by the database's
// clock.
func (s *shared) doubtSince(id waybill.ID, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if asked, ok := s.doubted[id]; ok {
		return asked
	}
	if len(s.doubted) < maxDoubted {
		s.doubted[id] = now
	}
	return now
}

func (s *shared) forgetDoubt(id waybill.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.doubted, id)
}

// noteGap records, once, that delivered events leave no history from now on.
// After that, "not found" does not prove "never committed". For an event in a
// backlog, the settlement that diverted it has recorded it.
func (c *core) noteGap(ctx context.Context) error {
	c.mu.Lock()
	noted := c.gap || c.backlog
	c.mu.Unlock()
	if noted {
		return nil
	}
	if err := c.db.exec(ctx, c.sql.setSetting, "history_from", "never"); err != nil {
		return err
	}
	c.mu.Lock()
	c.gap = true
	c.mu.Unlock()
	return nil
}

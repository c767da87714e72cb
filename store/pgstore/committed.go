package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// maxDoubted bounds how many unresolved ids are remembered.
const maxDoubted = 10_000

// Committed implements [store.Resolver].
//
// The open transactions are looked at before the tables. The other way round, one that commits in between would be neither in
// the tables that were read nor among the transactions that were open. A transaction that was open when the question was
// first asked may still commit the event: until it has ended the answer is "uncertain". One that began later cannot hold it,
// so a busy database does not put the answer off for ever. Only transactions of the store's own account are looked at: a report or a
// backup under another one does not put it off either. A prepared transaction of any account that has drawn from the sequence does: it does
// not say when it began.
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
		return false, fmt.Errorf("pgstore: event %s: %w: a transaction that may hold it is still open; ask again", id, waybill.ErrUncertain)
	}
	if prepared {
		return false, fmt.Errorf("pgstore: event %s: %w: a prepared transaction that may hold it has not ended; see pg_prepared_xacts", id, waybill.ErrUncertain)
	}
	if !store.HistoryReaches(historyFrom, id) {
		return false, fmt.Errorf("pgstore: event %s: %w: the history does not reach back to it", id, waybill.ErrUncertain)
	}
	c.forgetDoubt(id)
	return false, nil
}

// doubtSince returns when the id was first asked for, by the database's clock.
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

// noteGap records, once, that delivered events leave no history from now on, so that "not found" stops meaning "never was".
func (c *core) noteGap(ctx context.Context) error {
	c.mu.Lock()
	noted := c.gap
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

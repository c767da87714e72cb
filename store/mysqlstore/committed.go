package mysqlstore

import (
	"context"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// Committed implements [store.Resolver].
//
// Whether a transaction that is still open may yet commit the event can be asked directly: the server answered the INSERT before
// the COMMIT was sent, so such a transaction has the row, and has it locked. A locking read that does not wait meets the lock. It
// comes before the look at the tables: the other way round, a transaction that commits in between would be in neither. That needs
// no right to see other sessions, and no transaction but the event's own puts the answer off.
func (s *Store) Committed(ctx context.Context, id waybill.ID) (bool, error) {
	for _, probe := range s.sql.probe {
		var lane int
		switch err := each(ctx, s.db, probe, []any{id[:]}, nil, &lane); number(err) {
		case errLockTimeout, errLockNoWait:
			return false, fmt.Errorf("mysqlstore: event %s: %w: a transaction that has it is still open; ask again", id, waybill.ErrUncertain)
		default:
			if err != nil {
				return false, s.explain(err)
			}
		}
	}
	var found bool
	var historyFrom string
	if err := each(ctx, s.db, s.sql.found, []any{id[:]}, nil, &found, &historyFrom); err != nil {
		return false, s.explain(err)
	}
	if !found && !store.HistoryReaches(historyFrom, id) {
		return false, fmt.Errorf("mysqlstore: event %s: %w: the history does not reach back to it", id, waybill.ErrUncertain)
	}
	return found, nil
}

// noteGap records, once, that delivered events leave no history from now on, so that "not found" stops meaning "never was".
func (s *Store) noteGap(ctx context.Context) error {
	s.mu.Lock()
	noted := s.gap
	s.mu.Unlock()
	if noted {
		return nil
	}
	if _, err := s.db.ExecContext(ctx, s.sql.setSetting, "history_from", "never", "never"); err != nil {
		return err
	}
	s.mu.Lock()
	s.gap = true
	s.mu.Unlock()
	return nil
}

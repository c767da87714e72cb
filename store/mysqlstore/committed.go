package mysqlstore

import (
	"context"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// Committed implements [driver.Resolver].
//
// A locking read that does not wait detects an open transaction that may still
// commit the event: the server answered the INSERT before the COMMIT was sent,
// so such a transaction has the row, and has it locked. The locking read comes
// before the read of the tables: in the other order, a transaction that commits
// in between would be missed by both. Committed needs no privilege to list
// other sessions, and no transaction other than the event's own delays the
// answer.
func (s *backend) Committed(ctx context.Context, id waybill.ID) (bool, error) {
	for _, probe := range s.sql.probe {
		var lane int
		switch err := each(ctx, s.db, probe, []any{id[:]}, nil, &lane); number(err) {
		case errLockTimeout, errLockNoWait:
			return false, fmt.Errorf("mysqlstore: event %s: %w: a transaction that contains the event is still open; retry later", id, waybill.ErrUncertain)
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
	if !found && !driver.HistoryReaches(historyFrom, id) {
		return false, fmt.Errorf("mysqlstore: event %s: %w: the history does not reach back to the event", id, waybill.ErrUncertain)
	}
	return found, nil
}

// noteGap records, once, that delivered events leave no history from now on: a
// missing event may then have been delivered.
func (s *backend) noteGap(ctx context.Context) error {
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

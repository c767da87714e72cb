package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// resolvePatience is the maximum time that Committed waits for the write lock.
// Committed runs after a failure; a quick "uncertain" is a better answer then
// than a late one.
const resolvePatience = time.Second

// noHistory is the value of history_from which means that delivered events
// leave no trace.
const noHistory = "never"

// Committed implements [driver.Resolver]. An event that is not found may be in
// a transaction that is still open. Before Committed answers no, it takes the
// write lock, which an open transaction that has written would still hold. If
// Committed cannot get the lock within a second, the answer is uncertain.
func (s *backend) Committed(ctx context.Context, id waybill.ID) (bool, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return false, err
	}
	found, err := s.found(ctx, id)
	if err != nil || found {
		return found, err
	}
	bounded, cancel := context.WithTimeoutCause(ctx, resolvePatience, errWaited)
	defer cancel()
	var from string
	err = s.within(bounded, func(ctx context.Context, t txTarget) error {
		rows, err := t.query(ctx, s.sql.found, id[:])
		if _, err := scanOne(rows, err, &found); err != nil {
			return err
		}
		rows, err = t.query(ctx, s.sql.historyFrom)
		_, err = scanOne(rows, err, &from)
		return err
	})
	switch {
	case err != nil && (errors.Is(err, errWaited) || bounded.Err() != nil && ctx.Err() == nil):
		return false, fmt.Errorf("sqlitestore: event %s: %w: the event may be in a transaction that is still open: %w", id, waybill.ErrUncertain, err)
	case err != nil:
		return false, err
	case found:
		return true, nil
	case !driver.HistoryReaches(from, id):
		return false, fmt.Errorf("sqlitestore: event %s: %w: the event may have been delivered, and its history is gone", id, waybill.ErrUncertain)
	}
	return false, nil
}

// found reports whether any table has the event, as committed.
func (s *backend) found(ctx context.Context, id waybill.ID) (bool, error) {
	var found bool
	rows, err := s.query(ctx, s.sql.found, id[:])
	if _, err := scanOne(rows, err, &found); err != nil {
		return false, s.explain(err)
	}
	return found, nil
}

// keepNoHistory records in the tables, once per process, that delivered events
// leave no trace.
func (s *backend) keepNoHistory(ctx context.Context, t txTarget) error {
	if s.gap.Load() {
		return nil
	}
	var from sql.NullString
	rows, err := t.query(ctx, s.sql.historyFrom)
	if _, err := scanOne(rows, err, &from); err != nil {
		return err
	}
	if from.String == noHistory {
		return nil
	}
	_, err = t.exec(ctx, s.sql.keepNoHistory)
	return err
}

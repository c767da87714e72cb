package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// resolvePatience is how long Committed waits for the write lock. It is asked when something went wrong already; "ask again" soon is
// a better answer then than one late.
const resolvePatience = time.Second

// noHistory is the setting that says that delivered events leave no trace.
const noHistory = "never"

// Committed implements [store.Resolver]. An event that is not found may be in a transaction that is still open; so before it
// says no it takes the write lock, which nobody who has written can hold then. Where the lock cannot be had within a second the
// answer is uncertain.
func (s *Store) Committed(ctx context.Context, id waybill.ID) (bool, error) {
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
		return false, fmt.Errorf("sqlitestore: event %s: %w: it may be in a transaction that is still open: %w", id, waybill.ErrUncertain, err)
	case err != nil:
		return false, err
	case found:
		return true, nil
	case !store.HistoryReaches(from, id):
		return false, fmt.Errorf("sqlitestore: event %s: %w: it may have been delivered, and its history is gone", id, waybill.ErrUncertain)
	}
	return false, nil
}

// found reports whether any table has the event, as committed.
func (s *Store) found(ctx context.Context, id waybill.ID) (bool, error) {
	var found bool
	rows, err := s.query(ctx, s.sql.found, id[:])
	if _, err := scanOne(rows, err, &found); err != nil {
		return false, s.explain(err)
	}
	return found, nil
}

// keepNoHistory notes in the tables, once per process, that events are delivered without a trace.
func (s *Store) keepNoHistory(ctx context.Context, t txTarget) error {
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

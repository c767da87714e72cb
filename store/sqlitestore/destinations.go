package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// destinationStatements are the statements about the registry of destinations,
// and those of [driver.Restorer].
type destinationStatements struct {
	destinations, destinationNumber     *statement
	addDestination, removeDestination   *statement
	pauseDestination, resumeDestination *statement
	probeDestination                    *statement
	removeRows                          []*statement // of each table of the backlogs

	restoreLanes, restoreSeq, firstSeq, removeNodes *statement
}

func (s *destinationStatements) fill(one func(string) *statement) {
	// Primary key and unique name of destination.
	s.destinations = one(`SELECT number, name, paused_at, reason, probe_at, created_at FROM {destination} ORDER BY number`)
	s.addDestination = one(`INSERT INTO {destination} (number, name, created_at) VALUES (?, ?, ?)`)
	s.pauseDestination = one(`UPDATE {destination} SET paused_at = ?, reason = ? WHERE name = ? AND paused_at IS NULL`)
	s.resumeDestination = one(`UPDATE {destination} SET paused_at = NULL, reason = '' WHERE name = ? AND paused_at IS NOT NULL`)
	s.probeDestination = one(`UPDATE {destination} SET probe_at = ? WHERE name = ?`)
	s.destinationNumber = one(`SELECT number FROM {destination} WHERE name = ?`)
	s.removeDestination = one(`DELETE FROM {destination} WHERE number = ?`)
	// Primary key of backlog, backlog_delayed_due_idx, backlog_dead_seq_idx.
	for _, table := range []string{"{backlog}", "{backlog_delayed}", "{backlog_dead}"} {
		s.removeRows = append(s.removeRows, one(`DELETE FROM `+table+` WHERE lane = ?`))
	}

	s.restoreLanes = one(`UPDATE {lane} SET epoch = epoch + ?, owner = NULL, token = NULL, dirty = 1`)
	s.removeNodes = one(`DELETE FROM {node}`)
	// SQLite keeps the highest seq of outbox in sqlite_sequence. The table has
	// no row before the first event.
	s.restoreSeq = one(`UPDATE main.sqlite_sequence SET seq = seq + ? WHERE name = '{prefix}outbox'`)
	s.firstSeq = one(`INSERT INTO main.sqlite_sequence (name, seq) VALUES ('{prefix}outbox', ?)`)
}

// destinations returns all destinations, in the order of their numbers, as t or
// the last commit shows them.
func (s *backend) destinations(ctx context.Context, t interface {
	query(ctx context.Context, st *statement, args ...any) (*sql.Rows, error)
},
) ([]store.Destination, error) {
	var list []store.Destination
	rows, err := t.query(ctx, s.sql.destinations)
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		var d store.Destination
		var paused, probe sql.NullInt64
		var created int64
		if err := rows.Scan(&d.Number, &d.Name, &paused, &d.Reason, &probe, &created); err != nil {
			return err
		}
		d.PausedAt, d.ProbeAt, d.CreatedAt = timeOf(paused), timeOf(probe), time.UnixMicro(created).UTC()
		list = append(list, d)
		return nil
	})
	return list, err
}

// AddDestinations implements [driver.Backlogs]. It takes no lock if all
// destinations are registered already.
func (s *backend) AddDestinations(ctx context.Context, names ...string) ([]store.Destination, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return nil, err
	}
	all, err := s.destinations(ctx, s)
	if err != nil {
		return nil, s.explain(err)
	}
	if sqlstore.AllRegistered(all, names) {
		return all, nil
	}
	err = s.within(ctx, func(ctx context.Context, t txTarget) error {
		var err error
		if all, err = s.destinations(ctx, t); err != nil {
			return err
		}
		added, err := sqlstore.NewDestinations(all, names)
		if err != nil {
			return err
		}
		now := micros(clock())
		for _, d := range added {
			if _, err := t.exec(ctx, s.sql.addDestination, d.Number, d.Name, now); err != nil {
				return err
			}
		}
		if all, err = s.destinations(ctx, t); err != nil {
			return err
		}
		return s.note(ctx, t, int64(len(added)))
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// PauseDestination implements [driver.Backlogs].
func (s *backend) PauseDestination(ctx context.Context, name, reason string) (bool, error) {
	return s.changeDestination(ctx, name, func(ctx context.Context, t txTarget) (int64, error) {
		return affected(t.exec(ctx, s.sql.pauseDestination, micros(clock()), driver.CutError(reason), name))
	})
}

// ResumeDestination implements [driver.Backlogs].
func (s *backend) ResumeDestination(ctx context.Context, name string) (bool, error) {
	return s.changeDestination(ctx, name, func(ctx context.Context, t txTarget) (int64, error) {
		return affected(t.exec(ctx, s.sql.resumeDestination, name))
	})
}

// ProbeDestination implements [driver.Backlogs].
func (s *backend) ProbeDestination(ctx context.Context, name string) error {
	_, err := s.changeDestination(ctx, name, func(ctx context.Context, t txTarget) (int64, error) {
		return affected(t.exec(ctx, s.sql.probeDestination, micros(clock()), name))
	})
	return err
}

// changeDestination runs a statement that changes at most one destination, and
// reports whether it did.
func (s *backend) changeDestination(
	ctx context.Context, name string, change func(ctx context.Context, t txTarget) (int64, error),
) (bool, error) {
	changed := false
	err := s.within(ctx, func(ctx context.Context, t txTarget) error {
		n, err := change(ctx, t)
		if err != nil {
			return err
		}
		if changed = n > 0; changed {
			return s.note(ctx, t, 1)
		}
		_, err = s.destinationNumber(ctx, t, name)
		return err
	})
	if err != nil {
		return false, err
	}
	return changed, nil
}

// destinationNumber returns the number of a destination.
func (s *backend) destinationNumber(ctx context.Context, t txTarget, name string) (int, error) {
	var number int
	rows, err := t.query(ctx, s.sql.destinationNumber, name)
	found, err := scanOne(rows, err, &number)
	if err == nil && !found {
		err = fmt.Errorf("%w: %q", driver.ErrNoDestination, name)
	}
	return number, err
}

// RemoveDestination implements [driver.Backlogs]. Its number may be given to
// another destination next. It raises the epoch of the lane, so that a relay
// that was live long ago cannot settle events under that number any more.
func (s *backend) RemoveDestination(ctx context.Context, name string) (int64, error) {
	var removed int64
	err := s.within(ctx, func(ctx context.Context, t txTarget) error {
		number, err := s.destinationNumber(ctx, t, name)
		if err != nil {
			return err
		}
		if err := s.noRelay(ctx, t, clock()); err != nil {
			return err
		}
		if _, err := t.exec(ctx, s.sql.raiseEpoch); err != nil {
			return err
		}
		for _, remove := range s.sql.removeRows {
			n, err := affected(t.exec(ctx, remove, sqlstore.BaseLane(number)))
			if err != nil {
				return err
			}
			removed += n
		}
		if _, err = t.exec(ctx, s.sql.removeDestination, number); err != nil {
			return err
		}
		return s.note(ctx, t, removed+1)
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}

// Restored implements [driver.Restorer].
func (s *backend) Restored(ctx context.Context, force bool) error {
	return s.within(ctx, func(ctx context.Context, t txTarget) error {
		if !force {
			if err := s.noRelay(ctx, t, clock()); err != nil {
				return err
			}
		}
		if _, err := t.exec(ctx, s.sql.restoreLanes, driver.RestoreEpochs); err != nil {
			return err
		}
		if _, err := t.exec(ctx, s.sql.removeNodes); err != nil {
			return err
		}
		n, err := affected(t.exec(ctx, s.sql.restoreSeq, int64(driver.RestoreSeqs)))
		if err == nil && n == 0 {
			_, err = t.exec(ctx, s.sql.firstSeq, int64(driver.RestoreSeqs))
		}
		if err != nil {
			return err
		}
		return s.note(ctx, t, 1)
	})
}

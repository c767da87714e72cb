package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// destinationStatements holds the SQL of the registry of destinations, of
// replays of the history, and of the restoration of a backup.
type destinationStatements struct {
	destinations, addDestination string
	pause, resume, askProbe      string
	lockDestination, pinNumber   string
	dropDestination, freeAll     string
	countHistory                 string
	raiseAll, forgetAll          string
	drawAbove, dropAbove         string
}

func newDestinationStatements(r func(string) string) destinationStatements {
	return destinationStatements{
		// Primary key of destination.
		destinations: r(`SELECT number, name, ` + micros + `paused_at), reason, ` + micros + `probe_at), ` + micros + `created_at)
FROM {destination} ORDER BY number`),
		pinNumber: r(`SELECT number FROM {destination} WHERE number = ? LOCK IN SHARE MODE`),
		// Unique name of destination.
		addDestination:  r(`INSERT INTO {destination} (number, name) VALUES (?, ?)`),
		pause:           r(`UPDATE {destination} SET paused_at = UTC_TIMESTAMP(6), reason = ? WHERE name = ? AND paused_at IS NULL`),
		resume:          r(`UPDATE {destination} SET paused_at = NULL, reason = '' WHERE name = ? AND paused_at IS NOT NULL`),
		askProbe:        r(`UPDATE {destination} SET probe_at = UTC_TIMESTAMP(6) WHERE name = ?`),
		lockDestination: r(`SELECT number FROM {destination} WHERE name = ? FOR UPDATE`),
		dropDestination: r(`DELETE FROM {destination} WHERE number = ?`),
		// All rows of lane.
		freeAll:      r(`UPDATE {lane} SET owner = NULL, token = NULL, dirty = 1 WHERE owner IS NOT NULL`),
		countHistory: r(`SELECT COUNT(*) FROM {history} AS o WHERE {fits}`),

		raiseAll:  r(`UPDATE {lane} SET epoch = epoch + ?, owner = NULL, token = NULL, dirty = 1`),
		forgetAll: r(`DELETE FROM {node}`),
		// A row without an event, like the placeholder of a delayed event: it
		// makes AUTO_INCREMENT draw higher numbers from then on.
		drawAbove: r(`INSERT INTO {outbox} (id, lane, seq, type, payload) VALUES (?, 0, ?, '', '')`),
		dropAbove: r(`DELETE FROM {outbox} WHERE lane = 0 AND seq = ?`),
	}
}

// destinations returns the registered destinations.
func (s *backend) destinations(ctx context.Context, q querier) ([]store.Destination, error) {
	var all []store.Destination
	var number int
	var name, reason []byte
	var paused, probe sql.NullInt64
	var created int64
	err := each(ctx, q, s.sql.destinations, nil, func() {
		all = append(all, store.Destination{
			Number: number, Name: string(name), PausedAt: timeOf(paused), Reason: string(reason),
			ProbeAt: timeOf(probe), CreatedAt: time.UnixMicro(created).UTC(),
		})
	}, &number, &name, &paused, &reason, &probe, &created)
	return all, err
}

// AddDestinations implements [driver.Backlogs]. It takes the mutex of
// heartbeats, so that two calls do not choose the same number.
func (s *backend) AddDestinations(ctx context.Context, names ...string) ([]store.Destination, error) {
	all, err := s.destinations(ctx, s.db)
	if err != nil {
		return nil, s.explain(err)
	}
	if sqlstore.AllRegistered(all, names) {
		return all, nil
	}
	err = s.transact(ctx, func(tx *sql.Tx) error {
		if err := s.lockNodes(ctx, tx); err != nil {
			return err
		}
		if all, err = s.destinations(ctx, tx); err != nil {
			return err
		}
		added, err := sqlstore.NewDestinations(all, names)
		if err != nil {
			return err
		}
		for _, d := range added {
			if _, err := tx.ExecContext(ctx, s.sql.addDestination, d.Number, []byte(d.Name)); err != nil {
				return err
			}
		}
		if err := s.addAudit(ctx, tx, int64(len(added))); err != nil {
			return err
		}
		all, err = s.destinations(ctx, tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// lockNodes takes the mutex of heartbeats until the transaction ends: no relay
// starts meanwhile.
func (s *backend) lockNodes(ctx context.Context, tx querier) error {
	return each(ctx, tx, s.sql.lockHeartbeat, nil, nil, new(sql.RawBytes))
}

// PauseDestination implements [driver.Backlogs].
func (s *backend) PauseDestination(ctx context.Context, name, reason string) (bool, error) {
	return s.turn(ctx, name, s.sql.pause, []byte(driver.CutError(reason)))
}

// ResumeDestination implements [driver.Backlogs].
func (s *backend) ResumeDestination(ctx context.Context, name string) (bool, error) {
	return s.turn(ctx, name, s.sql.resume)
}

// ProbeDestination implements [driver.Backlogs].
func (s *backend) ProbeDestination(ctx context.Context, name string) error {
	_, err := s.turn(ctx, name, s.sql.askProbe)
	return err
}

// turn runs a statement that changes a destination, and reports whether it
// did.
func (s *backend) turn(ctx context.Context, name, query string, args ...any) (bool, error) {
	args = append(args, []byte(name))
	var n int64
	err := s.audited(ctx, func(q querier) (_ int64, err error) {
		n, err = affected(q.ExecContext(ctx, query, args...))
		return n, err
	})
	if err != nil || n > 0 {
		return n > 0, err
	}
	all, err := s.destinations(ctx, s.db)
	if err == nil && !sqlstore.AllRegistered(all, []string{name}) {
		err = noDestination(name)
	}
	return false, s.explain(err)
}

func noDestination(name string) error { return fmt.Errorf("%w: %q", driver.ErrNoDestination, name) }

// RemoveDestination implements [driver.Backlogs]. It holds the mutex of
// heartbeats, so no relay starts before the rows are gone. It also ends the
// leases of relays that died: such a relay, should it wake up, must not settle
// for a destination that has the same number later.
func (s *backend) RemoveDestination(ctx context.Context, name string) (int64, error) {
	var removed int64
	err := s.transact(ctx, func(tx *sql.Tx) error {
		removed = 0
		if err := s.lockNodes(ctx, tx); err != nil {
			return err
		}
		number := 0
		if err := each(ctx, tx, s.sql.lockDestination, []any{[]byte(name)}, nil, &number); err != nil {
			return err
		}
		if number == 0 {
			return noDestination(name)
		}
		if err := s.noRelay(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, s.sql.freeAll); err != nil {
			return err
		}
		for _, statement := range newBacklogStatements(s.cfg, number).clear {
			n, err := affected(tx.ExecContext(ctx, statement))
			if err != nil {
				return err
			}
			removed += n
		}
		if _, err := tx.ExecContext(ctx, s.sql.dropDestination, number); err != nil {
			return err
		}
		return s.addAudit(ctx, tx, removed+1)
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}

// Restored implements [driver.Restorer]. AUTO_INCREMENT continues after the
// highest number that was ever inserted, so inserting a row with a higher one
// raises it; unlike ALTER TABLE, that is part of the transaction.
func (s *backend) Restored(ctx context.Context, force bool) error {
	return s.transact(ctx, func(tx *sql.Tx) error {
		if err := s.lockNodes(ctx, tx); err != nil {
			return err
		}
		if err := s.noRelay(ctx, tx); err != nil && !force {
			return err
		}
		if err := s.raiseLanes(ctx, tx, driver.RestoreEpochs); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, s.sql.forgetAll); err != nil {
			return err
		}
		if err := s.raiseSeqs(ctx, tx); err != nil {
			return err
		}
		return s.addAudit(ctx, tx, 1)
	})
}

// raiseHighest raises the epoch that removed lanes continue from: lanes may
// have been removed or added since the backup.
func (s *backend) raiseHighest(ctx context.Context, tx querier, by int64) error {
	var last, window int
	var epoch, highest int64
	var dirty bool
	if err := each(ctx, tx, s.sql.lanesNow, nil, nil, &last, &epoch, &window, &dirty); err != nil {
		return err
	}
	if err := each(ctx, tx, s.sql.readSetting, []any{highestEpoch}, nil, &highest); err != nil {
		return err
	}
	value := strconv.FormatInt(max(highest+by, epoch), 10)
	_, err := tx.ExecContext(ctx, s.sql.setSetting, highestEpoch, value, value)
	return err
}

// raiseSeqs raises the seq that the outbox issues next.
func (s *backend) raiseSeqs(ctx context.Context, tx querier) error {
	var highest int64
	if err := each(ctx, tx, s.sql.drawn, nil, nil, &highest, new(sql.RawBytes)); err != nil {
		return err
	}
	issued, err := s.issued(ctx, tx)
	if err != nil {
		return err
	}
	id, above := waybill.NewID(), max(highest, issued)+driver.RestoreSeqs
	if _, err := tx.ExecContext(ctx, s.sql.drawAbove, id[:], above); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, s.sql.dropAbove, above)
	return err
}

package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// destinationStatements are the statements of the registry of destinations, and
// of the restoration.
type destinationStatements struct {
	destinations, lockDestinations, addDestinations string
	pauseDestination, resumeDestination             string
	probeDestination                                string
	disown, removeDestination, removeBacklog        string
	restoreLanes, restoreNodes, restoreSequence     string
}

func newDestinationStatements(r func(string) string) destinationStatements {
	return destinationStatements{
		destinations:      r(listDestinations),
		lockDestinations:  r(`LOCK TABLE {destination} IN SHARE ROW EXCLUSIVE MODE`),
		addDestinations:   r(addDestinations),
		pauseDestination:  r(pauseDestination),
		resumeDestination: r(resumeDestination),
		probeDestination:  r(probeDestination),
		disown:            r(disownLanes),
		removeDestination: r(removeDestination),
		removeBacklog:     r(removeBacklog),
		restoreLanes:      r(restoreLanes),
		restoreNodes:      r(`DELETE FROM {node}`),
		restoreSequence:   r(restoreSequence),
	}
}

const (
	listDestinations = `SELECT number, name, paused_at, reason, probe_at, created_at FROM {destination} ORDER BY number`

	// addDestinations inserts destinations; $1: numbers, $2: names. It runs
	// under a lock on the table, because a number must be used once.
	addDestinations = `WITH ` + durable + `
INSERT INTO {destination} (number, name) SELECT number, name FROM durable, unnest($1::smallint[], $2::text[]) AS d(number, name)`

	// pauseDestination and resumeDestination return whether the destination is
	// registered and whether it was changed. Unique name of destination.
	pauseDestination = `WITH ` + durable + `, paused AS (
  UPDATE {destination} SET paused_at = clock_timestamp(), reason = $2::text FROM durable WHERE name = $1::text AND paused_at IS NULL RETURNING 1
)
SELECT EXISTS (SELECT FROM {destination} WHERE name = $1::text), EXISTS (SELECT FROM paused)`
	resumeDestination = `WITH ` + durable + `, resumed AS (
  UPDATE {destination} SET paused_at = NULL, reason = '' FROM durable WHERE name = $1::text AND paused_at IS NOT NULL RETURNING 1
)
SELECT EXISTS (SELECT FROM {destination} WHERE name = $1::text), EXISTS (SELECT FROM resumed)`

	// probeDestination returns the number of destinations that it changed.
	// Unique name of destination.
	probeDestination = `WITH ` + durable + `, probed AS (
  UPDATE {destination} SET probe_at = clock_timestamp() FROM durable WHERE name = $1::text RETURNING 1
)
SELECT count(*) FROM probed`

	// disownLanes releases the lanes of nodes that are silent, and waits for
	// their settlements: none of them diverts to the destination afterwards.
	disownLanes = `UPDATE {lane} SET owner = NULL, token = NULL, dirty = true WHERE owner IS NOT NULL`

	// removeDestination deletes a destination; a refill waits for it, or it
	// waits for the refill.
	removeDestination = `DELETE FROM {destination} WHERE name = $1::text RETURNING number`

	// removeBacklog deletes the rows of a backlog; $1, $2: the first and the
	// last of its lanes. Primary key of backlog (lane, seq, id),
	// backlog_delayed_due_idx (lane, due_at, seq), backlog_dead_seq_idx (lane
	// >> 10, seq).
	removeBacklog = `WITH ready AS (
  DELETE FROM {backlog} WHERE lane BETWEEN $1::smallint AND $2::smallint RETURNING 1
), late AS (
  DELETE FROM {backlog_delayed} WHERE lane BETWEEN $1::smallint AND $2::smallint RETURNING 1
), buried AS (
  DELETE FROM {backlog_dead} WHERE lane >> 10 = $1::smallint >> 10 RETURNING 1
)
SELECT (SELECT count(*) FROM ready) + (SELECT count(*) FROM late) + (SELECT count(*) FROM buried)`
)

// AddDestinations implements [driver.Backlogs]. It locks the table only if a
// name is not registered.
func (c *core) AddDestinations(ctx context.Context, names ...string) ([]store.Destination, error) {
	all, err := c.registered(ctx, c.db)
	if err == nil && !sqlstore.AllRegistered(all, names) {
		err = c.db.within(ctx, func(tx database) (err error) {
			all, err = c.register(ctx, tx, names)
			return err
		})
	}
	if err != nil {
		return nil, c.explain(err)
	}
	return all, nil
}

// registered returns all destinations.
func (c *core) registered(ctx context.Context, db database) ([]store.Destination, error) {
	var all []store.Destination
	var d store.Destination
	var paused, probe, created instant
	rows, err := db.query(ctx, c.sql.destinations)
	err = collect(rows, err, func() error {
		d.PausedAt, d.ProbeAt, d.CreatedAt = time.Time(paused), time.Time(probe), time.Time(created)
		all = append(all, d)
		return nil
	}, &d.Number, &d.Name, &paused, &d.Reason, &probe, &created)
	return all, err
}

// register registers names in a transaction, and returns all destinations.
func (c *core) register(ctx context.Context, tx database, names []string) ([]store.Destination, error) {
	if err := tx.exec(ctx, c.sql.lockDestinations); err != nil {
		return nil, err
	}
	all, err := c.registered(ctx, tx)
	if err != nil {
		return nil, err
	}
	added, err := sqlstore.NewDestinations(all, names)
	if err != nil {
		return nil, err
	}
	numbers := tx.int16s(column(added, func(d store.Destination) int16 { return int16(d.Number) }))
	err = tx.exec(ctx, c.sql.addDestinations, numbers, tx.texts(column(added, func(d store.Destination) string { return d.Name })))
	if err != nil {
		return nil, err
	}
	if err := c.note(ctx, tx, int64(len(added))); err != nil {
		return nil, err
	}
	return c.registered(ctx, tx)
}

// PauseDestination implements [driver.Backlogs].
func (c *core) PauseDestination(ctx context.Context, name, reason string) (bool, error) {
	return c.switched(ctx, c.sql.pauseDestination, name, driver.CutError(reason))
}

// ResumeDestination implements [driver.Backlogs].
func (c *core) ResumeDestination(ctx context.Context, name string) (bool, error) {
	return c.switched(ctx, c.sql.resumeDestination, name)
}

// ProbeDestination implements [driver.Backlogs].
func (c *core) ProbeDestination(ctx context.Context, name string) error {
	n, err := c.howMany(ctx, c.sql.probeDestination, name)
	if err == nil && n == 0 {
		err = fmt.Errorf("pgstore: %w: %q", driver.ErrNoDestination, name)
	}
	return err
}

// switched runs a statement that returns whether the destination is registered
// and whether it was changed. name is the first argument.
func (c *core) switched(ctx context.Context, query string, args ...any) (bool, error) {
	var there, changed bool
	err := c.audited(ctx, func(db database) (int64, error) {
		rows, err := db.query(ctx, query, args...)
		err = collect(rows, err, func() error { return nil }, &there, &changed)
		if !changed {
			return 0, err
		}
		return 1, err
	})
	if err != nil {
		return false, c.explain(err)
	}
	if !there {
		return false, fmt.Errorf("pgstore: %w: %q", driver.ErrNoDestination, args[0])
	}
	return changed, nil
}

// RemoveDestination implements [driver.Backlogs].
func (c *core) RemoveDestination(ctx context.Context, name string) (int64, error) {
	var gone int64
	err := c.db.within(ctx, func(tx database) error {
		live, err := c.withoutNodes(ctx, tx)
		if err != nil {
			return err
		}
		number := 0
		rows, err := tx.query(ctx, c.sql.removeDestination, name)
		if err := collect(rows, err, func() error { return nil }, &number); err != nil {
			return err
		}
		switch {
		case number == 0:
			return fmt.Errorf("%w: %q", driver.ErrNoDestination, name)
		case live:
			return fmt.Errorf("remove destination %q: %w", name, store.ErrRelayLive)
		}
		if err := tx.exec(ctx, c.sql.disown); err != nil {
			return err
		}
		low := sqlstore.BaseLane(number)
		rows, err = tx.query(ctx, c.sql.removeBacklog, low, low+sqlstore.MaxLanes-1)
		if err := collect(rows, err, func() error { return nil }, &gone); err != nil {
			return err
		}
		return c.note(ctx, tx, gone+1)
	})
	if err != nil {
		return 0, c.explain(err)
	}
	return gone, nil
}

// withoutNodes locks the nodes until the end of the transaction, which commits
// synchronously, and reports whether a relay is live. A relay that joins takes
// the same lock, and a heartbeat waits for it.
func (c *core) withoutNodes(ctx context.Context, tx database) (live bool, err error) {
	if err := tx.exec(ctx, c.sql.lockNodes); err != nil {
		return false, err
	}
	rows, err := tx.query(ctx, c.sql.anyLive)
	err = collect(rows, err, func() error { return nil }, &live)
	return live, err
}

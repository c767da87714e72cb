package pgstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/waybillhq/waybill/internal/sqlstore"

	"github.com/waybillhq/waybill/store"
)

// setLanesStatements change the number of lanes to $1, in a transaction under a
// lock on the nodes. Writers wait for the change, and the change waits for
// writers.
//
// All lanes start above the highest epoch of any lane: a lane that is removed
// now and added later must not repeat an epoch. Events of the owner of one lane
// may now be in any lane, so every lane becomes as dirty as the worst of them.
//
// In the backlogs the bits above the lane are the number of the destination,
// and stay.
func setLanesStatements(r func(string) string) []string {
	statements := []string{`LOCK TABLE {outbox}, {delayed}, {dead}, {backlog}, {backlog_delayed}, {backlog_dead} IN ACCESS EXCLUSIVE MODE`}
	lane := strings.ReplaceAll(rightLane, "{n}", "$1::integer")
	for _, table := range []string{"{outbox}", "{delayed}", "{dead}"} {
		statements = append(statements, `UPDATE `+table+` SET lane = `+lane+` WHERE lane <> `+lane)
	}
	lane = `((lane >> 10) << 10) + ` + lane
	for _, table := range []string{"{backlog}", "{backlog_delayed}", "{backlog_dead}"} {
		statements = append(statements, `UPDATE `+table+` SET lane = `+lane+` WHERE lane <> `+lane)
	}
	statements = append(statements, `WITH old AS MATERIALIZED (
  SELECT max(epoch) + 1 AS epoch, max(in_flight) AS in_flight, bool_or(dirty OR owner IS NOT NULL) AS dirty FROM {lane}
), removed AS (
  DELETE FROM {lane} WHERE lane >= $1::integer
)
INSERT INTO {lane} AS l (lane, epoch, in_flight, dirty)
SELECT lane, old.epoch, old.in_flight, old.dirty FROM old, generate_series(0, $1::integer - 1) AS lane
ON CONFLICT (lane) DO UPDATE SET owner = NULL, token = NULL, epoch = excluded.epoch, in_flight = excluded.in_flight, dirty = excluded.dirty`,
		`UPDATE {setting} SET value = $1::integer::text WHERE name = 'lanes'`)
	for i := range statements {
		statements[i] = r(statements[i])
	}
	return statements
}

// countLanes replaces the function that returns the number of lanes. A function
// definition takes no arguments.
const countLanes = `CREATE OR REPLACE FUNCTION {lane_count}() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT %d $$`

// anyLive reports whether a relay is running.
const anyLive = `WITH ` + durable + ` SELECT EXISTS (SELECT FROM {node} WHERE expires_at > clock_timestamp()) FROM durable`

// SetLanes implements [driver.Maintainer].
func (c *core) SetLanes(ctx context.Context, n int) error {
	if n < 1 || n > sqlstore.MaxLanes {
		return fmt.Errorf("pgstore: lane count %d is not between 1 and %d", n, sqlstore.MaxLanes)
	}
	err := c.db.within(ctx, func(tx database) error {
		live, err := c.withoutNodes(ctx, tx)
		if err != nil {
			return err
		}
		if live {
			return store.ErrRelayLive
		}
		for i, statement := range c.sql.setLanes {
			args := []any{n}
			if i == 0 { // a lock takes no arguments
				args = nil
			}
			if err := tx.exec(ctx, statement, args...); err != nil {
				return err
			}
		}
		if err := tx.exec(ctx, fmt.Sprintf(c.sql.countLanes, n)); err != nil {
			return err
		}
		return c.note(ctx, tx, 1)
	})
	if err != nil {
		return c.explain(err)
	}
	c.noteLanes(n)
	return nil
}

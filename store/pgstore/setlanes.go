package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/waybillhq/waybill/store"
)

// setLanesStatements change the number of lanes to $1, in a transaction behind a lock on the nodes. Writers wait for it, and it waits
// for writers.
//
// All lanes start above the highest epoch of any: one that is removed now and added later must not see an epoch again. What the owner
// of one lane left behind may now be in any, so they are all as unclean as the worst of them.
func setLanesStatements(r func(string) string) []string {
	statements := []string{`LOCK TABLE {outbox}, {delayed}, {dead} IN ACCESS EXCLUSIVE MODE`}
	// As the trigger chooses it.
	const lane = `CASE WHEN coalesce(aggregate_id, '') = '' THEN {lane_of}('', '', id::text, $1::integer)
  ELSE {lane_of}(tenant_id, aggregate_type, aggregate_id, $1::integer) END`
	for _, table := range []string{"{outbox}", "{delayed}", "{dead}"} {
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

// anyLive asks whether a relay is running.
const anyLive = `WITH ` + durable + ` SELECT EXISTS (SELECT FROM {node} WHERE expires_at > clock_timestamp()) FROM durable`

// SetLanes implements [store.Keeper].
func (c *core) SetLanes(ctx context.Context, n int) error {
	if n < 1 || n > maxLanes {
		return fmt.Errorf("pgstore: %d lanes are not between 1 and %d", n, maxLanes)
	}
	chooser, err := c.chooser(n)
	if err != nil {
		return err
	}
	err = c.db.within(ctx, func(tx database) error {
		if err := tx.exec(ctx, c.sql.lockNodes); err != nil {
			return err
		}
		var live bool
		rows, err := tx.query(ctx, c.sql.anyLive)
		if err := collect(rows, err, func() error { return nil }, &live); err != nil {
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
		return tx.exec(ctx, chooser)
	})
	if err != nil {
		return c.explain(err)
	}
	c.mu.Lock()
	c.lanes = n
	c.mu.Unlock()
	return nil
}

// chooser returns the statement that makes the function which chooses a lane for plain SQL anew, for n lanes: the text is the
// migration's.
func (c *core) chooser(n int) (string, error) {
	cfg := c.cfg
	cfg.Lanes = n
	changed := core{cfg: cfg}
	steps, err := changed.steps()
	if err != nil {
		return "", err
	}
	begin := cfg.replacer().Replace("CREATE FUNCTION {choose_lane}()")
	for _, step := range steps {
		for _, statement := range step.Statements {
			if at := strings.Index(statement, begin); at >= 0 {
				return "CREATE OR REPLACE" + strings.TrimPrefix(statement[at:], "CREATE"), nil
			}
		}
	}
	return "", errors.New("pgstore: the migrations do not make the function that chooses lanes")
}

package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// durable makes its statement commit synchronously, even where the session's
// default is off: an epoch that a crash took back could be assigned to two
// owners.
const durable = `durable AS MATERIALIZED (
  SELECT CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END
)`

// joinRelay adds a node. It runs under a lock on the table, so that two relays
// of different names cannot both see no other relay. Nodes that have been
// silent for a day are swept.
const joinRelay = `WITH ` + durable + `, swept AS (
  DELETE FROM {node} WHERE expires_at < clock_timestamp() - interval '1 day' AND id <> $1
)
INSERT INTO {node} (id, relay, expires_at)
SELECT $1::uuid, $2::text, clock_timestamp() + $3::double precision * interval '1 second' FROM durable
WHERE NOT EXISTS (SELECT FROM {node} WHERE relay <> $2 AND id <> $1 AND expires_at > clock_timestamp())
ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at`

// renewLease renews a node's lease and its report, stores its counts, and
// returns, by kind: 0 whether it did, and the timeline, 1 a live relay of
// another name, 2 the other live nodes, 3 the lanes. It does not write to the
// lanes' rows, so settlements never collide with heartbeats.
const renewLease = `WITH ` + durable + `, clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
live AS MATERIALIZED (SELECT n.id, n.relay FROM {node} n, clock WHERE n.expires_at > clock.now),
me AS (
  UPDATE {node} n SET expires_at = clock.now + $3::double precision * interval '1 second', report = nullif($4::text, '')
  FROM clock, durable
  WHERE n.id = $1 AND NOT EXISTS (SELECT FROM live WHERE relay <> $2) RETURNING n.id
), ` + countUp + `
SELECT 0 AS kind, 0 AS lane, {timeline}() AS epoch, id, '' AS relay, true AS live FROM me
UNION ALL SELECT 1, 0, 0, id, relay, true FROM live WHERE relay <> $2
UNION ALL SELECT 2, 0, 0, id, relay, true FROM live WHERE id <> $1
UNION ALL SELECT 3, l.lane, l.epoch, l.owner, '', l.owner = $1 OR EXISTS (SELECT FROM live WHERE live.id = l.owner) FROM {lane} l
ORDER BY kind, lane, id`

// acquireLanes acquires free lanes. s is the lane in the statement's snapshot:
// while the statement waits for a lock, another node may acquire the lane, and
// then the lane's epoch differs from the one that the statement checked.
const acquireLanes = `WITH ` + durable + `, clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
free AS (
  SELECT l.lane, l.owner, l.dirty, l.in_flight
  FROM clock, durable, {lane} s JOIN {lane} l ON l.lane = s.lane AND l.epoch = s.epoch AND l.owner IS NOT DISTINCT FROM s.owner
  WHERE s.lane = ANY($2::smallint[])
    AND EXISTS (SELECT FROM {node} n WHERE n.id = $1 AND n.expires_at > clock.now)
    AND NOT EXISTS (SELECT FROM {node} n WHERE n.id = s.owner AND n.expires_at > clock.now)
  ORDER BY l.lane FOR UPDATE OF l
)
UPDATE {lane} l SET owner = $1, epoch = l.epoch + 1, token = gen_random_uuid(), in_flight = $3, dirty = false
FROM free WHERE l.lane = free.lane
RETURNING l.lane, l.epoch, l.token, free.dirty OR free.owner IS NOT NULL, free.in_flight, {timeline}()`

// releaseLanes releases lanes that are still held.
const releaseLanes = `WITH ` + durable + `
UPDATE {lane} l SET owner = NULL, token = NULL, dirty = $4
FROM durable, unnest($1::smallint[], $2::bigint[], $3::uuid[]) AS f(lane, epoch, token)
WHERE l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token`

// leaveRelay removes a node and marks the lanes that it still owns as dirty.
const leaveRelay = `WITH ` + durable + `, gone AS (DELETE FROM {node} WHERE id = $1)
UPDATE {lane} l SET owner = NULL, token = NULL, dirty = true FROM durable WHERE l.owner = $1`

// Heartbeat implements [driver.Lanes].
func (c *core) Heartbeat(ctx context.Context, node store.Node, lease time.Duration) (store.Membership, error) {
	m, renewed, err := c.renew(ctx, node, lease)
	if err != nil || renewed {
		return m, c.standby(ctx, err)
	}
	// The node is new, or was swept.
	err = c.db.within(ctx, func(tx database) error {
		if err := tx.exec(ctx, c.sql.lockNodes); err != nil {
			return err
		}
		return tx.exec(ctx, c.sql.join, node.ID.UUID(), node.Relay, seconds(lease))
	})
	if err != nil {
		return store.Membership{}, c.standby(ctx, c.explain(err))
	}
	m, renewed, err = c.renew(ctx, node, lease)
	if err == nil && !renewed {
		err = fmt.Errorf("pgstore: heartbeat: %w", waybill.ErrLeaseLost)
	}
	return m, err
}

// readOnly is the server's code for a write in a read-only transaction.
const readOnly = "25006"

// standby adds to an error that the server is a standby or the connection is
// read-only, which the server's own message does not mention.
func (c *core) standby(ctx context.Context, err error) error {
	if sqlState(err) != readOnly {
		return err
	}
	recovers := false
	rows, asked := c.db.query(ctx, `SELECT pg_is_in_recovery()`)
	if asked = collect(rows, asked, func() error { return nil }, &recovers); asked != nil || !recovers {
		return fmt.Errorf("%w; the relay needs a writable connection: see default_transaction_read_only", err)
	}
	return fmt.Errorf("%w; the server is a standby (pg_is_in_recovery): connect the relay to the primary, with target_session_attrs=primary", err)
}

// renew renews a lease and reads the membership. It reports whether there was a
// lease to renew.
func (c *core) renew(ctx context.Context, node store.Node, lease time.Duration) (m store.Membership, renewed bool, err error) {
	var kind, lane int
	var epoch, timeline int64
	var id waybill.ID
	var relay, other string
	var live *bool // NULL for a lane without an owner
	rows, err := c.db.query(ctx, c.sql.renew, node.ID.UUID(), node.Relay, seconds(lease), node.Report, node.Rollup)
	err = collect(rows, err, func() error {
		switch kind {
		case 0:
			renewed, timeline = true, epoch
			m.Nodes = append(m.Nodes, store.Node{ID: node.ID, Relay: node.Relay})
		case 1:
			other = relay
		case 2:
			m.Nodes = append(m.Nodes, store.Node{ID: id, Relay: relay})
		case 3:
			m.Lanes = append(m.Lanes, store.LaneState{Lane: lane, Owner: id, Live: live != nil && *live, Epoch: epoch})
		}
		return nil
	}, &kind, &lane, &epoch, c.db.scanID(&id), &relay, &live)
	if err != nil {
		return store.Membership{}, false, c.explain(err)
	}
	if other != "" {
		return store.Membership{}, false, fmt.Errorf("pgstore: %w: %q", waybill.ErrOtherRelay, other)
	}
	if err := c.beat(ctx, timeline); err != nil {
		return store.Membership{}, false, err
	}
	return m, renewed, nil
}

// Acquire implements [driver.Lanes].
func (c *core) Acquire(ctx context.Context, node store.Node, lanes []int, window int) ([]driver.Lease, error) {
	var lane, prev int
	var epoch, timeline int64
	var token waybill.ID
	var unclean bool
	var leases []driver.Lease
	rows, err := c.db.query(ctx, c.sql.acquire, node.ID.UUID(), c.db.int16s(int16s(lanes)), window)
	err = collect(rows, err, func() error {
		leases = append(leases, driver.Lease{Lane: lane, Epoch: epoch, Token: token, Unclean: unclean, Window: prev})
		return nil
	}, &lane, &epoch, c.db.scanID(&token), &unclean, &prev, &timeline)
	if err != nil {
		return nil, c.explain(err)
	}
	if len(leases) > 0 {
		if err := c.acquired(leases, timeline); err != nil {
			return nil, err
		}
		return leases, nil
	}
	// Either no lane was free, or the node itself is not live. Only the second
	// case is an error.
	live := false
	rows, err = c.db.query(ctx, c.sql.live, node.ID.UUID())
	if err := collect(rows, err, func() error { return nil }, &live); err != nil {
		return nil, c.explain(err)
	}
	if !live {
		return nil, fmt.Errorf("pgstore: acquire: %w: the node has no live lease", waybill.ErrLeaseLost)
	}
	return nil, nil
}

// Release implements [driver.Lanes].
func (c *core) Release(ctx context.Context, leases []driver.Lease, dirty bool) error {
	lanes, epochs, tokens := fences(leases)
	return c.explain(c.db.exec(ctx, c.sql.release, c.db.int16s(lanes), c.db.int64s(epochs), c.db.ids(tokens), dirty))
}

// Leave implements [driver.Lanes].
func (c *core) Leave(ctx context.Context, node store.Node) error {
	return c.explain(c.db.exec(ctx, c.sql.leave, node.ID.UUID()))
}

// fences splits leases into columns.
func fences(leases []driver.Lease) (lanes []int16, epochs []int64, tokens []waybill.ID) {
	for _, l := range leases {
		lanes = append(lanes, int16(l.Lane))
		epochs = append(epochs, l.Epoch)
		tokens = append(tokens, l.Token)
	}
	return lanes, epochs, tokens
}

func int16s(ns []int) []int16 {
	out := make([]int16, len(ns))
	for i, n := range ns {
		out[i] = int16(n)
	}
	return out
}

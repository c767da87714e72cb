package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// forgetAfter is the time after which a node that is no longer live is removed.
const forgetAfter = 24 * time.Hour

// Heartbeat implements [driver.Lanes].
func (s *backend) Heartbeat(ctx context.Context, n store.Node, lease time.Duration) (store.Membership, error) {
	var m store.Membership
	err := s.within(ctx, func(ctx context.Context, t txTarget) error {
		// Read the clock after taking the lock: the wait must not shorten the
		// lease.
		now := clock()
		var other string
		rows, err := t.query(ctx, s.sql.otherRelay, n.Relay, n.ID[:], micros(now))
		if found, err := scanOne(rows, err, &other); err != nil {
			return err
		} else if found {
			return fmt.Errorf("%w: %q", waybill.ErrOtherRelay, other)
		}
		if _, err := t.exec(ctx, s.sql.beat, n.ID[:], n.Relay, micros(now.Add(lease)), n.Report); err != nil {
			return err
		}
		if n.Rollup != "" {
			if _, err := t.exec(ctx, s.sql.countUp, n.Rollup); err != nil {
				return err
			}
		}
		if _, err := t.exec(ctx, s.sql.forgetNodes, micros(now.Add(-forgetAfter))); err != nil {
			return err
		}
		m, err = s.membership(ctx, t, now)
		return err
	})
	if err != nil {
		return store.Membership{}, err
	}
	for i, n := range m.Nodes {
		m.Nodes[i] = store.Node{ID: n.ID, Relay: n.Relay}
	}
	return m, nil
}

// membership returns the nodes that are live, with their reports, and the
// lanes.
func (s *backend) membership(ctx context.Context, t txTarget, now time.Time) (store.Membership, error) {
	var m store.Membership
	rows, err := t.query(ctx, s.sql.nodes, micros(now))
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		var n store.Node
		var expires int64
		if err := rows.Scan((*scanID)(&n.ID), &n.Relay, &expires, &n.Report); err != nil {
			return err
		}
		n.Expires = time.UnixMicro(expires).UTC()
		m.Nodes = append(m.Nodes, n)
		return nil
	})
	if err != nil {
		return m, err
	}
	rows, err = t.query(ctx, s.sql.lanesState, micros(now))
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		var l store.LaneState
		if err := rows.Scan(&l.Lane, (*scanID)(&l.Owner), &l.Live, &l.Epoch); err != nil {
			return err
		}
		m.Lanes = append(m.Lanes, l)
		return nil
	})
	return m, err
}

// Acquire implements [driver.Lanes]. Settlements are write transactions too, so
// Acquire waits for settlements that are under way.
func (s *backend) Acquire(ctx context.Context, n store.Node, lanes []int, window int) ([]driver.Lease, error) {
	var leases []driver.Lease
	err := s.within(ctx, func(ctx context.Context, t txTarget) error {
		now := clock()
		var live bool
		rows, err := t.query(ctx, s.sql.live, n.ID[:], micros(now))
		if _, err := scanOne(rows, err, &live); err != nil {
			return err
		}
		if !live {
			return fmt.Errorf("acquire: %w: the node has no live lease", waybill.ErrLeaseLost)
		}
		if !slices.Contains(lanes, onlyLane) {
			return nil
		}
		lease := driver.Lease{Lane: onlyLane, Token: waybill.NewID()}
		rows, err = t.query(ctx, s.sql.freeLane, onlyLane, micros(now))
		if free, err := scanOne(rows, err, &lease.Epoch, &lease.Unclean, &lease.Window); err != nil || !free {
			return err
		}
		lease.Epoch++
		if _, err := t.exec(ctx, s.sql.acquire, n.ID[:], lease.Epoch, lease.Token[:], window, onlyLane); err != nil {
			return err
		}
		leases = append(leases, lease)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return leases, nil
}

// Release implements [driver.Lanes].
func (s *backend) Release(ctx context.Context, leases []driver.Lease, dirty bool) error {
	if len(leases) == 0 {
		return nil
	}
	return s.within(ctx, func(ctx context.Context, t txTarget) error {
		for _, l := range leases {
			if _, err := t.exec(ctx, s.sql.release, dirty, l.Lane, l.Epoch, l.Token[:]); err != nil {
				return err
			}
		}
		return nil
	})
}

// Leave implements [driver.Lanes].
func (s *backend) Leave(ctx context.Context, n store.Node) error {
	return s.within(ctx, func(ctx context.Context, t txTarget) error {
		if _, err := t.exec(ctx, s.sql.leave, n.ID[:]); err != nil {
			return err
		}
		_, err := t.exec(ctx, s.sql.leaveLanes, n.ID[:])
		return err
	})
}

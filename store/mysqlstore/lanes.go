package mysqlstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Heartbeat implements [driver.Lanes].
func (s *backend) Heartbeat(ctx context.Context, node store.Node, lease time.Duration) (store.Membership, error) {
	var m store.Membership
	if err := s.checkKind(ctx); err != nil {
		return m, err
	}
	var other string
	var kind, lane int
	var epoch int64
	var id scanID
	var relay []byte
	var live bool
	args := []any{node.ID[:], []byte(node.Relay), lease.Microseconds(), []byte(node.Report), []byte(node.Rollup)}
	// The connections of a pool may lead to different servers.
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return m, s.explain(err)
	}
	defer conn.Close() //nolint:errcheck // it goes back to the pool
	err = each(ctx, conn, s.sql.heartbeat, args, func() {
		switch kind {
		case 0:
			other = string(relay)
		case 1:
			m.Nodes = append(m.Nodes, store.Node{ID: waybill.ID(id), Relay: string(relay)})
		case 2:
			m.Lanes = append(m.Lanes, store.LaneState{Lane: lane, Owner: waybill.ID(id), Live: live, Epoch: epoch})
		}
	}, &kind, &lane, &epoch, &id, &relay, &live)
	if err != nil {
		return store.Membership{}, s.explain(err)
	}
	if other != "" {
		return store.Membership{}, fmt.Errorf("mysqlstore: %w: %q", waybill.ErrOtherRelay, other)
	}
	if err := s.beat(ctx, conn); err != nil {
		return store.Membership{}, err
	}
	slices.SortFunc(m.Nodes, func(a, b store.Node) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	slices.SortFunc(m.Lanes, func(a, b store.LaneState) int { return a.Lane - b.Lane })
	return m, nil
}

// laneRow is the row of a lane.
type laneRow struct {
	lane, window int
	epoch        int64
	owner        scanID
	dirty, live  bool
}

// Acquire implements [driver.Lanes]. It reads which lanes are free and then
// takes them with one statement that names the epochs it read: no lock is held
// while a client may be paused. The statement waits for settlements in
// progress, which lock the lane's row. A lane that another node took or
// released in between has another epoch or owner, and is left alone. So is a
// lane on another server than the one that was read.
func (s *backend) Acquire(ctx context.Context, node store.Node, lanes []int, window int) ([]driver.Lease, error) {
	free, at, err := s.freeLanes(ctx, node, lanes)
	if err != nil || len(free) == 0 {
		return nil, err
	}
	leases := make([]driver.Lease, len(free))
	var where strings.Builder
	var tokens, which []any
	for i, l := range free {
		leases[i] = driver.Lease{
			Lane: l.lane, Epoch: l.epoch + 1, Unclean: l.dirty || l.owner != (scanID{}), Window: l.window,
		}
		_, _ = rand.Read(leases[i].Token[:]) // never fails
		if i > 0 {
			where.WriteString(" OR ")
		}
		where.WriteString("lane = ? AND epoch = ? AND owner <=> ?")
		tokens = append(tokens, l.lane, leases[i].Token[:])
		which = append(which, l.lane, l.epoch, ownerArg(l.owner))
	}
	// The statement locks the lanes' rows in the order of the primary key, as a
	// settlement does.
	query := s.sql.take(len(free)) + where.String() + `) ORDER BY lane`
	args := append(append([]any{node.ID[:]}, tokens...), window, []byte(at.server))
	res, err := s.db.ExecContext(ctx, query, append(args, which...)...)
	if err != nil {
		return nil, s.explain(err)
	}
	if n, err := res.RowsAffected(); err != nil || int(n) == len(free) {
		s.primaries.acquired(leases, at.term)
		return leases, err
	}
	// Another node took some of the lanes first: those have another token.
	held := make(map[waybill.ID]bool)
	var lane int
	var token scanID
	err = each(ctx, s.db, s.sql.lanesOf, []any{node.ID[:]}, func() { held[waybill.ID(token)] = true }, &lane, &token)
	if err != nil {
		return nil, s.explain(err)
	}
	leases = slices.DeleteFunc(leases, func(l driver.Lease) bool { return !held[l.Token] })
	s.primaries.acquired(leases, at.term)
	return leases, nil
}

// freeLanes returns the given lanes that no live node owns, in order, and the
// standing of the server.
func (s *backend) freeLanes(ctx context.Context, node store.Node, lanes []int) (free []laneRow, at standing, err error) {
	var text, own string
	var row laneRow
	self := false
	err = each(ctx, s.db, s.sql.laneStates, []any{node.ID[:]}, func() {
		switch {
		case row.lane < 0:
			self, own = row.live, text
		case !row.live && slices.Contains(lanes, row.lane):
			free = append(free, row)
		}
	}, &row.lane, &row.epoch, &row.owner, &row.dirty, &row.window, &row.live, &text)
	if err == nil {
		err = errors.Join(at.scan(own), s.primaries.check(at, noLanes))
	}
	if err != nil {
		return nil, at, s.explain(err)
	}
	if !self {
		return nil, at, fmt.Errorf("mysqlstore: acquire: %w: the node has no live lease", waybill.ErrLeaseLost)
	}
	slices.SortFunc(free, func(a, b laneRow) int { return a.lane - b.lane })
	return free, at, nil
}

func ownerArg(owner scanID) any {
	if owner == (scanID{}) {
		return nil
	}
	return owner[:]
}

// take returns the statement that takes n lanes, without its conditions.
// Primary key of lane.
func (st statements) take(n int) string {
	return st.takeLanes + `CASE lane` + strings.Repeat(` WHEN ? THEN ?`, n) + ` END, in_flight = ?, dirty = 0 WHERE ` + serverName + ` = ? AND (`
}

// Release implements [driver.Lanes].
func (s *backend) Release(ctx context.Context, leases []driver.Lease, dirty bool) error {
	if len(leases) == 0 {
		return nil
	}
	args := []any{dirty}
	for _, l := range leases {
		args = append(args, l.Lane, l.Epoch, l.Token[:])
	}
	where := strings.Repeat(` OR lane = ? AND epoch = ? AND token = ?`, len(leases))[len(` OR `):]
	_, err := s.db.ExecContext(ctx, s.sql.freeLanes+where+` ORDER BY lane`, args...)
	return s.explain(err)
}

// Leave implements [driver.Lanes]. When the node is gone its lanes are free,
// and count as dirty because they have an owner; releasing them only keeps the
// table readable.
func (s *backend) Leave(ctx context.Context, node store.Node) error {
	if _, err := s.db.ExecContext(ctx, s.sql.forgetNode, node.ID[:]); err != nil {
		return s.explain(err)
	}
	var lane int
	var token scanID
	var where strings.Builder
	args := []any{true}
	err := each(ctx, s.db, s.sql.lanesOf, []any{node.ID[:]}, func() {
		if where.Len() > 0 {
			where.WriteString(` OR `)
		}
		where.WriteString(`lane = ? AND token = ?`)
		args = append(args, lane, bytes.Clone(token[:]))
	}, &lane, &token)
	if err != nil || where.Len() == 0 {
		return s.explain(err)
	}
	_, err = s.db.ExecContext(ctx, s.sql.freeLanes+where.String()+` ORDER BY lane`, args...)
	return s.explain(err)
}

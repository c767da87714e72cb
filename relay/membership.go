package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/relay/internal/ledger"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// membership is this node's membership: its lease, and the lanes that it wants.
type membership struct {
	jobs    chan memberJob
	replies chan memberReply
	working bool
	joined  bool
	left    bool
	failed  error

	nextBeat time.Time
	began    time.Time // when the last heartbeat was sent
	// news: the state of a destination has changed since then.
	news     bool
	notUntil time.Time // the earliest time of the next release, after one that failed
	// lapse is the local deadline: the monotonic time before the last renewal
	// was sent, plus the lease, less a margin.
	lapse time.Time
	// lapseAt is the same deadline for the workers, in nanoseconds since start.
	lapseAt atomic.Int64
	start   time.Time

	want []int // lanes to acquire
	// share is the number of lanes that this node owns if it acquires all that
	// it wants.
	share int

	claimed bool // the outbox remembers this relay's sink; used only by the member worker
}

type memberKind uint8

const (
	beat memberKind = iota
	acquire
	release
	leave
	forget // leave, for an earlier id of this node
)

type memberJob struct {
	kind   memberKind
	node   store.Node
	lanes  []int
	window int
	leases []driver.Lease
	dirty  bool
	until  time.Time
	// names are the destinations to register with the first heartbeat; backlogs
	// the numbers of the destinations whose backlogs are checked after an
	// acquisition.
	names    []string
	backlogs []int
}

type memberReply struct {
	memberJob
	began  time.Time
	view   store.Membership
	leases []driver.Lease
	err    error
	// registry are the registered destinations. occupied are the lanes that
	// have rows in the backlog of each destination; nil if they are not known.
	registry []store.Destination
	occupied map[int][]int
}

// memberInterval is the interval between heartbeats while there are other
// nodes: a lane that was released should not wait for the next regular
// heartbeat.
const memberInterval = time.Second

// next returns when the membership has work to do.
func (m *membership) next() time.Time {
	switch {
	case m.working:
		return time.Time{}
	case m.notUntil.After(time.Now()) && m.notUntil.Before(m.nextBeat):
		return m.notUntil
	}
	return m.nextBeat
}

// joinTime is the minimum timeout of a node's first heartbeat.
const joinTime = 15 * time.Second

// memberRetry is the delay after a failed release.
const memberRetry = 200 * time.Millisecond

// holdsLease reports whether a delivery may start.
func (m *membership) holdsLease(now time.Time) bool {
	return int64(now.Sub(m.start)) < m.lapseAt.Load()
}

// renewed extends the local deadline.
func (m *membership) renewed(sent time.Time, lease time.Duration) {
	m.lapse = sent.Add(lease - lease/lapseMargin)
	m.lapseAt.Store(int64(m.lapse.Sub(m.start)))
}

// memberWorker runs membership jobs until the channel is closed.
func (e *engine) memberWorker() {
	for j := range e.member.jobs {
		r := memberReply{memberJob: j, began: time.Now()}
		ctx, cancel := context.WithDeadline(context.Background(), j.until)
		switch j.kind {
		case beat:
			r.view, r.err = e.heartbeat(ctx, j.node)
			if r.err == nil && j.names != nil {
				r.registry, r.err = e.db.backlogs.AddDestinations(ctx, j.names...)
			}
		case acquire:
			r.leases, r.err = e.db.Acquire(ctx, j.node, j.lanes, j.window)
			if r.err == nil && len(r.leases) > 0 && len(j.backlogs) > 0 {
				r.occupied = e.knownOccupied(ctx, j.backlogs)
			}
		case release:
			r.err = e.db.Release(ctx, j.leases, j.dirty)
		case leave, forget:
			r.err = e.db.Leave(ctx, j.node)
		}
		cancel()
		e.member.replies <- r
	}
}

// membership starts the next job for lanes and leases, one at a time.
func (e *engine) membership(now time.Time) {
	m := &e.member
	if m.working || m.left {
		return
	}
	var clean, dirty []driver.Lease
	if !now.Before(m.notUntil) {
		clean, dirty = e.toRelease(e.main.ledger.Draining(), now)
	}
	j := memberJob{node: e.node, until: now.Add(e.cfg.Lease / 2)}
	if !m.joined {
		j.until = now.Add(max(e.cfg.Lease, joinTime)) // no lane depends on it yet
	}
	switch {
	case len(clean) > 0:
		j.kind, j.leases = release, clean
	case len(dirty) > 0:
		j.kind, j.leases, j.dirty = release, dirty, true
	case e.stopping && e.main.ledger.LaneCount() == 0 && m.joined && e.counts.mustFlush():
		j.kind, j.until = beat, now.Add(releaseTime)
		j.node.Report, j.node.Rollup = e.nodeReport(now), e.counts.send(now, true)
		m.began, m.news = now, false
	case e.stopping && e.main.ledger.LaneCount() == 0 && m.joined:
		j.kind, j.until = leave, now.Add(releaseTime)
	case e.stopping && !m.joined:
		m.left = true
		return
	case !now.Before(m.nextBeat):
		j.kind = beat
		j.node.Report, j.node.Rollup = e.nodeReport(now), e.counts.send(now, false)
		m.began, m.news = now, false
		if !m.joined {
			j.names = e.targetNames()
		}
	case len(m.want) > 0 && !e.stopping:
		j.kind, j.lanes, j.window = acquire, m.want, e.main.ledger.Window()
		j.backlogs = e.targetNumbers()
		m.want = nil
	default:
		return
	}
	m.working = true
	m.jobs <- j
}

// toRelease returns the lanes that have drained, and those that are not in good
// order: their drain has timed out, or suspects of a crashed owner remain. The
// next owner must treat these events as suspects too: otherwise an event that
// kills its process would kill the next process uncounted.
func (e *engine) toRelease(draining []ledger.Lane, now time.Time) (clean, dirty []driver.Lease) {
	for _, l := range draining {
		for _, t := range e.targets {
			busy, suspects := t.isBusy(l.Lease.Lane)
			l.Busy, l.Suspects = l.Busy || busy, l.Suspects || suspects
		}
		switch {
		case !l.Busy && !l.Suspects:
			clean = append(clean, l.Lease)
		case !l.Busy || !now.Before(e.releaseBy(l)):
			dirty = append(dirty, l.Lease)
		}
	}
	return clean, dirty
}

// releaseBy returns when a lane is released although deliveries are in flight.
// When the relay stops, their context ends with the drain: deliveries that
// return by then are settled first, so that the next owner need not suspect
// them.
func (e *engine) releaseBy(l ledger.Lane) time.Time {
	if e.stopping {
		return l.DrainBy.Add(workerTime)
	}
	return l.DrainBy
}

// finishMember handles the answer to a membership job.
func (e *engine) finishMember(r memberReply) {
	e.member.working = false
	switch r.kind {
	case forget:
	case beat:
		e.finishBeat(r)
	case acquire:
		e.finishAcquire(r)
	case release:
		e.finishRelease(r)
	case leave:
		e.member.left = true
		if r.err != nil {
			e.warn("leaving failed; the lease will expire", r.err)
		}
	}
}

// finishAcquire handles the answer to an acquisition.
func (e *engine) finishAcquire(r memberReply) {
	if r.err != nil {
		// The acquisition may have succeeded: then the lanes have an owner that
		// has no tokens for them; the next heartbeat shows that.
		e.database.Failed("acquire lanes", r.err)
		return
	}
	e.database.Succeeded("acquire lanes")
	now := time.Now()
	for _, lease := range r.leases {
		claim := &driver.Claim{Token: lease.Token, History: e.cfg.HistoryRetention > 0, Source: e.source}
		e.main.ledger.LaneAcquired(lease, claim, now)
		for _, t := range e.targets {
			lanes, known := r.occupied[t.number]
			t.acquired(lease, !known || slices.Contains(lanes, lease.Lane), now)
		}
		if e.stopping {
			e.drainLane(lease.Lane, e.stopBy, now)
		}
	}
	if len(r.leases) > 0 {
		e.log.Info("lanes acquired", slog.Int(logkey.Lanes, len(r.leases)), slog.Int(logkey.Owned, e.main.ledger.LaneCount()))
	}
}

// finishRelease handles the answer to a release.
func (e *engine) finishRelease(r memberReply) {
	now := time.Now()
	if r.err != nil {
		e.database.Failed("release lanes", r.err)
		e.member.notUntil = now.Add(memberRetry)
		return
	}
	e.database.Succeeded("release lanes")
	released := make(map[driver.Lease]bool)
	for _, lease := range r.memberJob.leases {
		released[lease] = true
	}
	for _, l := range e.main.ledger.Lanes() {
		if released[l.Lease] {
			e.laneLost(l.Lease.Lane, now)
		}
	}
}

// finishBeat handles the answer to a heartbeat.
func (e *engine) finishBeat(r memberReply) {
	m := &e.member
	now := time.Now()
	if r.err != nil {
		if errors.Is(r.err, waybill.ErrOtherRelay) || errors.Is(r.err, waybill.ErrOtherSink) || !m.joined {
			m.failed = fmt.Errorf("relay: %w", r.err)
			return
		}
		m.nextBeat = now.Add(min(memberInterval, e.cfg.Heartbeat) / 2)
		e.database.Failed("heartbeat", r.err)
		for _, q := range e.queues {
			q.ledger.Distrust(now)
		}
		e.seen.failed = now
		e.gauges()
		return
	}
	e.database.Succeeded("heartbeat")
	e.counts.stored()
	m.joined = true
	e.register(r.registry, now)
	m.nextBeat = r.began.Add(e.cfg.Heartbeat)
	if len(r.view.Nodes) > 1 {
		m.nextBeat = r.began.Add(min(memberInterval, e.cfg.Heartbeat))
	}
	m.hasten()
	m.renewed(r.began, e.cfg.Lease)
	e.renewLease()
	if e.total != len(r.view.Lanes) {
		e.total = len(r.view.Lanes)
		for _, q := range e.queues {
			q.ledger.SetLaneCount(e.total)
		}
	}
	if e.reconcileOwnership(r.view) {
		e.rebalance(r.view, now)
	}
	e.gauges()
}

// reconcileOwnership drops lanes that another node owns. It reports false if
// this node has to rejoin: the table names this node as the owner of a lane
// whose token it does not know, because the answer to an acquisition was lost.
func (e *engine) reconcileOwnership(view store.Membership) bool {
	now := time.Now()
	own := e.ownLanes()
	known := true
	for _, s := range view.Lanes {
		l, ok := own[s.Lane]
		switch {
		case !ok && s.Owner == e.node.ID:
			known = false
		case ok && (s.Owner != e.node.ID || s.Epoch != l.Lease.Epoch):
			e.logLost(s.Lane, s.Epoch)
			e.laneLost(s.Lane, now)
		}
	}
	if known || e.stopping {
		return true
	}
	e.log.Warn("the answer to an acquisition was lost; the node rejoins")
	for lane := range own {
		e.laneLost(lane, now)
	}
	// The old id expires, unless leaving succeeds.
	e.member.working = true
	e.member.jobs <- memberJob{kind: forget, node: e.node, until: now.Add(releaseTime)}
	e.node.ID = waybill.NewID()
	e.member.nextBeat = now
	return false
}

// ownLanes returns the lanes that this node owns, by number.
func (e *engine) ownLanes() map[int]ledger.Lane {
	own := make(map[int]ledger.Lane)
	for _, l := range e.main.ledger.Lanes() {
		own[l.Lease.Lane] = l
	}
	return own
}

// rebalance computes which lanes this node should own: an equal share, plus one
// for the first nodes if the division leaves a remainder. The node drains
// surplus lanes and acquires missing ones, as far as lanes are free.
func (e *engine) rebalance(view store.Membership, now time.Time) {
	if e.stopping {
		return
	}
	nodes := slices.Clone(view.Nodes)
	slices.SortFunc(nodes, func(a, b store.Node) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	rank := slices.IndexFunc(nodes, func(n store.Node) bool { return n.ID == e.node.ID })
	if rank < 0 {
		return
	}
	fair := len(view.Lanes) / len(nodes)
	if rank < len(view.Lanes)%len(nodes) {
		fair++
	}
	owned := e.drainSurplus(fair, now)
	own := e.ownLanes()
	var free []int
	for _, s := range view.Lanes {
		if _, mine := own[s.Lane]; !s.Live && !mine {
			free = append(free, s.Lane)
		}
	}
	rand.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	e.member.want = free[:max(min(len(free), fair-owned), 0)]
	e.member.share = owned + len(e.member.want)
}

// drainSurplus drains the lanes that are more than this node's share, and
// returns the number of the others.
func (e *engine) drainSurplus(fair int, now time.Time) int {
	owned := 0
	for _, l := range e.main.ledger.Lanes() {
		switch {
		case l.Draining:
		case owned < fair:
			owned++
		default:
			e.drainLane(l.Lease.Lane, now.Add(max(e.cfg.DrainTimeout, 0)), now)
		}
	}
	return owned
}

// checkLease ends the context of deliveries when the lease has lapsed, or the
// drain has timed out.
func (e *engine) checkLease(now time.Time) {
	switch {
	case e.lease.Err() != nil:
	case e.member.joined && !e.member.holdsLease(now):
		// Another node may be taking over the lanes at this moment, and the
		// next heartbeat may not show it yet: deliveries here must not overtake
		// events that the other node has deferred. So nothing more is delivered
		// under these leases. If no other node takes the lanes, they are
		// released in good order and acquired anew.
		e.log.Warn("the lease has lapsed; its lanes are released")
		e.endLease(waybill.ErrLeaseLost)
		for _, l := range e.main.ledger.Lanes() {
			e.drainLane(l.Lease.Lane, now.Add(max(e.cfg.DrainTimeout, 0)), now)
		}
	case e.stopping && !now.Before(e.stopBy) && e.calls() > 0:
		e.log.Warn("the drain timed out; deliveries in flight stay pending", slog.Int(logkey.Calls, e.calls()))
		e.endLease(errDrain)
	}
	e.endSuspects(now)
}

// endSuspects ends the deliveries of suspects whose lane moves to another node
// and whose drain has timed out. The attempt of a suspect may have been counted
// before the delivery. The lane waits for the settlement that takes the attempt
// back: otherwise each move while a destination hangs would spend an attempt.
func (e *engine) endSuspects(now time.Time) {
	if e.stopping {
		return
	}
	for _, q := range e.queues {
		for _, j := range q.suspects {
			if !j.stopped && slices.ContainsFunc(j.items, func(it *ledger.Item) bool { return it.IsOverdue(now) }) {
				j.stopped = true
				j.stop(errDrain)
				q.ledger.ExtendDrain(j.items, now.Add(workerTime))
			}
		}
	}
}

var errDrain = errors.New("relay: stopping")

// renewLease gives deliveries a new context.
func (e *engine) renewLease() {
	if e.lease.Err() != nil && !e.stopping {
		e.lease, e.endLease = context.WithCancelCause(context.Background())
	}
}

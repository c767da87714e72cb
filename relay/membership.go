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
	"github.com/waybillhq/waybill/observe"
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
	notUntil time.Time // the earliest time of the next release, after one that failed
	// lapse is the local deadline: the monotonic time before the last renewal
	// was sent, plus the lease, less a margin.
	lapse time.Time
	// lapseAt is the same deadline for the workers, in nanoseconds since start.
	lapseAt atomic.Int64
	start   time.Time

	want []int // lanes to acquire

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
	leases []driver.Lease
	dirty  bool
	until  time.Time
}

type memberReply struct {
	memberJob
	began  time.Time
	view   store.Membership
	leases []driver.Lease
	err    error
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
		case acquire:
			r.leases, r.err = e.db.Acquire(ctx, j.node, j.lanes, e.window)
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
	var clean, dirty []*lane
	if !now.Before(m.notUntil) {
		clean, dirty = e.toRelease(now)
	}
	j := memberJob{node: e.node, until: now.Add(e.cfg.Lease / 2)}
	if !m.joined {
		j.until = now.Add(max(e.cfg.Lease, joinTime)) // no lane depends on it yet
	}
	switch {
	case len(clean) > 0:
		j.kind, j.leases = release, leases(clean)
	case len(dirty) > 0:
		j.kind, j.leases, j.dirty = release, leases(dirty), true
	case e.stopping && len(e.lanes.list) == 0 && m.joined:
		j.kind, j.until = leave, now.Add(releaseTime)
	case e.stopping && !m.joined:
		m.left = true
		return
	case !now.Before(m.nextBeat):
		j.kind = beat
	case len(m.want) > 0 && !e.stopping:
		j.kind, j.lanes = acquire, m.want
		m.want = nil
	default:
		return
	}
	m.working = true
	m.jobs <- j
}

func leases(lanes []*lane) []driver.Lease {
	out := make([]driver.Lease, len(lanes))
	for i, l := range lanes {
		out[i] = l.lease
	}
	return out
}

// toRelease returns the lanes that have drained, and those that are not in good
// order: their drain has timed out, or suspects of a crashed owner remain. The
// next owner must treat these events as suspects too: otherwise an event that
// kills its process would kill the next process uncounted.
func (e *engine) toRelease(now time.Time) (clean, dirty []*lane) {
	for _, l := range e.lanes.list {
		switch {
		case !l.draining:
		case l.busy == 0 && l.suspects == 0 && l.urgentSuspects == 0 && l.lateSuspects == 0 && len(l.wary) == 0:
			clean = append(clean, l)
		case l.busy == 0 || !now.Before(e.releaseBy(l)):
			dirty = append(dirty, l)
		}
	}
	return clean, dirty
}

// releaseBy returns when a lane is released although deliveries are in flight.
// When the relay stops, their context ends with the drain: deliveries that
// return by then are settled first, so that the next owner need not suspect
// them.
func (e *engine) releaseBy(l *lane) time.Time {
	if e.stopping {
		return l.drainBy.Add(workerTime)
	}
	return l.drainBy
}

// finishMember handles the answer to a membership job.
func (e *engine) finishMember(r memberReply) {
	m := &e.member
	m.working = false
	switch r.kind {
	case forget:
	case beat:
		e.finishBeat(r)
	case acquire:
		if r.err != nil {
			// The acquisition may have succeeded: then the lanes have an owner
			// that does not know its tokens, and the next heartbeat shows it.
			e.database.Failed("acquire lanes", r.err)
			return
		}
		e.database.Succeeded("acquire lanes")
		for _, lease := range r.leases {
			l := newLane(lease)
			e.lanes.add(l)
			if e.stopping {
				e.drain(l, e.stopBy)
			}
		}
		e.prefer()
		if len(r.leases) > 0 {
			e.log.Info("lanes acquired", slog.Int(logkey.Lanes, len(r.leases)), slog.Int(logkey.Owned, len(e.lanes.list)))
		}
	case release:
		if r.err != nil {
			e.database.Failed("release lanes", r.err)
			m.notUntil = time.Now().Add(memberRetry)
			return
		}
		e.database.Succeeded("release lanes")
		for _, lease := range r.memberJob.leases {
			if l := e.lanes.at(lease.Lane); l != nil && l.lease == lease {
				e.lose(l)
			}
		}
		e.prefer()
	case leave:
		m.left = true
		if r.err != nil {
			e.warn("leaving failed; the lease will expire", r.err)
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
		e.distrust()
		e.seen.failed = now
		e.gauges()
		return
	}
	e.database.Succeeded("heartbeat")
	m.joined = true
	m.nextBeat = r.began.Add(e.cfg.Heartbeat)
	if len(r.view.Nodes) > 1 {
		m.nextBeat = r.began.Add(min(memberInterval, e.cfg.Heartbeat))
	}
	m.renewed(r.began, e.cfg.Lease)
	e.renewLease()
	if e.total != len(r.view.Lanes) {
		e.total = len(r.view.Lanes)
		e.window = max(minWindow, (e.cfg.ColdQueue+e.cfg.BatchSize)/max(e.total, 1))
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
	known := true
	for _, s := range view.Lanes {
		l := e.lanes.at(s.Lane)
		switch {
		case l == nil && s.Owner == e.node.ID:
			known = false
		case l != nil && (s.Owner != e.node.ID || s.Epoch != l.lease.Epoch):
			e.log.Warn("lane was lost: another node owns it", slog.Int(logkey.Lane, s.Lane), slog.Int64(logkey.Epoch, s.Epoch))
			e.lose(l)
		}
	}
	if known || e.stopping {
		return true
	}
	e.log.Warn("the answer to an acquisition was lost; the node rejoins")
	for _, l := range e.lanes.list {
		e.lose(l)
	}
	e.prefer()
	// The old id expires, unless leaving succeeds.
	e.member.working = true
	e.member.jobs <- memberJob{kind: forget, node: e.node, until: time.Now().Add(releaseTime)}
	e.node.ID = waybill.NewID()
	e.member.nextBeat = time.Now()
	return false
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
	owned := 0
	for _, l := range e.lanes.list {
		if !l.draining {
			owned++
		}
	}
	for _, l := range e.lanes.list {
		if owned <= fair {
			break
		}
		if !l.draining {
			e.drain(l, now.Add(max(e.cfg.DrainTimeout, 0)))
			owned--
		}
	}
	var free []int
	for _, s := range view.Lanes {
		if !s.Live && e.lanes.at(s.Lane) == nil {
			free = append(free, s.Lane)
		}
	}
	rand.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	e.member.want = free[:max(min(len(free), fair-owned), 0)]
}

// prefer reports the lanes of this node to the writers of this process.
func (e *engine) prefer() {
	var own []int
	for _, l := range e.lanes.list {
		if !l.draining {
			own = append(own, l.number)
		}
	}
	e.db.Local().SetLocalLanes(own)
	if e.observe.Lanes != nil {
		e.observe.Lanes(observe.LanesInfo{Owned: len(own), Total: e.total})
	}
}

// drain stops taking events of a lane: events with a worker are finished, the
// others stay in their table.
func (e *engine) drain(l *lane, by time.Time) {
	if l.draining {
		return
	}
	l.draining, l.drainBy = true, by
	e.dropAll(l)
	e.prefer()
}

// lose drops a lane that this node does not own any more. The results of its
// deliveries in flight are ignored.
func (e *engine) lose(l *lane) {
	if l.gone {
		return
	}
	l.gone = true
	e.dropAll(l)
	e.lanes.remove(l)
	e.prefer()
}

// dropAll removes all events of a lane that are not in flight from memory.
func (e *engine) dropAll(l *lane) {
	for _, it := range l.items {
		switch it.state {
		case waiting, queued, parked:
			if it.agg != nil {
				it.agg.remove(it)
			}
			e.drop(it)
		case inFlight, finished, settled, dropped:
		}
	}
	e.commits.cold(len(l.announced), e.away())
	clear(l.announced)
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
		for _, l := range e.lanes.list {
			e.drain(l, now.Add(max(e.cfg.DrainTimeout, 0)))
		}
	case e.stopping && !now.Before(e.stopBy) && e.calls > 0:
		e.log.Warn("the drain timed out; deliveries in flight stay pending", slog.Int(logkey.Calls, e.calls))
		e.endLease(errDrain)
	}
	e.endSuspect(now)
}

// endSuspect ends the delivery of a suspect whose lane moves to another node
// and whose drain has timed out. The suspect's attempt was counted before the
// delivery. The lane waits for the settlement that takes the attempt back:
// otherwise each move while a destination hangs would spend an attempt.
func (e *engine) endSuspect(now time.Time) {
	s := &e.suspects
	if s.stop == nil || e.stopping {
		return
	}
	if l := s.current.lane; l.draining && !now.Before(l.drainBy) {
		s.end(errDrain)
		l.drainBy = now.Add(workerTime)
	}
}

var errDrain = errors.New("relay: stopping")

// renewLease gives deliveries a new context.
func (e *engine) renewLease() {
	if e.lease.Err() != nil && !e.stopping {
		e.lease, e.endLease = context.WithCancelCause(context.Background())
	}
}

// gauges reports the queue depths and the lag.
func (e *engine) gauges() {
	if e.observe.QueueDepths != nil {
		e.observe.QueueDepths(observe.QueueDepthsInfo{Hot: e.hot.depth, Cold: e.cold.depth})
	}
	if e.observe.Lag == nil {
		return
	}
	now := time.Now()
	var oldest time.Duration
	for _, l := range e.lanes.list {
		for _, it := range l.items {
			if it.state != settled {
				oldest = max(oldest, e.age(it))
			}
		}
	}
	if !e.seen.blind(now, e.reading) {
		if e.seen.good.IsZero() && len(e.lanes.list)+len(e.member.want) > 0 {
			return // nothing has been read yet: the lag is not known
		}
		e.seen.oldest = now.Add(-oldest)
		e.observe.Lag(observe.LagInfo{Oldest: oldest})
		return
	}
	// All events that were committed since the last successful read may be
	// waiting, and so may the events that were in memory then.
	since := e.seen.good
	if since.IsZero() {
		since = e.member.start
	}
	if !e.seen.oldest.IsZero() && e.seen.oldest.Before(since) {
		since = e.seen.oldest
	}
	e.observe.Lag(observe.LagInfo{Oldest: max(oldest, now.Sub(since))})
}

// sight records when this relay could last read the tables.
type sight struct {
	began  time.Time // when the last read began
	good   time.Time // when the last successful fast read began
	failed time.Time // when a heartbeat, or a read that fast reads depend on, failed
	// oldest is when the oldest event was written that was known while reads
	// succeeded; the time of the last report if there was none.
	oldest time.Time
}

// slowRead is how long a read may take before the lag counts from the last
// successful read.
const slowRead = 5 * time.Second

// blind reports whether the tables cannot be read.
func (s *sight) blind(now time.Time, reading bool) bool {
	return s.failed.After(s.good) || reading && now.Sub(s.began) > slowRead
}

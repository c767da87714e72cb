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
	"github.com/waybillhq/waybill/store"
)

// membership is this node among the others: its lease, and what it wants of the lanes.
type membership struct {
	jobs    chan memberJob
	replies chan memberReply
	working bool
	joined  bool
	left    bool
	failed  error

	nextBeat time.Time
	notUntil time.Time // a release failed
	// lapse is the local deadline: the monotonic time before the last renewal was sent, plus the lease, less a margin.
	lapse time.Time
	// lapseAt is the same for the workers, as nanoseconds since start.
	lapseAt atomic.Int64
	start   time.Time

	want []int // lanes to acquire

	claimed bool // the outbox remembers this relay's sink; the member worker's own
}

type memberKind uint8

const (
	beat memberKind = iota
	acquire
	release
	leave
	forget // leave, for an id that this node had before
)

type memberJob struct {
	kind   memberKind
	node   store.Node
	lanes  []int
	leases []store.Lease
	dirty  bool
	until  time.Time
}

type memberReply struct {
	memberJob
	began  time.Time
	view   store.Membership
	leases []store.Lease
	err    error
}

// look is how often a node looks at the others while there are any: a lane that was given back should not wait for the
// next heartbeat.
const memberInterval = time.Second

// next returns when the membership wants attention.
func (m *membership) next() time.Time {
	switch {
	case m.working:
		return time.Time{}
	case m.notUntil.After(time.Now()) && m.notUntil.Before(m.nextBeat):
		return m.notUntil
	}
	return m.nextBeat
}

// joinTime is how long a node may take to join.
const joinTime = 15 * time.Second

// memberRetry is how long to wait after a release that failed.
const memberRetry = 200 * time.Millisecond

// holdsLease reports whether a delivery may start.
func (m *membership) holdsLease(now time.Time) bool {
	return int64(now.Sub(m.start)) < m.lapseAt.Load()
}

// renewed moves the local deadline on.
func (m *membership) renewed(sent time.Time, lease time.Duration) {
	m.lapse = sent.Add(lease - lease/lapseMargin)
	m.lapseAt.Store(int64(m.lapse.Sub(m.start)))
}

// memberWorker runs membership jobs until there are no more.
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

// membership starts what is to be done about lanes and leases, one thing at a time.
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
		j.until = now.Add(max(e.cfg.Lease, joinTime)) // nothing depends on it yet
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

func leases(lanes []*lane) []store.Lease {
	out := make([]store.Lease, len(lanes))
	for i, l := range lanes {
		out[i] = l.lease
	}
	return out
}

// toRelease returns the lanes that have drained, and those that are not left in good order: their drain has taken too long, or what an owner that died may have
// had in hand has not been gone through. Whoever comes next must suspect it too: an event that kills its process would kill the next one uncounted.
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

// releaseBy is when a lane is given back though deliveries of it are under way.
// When the relay stops, their context ends with the drain: those that return
// by then are settled first, so that the next owner need not suspect them.
func (e *engine) releaseBy(l *lane) time.Time {
	if e.stopping {
		return l.drainBy.Add(workerTime)
	}
	return l.drainBy
}

// finishMember takes the answer to a membership job.
func (e *engine) finishMember(r memberReply) {
	m := &e.member
	m.working = false
	switch r.kind {
	case forget:
	case beat:
		e.finishBeat(r)
	case acquire:
		if r.err != nil {
			// It may have been done: then the lanes have an owner that does not know its tokens, and the next heartbeat shows it.
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
			e.log.Info("waybill: lanes acquired", slog.Int("lanes", len(r.leases)), slog.Int("owned", len(e.lanes.list)))
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
			e.warn("waybill: leaving failed; the lease will expire", r.err)
		}
	}
}

// finishBeat takes the answer to a heartbeat.
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

// compare drops lanes that somebody else has. It reports false if this node has to begin again: it is on record as the owner
// of a lane whose token it does not know, because the answer to an acquisition was lost.
func (e *engine) reconcileOwnership(view store.Membership) bool {
	known := true
	for _, s := range view.Lanes {
		l := e.lanes.at(s.Lane)
		switch {
		case l == nil && s.Owner == e.node.ID:
			known = false
		case l != nil && (s.Owner != e.node.ID || s.Epoch != l.lease.Epoch):
			e.log.Warn("waybill: lane was lost: another node has it", slog.Int("lane", s.Lane), slog.Int64("epoch", s.Epoch))
			e.lose(l)
		}
	}
	if known || e.stopping {
		return true
	}
	e.log.Warn("waybill: the answer to an acquisition was lost; the node begins again")
	for _, l := range e.lanes.list {
		e.lose(l)
	}
	e.prefer()
	// The old id is left to expire, unless leaving works.
	e.member.working = true
	e.member.jobs <- memberJob{kind: forget, node: e.node, until: time.Now().Add(releaseTime)}
	e.node.ID = waybill.NewID()
	e.member.nextBeat = time.Now()
	return false
}

// share works out which lanes this node should have: as many as the others, one more for those that come first. What it has too
// many it drains; what it has too few it takes, as far as somebody has let go.
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

// prefer tells writers of this process which lanes are here.
func (e *engine) prefer() {
	var own []int
	for _, l := range e.lanes.list {
		if !l.draining {
			own = append(own, l.number)
		}
	}
	e.db.Local().SetLocalLanes(own)
	if e.observe.Lanes != nil {
		e.observe.Lanes(len(own), e.total)
	}
}

// drain stops taking events of a lane: what is with a worker is finished, the rest stays in its table.
func (e *engine) drain(l *lane, by time.Time) {
	if l.draining {
		return
	}
	l.draining, l.drainBy = true, by
	e.dropAll(l)
	e.prefer()
}

// lose drops a lane that is not this node's any more. What is with a worker has its result ignored.
func (e *engine) lose(l *lane) {
	if l.gone {
		return
	}
	l.gone = true
	e.dropAll(l)
	e.lanes.remove(l)
	e.prefer()
}

// dropAll forgets everything of a lane that is not under way.
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

// checkLease ends the deliveries' context when the lease has lapsed, or the drain has taken too long.
func (e *engine) checkLease(now time.Time) {
	switch {
	case e.lease.Err() != nil:
	case e.member.joined && !e.member.holdsLease(now):
		// Somebody may be taking the lanes over at this moment, and the next heartbeat may not show it yet: what it has put off
		// must not be overtaken by what is delivered here. So nothing is delivered under these leases any more. If nobody takes
		// the lanes they are given back in good order, and acquired anew.
		e.log.Warn("waybill: the lease has lapsed: its lanes are given back")
		e.endLease(waybill.ErrLeaseLost)
		for _, l := range e.lanes.list {
			e.drain(l, now.Add(max(e.cfg.DrainTimeout, 0)))
		}
	case e.stopping && !now.Before(e.stopBy) && e.calls > 0:
		e.log.Warn("waybill: the drain has taken too long; deliveries under way stay pending", slog.Int("calls", e.calls))
		e.endLease(errDrain)
	}
	e.endSuspect(now)
}

// endSuspect ends the delivery of a suspect whose lane moves to another node
// and has drained for too long. Its attempt was counted before the delivery.
// The lane waits for the settlement that takes the attempt back: otherwise
// each move while a destination hangs would spend one.
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

var errDrain = errors.New("relay: the relay is stopping")

// renewLease gives deliveries a context again.
func (e *engine) renewLease() {
	if e.lease.Err() != nil && !e.stopping {
		e.lease, e.endLease = context.WithCancelCause(context.Background())
	}
}

// gauges reports what is in hand.
func (e *engine) gauges() {
	if e.observe.QueueDepths != nil {
		e.observe.QueueDepths(e.hot.depth, e.cold.depth)
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
		e.observe.Lag(oldest)
		return
	}
	// Whatever was committed since the last read that succeeded may be waiting, and so may what was in memory then.
	since := e.seen.good
	if since.IsZero() {
		since = e.member.start
	}
	if !e.seen.oldest.IsZero() && e.seen.oldest.Before(since) {
		since = e.seen.oldest
	}
	e.observe.Lag(max(oldest, now.Sub(since)))
}

// sight is when this relay could last see what is in the tables.
type sight struct {
	began  time.Time // when the last read began
	good   time.Time // when the last fast read began that succeeded
	failed time.Time // when a read or a heartbeat failed without which there is no fast read
	oldest time.Time // when the oldest event was written that was known while reads succeeded; now if there was none
}

// slowRead is how long a read may take before the lag counts from the last one.
const slowRead = 5 * time.Second

// blind reports whether the tables cannot be read.
func (s *sight) blind(now time.Time, reading bool) bool {
	return s.failed.After(s.good) || reading && now.Sub(s.began) > slowRead
}

package sim

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// conn is the connection of a process to the server. It implements the roles of
// package driver, and is where calls fail.
type conn struct {
	driver.Complete[Tx] // what is not simulated
	s                   *server
	p                   *process
	streams             [calls]*stream
}

// call is a kind of call, with random numbers of its own.
type call int

const (
	callHeartbeat call = iota
	callAcquire
	callRelease
	callLeave
	callFetch
	callSweep
	callLoad
	callDue
	callWriters
	callHolds
	callFollow
	callPriority
	callSettle
	callBegin
	callAppend
	callCommit
	callRollback
	callCommitted
	callSink
	callInbox
	callKeys
	callPurge
	callRegister
	callPause
	callOccupied
	callBacklogRead
	callBacklogSettle
	calls
)

var callNames = [calls]string{
	"heartbeat", "acquire", "release", "leave", "fetch", "sweep", "load", "due", "writers", "holds", "follow", "priority", "settle",
	"begin", "append", "commit", "rollback", "committed", "sink", "inbox", "keys", "purge", "register", "pause", "occupied", "backlog read", "backlog settle",
}

func newConn(s *server, p *process) *conn {
	c := &conn{Complete: s.base, s: s, p: p}
	for k := range c.streams {
		c.streams[k] = s.w.stream("call", p.node.no, p.no, k)
	}
	return c
}

// luck is what happens to one call.
type luck struct {
	fault         fault
	before, after time.Duration
	late          time.Duration
}

// storeFaults are the faults of any call.
var storeFaults = []fault{callRefused, callDelayed, answerDelayed, answerLost, appliedLate, crashBefore, crashAfter}

// draw draws what happens to a call.
func (c *conn) draw(k call) luck {
	w, s := c.s.w, c.streams[k]
	l := luck{before: s.between(w.plan.latency/10, w.plan.latency), after: s.between(w.plan.latency/10, w.plan.latency)}
	if !w.stormy.Load() {
		return l
	}
	x := s.float()
	for _, f := range storeFaults {
		if x -= w.plan.rate[f]; x < 0 {
			l.fault = f
			break
		}
	}
	long := func() time.Duration { return s.about(50*time.Millisecond, 3*w.plan.relay.Lease) }
	switch l.fault {
	case callDelayed:
		l.before = long()
	case answerDelayed:
		l.after = long()
	case appliedLate:
		l.late = long()
	default:
	}
	if l.fault != noFault {
		w.tally.fault(l.fault)
	}
	return l
}

// do makes a call of the server: it travels, is applied, and its answer
// travels. late reports whether it may be applied after the caller gave up.
func do[R any](ctx context.Context, c *conn, k call, late bool, apply func(ctx context.Context) (R, error)) (R, error) {
	var none R
	if err := c.p.gate(ctx); err != nil {
		return none, err
	}
	l := c.draw(k)
	gen := c.s.gen()
	if err := c.p.sleep(ctx, l.before); err != nil {
		return none, err
	}
	if c.s.unavailable(c.p) {
		return none, fmt.Errorf("%s: %w", callNames[k], errRefused)
	}
	switch l.fault {
	case callRefused:
		return none, fmt.Errorf("%s: %w", callNames[k], errRefused)
	case crashBefore:
		c.p.crash("before " + callNames[k])
		return none, errCrashed
	case appliedLate:
		if late {
			applyLate(c, l.late, gen, apply)
			_ = c.p.sleep(ctx, l.late/2)
			return none, fmt.Errorf("%s: %w", callNames[k], errLost)
		}
	default:
	}
	if c.s.gen() != gen {
		return none, fmt.Errorf("%s: %w: the server restarted", callNames[k], errLost)
	}
	if c.p.isDead() {
		return none, errCrashed
	}
	r, err := apply(ctx)
	switch l.fault {
	case crashAfter:
		c.p.crash("after " + callNames[k])
		return none, errCrashed
	case answerLost:
		c.note("answer lost", k)
		return none, fmt.Errorf("%s: %w", callNames[k], errLost)
	default:
	}
	if gone := c.p.sleep(ctx, l.after); gone != nil {
		return none, gone
	}
	if err := c.p.gate(ctx); err != nil {
		return none, err
	}
	if c.s.gen() != gen {
		return none, fmt.Errorf("%s: %w: the server restarted", callNames[k], errLost)
	}
	return r, err
}

// applyLate applies a call after its caller has given up.
func applyLate[R any](c *conn, d time.Duration, gen int, apply func(ctx context.Context) (R, error)) {
	c.s.w.all.Go(func() {
		if c.s.w.sleep(context.Background(), d) != nil || c.s.gen() != gen {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, _ = apply(ctx)
	})
}

func (c *conn) note(what string, k call) {
	c.s.w.mu.Lock()
	defer c.s.w.mu.Unlock()
	c.s.w.note(c.p, what, nil, 0, 0, callNames[k])
}

// Local implements [driver.Local]: every process has a hub of its own.
func (c *conn) Local() *driver.Hub { return &c.p.hub }

// silent is a connection whose commits no relay hears of.
type silent struct {
	*conn
	hub driver.Hub
}

// Local implements [driver.Local].
func (s *silent) Local() *driver.Hub { return &s.hub }

// Heartbeat implements [driver.Lanes].
func (c *conn) Heartbeat(ctx context.Context, n store.Node, lease time.Duration) (store.Membership, error) {
	return do(ctx, c, callHeartbeat, true, func(ctx context.Context) (store.Membership, error) {
		c.s.flush()
		m, err := c.s.base.Heartbeat(ctx, n, lease)
		c.s.w.lock(func(w *world) {
			if err == nil {
				w.expires[n.ID] = time.Now().Add(lease)
			}
		})
		return m, err
	})
}

// Acquire implements [driver.Lanes].
func (c *conn) Acquire(ctx context.Context, n store.Node, lanes []int, window int) ([]driver.Lease, error) {
	return do(ctx, c, callAcquire, true, func(ctx context.Context) ([]driver.Lease, error) {
		c.s.flush()
		leases, err := c.s.base.Acquire(ctx, n, lanes, window)
		c.s.w.lock(func(w *world) {
			w.acquired(c.p, n.ID, leases, window)
			if c.p.node.hasty && len(leases) > 0 {
				c.p.node.hasty, c.p.hasty = false, leases
				w.note(c.p, "stops", nil, 0, 0, "during an acquisition")
				c.p.cancel()
			}
		})
		return leases, err
	})
}

type nothing struct{}

// Release implements [driver.Lanes].
func (c *conn) Release(ctx context.Context, leases []driver.Lease, dirty bool) error {
	_, err := do(ctx, c, callRelease, true, func(ctx context.Context) (nothing, error) {
		c.s.flush()
		err := c.s.base.Release(ctx, leases, dirty)
		c.s.w.lock(func(w *world) {
			if err == nil {
				w.released(c.p, leases, dirty)
			}
		})
		return nothing{}, err
	})
	return err
}

// Leave implements [driver.Lanes].
func (c *conn) Leave(ctx context.Context, n store.Node) error {
	_, err := do(ctx, c, callLeave, true, func(ctx context.Context) (nothing, error) {
		c.s.flush()
		err := c.s.base.Leave(ctx, n)
		c.s.w.lock(func(w *world) {
			if err == nil {
				w.left(c.p, n.ID)
			}
		})
		return nothing{}, err
	})
	return err
}

// readPage makes a call that returns rows. The rows may be too large together.
func (c *conn) readPage(ctx context.Context, k call, read func(context.Context) (driver.Page, error)) (driver.Page, error) {
	w := c.s.w
	p, err := do(ctx, c, k, false, read)
	if err == nil && len(p.Rows) > 1 && w.plan.rate[pageTooLarge] > 0 && w.stormy.Load() && c.streams[k].chance(w.plan.rate[pageTooLarge]) {
		w.tally.fault(pageTooLarge)
		return driver.Page{}, driver.ErrPageTooLarge
	}
	return p, err
}

// Fetch implements [driver.Reader].
func (c *conn) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	return c.readPage(ctx, callFetch, func(ctx context.Context) (driver.Page, error) { return c.s.fetch(ctx, from, limit) })
}

// Sweep implements [driver.Reader].
func (c *conn) Sweep(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
	return do(ctx, c, callSweep, false, func(ctx context.Context) ([]driver.RowRef, error) { return c.s.sweep(ctx, from, limit) })
}

// Load implements [driver.Reader].
func (c *conn) Load(ctx context.Context, keys []store.Key) (driver.Page, error) {
	return c.readPage(ctx, callLoad, func(ctx context.Context) (driver.Page, error) { return c.s.load(ctx, keys) })
}

// Due implements [driver.Reader].
func (c *conn) Due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	return c.readPage(ctx, callDue, func(ctx context.Context) (driver.Page, error) { return c.s.due(ctx, lanes, limit) })
}

// OpenWriters implements [driver.Reader].
func (c *conn) OpenWriters(ctx context.Context) (driver.WriterState, error) {
	return do(ctx, c, callWriters, false, func(context.Context) (st driver.WriterState, err error) {
		c.s.w.lock(func(*world) { st = c.s.writers() })
		return st, nil
	})
}

// Holds implements [driver.Seeker].
func (c *conn) Holds(ctx context.Context, lanes []int) ([]driver.Hold, error) {
	return do(ctx, c, callHolds, false, func(ctx context.Context) ([]driver.Hold, error) { return c.s.holds(ctx, lanes) })
}

// FetchAggregate implements [driver.Seeker].
func (c *conn) FetchAggregate(ctx context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error) {
	return c.readPage(ctx, callFollow, func(ctx context.Context) (driver.Page, error) {
		return c.s.fetchAggregate(ctx, agg, from, limit)
	})
}

// FetchPriority implements [driver.Seeker].
func (c *conn) FetchPriority(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	return c.readPage(ctx, callPriority, func(ctx context.Context) (driver.Page, error) { return c.s.fetchPriority(ctx, from, limit) })
}

// Settle implements [driver.Settler].
func (c *conn) Settle(ctx context.Context, t driver.Settlement) (driver.Settled, error) {
	return c.settle(ctx, callSettle, outboxTable, t)
}

// settle settles rows of the outbox, or of the backlog of a destination.
func (c *conn) settle(ctx context.Context, k call, to int, t driver.Settlement) (driver.Settled, error) {
	w := c.s.w
	w.tally.settlements.Add(1)
	if !t.Durable && len(t.Dead) == 0 && w.stormy.Load() && c.streams[k].chance(w.plan.rate[settlementLost]) {
		return do(ctx, c, k, false, func(ctx context.Context) (driver.Settled, error) {
			out, err := c.s.settleLater(ctx, c.p, to, t)
			if err == nil {
				w.crashServerSoon(c.streams[k].between(0, 20*time.Millisecond))
			}
			return out, err
		})
	}
	var answered atomic.Bool // then a call that is still under way is applied late
	defer answered.Store(true)
	out, err := do(ctx, c, k, true, func(ctx context.Context) (driver.Settled, error) {
		if answered.Load() {
			w.lock(func(w *world) { w.doubt(to, &t) })
		}
		return c.s.settle(ctx, c.p, to, t)
	})
	if err == nil && len(t.Dead) > 0 && w.stormy.Load() && c.streams[k].chance(10*w.plan.rate[answerLost]) {
		w.tally.fault(answerLost) // dead letters are rare, and so are lost answers: both together find more
		out, err = driver.Settled{}, fmt.Errorf("settle: %w", errLost)
	}
	if err != nil && len(t.Dead) > 0 {
		w.replaySoon(c.streams[k], to, t.Dead)
	}
	return out, err
}

// ClaimSink implements [driver.SinkGuard].
func (c *conn) ClaimSink(ctx context.Context, n store.Node, sink string, takeOver bool) (string, error) {
	return do(ctx, c, callSink, true, func(ctx context.Context) (string, error) { return c.s.base.ClaimSink(ctx, n, sink, takeOver) })
}

// RecordedSink implements [driver.SinkGuard].
func (c *conn) RecordedSink(ctx context.Context) (string, error) {
	return do(ctx, c, callSink, false, func(ctx context.Context) (string, error) { return c.s.base.RecordedSink(ctx) })
}

// Committed implements [driver.Resolver].
func (c *conn) Committed(ctx context.Context, id waybill.ID) (bool, error) {
	return do(ctx, c, callCommitted, false, func(ctx context.Context) (bool, error) { return c.s.committed(ctx, id) })
}

// Purge implements [driver.Maintainer].
func (c *conn) Purge(ctx context.Context, state store.State, age time.Duration, limit int) (int, error) {
	return do(ctx, c, callPurge, false, func(ctx context.Context) (int, error) { return c.s.base.Purge(ctx, state, age, limit) })
}

// lock runs fn under the world's mutex.
func (w *world) lock(fn func(w *world)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn(w)
}

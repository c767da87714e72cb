package sim

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// session is a transaction of a process. An early one draws its seqs when it
// writes, as a database does: its rows are in the memstore at once, hidden. Any
// other one draws them when it commits.
type session struct {
	driver.Session[Tx]
	c     *conn
	no    int
	early bool
	// The world's mutex guards the fields below.
	events  []*event
	lanes   []int
	effects []func() // of consumers and callers, at the commit
	// finished are the deliveries that the transaction settles.
	finished []waybill.Delivery
	undone   map[waybill.ID]bool
	over     bool
}

// Begin implements [driver.Beginner].
func (c *conn) Begin(ctx context.Context, opts *sql.TxOptions) (driver.Session[Tx], error) {
	var x *session
	_, err := do(ctx, c, callBegin, false, func(ctx context.Context) (nothing, error) {
		inner, err := c.s.base.Begin(ctx, opts)
		if err != nil {
			return nothing{}, err
		}
		x = &session{Session: inner, c: c, early: isEarly(ctx)}
		c.s.w.lock(func(*world) {
			c.s.opened++
			x.no = c.s.opened
			c.s.open[x] = struct{}{}
			c.s.byTx[x.Tx()] = x
		})
		return nothing{}, nil
	})
	if err != nil && x != nil {
		x.rollBack() // the server notices that the connection is gone
	}
	if err != nil {
		return nil, err
	}
	return x, nil
}

type earlyKey struct{}

// early returns a context whose transaction draws its seqs when it writes.
func early(ctx context.Context) context.Context { return context.WithValue(ctx, earlyKey{}, true) }

func isEarly(ctx context.Context) bool { return ctx.Value(earlyKey{}) != nil }

// Append implements [driver.Appender].
func (c *conn) Append(ctx context.Context, tx Tx, evs []waybill.Event) ([]driver.AppendResult, error) {
	return do(ctx, c, callAppend, false, func(ctx context.Context) ([]driver.AppendResult, error) {
		x := c.s.sessionOf(tx)
		if x == nil {
			return nil, waybill.ErrTxDone
		}
		out, err := x.append(ctx, tx, evs)
		if err != nil {
			return nil, err
		}
		c.s.w.lock(func(w *world) {
			for i, ev := range evs {
				if m := w.byID[ev.ID]; m != nil && out[i].ID == ev.ID {
					m.wroteAt = w.now()
					x.events, x.lanes = append(x.events, m), append(x.lanes, out[i].Lane)
					w.note(c.p, "written", m, int64(x.no), 0, "")
				}
			}
		})
		return out, nil
	})
}

// sessionOf returns the open session of a transaction or of a savepoint in it.
func (s *server) sessionOf(tx Tx) *session {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if x := s.byTx[tx]; x != nil {
		return x
	}
	for x := range s.open {
		if x.Owns(tx) {
			return x
		}
	}
	return nil
}

// append writes events; in an early transaction their rows exist, hidden, from
// now on.
func (x *session) append(ctx context.Context, tx Tx, evs []waybill.Event) ([]driver.AppendResult, error) {
	s := x.c.s
	if !x.early {
		return s.base.Append(ctx, tx, evs)
	}
	inner, err := s.base.Begin(ctx, nil)
	if err != nil {
		return nil, err
	}
	out, err := s.base.Append(ctx, inner.Tx(), evs)
	if err != nil {
		_ = inner.Rollback(ctx)
		return nil, err
	}
	s.w.lock(func(*world) {
		for i, r := range out {
			s.hide(evs[i].ID, r.Lane)
		}
		s.inserted(len(evs))
	})
	_, err = inner.Commit(ctx, nil, false)
	return out, err
}

// Commit implements [driver.Session].
func (x *session) Commit(ctx context.Context, accepted []waybill.ID, check bool) (driver.CommitInfo, error) {
	c, w := x.c, x.c.s.w
	if err := c.p.gate(ctx); err != nil {
		x.rollBack()
		return driver.CommitInfo{}, err
	}
	l := c.draw(callCommit)
	gen := c.s.gen()
	if err := c.p.sleep(ctx, l.before); err != nil {
		x.rollBack()
		return driver.CommitInfo{}, err
	}
	s := c.streams[callCommit]
	switch {
	case l.fault == crashBefore:
		c.p.crash("before commit")
		fallthrough
	case c.p.isDead(), c.s.unavailable(c.p), c.s.gen() != gen, x.isOver(), w.draw(s, commitRefused):
		x.rollBack()
		return driver.CommitInfo{}, fmt.Errorf("commit: %w", errRefused)
	case w.draw(s, commitUnknown):
		x.rollBack()
		return driver.CommitInfo{}, fmt.Errorf("commit: %w: %w", waybill.ErrUncertain, errLost)
	case l.fault == appliedLate:
		x.doubt(true)
		w.all.Go(func() {
			if w.sleep(context.Background(), l.late) != nil || c.s.gen() != gen {
				x.rollBack()
			} else {
				_, _ = x.apply(accepted, check)
			}
			x.doubt(false)
		})
		return driver.CommitInfo{}, fmt.Errorf("commit: %w: %w", waybill.ErrUncertain, errLost)
	}
	info, err := x.apply(accepted, check)
	if err != nil {
		return info, err
	}
	if w.stormy.Load() && w.roll("hand-over", x.no) < handOvers {
		w.handOver(c.p, x)
	}
	if l.fault == crashAfter {
		c.p.crash("after commit")
		return driver.CommitInfo{}, fmt.Errorf("commit: %w: %w", waybill.ErrUncertain, errCrashed)
	}
	if l.fault == answerLost || w.draw(s, commitLost) || c.p.sleep(ctx, l.after) != nil || c.p.isDead() {
		return driver.CommitInfo{}, fmt.Errorf("commit: %w: %w", waybill.ErrUncertain, errLost)
	}
	return info, nil
}

// handOvers is the share of commits whose answer waits for a hand-over, among
// those that could be announced too late.
const handOvers = 0.15

// handOver stops the owner of an event's lane while the writer of the event
// waits for the answer to its commit, until the lane has moved to the writer's
// own process in front of the announcement, or for a few leases.
func (w *world) handOver(p *process, x *session) {
	var owner *process
	lane := 0
	w.lock(func(*world) {
		for i, ev := range x.events {
			if ev.agg == nil {
				lane = x.lanes[i]
				owner = w.lanes[lane].proc
			}
		}
	})
	if owner == nil || owner == p || slices.Contains(w.plan.off, processStop) {
		return
	}
	w.tally.fault(processStop)
	if p.sleep(context.Background(), time.Second) != nil { // the owner delivers the event
		return
	}
	w.lock(func(*world) { w.note(owner, "stops", nil, 0, 0, "hand-over") })
	owner.cancel()
	const pause = 50 * time.Millisecond
	moved := false
	for range 3 * w.plan.relay.Lease / pause {
		if moved || p.sleep(context.Background(), pause) != nil {
			break
		}
		w.lock(func(*world) { moved = w.lanes[lane].proc == p })
	}
	_ = p.sleep(context.Background(), time.Duration(w.roll("caught up", x.no)*float64(time.Second)))
}

// apply commits, unless the server has rolled the transaction back.
func (x *session) apply(accepted []waybill.ID, check bool) (driver.CommitInfo, error) {
	s := x.c.s
	s.flush()
	if !x.end() {
		return driver.CommitInfo{}, fmt.Errorf("commit: %w", errRefused)
	}
	info, err := x.Session.Commit(context.Background(), accepted, check)
	s.w.lock(func(w *world) {
		x.close()
		if err != nil {
			x.forget(w)
			return
		}
		for _, id := range info.Undone {
			x.undo(id)
		}
		n := 0
		for i, ev := range x.events {
			if x.undone[ev.id] {
				ev.state = rolledBack
				continue
			}
			n++
			if x.early {
				s.show(ev.id)
			}
			w.committed(x.c.p, ev, x.lanes[i], x.early)
		}
		if !x.early {
			s.inserted(n)
		}
		for _, fn := range x.effects {
			fn()
		}
		for i := range x.finished {
			w.finished(x.c.p, &x.finished[i])
		}
	})
	return info, err
}

// undo notes that a savepoint removed an event. Mu is held.
func (x *session) undo(id waybill.ID) {
	if x.undone == nil {
		x.undone = make(map[waybill.ID]bool)
	}
	x.undone[id] = true
}

// Rollback implements [driver.Session].
func (x *session) Rollback(ctx context.Context) error {
	_ = x.c.p.sleep(ctx, x.c.draw(callRollback).before)
	x.rollBack()
	return nil
}

// rollBack ends the transaction without its events. The rows of an early one
// stay hidden forever.
func (x *session) rollBack() {
	if !x.end() {
		return
	}
	_ = x.Session.Rollback(context.Background())
	x.c.s.w.lock(func(w *world) {
		x.close()
		x.forget(w)
	})
}

// forget notes that the events of the session were rolled back. Mu is held.
func (x *session) forget(w *world) {
	for _, ev := range x.events {
		ev.state = rolledBack
		w.note(x.c.p, "rolled back", ev, int64(x.no), 0, "")
	}
}

// end ends the session, and reports false if it has ended. A commit and a
// restart of the server may come at the same time, and only one of them takes
// effect.
func (x *session) end() bool {
	mu := &x.c.s.w.mu
	mu.Lock()
	defer mu.Unlock()
	ended := x.over
	x.over = true
	return !ended
}

// close forgets the session. Until then the server reports it as open. Mu is
// held.
func (x *session) close() {
	delete(x.c.s.open, x)
	delete(x.c.s.byTx, x.Tx())
}

func (x *session) isOver() bool {
	x.c.s.w.mu.Lock()
	defer x.c.s.w.mu.Unlock()
	return x.over
}

// doubt marks the events as being committed.
func (x *session) doubt(on bool) {
	x.c.s.w.lock(func(*world) {
		for _, ev := range x.events {
			if on {
				x.c.s.inDoubt[ev.id] = true
			} else {
				delete(x.c.s.inDoubt, ev.id)
			}
		}
	})
}

// crashServerSoon restarts the server after a while, if settlements are not on
// disk by then.
func (w *world) crashServerSoon(d time.Duration) {
	w.all.Go(func() {
		if w.sleep(context.Background(), d) != nil {
			w.server.flush()
			return
		}
		w.restartServer()
	})
}

// restartServer restarts the server: open transactions are gone.
func (w *world) restartServer() {
	var broken []*session
	w.lock(func(*world) { broken = w.server.restart() })
	for _, x := range broken {
		x.rollBack()
	}
}

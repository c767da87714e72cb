package sim

import (
	"context"
	"time"

	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// newRelay returns the relay of a process: with one sink, or with the
// destinations of the plan.
func (p *process) newRelay(roles driver.Roles[Tx], cfg relay.Config) (*relay.Relay, error) {
	if len(p.w.plan.to) == 0 {
		return relay.New(roles, p.newSink(), cfg)
	}
	roles.Backlogs = backlogs{Backlogs: p.conn.s.backlogs, c: p.conn}
	all := make([]relay.Destination, len(p.w.plan.to))
	for k := range all {
		d := &p.w.plan.to[k]
		all[k] = d.Destination
		all[k].Sink = p.sinkOf(d.kind, &sink{w: p.w, p: p, copy: k, to: d})
	}
	return relay.NewTo(roles, cfg, all...)
}

// rows are the calls of a table that an operator or the server makes.
type rows interface {
	driver.Reader
	driver.Settler
	driver.Inspector
	driver.DeadLetters
}

// table returns the outbox, or the backlog of a destination.
func (s *server) table(to int) rows {
	if to == outboxTable {
		return s.base
	}
	return s.backlogs.Backlog(s.w.to[to].number)
}

// share excludes operators who change backlogs while a settlement is applied
// and noted; exclude is the other side. Worlds without destinations need
// neither, and their settlements may wait for transactions.
func (s *server) share() (end func()) {
	if len(s.w.to) == 0 {
		return func() {}
	}
	s.backlogMu.RLock()
	return s.backlogMu.RUnlock
}

func (s *server) exclude() (end func()) {
	if len(s.w.to) == 0 {
		return func() {}
	}
	s.backlogMu.Lock()
	return s.backlogMu.Unlock
}

// ofOutbox returns the settlement if it is one of the outbox.
func (a *asyncSettlement) ofOutbox() driver.Settlement {
	if a.to != outboxTable {
		return driver.Settlement{}
	}
	return a.settlement
}

// backlogs is the role of a connection for destinations.
type backlogs struct {
	driver.Backlogs // what is not simulated
	c               *conn
}

// AddDestinations implements [driver.Backlogs].
func (b backlogs) AddDestinations(ctx context.Context, names ...string) ([]store.Destination, error) {
	all, err := do(ctx, b.c, callRegister, true, func(ctx context.Context) ([]store.Destination, error) {
		b.c.s.flush()
		all, err := b.Backlogs.AddDestinations(ctx, names...)
		b.c.s.w.lock(func(w *world) {
			for _, d := range all {
				for k := range w.to {
					if w.plan.to[k].Name == d.Name {
						w.to[k].number = d.Number
					}
				}
			}
		})
		return all, err
	})
	if err == nil {
		b.c.s.w.lock(func(*world) { b.c.p.learned(all) })
	}
	return all, err
}

// learned notes which destinations a process knows to be paused. Mu is held.
func (p *process) learned(all []store.Destination) {
	for _, d := range all {
		view := &p.to[p.w.destinationOf(d.Number)]
		switch {
		case !d.IsPaused():
			view.pausedAt = time.Time{}
		case view.pausedAt.IsZero():
			view.pausedAt = time.Now()
		}
	}
}

// PauseDestination implements [driver.Backlogs].
func (b backlogs) PauseDestination(ctx context.Context, name, reason string) (bool, error) {
	return do(ctx, b.c, callPause, true, func(ctx context.Context) (bool, error) { return b.c.s.w.pause(ctx, b.c.p, name, reason) })
}

// Backlog implements [driver.Backlogs].
func (b backlogs) Backlog(number int) driver.Backlog {
	to := -1
	b.c.s.w.lock(func(w *world) { to = w.destinationOf(number) })
	return backlog{Backlog: b.Backlogs.Backlog(number), c: b.c, to: to}
}

// backlog is the backlog of a destination as a connection sees it. Every read
// takes place after the settlements that were answered.
type backlog struct {
	driver.Backlog // what is not simulated
	c              *conn
	to             int
}

// read makes a read that returns a page.
func (b backlog) read(ctx context.Context, read func(context.Context) (driver.Page, error)) (driver.Page, error) {
	s := b.c.s
	return b.c.readPage(ctx, callBacklogRead, func(ctx context.Context) (driver.Page, error) {
		s.flush()
		defer s.exclude()()
		p, err := read(ctx)
		s.w.lock(func(w *world) {
			s.outerPage(&p)
			for i := range p.Rows {
				at := w.modelOf(b.to, p.Rows[i].ID)
				if at == nil {
					continue
				}
				at.readBy = b.c.p
				if !at.queued {
					w.fail("copies", at, "has a row in the backlog, and no settlement has copied it")
				}
			}
		})
		return p, err
	})
}

// Fetch implements [driver.Reader].
func (b backlog) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	return b.read(ctx, func(ctx context.Context) (driver.Page, error) {
		in, _ := b.c.s.cursors(from)
		return b.Backlog.Fetch(ctx, in, limit)
	})
}

// Sweep implements [driver.Reader].
func (b backlog) Sweep(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
	return do(ctx, b.c, callBacklogRead, false, func(ctx context.Context) ([]driver.RowRef, error) {
		b.c.s.flush()
		in, _ := b.c.s.cursors(from)
		refs, err := b.Backlog.Sweep(ctx, in, limit)
		b.c.s.w.lock(func(*world) {
			for i := range refs {
				refs[i].Seq = b.c.s.outer(refs[i].Seq)
			}
		})
		return refs, err
	})
}

// Load implements [driver.Reader].
func (b backlog) Load(ctx context.Context, keys []store.Key) (driver.Page, error) {
	return b.read(ctx, func(ctx context.Context) (driver.Page, error) { return b.Backlog.Load(ctx, keys) })
}

// Due implements [driver.Reader].
func (b backlog) Due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	return b.read(ctx, func(ctx context.Context) (driver.Page, error) { return b.Backlog.Due(ctx, lanes, limit) })
}

// OpenWriters implements [driver.Reader].
func (b backlog) OpenWriters(ctx context.Context) (driver.WriterState, error) {
	return do(ctx, b.c, callBacklogRead, false, b.Backlog.OpenWriters)
}

// Holds implements [driver.Seeker].
func (b backlog) Holds(ctx context.Context, lanes []int) ([]driver.Hold, error) {
	return do(ctx, b.c, callBacklogRead, false, func(ctx context.Context) ([]driver.Hold, error) {
		b.c.s.flush()
		holds, err := b.Backlog.Holds(ctx, lanes)
		b.c.s.w.lock(func(*world) {
			for i := range holds {
				holds[i].Seq = b.c.s.outer(holds[i].Seq)
			}
		})
		return holds, err
	})
}

// FetchAggregate implements [driver.Seeker].
func (b backlog) FetchAggregate(ctx context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error) {
	return b.read(ctx, func(ctx context.Context) (driver.Page, error) {
		in, _ := b.c.s.cursors([]driver.Cursor{from})
		return b.Backlog.FetchAggregate(ctx, agg, in[0], limit)
	})
}

// FetchPriority implements [driver.Seeker].
func (b backlog) FetchPriority(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	return b.read(ctx, func(ctx context.Context) (driver.Page, error) {
		in, _ := b.c.s.cursors(from)
		return b.Backlog.FetchPriority(ctx, in, limit)
	})
}

// Occupied implements [driver.Backlog].
func (b backlog) Occupied(ctx context.Context) ([]int, error) {
	return do(ctx, b.c, callOccupied, false, func(ctx context.Context) ([]int, error) {
		b.c.s.flush()
		return b.Backlog.Occupied(ctx)
	})
}

// Settle implements [driver.Settler].
func (b backlog) Settle(ctx context.Context, t driver.Settlement) (driver.Settled, error) {
	b.c.s.w.tally.settlements.Add(1)
	return b.c.settle(ctx, callBacklogSettle, b.to, t)
}

package sim

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
)

// node is a place where one process runs at a time.
type node struct {
	w  *world
	no int
	// The world's mutex guards the fields below.
	runs int
	proc *process
	// hasty: the next process is stopped while it acquires its first lanes.
	hasty bool
}

// process is one run of a service: writers, a relay, consumers and callers.
type process struct {
	w    *world
	node *node
	no   int
	hub  driver.Hub
	conn *conn
	box  *outbox.Outbox[Tx]
	// quiet is an outbox whose commits are not announced.
	quiet *outbox.Outbox[Tx]
	// group and keys are those of consumers and callers.
	group *inbox.Group[Tx]
	keys  *idempotency.Keys[Tx]

	ctx    context.Context // ends when the process stops or dies
	cancel context.CancelFunc
	gone   chan struct{} // closed when it dies
	ended  chan struct{} // closed when its relay has returned

	// The world's mutex guards the fields below.
	dead        bool
	pausedUntil time.Time
	cutOffUntil time.Time
	flying      map[*flight]*event
	calls       int // of the sink, at this moment
	to          []destinationView
	// hasty are the lanes that the process acquired while it was stopped.
	hasty []driver.Lease
}

func (p *process) String() string {
	if p == nil {
		return ""
	}
	return fmt.Sprintf("n%d.%d", p.node.no, p.no)
}

// start starts a process on the node.
func (n *node) start() (*process, error) {
	w := n.w
	p := &process{w: w, node: n, gone: make(chan struct{}), ended: make(chan struct{}), flying: make(map[*flight]*event), to: make([]destinationView, len(w.to))}
	w.lock(func(*world) { n.runs++; p.no = n.runs })
	p.conn = newConn(w.server, p)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	roles := testroles.Of[Tx](p.conn)
	boxes := outbox.Config{Logger: slog.New(slog.DiscardHandler), Hooks: []outbox.Hook{w.hook()}}
	var err error
	if p.box, err = outbox.New(roles, boxes); err != nil {
		return nil, err
	}
	if p.quiet, err = outbox.New(testroles.Of[Tx](&silent{conn: p.conn}), boxes); err != nil {
		return nil, err
	}
	cfg := w.plan.relay
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Observe = observe.Hooks{Deliver: p.delivering, QueueDepths: p.depths}
	if p.group, err = p.newGroup(roles); err != nil {
		return nil, err
	}
	if p.keys, err = p.newKeys(roles); err != nil {
		return nil, err
	}
	r, err := p.newRelay(roles, cfg)
	if err != nil {
		return nil, err
	}
	if w.plan.sink == brokerSink {
		w.all.Go(func() { p.consume(p.group) })
	}
	w.lock(func(*world) {
		n.proc = p
		w.note(p, "start", nil, 0, 0, "")
	})
	w.all.Go(func() {
		err := r.Run(p.ctx)
		w.lock(func(*world) {
			note := ""
			if err != nil {
				note = err.Error()
			}
			w.note(p, "relay ended", nil, 0, 0, note)
		})
		close(p.ended)
	})
	return p, nil
}

// supervise runs processes on the node, one after the other, until the world
// ends.
func (n *node) supervise() {
	s := n.w.stream("node", n.no)
	for !n.w.over() {
		p, err := n.start()
		if err != nil {
			n.w.lock(func(w *world) { w.fail("start", nil, "%v", err) })
			return
		}
		select {
		case <-p.ctx.Done():
			p.checkStop()
		case <-p.ended:
		case <-p.gone:
		case <-n.w.done:
		}
		p.cancel()
		down := s.about(time.Millisecond, 4*n.w.plan.relay.Lease)
		if !n.w.stormy.Load() {
			down = 100 * time.Millisecond
		}
		_ = n.w.sleep(context.Background(), down)
	}
}

// checkStop waits until a process that was stopped has ended, and checks that
// it does not take long, whatever happens meanwhile.
func (p *process) checkStop() {
	c := &p.w.plan.relay
	bound := max(c.DrainTimeout, 5*time.Second) + 16*c.Lease + time.Minute
	t := time.NewTimer(bound)
	defer t.Stop()
	select {
	case <-p.ended:
	case <-p.gone:
	case <-p.w.done:
	case <-t.C:
		p.w.lock(func(w *world) { w.fail("stop", nil, "%v was stopped and has not ended after %v", p, bound) })
	}
}

// gate waits while the process is paused, and refuses calls of a dead one.
func (p *process) gate(ctx context.Context) error {
	for {
		p.w.mu.Lock()
		dead, until := p.dead, p.pausedUntil
		p.w.mu.Unlock()
		if dead {
			time.Sleep(time.Second)
			return errCrashed
		}
		d := time.Until(until)
		if d <= 0 {
			return nil
		}
		if err := p.sleep(ctx, d); err != nil {
			return err
		}
	}
}

// sleep waits for a virtual time, or until the process or the context ends.
func (p *process) sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-p.gone:
		return errCrashed
	case <-p.w.done:
		time.Sleep(10 * time.Millisecond) // no loop of the product spins
		return errEnded
	}
}

func (p *process) isDead() bool {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return p.dead
}

// crash ends the process at once: none of its later calls reaches the server,
// and its deliveries do not happen.
func (p *process) crash(why string) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.dead || p.w.ended {
		return
	}
	p.dead = true
	p.w.note(p, "crash", nil, 0, 0, why)
	for f, ev := range p.flying {
		f.crashed = true
		p.w.note(p, "crashed with", ev, f.epoch, 0, "")
	}
	close(p.gone)
	p.cancel()
}

// depths checks the bounds of the relay's memory. Besides the queue there are
// urgent events, events of quiet tenants, and a group of suspects that returns
// to the queue when it is counted.
func (p *process) depths(info observe.QueueDepthsInfo) {
	c := &p.w.plan.relay
	cold := or(c.ColdQueue, 2000)
	cold += 64 + min(cold, 256)
	if p.w.plan.tenants > 0 {
		cold += 64
	}
	hot := max(or(c.HotQueue, 1000), 0)
	if info.Hot > hot || info.Cold > cold {
		p.w.lock(func(w *world) {
			w.fail("memory", nil, "%v has %d hot and %d cold events in memory, want at most %d and %d", p, info.Hot, info.Cold, hot, cold)
		})
	}
}

// delivering is called around every call of the sink.
func (p *process) delivering(ctx context.Context, info observe.DeliverInfo) (context.Context, func(observe.DeliverDoneInfo)) {
	if info.Destination != "" {
		return ctx, p.deliveringTo(ctx, info)
	}
	flights := p.w.began(p, info.Batch)
	batch := make([]waybill.Delivery, len(info.Batch))
	copy(batch, info.Batch)
	return ctx, func(done observe.DeliverDoneInfo) {
		p.w.returned(p, batch, flights, done.Results, ctx.Err())
	}
}

package shop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// scenario runs customers and faults until its end or the end of ctx. A failed
// part ends it.
func (w *world) scenario(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(w.running.ctx, stop)()
	var err error
	if w.isFixed() {
		err = w.fixed(ctx)
	} else {
		err = w.endless(ctx)
	}
	if failed := w.running.failure(); failed != nil {
		return failed
	}
	return err
}

// isFixed reports whether the scenario is the fixed one.
func (w *world) isFixed() bool { return w.cfg.Once || w.cfg.Sabotage != NoSabotage }

// plan maps the number of customers so far to a fault. Every fault is in it.
var plan = map[int]fault{
	4: checkoutFails, 7: handlerError, 10: publishTwice, 13: handlerPanic, 16: pubackLost, 20: consumerCrash, 26: outage, 32: ackLost,
	35: courierClosed, 38: relayRestart, 44: brokerStop,
}

// habits are the habits of customers in the fixed scenario, by number.
var habits = map[int]habit{3: again, 6: unlucky, 9: inParallel, 15: again, 22: inParallel, 28: unlucky, 35: again, 46: unlucky, 50: inParallel}

const (
	// fixedVisits is the number of customers in the fixed scenario, if it
	// suffices for every fault.
	fixedVisits = 60
	maxVisits   = 2000
)

// fixed is the scenario of [Config.Once].
func (w *world) fixed(ctx context.Context) error {
	random := rand.New(rand.NewPCG(w.cfg.Seed, 0)) //nolint:gosec // a scenario, not a secret
	for n := 1; ctx.Err() == nil && (n <= fixedVisits || w.faults.waiting() && n <= maxVisits); n++ {
		v := visitor(random, w.cfg.Seed, n)
		v.sku, v.habit = products[n%len(products)], habits[n]
		w.customers.welcome(w.visiting, v)
		if kind, ok := plan[n]; ok {
			if err := w.inject(ctx, kind); err != nil {
				return err
			}
		}
		pause(ctx, w.between())
		if n >= fixedVisits { // further customers only trigger armed faults, and leave time for deliveries
			pause(ctx, 4*w.between())
		}
	}
	for ctx.Err() == nil && w.courier.closed.Load() {
		pause(ctx, drainPoll)
	}
	return nil
}

// endless is the scenario that ends with ctx or after [Config.Duration].
func (w *world) endless(ctx context.Context) error {
	if w.cfg.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, w.cfg.Duration)
		defer cancel()
	}
	failed := make(chan error, 1)
	go func() { failed <- w.trouble(ctx) }()
	random := rand.New(rand.NewPCG(w.cfg.Seed, 0)) //nolint:gosec // a scenario, not a secret
	for n := 1; ctx.Err() == nil; n++ {
		w.customers.welcome(w.visiting, visitor(random, w.cfg.Seed, n))
		pause(ctx, w.between())
	}
	return <-failed
}

// between is the interval between two customers.
func (w *world) between() time.Duration { return time.Duration(float64(time.Second) / w.cfg.Rate) }

// troubles are the faults that are injected at random. Customers cause the
// others.
var troubles = []fault{checkoutFails, relayRestart, outage, pubackLost, publishTwice, brokerStop, handlerError, handlerPanic, consumerCrash, ackLost, courierClosed}

// trouble injects faults at random intervals: each once, in random order, then
// again.
func (w *world) trouble(ctx context.Context) error {
	random := rand.New(rand.NewPCG(w.cfg.Seed, 1)) //nolint:gosec // a scenario, not a secret
	for {
		for _, i := range random.Perm(len(troubles)) {
			pause(ctx, 600*time.Millisecond+time.Duration(random.IntN(1200))*time.Millisecond)
			if ctx.Err() != nil {
				return nil
			}
			if err := w.inject(ctx, troubles[i]); err != nil {
				return err
			}
		}
	}
}

// inject injects a fault: immediately, or at its next opportunity.
func (w *world) inject(ctx context.Context, kind fault) error {
	switch kind {
	case relayRestart:
		w.faults.note(kind)
		w.delivering.restart()
	case outage:
		w.faults.note(kind)
		w.publishing.fail(400 * time.Millisecond)
	case brokerStop:
		w.faults.note(kind)
		w.line.Stop()
		pause(ctx, 400*time.Millisecond)
		return w.line.Start(context.WithoutCancel(ctx)) // also after ctx has ended, to deliver the events in flight
	case courierClosed:
		if !w.courier.closed.Swap(true) {
			w.faults.note(kind)
			w.running.do(w.reopen)
		}
	case answerLost, keyInParallel:
		// Customers cause these.
	case checkoutFails, pubackLost, publishTwice, handlerError, handlerPanic, consumerCrash, ackLost:
		w.faults.arm(kind)
	}
	return nil
}

// drain waits for all events in flight, and counts a last time. It returns the
// number of events left: 0, unless the time limit expired.
func (w *world) drain(ctx context.Context) (left int, err error) {
	waiting, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	defer context.AfterFunc(waiting, w.leave)()
	defer context.AfterFunc(w.running.ctx, cancel)()
	w.screen.draining()
	w.customers.under.Wait()
	w.faults.disarm()
	w.publishing.fail(0)
	w.courier.closed.Store(false)
	for left = -1; left != 0 && waiting.Err() == nil; pause(waiting, drainPoll) {
		left, err = w.onTheWay(waiting) // may fail while the broker restarts
	}
	if failed := w.running.failure(); failed != nil {
		return left, failed
	}
	if err != nil {
		return left, fmt.Errorf("demo: cannot count the events in flight: %w", err)
	}
	if err := w.countNow(ctx); err != nil {
		return left, err
	}
	w.crossings.writeDown(w.journal)
	return left, w.reconcile(ctx)
}

// drainPoll is the interval between counts during the drain.
const drainPoll = 20 * time.Millisecond

// onTheWay returns the number of events in the outbox and in backlogs, and of
// messages in the broker.
func (w *world) onTheWay(ctx context.Context) (int, error) {
	var pending int
	err := w.store.DB().QueryRowContext(ctx, `SELECT (SELECT count(*) FROM waybill_outbox) + (SELECT count(*) FROM waybill_delayed) +
       (SELECT count(*) FROM waybill_backlog) + (SELECT count(*) FROM waybill_backlog_delayed)`).Scan(&pending)
	if err != nil {
		return -1, err
	}
	waiting, err := w.line.InFlight(ctx)
	if err != nil {
		return -1, err
	}
	return pending + waiting, nil
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

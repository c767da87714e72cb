package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// scenario lets customers come and things go wrong, until its end or that of ctx. A part that fails ends it.
func (w *world) scenario(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(w.running.ctx, stop)()
	var err error
	if w.cfg.Once || w.cfg.Sabotage != NoSabotage {
		err = w.fixed(ctx)
	} else {
		err = w.endless(ctx)
	}
	if failed := w.running.failure(); failed != nil {
		return failed
	}
	return err
}

// plan says what happens when how many customers have come. Every fault is in it.
var plan = map[int]fault{
	4: checkoutFails, 7: handlerError, 10: publishTwice, 13: handlerPanic, 16: pubackLost, 20: consumerCrash, 26: outage, 32: ackLost,
	38: relayRestart, 44: brokerStop,
}

// habits of the customers in the fixed scenario, by their number.
var habits = map[int]habit{3: again, 6: unlucky, 9: inParallel, 15: again, 22: inParallel, 28: unlucky, 35: again, 46: unlucky, 50: inParallel}

const (
	// fixedVisits is how many customers come in the fixed scenario, if that is enough for every fault to find its moment.
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
		if n >= fixedVisits { // who comes now only brings the faults that wait their moment: others need time to catch up
			pause(ctx, 4*w.between())
		}
	}
	return nil
}

// endless is the scenario that ends with ctx, or after [Config.Duration].
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

// between is the time between two customers.
func (w *world) between() time.Duration { return time.Duration(float64(time.Second) / w.cfg.Rate) }

// troubles are the faults that come at random. Customers bring the others.
var troubles = []fault{checkoutFails, relayRestart, outage, pubackLost, publishTwice, brokerStop, handlerError, handlerPanic, consumerCrash, ackLost}

// trouble lets something go wrong every now and then: everything once, in any order, and then again.
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

// inject lets a fault happen: now, or where its moment comes.
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
		w.broker.stop()
		pause(ctx, 400*time.Millisecond)
		return w.broker.start(context.WithoutCancel(ctx)) // also if ctx has ended: what is on its way is delivered
	case answerLost, keyInParallel:
		// Customers do that.
	case checkoutFails, pubackLost, publishTwice, handlerError, handlerPanic, consumerCrash, ackLost:
		w.faults.arm(kind)
	}
	return nil
}

// drain lets everything arrive that is on its way, and counts for the last time. It returns how much is left: nothing, unless the time was up.
func (w *world) drain(ctx context.Context) (left int, err error) {
	waiting, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	defer context.AfterFunc(waiting, w.leave)()
	defer context.AfterFunc(w.running.ctx, cancel)()
	w.screen.draining()
	w.customers.under.Wait()
	w.faults.disarm()
	w.publishing.fail(0)
	for left = -1; left != 0 && waiting.Err() == nil; pause(waiting, drainPoll) {
		left, err = w.onTheWay(waiting) // it may fail for a while: the broker is on its way back
	}
	if failed := w.running.failure(); failed != nil {
		return left, failed
	}
	if err != nil {
		return left, fmt.Errorf("demo: nobody knows what is on its way: %w", err)
	}
	if err := w.countNow(ctx); err != nil {
		return left, err
	}
	w.crossings.writeDown(w.journal)
	return left, w.reconcile(ctx)
}

// drainPoll is how often the end is looked for; reconnectWait how often a connection is tried again.
const (
	drainPoll     = 20 * time.Millisecond
	reconnectWait = 100 * time.Millisecond
)

// onTheWay returns how many events wait in the outbox, and how many messages in the broker.
func (w *world) onTheWay(ctx context.Context) (int, error) {
	var pending int
	err := w.store.DB().QueryRowContext(ctx, `SELECT (SELECT count(*) FROM waybill_outbox) + (SELECT count(*) FROM waybill_delayed)`).Scan(&pending)
	if err != nil {
		return -1, err
	}
	waiting, err := w.lookout.waiting(ctx)
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

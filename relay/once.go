package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
)

// Once delivers the events that are ready, and returns: for jobs of a
// scheduler, for serverless functions, and for tests. Every event that was
// committed before the call, is due, and belongs to a lane of this node has
// then been delivered, or has failed and waits for its next attempt, is a dead
// letter, or waits behind such an event. Later events may have been delivered,
// too. Once waits for events that are due within about 30 ms.
//
// If other nodes run, they share the lanes, and Once delivers no events of
// their lanes. The lanes of a node that has crashed are free after its lease.
//
// Once returns an error of the class [waybill.ClassUnavailable] if a
// destination was unavailable, the cause of ctx if that ended first, and
// otherwise the errors of [Relay.Run]. Purging does not run: call Purge of
// package admin from time to time, or Run in another process.
func (r *Relay) Once(ctx context.Context) error {
	once := &onceRun{}
	if err := r.work(ctx, once); err != nil {
		return err
	}
	if !once.done {
		return fmt.Errorf("relay: once: %w", context.Cause(ctx))
	}
	return once.down
}

// onceRun is the state of a run that ends when there is nothing to deliver.
type onceRun struct {
	done bool
	down error
}

// check stops the engine when there is nothing to deliver. It reports whether
// it did: the lanes can then be released now.
func (o *onceRun) check(e *engine) bool {
	if e.stopping || !e.isIdle(time.Now()) {
		return false
	}
	o.done = true
	var errs []error
	for _, q := range e.queues {
		for _, d := range q.ledger.Unavailable() {
			errs = append(errs, waybill.Unavailable(fmt.Errorf("relay: destination %q is unavailable: %w", cmp.Or(q.destination(d.Destination), e.cfg.SinkName), d.Err)))
		}
	}
	o.down = errors.Join(errs...)
	e.log.Debug("nothing is left to deliver", slog.Int(logkey.Lanes, e.main.ledger.LaneCount()))
	e.stop()
	return true
}

// isIdle reports whether this node has its lanes, and there is nothing to
// deliver in them.
func (e *engine) isIdle(now time.Time) bool {
	m := &e.member
	if !m.joined || m.working || len(m.want) > 0 || e.main.ledger.LaneCount() < m.share || !m.holdsLease(now) || e.calls() > 0 || e.commits.waits() {
		return false
	}
	for _, q := range e.queues {
		if q.reading || !q.ledger.IsIdle(now) && (q.to == nil || !q.to.isPaused()) {
			return false
		}
	}
	return true
}

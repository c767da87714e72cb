package relay

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay/internal/ledger"
)

// job is one batch of events with a worker. A batch of a backlog, or of a relay
// with one sink, is one call of the sink.
type job struct {
	queue *queue
	ctx   context.Context
	items []*ledger.Item
	batch []waybill.Delivery

	stop    context.CancelCauseFunc // of suspects
	stopped bool                    // stop was called before the delivery ended
	late    bool                    // calls of destinations are still under way

	results []error
	took    time.Duration
	lapsed  bool // the lease had lapsed before the call
	ended   bool // the context ended during the call

	// routes and answers are set for events of an outbox with destinations.
	routes  []routing
	answers []answer
}

// work delivers jobs until the channel is closed.
func (q *queue) work() {
	e := q.e
	for j := range q.jobs {
		q.deliver(j)
		e.results <- j // the channel has room for every worker
	}
}

// deliver calls the sink. It starts no delivery after the lease has lapsed, no
// matter when the engine sent the job.
func (q *queue) deliver(j *job) {
	e := q.e
	if !e.member.holdsLease(time.Now()) {
		j.lapsed = true
		return
	}
	began := time.Now()
	if q.to == nil && e.targets != nil {
		e.deliverDirect(j)
	} else {
		j.results = q.call(j.ctx, j.batch)
	}
	j.took = time.Since(began)
	j.ended = j.ctx.Err() != nil
}

// call calls the sink of a queue with a batch, within the time that a call may
// take.
func (q *queue) call(ctx context.Context, batch []waybill.Delivery) []error {
	timeout, name := q.e.cfg.DeliverTimeout, ""
	if q.to != nil {
		timeout, name = q.to.DeliverTimeout, q.to.Name
		if !q.to.enter(ctx) {
			return slices.Repeat([]error{context.Cause(ctx)}, len(batch))
		}
		defer q.to.leave()
		if refused := q.to.gate.refused(batch); refused != nil {
			return q.callRest(ctx, batch, refused, timeout, name)
		}
	}
	return q.callSink(ctx, batch, timeout, name)
}

// callRest calls the sink with the events that are not refused.
func (q *queue) callRest(ctx context.Context, batch []waybill.Delivery, refused []error, timeout time.Duration, name string) []error {
	var rest []waybill.Delivery
	for i := range batch {
		if refused[i] == nil {
			rest = append(rest, batch[i])
		}
	}
	if len(rest) == 0 {
		return refused
	}
	results := q.callSink(ctx, rest, timeout, name)
	if len(results) != len(rest) {
		return nil // as wrong as the number of results is
	}
	for i := range refused {
		if refused[i] == nil {
			refused[i], results = results[0], results[1:]
		}
	}
	return refused
}

// callSink calls the sink within a time.
func (q *queue) callSink(ctx context.Context, batch []waybill.Delivery, timeout time.Duration, name string) (results []error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	var after func(observe.DeliverDoneInfo)
	if q.e.observe.Deliver != nil {
		ctx, after = q.e.observe.Deliver(ctx, observe.DeliverInfo{Batch: batch, Destination: name})
	}
	results = safely(ctx, q.sink, batch)
	if after != nil {
		after(observe.DeliverDoneInfo{Results: results})
	}
	return results
}

// finishJob hands the results of a call to the ledger.
func (q *queue) finishJob(j *job) {
	e := q.e
	now := time.Now()
	q.idle++
	q.calls--
	q.chunk.add(len(j.items), j.took)
	if j.stop != nil {
		if !j.late { // else collectLate does it
			j.stop(nil)
		}
		q.suspects = slices.DeleteFunc(q.suspects, func(x *job) bool { return x == j })
		j.stop = nil
	}
	if len(j.routes) > 0 {
		e.finishDirect(j, now)
		q.recycle(j)
		return
	}
	if !j.lapsed && len(j.results) != len(j.items) {
		err := errResults(len(j.results), len(j.items))
		e.log.Error("the sink returned a wrong number of results; nothing is settled", slog.String(logkey.Error, err.Error()))
		j.results = make([]error, len(j.items))
		for i := range j.results {
			j.results[i] = waybill.Unavailable(err)
		}
	}
	q.finishResults(j, now)
	q.recycle(j)
}

// finishResults hands the result of each event to the ledger. An event did not
// happen if the lease had lapsed, if the engine ended the call, or if an
// ordered sink stopped in front of it.
func (q *queue) finishResults(j *job, now time.Time) {
	var failed failures
	for i, it := range j.items {
		var err error
		if !j.lapsed {
			err = j.results[i]
		}
		behind := q.ordered && failed.note(&it.Row().Event, err)
		if j.lapsed || behind || refuses(err) && j.ended || isNotCalled(err) {
			q.ledger.Undelivered(it, now)
			continue
		}
		q.finishDelivery(it, &j.batch[i], err, j.took, now)
	}
}

// refuses reports whether a result means that the event was not delivered.
func refuses(err error) bool { return err != nil && !succeeded(err) }

// failures are the aggregates of a batch with an event that was refused.
type failures map[aggregate]bool

// note notes the result of an event, and reports whether the event follows one
// of its aggregate that was refused: an ordered sink stopped in front of it.
func (f *failures) note(ev *waybill.Event, err error) (behind bool) {
	refused := refuses(err)
	if !ev.Ordered() || !refused && len(*f) == 0 {
		return false
	}
	key := aggregate{ev.TenantID, ev.AggregateType, ev.AggregateID}
	behind = (*f)[key]
	if refused {
		if *f == nil {
			*f = make(failures)
		}
		(*f)[key] = true
	}
	return behind
}

// aggregate identifies an aggregate.
type aggregate struct{ tenant, kind, id string }

// finishDelivery hands the result of an event to the ledger, and calls the
// hooks.
func (q *queue) finishDelivery(it *ledger.Item, d *waybill.Delivery, err error, took time.Duration, now time.Time) {
	e := q.e
	if stack := panicStack(err); stack != "" {
		q.event(slog.LevelError, "the sink panicked", it, err, slog.String(logkey.Stack, stack))
	}
	v := q.ledger.DeliveryEnded(it, d, err, now)
	if q.to != nil {
		q.to.adapt(err, now)
	}
	switch {
	case v.Ignored:
	case v.Class == waybill.ClassDone:
		q.delivered(it, took)
		e.counts.delivered(q.name(), d.Type, now)
		if q.to != nil {
			q.to.breaker.passed()
		}
		if e.observe.Delivered != nil {
			e.observe.Delivered(observe.DeliveredInfo{Delivery: d, Took: took, Age: q.ledger.Age(it, now), Destination: q.name()})
		}
	case v.Class == waybill.ClassPermanent:
		e.report(now) // the hooks see the delivery, which is about to be reused
	default:
		e.counts.failed(q.name(), d.Type, now)
		if e.observe.Failed != nil {
			e.observe.Failed(observe.FailedInfo{Delivery: d, Class: v.Class, Err: err, Took: took, Destination: q.name()})
		}
	}
}

// delivered logs a delivery at DEBUG. A call that had several events took the
// same time for each.
func (q *queue) delivered(it *ledger.Item, took time.Duration) {
	if q.e.log.Enabled(context.Background(), slog.LevelDebug) {
		q.event(slog.LevelDebug, "event delivered", it, nil, slog.Duration(logkey.Took, took))
	}
}

// panicStack returns the stack of a panic, or "".
func panicStack(err error) string {
	if err == nil {
		return ""
	}
	var p interface{ Stack() string }
	if errors.As(err, &p) {
		return p.Stack()
	}
	return ""
}

// chunker sizes the batches of a serial sink.
type chunker struct {
	each float64 // approximate time per event, in nanoseconds
}

const (
	// chunkTime is the target duration of one call of a serial sink: long
	// enough that the cost of handing over work is negligible, short enough
	// that other events do not wait.
	chunkTime = 200 * time.Microsecond
	maxChunk  = 128
)

func (c *chunker) add(n int, took time.Duration) {
	if n == 0 || took == 0 {
		return
	}
	each := float64(took) / float64(n)
	if c.each == 0 {
		c.each = each
	}
	c.each += (each - c.each) / 4
}

// size returns how many events a call should hold.
func (c *chunker) size() int {
	if c.each == 0 {
		return 1
	}
	return max(1, min(maxChunk, int(float64(chunkTime)/c.each)))
}

// worthwhile is the minimum batch of a batching sink, if that many events are
// ready.
const worthwhile = 64

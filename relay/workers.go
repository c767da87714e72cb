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

// job is one call of the sink.
type job struct {
	ctx   context.Context
	items []*ledger.Item
	batch []waybill.Delivery

	stop    context.CancelCauseFunc // of suspects
	stopped bool                    // stop was called before the delivery ended

	results []error
	took    time.Duration
	lapsed  bool // the lease had lapsed before the call
	ended   bool // the context ended during the call
}

// dispatch gives jobs to idle workers.
func (e *engine) dispatch(now time.Time) {
	if e.stopping || !e.member.holdsLease(now) {
		return
	}
	e.ledger.CountSuspects(now)
	for e.idle > 0 && e.ledger.SuspectsReady() > 0 {
		j := e.newJob()
		j.items = e.ledger.NextSuspects(j.items, e.batchSize(e.ledger.SuspectsReady()), now)
		j.ctx, j.stop = context.WithCancelCause(e.lease)
		e.suspects = append(e.suspects, j)
		e.send(j)
	}
	for e.idle > 0 && e.ledger.Ready() > 0 {
		j := e.newJob()
		j.items = e.ledger.NextBatch(j.items, e.batchSize(e.ledger.Ready()), now)
		if len(j.items) == 0 {
			e.free = append(e.free, j)
			return
		}
		e.send(j)
	}
}

func (e *engine) newJob() *job {
	if n := len(e.free); n > 0 {
		j := e.free[n-1]
		e.free = e.free[:n-1]
		return j
	}
	return &job{}
}

func (e *engine) send(j *job) {
	for _, it := range j.items {
		j.batch = append(j.batch, it.Delivery())
	}
	if j.ctx == nil {
		j.ctx = e.lease
	}
	e.idle--
	e.calls++
	e.jobs <- j // the channel has room for every worker
}

// work delivers jobs until the channel is closed.
func (e *engine) work() {
	for j := range e.jobs {
		e.deliver(j)
		e.results <- j // the channel has room for every worker
	}
}

// deliver calls the sink. It starts no delivery after the lease has lapsed, no
// matter when the engine sent the job.
func (e *engine) deliver(j *job) {
	if !e.member.holdsLease(time.Now()) {
		j.lapsed = true
		return
	}
	ctx := j.ctx
	if e.cfg.DeliverTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, e.cfg.DeliverTimeout)
		defer cancel()
	}
	var after func(observe.DeliverDoneInfo)
	if e.observe.Deliver != nil {
		ctx, after = e.observe.Deliver(ctx, observe.DeliverInfo{Batch: j.batch})
	}
	began := time.Now()
	j.results = safely(ctx, e.sink, j.batch)
	j.took = time.Since(began)
	j.ended = j.ctx.Err() != nil
	if after != nil {
		after(observe.DeliverDoneInfo{Results: j.results})
	}
}

// finishJob hands the results of a call to the ledger.
func (e *engine) finishJob(j *job) {
	now := time.Now()
	e.idle++
	e.calls--
	e.chunk.add(len(j.items), j.took)
	if j.stop != nil {
		j.stop(nil)
		e.suspects = slices.DeleteFunc(e.suspects, func(x *job) bool { return x == j })
	}
	if !j.lapsed && len(j.results) != len(j.items) {
		err := errResults(len(j.results), len(j.items))
		e.log.Error("the sink returned a wrong number of results; nothing is settled", slog.String(logkey.Error, err.Error()))
		j.results = make([]error, len(j.items))
		for i := range j.results {
			j.results[i] = waybill.Unavailable(err)
		}
	}
	e.finishResults(j, now)
	clear(j.items)
	clear(j.batch)
	*j = job{items: j.items[:0], batch: j.batch[:0]}
	e.free = append(e.free, j)
}

// finishResults hands the result of each event to the ledger. An event did not
// happen if the lease had lapsed, if the engine ended the call, or if an
// ordered sink stopped in front of it.
func (e *engine) finishResults(j *job, now time.Time) {
	_, ordered := e.sink.(OrderedSink)
	var failed map[aggregate]bool
	for i, it := range j.items {
		var err error
		if !j.lapsed {
			err = j.results[i]
		}
		refused := err != nil && !errors.Is(err, waybill.ErrSettled)
		behind := false
		if ev := &it.Row().Event; ordered && ev.Ordered() && (refused || len(failed) > 0) {
			key := aggregate{ev.TenantID, ev.AggregateType, ev.AggregateID}
			behind = failed[key]
			if refused && failed == nil {
				failed = make(map[aggregate]bool)
			}
			if refused {
				failed[key] = true
			}
		}
		if j.lapsed || behind || refused && j.ended {
			e.ledger.Undelivered(it, now)
			continue
		}
		e.finishDelivery(it, &j.batch[i], err, j.took, now)
	}
}

// aggregate identifies an aggregate.
type aggregate struct{ tenant, kind, id string }

// finishDelivery hands the result of an event to the ledger, and calls the
// hooks.
func (e *engine) finishDelivery(it *ledger.Item, d *waybill.Delivery, err error, took time.Duration, now time.Time) {
	if stack := panicStack(err); stack != "" {
		e.event(slog.LevelError, "the sink panicked", it, err, slog.String(logkey.Stack, stack))
	}
	v := e.ledger.DeliveryEnded(it, d, err, now)
	switch {
	case v.Ignored:
	case v.Class == waybill.ClassDone:
		if e.observe.Delivered != nil {
			e.observe.Delivered(observe.DeliveredInfo{Delivery: d, Took: took, Age: e.ledger.Age(it, now)})
		}
	case v.Class == waybill.ClassPermanent:
		e.report(now) // the hooks see the delivery, which is about to be reused
	default:
		if e.observe.Failed != nil {
			e.observe.Failed(observe.FailedInfo{Delivery: d, Class: v.Class, Err: err, Took: took})
		}
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

// batchSize returns the maximum number of events of the next call of the sink,
// if that many are ready.
func (e *engine) batchSize(ready int) int {
	share := (ready + e.cfg.Workers - 1) / e.cfg.Workers
	if e.serial {
		return min(max(share, 1), e.chunk.size(), e.cfg.BatchSize)
	}
	return min(max(share, worthwhile), e.cfg.BatchSize)
}

package relay

import (
	"context"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay/internal/ledger"
	"github.com/waybillhq/waybill/store/driver"
)

// queue is one queue of events with its own ledger: the outbox, or the backlog
// of a destination. Its goroutines read, settle and deliver; the engine's
// goroutine owns all of its fields.
type queue struct {
	e    *engine
	rows rows
	// to is the destination of a backlog; nil for the outbox.
	to     *target
	ledger *ledger.Ledger

	sink    waybill.Sink
	ordered bool // the sink is an OrderedSink
	serial  bool // the sink is a SerialSink

	reads   chan ledger.Read
	reading bool
	settles chan settleJob

	jobs    chan *job
	workers int
	free    []*job // finished jobs, for reuse
	idle    int    // workers without a job
	calls   int    // jobs with workers
	chunk   chunker
	// suspects are the deliveries of suspects in flight. Their contexts can end
	// before the others.
	suspects []*job
}

// rows are the rows of a queue.
type rows interface {
	driver.Reader
	driver.Seeker
	driver.Settler
}

// newQueue returns a queue with workers for a sink.
func newQueue(e *engine, rows rows, sink waybill.Sink, workers int, cfg ledger.Config) *queue {
	if d, ok := sink.(DestinationSink); ok {
		cfg.Destination = d.Destination
	}
	q := newQueueOf(e, rows, []waybill.Sink{sink}, workers, cfg)
	q.sink = sink
	return q
}

// newQueueOf returns a queue whose workers call several sinks. Its batches are
// ordered if all sinks are, and serial if one is.
func newQueueOf(e *engine, rows rows, sinks []waybill.Sink, workers int, cfg ledger.Config) *queue {
	q := &queue{
		e: e, rows: rows, workers: workers, idle: workers, ordered: true,
		reads: make(chan ledger.Read, 1), settles: make(chan settleJob, 1), jobs: make(chan *job, workers),
	}
	for _, sink := range sinks {
		_, ordered := sink.(OrderedSink)
		_, serial := sink.(SerialSink)
		q.ordered, q.serial = q.ordered && ordered, q.serial || serial
	}
	cfg.Ordered = q.ordered
	q.ledger = ledger.New(cfg)
	return q
}

// close ends the queue's goroutines.
func (q *queue) close() {
	close(q.reads)
	close(q.settles)
	close(q.jobs)
}

// act starts all work of the queue that can be started.
func (q *queue) act(now time.Time) {
	q.ledger.Probe(now)
	q.dispatch(now)
	q.settle(now)
	q.read(now)
}

// read starts the next read, if one is due and none is under way.
func (q *queue) read(now time.Time) {
	for kind := range q.ledger.DueReads(now) {
		if kind == ledger.ReadFast && q.ledger.AreCommitsWaiting() {
			q.e.takeCommits()
		}
		if r, ok := q.ledger.StartRead(kind, now); ok {
			q.reading = true
			if q.to == nil {
				q.e.seen.began = now
			}
			q.reads <- r
			return
		}
	}
}

// finishRead handles the answer to a read.
func (q *queue) finishRead(r readReply) {
	e := q.e
	q.reading = false
	now := time.Now()
	name := "read " + r.read.Kind.String()
	if r.err != nil {
		e.database.Failed(name, r.err)
		if k := r.read.Kind; q.to == nil && (k == ledger.ReadFast || k == ledger.ReadHolds || k == ledger.ReadWriters) {
			e.seen.failed = now
		}
		q.ledger.ReadFailed(r.read, now)
		return
	}
	e.database.Succeeded(name)
	if q.to == nil && r.read.Kind == ledger.ReadFast && !e.stopping {
		e.seen.good = e.seen.began
	}
	q.ledger.RowsRead(r.read, r.answer, now)
}

// settle sends a settlement if one is due and none is under way.
func (q *queue) settle(now time.Time) {
	if s, ok := q.ledger.NextSettlement(now); ok {
		// The settlement is detached from cancellation; one that takes longer
		// than the lease will be rejected anyway.
		q.settles <- settleJob{queue: q, settlement: s, until: now.Add(q.e.cfg.Lease)}
	}
}

// finishSettle handles the answer to a settlement.
func (q *queue) finishSettle(r settleReply) {
	now := time.Now()
	if r.err != nil {
		q.e.database.Failed("settle", r.err)
		q.ledger.SettlementFailed(r.settlement, now)
		return
	}
	q.e.database.Succeeded("settle")
	q.ledger.Settled(r.settlement, r.settled, r.took, now)
	if q.to == nil {
		q.e.diverted(&r.settlement, now)
	}
}

// dispatch gives jobs to idle workers.
func (q *queue) dispatch(now time.Time) {
	e := q.e
	if e.stopping || !e.member.holdsLease(now) || q.to != nil && q.to.isPaused() {
		return
	}
	q.ledger.CountSuspects(now)
	for q.idle > 0 && q.ledger.SuspectsReady() > 0 {
		j := q.newJob()
		j.items = q.ledger.NextSuspects(j.items, q.batchSize(q.ledger.SuspectsReady()), now)
		j.ctx, j.stop = context.WithCancelCause(e.lease)
		if q.send(j, now) {
			q.suspects = append(q.suspects, j)
		}
	}
	for q.idle > 0 && q.ledger.Ready() > 0 {
		limit := q.batchSize(q.ledger.Ready())
		if q.to != nil {
			if limit = q.to.rate.room(limit, now); limit == 0 {
				q.to.waitsForRate(now)
				return // schedule waits for the rate
			}
		}
		j := q.newJob()
		j.items = q.ledger.NextBatch(j.items, limit, now)
		if q.to != nil {
			q.to.rate.giveBack(limit - len(j.items))
		}
		if len(j.items) == 0 {
			q.free = append(q.free, j)
			return
		}
		q.send(j, now)
	}
}

func (q *queue) newJob() *job {
	if n := len(q.free); n > 0 {
		j := q.free[n-1]
		q.free = q.free[:n-1]
		return j
	}
	return &job{queue: q}
}

// send gives a job to a worker. It reports false if no call of a sink is needed
// for any of its events.
func (q *queue) send(j *job, now time.Time) bool {
	if q.to != nil {
		q.to.passKnown(j, now)
	} else {
		q.e.plan(j, now)
	}
	if len(j.items) == 0 {
		q.recycle(j)
		return false
	}
	for _, it := range j.items {
		j.batch = append(j.batch, it.Delivery())
	}
	if j.ctx == nil {
		j.ctx = q.e.lease
	}
	q.idle--
	q.calls++
	q.jobs <- j // the channel has room for every worker
	return true
}

// recycle keeps a finished job for reuse.
func (q *queue) recycle(j *job) {
	if j.stop != nil {
		j.stop(nil)
		q.suspects = slices.DeleteFunc(q.suspects, func(x *job) bool { return x == j })
	}
	clear(j.items)
	clear(j.batch)
	clear(j.answers)
	*j = job{queue: q, items: j.items[:0], batch: j.batch[:0], routes: j.routes[:0], answers: j.answers[:0]}
	q.free = append(q.free, j)
}

// batchSize returns the maximum number of events of the next call of the sink,
// if that many are ready.
func (q *queue) batchSize(ready int) int {
	share := (ready + q.workers - 1) / q.workers
	if q.serial {
		return min(max(share, 1), q.chunk.size(), q.e.cfg.BatchSize)
	}
	return min(max(share, worthwhile), q.e.cfg.BatchSize)
}

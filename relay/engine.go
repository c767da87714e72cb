package relay

import (
	"context"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/outage"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay/internal/ledger"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// engine is a running relay. One goroutine owns the ledger and all other state,
// and blocks only on its own select. Reads, settlements, membership and
// deliveries run on goroutines of their own; each of these gets one job at a
// time and answers on a channel. The engine therefore needs no locks, and the
// ledger evaluates every answer against the state at the time when the answer
// arrives.
type engine struct {
	cfg     Config
	db      database
	sink    waybill.Sink
	node    store.Node
	log     *slog.Logger
	observe observe.Hooks

	ledger *ledger.Ledger
	source *driver.Hub // identifies the tables
	total  int         // number of lanes of the outbox

	reads   chan ledger.Read
	pages   chan readReply
	reading bool
	settles chan settleJob
	answers chan settleReply

	serial  bool // the sink is a SerialSink
	jobs    chan *job
	results chan *job
	free    []*job // finished jobs, for reuse
	idle    int    // workers without a job
	calls   int    // jobs with workers
	chunk   chunker
	// suspects are the deliveries of suspects in flight. Their contexts can end
	// before the others.
	suspects []*job

	commits  *hotQueue
	database *outage.Log
	seen     sight
	member   membership

	// laneVersion and selfPolling are what the writers of this process were
	// last told.
	laneVersion  int
	selfPolling  bool
	downLoggedAt time.Time // when the unavailable destinations were last logged

	io       context.Context // ends when the relay stops reading
	endIO    context.CancelFunc
	lease    context.Context // ends when the lease lapses, or the drain times out
	endLease context.CancelCauseFunc
	timer    *time.Timer
	stopping bool
	stopBy   time.Time
}

func newEngine(db database, sink waybill.Sink, cfg Config) *engine {
	e := &engine{
		cfg: cfg, db: db, sink: sink, log: cfg.Logger, observe: cfg.Observe,
		node:   store.Node{ID: waybill.NewID(), Relay: cfg.Name},
		ledger: newLedger(sink, cfg),
		source: db.Local(),
		reads:  make(chan ledger.Read, 1), pages: make(chan readReply, 1),
		settles: make(chan settleJob, 1), answers: make(chan settleReply, 1),
		jobs: make(chan *job, cfg.Workers), results: make(chan *job, cfg.Workers),
		idle:    cfg.Workers,
		commits: newHotQueue(cfg),
		timer:   time.NewTimer(0),
	}
	e.database = outage.New(cfg.Logger, "the database")
	_, e.serial = sink.(SerialSink)
	e.io, e.endIO = context.WithCancel(context.Background())
	e.lease, e.endLease = context.WithCancelCause(context.Background())
	e.member.start = time.Now()
	e.member.jobs, e.member.replies = make(chan memberJob, 1), make(chan memberReply, 1)
	return e
}

func newLedger(sink waybill.Sink, cfg Config) *ledger.Ledger {
	c := ledger.Config{
		BatchSize: cfg.BatchSize, HotQueue: cfg.HotQueue, ColdQueue: cfg.ColdQueue,
		MaxAttempts: cfg.MaxAttempts, UnknownGrace: cfg.UnknownGrace, Block: cfg.OnDead == Block,
		PollInterval: cfg.PollInterval, SweepInterval: cfg.SweepInterval, Linger: cfg.Linger,
		History: cfg.HistoryRetention > 0,
		Backoff: delays{base: cfg.BackoffBase, max: cfg.BackoffMax, series: cfg.BackoffSeries}.after,
	}
	_, c.Ordered = sink.(OrderedSink)
	if d, ok := sink.(DestinationSink); ok {
		c.Destination = d.Destination
	}
	return ledger.New(c)
}

// run works until the context has ended and the deliveries in flight are
// settled.
func (e *engine) run(ctx context.Context) error {
	done := ctx.Done()
	for {
		if e.stopping && e.drained() {
			return nil
		}
		if err := e.member.failed; err != nil {
			return err
		}
		e.act()
		e.schedule()
		select {
		case j := <-e.results:
			e.finishJob(j)
			e.takeResults()
		case r := <-e.pages:
			e.finishRead(r)
		case a := <-e.answers:
			e.finishSettle(a)
		case r := <-e.member.replies:
			e.finishMember(r)
		case <-e.commits.signal:
			// While many events are read anyway, the next read takes the
			// notifications too: waking up for each one costs more.
			e.ledger.CommitsWait()
			if e.ledger.IsCalm() {
				e.takeCommits()
			}
		case <-e.timer.C:
		case <-done:
			done = nil
			e.stop()
		}
	}
}

// takeResults takes the other finished jobs, so that their events are settled
// together.
func (e *engine) takeResults() {
	for {
		select {
		case j := <-e.results:
			e.finishJob(j)
		default:
			return
		}
	}
}

// takeCommits hands the announcements of commits to the ledger.
func (e *engine) takeCommits() {
	e.commits.take(func(all []driver.Commit) { e.ledger.Announced(all, time.Now()) })
}

// act starts all work that can be started.
func (e *engine) act() {
	now := time.Now()
	e.database.Tick(now)
	e.report(now)
	e.checkLease(now)
	e.ledger.Probe(now)
	e.dispatch(now)
	e.settle(now)
	e.read(now)
	e.membership(now)
	e.report(now)
}

// schedule sets the timer to the next time at which act may have work to do
// without an answer.
func (e *engine) schedule() {
	now := time.Now()
	next := now.Add(time.Minute)
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	// Times in the past have been acted on, or wait for an answer that will
	// wake the engine.
	ahead := func(t time.Time) {
		if t.After(now) {
			earlier(t)
		}
	}
	earlier(e.database.Next())
	earlier(e.member.next())
	ahead(e.member.lapse)
	if e.stopping {
		ahead(e.stopBy)
		ahead(e.stopBy.Add(workerTime + releaseTime))
	}
	for _, l := range e.ledger.Draining() {
		ahead(e.releaseBy(l))
	}
	if e.ledger.AnyUnavailable() {
		ahead(e.downLoggedAt.Add(outage.Every))
	}
	if at, ok := e.ledger.NextWakeup(); ok && at.Before(next) {
		next = at
	}
	// A timer that fires a little late is fine, and saves a second wake-up.
	e.timer.Reset(max(next.Sub(now), 0))
}

// read starts the next read, if one is due and none is under way.
func (e *engine) read(now time.Time) {
	for kind := range e.ledger.DueReads(now) {
		if kind == ledger.ReadFast && e.ledger.AreCommitsWaiting() {
			e.takeCommits()
		}
		if r, ok := e.ledger.StartRead(kind, now); ok {
			e.reading, e.seen.began = true, now
			e.reads <- r
			return
		}
	}
}

// finishRead handles the answer to a read.
func (e *engine) finishRead(r readReply) {
	e.reading = false
	now := time.Now()
	name := "read " + r.read.Kind.String()
	if r.err != nil {
		e.database.Failed(name, r.err)
		if k := r.read.Kind; k == ledger.ReadFast || k == ledger.ReadHolds || k == ledger.ReadWriters {
			e.seen.failed = now
		}
		e.ledger.ReadFailed(r.read, now)
		return
	}
	e.database.Succeeded(name)
	if r.read.Kind == ledger.ReadFast && !e.stopping {
		e.seen.good = e.seen.began
	}
	e.ledger.RowsRead(r.read, r.answer, now)
}

// settle sends a settlement if one is due and none is under way.
func (e *engine) settle(now time.Time) {
	if s, ok := e.ledger.NextSettlement(now); ok {
		// The settlement is detached from cancellation; one that takes longer
		// than the lease will be rejected anyway.
		e.settles <- settleJob{settlement: s, until: now.Add(e.cfg.Lease)}
	}
}

// finishSettle handles the answer to a settlement.
func (e *engine) finishSettle(r settleReply) {
	now := time.Now()
	if r.err != nil {
		e.database.Failed("settle", r.err)
		e.ledger.SettlementFailed(r.settlement, now)
		return
	}
	e.database.Succeeded("settle")
	e.ledger.Settled(r.settlement, r.settled, r.took, now)
}

// stop stops taking events: events in flight are finished, waiting ones stay in
// their table.
func (e *engine) stop() {
	e.log.Info("relay stopping", slog.Int(logkey.Calls, e.calls))
	now := time.Now()
	e.stopping = true
	e.stopBy = now.Add(max(e.cfg.DrainTimeout, 0))
	e.ledger.Stop(now)
	for _, l := range e.ledger.Lanes() {
		e.ledger.DrainLane(l.Lease.Lane, e.stopBy, now)
	}
	e.commits.close()
}

// drained reports whether nothing is in flight any more, or the drain and the
// release have timed out.
func (e *engine) drained() bool {
	if e.member.left && !e.member.working {
		return true
	}
	return !time.Now().Before(e.stopBy.Add(workerTime + releaseTime))
}

// releaseTime is how long releasing the lanes may take after the drain, before
// the lanes are left to expire.
const releaseTime = 2 * time.Second

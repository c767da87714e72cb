package relay

import (
	"context"
	"log/slog"
	"slices"
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
// deliveries run on separate goroutines; each of these gets one job at a time
// and answers on a channel. The engine therefore needs no locks, and the ledger
// evaluates every answer against the state at the time when the answer arrives.
type engine struct {
	cfg     Config
	db      database
	node    store.Node
	self    driver.NodeReport // the part that all reports of this node share
	log     *slog.Logger
	observe observe.Hooks

	// main is the queue of the outbox, with the sink of a relay that has one.
	// targets are the destinations of a relay that has several; queues are main
	// and the queues of their backlogs.
	main    *queue
	targets []*target
	queues  []*queue
	check   checks

	source *driver.Hub // identifies the tables
	total  int         // number of lanes of the outbox

	pages       chan readReply
	answers     chan settleReply
	results     chan *job
	lateAnswers chan answer
	buried      chan struct{} // dead letters were settled; their causes are unknown
	ended       chan struct{} // closed when the engine ends

	commits  *hotQueue
	database *outage.Log
	seen     sight
	member   membership
	counts   counter

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
	once     *onceRun // nil: until the context ends

	asks chan chan<- Health
}

func newEngine(db database, sink waybill.Sink, cfg Config) *engine {
	e := newBareEngine(db, cfg)
	e.addQueue(newQueue(e, db, sink, cfg.Workers, ledgerConfig(cfg)))
	return e
}

// newEngineTo returns the engine of a relay with several destinations.
func newEngineTo(db database, all []Destination, cfg Config) *engine {
	e := newBareEngine(db, cfg)
	sinks := make([]waybill.Sink, len(all))
	for i, d := range all {
		sinks[i] = d.Sink
	}
	e.addQueue(newQueueOf(e, db, sinks, cfg.Workers, ledgerConfig(cfg)))
	for i, d := range all {
		t := newTarget(e, d, i)
		e.targets = append(e.targets, t)
		e.addQueue(t.queue)
	}
	return e
}

// newBareEngine returns an engine without queues.
func newBareEngine(db database, cfg Config) *engine {
	e := &engine{
		cfg: cfg, db: db, log: cfg.Logger, observe: cfg.Observe,
		node:   store.Node{ID: waybill.NewID(), Relay: cfg.Name},
		self:   newNodeReport(cfg, time.Now()),
		source: db.Local(), ended: make(chan struct{}),
		pages: make(chan readReply, 1), answers: make(chan settleReply, 1), results: make(chan *job, cfg.Workers),
		lateAnswers: make(chan answer), buried: make(chan struct{}, 1), asks: make(chan chan<- Health),
		commits: newHotQueue(cfg),
		timer:   time.NewTimer(0),
	}
	e.check.jobs, e.check.replies = make(chan checkJob, 1), make(chan checkReply, 1)
	e.database = outage.New(cfg.Logger, "the database")
	e.io, e.endIO = context.WithCancel(context.Background())
	e.lease, e.endLease = context.WithCancelCause(context.Background())
	e.member.start = time.Now()
	e.counts.clock = func(now time.Time) time.Time { return e.main.ledger.DatabaseTime(now) }
	e.member.jobs, e.member.replies = make(chan memberJob, 1), make(chan memberReply, 1)
	return e
}

// addQueue adds a queue; the first one is that of the outbox. Every answer of a
// queue finds room in the engine's channels.
func (e *engine) addQueue(q *queue) {
	e.queues = append(e.queues, q)
	if e.main == nil {
		e.main = q
	}
	workers := 0
	for _, q := range e.queues {
		workers += q.workers
	}
	e.pages, e.answers = make(chan readReply, len(e.queues)), make(chan settleReply, len(e.queues))
	e.results = make(chan *job, workers)
}

// ledgerConfig returns the settings of the outbox's ledger.
func ledgerConfig(cfg Config) ledger.Config {
	return ledger.Config{
		BatchSize: cfg.BatchSize, HotQueue: cfg.HotQueue, ColdQueue: cfg.ColdQueue, MaxBytes: cfg.MaxBytes,
		MaxAttempts: cfg.MaxAttempts, UnknownGrace: cfg.UnknownGrace, Block: cfg.OnDead == Block,
		PollInterval: cfg.PollInterval, SweepInterval: cfg.SweepInterval, Linger: cfg.Linger,
		History: cfg.HistoryRetention > 0,
		Backoff: delays{base: cfg.BackoffBase, max: cfg.BackoffMax, series: cfg.BackoffSeries, own: cfg.Backoff}.after,
	}
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
		if e.once != nil && e.once.check(e) {
			continue
		}
		e.schedule()
		select {
		case j := <-e.results:
			j.queue.finishJob(j)
			e.takeResults()
		case r := <-e.pages:
			r.queue.finishRead(r)
		case a := <-e.answers:
			a.queue.finishSettle(a)
		case a := <-e.lateAnswers:
			e.finishLate(a, time.Now())
		case r := <-e.check.replies:
			e.finishCheck(r)
		case r := <-e.member.replies:
			e.finishMember(r)
		case ask := <-e.asks:
			ask <- e.health(time.Now())
		case <-e.commits.signal:
			// While many events are read anyway, the next read takes the
			// notifications too: waking up for each one costs more.
			e.main.ledger.CommitsWait()
			if e.main.ledger.IsCalm() {
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
			j.queue.finishJob(j)
		default:
			return
		}
	}
}

// takeCommits hands the announcements of commits to the ledger.
func (e *engine) takeCommits() {
	e.commits.take(func(all []driver.Commit) {
		now := time.Now()
		e.main.ledger.Announced(all, now)
		if e.targets != nil && slices.ContainsFunc(all, func(c driver.Commit) bool { return len(c.Entries) == 0 }) {
			e.wakeBacklogs(now) // an operator may have changed them
		}
	})
}

// act starts all work that can be started.
func (e *engine) act() {
	now := time.Now()
	e.database.Tick(now)
	e.report(now)
	e.checkLease(now)
	for _, q := range e.queues {
		q.act(now)
	}
	e.membership(now)
	e.checkBacklogs(now)
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
	for _, l := range e.main.ledger.Draining() {
		ahead(e.releaseBy(l))
	}
	if e.anyUnavailable() {
		ahead(e.downLoggedAt.Add(outage.Every))
	}
	for _, q := range e.queues {
		if at, ok := q.ledger.NextWakeup(); ok && at.Before(next) {
			next = at
		}
	}
	for _, t := range e.targets {
		if q := t.queue; q.idle > 0 && q.ledger.Ready() > 0 && !t.isPaused() {
			ahead(t.rate.next(now))
		}
	}
	earlier(e.nextCheck())
	// A timer that fires a little late is fine, and saves a second wake-up.
	e.timer.Reset(max(next.Sub(now), 0))
}

// stop stops taking events: events in flight are finished, waiting ones stay in
// their table.
func (e *engine) stop() {
	e.log.Info("relay stopping", slog.Int(logkey.Calls, e.calls()))
	now := time.Now()
	e.stopping = true
	e.stopBy = now.Add(max(e.cfg.DrainTimeout, 0))
	for _, q := range e.queues {
		q.ledger.Stop(now)
	}
	for _, l := range e.main.ledger.Lanes() {
		e.drainLane(l.Lease.Lane, e.stopBy, now)
	}
	e.commits.close()
}

// calls returns the number of jobs with workers.
func (e *engine) calls() int {
	n := 0
	for _, q := range e.queues {
		n += q.calls
	}
	return n
}

// drainLane stops taking events of a lane.
func (e *engine) drainLane(lane int, by, now time.Time) {
	e.main.ledger.DrainLane(lane, by, now)
	for _, t := range e.targets {
		t.drain(lane, by, now)
	}
}

// laneLost drops a lane that this node does not own any more.
func (e *engine) laneLost(lane int, now time.Time) {
	e.main.ledger.LaneLost(lane, now)
	for _, t := range e.targets {
		t.lost(lane, now)
	}
}

// anyUnavailable reports whether a destination is unavailable.
func (e *engine) anyUnavailable() bool {
	return slices.ContainsFunc(e.queues, func(q *queue) bool { return q.ledger.AnyUnavailable() })
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

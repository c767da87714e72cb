package relay

import (
	"context"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill/internal/outage"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
)

// engine is a running relay. One goroutine owns all of its state and never blocks on anything but its own select; reads,
// settlements, membership and deliveries run on goroutines of their own, each of which is handed one job at a time and
// answers on a channel. So there are no locks to reason about, and every answer is judged by what is known when it
// arrives.
type engine struct {
	cfg     Config
	db      store.Relay
	sink    Sink
	node    store.Node
	log     *slog.Logger
	observe observe.Hooks

	ordered bool // the sink is an OrderedSink
	serial  bool // the sink is a SerialSink
	backoff delays
	history bool
	source  any // stands for the tables
	window  int

	lanes owned
	total int // how many lanes there are
	queues
	suspects suspects
	dests    map[string]*destination
	downTold time.Time // when the log last said what is down

	// Reading: one read at a time, so that a settlement that was answered while none was under way cannot be
	// contradicted by a later one.
	reads    chan readJob
	pages    chan readReply
	reading  bool
	readNo   int64
	graves   []*item // settled while a read was under way
	plan     plan
	horizon  horizon
	dbClock  clock
	dueTimes dueTimes

	// Settling.
	settles  chan settleJob
	answers  chan settleReply
	settling bool
	settleNo int64
	pending  pending

	// Delivering.
	jobs    chan *job
	results chan *job
	free    []*job // for use again
	idle    int    // workers without a job
	calls   int    // jobs with workers
	chunk   chunker

	commits     *hotQueue
	hotWaits    bool // there is something in it that waits for the next read
	selfPolling bool // writers of this process need not say what they commit
	past        recentlyDelivered
	database    *outage.Log
	seen        sight
	member      membership

	io       context.Context // ends when nothing is to be read any more
	endIO    context.CancelFunc
	lease    context.Context // ends when the lease lapses, or the drain has taken too long
	endLease context.CancelCauseFunc
	timer    *time.Timer
	stopping bool
	stopBy   time.Time
}

// clock relates the database's clock to the monotonic one.
type clock struct {
	db    time.Time
	local time.Time
}

func (c *clock) set(db time.Time) {
	if !db.IsZero() {
		c.db, c.local = db, time.Now()
	}
}

// now returns the database's time, about; the zero time if it is not known yet.
func (c *clock) now() time.Time {
	if c.db.IsZero() {
		return time.Time{}
	}
	return c.db.Add(time.Since(c.local))
}

// run works until the context has ended and what was in hand is settled.
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
			// While many events are read anyway, their writers' words are taken with the next read: waking up for each costs more.
			if e.hotWaits = e.plan.rate > calmRate; !e.hotWaits {
				e.takeHot()
			}
		case <-e.timer.C:
		case <-done:
			done = nil
			e.stop()
		}
	}
}

// takeResults takes what else the workers have finished, so that it is settled and followed in one go.
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

// act starts whatever can be started.
func (e *engine) act() {
	now := time.Now()
	e.database.Tick(now)
	e.checkLease(now)
	e.wakeDestinations(now)
	e.dispatch(now)
	e.settle(now)
	e.read(now)
	e.membership(now)
}

// schedule sets the timer to when act may have something to do though nothing was answered.
func (e *engine) schedule() {
	now := time.Now()
	next := now.Add(time.Minute)
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	// What has passed already has been acted on, or waits for an answer that will wake the engine.
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
	for _, l := range e.lanes.list {
		if l.draining {
			ahead(e.releaseBy(l))
		}
	}
	for _, d := range e.dests {
		if d.paused && len(d.parked) > 0 && !d.probing {
			earlier(d.until)
		}
	}
	if len(e.dests) > 0 {
		ahead(e.downTold.Add(outage.Every))
	}
	if !e.settling {
		earlier(e.pending.flushAt(e))
	}
	if !e.reading && !e.stopping {
		earlier(e.nextRead(now))
	}
	// A little late is fine, and saves waking up twice.
	e.timer.Reset(max(next.Sub(now), 0))
}

// stop ends taking work: what is with a worker is finished, what waits stays in its table.
func (e *engine) stop() {
	e.log.Info("waybill: relay stops", slog.Int("calls", e.calls))
	e.stopping = true
	e.stopBy = time.Now().Add(max(e.cfg.DrainTimeout, 0))
	for _, l := range e.lanes.list {
		e.drain(l, e.stopBy)
	}
	e.commits.close()
}

// drained reports whether nothing is in hand any more, or waiting for it has taken too long.
func (e *engine) drained() bool {
	if e.member.left && !e.member.working {
		return true
	}
	return !time.Now().Before(e.stopBy.Add(workerTime + releaseTime))
}

// releaseTime is how long releasing the lanes may take after the drain, before they are left to expire.
const releaseTime = 2 * time.Second

// event logs something about an event, with the fields that operators look for.
func (e *engine) event(level slog.Level, message string, it *item, err error, more ...slog.Attr) {
	if !e.log.Enabled(context.Background(), level) {
		return
	}
	ev := &it.row.Event
	attrs := append(make([]slog.Attr, 0, 12),
		slog.String("id", ev.ID.String()), slog.String("type", ev.Type), slog.String("aggregateType", ev.AggregateType),
		slog.String("aggregateId", ev.AggregateID), slog.Int("attempt", it.attempt()))
	if ev.DedupKey != "" {
		attrs = append(attrs, slog.String("dedupKey", ev.DedupKey))
	}
	if ev.CorrelationID != "" {
		attrs = append(attrs, slog.String("correlationId", ev.CorrelationID))
	}
	if ev.TenantID != "" {
		attrs = append(attrs, slog.String("tenantId", ev.TenantID))
	}
	if age := e.age(it); age > 0 {
		attrs = append(attrs, slog.Duration("latency", age))
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	e.log.LogAttrs(context.Background(), level, message, append(attrs, more...)...)
}

// age returns how long ago an event was written, by the database's clock; 0 if that is not known.
func (e *engine) age(it *item) time.Duration {
	now := e.dbClock.now()
	if now.IsZero() || it.row.CreatedAt.IsZero() {
		return 0
	}
	return max(now.Sub(it.row.CreatedAt), 0)
}

// laneNumbers is for logs and reads.
func laneNumbers(lanes []*lane) []int {
	out := make([]int, len(lanes))
	for i, l := range lanes {
		out[i] = l.number
	}
	return out
}

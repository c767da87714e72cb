package relay

import (
	"context"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/outage"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// engine is a running relay. One goroutine owns all of its state and blocks
// only on its own select. Reads, settlements, membership and deliveries run on
// goroutines of their own; each of these gets one job at a time and answers on
// a channel. The engine therefore needs no locks, and evaluates every answer
// against the state at the time when the answer arrives.
type engine struct {
	cfg     Config
	db      database
	sink    waybill.Sink
	node    store.Node
	log     *slog.Logger
	observe observe.Hooks

	ordered bool // the sink is an OrderedSink
	serial  bool // the sink is a SerialSink
	backoff delays
	history bool
	source  *driver.Hub // identifies the tables
	window  int

	lanes owned
	total int // number of lanes of the outbox
	queues
	suspects     suspects
	dests        map[string]*destination
	downLoggedAt time.Time // when the unavailable destinations were last logged

	// Reading. The relay runs one read at a time, so that a settlement that was
	// answered while no read was under way cannot be contradicted by a later
	// read.
	reads             chan readJob
	pages             chan readReply
	reading           bool
	readNo            int64
	settledDuringRead []*item // settled while a read was under way
	plan              plan
	horizon           horizon
	dbClock           clock
	dueTimes          dueTimes

	settles  chan settleJob
	answers  chan settleReply
	settling bool
	settleNo int64
	pending  pending

	jobs    chan *job
	results chan *job
	free    []*job // finished jobs, for reuse
	idle    int    // workers without a job
	calls   int    // jobs with workers
	chunk   chunker

	commits     *hotQueue
	hotWaits    bool // commits holds notifications that wait for the next read
	selfPolling bool // writers of this process do not announce their commits
	past        recentlyDelivered
	database    *outage.Log
	seen        sight
	member      membership

	io       context.Context // ends when the relay stops reading
	endIO    context.CancelFunc
	lease    context.Context // ends when the lease lapses, or the drain times out
	endLease context.CancelCauseFunc
	timer    *time.Timer
	stopping bool
	stopBy   time.Time
}

// clock relates the database's clock to the monotonic clock.
type clock struct {
	db    time.Time
	local time.Time
}

func (c *clock) set(db time.Time) {
	if !db.IsZero() {
		c.db, c.local = db, time.Now()
	}
}

// now returns the approximate time of the database; the zero time if the
// database's clock is not known yet.
func (c *clock) now() time.Time {
	if c.db.IsZero() {
		return time.Time{}
	}
	return c.db.Add(time.Since(c.local))
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

// act starts all work that can be started.
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
		ahead(e.downLoggedAt.Add(outage.Every))
	}
	if !e.settling {
		earlier(e.pending.flushAt(e))
	}
	if !e.reading && !e.stopping {
		earlier(e.nextRead(now))
	}
	// A timer that fires a little late is fine, and saves a second wake-up.
	e.timer.Reset(max(next.Sub(now), 0))
}

// stop stops taking events: events in flight are finished, waiting ones stay in
// their table.
func (e *engine) stop() {
	e.log.Info("relay stopping", slog.Int(logkey.Calls, e.calls))
	e.stopping = true
	e.stopBy = time.Now().Add(max(e.cfg.DrainTimeout, 0))
	for _, l := range e.lanes.list {
		e.drain(l, e.stopBy)
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

// event logs a message about an event, with the fields that operators search
// for.
func (e *engine) event(level slog.Level, message string, it *item, err error, more ...slog.Attr) {
	if !e.log.Enabled(context.Background(), level) {
		return
	}
	ev := &it.row.Event
	attrs := append(make([]slog.Attr, 0, 12),
		slog.String(logkey.EventID, ev.ID.String()), slog.String(logkey.EventType, ev.Type), slog.String(logkey.AggregateType, ev.AggregateType),
		slog.String(logkey.AggregateID, ev.AggregateID), slog.Int(logkey.Attempt, it.attempt()))
	if ev.DedupKey != "" {
		attrs = append(attrs, slog.String(logkey.DedupKey, ev.DedupKey))
	}
	if ev.CorrelationID != "" {
		attrs = append(attrs, slog.String(logkey.CorrelationID, ev.CorrelationID))
	}
	if ev.TenantID != "" {
		attrs = append(attrs, slog.String(logkey.TenantID, ev.TenantID))
	}
	if age := e.age(it); age > 0 {
		attrs = append(attrs, slog.Duration(logkey.Latency, age))
	}
	if err != nil {
		attrs = append(attrs, slog.String(logkey.Error, err.Error()))
	}
	e.log.LogAttrs(context.Background(), level, message, append(attrs, more...)...)
}

// age returns the time since an event was written, by the database's clock; 0
// if that is not known.
func (e *engine) age(it *item) time.Duration {
	now := e.dbClock.now()
	if now.IsZero() || it.row.CreatedAt.IsZero() {
		return 0
	}
	return max(now.Sub(it.row.CreatedAt), 0)
}

// laneNumbers returns the numbers of lanes.
func laneNumbers(lanes []*lane) []int {
	out := make([]int, len(lanes))
	for i, l := range lanes {
		out[i] = l.number
	}
	return out
}

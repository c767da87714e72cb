package ledger

import (
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
)

// Config holds the settings of a ledger. The relay's Config documents those of
// the same name.
type Config struct {
	BatchSize, HotQueue, ColdQueue      int
	MaxBytes                            int // 0: no limit
	MaxAttempts                         int
	UnknownGrace                        time.Duration
	PollInterval, SweepInterval, Linger time.Duration

	// Block makes an aggregate wait behind its dead letter.
	Block bool
	// Ordered means that the sink accepts several events of one aggregate in
	// one batch.
	Ordered bool
	// Backlog means that the queue is the backlog of a destination: a ready row
	// that is not due was delivered before, and holds its aggregate.
	Backlog bool
	// MayTake returns the highest seq of a lane whose row may be taken: rows
	// with lower seqs than those behind it may be about to appear. Nil: any.
	MayTake func(lane int) int64
	// History means that delivered events are kept.
	History bool
	// Backoff returns the delay after the nth failure.
	Backoff func(n int) time.Duration
	// Destination names the destination of an event. Nil means that there is
	// one destination.
	Destination func(ev *waybill.Event) string
}

// Ledger is the state of a relay. One goroutine uses it.
type Ledger struct {
	cfg Config
	// now is the time of the current input.
	now time.Time

	lanes  owned
	window int
	queues
	memory   memory
	suspects suspects
	dests    map[string]*destination

	// The relay runs one read at a time, so that a settlement that was answered
	// while no read was under way cannot be contradicted by a later read.
	reading           bool
	readNo            int64
	settledDuringRead []*Item
	plan              plan
	horizon           horizon
	crowd             crowd
	dbClock           clock
	dueTimes          dueTimes

	settling bool
	settleNo int64
	pending  pending

	commitsWait bool // announcements wait for the next fast read
	selfPolling bool // writers of this process do not announce their commits
	past        recentlyDelivered
	stopping    bool

	facts  []Fact
	counts Counts
}

// New returns an empty ledger.
func New(cfg Config) *Ledger {
	return &Ledger{cfg: cfg, window: minWindow, dests: make(map[string]*destination)}
}

// minWindow is the minimum of the number of events of a lane that may be in
// memory.
const minWindow = 128

// SetLaneCount sets the number of lanes of the outbox, which share the memory.
func (g *Ledger) SetLaneCount(n int) {
	g.window = max(minWindow, (g.cfg.ColdQueue+g.cfg.BatchSize)/max(n, 1))
}

// Window is the maximum number of events of a lane that may be in memory.
// Events with a priority, and those of other tenants than the crowd, have room
// of their own: a lane whose other events fill it must not refuse them.
func (g *Ledger) Window() int { return g.window + urgentLimit }

// Stop stops reads and deliveries for good. Events in flight are settled.
func (g *Ledger) Stop(now time.Time) {
	g.now, g.stopping = now, true
}

// Ready returns the number of events that can be delivered.
func (g *Ledger) Ready() int { return g.depth() }

// Depths returns the number of ready events that a commit of this process
// announced, the number of other events that wait, and the size of all events
// in memory.
func (g *Ledger) Depths() (hot, cold, bytes int) {
	return g.hot.depth, g.memory.waiting, g.memory.bytes
}

// OldestAge returns the time since the oldest event in memory was written.
func (g *Ledger) OldestAge(now time.Time) time.Duration {
	var oldest time.Duration
	for _, l := range g.lanes.list {
		for _, it := range l.items {
			if it.state != settled {
				oldest = max(oldest, g.Age(it, now))
			}
		}
	}
	return oldest
}

// Age returns the time since an event was written, by the database's clock; 0
// if that is not known.
func (g *Ledger) Age(it *Item, now time.Time) time.Duration {
	db := g.dbClock.at(now)
	if db.IsZero() || it.row.CreatedAt.IsZero() {
		return 0
	}
	return max(db.Sub(it.row.CreatedAt), 0)
}

// NextWakeup returns the earliest time at which the ledger has work without
// another input; false if there is none.
func (g *Ledger) NextWakeup() (time.Time, bool) {
	var next earliest
	for _, d := range g.dests {
		if len(d.parked) > 0 && !d.probing {
			next.add(d.until)
		}
	}
	if at, ok := g.flushAt(); ok && !g.settling {
		next.add(at)
	}
	if !g.reading && !g.stopping {
		for k := range readKinds {
			if w := g.wish(ReadKind(k)); w.wanted {
				next.add(w.at)
			}
		}
	}
	return next.time, next.known
}

// earliest is the earliest of several times.
type earliest struct {
	time  time.Time
	known bool
}

func (e *earliest) add(t time.Time) {
	if !e.known || t.Before(e.time) {
		e.time, e.known = t, true
	}
}

// Fact is something that the engine logs or reports to hooks.
type Fact interface{ fact() }

type (
	// Retried means that a failed event will be delivered again.
	Retried struct {
		Item  *Item
		Delay time.Duration
		Err   error
	}
	// Dead means that an event becomes a dead letter. Delivery is its last
	// delivery.
	Dead struct {
		Item     *Item
		Delivery *waybill.Delivery
		Err      error
	}
	// Down means that a destination became unavailable. First means that all
	// others are available.
	Down struct {
		Destination string
		Err         error
		First       bool
	}
	// Back means that a destination is available again, or that it is
	// abandoned: no event waits for it any more, so that it is no longer
	// probed.
	Back struct {
		Destination string
		For         time.Duration
		Failures    int
		Abandoned   bool
	}
	// Lost means that another node owns the lane.
	Lost struct {
		Lane  int
		Epoch int64
	}
	// Violation means that the state of an item changed in a way that is not
	// allowed. The engine drops the lane.
	Violation struct {
		Lane     int
		From, To string
	}
)

func (Retried) fact()   {}
func (Dead) fact()      {}
func (Down) fact()      {}
func (Back) fact()      {}
func (Lost) fact()      {}
func (Violation) fact() {}

// Facts returns the facts since the last call.
func (g *Ledger) Facts() []Fact {
	facts := g.facts
	g.facts = nil
	return facts
}

// drops is the number of reasons in [observe.Drop].
const drops = int(observe.DropStopped) + 1

// Counts are numbers of events since the last call of [Ledger.Counts].
type Counts struct {
	// HotTaken and ColdTaken are the events that were taken into memory.
	HotTaken, ColdTaken int
	// Freed is the number of slots of the commit queue that were freed,
	// including those of dropped announcements.
	Freed int
	// Dropped are the announcements that were dropped, by reason.
	Dropped [drops]int
}

// Counts returns the counts since the last call.
func (g *Ledger) Counts() Counts {
	counts := g.counts
	g.counts = Counts{}
	return counts
}

// dropAnnouncements notes announcements that are not delivered from memory.
func (g *Ledger) dropAnnouncements(n int, why observe.Drop) {
	g.counts.Freed += n
	g.counts.Dropped[why] += n
}

// clock relates the database's clock to the engine's.
type clock struct{ db, local time.Time }

func (c *clock) set(db, now time.Time) {
	if !db.IsZero() {
		c.db, c.local = db, now
	}
}

// at returns the approximate time of the database; the zero time if the
// database's clock is not known yet.
func (c *clock) at(now time.Time) time.Time {
	if c.db.IsZero() {
		return time.Time{}
	}
	return c.db.Add(now.Sub(c.local))
}

// DatabaseTime returns the approximate time of the database, or now while the
// database's clock is not known.
func (g *Ledger) DatabaseTime(now time.Time) time.Time {
	if t := g.dbClock.at(now); !t.IsZero() {
		return t
	}
	return now
}

// dbNow returns the database's time, or the engine's while the database's clock
// is not known.
func (g *Ledger) dbNow() time.Time { return g.DatabaseTime(g.now) }

package relay

import (
	"time"

	"github.com/waybillhq/waybill/store"
)

// plan is when to read what.
type plan struct {
	turn readKind // the kinds have turns, so that none starves

	barren   bool // the turn of lanes that are barren
	lastFast time.Time
	fastTook time.Duration
	interval time.Duration // between polls: it grows while there is nothing
	nextPoll time.Time

	sweeping  bool
	swept     map[*lane]int64 // how far; a lane that is missing is done
	sweepFrom time.Time       // when this sweep began
	sweepTook time.Duration   // how much of it was reading
	nextSweep time.Time

	lastHolds time.Time
	// After a read that failed, the same is not tried before.
	holdsAfter, followAfter, writersAfter time.Time

	lastDue    time.Time
	lastUrgent time.Time
	urgentTook time.Duration // how long the last look for urgent rows took
	looked     int           // and about how many rows it went through
	unlooked   int           // rows that were taken since then
	follow     []*aggregate
	load       []store.Key

	rate   float64 // events per second, about, while there is no backlog
	rateAt time.Time
	reads  pace // how long fast reads take
	writes pace // how long settlements take
}

// Between these rates, in events per second, a relay becomes more patient: to many producers, each of its statements costs more than
// what it does.
const (
	calmRate = 2500
	busyRate = 5000
	// restful is how many times as long as a read and a settlement take it then rests between them: on a machine that has time to spare they take
	// little, and where they have to wait for the producers' turns it leaves more of those to them.
	restful = 8
	// maxPatient is how many times Linger it waits at most.
	maxPatient = 20
)

// pace is about how long something takes.
type pace time.Duration

func (p *pace) add(took time.Duration) {
	*p += (pace(took) - *p) / 8
}

// arrived notes how many events a read has brought.
func (p *plan) arrived(n int, now time.Time) {
	since := now.Sub(p.rateAt).Seconds()
	p.rateAt = now
	if since <= 0 {
		return
	}
	p.rate += (float64(n)/since - p.rate) * min(since/0.1, 1)
}

// patience stretches a pause by how much is coming.
func (e *engine) batchDelay(pause time.Duration) time.Duration {
	p := &e.plan
	pause = max(pause, 0)
	most := min(restful*time.Duration(p.reads+p.writes), maxPatient*max(e.cfg.Linger, 0))
	share := (p.rate - calmRate) / (busyRate - calmRate)
	return pause + time.Duration(min(max(share, 0), 1)*float64(max(most-pause, 0)))
}

// busy makes the next polls come soon.
func (p *plan) busy() {
	p.interval = 0
}

// The beginning of the intervals between polls, and how much of the time sweeping may take.
const (
	firstPoll  = 16 * time.Millisecond
	sweepShare = 20
)

// empty makes polls rarer, as far as most.
func (p *plan) empty(most time.Duration) {
	p.interval = min(max(2*p.interval, firstPoll), most)
}

// dueTimes is when the next row put off is due, as far as is known.
type dueTimes struct{ next time.Time }

func (d *dueTimes) at(t time.Time) {
	if t.Before(d.next) {
		d.next = t
	}
}
func (d *dueTimes) now() { d.next = time.Time{} }

const (
	urgentInterval = 100 * time.Millisecond
	urgentLimit    = 64
	// urgentShare: between two looks for urgent rows the relay takes at least this part of as
	// many rows as the last look went through.
	urgentShare = 16
)

// whenUrgent returns when the next look for urgent rows is wanted: from time to time, and
// whenever as many others were taken as the relay has room for, so that a relay that is fast does
// not empty the backlog between two looks.
func (e *engine) whenUrgent() time.Time {
	p := &e.plan
	switch {
	case !e.behind():
		return never
	case p.unlooked >= max(e.cfg.ColdQueue+e.cfg.BatchSize, p.looked/urgentShare):
		return already
	}
	return p.lastUrgent.Add(max(urgentInterval, sweepShare*p.urgentTook))
}

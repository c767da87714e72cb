package relay

import (
	"time"

	"github.com/waybillhq/waybill/store"
)

// plan decides when to read what.
type plan struct {
	turn readKind // the kinds take turns, so that none starves

	barren   bool // the turn of barren lanes
	lastFast time.Time
	fastTook time.Duration
	interval time.Duration // between polls: grows while there are no events
	nextPoll time.Time

	sweeping  bool
	swept     map[*lane]int64 // the position in each lane; a lane that is missing is done
	sweepFrom time.Time       // when this sweep began
	sweepTook time.Duration   // the part of it that was spent reading
	nextSweep time.Time

	lastHolds time.Time
	// The earliest time of the next read of a kind after a failed one.
	holdsAfter, followAfter, writersAfter time.Time

	lastDue    time.Time
	lastUrgent time.Time
	urgentTook time.Duration // duration of the last read of urgent rows
	looked     int           // approximate number of rows that it scanned
	unlooked   int           // rows that were taken since then
	follow     []*aggregate
	load       []store.Key

	rate   float64 // approximate events per second while there is no backlog
	rateAt time.Time
	reads  pace // duration of fast reads
	writes pace // duration of settlements
}

// Between these rates, in events per second, the relay's pauses grow: with many
// producers, each of the relay's statements costs the producers more than it
// gains.
const (
	calmRate = 2500
	busyRate = 5000
	// restFactor is the pause at high rates, as a multiple of the duration of a
	// read and a settlement. On a machine with spare capacity these take little
	// time; where they compete with producers, the pause leaves more capacity
	// to the producers.
	restFactor = 8
	// maxPatient is the maximum pause, as a multiple of Linger.
	maxPatient = 20
)

// pace is a moving average of a duration.
type pace time.Duration

func (p *pace) add(took time.Duration) {
	*p += (pace(took) - *p) / 8
}

// arrived notes how many events a read has returned.
func (p *plan) arrived(n int, now time.Time) {
	since := now.Sub(p.rateAt).Seconds()
	p.rateAt = now
	if since <= 0 {
		return
	}
	p.rate += (float64(n)/since - p.rate) * min(since/0.1, 1)
}

// batchDelay stretches a pause according to the rate of events.
func (e *engine) batchDelay(pause time.Duration) time.Duration {
	p := &e.plan
	pause = max(pause, 0)
	longest := min(restFactor*time.Duration(p.reads+p.writes), maxPatient*max(e.cfg.Linger, 0))
	share := (p.rate - calmRate) / (busyRate - calmRate)
	return pause + time.Duration(min(max(share, 0), 1)*float64(max(longest-pause, 0)))
}

// busy makes the next polls come soon.
func (p *plan) busy() {
	p.interval = 0
}

// firstPoll is the shortest interval between polls. sweepShare limits sweeps to
// one part in sweepShare of the time.
const (
	firstPoll  = 16 * time.Millisecond
	sweepShare = 20
)

// empty doubles the interval between polls, up to longest.
func (p *plan) empty(longest time.Duration) {
	p.interval = min(max(2*p.interval, firstPoll), longest)
}

// dueTimes is the earliest known time at which a deferred row is due.
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
	// urgentShare: between two reads of urgent rows the relay takes at least
	// one row per urgentShare rows that the last such read scanned.
	urgentShare = 16
)

// whenUrgent returns when the next read of urgent rows is wanted: at an
// interval, and whenever as many other rows were taken as the relay has room
// for, so that a fast relay does not empty the backlog between two such reads.
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

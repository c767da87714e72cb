package relay

import (
	"context"
	"slices"
	"time"

	"github.com/waybillhq/waybill/store"
)

// readKind is a way of finding events.
type readKind uint8

const (
	readHolds   readKind = iota // what holds aggregates back
	readFast                    // new rows of lanes
	readDue                     // rows put off whose time has come
	readFollow                  // rows of an aggregate that were passed over
	readLoad                    // rows that a sweep has found
	readSweep                   // rows that committed late
	readUrgent                  // rows with a priority, ahead of the fast read
	readWriters                 // transactions that are open
)

// readKinds is how many there are.
const readKinds = 8

func (k readKind) String() string {
	return [...]string{"holds", "fast", "due", "follow", "load", "sweep", "urgent", "writers"}[k]
}

// readNames are the reads as the log names them.
var readNames = [readKinds]string{"read holds", "read fast", "read due", "read follow", "read load", "read sweep", "read urgent", "read writers"}

// readJob is one read.
type readJob struct {
	kind    readKind
	lanes   []*lane
	cursors []store.Cursor
	limit   int
	agg     *aggregate
	passed  int64 // its first row that was passed over
	keys    []store.Key
	whole   bool           // a fast read that does the work of a sweep as well
	verify  bool           // see afterwards who still writes
	check   []store.Cursor // look afterwards what there is
	// A lane whose rows are nearly all passed over: these aggregates' rows are seen without being read.
	skip map[store.Aggregate]struct{}
}

type readReply struct {
	readJob
	page      store.Page
	sightings []store.RowRef
	holds     []store.Hold
	writers   *store.WriterState
	err       error
	took      time.Duration
}

// readTimeout bounds a read.
const readTimeout = time.Minute

// reader runs reads until there are no more.
func (e *engine) reader() {
	for j := range e.reads {
		r := readReply{readJob: j}
		ctx, cancel := context.WithTimeout(e.io, readTimeout)
		began := time.Now()
		switch j.kind {
		case readHolds:
			r.holds, r.err = e.db.Holds(ctx, laneNumbers(j.lanes))
		case readFast:
			if j.skip == nil {
				r.page, r.err = e.db.Fetch(ctx, j.cursors, j.limit)
			} else {
				r.sightings, r.page, r.err = e.pick(ctx, j)
			}
		case readDue:
			r.page, r.err = e.db.Due(ctx, laneNumbers(j.lanes), j.limit)
		case readFollow:
			r.page, r.err = e.db.FetchAggregate(ctx, j.agg.key, j.cursors[0], j.limit)
		case readLoad:
			r.page, r.err = e.db.Load(ctx, j.keys)
		case readSweep:
			r.sightings, r.err = e.db.Sweep(ctx, j.cursors, j.limit)
		case readUrgent:
			r.page, r.err = e.db.FetchPriority(ctx, j.cursors, j.limit)
		case readWriters:
			j.verify = true
		}
		if r.err == nil && j.verify {
			var w store.WriterState
			w, r.err = e.db.OpenWriters(ctx)
			r.writers = &w
		}
		if r.err == nil && len(j.check) > 0 {
			r.sightings, r.err = e.db.Sweep(ctx, j.check, checkLimit)
		}
		cancel()
		r.took = time.Since(began)
		if e.observe.Read != nil { // here, and not where the answer is taken: when Run ends nobody takes it
			e.observe.Read(r.kind.String(), len(r.page.Rows)+len(r.sightings)+len(r.holds), r.took, r.err)
		}
		e.pages <- r
	}
}

// pick sees which rows come next, and reads those that are not to be skipped.
func (e *engine) pick(ctx context.Context, j readJob) ([]store.RowRef, store.Page, error) {
	seen, err := e.db.Sweep(ctx, j.cursors, j.limit)
	if err != nil {
		return nil, store.Page{}, err
	}
	var keys []store.Key
	for _, s := range seen {
		if _, skip := j.skip[s.Aggregate]; !skip {
			keys = append(keys, s.Key)
		}
	}
	page, err := e.db.Load(ctx, keys)
	return seen, page, err
}

// read starts the next read, if one is wanted and none is under way.
func (e *engine) read(now time.Time) {
	if e.reading || e.stopping || !e.member.joined || len(e.lanes.list) == 0 {
		return
	}
	p := &e.plan
	for i := range readKinds {
		k := (p.turn + readKind(i)) % readKinds
		at := e.when(k, now)
		if at.IsZero() || at.After(now) {
			continue
		}
		j, ok := e.readJob(k, now)
		if !ok {
			continue
		}
		p.turn = (k + 1) % readKinds
		e.reading, e.seen.began = true, now
		e.readNo++
		e.reads <- j
		return
	}
}

// nextRead returns when the next read is wanted.
func (e *engine) nextRead(now time.Time) time.Time {
	if !e.member.joined || len(e.lanes.list) == 0 {
		return time.Time{}
	}
	var next time.Time
	for k := range readKinds {
		if at := e.when(readKind(k), now); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

var (
	never   time.Time
	already = time.Unix(1, 0)
)

// when returns when a kind of read is wanted.
func (e *engine) when(k readKind, now time.Time) time.Time {
	p := &e.plan
	switch k {
	case readHolds:
		if e.unopened() {
			return p.holdsAfter.Add(1) // the zero time means now
		}
		if !now.Before(p.lastHolds.Add(e.cfg.SweepInterval)) && !e.holding() {
			p.lastHolds = now // look again then
		}
		return p.lastHolds.Add(e.cfg.SweepInterval)
	case readFast:
		return e.whenFast()
	case readDue:
		return e.dueTimes.next.Add(1) // the zero time means now
	case readFollow:
		if e.nextFollow() == nil {
			return never
		}
		return p.followAfter.Add(1)
	case readLoad:
		return either(len(p.load) > 0)
	case readSweep:
		if p.sweeping {
			return already
		}
		return p.nextSweep.Add(1)
	case readUrgent:
		return e.whenUrgent()
	case readWriters:
		if e.horizon.wanted(e.lanes.list) {
			if p.writersAfter.After(e.horizon.next) {
				return p.writersAfter
			}
			return e.horizon.next.Add(1)
		}
	}
	return never
}

func either(now bool) time.Time {
	if now {
		return already
	}
	return never
}

// unopened reports whether there is a lane whose holds have not been read.
func (e *engine) unopened() bool {
	for _, l := range e.lanes.list {
		if !l.open && !l.draining {
			return true
		}
	}
	return false
}

// behind reports whether there is a lane with rows that were not read yet.
func (e *engine) behind() bool {
	for _, l := range e.lanes.list {
		if l.backlog && l.open && !l.draining {
			return true
		}
	}
	return false
}

// pageLimit is how many rows of a lane are read at a time while there is a backlog.
func (e *engine) pageLimit() int { return max(min(e.window/2, e.cfg.BatchSize), 1) }

// readable reports whether a lane has room for what a read might bring.
func (e *engine) readable(l *lane) bool {
	if !l.open || l.draining || len(l.aggs) >= maxHeld+e.window || len(l.skipped) >= maxSkipped {
		return false
	}
	if l.unsure && l.suspects == 0 && l.placed > 0 {
		return false // whether the next rows are suspect is not decided
	}
	if l.backlog {
		return e.window-l.unsettled >= e.pageLimit() && e.cold.depth < e.cfg.ColdQueue
	}
	return l.unsettled < e.window
}

// whenFast returns when the next fast read is wanted.
func (e *engine) whenFast() time.Time {
	if e.horizon.next.IsZero() {
		return never // it has to be known first
	}
	p := &e.plan
	wanted, open := e.hotWaits || e.selfPolling, false
	for _, l := range e.lanes.list {
		if !e.readable(l) {
			continue
		}
		open = true
		if l.backlog {
			return already
		}
		wanted = wanted || l.wake
	}
	if !open {
		return never
	}
	if wanted {
		// While busy, a little patience makes one read of many. It is measured by what a read costs, and by how much is coming.
		pause := e.batchDelay(min(e.cfg.Linger, 2*p.fastTook))
		return e.behindSettle(p.lastFast.Add(pause), pause).Add(1)
	}
	return p.nextPoll.Add(1)
}

// behindSettle puts a read that is wanted at a time behind the settlement that is due before it, or soon after: it would bring the rows once more that are
// about to go. It waits for that once as long as it has waited anyway.
func (e *engine) behindSettle(at time.Time, pause time.Duration) time.Time {
	if e.plan.rate <= calmRate {
		return at
	}
	last := at.Add(pause)
	if e.settling {
		return last // the answer is looked at again
	}
	if flush := e.pending.flushAt(e); flush.After(at) && flush.Before(last) {
		return flush
	}
	return at
}

// readJob makes a read of a kind.
func (e *engine) readJob(k readKind, now time.Time) (readJob, bool) {
	p := &e.plan
	j := readJob{kind: k}
	switch k {
	case readHolds:
		p.lastHolds = now
		j.lanes = e.lanesThat(func(l *lane) bool { return !l.draining })
	case readFast:
		return e.fastJob(now)
	case readDue:
		p.lastDue = now
		e.dueTimes.next = now.Add(e.cfg.PollInterval)
		if p.interval >= e.cfg.PollInterval {
			// Nothing happens at all. Whoever schedules an event in this process says so, and a store that can wake others does;
			// of those that are there already, the time is known.
			e.dueTimes.next = now.Add(2 * e.cfg.PollInterval)
		}
		j.lanes = e.lanesThat(func(l *lane) bool { return l.open && !l.draining })
		j.limit = e.cfg.BatchSize
	case readFollow:
		a := e.nextFollow()
		p.follow = slices.DeleteFunc(p.follow, func(x *aggregate) bool { return x == a })
		j.agg, j.passed, j.limit = a, a.passed, maxQueued
		j.cursors = []store.Cursor{{
			Lane: a.lane.number, After: min(a.passed-1, e.floor(a.lane)), UpTo: max(a.lane.read, a.passedTo),
		}}
		j.verify = e.horizon.setAside()
		return j, true
	case readLoad:
		n := min(len(p.load), e.cfg.BatchSize)
		j.keys, p.load = p.load[:n:n], p.load[n:]
		return j, true
	case readSweep:
		return e.sweepJob(now)
	case readUrgent:
		p.lastUrgent, p.unlooked = now, 0
		j.limit, j.verify = urgentLimit, e.horizon.setAside()
		j.lanes = e.lanesThat(func(l *lane) bool { return l.backlog && l.open && !l.draining })
		for _, l := range j.lanes {
			// As the fast read: a row in front of an urgent one, of the same aggregate, may have
			// committed late.
			j.cursors = append(j.cursors, store.Cursor{Lane: l.number, After: e.floor(l)})
		}
	case readWriters:
		return j, true
	}
	return j, len(j.lanes) > 0
}

func (e *engine) lanesThat(ok func(*lane) bool) []*lane {
	var out []*lane
	for _, l := range e.lanes.list {
		if ok(l) {
			out = append(out, l)
		}
	}
	return out
}

// nextFollow returns an aggregate whose rows are to be read again and for which there is room, or nil.
func (e *engine) nextFollow() *aggregate {
	p := &e.plan
	p.follow = slices.DeleteFunc(p.follow, func(a *aggregate) bool {
		if a.passed != 0 && !a.lane.gone {
			return false
		}
		a.following = false // nothing is passed over any more
		return true
	})
	for _, a := range p.follow {
		l := a.lane
		if !l.draining && !l.look && l.unsettled < e.window && (!l.unsure || l.suspects > 0 || l.placed == 0) {
			return a
		}
	}
	return nil
}

// fastJob makes a fast read: of the lanes that somebody woke, of those with a backlog, or of all of them if it is time for a
// poll or nobody is asked to wake them.
func (e *engine) fastJob(now time.Time) (readJob, bool) {
	p := &e.plan
	if e.hotWaits {
		e.takeHot()
	}
	j := readJob{kind: readFast, limit: e.pageLimit(), verify: e.horizon.setAside()}
	poll := !now.Before(p.nextPoll)
	// A lane whose rows are nearly all passed over, because their aggregate is held, is read by itself in large pages: it needs no room,
	// and the others should not wait for it.
	if l := e.barrenLane(); l != nil {
		l.wake = false
		j.limit, j.lanes, j.skip = sweepLimit, []*lane{l}, l.passedOver()
		j.cursors = []store.Cursor{{Lane: l.number, After: l.read}}
		return j, true
	}
	room := e.cfg.ColdQueue + e.cfg.BatchSize - e.cold.depth
	budget := room
	j.whole = poll
	for l := range e.lanes.inTurn {
		if !e.readable(l) {
			j.whole = j.whole && l.draining
			continue
		}
		if !l.backlog && !l.wake && !poll && !e.selfPolling {
			continue
		}
		if l.backlog {
			if budget < j.limit && len(j.lanes) > 0 {
				j.whole = false
				continue
			}
			budget -= j.limit
		}
		l.wake = false
		j.whole = j.whole && l.quiet()
		j.lanes = append(j.lanes, l)
	}
	// A lane that is not known to have a backlog may have one all the same. The lanes share the
	// room, so that a first read, or one behind a large commit, does not bring a page of every
	// lane; a lane whose share was not enough has a backlog from then on.
	if n := len(j.lanes); n > 0 && n*j.limit > room {
		j.limit = max(room/n, 1)
	}
	slices.SortFunc(j.lanes, func(a, b *lane) int { return a.number - b.number })
	for _, l := range j.lanes {
		after, from := e.floor(l), e.floor(l)
		switch {
		case j.whole:
			// Nothing is in hand or held: reading from the beginning is as cheap, and finds what committed late too.
			after, from = 0, 0
		case l.clogged:
			after = l.read
		}
		if after < l.read {
			j.limit = max(j.limit, min(e.window, 2*e.cfg.BatchSize))
		}
		if l.look {
			from = min(from, l.lookFrom)
		}
		if from < after {
			j.check = append(j.check, store.Cursor{Lane: l.number, After: from, UpTo: after})
		}
		j.cursors = append(j.cursors, store.Cursor{Lane: l.number, After: after})
	}
	p.lastFast = now
	if poll {
		p.nextPoll = now.Add(max(p.interval, firstPoll))
	}
	return j, len(j.lanes) > 0
}

// barrenLane returns a lane that is to be read in large pages, every other time; nil if there is none.
func (e *engine) barrenLane() *lane {
	e.plan.barren = !e.plan.barren
	if !e.plan.barren {
		return nil
	}
	for l := range e.lanes.inTurn {
		if l.barren && l.backlog && !l.look && e.floor(l) == l.read && e.readable(l) {
			return l
		}
	}
	return nil
}

// quiet reports whether nothing of a lane is in hand or remembered.
func (l *lane) quiet() bool {
	return len(l.items) == 0 && len(l.aggs) == 0 && len(l.skipped) == 0 && !l.backlog
}

// sweepLimit is how many rows of a lane one read of a sweep looks at.
const sweepLimit = 2000

// checkLimit is how many rows of a lane are looked through at once. With more than that, the next sweep finds what is missing.
const checkLimit = 100_000

// sweepJob makes the next read of a sweep, and begins a new sweep if none is under way.
func (e *engine) sweepJob(now time.Time) (readJob, bool) {
	p := &e.plan
	if !p.sweeping {
		p.sweeping, p.sweepFrom, p.sweepTook = true, now, 0
		p.swept = make(map[*lane]int64, len(e.lanes.list))
		for _, l := range e.lanes.list {
			if l.open && !l.draining && l.read > 0 {
				p.swept[l] = 0
			}
		}
	}
	j := readJob{kind: readSweep, limit: sweepLimit}
	for l, after := range p.swept {
		if l.gone || l.draining || after >= l.read {
			delete(p.swept, l)
			continue
		}
		j.lanes = append(j.lanes, l)
		j.cursors = append(j.cursors, store.Cursor{Lane: l.number, After: after, UpTo: l.read})
	}
	if len(j.lanes) == 0 {
		e.endSweep(now)
		return j, false
	}
	return j, true
}

// endSweep says when the next sweep is to begin.
func (e *engine) endSweep(now time.Time) {
	p := &e.plan
	p.sweeping, p.swept = false, nil
	pause := max(e.cfg.SweepInterval, p.interval, sweepShare*p.sweepTook)
	p.nextSweep = now.Add(pause)
}

// readRetry is how long to wait after a read that failed.
const readRetry = 250 * time.Millisecond

// finishRead takes what a read has brought.
func (e *engine) finishRead(r readReply) {
	if r.err != nil {
		e.failedRead(r)
	} else {
		e.database.Succeeded(readNames[r.kind])
	}
	if r.err == nil && !e.stopping {
		e.dbClock.set(r.page.Now)
		switch r.kind {
		case readHolds:
			e.applyHolds(r.lanes, r.holds)
		case readFast:
			e.seen.good = e.seen.began
			e.finishFast(r)
		case readDue:
			e.finishDue(r)
		case readFollow:
			e.finishFollow(r)
		case readLoad:
			e.finishLoad(r)
		case readSweep:
			e.finishSweep(r)
		case readUrgent:
			e.finishUrgent(r)
		case readWriters:
			e.settleHorizon(*r.writers)
		}
	}
	// Every read from here on begins after these settlements were answered.
	e.reading = false
	for i, it := range e.graves {
		e.forgetSettled(it)
		e.graves[i] = nil
	}
	e.graves = e.graves[:0]
}

// failedRead lets a read be tried again, soon but not at once.
func (e *engine) failedRead(r readReply) {
	e.database.Failed(readNames[r.kind], r.err)
	if r.kind == readFast || r.kind == readHolds || r.kind == readWriters {
		e.seen.failed = time.Now()
	}
	p := &e.plan
	later := time.Now().Add(readRetry)
	e.distrust() // the server may have lost or changed something, or be another one
	switch r.kind {
	case readFast:
		for _, l := range r.lanes {
			l.wake = true
		}
		p.lastFast, p.fastTook = later, 0
	case readDue:
		e.dueTimes.at(later)
	case readFollow:
		p.follow, p.followAfter = append(p.follow, r.agg), later
	case readSweep:
		e.endSweep(time.Now())
	case readLoad:
		p.load = nil // the next sweep finds them again, in their order
	case readWriters:
		p.writersAfter = later
	case readHolds:
		p.holdsAfter = later
	case readUrgent:
	}
}

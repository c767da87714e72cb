package relay

import (
	"context"
	"slices"
	"time"

	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// readKind is a kind of read.
type readKind uint8

const (
	readHolds   readKind = iota // rows that hold aggregates back
	readFast                    // new rows of lanes
	readDue                     // deferred rows that are due
	readFollow                  // rows of an aggregate that were passed over
	readLoad                    // rows that a sweep has found
	readSweep                   // rows that committed late
	readUrgent                  // rows with a priority, ahead of the fast read
	readWriters                 // open transactions
)

// readKinds is the number of kinds.
const readKinds = 8

func (k readKind) String() string {
	return [...]string{"holds", "fast", "due", "follow", "load", "sweep", "urgent", "writers"}[k]
}

// readNames are the names of the reads in the log.
var readNames = [readKinds]string{"read holds", "read fast", "read due", "read follow", "read load", "read sweep", "read urgent", "read writers"}

// readJob is one read.
type readJob struct {
	kind    readKind
	lanes   []*lane
	cursors []driver.Cursor
	limit   int
	agg     *aggregate
	passed  int64 // its first row that was passed over
	keys    []store.Key
	whole   bool            // a fast read that covers a sweep as well
	verify  bool            // check open transactions after the read
	check   []driver.Cursor // check these ranges for unknown rows after the read
	// skip is set for a lane whose rows are nearly all passed over: rows of
	// these aggregates are listed, but not loaded.
	skip map[store.Aggregate]struct{}
}

type readReply struct {
	readJob
	page      driver.Page
	sightings []driver.RowRef
	holds     []driver.Hold
	writers   *driver.WriterState
	err       error
	took      time.Duration
}

// readTimeout limits a read.
const readTimeout = time.Minute

// reader runs reads until the channel is closed.
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
			var w driver.WriterState
			w, r.err = e.db.OpenWriters(ctx)
			r.writers = &w
		}
		if r.err == nil && len(j.check) > 0 {
			r.sightings, r.err = e.db.Sweep(ctx, j.check, checkLimit)
		}
		cancel()
		r.took = time.Since(began)
		// The hook is called here, because the answer of the last read is not
		// handled when Run ends.
		if e.observe.Read != nil {
			e.observe.Read(observe.ReadInfo{Kind: r.kind.String(), Rows: len(r.page.Rows) + len(r.sightings) + len(r.holds), Took: r.took, Err: r.err})
		}
		e.pages <- r
	}
}

// pick lists the next rows of a lane, and loads those that are not to be
// skipped.
func (e *engine) pick(ctx context.Context, j readJob) ([]driver.RowRef, driver.Page, error) {
	seen, err := e.db.Sweep(ctx, j.cursors, j.limit)
	if err != nil {
		return nil, driver.Page{}, err
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
			p.lastHolds = now // check again after the interval
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

// pageLimit is the number of rows of a lane that are read at a time while there
// is a backlog.
func (e *engine) pageLimit() int { return max(min(e.window/2, e.cfg.BatchSize), 1) }

// readable reports whether a lane has room for the rows that a read might
// return.
func (e *engine) readable(l *lane) bool {
	if !l.open || l.draining || len(l.aggs) >= maxHeld+e.window || len(l.skipped) >= maxSkipped {
		return false
	}
	if l.unsure && l.suspects == 0 && l.placed > 0 {
		return false // it is not decided whether the next rows are suspect
	}
	if l.backlog {
		return e.window-l.unsettled >= e.pageLimit() && e.cold.depth < e.cfg.ColdQueue
	}
	return l.unsettled < e.window
}

// whenFast returns when the next fast read is wanted.
func (e *engine) whenFast() time.Time {
	if e.horizon.next.IsZero() {
		return never // the horizon has to be known first
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
		// A busy relay waits a little, so that one read replaces many. The
		// pause depends on the duration of a read and on the rate of events.
		pause := e.batchDelay(min(e.cfg.Linger, 2*p.fastTook))
		return e.behindSettle(p.lastFast.Add(pause), pause).Add(1)
	}
	return p.nextPoll.Add(1)
}

// behindSettle moves a read that is wanted at a time behind the settlement that
// is due before the read, or soon after: the read would return rows again that
// are about to be settled. The read waits for the settlement at most as long as
// it has already waited.
func (e *engine) behindSettle(at time.Time, pause time.Duration) time.Time {
	if e.plan.rate <= calmRate {
		return at
	}
	last := at.Add(pause)
	if e.settling {
		return last // the time is computed again when the answer arrives
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
			// The relay is idle. Writers of this process announce events that
			// they schedule, and a store that can wake other processes does;
			// the due times of existing events are known.
			e.dueTimes.next = now.Add(2 * e.cfg.PollInterval)
		}
		j.lanes = e.lanesThat(func(l *lane) bool { return l.open && !l.draining })
		j.limit = e.cfg.BatchSize
	case readFollow:
		a := e.nextFollow()
		p.follow = slices.DeleteFunc(p.follow, func(x *aggregate) bool { return x == a })
		j.agg, j.passed, j.limit = a, a.passed, maxQueued
		j.cursors = []driver.Cursor{{
			Lane: a.lane.number, After: min(a.passed-1, e.floor(a.lane)), UpTo: max(a.lane.read, a.passedTo),
		}}
		j.verify = e.horizon.hasExcluded()
		return j, true
	case readLoad:
		n := min(len(p.load), e.cfg.BatchSize)
		j.keys, p.load = p.load[:n:n], p.load[n:]
		return j, true
	case readSweep:
		return e.sweepJob(now)
	case readUrgent:
		p.lastUrgent, p.unlooked = now, 0
		j.limit, j.verify = urgentLimit, e.horizon.hasExcluded()
		j.lanes = e.lanesThat(func(l *lane) bool { return l.backlog && l.open && !l.draining })
		for _, l := range j.lanes {
			// As for the fast read: a row of the same aggregate, in front of an
			// urgent one, may have committed late.
			j.cursors = append(j.cursors, driver.Cursor{Lane: l.number, After: e.floor(l)})
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

// nextFollow returns an aggregate whose rows are to be read again and for which
// there is room, or nil.
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

// fastJob makes a fast read: of the lanes that were woken, of those with a
// backlog, or of all lanes if a poll is due or the relay polls without
// notifications.
func (e *engine) fastJob(now time.Time) (readJob, bool) {
	p := &e.plan
	if e.hotWaits {
		e.takeHot()
	}
	j := readJob{kind: readFast, limit: e.pageLimit(), verify: e.horizon.hasExcluded()}
	poll := !now.Before(p.nextPoll)
	// A lane whose rows are nearly all passed over, because their aggregate is
	// held, is read separately in large pages: it needs no room, and the other
	// lanes should not wait for it.
	if l := e.barrenLane(); l != nil {
		l.wake = false
		j.limit, j.lanes, j.skip = sweepLimit, []*lane{l}, l.passedOver()
		j.cursors = []driver.Cursor{{Lane: l.number, After: l.read}}
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
	// A lane that is not known to have a backlog may have one nevertheless. The
	// lanes share the room, so that a first read, or a read after a large
	// commit, does not return a page of every lane; a lane whose share was not
	// enough has a backlog from then on.
	if n := len(j.lanes); n > 0 && n*j.limit > room {
		j.limit = max(room/n, 1)
	}
	slices.SortFunc(j.lanes, func(a, b *lane) int { return a.number - b.number })
	for _, l := range j.lanes {
		after, from := e.floor(l), e.floor(l)
		switch {
		case j.whole:
			// No event is in memory or held: reading from the beginning is as
			// cheap, and finds rows that committed late too.
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
			j.check = append(j.check, driver.Cursor{Lane: l.number, After: from, UpTo: after})
		}
		j.cursors = append(j.cursors, driver.Cursor{Lane: l.number, After: after})
	}
	p.lastFast = now
	if poll {
		p.nextPoll = now.Add(max(p.interval, firstPoll))
	}
	return j, len(j.lanes) > 0
}

// barrenLane returns a lane that is to be read in large pages, at every other
// call; nil if there is none.
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

// quiet reports whether no event of a lane is in memory or remembered.
func (l *lane) quiet() bool {
	return len(l.items) == 0 && len(l.aggs) == 0 && len(l.skipped) == 0 && !l.backlog
}

// sweepLimit is the number of rows of a lane that one read of a sweep covers.
const sweepLimit = 2000

// checkLimit is the number of rows of a lane that one check covers. If there
// are more, the next sweep finds the missing rows.
const checkLimit = 100_000

// sweepJob makes the next read of a sweep, and begins a new sweep if none is
// under way.
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
		j.cursors = append(j.cursors, driver.Cursor{Lane: l.number, After: after, UpTo: l.read})
	}
	if len(j.lanes) == 0 {
		e.endSweep(now)
		return j, false
	}
	return j, true
}

// endSweep ends a sweep and schedules the next one.
func (e *engine) endSweep(now time.Time) {
	p := &e.plan
	p.sweeping, p.swept = false, nil
	pause := max(e.cfg.SweepInterval, p.interval, sweepShare*p.sweepTook)
	p.nextSweep = now.Add(pause)
}

// readRetry is the delay after a failed read.
const readRetry = 250 * time.Millisecond

// finishRead handles the result of a read.
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
	for i, it := range e.settledDuringRead {
		e.forgetSettled(it)
		e.settledDuringRead[i] = nil
	}
	e.settledDuringRead = e.settledDuringRead[:0]
}

// failedRead schedules the retry of a failed read, soon but not at once.
func (e *engine) failedRead(r readReply) {
	e.database.Failed(readNames[r.kind], r.err)
	if r.kind == readFast || r.kind == readHolds || r.kind == readWriters {
		e.seen.failed = time.Now()
	}
	p := &e.plan
	later := time.Now().Add(readRetry)
	e.distrust() // the server may have lost or changed rows, or be another server
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

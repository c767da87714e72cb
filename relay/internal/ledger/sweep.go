package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// sweep is the search for rows below the position of the fast read that no read
// has returned: rows that committed late, or that a restored server has again.
//
// A sweep covers every seq of a lane, from the position down to 0. Its reads
// walk over deleted rows that the database has not cleaned up yet, and an old
// snapshot keeps millions of them. So a sweep has many reads, each of a range
// of seqs that takes little time, with pauses between them. Deleted rows are
// near the position, and the ranges below them grow.
//
// Rows of one aggregate may be in several ranges, so that the rows are loaded
// after the last range, in their order.
type sweep struct {
	running bool
	// The current range is (from, to]. left are the lanes whose range is not
	// read to its end, with the seq behind which the next read begins.
	from, to int64
	left     map[*lane]int64
	found    []store.Key // unknown rows
	// width is the number of seqs of a range; 0 means minWidth.
	width int64
	next  time.Time // when the next sweep begins
	after time.Time // the earliest time of the next read
}

const (
	// sweepLimit is the number of rows of a lane that one read of a sweep
	// covers.
	sweepLimit = 2000
	// sweepShare limits sweeps to one part in sweepShare of the time.
	sweepShare = 200
	minWidth   = 1 << 12
	maxWidth   = 1 << 60
	// A read is slow if it takes longer than slowSweep besides four times the
	// duration of a fast read, and quick below quickSweep besides two times.
	slowSweep  = 5 * time.Millisecond
	quickSweep = 2 * time.Millisecond
)

// due returns when the next read of a sweep is due.
func (s *sweep) due() time.Time {
	if s.running || s.after.After(s.next) {
		return s.after
	}
	return s.next
}

// took notes the duration of a read. Slow reads make the ranges smaller, quick
// ones larger; fast is the usual duration of a fast read.
func (s *sweep) took(d, fast time.Duration, now time.Time) {
	switch {
	case d > slowSweep+4*fast:
		s.width = max(s.width/4, minWidth)
	case d < quickSweep+2*fast:
		s.width = min(4*max(s.width, minWidth), maxWidth)
	}
	s.after = now.Add(sweepShare * d)
}

// isCheap reports whether one read covers all seqs of these lanes.
func (s *sweep) isCheap(lanes []*lane) bool { return max(s.width, minWidth) >= highest(lanes) }

// highest is the highest position of lanes.
func highest(lanes []*lane) int64 {
	seq := int64(0)
	for _, l := range lanes {
		seq = max(seq, l.scan.position)
	}
	return seq
}

// nextRange moves on to the next range, below the last one. It reports false if
// there is none.
func (s *sweep) nextRange(lanes []*lane) bool {
	s.to, s.from = s.from, max(s.from-max(s.width, minWidth), 0)
	s.left = make(map[*lane]int64, len(lanes))
	for _, l := range lanes {
		if l.active() && l.scan.position > s.from {
			s.left[l] = s.from
		}
	}
	return s.to > 0
}

// newSweepRead makes the next read of a sweep, and begins a new sweep if none
// is under way.
func (g *Ledger) newSweepRead() (Read, bool) {
	s := &g.plan.sweep
	if !s.running {
		s.running, s.left, s.found, s.from = true, nil, nil, highest(g.lanes.list)
	}
	r := Read{Limit: sweepLimit}
	for len(r.lanes) == 0 {
		if len(s.left) == 0 && !s.nextRange(g.lanes.list) {
			g.completeSweep()
			return Read{}, false
		}
		for _, l := range g.lanes.list {
			after, ok := s.left[l]
			upTo := min(s.to, l.scan.position)
			switch {
			case !ok:
			case l.draining || after >= upTo:
				delete(s.left, l)
			default:
				r.lanes = append(r.lanes, l)
				r.Cursors = append(r.Cursors, driver.Cursor{Lane: l.number, After: after, UpTo: upTo})
			}
		}
	}
	return r, true
}

// completeSweep ends a sweep that has covered every seq, and schedules loading
// the rows that it found.
func (g *Ledger) completeSweep() {
	s := &g.plan.sweep
	s.keepFirst(g.cfg.ColdQueue)
	g.plan.load = append(g.plan.load, s.found...)
	g.endSweep()
}

// keepFirst sorts the rows that were found, and forgets all but the first n:
// the next sweep finds the others again.
func (s *sweep) keepFirst(n int) {
	slices.SortFunc(s.found, func(a, b store.Key) int { return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Seq, b.Seq)) })
	s.found = s.found[:min(len(s.found), n)]
}

// endSweep ends a sweep and schedules the next one.
func (g *Ledger) endSweep() {
	p := &g.plan
	p.sweep.running, p.sweep.left, p.sweep.found = false, nil, nil
	p.sweep.next = g.now.Add(max(g.cfg.SweepInterval, p.interval))
}

// finishSweep compares the rows in the table with those that are known.
func (g *Ledger) finishSweep(r *Read, a *Answer) {
	p := &g.plan
	p.sweep.took(a.Took, time.Duration(p.reads), g.now)
	count := make(map[int]int, len(r.lanes))
	for i := range a.Refs {
		ref := &a.Refs[i]
		l := g.lanes.at(ref.Lane)
		if l == nil {
			continue
		}
		count[ref.Lane]++
		if _, ok := p.sweep.left[l]; ok {
			p.sweep.left[l] = ref.Seq
		}
		if !l.accountsFor(ref) {
			p.sweep.found = append(p.sweep.found, ref.Key)
		}
	}
	for _, l := range r.lanes {
		if count[l.number] < r.Limit {
			delete(p.sweep.left, l)
		}
	}
	if len(p.sweep.found) > 2*g.cfg.ColdQueue {
		p.sweep.keepFirst(g.cfg.ColdQueue)
	}
	if len(p.sweep.left) == 0 && p.sweep.from == 0 {
		g.completeSweep()
	}
}

// accountsFor reports whether there is a reason why a row below the read
// position still exists. A row that waits behind a hold is noted as passed
// over: it may have committed late, and then no read has noted it before.
func (l *lane) accountsFor(ref *driver.RowRef) bool {
	if l.items[ref.ID] != nil {
		return true
	}
	if ref.Aggregate.IsZero() {
		_, skipped := l.skipped[ref.Seq]
		return skipped
	}
	a := l.aggs[ref.Aggregate]
	if a == nil || !a.heldBefore(ref.Seq) && (a.passed == 0 || ref.Seq < a.passed) {
		return false
	}
	a.pass(ref.Seq)
	return true
}

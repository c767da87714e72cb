package sim

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// Tx is the type of the transactions.
type Tx = *memstore.Tx

// server is the database: a memstore, and what a memstore cannot do. A memstore
// draws a seq at the commit. The server makes rows visible later than their
// seq was drawn by hiding them from all reads, maps seqs so that they jump and
// go back, and answers settlements before they are applied, so that a restart
// can lose them. The world's mutex guards its fields.
type server struct {
	w    *world
	base driver.Complete[Tx]
	// backlogs are those of the destinations. Operators who change them exclude
	// settlements.
	backlogs  driver.Backlogs
	backlogMu sync.RWMutex

	generation int // counts restarts
	downUntil  time.Time
	offset     time.Duration // of the clock
	issued     int64         // rows that were ever inserted
	jumps      []jump
	hidden     map[waybill.ID]int // id → lane
	hiddenIn   []int              // lane → hidden rows
	open       map[*session]struct{}
	byTx       map[Tx]*session
	inDoubt    map[waybill.ID]bool // commits under way
	opened     int
	async      []asyncSettlement
}

// jump is a gap in the seqs behind an inserted row.
type jump struct{ at, size int64 }

// asyncSettlement is a settlement that was answered and is not on disk.
type asyncSettlement struct {
	p          *process
	to         int // the table
	settlement driver.Settlement
	at         time.Time
	before     []eventState
}

// eventState is what a settlement changes in the model of an event.
type eventState struct {
	ev         *event
	state      state
	attempts   int
	dueAt      time.Time
	doneEpoch  int64
	doneReplay int
	counted    lease
	place      place
	replay     int
}

func newServer(w *world) (*server, error) {
	db, err := memstore.New(memstore.Config{Lanes: w.plan.lanes})
	if err != nil {
		return nil, err
	}
	return &server{
		w: w, base: testroles.Complete[Tx](db), backlogs: db.Driver().Backlogs, hidden: make(map[waybill.ID]int), hiddenIn: make([]int, w.plan.lanes),
		open: make(map[*session]struct{}), byTx: make(map[Tx]*session), inDoubt: make(map[waybill.ID]bool),
	}, nil
}

// outer returns the seq that the product sees for a seq of the memstore. Mu is
// held.
func (s *server) outer(seq int64) int64 {
	out := seq
	for _, j := range s.jumps {
		if j.at < seq {
			out += j.size
		}
	}
	return out
}

// inner returns the highest seq of the memstore that the product sees at or
// below a seq. Mu is held.
func (s *server) inner(seq int64) int64 {
	below := int64(0) // what the gaps so far add
	for _, j := range s.jumps {
		if seq <= j.at+below {
			break
		}
		if seq <= j.at+below+j.size {
			return j.at
		}
		below += j.size
	}
	return seq - below
}

// drawn returns the highest seq that was ever issued. Mu is held.
func (s *server) drawn() int64 {
	out := s.issued
	for _, j := range s.jumps {
		out += j.size
	}
	return out
}

// hide hides a row. Mu is held.
func (s *server) hide(id waybill.ID, lane int) {
	if _, has := s.hidden[id]; !has {
		s.hidden[id] = lane
		s.hiddenIn[lane]++
	}
}

// show makes a row visible. Mu is held.
func (s *server) show(id waybill.ID) {
	if lane, has := s.hidden[id]; has {
		delete(s.hidden, id)
		s.hiddenIn[lane]--
	}
}

// inserted notes rows that got their seqs. Mu is held.
func (s *server) inserted(n int) { s.issued += int64(n) }

// writers returns the open transactions. Mu is held.
func (s *server) writers() driver.WriterState {
	if !s.w.plan.knowsWriters {
		return driver.WriterState{Unknown: true}
	}
	st := driver.WriterState{HighSeq: s.drawn(), Issued: s.drawn()}
	for x := range s.open {
		if x.early {
			st.Open = append(st.Open, "tx "+strconv.Itoa(x.no))
		}
	}
	slices.Sort(st.Open)
	return st
}

// unavailable reports whether calls of a process are refused.
func (s *server) unavailable(p *process) bool {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	now := time.Now()
	return now.Before(s.downUntil) || now.Before(p.cutOffUntil)
}

func (s *server) gen() int {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.generation
}

// restart breaks all calls, rolls open transactions back, and loses what was
// not on disk. Mu is held; the caller rolls back the sessions.
func (s *server) restart() []*session {
	s.generation++
	s.w.note(nil, "server restart", nil, int64(len(s.async)), int64(len(s.open)), "")
	s.lose()
	if n := len(s.jumps); n > 0 && s.jumps[n-1].at == s.issued && s.w.plan.rate[sequenceBack] > 0 {
		s.jumps = s.jumps[:n-1]
		s.w.tally.fault(sequenceBack)
	}
	var broken []*session
	for x := range s.open {
		broken = append(broken, x)
	}
	return broken
}

// lose drops the settlements that are not on disk. Mu is held.
func (s *server) lose() {
	for _, a := range s.async {
		s.showAll(&a)
		for _, b := range a.before {
			ev := b.ev
			if ev.state != b.state {
				s.w.pending++
			}
			ev.state, ev.attempts, ev.dueAt, ev.doneEpoch, ev.doneReplay = b.state, b.attempts, b.dueAt, b.doneEpoch, b.doneReplay
			ev.counted, ev.lostAt, ev.place, ev.replay = b.counted, time.Now(), b.place, b.replay
			if o := ev.outcomeOf(a.p); o != nil {
				o.settled = false
			}
			s.w.note(a.p, "settlement lost", ev, int64(ev.attempts), 0, "")
		}
		s.w.tally.fault(settlementLost)
	}
	s.async = nil
}

// flush applies the settlements that were answered already: a commit that waits
// for the disk takes the earlier ones with it.
func (s *server) flush() {
	defer s.share()()
	for {
		s.w.mu.Lock()
		if len(s.async) == 0 {
			s.w.mu.Unlock()
			return
		}
		a := s.async[0]
		s.async = s.async[1:]
		late := time.Since(a.at)
		for i := range a.settlement.Retry {
			a.settlement.Retry[i].Delay = max(a.settlement.Retry[i].Delay-late, 0)
		}
		s.showAll(&a)
		s.w.mu.Unlock()
		_, _ = s.table(a.to).Settle(context.Background(), a.settlement)
	}
}

// showAll makes the rows of a settlement visible, as it is not under way any
// more. Mu is held.
func (s *server) showAll(a *asyncSettlement) {
	if a.to != outboxTable {
		return
	}
	for _, r := range slices.Concat(a.settlement.Done, a.settlement.Retry) {
		s.show(r.ID)
	}
}

// settle applies a settlement.
func (s *server) settle(ctx context.Context, p *process, to int, t driver.Settlement) (driver.Settled, error) {
	s.flush()
	defer s.share()()
	out, err := s.table(to).Settle(ctx, s.innerSettlement(t))
	if err == nil {
		s.w.mu.Lock()
		s.w.settled(p, to, &t, &out)
		s.w.mu.Unlock()
	}
	return out, err
}

// settleLater answers a settlement that is not on disk. Its rows are hidden
// until it is applied; a restart loses it.
func (s *server) settleLater(ctx context.Context, p *process, to int, t driver.Settlement) (driver.Settled, error) {
	s.flush()
	out, err := s.base.Settle(ctx, driver.Settlement{Leases: t.Leases})
	if err != nil {
		return out, err
	}
	held := func(r driver.Result) bool { return slices.Contains(out.Held, r.Lane) }
	in := s.innerSettlement(t)
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	var before []eventState
	for _, r := range slices.Concat(t.Done, t.Retry) {
		ev := s.w.modelOf(to, r.ID)
		if ev == nil || !held(r) || ev.state != pending || ev.replay != r.Replay || ev.parent != nil && !ev.queued {
			continue
		}
		out.Moved = append(out.Moved, r.ID)
		if to == outboxTable {
			s.hide(r.ID, r.Lane)
		}
		for _, x := range append([]*event{ev}, ev.at...) {
			before = append(before, eventState{x, x.state, x.attempts, x.dueAt, x.doneEpoch, x.doneReplay, x.counted, x.place, x.replay})
		}
	}
	moved := func(r driver.Result) bool { return slices.Contains(out.Moved, r.ID) }
	in.Done = slices.DeleteFunc(in.Done, func(r driver.Result) bool { return !moved(r) })
	in.Retry = slices.DeleteFunc(in.Retry, func(r driver.Result) bool { return !moved(r) })
	s.async = append(s.async, asyncSettlement{p: p, to: to, settlement: in, at: time.Now(), before: before})
	s.w.settled(p, to, &t, &out)
	return out, nil
}

// innerSettlement returns a settlement with the seqs of the memstore, in slices
// of its own.
func (s *server) innerSettlement(t driver.Settlement) driver.Settlement {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	inner := func(rs []driver.Result) []driver.Result {
		rs = slices.Clone(rs)
		for i := range rs {
			rs[i].Seq = s.inner(rs[i].Seq)
		}
		return rs
	}
	t.Done, t.Retry, t.Dead = inner(t.Done), inner(t.Retry), inner(t.Dead)
	return t
}

// asyncHolds returns the holds of settlements that are not on disk. Mu is held.
func (s *server) asyncHolds(lanes []int) []driver.Hold {
	var holds []driver.Hold
	for _, a := range s.async {
		for _, r := range a.ofOutbox().Retry {
			ev := s.w.byID[r.ID]
			if r.Holds && ev != nil && ev.agg != nil && slices.Contains(lanes, r.Lane) {
				holds = append(holds, driver.Hold{Key: store.Key{Lane: r.Lane, Seq: s.outer(r.Seq), ID: r.ID}, Aggregate: ev.agg.name})
			}
		}
	}
	return holds
}

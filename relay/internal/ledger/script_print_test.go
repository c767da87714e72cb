package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

func (s *script) print(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// results returns what was printed since the last call.
func (s *script) results() []string {
	lines := s.lines
	s.lines = nil
	if len(lines) == 0 {
		return []string{"ok"}
	}
	return lines
}

func (s *script) name(id waybill.ID) string { return s.names[id] }

var numbered = regexp.MustCompile(`^([a-z]+)(\d+)$`)

// list joins names, and shortens n1 n2 n3 to n1..n3.
func list(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	var out []string
	for i := 0; i < len(names); {
		run := 1
		if m := numbered.FindStringSubmatch(names[i]); m != nil {
			n, _ := strconv.Atoi(m[2])
			for i+run < len(names) && names[i+run] == m[1]+strconv.Itoa(n+run) {
				run++
			}
		}
		if run > 2 {
			out = append(out, names[i]+".."+names[i+run-1])
		} else {
			out = append(out, names[i:i+run]...)
		}
		i += run
	}
	return strings.Join(out, " ")
}

// items returns the events in memory, by lane and seq.
func (s *script) items() []*Item {
	var all []*Item
	for _, l := range s.g.lanes.list {
		all = slices.AppendSeq(all, maps.Values(l.items))
	}
	slices.SortFunc(all, func(x, y *Item) int {
		return cmp.Or(x.lane.number-y.lane.number, cmp.Compare(x.row.Seq, y.row.Seq), slices.Compare(x.row.ID[:], y.row.ID[:]))
	})
	return all
}

// printMemory prints which events came into memory, and which left it.
func (s *script) printMemory() {
	var now, taken, dropped []string
	for _, it := range s.items() {
		now = append(now, s.name(it.id()))
	}
	for _, n := range now {
		if !s.inMemory[n] {
			taken = append(taken, n)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(s.inMemory)) {
		if !slices.Contains(now, n) {
			dropped = append(dropped, n)
			delete(s.inMemory, n)
		}
	}
	for _, n := range taken {
		s.inMemory[n] = true
	}
	if len(taken) > 0 {
		s.print("in memory: %s", list(taken))
	}
	if len(dropped) > 0 {
		slices.SortFunc(dropped, func(x, y string) int { return cmp.Compare(s.rows[x].Seq, s.rows[y].Seq) })
		s.print("out of memory: %s", list(dropped))
	}
}

func (s *script) printFacts() {
	for _, f := range s.g.Facts() {
		switch f := f.(type) {
		case Retried:
			s.print("%s: again in %v", s.name(f.Item.id()), f.Delay)
		case Dead:
			s.print("%s: dead: %v", s.name(f.Item.id()), f.Err)
		case Down:
			s.print("destination %s: unavailable", f.Destination)
		case Back:
			what := "available"
			if f.Abandoned {
				what = "no longer probed"
			}
			s.print("destination %s: %s", f.Destination, what)
		case Lost:
			s.print("lane %d: lost", f.Lane)
		}
	}
}

func (s *script) printAnnounced(events []event) {
	for _, e := range events {
		l := s.g.lanes.at(e.Lane)
		switch {
		case l != nil && l.items[e.ID] != nil && l.items[e.ID].hot:
			s.print("%s: ready, from memory", s.name(e.ID))
		case l != nil && hasMark(l, e.ID):
			s.print("%s: wakes a read", s.name(e.ID))
		}
	}
}

// printCounts prints how many announcements were dropped.
func (s *script) printCounts() {
	counts := s.g.Counts()
	s.counts.HotTaken += counts.HotTaken
	s.counts.ColdTaken += counts.ColdTaken
	s.counts.Freed += counts.Freed
	for why, n := range counts.Dropped {
		s.counts.Dropped[why] += n
		if n > 0 {
			s.print("announcements dropped: %d (%s)", n, observe.Drop(why))
		}
	}
}

func hasMark(l *lane, id waybill.ID) bool {
	_, ok := l.announced[id]
	return ok
}

func (s *script) printDeliveries(all []*Item) {
	if len(all) == 0 {
		s.print("deliver nothing")
		return
	}
	var plain []string
	flush := func() {
		if len(plain) > 0 {
			s.print("deliver %s", list(plain))
		}
		plain = nil
	}
	for _, it := range all {
		var notes []string
		if it.suspect {
			notes = append(notes, "suspect")
		}
		if it.probe {
			notes = append(notes, "probe")
		}
		if n := it.Attempt(); n > 1 || it.suspect {
			notes = append(notes, fmt.Sprintf("attempt %d", n))
		}
		if it.row.Replay > 0 {
			notes = append(notes, fmt.Sprintf("replay %d", it.row.Replay))
		}
		if len(notes) == 0 {
			plain = append(plain, s.name(it.id()))
			continue
		}
		flush()
		s.print("deliver %s (%s)", s.name(it.id()), strings.Join(notes, ", "))
	}
	flush()
}

func (s *script) printSettlement(st *Settlement) {
	what := "settle"
	if st.Durable || len(st.Dead) > 0 {
		what = "settle durably"
	}
	var done []string
	for _, r := range st.Done {
		done = append(done, s.name(r.ID))
	}
	if len(done) > 0 {
		s.print("%s: done %s", what, list(done))
	}
	for _, r := range st.Retry {
		s.print("%s: retry %s in %v%s", what, s.name(r.ID), r.Delay, resultNotes(&r))
	}
	for _, r := range st.Dead {
		s.print("%s: dead %s%s", what, s.name(r.ID), resultNotes(&r))
	}
}

func resultNotes(r *driver.Result) string {
	out := fmt.Sprintf(", attempts %d", r.Attempts)
	if r.Replay > 0 {
		out += fmt.Sprintf(", replay %d", r.Replay)
	}
	if r.Holds {
		out += ", holds"
	}
	return out
}

func (s *script) printRead(r *Read) {
	var parts []string
	if r.Kind == ReadHolds || r.Kind == ReadDue {
		parts = append(parts, "lanes "+strings.Trim(fmt.Sprint(r.Lanes), "[]"))
	}
	if !r.Aggregate.IsZero() {
		parts = append(parts, "aggregate "+r.Aggregate.ID)
	}
	for _, c := range r.Cursors {
		parts = append(parts, rangeText(c))
	}
	if len(r.Cursors) > 1 && r.Kind == ReadFast {
		parts = append(parts, fmt.Sprintf("limit %d", r.Limit))
	}
	var keys []string
	for _, k := range r.Keys {
		keys = append(keys, s.name(k.ID))
	}
	if len(keys) > 0 {
		parts = append(parts, list(keys))
	}
	for _, c := range r.Check {
		parts = append(parts, "check "+rangeText(c))
	}
	if r.Skip != nil {
		var skip []string
		for a := range r.Skip {
			skip = append(skip, a.ID)
		}
		slices.Sort(skip)
		parts = append(parts, "without "+list(skip))
	}
	if r.Crowd != nil {
		parts = append(parts, fmt.Sprintf("limit %d", r.Limit), "past "+list(slices.Sorted(maps.Keys(r.Crowd))))
	}
	if r.Verify {
		parts = append(parts, "open transactions")
	}
	s.print("read %s: %s", r.Kind, strings.Join(parts, ", "))
}

func rangeText(c driver.Cursor) string {
	out := fmt.Sprintf("lane %d after %d", c.Lane, c.After)
	if c.UpTo > 0 {
		out += fmt.Sprintf(" up to %d", c.UpTo)
	}
	return out
}

// lanes prints what the engine sees of the lanes.
func (s *script) lanes([]string) error {
	for _, l := range s.g.Lanes() {
		out := []string{}
		for _, w := range []struct {
			is   bool
			what string
		}{{l.Draining, "draining"}, {l.Busy, "busy"}, {l.Suspects, "has suspects"}} {
			if w.is {
				out = append(out, w.what)
			}
		}
		if len(out) == 0 {
			out = []string{"idle"}
		}
		s.print("lane %d: %s", l.Lease.Lane, strings.Join(out, ", "))
	}
	if len(s.g.Lanes()) == 0 {
		s.print("no lanes")
	}
	return nil
}

// state prints lanes, aggregates and events in memory.
func (s *script) state([]string) error {
	if h := &s.g.horizon; h.next.IsZero() {
		s.print("horizon: not known")
	} else {
		text := fmt.Sprintf("horizon: %d", h.seq)
		if h.unknown {
			text = "horizon: the store cannot report open transactions"
		}
		for _, x := range slices.Sorted(maps.Keys(h.old)) {
			text += ", " + x + " excluded"
		}
		s.print("%s", text)
	}
	if s.g.SelfPolling() {
		s.print("writers do not announce their commits")
	}
	for _, l := range s.g.lanes.list {
		s.printLane(l)
	}
	return nil
}

func (s *script) printLane(l *lane) {
	sc := &l.scan
	text := fmt.Sprintf("lane %d: read to %d, %s", l.number, sc.position, [...]string{"caught up", "behind", "skimming"}[sc.state])
	if sc.rescan {
		text += fmt.Sprintf(", to be checked from %d", sc.rescanFrom)
	}
	s.print("%s", text)
	if p := &l.suspicion; p.left() {
		var wary []string
		for id := range p.wary {
			wary = append(wary, s.name(id))
		}
		slices.Sort(wary)
		s.print("  suspects: the next %d ready, %d deferred and %d urgent rows; known: %s", p.ready.free, p.late.free, p.urgent.free, list(wary))
	}
	for _, key := range slices.SortedFunc(maps.Keys(l.aggs), func(x, y store.Aggregate) int { return cmp.Compare(x.ID, y.ID) }) {
		s.printAggregate(l.aggs[key])
	}
	s.printItems(l)
}

// printItems prints the events of a lane in memory, those of one state in one
// line.
func (s *script) printItems(l *lane) {
	var names []string
	last := ""
	flush := func() {
		if len(names) > 0 {
			s.print("  %s: %s", list(names), last)
		}
		names = nil
	}
	for _, it := range s.items() {
		if it.lane != l {
			continue
		}
		what := it.state.String()
		if it.suspect {
			what += ", suspect"
		}
		if what != last {
			flush()
		}
		names, last = append(names, s.name(it.id())), what
	}
	flush()
}

func (s *script) printAggregate(a *aggregate) {
	var parts, names []string
	for _, it := range a.queue {
		names = append(names, s.name(it.id()))
	}
	if len(names) > 0 {
		parts = append(parts, "queue "+list(names))
	}
	var holders []string
	for _, h := range a.holders {
		holders = append(holders, s.name(h.id))
	}
	if len(holders) > 0 {
		parts = append(parts, "held by "+list(holders))
	}
	if a.passed != 0 {
		parts = append(parts, fmt.Sprintf("passed over from %d to %d", a.passed, a.passedTo))
	}
	if a.waits {
		parts = append(parts, "waits for "+a.waitsFor)
	}
	if a.stuck > 0 {
		parts = append(parts, fmt.Sprintf("waits for %d dead moves", a.stuck))
	}
	s.print("  aggregate %s: %s", a.key.ID, strings.Join(parts, ", "))
}

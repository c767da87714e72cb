package ledger

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/store/driver"
)

var seeds = flag.Uint64("seeds", 24, "number of random scripts")

// TestRandomScripts plays random scripts: inputs as a store, a sink, producers,
// operators and other nodes may cause them. The same inputs have the same
// results; the invariants hold after each input; events of an aggregate are
// delivered in order; and in the end no event is left.
func TestRandomScripts(t *testing.T) {
	n := *seeds
	if testing.Short() {
		n = min(n, 6)
	}
	for seed := range n {
		first, err := playRandom(t, seed)
		if err != nil {
			t.Fatalf("seed %d: %v, after\n%s", seed, err, lastLines(first, 60))
		}
		if second, _ := playRandom(t, seed); first != second {
			t.Fatalf("seed %d: the same inputs have other results:\n%s", seed, firstDifference(first, second))
		}
	}
}

func lastLines(text string, n int) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], "\n")
}

// player plays a random script.
type player struct {
	*script
	w       *world
	r       *rand.Rand
	log     strings.Builder
	ordered bool
	calm    bool // nothing fails any more
	crowded bool // one tenant writes most events
	down    map[string]bool

	batches  [][]string // in flight at an ordered sink
	ending   int        // results of a batch that are still to come
	pages    []string   // the answer to the read under way
	answered string     // the answer to the settlement under way; "" if it is not applied
	err      error
}

func playRandom(t *testing.T, seed uint64) (log string, err error) {
	t.Helper()
	p := &player{script: newScript(t), w: newWorld(), r: rand.New(rand.NewPCG(seed, 1)), down: make(map[string]bool)}
	p.ordered, p.crowded = seed%3 == 0, seed%4 < 2
	p.do("config batch=%d cold=%d hot=4 attempts=3 window=%d", 2+p.r.IntN(8), 8+p.r.IntN(20), 4+p.r.IntN(30))
	if p.ordered {
		p.do("config ordered")
	}
	if seed%2 == 0 {
		p.do("config kb=%d", 1+p.r.IntN(40))
	}
	if seed%5 == 0 {
		p.do("config block")
	}
	p.acquireLane(1)
	p.acquireLane(2)
	for range 1500 {
		if p.step(); p.err != nil {
			return p.log.String(), p.err
		}
	}
	p.finish()
	return p.log.String(), p.err
}

// do runs a command, and checks the invariants.
func (p *player) do(format string, args ...any) {
	if p.err != nil {
		return
	}
	line := fmt.Sprintf(format, args...)
	fmt.Fprintln(&p.log, line)
	if err := p.run(strings.Fields(line)); err != nil {
		p.err = fmt.Errorf("%s: %w", line, err)
		return
	}
	for _, l := range p.results() {
		fmt.Fprintln(&p.log, "  > "+l)
	}
	if p.ending == 0 {
		p.check(line)
	}
}

// check checks the invariants after a command.
func (p *player) check(line string) {
	wrong := violations(p.g)
	for name, d := range p.g.dests {
		if d.probing && !p.probes(name) {
			wrong = append(wrong, name+" waits for a probe, and no event is one")
		}
	}
	if len(wrong) > 0 && p.err == nil {
		p.err = fmt.Errorf("%s: %s", line, strings.Join(wrong, "; "))
	}
}

// probes reports whether an event probes a destination. It may be of a lane
// that
// is lost.
func (p *player) probes(dest string) bool {
	found := false
	see := func(it *Item) { found = found || it.probe && it.dest == dest }
	for _, l := range p.g.lanes.list {
		for _, it := range l.items {
			see(it)
		}
	}
	for _, it := range p.inFlight {
		see(it)
	}
	outcomes := p.g.pending.list
	if p.settling != nil {
		outcomes = slices.Concat(outcomes, p.settling.outcomes)
	}
	for _, o := range outcomes {
		see(o.it)
	}
	return found
}

// chance reports true once in n times.
func (p *player) chance(n int) bool { return p.r.IntN(n) == 0 }

// step does something at random.
func (p *player) step() {
	switch n := p.r.IntN(1000); {
	case n < 70:
		p.write()
	case n < 100:
		p.endTx()
	case n < 150:
		p.announceCommit()
	case n < 250:
		p.do("advance %v", time.Duration(p.r.IntN(200))*time.Millisecond)
	case n < 550:
		p.readSome()
	case n < 700:
		p.deliverSome()
	case n < 880:
		p.endDelivery()
	case n < 980:
		p.settleSome()
	case n < 983:
		p.moveLane()
	case n < 995:
		p.operate()
	default:
		p.down[[]string{"mail", "shop"}[p.r.IntN(2)]] = p.chance(2)
	}
}

// worldTenants are the tenants of the aggregates.
var worldTenants = map[string]string{"a": "north", "b": "north", "c": "south", "d": "west"}

var worldAggregates = []string{"a", "b", "c", "d"}

// laneOf returns the lane of an aggregate.
func laneOf(agg string) int { return 1 + slices.Index(worldAggregates, agg)%2 }

func (p *player) write() {
	w := p.w
	w.txs++
	tx := &worldTx{name: fmt.Sprint("x", w.txs)}
	for range 1 + p.r.IntN(4) {
		agg, lane := "", 1+p.r.IntN(2)
		tenant := []string{"", "north", "south"}[p.r.IntN(3)]
		if p.crowded && p.chance(2) {
			tenant = "north"
		}
		if !p.chance(3) {
			agg = worldAggregates[p.r.IntN(len(worldAggregates))]
			if p.crowded && p.chance(2) {
				agg = "a"
			}
			tenant = worldTenants[agg]
			if w.writes(agg) {
				continue
			}
			lane = laneOf(agg)
		}
		priority := 0
		if p.chance(8) {
			priority = 1 + p.r.IntN(3)
		}
		w.draw(tx, agg, []string{"mail", "shop"}[p.r.IntN(2)], tenant, lane, priority)
	}
	w.open = append(w.open, tx)
	for _, r := range tx.rows {
		p.do("write %s", r.firstWord())
	}
	if !p.chance(4) {
		w.end(len(w.open)-1, true, p.now)
	}
}

func (p *player) endTx() {
	if n := len(p.w.open); n > 0 {
		p.w.end(p.r.IntN(n), !p.chance(4), p.now)
	}
}

func (p *player) announceCommit() {
	w := p.w
	if len(w.unannounced) == 0 {
		return
	}
	a := w.unannounced[0]
	w.unannounced = w.unannounced[1:]
	since := p.now.Sub(a.at)
	if since > 20*time.Second || p.chance(3) {
		return // the writer belongs to another process
	}
	words := a.names
	if p.chance(5) {
		words = append(words, "unchecked")
	}
	p.do("announce %s began=%v", strings.Join(words, " "), -since)
}

// readSome begins a read, or answers the one under way.
func (p *player) readSome() {
	if p.reading != nil {
		if !p.calm && p.chance(30) {
			p.do("fail")
			return
		}
		if p.chance(2) {
			p.pages = p.w.answer(p.reading, p.now) // the read saw the later state
		}
		p.do("answer %s", strings.Join(append(p.pages, p.w.after(p.reading)...), " "))
		return
	}
	var due []ReadKind
	for k := range p.g.DueReads(p.now) {
		due = append(due, k)
	}
	if len(due) == 0 {
		return
	}
	p.do("start %s", due[p.r.IntN(len(due))])
	for p.reading != nil && p.chance(8) {
		p.do("shrink")
	}
	if p.reading != nil {
		p.pages = p.w.answer(p.reading, p.now)
	}
}

func (p *player) deliverSome() {
	before := len(p.inFlight)
	p.do("deliver %d", 1+p.r.IntN(6))
	if len(p.batch) > 0 {
		p.batches = append(p.batches, p.batch)
	}
	if len(p.inFlight) > before {
		p.checkDeliveries()
	}
}

// checkDeliveries checks that no event is delivered after its settlement, or
// before an event of its aggregate that comes first.
func (p *player) checkDeliveries() {
	for _, name := range sortedNames(p.inFlight) {
		r := p.w.byName[name]
		if p.inFlight[name].lane.gone {
			continue
		}
		if it := p.inFlight[name]; it.suspect && r.attempts != it.Attempt() && r.table == "delayed" && p.err == nil {
			p.err = fmt.Errorf("%s is a suspect, and %d attempts are on disk", name, r.attempts)
		}
		if r.settled && r.table == "gone" && p.err == nil {
			p.err = fmt.Errorf("%s is in flight after its settlement", name)
		}
		if r.agg == "" || r.replay > 0 {
			continue
		}
		for _, x := range p.w.rows {
			inOrder := p.ordered && p.inFlight[x.name] != nil // with it, and in front of it
			if x.agg == r.agg && x.seq < r.seq && x.table != "open" && !x.decided && !inOrder && p.err == nil {
				p.err = fmt.Errorf("%s is in flight before %s", name, x.name)
			}
		}
	}
}

func sortedNames(m map[string]*Item) []string {
	var names []string
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// endDelivery ends a delivery, or all deliveries of a batch of an ordered sink:
// behind a failure, the sink delivers no more events of the aggregate.
func (p *player) endDelivery() {
	if p.ordered && len(p.batches) > 0 && p.chance(2) {
		at := p.r.IntN(len(p.batches))
		batch := p.batches[at]
		p.batches = slices.Delete(p.batches, at, at+1)
		failed := make(map[string]bool)
		p.ending = len(batch)
		for _, name := range batch {
			p.ending--
			if agg := p.w.byName[name].agg; failed[agg] {
				p.do("undelivered %s", name)
			} else if !p.end(name) && agg != "" {
				failed[agg] = true
			}
		}
		p.check("the end of the batch")
		return
	}
	names := sortedNames(p.inFlight)
	names = slices.DeleteFunc(names, func(n string) bool {
		return p.ordered && slices.ContainsFunc(p.batches, func(b []string) bool { return slices.Contains(b, n) })
	})
	if len(names) > 0 {
		p.end(names[p.r.IntN(len(names))])
	}
}

// end ends a delivery, and reports whether the event was delivered.
func (p *player) end(name string) bool {
	it, r := p.inFlight[name], p.w.byName[name]
	if !p.calm && p.chance(30) {
		p.do("undelivered %s", name)
		return false
	}
	what := "ok"
	if !p.calm {
		what = append(slices.Repeat([]string{"ok"}, 20), "retry", "retry", "permanent", "later", "settled")[p.r.IntN(25)]
		if p.down[r.dest] {
			what = "unavailable"
		}
	}
	if what == "settled" && (!p.w.lanes[r.lane] || it.lane.gone || r.table != "ready" && r.table != "delayed") {
		what = "ok"
	}
	delivered := what == "ok" || what == "settled"
	r.decided = r.decided || delivered
	if what == "settled" {
		r.table, r.settled = "gone", true
	}
	p.do("result %s %s", name, what)
	return delivered
}

// settleSome sends a settlement, or answers the one under way.
func (p *player) settleSome() {
	apply := func() {
		p.answered = p.w.settle(p.settling, func(res *driver.Result) string { return p.name(res.ID) }, p.now)
		for _, res := range p.settling.Dead {
			p.w.byName[p.name(res.ID)].decided = true
		}
	}
	if p.settling == nil {
		p.answered = ""
		if p.do("settle"); p.settling != nil && p.chance(2) {
			apply()
		}
		return
	}
	if !p.calm && p.chance(8) {
		p.do("unsettled") // applied or not
		return
	}
	if p.answered == "" {
		apply()
	}
	p.do("settled %s", p.answered)
}

// moveLane acquires, drains or loses a lane.
func (p *player) moveLane() {
	lane := 1 + p.r.IntN(2)
	if !p.w.lanes[lane] {
		p.acquireLane(lane)
		return
	}
	state := p.g.lanes.at(lane)
	switch {
	case state == nil || p.chance(4): // another node owns it
		p.w.lanes[lane] = false
		p.do("lose %d", lane)
	case !state.draining:
		p.do("drain %d", lane)
	case state.busy == 0:
		p.w.lanes[lane] = false
		p.do("lose %d", lane)
	}
}

// acquireLane acquires a lane. Deliveries of an earlier ownership have ended by
// then: a player knows one delivery of an event at a time.
func (p *player) acquireLane(lane int) {
	for _, name := range sortedNames(p.inFlight) {
		if p.inFlight[name].lane.number == lane {
			p.end(name)
			for i, b := range p.batches {
				p.batches[i] = slices.DeleteFunc(b, func(n string) bool { return n == name })
			}
		}
	}
	p.w.lanes[lane] = true
	if p.chance(3) {
		p.do("acquire %d unclean window=%d", lane, 1+p.r.IntN(5))
	} else {
		p.do("acquire %d", lane)
	}
}

// operate replays or discards a dead letter.
func (p *player) operate() {
	for _, r := range p.w.rows {
		if r.table != "dead" || !p.chance(3) {
			continue
		}
		if p.chance(3) {
			r.table, r.holds = "gone", false
		} else {
			r.table, r.holds, r.due, r.attempts = "delayed", r.agg != "", p.now, 0
			r.replay++
		}
		return
	}
}

// discardHolds discards the dead letters that block their aggregates.
func (p *player) discardHolds() {
	for _, r := range p.w.rows {
		if r.table == "dead" && r.holds {
			r.table, r.holds = "gone", false
		}
	}
}

// finish lets everything succeed: in the end no event is left.
func (p *player) finish() {
	p.calm = true
	clear(p.down)
	for len(p.w.open) > 0 {
		p.w.end(0, true, p.now)
	}
	for n := 0; p.err == nil && (n < 20 || len(p.w.left()) > 0 || len(p.inFlight) > 0); n++ {
		for lane := 1; lane <= 2; lane++ {
			l := p.g.lanes.at(lane)
			if p.w.lanes[lane] && (l == nil || l.draining && l.busy == 0) {
				p.w.lanes[lane] = false
				p.do("lose %d", lane)
			}
			if !p.w.lanes[lane] {
				p.acquireLane(lane)
			}
		}
		p.discardHolds()
		for range 10 {
			p.readSome()
			p.deliverSome()
			p.endDelivery()
			p.settleSome()
		}
		p.do("advance 100ms")
		if n > 2000 && p.err == nil {
			p.do("state")
			p.err = fmt.Errorf("these are left: %s", list(p.w.left()))
		}
	}
	for p.err == nil && (p.g.settling || len(p.g.pending.list) > 0) {
		p.settleSome()
		p.do("advance 100ms")
	}
	if m := &p.g.memory; p.err == nil && (m.waiting != 0 || m.bytes != 0) {
		p.err = fmt.Errorf("no event is left, and %d events of %d bytes count as in memory", m.waiting, m.bytes)
	}
}

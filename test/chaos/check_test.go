//go:build linux || darwin

package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill/test/process/journal"
)

// evidence is what a run leaves behind.
type evidence struct {
	ledger  []entry          // what was committed: the truth
	claims  []claim          // what producers were told about their transactions
	journal []journal.Record // what the sinks saw, in order
	lanes   []tenure         // every acquisition of a lane, in order
	moves   []move           // every change of a row of outbox, delayed, dead and history, in order
	history []string         // the ids that are in the history at the end
	pending int              // how many rows are in outbox, delayed and dead at the end

	crashes []outage // of the server
	faults  faults
	limits  limits
}

// entry is an event that was committed. Those of one aggregate are numbered from 1; "" is the aggregate of those that have none.
type entry struct {
	id, aggregate string
	number        int
	due           time.Time     // zero: at once
	open          time.Duration // how long its transaction was open when it had been written
}

// claim is what a producer was told about a transaction.
type claim struct {
	IDs     []string
	Outcome string // committed, rolled back or uncertain
}

const (
	committed  = "committed"
	rolledBack = "rolled back"
	uncertain  = "uncertain"
)

// tenure is that a process has acquired a lane.
type tenure struct {
	lane  int
	epoch int64
	token string
	app   string
}

// move is a change of a row.
type move struct {
	table, op string // op is INSERT, UPDATE or DELETE
	id        string
	lane      int
	epoch     int64 // of the lane at that moment
	attempts  int
	replay    int
	app       string
	at        time.Time
}

// outage is when the server was down.
type outage struct{ from, to time.Time }

// faults counts what was done to the relays.
type faults struct {
	kills, suicides, longStops, shortStops, terms, crashes int
}

// ends is how often a node's work may have been cut off.
func (f faults) ends() int {
	return f.kills + f.suicides + f.longStops + f.shortStops + f.terms + 3*f.crashes
}

// limits is what the relays were configured with.
type limits struct {
	maxAttempts, window, lanes int
	flush                      time.Duration // how long a commit may take to reach the disk
	late                       time.Duration // how long a transaction may be open after a write; see inOrder
}

// app is how a relay process names itself to the database.
func app(node string, pid int) string { return fmt.Sprintf("%s#%d", node, pid) }

func appOf(r journal.Record) string { return app(r.Node, r.PID) }

// summary is what there is to tell when nothing is wrong.
type summary struct {
	events, deliveries, successes, duplicates, bound, died, late int
}

// violation is a promise that was not kept.
type violation struct{ rule, text string }

func (v violation) String() string { return v.rule + ": " + v.text }

// The rules that the checker knows.
const (
	ruleLost       = "lost"       // an event of the ledger was never delivered
	rulePhantom    = "phantom"    // something was delivered that is not in the ledger
	ruleOrder      = "order"      // an event was begun before the one in front of it was delivered or dead
	ruleStale      = "stale"      // a row was changed by a process that did not own its lane
	ruleEpoch      = "epoch"      // an epoch was given twice, or used by somebody it was not given to
	ruleAgain      = "again"      // an event was delivered after it had been settled as done
	ruleTwice      = "twice"      // an event was delivered twice by one owner
	ruleDead       = "dead"       // an event is dead without a reason
	ruleAttempts   = "attempts"   // attempts were counted that nobody made
	ruleDuplicates = "duplicates" // more was delivered twice than the faults explain
	ruleLeft       = "left"       // at the end the tables do not hold what they should
	ruleClaim      = "claim"      // a producer was told something that is not true
	ruleEarly      = "early"      // an event was delivered before its time
)

// checker is the evidence, sorted.
type checker struct {
	evidence
	byID  map[string]*life
	order []*life // in the order of the ledger, then of the journal
	bad   []violation
	late  int
}

// life is all that is known of one event.
type life struct {
	id      string
	entry   *entry
	records []indexed
	moves   []move
}

// indexed is a record and its place in the journal.
type indexed struct {
	journal.Record
	at int
}

// check returns what is wrong.
func check(e evidence) (summary, []violation) {
	c := &checker{evidence: e, byID: make(map[string]*life)}
	for i := range e.ledger {
		c.life(e.ledger[i].id).entry = &e.ledger[i]
	}
	for i, r := range e.journal {
		l := c.life(r.ID)
		l.records = append(l.records, indexed{r, i})
	}
	for _, m := range e.moves {
		l := c.life(m.id)
		l.moves = append(l.moves, m)
	}
	c.delivered()
	c.inOrder()
	c.fenced()
	c.owners()
	c.repeated()
	c.counted()
	c.claimed()
	c.left()
	return c.summary(), c.bad
}

func (c *checker) life(id string) *life {
	l := c.byID[id]
	if l == nil {
		l = &life{id: id}
		c.byID[id] = l
		c.order = append(c.order, l)
	}
	return l
}

func (c *checker) say(rule, format string, args ...any) {
	c.bad = append(c.bad, violation{rule, fmt.Sprintf(format, args...)})
}

// first returns the first record of a kind, or nil.
func (l *life) first(what string) *indexed {
	i := slices.IndexFunc(l.records, func(r indexed) bool { return r.What == what })
	if i < 0 {
		return nil
	}
	return &l.records[i]
}

// delivered: everything that was committed was delivered, nothing else, and nothing early.
func (c *checker) delivered() {
	for _, l := range c.order {
		begin := l.first(journal.Begin)
		switch {
		case l.entry == nil && begin != nil:
			c.say(rulePhantom, "this is not in the ledger: %s", begin)
		case l.entry == nil:
		case l.first(journal.OK) == nil:
			c.say(ruleLost, "%d of %q (%s) was never delivered: %d records", l.entry.number, l.entry.aggregate, l.id, len(l.records))
		case begin.At.Before(l.entry.due):
			c.say(ruleEarly, "it is due at %s: %s", l.entry.due.Format("15:04:05.000000"), begin)
		}
	}
}

// inOrder: an event is begun for the first time when the one in front of it has been delivered, or is dead: dead letters leave the
// order. Repetitions do not matter: a stopped process that goes on repeats what it had in hand, and consumers tell by the position.
//
// A transaction that stays open for seconds after it has written, because its process was stopped, has places that reading has passed when
// it commits; whoever comes right behind it may be found first. Such events are counted and not held against the relay.
func (c *checker) inOrder() {
	numbers := make(map[string]map[int]*life)
	for _, l := range c.order {
		if l.entry == nil || l.entry.aggregate == "" {
			continue
		}
		if numbers[l.entry.aggregate] == nil {
			numbers[l.entry.aggregate] = make(map[int]*life)
		}
		numbers[l.entry.aggregate][l.entry.number] = l
	}
	for aggregate, series := range numbers {
		for n, l := range series {
			begin := l.first(journal.Begin)
			if n == 1 || begin == nil {
				continue
			}
			before := series[n-1]
			if before == nil {
				c.say(ruleLeft, "the ledger has %d of %s and not %d", n, aggregate, n-1)
				continue
			}
			if ok := before.first(journal.OK); ok != nil && ok.at < begin.at || before.diedBy(begin.At) {
				continue
			}
			if before.entry.open > c.limits.late {
				c.late++
				continue
			}
			c.say(ruleOrder, "%d had not been delivered yet: %s", n-1, begin)
		}
	}
}

// diedBy reports whether the event was dead at a time, or had been.
func (l *life) diedBy(t time.Time) bool {
	return slices.ContainsFunc(l.moves, func(m move) bool { return m.table == "dead" && m.op == "INSERT" && !m.at.After(t) })
}

// fence names a tenure.
type fence struct {
	lane  int
	epoch int64
}

// owners: the epochs of a lane rise by one, tokens are never used twice, and whoever delivers under an epoch has acquired it.
func (c *checker) owners() {
	owner := make(map[fence]string)
	tokens := make(map[string]bool)
	last := make(map[int]int64)
	for _, t := range c.lanes {
		if t.epoch != last[t.lane]+1 {
			c.say(ruleEpoch, "%s acquires lane %d with epoch %d after epoch %d", t.app, t.lane, t.epoch, last[t.lane])
		}
		if tokens[t.token] {
			c.say(ruleEpoch, "%s acquires lane %d with a token that was used before", t.app, t.lane)
		}
		last[t.lane], tokens[t.token] = t.epoch, true
		owner[fence{t.lane, t.epoch}] = t.app
	}
	told := make(map[fence]bool)
	for _, r := range c.journal {
		f := fence{r.Lane, r.Epoch}
		if owner[f] != appOf(r) && !told[f] {
			told[f] = true
			c.say(ruleEpoch, "epoch %d of lane %d belongs to %q: %s", r.Epoch, r.Lane, owner[f], r)
		}
	}
}

// fenced: every change of a row was made by the process that owned the row's lane at that moment. What operators and producers do
// has no epoch.
func (c *checker) fenced() {
	owner := make(map[fence]string)
	for _, t := range c.lanes {
		owner[fence{t.lane, t.epoch}] = t.app
	}
	for _, m := range c.moves {
		if m.epoch != 0 && owner[fence{m.lane, m.epoch}] != m.app {
			c.say(ruleStale, "%s changes lane %d, which belongs to %s by epoch %d: %s of %s in %s",
				m.app, m.lane, owner[fence{m.lane, m.epoch}], m.epoch, m.op, m.id, m.table)
		}
	}
}

// repeated: nobody delivers an event that was settled as done before they acquired the lane, nor one that they have settled
// themselves; an owner delivers an event once, unless the server has crashed and forgotten.
func (c *checker) repeated() {
	for _, l := range c.order {
		for _, m := range l.moves {
			if m.table != "history" {
				continue
			}
			for _, r := range l.records {
				if r.What == journal.Begin && r.Epoch >= m.epoch && r.At.After(m.at) {
					c.say(ruleAgain, "it was settled as done at %s under epoch %d: %s", m.at.Format("15:04:05.000000"), m.epoch, r)
				}
			}
		}
		type owner struct {
			fence
			replay int
		}
		seen := make(map[owner]indexed)
		for _, r := range l.records {
			if r.What != journal.OK {
				continue
			}
			o := owner{fence{r.Lane, r.Epoch}, r.Replay}
			if prev, ok := seen[o]; ok && !c.crashedBetween(prev.At, r.At) {
				c.say(ruleTwice, "by one owner: %s, and %s", prev, r)
			}
			seen[o] = r
		}
	}
}

// crashedBetween reports whether the server was down at some time between two.
func (c *checker) crashedBetween(from, to time.Time) bool {
	return slices.ContainsFunc(c.crashes, func(o outage) bool { return from.Before(o.to) && to.After(o.from) })
}

// counted: an event is dead because a sink refused it, or because its attempts are used up; and every attempt that was counted has
// been made. A node that ends between counting a suspect's attempt and delivering it leaves one that was not made.
func (c *checker) counted() {
	type tally struct{ counted, made int }
	excess := 0
	for _, l := range c.order {
		lives := make(map[int]tally) // by replay
		for _, m := range l.moves {
			v := lives[m.replay]
			v.counted = max(v.counted, m.attempts)
			lives[m.replay] = v
			if m.table == "dead" && m.op == "INSERT" && m.attempts < c.limits.maxAttempts && !l.refused(m) {
				c.say(ruleDead, "%s is dead after %d of %d attempts, and nobody has refused it", l.id, m.attempts, c.limits.maxAttempts)
			}
		}
		for _, r := range l.records {
			v := lives[r.Replay]
			switch r.What {
			case journal.Begin:
				v.made++
			case journal.Down, journal.Later:
				v.made-- // not to be counted
			}
			lives[r.Replay] = v
		}
		for replay, v := range lives {
			if v.counted > v.made {
				excess += v.counted - v.made
				if v.counted > v.made+2 { // once is bad luck
					c.say(ruleAttempts, "%s, replay %d: %d attempts were counted, and %d made", l.id, replay, v.counted, v.made)
				}
			}
		}
	}
	if ends := c.faults.ends(); excess > ends {
		c.say(ruleAttempts, "%d attempts were counted that nobody made, and nodes ended only %d times", excess, ends)
	}
}

// refused reports whether a sink has refused the event for good before a move.
func (l *life) refused(m move) bool {
	return slices.ContainsFunc(l.records, func(r indexed) bool {
		return r.What == journal.Refused && r.Replay == m.replay && appOf(r.Record) == m.app
	})
}

// claimed: what producers were told is true.
func (c *checker) claimed() {
	for _, cl := range c.claims {
		for _, id := range cl.IDs {
			l := c.byID[id]
			there := l != nil && l.entry != nil
			if cl.Outcome == committed && !there {
				c.say(ruleClaim, "%s was said to be committed, and is not in the ledger", id)
			}
			if cl.Outcome == rolledBack && there {
				c.say(ruleClaim, "%s was said to be rolled back, and is in the ledger", id)
			}
		}
	}
}

// left: at the end everything is in the history, once, and nowhere else.
func (c *checker) left() {
	if c.pending != 0 {
		c.say(ruleLeft, "%d events are pending or dead", c.pending)
	}
	times := make(map[string]int)
	for _, id := range c.history {
		if times[id]++; times[id] == 2 {
			c.say(ruleLeft, "%s is in the history twice", id)
		}
		if l := c.byID[id]; l == nil || l.entry == nil {
			c.say(ruleLeft, "%s is in the history and not in the ledger", id)
		}
	}
	for _, e := range c.ledger {
		if times[e.id] == 0 {
			c.say(ruleLeft, "%s is not in the history", e.id)
		}
	}
}

// summary counts, and compares the number of duplicates with what the faults explain: a node that ends, or is stopped for longer
// than its lease, leaves at most what it had in hand; a crash of the server also what had been committed and not written.
func (c *checker) summary() summary {
	s := summary{events: len(c.ledger), late: c.late}
	for _, r := range c.journal {
		if r.What == journal.Begin {
			s.deliveries++
		}
		if r.What == journal.OK {
			s.successes++
		}
	}
	for _, l := range c.order {
		ok := make(map[int]int)
		for _, r := range l.records {
			if r.What == journal.OK {
				ok[r.Replay]++
			}
		}
		for _, n := range ok {
			s.duplicates += n - 1
		}
		if slices.ContainsFunc(l.moves, func(m move) bool { return m.table == "dead" && m.op == "INSERT" }) {
			s.died++
		}
	}
	lost := 0
	for _, o := range c.crashes {
		for _, r := range c.journal {
			if r.What == journal.OK && r.At.After(o.from.Add(-c.limits.flush)) && r.At.Before(o.to) {
				lost++
			}
		}
	}
	f := c.faults
	s.bound = (f.kills+f.suicides+f.longStops+f.crashes)*c.limits.window*c.limits.lanes + lost
	if s.duplicates > s.bound {
		c.say(ruleDuplicates, "%d, and the faults explain %d", s.duplicates, s.bound)
	}
	return s
}

// byRule counts violations.
func byRule(bad []violation) map[string]int {
	out := make(map[string]int)
	for _, v := range bad {
		out[v.rule]++
	}
	return out
}

// sorted returns violations by rule.
func sorted(bad []violation) []violation {
	return slices.SortedStableFunc(slices.Values(bad), func(a, b violation) int { return cmp.Compare(a.rule, b.rule) })
}

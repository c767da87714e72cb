//go:build linux || darwin

package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill/internal/e2e/process/journal"
)

// evidence is the data that a run leaves behind.
type evidence struct {
	ledger []entry // committed events: the source of truth
	// outcomes that producers saw for their transactions
	claims  []claim
	journal []journal.Record // the sinks' deliveries, in order
	lanes   []tenure         // every acquisition of a lane, in order
	// every change of a row of outbox, delayed, dead and history, in order
	moves   []move
	history []string // the ids in the history at the end
	// the number of rows in outbox, delayed and dead at the end
	pending int

	crashes []outage // of the server
	faults  faults
	limits  limits
}

// entry is a committed event. The events of one aggregate are numbered from 1;
// "" is the aggregate of unordered events.
type entry struct {
	id, aggregate string
	number        int
	due           time.Time // zero: at once
	// how long its transaction was open after the write
	open time.Duration
}

// claim is the outcome of a transaction as its producer saw it.
type claim struct {
	IDs     []string
	Outcome string // committed, rolled back or uncertain
}

const (
	committed  = "committed"
	rolledBack = "rolled back"
	uncertain  = "uncertain"
)

// tenure is the acquisition of a lane by a process.
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

// faults counts the faults of the relays.
type faults struct {
	kills, suicides, longStops, shortStops, terms, crashes int
}

// ends returns how often a node's work may have been interrupted.
func (f faults) ends() int {
	return f.kills + f.suicides + f.longStops + f.shortStops + f.terms + 3*f.crashes
}

// limits is the configuration of the relays.
type limits struct {
	maxAttempts, window, lanes int
	// maximum time until a commit is on disk
	flush time.Duration
	// how long a transaction may be open after a write; see inOrder
	late time.Duration
}

// app is the application name of a relay process in the database.
func app(node string, pid int) string { return fmt.Sprintf("%s#%d", node, pid) }

func appOf(r journal.Record) string { return app(r.Node, r.PID) }

// summary is the report of a run without violations.
type summary struct {
	events, deliveries, successes, duplicates, bound, died, late int
}

// violation is a broken guarantee.
type violation struct{ rule, text string }

func (v violation) String() string { return v.rule + ": " + v.text }

// The rules of the checker.
const (
	ruleLost = "lost" // an event of the ledger was never delivered
	// an event was delivered that is not in the ledger
	rulePhantom = "phantom"
	// a delivery began before its predecessor was delivered or dead
	ruleOrder = "order"
	// a row was changed by a process that did not own its lane
	ruleStale = "stale"
	// an epoch was assigned twice, or used by a process without it
	ruleEpoch = "epoch"
	// an event was delivered after it had been settled as done
	ruleAgain    = "again"
	ruleTwice    = "twice"    // an event was delivered twice by one owner
	ruleDead     = "dead"     // an event is dead without a reason
	ruleAttempts = "attempts" // attempts were counted that were not made
	// more events were delivered twice than the faults explain
	ruleDuplicates = "duplicates"
	// at the end the tables do not hold the expected rows
	ruleLeft  = "left"
	ruleClaim = "claim" // a producer saw a wrong outcome
	ruleEarly = "early" // an event was delivered before it was due
)

// checker is the evidence, indexed.
type checker struct {
	evidence
	byID  map[string]*life
	order []*life // in the order of the ledger, then of the journal
	bad   []violation
	late  int
}

// life is all evidence about one event.
type life struct {
	id      string
	entry   *entry
	records []indexed
	moves   []move
}

// indexed is a record and its index in the journal.
type indexed struct {
	journal.Record
	at int
}

// check returns the violations.
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

// delivered: every committed event was delivered, no other event, and none
// early.
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

// inOrder: the first delivery of an event begins after its predecessor has been
// delivered or is dead: dead letters leave the order. Redeliveries do not
// matter: a stopped process that continues repeats its events in flight, and
// consumers detect them by the position.
//
// A transaction that stays open for seconds after its write, because its
// process was stopped, has seqs that reading has passed when it commits; events
// written right after it may be found first. Such events are counted and not
// reported as a violation.
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

// diedBy reports whether the event was dead at or before a time.
func (l *life) diedBy(t time.Time) bool {
	return slices.ContainsFunc(l.moves, func(m move) bool { return m.table == "dead" && m.op == "INSERT" && !m.at.After(t) })
}

// fence identifies a tenure.
type fence struct {
	lane  int
	epoch int64
}

// owners: the epochs of a lane rise by one, tokens are never used twice, and
// every process that delivers under an epoch has acquired it.
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

// fenced: every change of a row was made by the process that owned the row's
// lane at that moment. Changes by operators and producers have no epoch.
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

// repeated: no owner delivers an event that was settled as done before the
// owner acquired the lane, or that the owner itself has settled; an owner
// delivers an event once, unless the server has crashed and lost the
// settlement.
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

// crashedBetween reports whether the server was down at some time between two
// times.
func (c *checker) crashedBetween(from, to time.Time) bool {
	return slices.ContainsFunc(c.crashes, func(o outage) bool { return from.Before(o.to) && to.After(o.from) })
}

// counted: an event is dead because a sink refused it, or because its attempts
// are exhausted; and every counted attempt has been made. A node that ends
// between counting the attempts of a group of suspects and delivering them
// leaves attempts that were not made.
func (c *checker) counted() {
	type tally struct {
		counted, made int
		counts        []move // that counted an attempt
	}
	var excess []move
	for _, l := range c.order {
		lives := make(map[int]tally) // by replay
		for _, m := range l.moves {
			v := lives[m.replay]
			if m.attempts > v.counted {
				v.counted, v.counts = m.attempts, append(v.counts, m)
			}
			lives[m.replay] = v
			if m.table == "dead" && m.op == "INSERT" && m.attempts < c.limits.maxAttempts && !l.refused(m) {
				c.say(ruleDead, "%s is dead after %d of %d attempts, and no sink has refused it", l.id, m.attempts, c.limits.maxAttempts)
			}
		}
		for _, r := range l.records {
			v := lives[r.Replay]
			switch r.What {
			case journal.Begin:
				v.made++
			case journal.Down, journal.Later:
				v.made-- // not counted
			}
			lives[r.Replay] = v
		}
		for replay, v := range lives {
			if v.counted > v.made {
				excess = append(excess, l.notMade(v.counts, replay, v.counted-v.made)...)
				if v.counted > v.made+2 { // one can be explained by a kill
					c.say(ruleAttempts, "%s, replay %d: %d attempts were counted, and %d made", l.id, replay, v.counted, v.made)
				}
			}
		}
	}
	if ends, groups := c.faults.ends(), groupsOf(excess); groups > ends {
		c.say(ruleAttempts, "%d attempts in %d groups were counted and not made, and nodes ended only %d times", len(excess), groups, ends)
	}
}

// notMade returns the n of these counts for which no attempt was made. An
// attempt is made after its count, or before it if the count is that of a
// failure. Counts without such an attempt come first.
func (l *life) notMade(counts []move, replay, n int) []move {
	made := func(i int) bool {
		return slices.ContainsFunc(l.records, func(r indexed) bool {
			return r.What == journal.Begin && r.Replay == replay &&
				(i == 0 || r.At.After(counts[i-1].at)) && (i == len(counts)-1 || r.At.Before(counts[i+1].at))
		})
	}
	var without, with []move
	for i, m := range counts {
		if made(i) {
			with = append(with, m)
		} else {
			without = append(without, m)
		}
	}
	return append(without, with...)[:min(n, len(counts))]
}

// groupsOf returns how many settlements these moves come from. A process counts
// the next group only after the last one has ended, which takes longer than a
// settlement. An event counts as often as it is listed.
func groupsOf(moves []move) int {
	slices.SortFunc(moves, func(a, b move) int { return cmp.Or(cmp.Compare(a.app, b.app), a.at.Compare(b.at)) })
	groups := 0
	for i, m := range moves {
		if i == 0 || m.app != moves[i-1].app || m.id == moves[i-1].id || m.at.Sub(moves[i-1].at) > 100*time.Millisecond {
			groups++
		}
	}
	return groups
}

// refused reports whether a sink has permanently refused the event before a
// move.
func (l *life) refused(m move) bool {
	return slices.ContainsFunc(l.records, func(r indexed) bool {
		return r.What == journal.Refused && r.Replay == m.replay && appOf(r.Record) == m.app
	})
}

// claimed: the outcomes that producers saw are true.
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

// left: at the end every event is in the history, once, and nowhere else.
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

// summary counts, and compares the number of duplicates with the faults: a node
// that ends, or is stopped for longer than its lease, leaves at most its events
// in flight; a crash of the server also the settlements that were committed and
// not written to disk.
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

package soak

import (
	"math"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
)

// This file compares what the processes reported with what the tables hold at
// the end: the ledger, written in the producers' transactions, and the effects,
// written in the transactions of the consumers' inbox.

// effect is a row of the consumers' effects.
type effect struct {
	id             waybill.ID
	name           int
	number, amount int64
	place          int64
	at             time.Time
}

// checker compares the tables with the tally.
type checker struct {
	*tally
	latency histogram
	// totals has the sums of the ledger by aggregate.
	totals map[int]int64
	counts map[int]int64
	last   effect // the effect before, of the same aggregate
	ledger int
}

func newChecker(t *tally) *checker {
	return &checker{tally: t, totals: make(map[int]int64), counts: make(map[int]int64)}
}

// entry adds a row of the ledger.
func (c *checker) entry(e entry) {
	l := c.life(e.id)
	if l.inLedger {
		c.event(Outcomes, e.id, "is in the ledger twice")
		return
	}
	c.ledger++
	l.inLedger, l.written, l.due = true, nanos(e.at), nanos(e.due)
	l.payload, l.headers, l.amount, l.name, l.number = e.payload, e.headers, int32(e.amount), int32(e.name), e.number //nolint:gosec // small numbers
	l.topic = int8(slices.Index(topics, e.topic))                                                                     //nolint:gosec // a short list
	if e.name != unordered {
		c.totals[e.name] += e.amount
		c.counts[e.name]++
	}
}

func (c *checker) event(p Promise, id waybill.ID, text string) {
	c.findings.add(p, "event %s %s", id, text)
}

// effect adds an effect. The effects of an aggregate come in the order in which
// they were applied.
func (c *checker) effect(e effect) {
	l := c.life(e.id)
	if l.effects++; l.effects > 1 {
		c.findings.add(Once, "event %s has %d effects", e.id, l.effects)
		return
	}
	if l.inLedger {
		c.latency.add(time.Duration(e.at.UnixNano() - max(l.written, l.due)))
	}
	if e.name == unordered {
		return
	}
	if c.last.name == e.name && !c.last.at.IsZero() && e.number < c.last.number {
		c.findings.add(Ordered, "event %s, number %d of aggregate %d, was applied after number %d", e.id, e.number, e.name, c.last.number)
	}
	c.last = e
}

// account adds the sum of an aggregate.
func (c *checker) account(name int, n, total int64) {
	if n > c.counts[name] || n == c.counts[name] && total != c.totals[name] {
		c.findings.add(Once, "aggregate %d has %d effects with the sum %d; the ledger has %d events with the sum %d", name, n, total, c.counts[name], c.totals[name])
	}
}

// request adds an effect of a request.
func (c *checker) request(key string, answer int64) {
	a := c.requests[key]
	if a == nil { // its requester died before it recorded the answer
		a = &answers{value: answer}
		c.requests[key] = a
	}
	a.effects++
	switch {
	case a.effects > 1:
		c.findings.add(OneEffect, "request %s has %d effects", key, a.effects)
	case a.count > 0 && a.value != answer:
		c.findings.add(SameAnswer, "request %s was answered with %d, and its effect has %d", key, a.value, answer)
	}
}

// early is the inaccuracy of a delay: times are stored in milliseconds or
// microseconds.
const early = 5 * time.Millisecond

// finish checks what needs all evidence.
func (c *checker) finish() {
	for id, l := range c.events {
		c.one(id, l)
	}
	for key, a := range c.requests {
		if a.count > 0 && a.effects == 0 {
			c.findings.add(OneEffect, "request %s was answered and has no effect", key)
		}
	}
	for number, l := range c.lanes {
		c.fence(number, l)
	}
	if c.duplicates > c.bound {
		c.findings.add(Duplicates, "%d events were published again; the failures of relays explain at most %d", c.duplicates, c.bound)
	}
}

// one checks an event.
func (c *checker) one(id waybill.ID, l *life) {
	if l.claimed && !l.inLedger {
		c.event(Outcomes, id, "was reported as committed, and its transaction left nothing")
	}
	if l.denied && l.inLedger {
		c.event(Outcomes, id, "was reported as rolled back, and its transaction was committed")
	}
	if !l.inLedger {
		if l.begun > 0 || l.received > 0 || l.effects > 0 {
			c.event(CommittedOnly, id, "was delivered, and was never committed")
		}
		return
	}
	if l.effects == 0 {
		c.lost(id, l)
	}
	if l.due > 0 && l.begun > 0 && l.begun < l.due-int64(early) {
		c.findings.add(NotEarly, "event %s was published %v before it was due", id, time.Duration(l.due-l.begun).Round(time.Millisecond))
	}
	if l.received == 0 {
		return
	}
	if l.gotPayload != l.payload {
		c.event(Unchanged, id, "arrived with another payload")
	}
	if l.gotHeaders != l.headers {
		c.event(Unchanged, id, "arrived with other headers")
	}
	if l.arrived != l.topic {
		c.findings.add(Routed, "event %s of topic %s arrived at topic %s", id, topics[l.topic], topics[l.arrived])
	}
}

// lost describes an event without an effect.
func (c *checker) lost(id waybill.ID, l *life) {
	kind, state := "event", "never published"
	if l.due > 0 {
		kind = "delayed event"
	}
	switch {
	case l.received > 0:
		state = "received and never applied"
	case l.published > 0:
		state = "published and never received"
	case l.begun > 0:
		state = "given to the broker, without its confirmation"
	}
	if l.name == unordered {
		c.findings.add(Delivered, "%s %s was %s", kind, id, state)
		return
	}
	c.findings.add(Delivered, "%s %s, number %d of aggregate %d, was %s", kind, id, l.number, l.name, state)
}

// fence checks that no settlement under an epoch began after a later epoch had
// been acquired.
func (c *checker) fence(number int, l *lane) {
	slices.SortFunc(l.epochs, func(a, b epoch) int { return int(a.number - b.number) })
	next := int64(math.MaxInt64)
	for i := len(l.epochs) - 1; i >= 0; i-- {
		e := l.epochs[i]
		if e.settled > next {
			c.findings.add(Fenced, "%s settled events of lane %d under epoch %d, %v after a later epoch was acquired", e.owner, number, e.number,
				time.Duration(e.settled-next).Round(time.Millisecond))
		}
		if e.acquired > 0 {
			next = min(next, e.acquired)
		}
	}
}

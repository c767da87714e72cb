package soak

import (
	"cmp"
	"fmt"
	"slices"
)

// Promise is one of the promises that the soak checks.
type Promise string

// The promises.
const (
	// Delivered: every committed event is applied by the consumers.
	Delivered Promise = "delivered"
	// CommittedOnly: no event is delivered that was not committed.
	CommittedOnly Promise = "committed-only"
	// Outcomes: a transaction has the outcome that its producer was told.
	Outcomes Promise = "outcomes"
	// Ordered: the events of an aggregate are applied in the order of their
	// writes.
	Ordered Promise = "ordered"
	// Once: an event has one effect.
	Once Promise = "once"
	// Unchanged: payload and headers arrive as they were written.
	Unchanged Promise = "unchanged"
	// Routed: an event arrives at its own topic and at no other.
	Routed Promise = "routed"
	// NotEarly: a delayed event is not published before it is due.
	NotEarly Promise = "not-early"
	// OneEffect: an idempotent request has one effect.
	OneEffect Promise = "one-effect"
	// SameAnswer: all answers of a request are the same.
	SameAnswer Promise = "same-answer"
	// Positions: no position and no epoch is issued twice.
	Positions Promise = "positions"
	// Fenced: a relay that lost a lane settles nothing of it.
	Fenced Promise = "fenced"
	// Duplicates: events are published again only after a relay failed, and at
	// most as many as it may have had in flight.
	Duplicates Promise = "duplicates"
	// Running: no process fails by itself.
	Running Promise = "running"
)

// promises are all promises, with their texts.
var promises = []struct { //nolint:gochecknoglobals // never changed
	name Promise
	text string
}{
	{Delivered, "every committed event is applied"},
	{CommittedOnly, "nothing that was rolled back is delivered"},
	{Outcomes, "a transaction has the outcome that its producer was told"},
	{Ordered, "events of an aggregate are applied in the order of their writes"},
	{Once, "an event has one effect, and the sums are right"},
	{Unchanged, "payload and headers arrive as written"},
	{Routed, "an event arrives at its topic and at no other"},
	{NotEarly, "a delayed event is not published before it is due"},
	{OneEffect, "an idempotent request has one effect"},
	{SameAnswer, "every answer of a request is the same"},
	{Positions, "a position and an epoch are issued once"},
	{Fenced, "a relay settles nothing of a lane that it has lost"},
	{Duplicates, "the duplicates are within their bound"},
	{Running, "no process fails by itself"},
}

// Finding is a broken promise, with the event, the request or the lane.
type Finding struct {
	Promise Promise `json:"promise"`
	Text    string  `json:"text"`
}

// kept is how many findings of a promise are kept; all are counted.
const kept = 10

// findings collects broken promises.
type findings struct {
	list   []Finding
	counts map[Promise]int
}

func (f *findings) add(p Promise, format string, args ...any) {
	if f.counts == nil {
		f.counts = make(map[Promise]int)
	}
	if f.counts[p]++; f.counts[p] <= kept {
		f.list = append(f.list, Finding{p, fmt.Sprintf(format, args...)})
	}
}

// sorted returns the findings in the order of the promises.
func (f *findings) sorted() []Finding {
	at := make(map[Promise]int)
	for i, p := range promises {
		at[p.name] = i
	}
	return slices.SortedStableFunc(slices.Values(f.list), func(a, b Finding) int { return cmp.Compare(at[a.Promise], at[b.Promise]) })
}

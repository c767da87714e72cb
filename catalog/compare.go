package catalog

import (
	"fmt"
	"slices"

	"github.com/waybillhq/waybill"
)

// Compatibility is a promise to consumers, in the terms of schema registries.
type Compatibility string

const (
	// Forward promises that consumers of the old catalog can read new events.
	Forward Compatibility = "forward"
	// Backward promises that consumers of the new catalog can read old events,
	// such as those in the outbox, its history and the broker's topics.
	Backward Compatibility = "backward"
	// Full is both.
	Full Compatibility = "full"
)

// Change is a difference between two catalogs.
type Change struct {
	// Type is the event type.
	Type string
	// Path is the place in the payload, such as "items[].price"; "" for changes
	// of the event itself.
	Path string
	// Text is a sentence about the change.
	Text string
	// BreaksForward reports that consumers of the old catalog may fail on new
	// events.
	BreaksForward bool
	// BreaksBackward reports that consumers of the new catalog may fail on old
	// events.
	BreaksBackward bool
}

// Breaks reports whether the change breaks the promise.
func (c Change) Breaks(promise Compatibility) bool {
	switch promise {
	case Forward:
		return c.BreaksForward
	case Backward:
		return c.BreaksBackward
	default:
		return c.BreaksForward || c.BreaksBackward
	}
}

// String returns the place and the sentence.
func (c Change) String() string {
	if c.Path == "" {
		return c.Type + ": " + c.Text
	}
	return c.Type + ": " + c.Path + ": " + c.Text
}

// Compare returns the changes from one catalog to a newer one, in the order of
// the event types. A change that Compare cannot judge counts as a break.
func Compare(before, after *Catalog) []Change {
	c := &comparison{before: before, after: after}
	old, added := slices.Clone(before.types), slices.Clone(after.types)
	for _, pair := range c.pairs(&old, &added) {
		c.event(pair[0], pair[1])
	}
	for _, t := range old {
		c.at(t.Name).add("", forward|backward, "the event type of %s was removed", aggregate(t))
	}
	for _, t := range added {
		c.at(t.Name).add("", 0, "the event type of %s is new", aggregate(t))
	}
	slices.SortStableFunc(c.changes, func(a, b Change) int {
		switch {
		case a.Type < b.Type:
			return -1
		case a.Type > b.Type:
			return 1
		}
		return 0
	})
	return c.changes
}

// breaks are the promises that a change breaks.
type breaks int

const (
	forward breaks = 1 << iota
	backward
)

// when returns b if a condition holds.
func (b breaks) when(holds bool) breaks {
	if holds {
		return b
	}
	return 0
}

type comparison struct {
	before, after *Catalog
	changes       []Change
	current       string
	// open are the pairs of references on the path to the current place.
	open map[[2]string]bool
}

// at sets the event type of the following changes.
func (c *comparison) at(eventType string) *comparison {
	c.current, c.open = eventType, map[[2]string]bool{}
	return c
}

func (c *comparison) add(path string, b breaks, format string, args ...any) {
	c.changes = append(c.changes, Change{
		Type: c.current, Path: path, Text: fmt.Sprintf(format, args...), BreaksForward: b&forward != 0, BreaksBackward: b&backward != 0,
	})
}

// pairs returns the event types that are in both lists, and removes them. A
// type that moved to another aggregate type is a pair if its name is unique.
func (c *comparison) pairs(old, added *[]EventType) [][2]EventType {
	var pairs [][2]EventType
	match := func(same func(o, n EventType) bool) {
		*old = slices.DeleteFunc(*old, func(o EventType) bool {
			i := slices.IndexFunc(*added, func(n EventType) bool { return same(o, n) })
			if i < 0 {
				return false
			}
			pairs = append(pairs, [2]EventType{o, (*added)[i]})
			*added = slices.Delete(*added, i, i+1)
			return true
		})
	}
	match(func(o, n EventType) bool { return o.Name == n.Name && o.AggregateType == n.AggregateType })
	match(func(o, n EventType) bool {
		return o.Name == n.Name && c.before.named(o.Name) == 1 && c.after.named(n.Name) == 1
	})
	return pairs
}

// named counts the event types of a name.
func (c *Catalog) named(name string) int {
	n := 0
	for _, t := range c.types {
		if t.Name == name {
			n++
		}
	}
	return n
}

func aggregate(t EventType) string {
	if t.AggregateType == waybill.GlobalAggregate {
		return "no aggregate"
	}
	return "aggregate type " + t.AggregateType
}

// event compares two versions of an event type.
func (c *comparison) event(o, n EventType) {
	c.at(o.Name)
	if o.AggregateType != n.AggregateType {
		c.add("", forward|backward, "the aggregate type went from %s to %s, and handlers are registered by it", o.AggregateType, n.AggregateType)
	}
	if o.Topic != n.Topic {
		c.add("", forward, "the topic went from %s to %s, and consumers of the old one receive nothing", o.Topic, n.Topic)
	}
	if o.SchemaID != n.SchemaID {
		c.add("", 0, "the schema id went from %q to %q", o.SchemaID, n.SchemaID)
	}
	if o.SchemaVersion != n.SchemaVersion {
		c.add("", (forward | backward).when(n.SchemaVersion < o.SchemaVersion), "the schema version went from %d to %d", o.SchemaVersion, n.SchemaVersion)
	}
	if o.ContentType != n.ContentType {
		c.add("", forward|backward, "the content type went from %s to %s", o.ContentType, n.ContentType)
	}
	if o.payload != nil && n.payload != nil {
		c.node("", o.payload, n.payload)
	}
}

package otelobserve

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// series is a set of labels, created once and passed to instruments without
// allocations.
type series struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

// overflow is the label of all series beyond the limit.
const overflow = "other"

// maxLabels is the maximum number of labels of a family.
const maxLabels = 3

type values [maxLabels]string

// family holds the series of all label values seen so far. A read is one lookup
// in an immutable map, because all workers of a relay call hooks concurrently.
// A new series replaces the map. Only the first label comes from outside, so
// only that one is limited; the others have a few values that this package
// defines.
type family struct {
	fixed  []attribute.KeyValue
	names  []string
	limit  int
	shared *budget // of several families; nil if there is none

	known  atomic.Pointer[map[values]*series]
	mu     sync.Mutex // held to replace known
	firsts map[string]bool
	rest   *series
}

func newFamily(fixed []attribute.KeyValue, limit int, names ...string) *family {
	f := &family{fixed: fixed, names: names, limit: limit, firsts: map[string]bool{}}
	f.known.Store(&map[values]*series{})
	f.rest = f.make(values{overflow, overflow, overflow})
	return f
}

// get returns the series with these label values.
func (f *family) get(label ...string) *series {
	s, _ := f.find(label...)
	return s
}

// find also reports whether the series is new.
func (f *family) find(label ...string) (s *series, isNew bool) {
	var v values
	copy(v[:], label)
	if s, ok := (*f.known.Load())[v]; ok {
		return s, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	known := *f.known.Load()
	if s, ok := known[v]; ok { // another goroutine added it before the lock
		return s, false
	}
	if !f.firsts[v[0]] && len(f.firsts) >= f.limit {
		return f.rest, false
	}
	if !f.firsts[v[0]] && !f.shared.take() {
		return f.rest, false
	}
	for i := range v {
		v[i] = strings.Clone(v[i]) // the label may be part of a large string
	}
	f.firsts[v[0]] = true
	s = f.make(v)
	known = maps.Clone(known)
	known[v] = s
	f.known.Store(&known)
	return s, true
}

func (f *family) make(v values) *series {
	attrs := append([]attribute.KeyValue(nil), f.fixed...)
	for i, name := range f.names {
		attrs = append(attrs, attribute.String(name, v[i]))
	}
	opt := metric.WithAttributeSet(attribute.NewSet(attrs...))
	return &series{add: []metric.AddOption{opt}, record: []metric.RecordOption{opt}}
}

// families are the label combinations of the metrics.
type families struct {
	plain, reason, what, unrouted            *family
	unavailable                              *family
	destination, destinationState            *family
	delivery                                 *deliveries
	kind                                     *family
	group, groupOutcome                      *family
	operation, operationOutcome              *family
	operationReason                          *family
	source, sourceClass, sourceClassRepeated *family
	job, jobOutcome                          *family
}

func newFamilies(relay string, limit int) families {
	var fixed []attribute.KeyValue
	if relay != "" {
		fixed = append(fixed, attribute.String("relay", relay))
	}
	of := func(names ...string) *family { return newFamily(fixed, limit, names...) }
	ofDestination := func(names ...string) *family { return newFamily(fixed, min(limit, maxDestinations), names...) }
	plain := of()
	return families{
		plain: plain, reason: of("reason"), what: of("what"), unrouted: of("event_type"),
		// The destinations of a sink, for example its topics.
		unavailable: of("destination"),
		destination: ofDestination("destination"), destinationState: ofDestination("destination", "state"),
		delivery: newDeliveries(fixed, limit, dispatch{
			plain: plain, eventType: of("event_type"), eventTypeClass: of("event_type", "class"), outcome: of("outcome"),
		}),
		kind:  of("kind"),
		group: of("group"), groupOutcome: of("group", "outcome"),
		operation: of("operation"), operationOutcome: of("operation", "outcome"),
		operationReason: of("operation", "reason"),
		source:          of("source"), sourceClass: of("source", "class"), sourceClassRepeated: of("source", "class", "redelivered"),
		// Prometheus defines a label "job" of its own.
		job: of("job_name"), jobOutcome: of("job_name", "outcome"),
	}
}

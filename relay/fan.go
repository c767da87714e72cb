package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// FanOut delivers every event to all sinks, one after the other. It joins the
// results of one event: the event is done when all sinks have it; otherwise
// [waybill.Classify] defines what the joined error means, and a retry goes only
// to the sinks that do not have the event yet. FanOut keeps in memory which
// sinks have an event, for the last 100,000 events that only some sinks have.
// After a restart or on another node all sinks get the event again, so each
// sink must tolerate duplicates, as any sink must. An event that an operator
// replays goes to all sinks.
//
// An event's destination is the combination of its destinations at the sinks:
// while one of them is unavailable, events of the same combination wait, and no
// others.
func FanOut(sinks ...waybill.Sink) waybill.Sink {
	if len(sinks) == 1 {
		return sinks[0]
	}
	f := &fan{sinks: sinks}
	serial := false
	for _, s := range sinks {
		if d, ok := s.(DestinationSink); ok {
			f.destined = append(f.destined, d)
		}
		_, one := s.(SerialSink)
		serial = serial || one
	}
	if serial {
		return serialFan{f}
	}
	return f
}

type fan struct {
	sinks    []waybill.Sink
	destined []DestinationSink // the sinks that have several destinations
	has      fanMemory
}

// serialFan is a fan with at least one serial sink.
type serialFan struct{ *fan }

func (serialFan) Serial() {}

// Destination implements [DestinationSink]. A sink with one destination adds
// nothing that distinguishes events.
func (f *fan) Destination(ev *waybill.Event) string {
	switch len(f.destined) {
	case 0:
		return ""
	case 1:
		return f.destined[0].Destination(ev)
	}
	var name strings.Builder
	for i, d := range f.destined {
		if i > 0 {
			name.WriteString(" + ")
		}
		_, _ = fanEscape.WriteString(&name, d.Destination(ev)) // a Builder never fails
	}
	return name.String()
}

// fanEscape keeps the names of two combinations distinct, whatever the names of
// their parts are.
var fanEscape = strings.NewReplacer(`\`, `\\`, `+`, `\+`)

// Deliver implements [waybill.Sink].
func (f *fan) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	has := f.has.recall(batch, len(f.sinks))
	failed := make([][]error, len(batch))
	part := make([]waybill.Delivery, 0, len(batch))
	index := make([]int, 0, len(batch))
	for n, s := range f.sinks {
		part, index = part[:0], index[:0]
		for i := range batch {
			if has.is(i, n) {
				continue
			}
			d := batch[i]
			// A sink must not settle for the others: without a claim it cannot.
			d.Claim = nil
			part, index = append(part, d), append(index, i)
		}
		if len(part) == 0 {
			continue
		}
		results := safely(ctx, s, part)
		for at, i := range index {
			switch {
			case len(results) != len(part):
				failed[i] = append(failed[i], waybill.Unavailable(fmt.Errorf("sink %d of FanOut: %w", n+1, errResults(len(results), len(part)))))
			case !succeeded(results[at]):
				failed[i] = append(failed[i], results[at])
			default:
				has.of(i)[n] = true
			}
		}
	}
	f.has.keep(batch, has, failed)
	errs := make([]error, len(batch))
	for i, list := range failed {
		if len(list) == 1 {
			errs[i] = list[0]
		} else {
			errs[i] = errors.Join(list...)
		}
	}
	return errs
}

// succeeded reports whether a sink has the event.
func succeeded(err error) bool {
	class, _ := waybill.Classify(err)
	return class == waybill.ClassDone
}

// having records which sinks have which deliveries of a batch.
type having struct {
	sinks int
	flags []bool
}

// of returns which sinks have the ith delivery.
func (h having) of(i int) []bool { return h.flags[i*h.sinks : (i+1)*h.sinks] }

func (h having) is(i, sink int) bool { return h.flags[i*h.sinks+sink] }

// fanKey identifies one series of deliveries of an event. A replay is another
// series: the operator wants the event to be delivered again.
type fanKey struct {
	id     waybill.ID
	replay int
	source *driver.Hub // the same id may come from two outboxes
}

func fanKeyOf(d *waybill.Delivery) fanKey {
	return fanKey{id: d.ID, replay: d.Replay, source: driver.ClaimOf(d).Source}
}

// fanMemory remembers which sinks have an event that others do not have yet. It
// has two generations: when the recent one is full it becomes the older one,
// and the contents of the older one are forgotten. Entries that are used move
// to the recent one.
type fanMemory struct {
	mu            sync.Mutex
	recent, older map[fanKey][]bool
}

// fanMost is the maximum number of events in a generation.
const fanMost = 50_000

// recall returns which sinks have which deliveries of a batch.
func (m *fanMemory) recall(batch []waybill.Delivery, sinks int) having {
	out := having{sinks: sinks, flags: make([]bool, len(batch)*sinks)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.empty() {
		return out
	}
	for i := range batch {
		key := fanKeyOf(&batch[i])
		has := m.recent[key]
		if has == nil {
			has = m.older[key]
		}
		copy(out.of(i), has)
	}
	return out
}

// keep records which sinks have the deliveries of a batch now, and forgets the
// events that all sinks have.
func (m *fanMemory) keep(batch []waybill.Delivery, has having, failed [][]error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range batch {
		done := len(failed[i]) == 0
		if done && m.empty() || !done && !slices.Contains(has.of(i), true) {
			continue
		}
		key := fanKeyOf(&batch[i])
		if done {
			delete(m.recent, key)
			delete(m.older, key)
			continue
		}
		if _, known := m.recent[key]; !known && len(m.recent) >= fanMost {
			m.older, m.recent = m.recent, nil
		}
		if m.recent == nil {
			m.recent = make(map[fanKey][]bool)
		}
		m.recent[key] = slices.Clone(has.of(i))
		delete(m.older, key)
	}
}

func (m *fanMemory) empty() bool { return len(m.recent)+len(m.older) == 0 }

package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay"
)

// destinationPlan is one of several destinations of the relays of a world.
type destinationPlan struct {
	relay.Destination          // without its sink
	kind              sinkKind // of its sink
	latency           time.Duration
	// luck scales the probabilities of the sink's faults.
	luck float64
	// topics are those that the filter takes; nil for all.
	topics []string
}

// manyShare is the share of worlds whose relays have several destinations.
const manyShare = 0.25

// eventTypes are the types of events of such worlds.
var eventTypes = []string{"Placed", "Paid", "Shipped"}

// drawDestinations draws the destinations of the relays, in some worlds. Their
// draws have a stream of their own: other worlds stay as they are.
func (p *plan) drawDestinations() {
	s := newStream(p.seed, "destinations")
	if p.single || !s.chance(manyShare) {
		return
	}
	p.sink = manySinks
	for p.events > 20_000 { // each event has several deliveries
		p.events /= 2
	}
	for i := range 2 + s.n(maxCopies-1) {
		p.to = append(p.to, p.drawDestination(s, i))
	}
	scale := pick(s, 0.1, 0.4, 1)
	for _, f := range allFaults() {
		if f >= sinkSlow && s.chance(0.6) {
			p.rate[f] = usualRates[f] * scale
			if slices.Contains(chaosFaults, f) {
				p.rate[f] = 1
			}
		}
	}
	if p.events > 5000 {
		p.rate[sinkSlow] /= float64(max(p.events/1500, 20))
	}
}

// drawDestination draws a destination.
func (p *plan) drawDestination(s *stream, i int) destinationPlan {
	d := destinationPlan{
		Destination: relay.Destination{
			Name:           fmt.Sprintf("to%d", i),
			Concurrency:    pick(s, 0, 0, 1, 2),
			MaxAttempts:    pick(s, 0, 0, 1, 3, -1),
			OnDead:         pick(s, relay.Continue, relay.Block),
			DeliverTimeout: pick(s, 0, 0, 0, 200*time.Millisecond, 3*time.Second),
			DivertAfter:    pick(s, 0, 0, time.Millisecond, 40*time.Millisecond, 5*time.Second, -1),
			PauseAfter:     pick(s, 0, -1, 2, 5),
		},
		kind:    pick(s, plainSink, destinationSink, orderedSink, orderedSink, serialSink),
		latency: max(pick(s, p.sinkLatency, p.sinkLatency, p.sinkLatency/10, 3*p.sinkLatency), time.Microsecond),
		luck:    pick(s, 0, 0.3, 1, 1, 3),
	}
	if p.events > 5000 {
		d.latency = min(d.latency, 20*time.Millisecond)
	}
	if s.chance(0.4) {
		d.BackoffBase = s.about(time.Millisecond, 5*time.Second)
		d.BackoffMax = max(d.BackoffBase, s.about(10*time.Millisecond, time.Minute))
	}
	if s.chance(0.2) {
		d.BackoffSeries = []time.Duration{s.about(time.Millisecond, time.Second), s.about(time.Millisecond, 20*time.Second)}
	}
	switch s.n(8) {
	case 0:
		d.Types = eventTypes[:1+s.n(2)]
	case 1:
		d.AggregateTypes = pick(s, []string{"thing"}, []string{waybill.GlobalAggregate}, []string{"thing", "other"})
	case 2:
		d.topics = []string{"d0", "d2"}
		d.Filter = func(ev *waybill.Event) bool { return slices.Contains(d.topics, ev.Topic) }
	default:
	}
	if s.chance(0.25) {
		usual := float64(p.events) / p.storm.Seconds()
		d.Rate = max(usual*pick(s, 0.3, 1, 3), float64(p.events)/300, 1)
	}
	return d
}

// takes reports whether the destination takes an event.
func (d *destinationPlan) takes(ev *waybill.Event) bool {
	among := func(list []string, name string) bool { return len(list) == 0 || slices.Contains(list, name) }
	kind := cmp.Or(ev.AggregateType, waybill.GlobalAggregate)
	return among(d.Types, ev.Type) && among(d.AggregateTypes, kind) && among(d.topics, ev.Topic)
}

func (d *destinationPlan) String() string {
	return fmt.Sprintf("%s: sink %s, luck %v, latency %v, concurrency %d, rate %v, attempts %d, backoff %v..%v %v, on dead %d, deliver timeout %v, "+
		"divert after %v, pause after %d, types %q, aggregate types %q, topics %q",
		d.Name, sinkNames[d.kind], d.luck, d.latency, d.Concurrency, d.Rate, d.MaxAttempts, d.BackoffBase, d.BackoffMax, d.BackoffSeries, d.OnDead,
		d.DeliverTimeout, d.DivertAfter, d.PauseAfter, d.Types, d.AggregateTypes, d.topics)
}

// divertAfter is how long the other destinations wait for it.
func (d *destinationPlan) divertAfter() time.Duration {
	if d.DivertAfter == 0 {
		return 250 * time.Millisecond
	}
	return d.DivertAfter
}

// policy is how failures are treated.
type policy struct {
	maxAttempts int
	base, max   time.Duration
	series      []time.Duration
}

// policyOf returns the policy for an event, or for an event at a destination.
func (p *plan) policyOf(ev *event) policy {
	c := &p.relay
	out := policy{maxAttempts: or(c.MaxAttempts, 10), base: c.BackoffBase, max: c.BackoffMax, series: c.BackoffSeries}
	if ev.parent == nil {
		return out
	}
	d := &p.to[ev.to]
	out.maxAttempts = or(d.MaxAttempts, out.maxAttempts)
	if d.BackoffBase > 0 {
		out.base, out.max = d.BackoffBase, d.BackoffMax
	}
	if d.BackoffBase > 0 || d.BackoffSeries != nil {
		out.series = d.BackoffSeries
	}
	return out
}

// isOrdered reports whether the sink of an event accepts several events of an
// aggregate in a batch.
func (p *plan) isOrdered(ev *event) bool {
	if ev.parent != nil {
		return p.to[ev.to].kind == orderedSink
	}
	return p.sink == orderedSink
}

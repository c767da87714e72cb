package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill/relay"
)

// cut is what a replay leaves out of the plan of a seed: the result of
// shrinking.
type cut struct {
	seed   uint64
	nodes  int // maximum; 0 is no limit
	events int // maximum; 0 is no limit
	// single leaves destinations out: the relays have one sink. to is the
	// maximum number of destinations; 0 is no limit.
	single bool
	to     int
	off    []fault
}

// String returns the cut as the value of -sim.replay.
func (c cut) String() string {
	text := "seed=" + strconv.FormatUint(c.seed, 10)
	if c.nodes > 0 {
		text += ",nodes=" + strconv.Itoa(c.nodes)
	}
	if c.events > 0 {
		text += ",events=" + strconv.Itoa(c.events)
	}
	if c.single {
		text += ",single"
	}
	if c.to > 0 {
		text += ",to=" + strconv.Itoa(c.to)
	}
	if len(c.off) > 0 {
		names := make([]string, len(c.off))
		for i, f := range c.off {
			names[i] = f.String()
		}
		text += ",off=" + strings.Join(names, "+")
	}
	return text
}

// parseCut reads what String writes.
func parseCut(text string) (cut, error) {
	var c cut
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(part, "=")
		var err error
		switch key {
		case "seed":
			c.seed, err = strconv.ParseUint(value, 10, 64)
		case "nodes":
			c.nodes, err = strconv.Atoi(value)
		case "events":
			c.events, err = strconv.Atoi(value)
		case "single":
			c.single = true
		case "to":
			c.to, err = strconv.Atoi(value)
		case "off":
			for name := range strings.SplitSeq(value, "+") {
				f, ok := faultOf(name)
				if !ok {
					err = fmt.Errorf("no fault %q", name)
				}
				c.off = append(c.off, f)
			}
		default:
			err = fmt.Errorf("unknown key %q", key)
		}
		if err != nil {
			return cut{}, fmt.Errorf("sim: replay %q: %w", text, err)
		}
	}
	return c, nil
}

// sinkKind is a type of sink.
type sinkKind int

const (
	plainSink sinkKind = iota
	destinationSink
	orderedSink
	serialSink
	fanSink
	routeSink
	manySinks  // a relay with several destinations
	brokerSink // a broker with consumers
	groupSink  // a consumer group on the same database
)

var sinkNames = []string{"plain", "destinations", "ordered", "serial", "fan", "route", "many", "broker", "group"}

// plan is everything that is decided before a world begins.
type plan struct {
	cut
	nodes, lanes         int
	aggregates, events   int
	txEvents             int // maximum of events in one transaction
	writers              int // concurrent writers of each process
	destinations         int
	tenants              int // one of them has most events; 0: events have no tenants
	storm                time.Duration
	sink                 sinkKind
	locks                bool // transactions of one aggregate exclude each other
	knowsWriters         bool // the store reports open transactions
	keys, keyCallers     int
	relay                relay.Config
	rate                 [faults]float64 // probability per opportunity
	chaos                time.Duration   // mean time between faults of processes and the server
	latency, sinkLatency time.Duration
	maxPut               time.Duration     // the longest delay that events and sinks ask for
	to                   []destinationPlan // destinations of the relay; none if it has one sink
}

// newPlan draws a plan. The cut changes the result and none of the draws.
func newPlan(c cut) plan {
	s := newStream(c.seed, "plan")
	p := plan{cut: c}
	p.drawSize(s)
	p.drawRelay(s)
	p.drawRates(s)
	p.drawDestinations()
	p.drawTenants()
	if c.nodes > 0 {
		p.nodes = min(p.nodes, c.nodes)
	}
	if c.events > 0 {
		p.events = min(p.events, c.events)
	}
	if c.to > 0 {
		p.to = p.to[:min(len(p.to), c.to)]
	}
	for _, f := range c.off {
		p.rate[f] = 0
	}
	return p
}

// drawSize draws the size of the world: many small ones with many faults, and
// some with many events.
func (p *plan) drawSize(s *stream) {
	p.nodes = pick(s, 1, 1, 2, 2, 3, 4)
	p.lanes = pick(s, 1, 1, 2, 3, 4, 8, 16, 32, 64)
	switch size := s.float(); {
	case size < 0.70:
		p.events, p.txEvents, p.aggregates = 10+s.n(250), 1+s.n(4), 1+s.n(8)
	case size < 0.80:
		p.events, p.txEvents, p.aggregates = 300+s.n(1500), 1+s.n(20), 1+s.n(60)
	case size < 0.97:
		p.events, p.txEvents, p.aggregates = 8000+s.n(25000), 100+s.n(400), 50+s.n(2000)
	default:
		p.events, p.txEvents, p.aggregates = 100_000+s.n(200_000), 300+s.n(700), 500+s.n(5000)
	}
	p.writers = 1 + s.n(3)
	p.destinations = 1 + s.n(4)
	p.sink = pick(s, plainSink, destinationSink, destinationSink, orderedSink, orderedSink, serialSink, fanSink, routeSink,
		brokerSink, brokerSink, groupSink, groupSink, groupSink)
	if p.events > 5000 && p.sink >= brokerSink {
		p.sink = orderedSink
	}
	p.locks = !s.chance(0.15)
	p.knowsWriters = !s.chance(0.1)
	p.latency = pick(s, 100*time.Microsecond, time.Millisecond, 5*time.Millisecond)
	p.sinkLatency = pick(s, 50*time.Microsecond, time.Millisecond, 20*time.Millisecond)
	if p.events < 300 && s.chance(0.25) {
		p.sinkLatency = 300 * time.Millisecond // lanes move while suspects wait for their turn
	}
	if s.chance(0.4) {
		p.keys, p.keyCallers = 1+s.n(60), 1+s.n(4)
	}
}

// drawTenants draws the tenants, in some worlds. Their draws have a stream of
// their own.
func (p *plan) drawTenants() {
	if s := newStream(p.seed, "tenants"); s.chance(0.4) {
		p.tenants = 2 + s.n(6)
	}
}

// drawRelay draws the settings of the relay, unusual ones included.
func (p *plan) drawRelay(s *stream) {
	c := &p.relay
	c.Workers = pick(s, 0, 1, 2, 3, 8)
	c.BatchSize = pick(s, 0, 1, 2, 3, 7, 50)
	c.HotQueue = pick(s, 0, -1, 1, 3, 50)
	c.ColdQueue = pick(s, 0, 0, 1, 2, 5, 30)
	c.MaxBytes = pick(s, 0, 0, 1, 10, 100) // payloads of two bytes
	if p.events > 5000 {
		c.MaxBytes = 0
		c.BatchSize, c.ColdQueue = pick(s, 0, 100, 500), pick(s, 0, 200, 2000)
	}
	if p.events > 50_000 {
		c.BatchSize, c.ColdQueue, c.Workers = 1000, 8000, 8
	}
	c.MaxAttempts = pick(s, 0, 1, 2, 3, 5, -1)
	c.BackoffBase = s.about(time.Millisecond, 5*time.Second)
	c.BackoffMax = max(c.BackoffBase, s.about(10*time.Millisecond, time.Minute))
	if s.chance(0.25) {
		for range 1 + s.n(4) {
			c.BackoffSeries = append(c.BackoffSeries, s.about(time.Millisecond, 20*time.Second))
		}
	}
	c.OnDead = pick(s, relay.Continue, relay.Block)
	c.DeliverTimeout = pick(s, 0, 0, 50*time.Millisecond, 2*time.Second)
	if p.sink == groupSink && c.DeliverTimeout > 0 {
		c.DeliverTimeout = 2 * time.Second // batches take longer, handlers do not
	}
	c.Lease = pick(s, time.Second, 3*time.Second, 15*time.Second, 40*time.Second)
	c.PollInterval = pick(s, 20*time.Millisecond, 200*time.Millisecond, 0, 10*time.Second)
	c.Linger = pick(s, 0, 0, -1, 50*time.Millisecond)
	c.SweepInterval = pick(s, 0, 100*time.Millisecond, 10*time.Second)
	c.DrainTimeout = pick(s, 0, -1, 100*time.Millisecond, 5*time.Second)
	c.HistoryRetention = pick(s, 0, -1, time.Minute)
	c.PurgeInterval = pick(s, 0, -1, 20*time.Second)
	c.PurgeBatchSize = pick(s, 0, 1, 20)
	poll := c.PollInterval
	if poll == 0 {
		poll = 2 * time.Second
	}
	p.storm = min(s.about(5*time.Second, 4*time.Hour), 1500*poll, 5000*min(c.Lease/3, time.Second))
	p.maxPut = min(s.about(10*time.Millisecond, 10*time.Minute), p.storm)
	p.chaos = s.about(p.storm/100, p.storm)
}

// drawRates draws which faults happen, and how often. Few kinds together show
// clearly what they do; all kinds together find what no list contains.
func (p *plan) drawRates(s *stream) {
	share := pick(s, 0.1, 0.3, 0.5, 0.8)
	for _, f := range allFaults() {
		if f >= sinkSlow { // of destinations, which have draws of their own
			break
		}
		likely := share
		if f >= messageTwice { // most worlds have neither consumers nor callers
			likely = max(share, 0.6)
		}
		on, scale := s.chance(likely), pick(s, 0.1, 0.4, 1)
		if on {
			p.rate[f] = usualRates[f] * scale
		}
	}
	if p.events > 5000 { // as many faults as in other worlds, spread over more events
		for f := range p.rate {
			p.rate[f] /= float64(max(p.events/1500, 20))
		}
	}
	for _, f := range chaosFaults {
		if p.rate[f] > 0 {
			p.rate[f] = 1
		}
	}
}

// usualRates are the probabilities per opportunity: a call, a transaction, a
// delivery.
var usualRates = [faults]float64{
	callRefused: 0.02, callDelayed: 0.02, answerDelayed: 0.02, answerLost: 0.02, appliedLate: 0.01, crashBefore: 0.002, crashAfter: 0.003,
	settlementLost: 0.05,
	lateCommit:     0.2, rollback: 0.1, commitLost: 0.05, commitRefused: 0.05, commitUnknown: 0.05, announcement: 0.3, oldSavepoint: 0.1,
	dedupAbsorbed: 0.2, delayedEvent: 0.15, urgentEvent: 0.2, unorderedEvent: 0.4,
	sinkRetry: 0.1, sinkRetryAfter: 0.05, sinkPermanent: 0.04, sinkDefer: 0.05, sinkUnavailable: 0.05, sinkHang: 0.01, sinkLate: 0.01,
	sinkLies: 0.03, sinkPanic: 0.02, sinkShort: 0.01, sinkKills: 0.005, sinkPoison: 0.01,
	messageTwice: 0.5, messageReordered: 0.5, handlerFails: 0.3, handlerKills: 0.05, handlerSlow: 0.2, callerSlow: 0.6,
	callerRepeats: 0.7, callerTogether: 0.6, callerDies: 0.2, pageTooLarge: 0.1,
	sinkSlow: 0.05,
	outage:   1, partition: 1, serverRestart: 1, sequenceJumps: 1, sequenceBack: 1, clockStep: 1, processCrash: 1, processPause: 1,
	processStop: 1, processTwins: 1, sinkDown: 1, operatorReplay: 1, operatorDiscard: 1, operatorUnblock: 1,
	destinationPaused: 1, destinationProbed: 1, operatorRefill: 1,
}

// chaosFaults happen to the world from time to time, whatever it does.
var chaosFaults = []fault{
	outage, partition, serverRestart, sequenceJumps, sequenceBack, clockStep, processCrash, processPause, processStop, processTwins,
	sinkDown, operatorReplay, operatorDiscard, operatorUnblock, destinationPaused, destinationProbed, operatorRefill,
}

// on returns the faults of a list that happen in this world.
func (p *plan) on(list []fault) []fault {
	return slices.DeleteFunc(slices.Clone(list), func(f fault) bool { return p.rate[f] == 0 })
}

// describe returns the plan in a few lines.
func (p *plan) describe() string {
	c := &p.relay
	var on []string
	for _, f := range allFaults() {
		if p.rate[f] > 0 {
			on = append(on, f.String())
		}
	}
	text := fmt.Sprintf(
		"%d nodes, %d lanes, %d events of %d aggregates and %d tenants in transactions of up to %d, sink %s with %d destinations, storm %v\n"+
			"workers %d, batch %d, hot %d, cold %d, attempts %d, backoff %v..%v %v, on dead %d, deliver timeout %v, lease %v, poll %v, "+
			"linger %v, sweep %v, drain %v, history %v, locks %v, knows writers %v\nfaults: %s",
		p.nodes, p.lanes, p.events, p.aggregates, p.tenants, p.txEvents, sinkNames[p.sink], p.destinations, p.storm.Round(time.Millisecond),
		c.Workers, c.BatchSize, c.HotQueue, c.ColdQueue, c.MaxAttempts, c.BackoffBase, c.BackoffMax, c.BackoffSeries, c.OnDead, c.DeliverTimeout,
		c.Lease, c.PollInterval, c.Linger, c.SweepInterval, c.DrainTimeout, c.HistoryRetention, p.locks, p.knowsWriters, strings.Join(on, " "),
	)
	for i := range p.to {
		text += "\n" + p.to[i].String()
	}
	return text
}

package soak

import (
	"math/rand/v2"
	"time"
)

// The kinds of faults.
const (
	kill      = "kill"
	pauseLong = "pause beyond the lease"
	pauseHalf = "pause"
	stop      = "stop"
)

// fault is a fault that the parent injects into a child.
type fault struct {
	at   time.Duration // since the beginning
	kind string
	role string
	who  int
	long time.Duration // of a pause
}

// harms are the kinds of faults and their weights.
var harms = []struct { //nolint:gochecknoglobals // never changed
	kind, role string
	weight     int
}{
	{kill, roleRelay, 25},
	{pauseHalf, roleRelay, 10},
	{pauseLong, roleRelay, 10},
	{stop, roleRelay, 10},
	{kill, roleConsumer, 7},
	{pauseHalf, roleConsumer, 4},
	{stop, roleConsumer, 4},
	{kill, roleProducer, 10},
	{kill, roleRequester, 7},
}

// plan draws the faults from the seed alone, one after the other.
type plan struct {
	random *rand.Rand
	mean   time.Duration
	lease  time.Duration
	spared string // a role without faults
	always string // the only kind of fault of relays; "": any
	next   fault
}

func newPlan(seed uint64, mean, lease time.Duration, spared string) *plan {
	p := &plan{random: rand.New(rand.NewPCG(seed, 7)), mean: mean, lease: lease, spared: spared} //nolint:gosec // a schedule, not a secret
	p.draw()
	return p
}

// draw draws the next fault.
func (p *plan) draw() {
	f := fault{at: p.next.at + time.Duration((0.2+p.random.ExpFloat64())*0.8*float64(p.mean))}
	total := 0
	for _, h := range harms {
		total += h.weight
	}
	n := p.random.IntN(total)
	for _, h := range harms {
		f.kind, f.role = h.kind, h.role
		if n -= h.weight; n < 0 {
			break
		}
	}
	f.who = p.random.IntN(1 << 16)
	if f.role == roleRelay && p.always != "" {
		f.kind = p.always
	}
	share := p.random.Float64()
	switch f.kind {
	case pauseLong:
		f.long = time.Duration((1.2 + share) * float64(p.lease))
	case pauseHalf:
		f.long = time.Duration((0.1 + share*0.6) * float64(p.lease))
	}
	p.next = f
}

// due returns the faults until a time.
func (p *plan) due(until time.Duration) []fault {
	var out []fault
	for p.next.at <= until {
		if p.next.role != p.spared && (canPause || p.next.long == 0) {
			out = append(out, p.next)
		}
		p.draw()
	}
	return out
}

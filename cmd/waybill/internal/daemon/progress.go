package daemon

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/waybillhq/waybill/observe"
)

// Progress tracks whether a relay makes progress. A running process is not
// enough: a relay whose reads hang, or whose sink does not return, delivers
// nothing.
type Progress struct {
	mu     sync.Mutex
	read   time.Time // the last successful read
	beat   time.Time // the last successful heartbeat
	calls  map[int]call
	next   int
	owned  int
	total  int
	paused map[string]bool
	// destinations is the number of destinations; 0 with one sink.
	destinations int
}

// call is a call of a sink in flight.
type call struct {
	began       time.Time
	destination string
}

// Report is the progress of a relay.
type Report struct {
	// Read is the time of the last successful read of the tables; zero if there
	// was none.
	Read time.Time
	// Beat is the time of the last renewal of the lease; zero if there was
	// none.
	Beat time.Time
	// Calling is the start of the longest call of the sink in flight; zero if
	// there is none.
	Calling time.Time
	// Owned and Total are numbers of lanes.
	Owned, Total int
	// Paused are the names of the unavailable destinations, in order. If a
	// relay has several destinations, names begin with that of the destination.
	Paused []string
}

// Report returns the progress of the relay.
func (p *Progress) Report() Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := Report{Read: p.read, Beat: p.beat, Owned: p.owned, Total: p.total}
	for _, c := range p.calls {
		if r.Calling.IsZero() || c.began.Before(r.Calling) {
			r.Calling = c.began
		}
	}
	r.Paused = slices.Sorted(maps.Keys(p.paused))
	return r
}

// Slow returns the names of the destinations with a call that takes longer than
// a limit, in order; a relay with one sink has a destination without a name.
func (p *Progress) Slow(limit time.Duration) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := make(map[string]bool)
	for _, c := range p.calls {
		if time.Since(c.began) > limit {
			names[c.destination] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// Stuck returns the reason why the relay makes no progress, or "": the last
// read is older than a limit, or calls of the sink take longer. One of several
// destinations does not stop the others, so the relay is stuck only if calls of
// all of them take longer. A relay without lanes does not read; it makes
// progress as long as its heartbeats succeed.
func (p *Progress) Stuck(limit time.Duration) string {
	r := p.Report()
	if standby := r.Owned == 0 && r.Beat.After(r.Read); standby {
		if time.Since(r.Beat) > limit {
			return "no renewal of the lease for longer than " + limit.String()
		}
		return ""
	}
	switch {
	case r.Read.IsZero():
		return "the tables have not been read yet"
	case time.Since(r.Read) > limit:
		return "no successful read of the tables for longer than " + limit.String()
	case len(p.Slow(limit)) >= max(p.destinations, 1):
		if p.destinations > 0 {
			return "calls of all destinations take longer than " + limit.String()
		}
		return "a call of the sink takes longer than " + limit.String()
	}
	return ""
}

// watch returns hooks that update p and then call next.
func (p *Progress) watch(next observe.Hooks) observe.Hooks {
	all := next
	all.Read = func(info observe.ReadInfo) {
		if info.Err == nil {
			p.mu.Lock()
			p.read = time.Now()
			p.mu.Unlock()
		}
		if next.Read != nil {
			next.Read(info)
		}
	}
	all.Deliver = func(ctx context.Context, info observe.DeliverInfo) (context.Context, func(observe.DeliverDoneInfo)) {
		ended := p.call(info.Destination)
		var after func(observe.DeliverDoneInfo)
		if next.Deliver != nil {
			ctx, after = next.Deliver(ctx, info)
		}
		return ctx, func(done observe.DeliverDoneInfo) {
			ended()
			if after != nil {
				after(done)
			}
		}
	}
	all.QueueDepths = func(info observe.QueueDepthsInfo) { // called after every heartbeat
		p.mu.Lock()
		p.beat = time.Now()
		p.mu.Unlock()
		if next.QueueDepths != nil {
			next.QueueDepths(info)
		}
	}
	all.Lanes = func(info observe.LanesInfo) {
		p.mu.Lock()
		p.owned, p.total = info.Owned, info.Total
		p.mu.Unlock()
		if next.Lanes != nil {
			next.Lanes(info)
		}
	}
	all.Paused = func(info observe.PausedInfo) {
		p.Pause(info.Destination, info.Paused)
		if next.Paused != nil {
			next.Paused(info)
		}
	}
	return all
}

// call records the start of a call of the sink; the returned function records
// its end.
func (p *Progress) call(destination string) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls == nil {
		p.calls = make(map[int]call)
	}
	p.next++
	id := p.next
	p.calls[id] = call{time.Now(), destination}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.calls, id)
	}
}

// Pause records that a destination is unavailable, or available again.
func (p *Progress) Pause(destination string, paused bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !paused {
		delete(p.paused, destination)
		return
	}
	if p.paused == nil {
		p.paused = make(map[string]bool)
	}
	p.paused[destination] = true
}

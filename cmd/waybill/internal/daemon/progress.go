package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
)

// Progress watches whether a relay gets anywhere. A process that runs is not one that works: a relay whose reads hang, or whose sink does
// not return, is alive and useless.
type Progress struct {
	mu     sync.Mutex
	read   time.Time // the last that succeeded
	beat   time.Time // the last heartbeat that did
	calls  map[int]time.Time
	next   int
	owned  int
	total  int
	paused map[string]bool
}

// Report is how a relay gets on.
type Report struct {
	// Read is when the tables were last read with success; zero if they never were.
	Read time.Time
	// Beat is when the lease was last renewed; zero if it never was.
	Beat time.Time
	// Calling is since when the longest call of the sink is under way; zero if none is.
	Calling time.Time
	// Owned and Total are lanes.
	Owned, Total int
	// Paused are destinations that are down.
	Paused []string
}

// Report returns how the relay gets on.
func (p *Progress) Report() Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := Report{Read: p.read, Beat: p.beat, Owned: p.owned, Total: p.total}
	for _, since := range p.calls {
		if r.Calling.IsZero() || since.Before(r.Calling) {
			r.Calling = since
		}
	}
	for name := range p.paused {
		r.Paused = append(r.Paused, name)
	}
	return r
}

// Stuck returns why the relay does not get anywhere, or "": it has not read for longer than a limit, or a call of the sink takes longer. One whose
// lanes other nodes have does not read: it gets on as long as its heartbeat does.
func (p *Progress) Stuck(limit time.Duration) string {
	r := p.Report()
	if standby := r.Owned == 0 && r.Beat.After(r.Read); standby {
		if time.Since(r.Beat) > limit {
			return "it could not renew its lease for longer than " + limit.String()
		}
		return ""
	}
	switch {
	case r.Read.IsZero():
		return "it has not read the tables yet"
	case time.Since(r.Read) > limit:
		return "it could not read the tables for longer than " + limit.String()
	case !r.Calling.IsZero() && time.Since(r.Calling) > limit:
		return "a call of the sink takes longer than " + limit.String()
	}
	return ""
}

// watch returns hooks that tell p, and then whoever else wants to know.
func (p *Progress) watch(next observe.Hooks) observe.Hooks {
	all := next
	all.Read = func(kind string, rows int, took time.Duration, err error) {
		if err == nil {
			p.mu.Lock()
			p.read = time.Now()
			p.mu.Unlock()
		}
		if next.Read != nil {
			next.Read(kind, rows, took, err)
		}
	}
	all.Deliver = func(ctx context.Context, batch []waybill.Delivery) (context.Context, func([]error)) {
		done := p.call()
		var after func([]error)
		if next.Deliver != nil {
			ctx, after = next.Deliver(ctx, batch)
		}
		return ctx, func(results []error) {
			done()
			if after != nil {
				after(results)
			}
		}
	}
	all.QueueDepths = func(hot, cold int) { // told after every heartbeat
		p.mu.Lock()
		p.beat = time.Now()
		p.mu.Unlock()
		if next.QueueDepths != nil {
			next.QueueDepths(hot, cold)
		}
	}
	all.Lanes = func(owned, total int) {
		p.mu.Lock()
		p.owned, p.total = owned, total
		p.mu.Unlock()
		if next.Lanes != nil {
			next.Lanes(owned, total)
		}
	}
	all.Paused = func(destination string, paused bool) {
		p.Pause(destination, paused)
		if next.Paused != nil {
			next.Paused(destination, paused)
		}
	}
	return all
}

// call notes that a call of the sink begins; the function, that it has ended.
func (p *Progress) call() func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls == nil {
		p.calls = make(map[int]time.Time)
	}
	p.next++
	id := p.next
	p.calls[id] = time.Now()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.calls, id)
	}
}

// Pause notes that a destination is down, or up again.
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

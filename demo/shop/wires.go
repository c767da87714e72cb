package shop

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
)

// publishing is the wire between the relay and the broker, with its faults.
type publishing struct {
	to     waybill.Sink
	faults *faults
	down   atomic.Int64 // end of the outage of the destination, in Unix nanoseconds
	extra  atomic.Int64 // replay numbers of messages that were published twice
}

// firstExtra separates the replay numbers of second messages from those of an
// operator's replays.
const firstExtra = 1000

// Deliver implements [waybill.Sink].
func (p *publishing) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	if time.Now().UnixNano() < p.down.Load() {
		return all(batch, waybill.Unavailable(errInjected))
	}
	results := p.to.Deliver(ctx, batch)
	for i := range batch {
		if results[i] != nil {
			continue
		}
		if p.faults.strikes(publishTwice) {
			copied := batch[i]
			copied.Replay = firstExtra + int(p.extra.Add(1)) // the broker drops a message with the same number
			if err := p.to.Deliver(ctx, []waybill.Delivery{copied})[0]; err != nil {
				p.faults.arm(publishTwice)
			}
		}
		if p.faults.strikes(pubackLost) {
			results[i] = errInjected
		}
	}
	return results
}

// fail makes the destination unavailable for a while.
func (p *publishing) fail(d time.Duration) { p.down.Store(time.Now().Add(d).UnixNano()) }

func all(batch []waybill.Delivery, err error) []error {
	results := make([]error, len(batch))
	for i := range results {
		results[i] = err
	}
	return results
}

// consuming is the wire between the line and an inventory in this process.
type consuming struct {
	to     waybill.Sink
	moment func(ctx context.Context, what moment) answer
}

// Deliver implements [waybill.Sink].
func (c *consuming) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	results := c.to.Deliver(ctx, batch)
	for _, err := range results {
		if err == nil && c.moment(ctx, committed) == dies {
			return all(batch, waybill.Later(0, errInjected)) // committed, and not acknowledged
		}
	}
	return results
}

// saboteur is a line that breaks a promise, unnoticed by the other parts.
type saboteur struct {
	kind  Sabotage
	to    waybill.Sink
	again func(ctx context.Context, ev waybill.Event) error // applies an event outside the inbox

	mu     sync.Mutex
	seen   map[waybill.ID]bool
	victim waybill.ID        // the affected event
	held   *waybill.Delivery // waits for its successor
}

// sabotageAt is the number of the affected event: in the middle, and neither
// the first nor the last of a product.
const sabotageAt = 12

// Deliver implements [waybill.Sink].
func (s *saboteur) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	results := make([]error, len(batch))
	for i, d := range batch {
		results[i] = s.deliver(ctx, d)
	}
	return results
}

// deliver passes one event on, or sabotages it. The events of a product arrive
// one after another, so the lock delays only other products.
func (s *saboteur) deliver(ctx context.Context, d waybill.Delivery) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.victim.IsZero() {
		known := s.seen[d.ID] // a repeated event may have been applied: losing it would have no effect
		s.seen[d.ID] = true
		if known || len(s.seen) < sabotageAt {
			return one(ctx, s.to, d)
		}
		if s.kind == Double {
			return s.double(ctx, d)
		}
		s.victim = d.ID
		if s.kind == Reorder {
			s.held = &d
		}
	}
	switch {
	case d.ID == s.victim && (s.kind == Lose || s.held != nil):
		return nil // always reports success
	case s.held != nil && d.AggregateID == s.held.AggregateID:
		return s.swap(ctx, d)
	}
	return one(ctx, s.to, d)
}

// double applies an event through the inbox, and once more outside of it.
func (s *saboteur) double(ctx context.Context, d waybill.Delivery) error {
	if err := one(ctx, s.to, d); err != nil {
		return err
	}
	err := s.again(ctx, d.Event)
	if err == nil {
		s.victim = d.ID
	}
	return nil // a failed attempt is repeated with the next message
}

// swap applies an event before the held one.
func (s *saboteur) swap(ctx context.Context, d waybill.Delivery) error {
	if err := one(ctx, s.to, d); err != nil {
		return err
	}
	if err := one(ctx, s.to, *s.held); err != nil {
		return waybill.Later(10*time.Millisecond, err) // the successor is redelivered without effect, and the held event is retried
	}
	s.held = nil
	return nil
}

func one(ctx context.Context, to waybill.Sink, d waybill.Delivery) error {
	return to.Deliver(ctx, []waybill.Delivery{d})[0]
}

// again applies an event like the inventory, without its inbox.
func (s *shop) again(ctx context.Context, ev waybill.Event) error {
	p, err := OrderPlaced.Decode(ev)
	if err != nil {
		return err
	}
	return s.box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error { return apply(ctx, tx, ev, p) })
}

// part is a part of the demo that runs, and can be stopped and restarted.
type part struct {
	run func(ctx context.Context) error // one run

	mu   sync.Mutex
	kill context.CancelFunc
}

// keep runs the part until ctx ends, and restarts it after each end.
func (p *part) keep(ctx context.Context) error {
	for ctx.Err() == nil {
		life, kill := context.WithCancel(ctx)
		p.mu.Lock()
		p.kill = kill
		p.mu.Unlock()
		err := p.run(life)
		killed := life.Err() != nil
		kill()
		if err != nil {
			return err
		}
		if !killed {
			return errors.New("demo: a part ended unexpectedly")
		}
	}
	return nil
}

// restart ends the current run. It does not wait.
func (p *part) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kill != nil {
		p.kill()
	}
}

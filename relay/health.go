package relay

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Health is the state of a relay at one moment.
type Health struct {
	// Running means that [Relay.Run] or [Relay.Once] is at work. All other
	// fields are zero otherwise.
	Running bool
	// Joined means that the first heartbeat has succeeded.
	Joined bool
	// LeaseLeft is how long this node may deliver without another heartbeat.
	LeaseLeft time.Duration
	// Lanes is the number of lanes that this node owns, of TotalLanes. A node
	// without lanes is a standby if there are more nodes than lanes.
	Lanes, TotalLanes int
	// Blind means that the tables cannot be read: a read or a heartbeat failed,
	// or a read takes more than 5 s.
	Blind bool
	// LastRead is when the last successful read of new events began; the zero
	// time if there was none.
	LastRead time.Time
	// Unavailable are the names of unavailable destinations: a topic, a branch
	// of a Route, a Destination, or Config.SinkName for a sink that is one
	// destination. The relay probes them; they do not make it unhealthy.
	Unavailable []string
}

// Err returns nil if the relay runs, owns its lease and can read the tables;
// otherwise the error describes the problem. A readiness probe may use it. A
// liveness probe should not: a restart does not repair a database.
func (h Health) Err() error {
	switch {
	case !h.Running:
		return errors.New("relay: not running")
	case !h.Joined:
		return errors.New("relay: no heartbeat yet")
	case h.LeaseLeft <= 0:
		return errors.New("relay: the lease has lapsed: heartbeats fail")
	case h.Blind && h.LastRead.IsZero():
		return errors.New("relay: the tables cannot be read")
	case h.Blind:
		return fmt.Errorf("relay: the tables cannot be read; the last read began at %s", h.LastRead.UTC().Format(time.RFC3339))
	}
	return nil
}

// Health returns the state of the relay. It is safe for concurrent use, does
// not query the database, and returns at once.
func (r *Relay) Health() Health {
	e := r.engine.Load()
	if e == nil {
		return Health{}
	}
	ask := make(chan Health, 1)
	select {
	case e.asks <- ask:
		return <-ask
	case <-e.ended:
		return Health{}
	}
}

// health returns the state of the engine.
func (e *engine) health(now time.Time) Health {
	h := Health{
		Running: true, Joined: e.member.joined, Lanes: e.main.ledger.LaneCount(), TotalLanes: e.total,
		Blind: e.seen.blind(now, e.main.reading), LastRead: e.seen.good,
	}
	if h.Joined {
		h.LeaseLeft = max(e.member.lapse.Sub(now), 0)
	}
	for _, q := range e.queues {
		for _, d := range q.ledger.Unavailable() {
			h.Unavailable = append(h.Unavailable, cmp.Or(q.destination(d.Destination), e.cfg.SinkName))
		}
	}
	return h
}

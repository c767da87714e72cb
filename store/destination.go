package store

import "time"

// Destination is a named receiver of an outbox's events. Each destination has a
// backlog: the events that it has yet to receive although they have left the
// outbox.
type Destination struct {
	// Number identifies the rows of the destination's backlog. The number of a
	// removed destination may be used again.
	Number int
	Name   string
	// PausedAt is the time at which an operator or the relay paused the
	// destination; zero if it is not paused. Reason is the reason.
	PausedAt time.Time
	Reason   string
	// ProbeAt is when an operator last asked the relays to try the destination
	// although it is unavailable; zero if never.
	ProbeAt time.Time
	// CreatedAt is the time at which the destination was registered.
	CreatedAt time.Time
}

// IsPaused reports whether the relay passes no events to the destination.
func (d Destination) IsPaused() bool { return !d.PausedAt.IsZero() }

package ledger

import "time"

// chase makes a relay read more often while other processes commit events,
// which nothing announces to it. Notifications of the store only start it: they
// come late, and some stores have none.
type chase struct {
	// share is the approximate share of new events that no writer of this
	// process has announced.
	share float64
	// unnotified: a poll returned the last of these events, and not a read that
	// a notification caused.
	unnotified bool
	last       time.Time // when a read returned the last one
	empty      int       // fast reads since then
	soon       bool      // the next read follows soon
}

const (
	// minForeign is the share of events of other processes from which on the
	// relay reads more often.
	minForeign = 0.25
	// chaseReads is the number of reads without an event after which the relay
	// stops reading in close succession.
	chaseReads = 4
	// activePoll is the interval between polls for activeTime after the last
	// event, if no notification announced it.
	activePoll = 10 * time.Millisecond
	activeTime = 2 * time.Second
)

// read notes the new events of a fast read, and how many of them were not
// announced.
func (c *chase) read(fresh, foreign int, woken bool, now time.Time) {
	if fresh > 0 {
		c.share += (float64(foreign)/float64(fresh) - c.share) / 8
	}
	if foreign == 0 {
		c.empty++
		return
	}
	if !c.soon {
		c.unnotified = !woken
	}
	c.last, c.empty = now, 0
}

// announcedLate notes that a read was faster than the announcement of an event
// by its writer.
func (c *chase) announcedLate() { c.share -= c.share / 8 }

// isActive reports whether the relay reads more often than usual.
func (c *chase) isActive(now time.Time) bool {
	return c.share >= minForeign && (c.empty < chaseReads || c.unnotified && now.Sub(c.last) < activeTime)
}

// pause returns the time until the next poll: pause, or less while events of
// other processes come. brief is the pause of a busy relay.
func (c *chase) pause(pause, brief time.Duration, now time.Time) time.Duration {
	active := c.isActive(now)
	c.soon = active && c.empty < chaseReads
	switch {
	case c.soon:
		return min(pause, brief)
	case active:
		return min(pause, activePoll)
	}
	return pause
}

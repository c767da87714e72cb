package relay

import (
	"time"

	"github.com/waybillhq/waybill/observe"
)

// gauges reports the queue depths and the lag.
func (e *engine) gauges() {
	if e.observe.QueueDepths != nil {
		hot, cold, bytes := e.main.ledger.Depths()
		e.observe.QueueDepths(observe.QueueDepthsInfo{Hot: hot, Cold: cold, Bytes: bytes})
	}
	if e.observe.Lag == nil {
		return
	}
	now := time.Now()
	oldest := e.main.ledger.OldestAge(now)
	if !e.seen.blind(now, e.main.reading) {
		if e.seen.good.IsZero() && e.main.ledger.LaneCount()+len(e.member.want) > 0 {
			return // nothing has been read yet: the lag is not known
		}
		e.seen.oldest = now.Add(-oldest)
		e.observe.Lag(observe.LagInfo{Oldest: oldest})
		return
	}
	// All events that were committed since the last successful read may be
	// waiting, and so may the events that were in memory then.
	since := e.seen.good
	if since.IsZero() {
		since = e.member.start
	}
	if !e.seen.oldest.IsZero() && e.seen.oldest.Before(since) {
		since = e.seen.oldest
	}
	e.observe.Lag(observe.LagInfo{Oldest: max(oldest, now.Sub(since))})
}

// sight records when this relay could last read the tables.
type sight struct {
	began  time.Time // when the last read began
	good   time.Time // when the last successful fast read began
	failed time.Time // when a heartbeat, or a read that fast reads depend on, failed
	// oldest is when the oldest event was written that was known while reads
	// succeeded; the time of the last report if there was none.
	oldest time.Time
}

// slowRead is how long a read may take before the lag counts from the last
// successful read.
const slowRead = 5 * time.Second

// blind reports whether the tables cannot be read.
func (s *sight) blind(now time.Time, reading bool) bool {
	return s.failed.After(s.good) || reading && now.Sub(s.began) > slowRead
}

package relay

import (
	"math"
	"sync"
	"time"
)

// rate limits the number of events per second: a token bucket that holds the
// tokens of one second, and at least one.
//
// It adapts to a destination that asks for fewer events: the limit halves, at
// most once per second, and grows again by a twentieth of its usual value per
// second in which the destination accepts events and refuses none. A
// destination without a limit gets a temporary one, which begins at half of
// what it has just received.
type rate struct {
	mu     sync.Mutex
	limit  float64 // events per second; 0: no limit
	tokens float64
	at     time.Time // when tokens was computed

	usual float64 // the limit of a destination that does not adapt; 0: none
	// top is the limit at which the destination does not adapt any more. It is
	// 0 while the destination does not adapt.
	top    float64
	halved time.Time // when the limit was last lowered
	// calm is when the limit last grew, or the destination last asked for fewer
	// events.
	calm time.Time
	// used is the number of tokens taken in the second that began at since, and
	// usedBefore that of the second before.
	used, usedBefore int
	since            time.Time
}

const (
	// adaptStep is the interval between two changes of the limit.
	adaptStep = time.Second
	// adaptSteps is the number of steps from 0 to the usual limit.
	adaptSteps = 20
	// minRate is the lowest limit of a destination that adapts.
	minRate = 1
)

func newRate(perSecond float64) *rate {
	return &rate{limit: perSecond, usual: perSecond, tokens: max(perSecond, 1)}
}

// room takes up to n tokens, and returns their number.
func (r *rate) room(n int, now time.Time) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.limit > 0 {
		r.refill(now)
		n = min(n, int(r.tokens))
		r.tokens -= float64(n)
	}
	r.use(n, now)
	return n
}

// giveBack returns tokens that were not used.
func (r *rate) giveBack(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used -= n
	if r.limit > 0 {
		r.tokens = min(r.tokens+float64(n), max(r.limit, 1))
	}
}

// next returns the time at which there is a token.
func (r *rate) next(now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.limit == 0 {
		return now
	}
	r.refill(now)
	if r.tokens >= 1 {
		return now
	}
	return now.Add(time.Duration(math.Ceil((1 - r.tokens) / r.limit * float64(time.Second))))
}

// current returns the limit in events per second; 0: none.
func (r *rate) current() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.limit
}

func (r *rate) refill(now time.Time) {
	if since := now.Sub(r.at); !r.at.IsZero() && since > 0 {
		r.tokens = min(r.tokens+since.Seconds()*r.limit, max(r.limit, 1))
	}
	r.at = now
}

// use counts tokens that were taken.
func (r *rate) use(n int, now time.Time) {
	switch since := now.Sub(r.since); {
	case since >= 2*time.Second:
		r.used, r.usedBefore, r.since = 0, 0, now
	case since >= time.Second:
		r.used, r.usedBefore, r.since = 0, r.used, r.since.Add(time.Second)
	}
	r.used += n
}

// slowDown notes that the destination has asked for fewer events. It returns
// the new limit, and whether it was the usual one before.
func (r *rate) slowDown(now time.Time) (limit float64, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calm = now
	if r.top > 0 && now.Sub(r.halved) < adaptStep {
		return r.limit, false
	}
	if first = r.top == 0; first {
		r.use(0, now)
		r.top = r.usual
		if r.usual == 0 {
			r.top = float64(max(r.used, r.usedBefore, 2*minRate))
		}
		r.limit = r.top
	}
	r.limit = max(r.limit/2, min(minRate, r.top))
	r.tokens, r.at, r.halved = 0, now, now
	return r.limit, first
}

// accepted notes that the destination has accepted an event. It reports whether
// the limit is the usual one again.
func (r *rate) accepted(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.top == 0 || now.Sub(r.calm) < adaptStep {
		return false
	}
	r.refill(now)
	r.limit, r.calm = r.limit+r.top/adaptSteps, now
	if r.limit < r.top {
		return false
	}
	r.limit, r.top = r.usual, 0
	return true
}

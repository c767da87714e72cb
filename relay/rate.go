package relay

import (
	"math"
	"sync"
	"time"
)

// rate limits the number of events per second: a token bucket that holds the
// tokens of one second, and at least one.
type rate struct {
	perSecond float64 // 0: no limit

	mu     sync.Mutex
	tokens float64
	at     time.Time // when tokens was computed
}

func newRate(perSecond float64) *rate {
	return &rate{perSecond: perSecond, tokens: max(perSecond, 1)}
}

// room takes up to n tokens, and returns their number.
func (r *rate) room(n int, now time.Time) int {
	if r.perSecond == 0 {
		return n
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refill(now)
	n = min(n, int(r.tokens))
	r.tokens -= float64(n)
	return n
}

// giveBack returns tokens that were not used.
func (r *rate) giveBack(n int) {
	if r.perSecond == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tokens = min(r.tokens+float64(n), max(r.perSecond, 1))
}

// next returns the time at which there is a token.
func (r *rate) next(now time.Time) time.Time {
	if r.perSecond == 0 {
		return now
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refill(now)
	if r.tokens >= 1 {
		return now
	}
	return now.Add(time.Duration(math.Ceil((1 - r.tokens) / r.perSecond * float64(time.Second))))
}

func (r *rate) refill(now time.Time) {
	if since := now.Sub(r.at); !r.at.IsZero() && since > 0 {
		r.tokens = min(r.tokens+since.Seconds()*r.perSecond, max(r.perSecond, 1))
	}
	r.at = now
}

package sim

import (
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"
)

// stream is the random numbers of one purpose. It is safe for concurrent use.
type stream struct {
	mu sync.Mutex
	r  *rand.Rand
}

// newStream returns the stream of a purpose; the same seed and purpose give the
// same numbers.
func newStream(seed uint64, purpose string, n ...int) *stream {
	return &stream{r: rand.New(rand.NewPCG(seed, mix(purpose, n...)))} //nolint:gosec // reproducible on purpose
}

// mix returns a hash of a purpose and numbers.
func mix(purpose string, n ...int) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(purpose)) // a hash never fails
	x := h.Sum64()
	for _, v := range n {
		x = scramble(x ^ uint64(v)*0x9e3779b97f4a7c15) //nolint:gosec // bits, not a quantity
	}
	return x
}

// scramble is the finalizer of splitmix64.
func scramble(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// float returns a number in [0, 1).
func (s *stream) float() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.r.Float64()
}

// chance reports true with probability p.
func (s *stream) chance(p float64) bool { return p > 0 && s.float() < p }

// n returns a number in [0, limit).
func (s *stream) n(limit int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.r.IntN(max(limit, 1))
}

// between returns a duration in [lo, hi), in nanoseconds.
func (s *stream) between(lo, hi time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return lo + time.Duration(s.r.Int64N(int64(max(hi-lo, 1))))
}

// about returns a duration whose logarithm is uniform between lo and hi, so
// that short and long times are equally frequent.
func (s *stream) about(lo, hi time.Duration) time.Duration {
	d := lo
	for d < hi && s.chance(0.6) {
		d *= 3
	}
	return min(s.between(d/2, d+d/2), hi)
}

// pick returns one of the choices.
func pick[V any](s *stream, choices ...V) V { return choices[s.n(len(choices))] }

package linear

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

var (
	seedFlag  = flag.Uint64("linear.seed", 0, "the seed of the operations; 0 draws one")
	callsFlag = flag.Int("linear.calls", 50, "the calls of each client in a run")
)

// seedOf returns the seed of a test and logs it.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	return seed
}

const (
	// clients is the number of concurrent clients of a run. In the relay's runs
	// each client is a node, too.
	clients = 4
	// maxLosses is the number of lost answers after which a run has no more
	// faults: each one may double the work of the checker.
	maxLosses = 6
	// never is the end of a call whose answer was lost.
	never = math.MaxInt64
	// long and over are the two leases: one that does not expire during a run,
	// and one that has expired.
	long = time.Hour
	over = -time.Hour
)

// history holds the recorded operations of a run by partition: a part of the
// store that the model describes completely.
type history struct {
	clock atomic.Int64

	// cutting is locked while no connection is possible. No call starts then.
	cutting sync.RWMutex
	once    sync.Once // the cut

	mu      sync.Mutex
	parts   map[string][]porcupine.Operation
	answers int // calls with a known answer
	losses  int // calls whose answer was lost
}

func newHistory() *history { return &history{parts: make(map[string][]porcupine.Operation)} }

// span is the time of a call by the clock of the history. The clock counts the
// starts and ends of calls.
type span struct{ call, end int64 }

// lost reports whether the answer was lost.
func (s span) lost() bool { return s.end == never }

// add records one operation in some of the partitions.
func (h *history) add(client int, s span, in, out any, parts ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, part := range parts {
		h.parts[part] = append(h.parts[part], porcupine.Operation{ClientId: client, Input: in, Output: out, Call: s.call, Return: s.end})
	}
}

// faults describes how a run loses answers.
type faults struct {
	// cancel means that the store ends a call whose context ends.
	cancel bool
	// cut ends all connections of the store, once in a run; nil for none.
	cut func()
	// tolerate reports errors of calls that collided with other calls; nil for
	// a store without such errors.
	tolerate func(error) bool
}

// client is one of the concurrent callers.
type client struct {
	t      *testing.T
	number int
	rng    *rand.Rand
	log    *history
	faults faults
}

// run runs the clients, each with the same number of steps.
func run(t *testing.T, seed uint64, log *history, f faults, step func(c *client)) {
	t.Helper()
	var all sync.WaitGroup
	for i := range clients {
		c := &client{t: t, number: i, rng: rand.New(rand.NewPCG(seed, uint64(i))), log: log, faults: f}
		all.Go(func() {
			for range *callsFlag {
				if f.cut != nil && c.chance(1, 60) {
					log.once.Do(func() {
						log.cutting.Lock()
						defer log.cutting.Unlock()
						f.cut()
					})
				}
				step(c)
			}
		})
	}
	all.Wait()
	if log.answers < log.losses {
		t.Fatalf("seed %d: %d answers and %d lost answers: the history proves little", seed, log.answers, log.losses)
	}
}

// chance reports true n times in m.
func (c *client) chance(n, m int) bool { return c.rng.IntN(m) < n }

// pick returns one of the values.
func pick[E any](c *client, values []E) E { return values[c.rng.IntN(len(values))] }

// call makes a call. It returns an error only if the error is one of the
// expected ones. Every other error, and every answer that the client drops, is
// a lost answer.
func (c *client) call(fn func(ctx context.Context) error, expected ...error) (span, error) {
	ctx, quiet := c.t.Context(), c.log.quiet()
	drop := c.chance(1, 40) && quiet
	canceled := c.faults.cancel && c.chance(1, 40) && quiet
	if canceled {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(c.rng.IntN(1500))*time.Microsecond)
		defer cancel()
	}
	c.log.cutting.RLock()
	s := span{call: c.log.clock.Add(1)}
	c.log.cutting.RUnlock()
	err := fn(ctx)
	s.end = c.log.clock.Add(1)
	known := err == nil
	for _, e := range expected {
		known = known || errors.Is(err, e)
	}
	if !known && !canceled && c.faults.cut == nil && (c.faults.tolerate == nil || !c.faults.tolerate(err)) {
		c.t.Errorf("client %d: unexpected error: %v", c.number, err)
	}
	if !known || drop {
		s.end, err = never, nil
	}
	c.count(s.lost())
	return s, err
}

// quiet reports whether more answers may be lost.
func (h *history) quiet() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.losses < maxLosses
}

func (c *client) count(lost bool) {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	if lost {
		c.log.losses++
	} else {
		c.log.answers++
	}
}

// number is a number of the store that grows: an epoch or a fence. While its
// value is unknown, because the answer that contained it was lost, the model
// knows only that it is greater than min.
type number struct {
	min     int64
	unknown bool
}

// exactly returns a known number.
func exactly(n int64) number { return number{min: n} }

// next returns the unknown number after n.
func (n number) next() number { return number{min: n.min, unknown: true} }

// admits reports whether the number can be n.
func (n number) admits(value int64) bool {
	if n.unknown {
		return value > n.min
	}
	return value == n.min
}

func (n number) String() string {
	if n.unknown {
		return fmt.Sprintf(">%d", n.min)
	}
	return fmt.Sprint(n.min)
}

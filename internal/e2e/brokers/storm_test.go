//go:build linux || darwin

package brokers_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay"
)

// fault is a temporary fault of a broker.
type fault struct {
	name       string
	begin, end func(ctx context.Context) error
	lasts      time.Duration
	// at is the number of events after which the fault begins. With met, the
	// next publish waits until the fault has begun; otherwise it begins
	// asynchronously, while events are in flight.
	at  int
	met bool
}

func (f fault) String() string {
	return fmt.Sprintf("after %d events: %s for %v", f.at, f.name, f.lasts.Round(time.Millisecond))
}

// storm is the sequence of faults of one test.
type storm struct {
	faults []fault

	mu        sync.Mutex
	delivered int
	next      int           // the next fault
	due       chan int      // its number, when it is due
	there     chan struct{} // closed when the fault has begun
	failures  map[string]int
	last      error // of them
	wrong     []string
}

// drawStorm draws a schedule that contains every kind of fault.
func drawStorm(p plan, rng *rand.Rand, s stand, v victim, net *proxy) *storm {
	kinds := []fault{
		{name: "the server is killed", begin: v.Kill, end: v.Restart},
		{name: "the server stands still", begin: v.Freeze, end: v.Thaw},
		{name: "the network is cut", begin: net.cut, end: net.join},
		{name: "the network swallows everything", begin: net.silence, end: net.speak},
	}
	st := &storm{due: make(chan int, 1), there: make(chan struct{}), failures: make(map[string]int)}
	for n := range p.faults {
		if n%len(kinds) == 0 {
			rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		}
		f := kinds[n%len(kinds)]
		f.lasts = between(rng, s.timeout/8, 3*s.timeout/2)
		room := p.events / (p.faults + 1)
		f.at, f.met = room*(n+1)-rng.IntN(room), rng.IntN(2) == 0
		st.faults = append(st.faults, f)
	}
	return st
}

// run executes the faults. during is called during each fault.
func (st *storm) run(t *testing.T, during func(n int)) {
	t.Helper()
	ctx := t.Context()
	for n, f := range st.faults {
		for late := time.After(patience); ; {
			select {
			case due := <-st.due:
				if due != n { // repeated during the last fault
					continue
				}
			case <-late:
				t.Fatalf("no progress before fault %d; failures: %v", n, st.failed())
			}
			break
		}
		t.Log(f)
		if err := f.begin(ctx); err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
		st.mu.Lock()
		close(st.there)
		st.mu.Unlock()
		during(n)
		must(t, pause(ctx, f.lasts))
		if err := f.end(ctx); err != nil {
			t.Fatalf("the end of: %s: %v", f.name, err)
		}
		st.mu.Lock()
		st.next, st.there = n+1, make(chan struct{})
		st.mu.Unlock()
	}
}

// meet notifies the storm of the next publish.
func (st *storm) meet(ctx context.Context) {
	st.mu.Lock()
	there, wait := st.there, false
	if st.next < len(st.faults) && st.delivered >= st.faults[st.next].at {
		select {
		case st.due <- st.next:
		default: // notified before
		}
		wait = st.faults[st.next].met
	}
	st.mu.Unlock()
	if wait {
		select {
		case <-there:
		case <-ctx.Done():
		}
	}
}

// note records the result of a batch.
func (st *storm) note(batch []waybill.Delivery, results []error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for i, err := range results {
		if batch[i].Attempt != 1 {
			st.wrong = append(st.wrong, fmt.Sprintf("event %s is at attempt %d", batch[i].ID, batch[i].Attempt))
		}
		if err == nil {
			st.delivered++
			continue
		}
		class, _ := waybill.Classify(err)
		st.failures[class.String()]++
		if class == waybill.ClassUnavailable {
			st.last = err
		}
		if class != waybill.ClassUnavailable && class != waybill.ClassDefer {
			st.wrong = append(st.wrong, fmt.Sprintf("event %s: %v: %v", batch[i].ID, class, err))
		}
	}
}

func (st *storm) failed() string {
	st.mu.Lock()
	defer st.mu.Unlock()
	return fmt.Sprintf("%v, the last one: %v", st.failures, st.last)
}

// complaints returns the violations.
func (st *storm) complaints() []string {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.Clone(st.wrong[:min(len(st.wrong), 10)])
}

// gate is a sink in the storm.
type gate struct {
	relay.DestinationSink
	storm *storm
}

// Deliver implements [waybill.Sink].
func (g gate) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	g.storm.meet(ctx)
	results := g.DestinationSink.Deliver(ctx, batch)
	g.storm.note(batch, results)
	return results
}

// orderedGate is a gate for a sink that may get several events of an aggregate
// at once.
type orderedGate struct{ gate }

// StopsAtFailure implements [relay.OrderedSink].
func (orderedGate) StopsAtFailure() {}

func inStorm(s relay.DestinationSink, st *storm) waybill.Sink {
	g := gate{s, st}
	if _, ordered := s.(relay.OrderedSink); ordered {
		return orderedGate{g}
	}
	return g
}

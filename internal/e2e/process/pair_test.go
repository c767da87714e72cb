//go:build linux || darwin

package process_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/e2e/process/journal"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
)

var pairSeed = flag.Uint64("process.seed", 0, "repeats the schedule of TestDestinationsKilled; 0: a new one")

// The destinations of a pair: each has a journal of its own.
const (
	steady   = "steady"
	flapping = "flapping"
	// downName is a file that exists while the flapping destination is
	// unavailable.
	downName = "down"
)

// pair returns a relay with two destinations.
func (s spec) pair(at *tables, cfg relay.Config) (*relay.Relay, error) {
	var to []relay.Destination
	for _, name := range []string{steady, flapping} {
		notes, err := journal.Open(filepath.Join(s.Folder, journalName+"."+name), s.Name)
		if err != nil {
			return nil, err
		}
		p := &half{spec: s, notes: notes}
		deliver := p.steady
		if name == flapping {
			deliver = p.flapping
		}
		to = append(to, relay.Destination{Name: name, Sink: relay.SinkFunc(deliver), DivertAfter: 50 * time.Millisecond, PauseAfter: -1})
	}
	return relay.NewTo(testroles.Of[any](at.db), cfg, to...)
}

// half is a destination of a pair.
type half struct {
	spec
	notes *journal.Writer
	given atomic.Uint64 // deliveries
}

func (h *half) steady(_ context.Context, d waybill.Delivery) error {
	h.notes.Note(journal.Begin, d)
	return h.end(journal.OK, d, nil)
}

// flapping fails in every way that has an event copied to the backlog. The
// result depends on the seed and the number of deliveries so far.
func (h *half) flapping(ctx context.Context, d waybill.Delivery) error {
	h.notes.Note(journal.Begin, d)
	if _, err := os.Stat(filepath.Join(h.Folder, downName)); err == nil {
		return h.end(journal.Down, d, waybill.Unavailable(errDown))
	}
	hash := fnv.New64a()
	_, _ = fmt.Fprint(hash, h.Seed, h.Name, h.given.Add(1)) // a hash accepts every write
	switch hash.Sum64() % 100 {
	case 0, 1:
		return h.end(journal.Failed, d, errors.New("no luck"))
	case 2:
		return h.end(journal.Later, d, waybill.Later(20*time.Millisecond, errors.New("not now")))
	case 3: // longer than DivertAfter
		select {
		case <-time.After(150 * time.Millisecond):
		case <-ctx.Done():
			return h.end(journal.Ended, d, context.Cause(ctx))
		}
	}
	return h.end(journal.OK, d, nil)
}

func (h *half) end(what string, d waybill.Delivery, err error) error {
	h.notes.Note(what, d)
	return err
}

// TestDestinationsKilled: relays with two destinations, of which one flaps, are
// killed at random points again and again. Each destination receives every
// event, in the order of its aggregate, and what happens at the flapping one
// puts no copy on the other.
func TestDestinationsKilled(t *testing.T) {
	t.Parallel()
	kills := 10
	if testserver.Full() {
		kills = 100
	}
	seed := *pairSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-process.seed=%d, %d kills", seed, kills)
	b := &pair{env: newEnv(t, postgresPlace(t)), rng: rand.New(rand.NewPCG(seed, 1))}
	for _, name := range []string{"A", "B"} {
		b.running = append(b.running, b.start(b.spec(name, seed)))
	}
	b.awaitNodes(2)
	for n := range kills {
		b.work()
		victim := b.running[n%2]
		victim.Kill()
		b.running[n%2] = b.start(b.spec(victim.spec.Name, seed))
	}
	b.flap(false)
	b.add(b.next(50)...)
	b.await("nothing is pending", func() bool {
		waiting, dead := b.waiting()
		return waiting == 0 && dead == 0 && b.stats().Ready == 0
	})
	if b.behind == 0 {
		t.Error("no destination was ever behind")
	}
	b.check(steady)
	b.check(flapping)
}

// pair is an env with relays that have two destinations.
type pair struct {
	*env
	rng     *rand.Rand
	running []*node
	written []string
	numbers [20]int // per aggregate
	down    bool
	behind  int64 // the largest backlog so far
}

func (b *pair) spec(name string, seed uint64) spec {
	return spec{Name: name, Pair: true, Seed: seed, Lease: 2 * time.Second, Heartbeat: 200 * time.Millisecond, MaxAttempts: 1_000}
}

// next returns the names of the next n events.
func (b *pair) next(n int) []string {
	var names []string
	for range n {
		i := b.rng.IntN(len(b.numbers))
		names = append(names, fmt.Sprintf("a%d/%d", i, b.numbers[i]))
		b.numbers[i]++
	}
	b.written = append(b.written, names...)
	return names
}

// work writes events until a random number of records is in the journals,
// while the flapping destination comes and goes. It returns in the middle of
// the work.
func (b *pair) work() {
	b.Helper()
	const size = 300 // of a record, roughly
	until := b.journals() + 1 + size*b.rng.Int64N(600)
	b.await("the relays make progress", func() bool {
		if b.rng.IntN(4) == 0 {
			b.flap(!b.down)
		}
		b.add(b.next(1 + b.rng.IntN(20))...)
		waiting, _ := b.waiting()
		b.behind = max(b.behind, waiting)
		return b.journals() >= until
	})
	<-time.After(time.Duration(b.rng.IntN(20_000)) * time.Microsecond)
}

// journals returns the size of the journals.
func (b *pair) journals() int64 {
	b.Helper()
	var total int64
	for _, destination := range []string{steady, flapping} {
		info, err := os.Stat(filepath.Join(b.folder, journalName+"."+destination))
		if err != nil && !os.IsNotExist(err) {
			b.Fatal(err)
		}
		if err == nil {
			total += info.Size()
		}
	}
	return total
}

// flap begins or ends an outage of the flapping destination.
func (b *pair) flap(down bool) {
	b.Helper()
	b.down = down
	path := filepath.Join(b.folder, downName)
	if down {
		b.open(downName)
		return
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		b.Fatal(err)
	}
}

// waiting returns the number of events in the backlogs that are not dead, and
// of those that are.
func (b *pair) waiting() (waiting, dead int64) {
	b.Helper()
	backlogs := b.db.(driver.Backlogs)
	all, err := backlogs.AddDestinations(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for _, d := range all {
		s, err := backlogs.Backlog(d.Number).Stats(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		waiting, dead = waiting+s.Ready+s.Failed+s.Scheduled, dead+s.Dead
	}
	return waiting, dead
}

// of returns the journal of a destination.
func (b *pair) of(destination string) []journal.Record {
	b.Helper()
	records, err := journal.Read(filepath.Join(b.folder, journalName+"."+destination))
	if err != nil {
		b.Fatal(err)
	}
	return records
}

// check reports events that a destination has not received, that it received
// out of order, or that one process has delivered twice.
func (b *pair) check(destination string) {
	b.Helper()
	type copied struct {
		name string
		pid  int
	}
	done, times := map[string]bool{}, map[copied]int{}
	repeated := 0
	for _, r := range b.of(destination) {
		var number int
		if _, err := fmt.Sscan(r.Number, &number); err != nil {
			b.Fatal(err)
		}
		before := fmt.Sprintf("%s/%d", r.Aggregate, number-1)
		if r.What == journal.Begin && number > 0 && !done[before] {
			b.Errorf("%s: out of order: %s, but %s was not delivered yet", destination, r, before)
		}
		if r.What != journal.OK {
			continue
		}
		if done[r.Name()] {
			repeated++
		}
		done[r.Name()] = true
		if times[copied{r.Name(), r.PID}]++; times[copied{r.Name(), r.PID}] == 2 {
			b.Errorf("%s: one process has delivered it twice: %s", destination, r)
			for _, other := range b.of(destination) {
				if other.Name() == r.Name() {
					b.Log(other)
				}
			}
		}
	}
	for _, name := range b.written {
		if !done[name] {
			b.Errorf("%s: event %s is lost", destination, name)
		}
	}
	b.Logf("%s: %d events, %d repeated after kills; the largest backlog had %d", destination, len(b.written), repeated, b.behind)
}

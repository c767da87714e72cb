package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// world is one simulated database with its processes, in one bubble.
type world struct {
	plan  plan
	start time.Time
	// done is closed when the world ends: all calls and sinks return.
	done   chan struct{}
	stormy atomic.Bool
	tally  *tally
	// ignored are rules that do not end the world.
	ignored map[string]bool

	server *server
	nodes  []*node
	// aloft are the lanes of events that are or were in flight, and steppedAt
	// is when the clock of the database last stepped.
	aloft     map[*event]int
	steppedAt time.Duration
	all       sync.WaitGroup // every goroutine of the simulator, and every relay

	// mu guards the model: all fields below, and those of the server, the
	// processes, the events and the aggregates. No call of the product is made
	// under it.
	mu       sync.Mutex
	ended    bool
	failure  *failure
	trace    trace
	events   []*event
	byID     map[waybill.ID]*event
	groups   []*aggregate
	lanes    []laneModel
	expires  map[waybill.ID]time.Time // node → end of its lease
	downTill map[string]time.Time     // destination → end of its outage
	pending  int                      // committed events that are neither delivered nor dead
	requests map[int]*request
	to       []destinationModel
	broker   broker
}

// laneModel is the owner of a lane as the answers of the store named it.
type laneModel struct {
	owner  waybill.ID // node; zero if free
	proc   *process
	epoch  int64
	token  waybill.ID
	window int
	dirty  bool // released with deliveries in flight
}

// aggregate is an aggregate and its events that no sink has got yet.
type aggregate struct {
	no      int
	name    store.Aggregate
	mu      sync.Mutex // the row lock of its transactions
	waiting [maxCopies][]*event
	// together: two of its events were with the sink at a time.
	together bool
	heldAt   time.Duration // when one of its events was last deferred, counted or dead
}

// failure is the first violation that a checker found.
type failure struct {
	rule  string
	text  string
	at    time.Duration
	lines []string
}

func (f *failure) String() string { return fmt.Sprintf("%s: %s (at %v)", f.rule, f.text, f.at) }

var (
	errCrashed = errors.New("sim: the process is dead")
	errEnded   = errors.New("sim: the world has ended")
	errRefused = errors.New("sim: connection refused")
	errLost    = errors.New("sim: the connection broke")
)

func newWorld(p plan, t *tally, ignored map[string]bool) (*world, error) {
	w := &world{
		ignored: ignored, plan: p, start: time.Now(), done: make(chan struct{}), tally: t,
		byID: make(map[waybill.ID]*event), aloft: make(map[*event]int), lanes: make([]laneModel, p.lanes), expires: make(map[waybill.ID]time.Time),
		downTill: make(map[string]time.Time), requests: make(map[int]*request), to: make([]destinationModel, len(p.to)),
	}
	w.stormy.Store(true)
	for i := range p.aggregates {
		w.groups = append(w.groups, &aggregate{no: i, name: store.Aggregate{Tenant: w.tenant("aggregate", i), Type: "thing", ID: fmt.Sprintf("a%d", i)}})
	}
	var err error
	if w.server, err = newServer(w); err != nil {
		return nil, err
	}
	return w, nil
}

// now returns the virtual time since the world began.
func (w *world) now() time.Duration { return time.Since(w.start) }

// stream returns the random numbers of a purpose.
func (w *world) stream(purpose string, n ...int) *stream {
	return newStream(w.plan.seed, purpose, n...)
}

// roll returns a number in [0, 1) that depends on the seed, a purpose and
// numbers only.
func (w *world) roll(purpose string, n ...int) float64 {
	return float64(scramble(w.plan.seed^mix(purpose, n...))>>11) / (1 << 53)
}

// tenant returns a tenant. One of them has most aggregates and events.
func (w *world) tenant(of string, n int) string {
	if w.plan.tenants == 0 {
		return ""
	}
	const loud = 0.7
	x := w.roll("tenant of "+of, n)
	if x < loud {
		return "loud"
	}
	return fmt.Sprintf("quiet%d", int((x-loud)/(1-loud)*float64(w.plan.tenants-1)))
}

// happens draws a fault that depends on the seed, its kind and numbers only.
func (w *world) happens(f fault, n ...int) bool {
	if w.plan.rate[f] == 0 || !w.stormy.Load() || w.roll(f.String(), n...) >= w.plan.rate[f] {
		return false
	}
	w.tally.fault(f)
	return true
}

// draw draws a fault from a stream.
func (w *world) draw(s *stream, f fault) bool {
	if !w.stormy.Load() || !s.chance(w.plan.rate[f]) {
		return false
	}
	w.tally.fault(f)
	return true
}

// sleep waits for a virtual time, or until the world or the context ends.
func (w *world) sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-w.done:
		time.Sleep(time.Millisecond) // no loop of the product spins
		return errEnded
	}
}

// fail records a violation and ends the world. Mu is held.
func (w *world) fail(rule string, ev *event, format string, args ...any) {
	if strings.HasPrefix(rule, "concurrent") && ev != nil && ev.agg != nil {
		ev.agg.together = true
	}
	if w.ended || w.ignored[rule] {
		return
	}
	f := &failure{rule: rule, text: fmt.Sprintf(format, args...), at: w.now()}
	if ev != nil {
		f.text = ev.String() + " " + f.text
	}
	f.lines = w.trace.about(ev)
	w.failure = f
	w.end()
}

// end ends the world. Mu is held.
func (w *world) end() {
	if !w.ended {
		w.ended = true
		close(w.done)
	}
}

func (w *world) over() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// newEvent registers an event before it is written.
func (w *world) newEvent(agg *aggregate) *event {
	w.mu.Lock()
	defer w.mu.Unlock()
	ev := &event{no: len(w.events), agg: agg}
	defer w.newPlaces(ev)
	binary.BigEndian.PutUint64(ev.id[:8], uint64(time.Now().UnixMilli())<<16) //nolint:gosec // a time after 1970
	binary.BigEndian.PutUint64(ev.id[8:], uint64(ev.no)+1)                    //nolint:gosec // an index
	w.events = append(w.events, ev)
	w.byID[ev.id] = ev
	return ev
}

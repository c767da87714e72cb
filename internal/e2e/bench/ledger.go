package main

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
)

// Events are numbered, and the number is in the payload, so that a handler of
// any library can identify its event.
const (
	aggregates = 10_000 // event n belongs to aggregate n % aggregates
	maxNumber  = 100_000_000
	digits     = 10
)

// numbered returns the payload of event n: 500 bytes of JSON. The number is a
// string of fixed width, because jsonb changes white space and number formats.
func numbered(n int) []byte {
	const head, middle, tail = `{"n":"`, `","note":"`, `"}`
	b := make([]byte, 0, payloadSize)
	b = append(b, head...)
	b = fmt.Appendf(b, "%0*d", digits, n)
	b = append(b, middle...)
	for len(b) < payloadSize-len(tail) {
		b = append(b, 'x')
	}
	return append(b, tail...)
}

const payloadSize = 500

// numberOf returns the number of a payload's event, or -1.
func numberOf(payload []byte) int {
	for i, c := range payload {
		if c < '0' || c > '9' {
			continue
		}
		n := 0
		for _, d := range payload[i:min(i+digits, len(payload))] {
			if d < '0' || d > '9' {
				return -1
			}
			n = n*10 + int(d-'0')
		}
		return n
	}
	return -1
}

// numberedEvents returns events from (inclusive) to to (exclusive).
func numberedEvents(from, to int) []waybill.Event {
	evs := make([]waybill.Event, 0, to-from)
	for n := from; n < to; n++ {
		evs = append(evs, waybill.Event{
			Type: "OrderPlaced", AggregateType: "order", AggregateID: strconv.Itoa(n % aggregates), Payload: numbered(n),
		})
	}
	return evs
}

// ledger records deliveries: it ends a turn, and detects lost, repeated and
// out-of-order events. Its methods may be called from many goroutines.
type ledger struct {
	pause time.Duration // the time to handle an event
	start time.Time
	end   time.Time
	first atomic.Int64 // time of the first event, in nanoseconds after start
	seen  []atomic.Uint32
	last  [aggregates]atomic.Int64
	count atomic.Int64
	want  int64
	all   chan struct{}

	twice, inverted atomic.Int64
}

func newLedger(want int, pause time.Duration) *ledger {
	return &ledger{
		pause: pause, start: time.Now(), want: int64(want), all: make(chan struct{}),
		seen: make([]atomic.Uint32, (want+31)/32),
	}
}

// stop records the end of the work. The shutdown of a contender does not count.
func (l *ledger) stop() { l.end = time.Now() }

// took returns the duration.
func (l *ledger) took() time.Duration {
	if l.end.IsZero() {
		return time.Since(l.start)
	}
	return l.end.Sub(l.start)
}

// handle is the handler of every contender.
func (l *ledger) handle(payload []byte) {
	if l.pause > 0 {
		time.Sleep(l.pause)
	}
	l.note(numberOf(payload))
}

// note records that event n was handled. Events outside the expected range are
// not counted.
func (l *ledger) note(n int) {
	if n < 0 || n >= int(l.want) {
		return
	}
	bit := uint32(1) << (n % 32)
	if l.seen[n/32].Or(bit)&bit != 0 {
		l.twice.Add(1)
		return
	}
	// Numbers of one aggregate ascend; the first is stored as 1, so that no
	// number is 0.
	if l.last[n%aggregates].Swap(int64(n)+1) > int64(n)+1 {
		l.inverted.Add(1)
	}
	switch l.count.Add(1) {
	case l.want:
		close(l.all)
		if l.want > 1 {
			return
		}
		fallthrough
	case 1:
		l.first.Store(int64(time.Since(l.start)))
	}
}

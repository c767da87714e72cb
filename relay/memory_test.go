package relay_test

import (
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay"
)

// stuck is a sink that answers when the test releases it.
type stuck struct {
	held atomic.Int64
	open chan struct{}
}

func (s *stuck) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	s.held.Add(int64(len(batch)))
	<-s.open
	return make([]error, len(batch))
}

// TestColdQueueBoundsMemory: while the sink does not answer, at most ColdQueue
// + BatchSize events that were read wait in memory, beside those in flight at
// the sink, for any number of lanes, and whether the events were written before
// the relay started or all at once afterwards. In the end all events are
// delivered.
func TestColdQueueBoundsMemory(t *testing.T) {
	const events, queue, batch = 8000, 100, 50
	for _, before := range []bool{true, false} {
		for _, ordered := range []bool{true, false} {
			t.Run("before "+strconv.FormatBool(before)+", ordered "+strconv.FormatBool(ordered), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFixture(t)
					write := func() {
						evs := make([]waybill.Event, events)
						for n := range evs {
							evs[n] = event("", n)
							if ordered {
								evs[n] = event("a"+strconv.Itoa(n), n)
							}
						}
						f.write(evs...)
					}
					if before {
						write()
					}
					sink := &stuck{open: make(chan struct{})}
					var read atomic.Int64
					stop := run(t, f.db.Driver().Relay, sink, relay.Config{
						ColdQueue: queue, BatchSize: batch, HotQueue: -1, Workers: 2, Logger: slog.New(slog.DiscardHandler),
						Observe: observe.Hooks{ColdEnqueued: func(info observe.ColdEnqueuedInfo) { read.Add(int64(info.Events)) }},
					})
					if !before {
						pass(time.Minute)
						write()
					}
					pass(10 * time.Second)
					if held := sink.held.Load(); held != 2*batch {
						t.Errorf("the sink has %d events, want %d", held, 2*batch)
					}
					if waiting := read.Load() - sink.held.Load(); waiting < queue || waiting > queue+batch {
						t.Errorf("%d events wait in memory, want %d to %d", waiting, queue, queue+batch)
					}
					close(sink.open)
					pass(time.Minute)
					if n := sink.held.Load(); n != events {
						t.Errorf("%d of %d events were delivered", n, events)
					}
					stop()
				})
			})
		}
	}
}

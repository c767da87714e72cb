package relay_test

import (
	"context"
	"fmt"
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
// events that were read wait in memory, beside those in flight at the sink, for
// any number of lanes, whether the events were written before the relay started
// or all at once afterwards, and whether they wait for a worker or behind
// another event of their aggregate. In the end all events are delivered.
func TestColdQueueBoundsMemory(t *testing.T) {
	const events, queue, batch = 8000, 100, 50
	for _, before := range []bool{true, false} {
		for _, aggregates := range []int{0, 40, events} {
			t.Run("before "+strconv.FormatBool(before)+", aggregates "+strconv.Itoa(aggregates), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFixture(t)
					write := func() {
						evs := make([]waybill.Event, events)
						for n := range evs {
							evs[n] = event("", n)
							if aggregates > 0 {
								evs[n] = event("a"+strconv.Itoa(n%aggregates), n)
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
					if held := sink.held.Load(); held == 0 || held > 2*batch {
						t.Errorf("the sink has %d events, want 1 to %d", held, 2*batch)
					}
					if waiting := read.Load() - sink.held.Load(); waiting <= queue/2 || waiting > queue {
						t.Errorf("%d events wait in memory, want more than %d, at most %d", waiting, queue/2, queue)
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

// TestMaxBytesBoundsMemory: while the sink does not answer, the events in
// memory take at most MaxBytes, whether they were written before the relay
// started or afterwards. In the end all events are delivered, also those that
// are larger than MaxBytes.
func TestMaxBytesBoundsMemory(t *testing.T) {
	const events, size, most = 60, 1 << 20, 20 << 20
	for _, c := range []struct {
		before  bool
		ordered bool
		hot     int
		limit   int
	}{
		{before: true, hot: -1, limit: most},
		{before: true, ordered: true, hot: -1, limit: most},
		{before: true, ordered: true, hot: -1, limit: 1},
		{hot: -1, limit: most},
		{ordered: true, hot: -1, limit: most},
		{hot: events, limit: most},
		{hot: events, limit: 1},
		{ordered: true, hot: events, limit: most},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				write := func() {
					for n := range events {
						ev := event("", n)
						if c.ordered {
							ev = event("a"+strconv.Itoa(n%50), n)
						}
						ev.ContentType, ev.Payload = "application/octet-stream", make([]byte, size)
						f.write(ev)
					}
				}
				if c.before {
					write()
				}
				sink := &stuck{open: make(chan struct{})}
				var read, highest atomic.Int64
				stop := run(t, f.db.Driver().Relay, sink, relay.Config{
					MaxBytes: c.limit, BatchSize: 5, HotQueue: c.hot, Workers: 2, Logger: slog.New(slog.DiscardHandler),
					Heartbeat: 100 * time.Millisecond,
					Observe: observe.Hooks{
						ColdEnqueued: func(info observe.ColdEnqueuedInfo) { read.Add(int64(info.Events)) },
						HotEnqueued:  func(info observe.HotEnqueuedInfo) { read.Add(int64(info.Events)) },
						QueueDepths:  func(info observe.QueueDepthsInfo) { highest.Store(max(highest.Load(), int64(info.Bytes))) },
					},
				})
				if !c.before {
					pass(time.Second)
					write()
				}
				pass(10 * time.Second)
				if n, limit := int(read.Load()), max(c.limit/size, 1); n <= limit/2 || n > limit {
					t.Errorf("%d events of %d bytes are in memory, want more than %d, at most %d", n, size, limit/2, limit)
				}
				close(sink.open)
				pass(time.Minute)
				if n := sink.held.Load(); n != events {
					t.Errorf("%d of %d events were delivered", n, events)
				}
				if n, limit := highest.Load(), int64(max(c.limit, size)); n > limit {
					t.Errorf("the events in memory took %d bytes, want at most %d", n, limit)
				}
				stop()
			})
		})
	}
}

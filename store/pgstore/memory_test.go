package pgstore_test

import (
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
)

// stuck is a sink that answers when it is released.
type stuck struct {
	held atomic.Int64
	open chan struct{}
}

func (s *stuck) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	s.held.Add(int64(len(batch)))
	<-s.open
	return make([]error, len(batch))
}

// TestColdQueueBoundsMemory: over 32 lanes of real tables, at most ColdQueue
// events that were read wait in memory while the sink does not answer, in
// addition to the events in flight. In the end all events are delivered.
func TestColdQueueBoundsMemory(t *testing.T) {
	const events, queue, batch, workers, lanes = 6000, 100, 50, 2, 32
	pool := openPool(t, nil)
	for _, ordered := range []bool{true, false} {
		t.Run("ordered "+strconv.FormatBool(ordered), func(t *testing.T) {
			db, _ := openStore(t, pool)
			box, err := outbox.New(db, outbox.Config{})
			if err != nil {
				t.Fatal(err)
			}
			evs := make([]waybill.Event, events)
			for n := range evs {
				evs[n] = waybill.NewEvent("Tested", n)
				if ordered {
					evs[n].AggregateType, evs[n].AggregateID = "thing", strconv.Itoa(n)
				}
			}
			if err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, evs...) }); err != nil {
				t.Fatal(err)
			}
			sink := &stuck{open: make(chan struct{})}
			var read, reads, total, highest atomic.Int64
			r, err := relay.New(db, sink, relay.Config{
				ColdQueue: queue, BatchSize: batch, HotQueue: -1, Workers: workers, Logger: slog.New(slog.DiscardHandler),
				PollInterval: 5 * time.Millisecond, SweepInterval: 20 * time.Millisecond,
				Observe: observe.Hooks{
					ColdEnqueued: func(info observe.ColdEnqueuedInfo) { read.Add(int64(info.Events)) },
					QueueDepths:  func(info observe.QueueDepthsInfo) { highest.Store(max(highest.Load(), int64(info.Cold))) },
					Read:         func(observe.ReadInfo) { reads.Add(1) },
					Lanes:        func(info observe.LanesInfo) { total.Store(int64(info.Owned)) },
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- r.Run(ctx) }()
			wait := func(what string, ok func() bool) {
				t.Helper()
				for deadline := time.Now().Add(time.Minute); !ok(); <-time.After(time.Millisecond) {
					if time.Now().After(deadline) {
						t.Errorf("gave up waiting for %s: %d read, %d with the sink, %d reads", what, read.Load(), sink.held.Load(), reads.Load())
						return
					}
				}
			}
			wait("the sink and the queue to be full", func() bool {
				return sink.held.Load() > 0 && read.Load()-sink.held.Load() > queue/2 && total.Load() == lanes
			})
			before := reads.Load()
			wait("the relay to have polled often since", func() bool { return reads.Load() >= before+20 })
			if waiting := read.Load() - sink.held.Load(); waiting > queue {
				t.Errorf("%d events wait in memory, want at most %d", waiting, queue)
			}
			if highest.Load() > queue {
				t.Errorf("at times %d events waited in memory, want at most %d", highest.Load(), queue)
			}
			close(sink.open)
			wait("everything to be delivered", func() bool { return sink.held.Load() >= events })
			if highest.Load() > queue {
				t.Errorf("while it drained, %d events waited in memory, want at most %d", highest.Load(), queue)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

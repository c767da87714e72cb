package relay_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/memstore"
)

type countSink struct {
	n    atomic.Int64
	want int64
	done chan struct{}
}

func (c *countSink) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	if c.n.Add(int64(len(batch))) == c.want {
		close(c.done)
	}
	return make([]error, len(batch))
}

// BenchmarkDrain measures the cost of the relay itself: the store is in memory
// and the sink does nothing.
func BenchmarkDrain(b *testing.B) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		b.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		b.Fatal(err)
	}
	n := max(b.N, 1000)
	for i := 0; i < n; i += 1000 {
		evs := make([]waybill.Event, 1000)
		for j := range evs {
			evs[j] = event(fmt.Sprint("a", (i+j)%10_000), i+j)
		}
		err := box.InTx(b.Context(), func(ctx context.Context, tx *memstore.Tx) error { return box.Write(ctx, tx, evs...) })
		if err != nil {
			b.Fatal(err)
		}
	}
	n = (n + 999) / 1000 * 1000
	sink := &countSink{want: int64(n), done: make(chan struct{})}
	r, err := relay.New(db, sink, relay.Config{HistoryRetention: -1})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	b.ReportAllocs()
	b.ResetTimer()
	go func() { ended <- r.Run(ctx) }()
	<-sink.done
	b.StopTimer()
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}

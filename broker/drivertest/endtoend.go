package drivertest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/memstore"
)

// endToEnd: from outbox through relay and broker to inbox, each event has its
// effect once, although some deliveries fail and every event is published
// twice.
func endToEnd(b *bed) {
	const aggregates, n = 20, 10
	from, err := memstore.New(memstore.Config{})
	if err != nil {
		b.Fatal(err)
	}
	to, err := memstore.New(memstore.Config{})
	if err != nil {
		b.Fatal(err)
	}
	box, err := outbox.New(from, outbox.Config{})
	if err != nil {
		b.Fatal(err)
	}
	in, err := inbox.New(to, inbox.Config{})
	if err != nil {
		b.Fatal(err)
	}
	there, err := outbox.New(to, outbox.Config{})
	if err != nil {
		b.Fatal(err)
	}
	var mu sync.Mutex
	sums, failed := make(map[string]int), make(map[waybill.ID]bool)
	group := in.MustGroup("sums", inbox.Options{})
	group.Handle("order", "OrderPlaced", func(ctx context.Context, _ *memstore.Tx, ev waybill.Event) error {
		var p number
		if err := json.Unmarshal(ev.Payload, &p); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if p.N%10 == 3 && !failed[ev.ID] {
			failed[ev.ID] = true
			return waybill.Later(1, errBoom)
		}
		// After the commit: if another event of the batch fails, this one is
		// applied again.
		return there.AfterCommit(ctx, func() {
			mu.Lock()
			defer mu.Unlock()
			sums[ev.AggregateID] += p.N
		})
	})
	// Twice: the second publication is a duplicate.
	r, err := relay.New(from, relay.FanOut(b.Sink, b.Sink), relay.Config{})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}()
	b.start("sums", group, quick())
	for k := range n {
		err := box.InTx(b.Context(), func(ctx context.Context, tx *memstore.Tx) error {
			for a := range aggregates {
				if err := box.Write(ctx, tx, b.event(fmt.Sprint("a", a), k).Event); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	want := n * (n - 1) / 2
	b.await("exact sums", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for a := range aggregates {
			if got := sums[fmt.Sprint("a", a)]; got > want {
				b.Fatalf("aggregate a%d has the sum %d, want %d: an effect happened twice", a, got, want)
			} else if got < want {
				return false
			}
		}
		return true
	})
}

// ThereAndBack delivers an event to a sink and expects that event, and no
// other, from a source. It is for ways to connect that the suite does not
// cover.
func ThereAndBack(t *testing.T, sink waybill.Sink, source broker.Source, d waybill.Delivery) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	if err := sink.Deliver(ctx, []waybill.Delivery{d})[0]; err != nil {
		t.Fatal(err)
	}
	var got []waybill.ID
	err := source.Run(ctx, consumerFunc(func(_ context.Context, batch []waybill.Delivery) []error {
		for i := range batch {
			got = append(got, batch[i].ID)
		}
		stop()
		return make([]error, len(batch))
	}))
	if err != nil || len(got) != 1 || got[0] != d.ID {
		t.Errorf("the source has %v, want %v: %v", got, d.ID, err)
	}
}

type consumerFunc func(ctx context.Context, batch []waybill.Delivery) []error

// Deliver implements [waybill.Sink].
func (f consumerFunc) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return f(ctx, batch)
}

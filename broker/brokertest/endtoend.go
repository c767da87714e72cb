package brokertest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/memstore"
)

// endToEnd: outbox, relay, broker, inbox: each event has its effect once, though some fail and some are published twice.
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
	group := in.Group("sums", inbox.Options{})
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
		// Not before the commit: when another event of a batch fails, this one is applied again.
		return there.AfterCommit(ctx, func() {
			mu.Lock()
			defer mu.Unlock()
			sums[ev.AggregateID] += p.N
		})
	})
	r, err := relay.New(from, relay.Fan(b.Sink, b.Sink), relay.Config{}) // twice: the second is a duplicate
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

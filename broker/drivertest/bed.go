package drivertest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/internal/eventfill"
)

// patience bounds every wait for a condition: a server that restarts on a busy
// machine takes minutes.
const patience = 5 * time.Minute

// bed is the state of one check.
type bed struct {
	*testing.T
	Instance
	can Capabilities
}

// event returns an event of an aggregate with a number in its payload.
func (b *bed) event(aggregate string, n int) waybill.Delivery {
	ev := waybill.NewEvent("OrderPlaced", number{N: n})
	ev.Topic, ev.AggregateType, ev.AggregateID = b.Topic, "order", aggregate
	return waybill.Delivery{Event: eventfill.Defaults(ev), Attempt: 1}
}

type number struct{ N int }

func numberOf(d *waybill.Delivery) int {
	var p number
	if json.Unmarshal(d.Payload, &p) != nil {
		return -1
	}
	return p.N
}

// publish delivers a batch to the sink and fails the test unless every event is
// delivered.
func (b *bed) publish(batch ...waybill.Delivery) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	for i, err := range b.deliver(ctx, batch) {
		if err != nil {
			b.Fatalf("delivery %d: %v", i, err)
		}
	}
}

// deliver calls the sink and checks that there is one result per delivery.
func (b *bed) deliver(ctx context.Context, batch []waybill.Delivery) []error {
	b.Helper()
	results := b.Sink.Deliver(ctx, batch)
	if len(results) != len(batch) {
		b.Fatalf("%d results for %d deliveries", len(results), len(batch))
	}
	return results
}

// read returns the n messages that were published.
func (b *bed) read(n int) []broker.Message {
	b.Helper()
	return b.readFrom(n, b.Read)
}

func (b *bed) readFrom(n int, read func(context.Context) ([]broker.Message, error)) []broker.Message {
	b.Helper()
	var got []broker.Message
	b.await(fmt.Sprintf("%d messages", n), func() bool {
		ctx, cancel := context.WithTimeout(b.Context(), patience)
		defer cancel()
		var err error
		if got, err = read(ctx); err != nil {
			b.Logf("reading: %v", err)
		}
		return len(got) >= n
	})
	if len(got) != n {
		b.Fatalf("%d messages, want %d", len(got), n)
	}
	return got
}

// await waits for a condition.
func (b *bed) await(what string, ok func() bool) {
	b.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			b.Fatalf("no %s within %v", what, patience)
		}
		select {
		case <-b.Context().Done():
			b.Fatal(b.Context().Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// recorder is a consumer that records its deliveries.
type recorder struct {
	answer func(ctx context.Context, d waybill.Delivery) error

	mu   sync.Mutex
	got  []waybill.Delivery
	busy map[string]bool
	bad  error // two concurrent messages of one aggregate
}

// Deliver implements waybill.Sink.
func (r *recorder) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	r.mu.Lock()
	for i := range batch {
		d := &batch[i]
		if r.busy == nil {
			r.busy = make(map[string]bool)
		}
		if r.busy[d.AggregateID] && d.AggregateID != "" {
			r.bad = fmt.Errorf("two messages of aggregate %s at a time", d.AggregateID)
		}
		r.busy[d.AggregateID] = true
		r.got = append(r.got, *d)
	}
	r.mu.Unlock()
	results := make([]error, len(batch))
	for i := range batch {
		if r.answer != nil {
			results[i] = r.answer(ctx, batch[i])
		}
	}
	r.mu.Lock()
	for i := range batch {
		delete(r.busy, batch[i].AggregateID)
	}
	r.mu.Unlock()
	return results
}

func (r *recorder) all() []waybill.Delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]waybill.Delivery(nil), r.got...)
}

func (r *recorder) count() int { return len(r.all()) }

// quick returns a config with short delays.
func quick() broker.ReceiverConfig {
	return broker.ReceiverConfig{BackoffBase: 20 * time.Millisecond, BackoffMax: 50 * time.Millisecond, ReconnectMax: 200 * time.Millisecond}
}

// start runs a source until stop is called or the test ends.
func (b *bed) start(name string, c waybill.Sink, cfg broker.ReceiverConfig) (stop func()) {
	b.Helper()
	src := b.Source(name, cfg)
	if src.Name() == "" {
		b.Error("the source has no name")
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- src.Run(ctx, c) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-ended:
				if err != nil {
					b.Errorf("Run returned %v", err)
				}
			case <-time.After(patience):
				b.Error("Run does not return")
			}
		})
	}
	b.Cleanup(stop)
	return stop
}

// inOrder checks that the first deliveries of each aggregate have the numbers
// 0, 1, 2, … n−1.
func (b *bed) inOrder(got []waybill.Delivery, aggregates, n int) {
	b.Helper()
	next := make(map[string]int)
	for i := range got {
		d := &got[i]
		switch k := numberOf(d); {
		case k > next[d.AggregateID]:
			b.Fatalf("aggregate %s: number %d before number %d", d.AggregateID, k, next[d.AggregateID])
		case k == next[d.AggregateID]:
			next[d.AggregateID]++
		}
	}
	if len(next) != aggregates {
		b.Fatalf("%d aggregates, want %d", len(next), aggregates)
	}
	for a, k := range next {
		if k != n {
			b.Fatalf("aggregate %s: %d events, want %d", a, k, n)
		}
	}
}

// collected reports whether all n numbers of all aggregates have been
// delivered.
func (r *recorder) collected(aggregates, n int) bool {
	seen := make(map[string]bool)
	for _, d := range r.all() {
		seen[fmt.Sprint(d.AggregateID, "/", numberOf(&d))] = true
	}
	return len(seen) >= aggregates*n
}

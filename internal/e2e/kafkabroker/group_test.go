package kafkabroker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/kafkabroker"
	"github.com/waybillhq/waybill/observe"
)

// consumer records its deliveries and answers with a function.
type consumer struct {
	answer func(ctx context.Context, d waybill.Delivery) error

	mu  sync.Mutex
	got []waybill.ID
}

func (c *consumer) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	results := make([]error, len(batch))
	for i, d := range batch {
		c.mu.Lock()
		c.got = append(c.got, d.ID)
		c.mu.Unlock()
		if c.answer != nil {
			results[i] = c.answer(ctx, d)
		}
	}
	return results
}

func (c *consumer) ids() []waybill.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]waybill.ID(nil), c.got...)
}

// consume runs a source until stop is called or the test ends.
func consume(t *testing.T, address string, c waybill.Sink, cfg broker.ReceiverConfig) (stop func()) {
	t.Helper()
	src, err := open(t, address, kafkabroker.Config{}).Source(kafkabroker.SourceConfig{
		Group: "billing", Topics: []string{"orders"}, SessionTimeout: 10 * time.Second, Receive: cfg,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- src.Run(ctx, c) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("no %s", what)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// committed returns the sum of the group's committed offsets.
func committed(t *testing.T, address string) int64 {
	t.Helper()
	found, err := kadm.NewClient(plain(t, address)).FetchOffsets(t.Context(), "billing")
	if errors.Is(err, kerr.GroupIDNotFound) {
		return 0 // no member has joined yet
	}
	if err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	found.Each(func(o kadm.OffsetResponse) { sum += max(o.At, 0) })
	return sum
}

func publish(t *testing.T, address string, batch ...waybill.Delivery) {
	t.Helper()
	for _, err := range sink(t, open(t, address, kafkabroker.Config{}), kafkabroker.SinkConfig{}).Deliver(t.Context(), batch) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A message that is not done prevents the commit of all later messages in its
// partition: after a crash, the next member starts with it.
func TestNothingIsCommittedPastAMessageInFlight(t *testing.T) {
	cluster, address := fake(t)
	if err := cluster.CreateTopic("single", 1, nil); err != nil {
		t.Fatal(err)
	}
	if err := cluster.CreateTopic("single.dead", 1, nil); err != nil {
		t.Fatal(err)
	}
	publish(t, address, event("single", "slow"), event("single", "b"), event("single", "c"))
	src, err := open(t, address, kafkabroker.Config{}).Source(kafkabroker.SourceConfig{Group: "billing", Topics: []string{"single"}, Receive: broker.ReceiverConfig{
		BatchSize: 1, DrainTimeout: -1,
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	done := 0
	c := &consumer{answer: func(ctx context.Context, d waybill.Delivery) error {
		if d.AggregateID == "slow" {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		mu.Lock()
		defer mu.Unlock()
		done++
		return nil
	}}
	ended := make(chan error, 1)
	go func() { ended <- src.Run(ctx, c) }()
	await(t, "both others", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return done == 2
	})
	cancel() // messages that are done are acknowledged before Run returns
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if n := committed(t, address); n != 0 {
		t.Errorf("%d records are committed, though the first is not done", n)
	}
}

func TestWhatIsDoneIsCommitted(t *testing.T) {
	_, address := fake(t)
	publish(t, address, event("orders", "a"), event("orders", "b"), event("orders", "c"), event("orders", "a"))
	consume(t, address, &consumer{}, broker.ReceiverConfig{})
	await(t, "commit", func() bool { return committed(t, address) == 4 })
}

// When partitions go to another member, messages in flight are finished and
// committed first, and waiting messages go to the other member. So each message
// is handled once.
func TestPartitionsAreHandedOver(t *testing.T) {
	cluster, address := fake(t)
	var batch []waybill.Delivery
	for n := range 12 {
		batch = append(batch, event("orders", string(rune('a'+n))))
	}
	publish(t, address, batch...)
	entered, release := make(chan struct{}, 100), make(chan struct{})
	first := &consumer{answer: func(ctx context.Context, _ waybill.Delivery) error {
		entered <- struct{}{}
		select {
		case <-release:
			return nil
		case <-ctx.Done(): // the test has failed
			return context.Cause(ctx)
		}
	}}
	// Four messages are in flight, of one or both partitions; all others wait.
	consume(t, address, first, broker.ReceiverConfig{Workers: 4, BatchSize: 1})
	for range 4 {
		<-entered
	}
	second := &consumer{}
	consume(t, address, second, broker.ReceiverConfig{})
	// The group has completed its assignment: the first member must give a
	// partition away, with messages in flight.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := cluster.WaitGroupInfo(ctx, "billing", func(g *kfake.GroupInfo) bool {
		return g != nil && len(g.Members) == 2 && g.State == "Stable" && g.Epoch >= 2
	})
	if err != nil {
		t.Fatal(err)
	}
	close(release)
	await(t, "partition for the second", func() bool {
		more := []waybill.Delivery{event("orders", "a"), event("orders", "b"), event("orders", "c"), event("orders", "d")}
		batch = append(batch, more...)
		publish(t, address, more...)
		await(t, "commit of all", func() bool { return committed(t, address) == int64(len(batch)) })
		return len(second.ids()) > 0
	})
	seen := make(map[waybill.ID]int)
	for _, id := range append(first.ids(), second.ids()...) {
		seen[id]++
	}
	for _, d := range batch {
		if seen[d.ID] != 1 {
			t.Errorf("aggregate %s: handled %d times", d.AggregateID, seen[d.ID])
		}
	}
}

// A dead letter that cannot be written must not lose the message.
func TestAMessageThatCannotBeDeadLetteredStays(t *testing.T) {
	cluster, address := fake(t)
	publish(t, address, event("orders", "a"))
	tried := make(chan struct{}, 100)
	c := &consumer{answer: func(context.Context, waybill.Delivery) error {
		tried <- struct{}{}
		return waybill.Permanent(context.Canceled)
	}}
	full := cluster.Fault(noDeadLetters())
	var aside sync.Map
	consume(t, address, c, broker.ReceiverConfig{
		BackoffBase: time.Millisecond, BackoffMax: 10 * time.Millisecond,
		Observe: observe.Hooks{DeadLettered: func(observe.DeadLetteredInfo) { aside.Store("done", true) }},
	})
	await(t, "second attempt", func() bool { return len(tried) >= 2 })
	if n := committed(t, address); n != 0 {
		t.Errorf("%d records are committed", n)
	}
	if _, done := aside.Load("done"); done {
		t.Error("the message is reported as dead-lettered")
	}
	full.Remove()
	await(t, "commit", func() bool { return committed(t, address) == 1 })
	if _, done := aside.Load("done"); !done {
		t.Error("the message was not dead-lettered")
	}
}

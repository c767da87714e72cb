package membroker_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/drivertest"
	"github.com/waybillhq/waybill/broker/membroker"
	"github.com/waybillhq/waybill/internal/eventfill"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	drivertest.Run(t, drivertest.Harness{
		Name: "membroker", Parallel: true,
		Capabilities: drivertest.Capabilities{
			Source: true, Counts: true, Dedup: true, MaxPayload: 64 << 10, Outage: true, Restart: true, Secrets: true,
		},
		Open: func(t *testing.T) drivertest.Instance {
			b := open(t, membroker.Config{MaxMessage: 100 << 10})
			return instance(t, b)
		},
	})
}

func open(t *testing.T, cfg membroker.Config) *membroker.Broker {
	t.Helper()
	b, err := membroker.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func sink(t *testing.T, b *membroker.Broker) *membroker.Sink {
	t.Helper()
	s, err := b.Sink(membroker.SinkConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func instance(t *testing.T, b *membroker.Broker) drivertest.Instance {
	codec, err := broker.NewCodec(broker.Kafka, broker.CodecConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return drivertest.Instance{
		Topic: "orders",
		Sink:  sink(t, b),
		Codec: codec,
		Source: func(name string, cfg broker.ReceiverConfig) broker.Source {
			src, err := b.Source(membroker.SourceConfig{Durable: name, Receive: cfg})
			if err != nil {
				t.Fatal(err)
			}
			return src
		},
		Read: func(context.Context) ([]broker.Message, error) { return b.Messages("orders"), nil },
		DeadLetters: func(_ context.Context, source string) ([]broker.Message, error) {
			return b.Messages(source + ".dead"), nil
		},
		Publish: b.Publish,
		Break:   func() { b.SetDown(true) },
		Heal:    func() { b.SetDown(false) },
		Restart: func() { b.SetDown(true); b.SetDown(false) },
		OpenWith: func(ctx context.Context, password string) error {
			_, err := membroker.Open(ctx, "amqp://user:"+password+"@localhost", membroker.Config{})
			return err
		},
	}
}

func TestFailures(t *testing.T) {
	b := open(t, membroker.Config{MaxMessage: 10})
	large := b.Publish(t.Context(), broker.Message{Topic: "t", Payload: make([]byte, 11)})
	b.SetFaults(membroker.Faults{DropConfirm: 1})
	unconfirmed := b.Publish(t.Context(), broker.Message{Topic: "t"})
	b.SetDown(true)
	down := b.Publish(t.Context(), broker.Message{Topic: "t"})
	drivertest.Failures(t, membroker.Failures(), map[string]error{
		"message too large": large, "not confirmed in time": unconfirmed, "down": down, "connection lost, refused or silent": context.Canceled,
	}, "")
	if got := b.Messages("t"); len(got) != 1 {
		t.Errorf("%d messages, want the one whose confirmation was lost", len(got))
	}
}

// With any fault, a consumer that remembers ids receives every event.
func TestFaults(t *testing.T) {
	for name, faults := range map[string]membroker.Faults{
		"lost deliveries": {DropDelivery: 0.3},
		"lost acks":       {DropAck: 0.3},
		"duplicates":      {Duplicate: 0.5},
		"disorder":        {Reorder: 0.5},
		"delays":          {Delay: 0.5},
		"everything":      {DropConfirm: 0.2, DropDelivery: 0.2, DropAck: 0.2, Duplicate: 0.2, Reorder: 0.2, Delay: 0.2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faults.Seed = 42
			b := open(t, membroker.Config{AckWait: 50 * time.Millisecond, DedupWindow: -1})
			b.SetFaults(faults)
			seen, stop := consume(t, b)
			const n = 100
			for range n {
				publish(t, b)
			}
			deadline := time.Now().Add(60 * time.Second)
			for seen.len() < n {
				if time.Now().After(deadline) {
					t.Fatalf("%d of %d events", seen.len(), n)
				}
				select {
				case <-t.Context().Done():
				case <-time.After(5 * time.Millisecond):
				}
			}
			stop()
			if faults.Duplicate == 0.5 && seen.maxCount() < 2 {
				t.Error("no event came twice")
			}
		})
	}
}

// A message that is lost on its way is redelivered after AckWait, even if
// nothing else happens.
func TestTheOnlyMessageIsLost(t *testing.T) {
	for seed := range uint64(20) {
		b := open(t, membroker.Config{AckWait: 5 * time.Millisecond})
		b.SetFaults(membroker.Faults{DropDelivery: 0.5, Seed: seed})
		seen, stop := consume(t, b)
		publish(t, b)
		deadline, tick := time.After(20*time.Second), time.NewTicker(time.Millisecond)
		for waiting := true; waiting && seen.len() == 0; {
			select {
			case <-tick.C:
			case <-deadline:
				t.Errorf("seed %d: the message was not redelivered", seed)
				waiting = false
			}
		}
		tick.Stop()
		stop()
		if t.Failed() {
			return
		}
	}
}

// consume runs a source until stop is called.
func consume(t *testing.T, b *membroker.Broker) (seen *set, stop func()) {
	t.Helper()
	src, err := b.Source(membroker.SourceConfig{Durable: "s"})
	if err != nil {
		t.Fatal(err)
	}
	seen = &set{ids: make(map[waybill.ID]int)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- src.Run(ctx, seen) }()
	return seen, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// publish delivers one event until it is confirmed.
func publish(t *testing.T, b *membroker.Broker) {
	t.Helper()
	d := waybill.Delivery{Event: eventfill.Defaults(waybill.NewEvent("x", 1)), Attempt: 1}
	for {
		err := sink(t, b).Deliver(t.Context(), []waybill.Delivery{d})[0]
		if err == nil {
			return
		}
		if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable {
			t.Fatal(err)
		}
	}
}

// set counts the ids it has seen.
type set struct {
	mu  sync.Mutex
	ids map[waybill.ID]int
}

func (s *set) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range batch {
		s.ids[batch[i].ID]++
	}
	return make([]error, len(batch))
}

func (s *set) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids)
}

func (s *set) maxCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := 0
	for _, n := range s.ids {
		count = max(count, n)
	}
	return count
}

func TestConfig(t *testing.T) {
	_, err := membroker.New(membroker.Config{AckWait: -1, MaxMessage: -1})
	says(t, err, "membroker: Config.AckWait: -1ns is negative\nConfig.MaxMessage: -1 is negative")
	if _, err := membroker.Open(t.Context(), "mem:", membroker.Config{}); err != nil {
		t.Error(err)
	}
	b := open(t, membroker.Config{})
	_, err = b.Sink(membroker.SinkConfig{EventSource: "a b"})
	says(t, err, "membroker: SinkConfig.EventSource: not a URI reference of at most 512 printable ASCII characters")
	_, err = b.Source(membroker.SourceConfig{Receive: broker.ReceiverConfig{Workers: -1, ReconnectMax: -1, BackoffBase: -1}})
	says(t, err, "membroker: SourceConfig.Durable: empty\nReceiverConfig.Workers: -1 is negative\n"+
		"ReceiverConfig.BackoffBase: -1ns is negative\nReceiverConfig.ReconnectMax: -1ns is negative")
	if s, err := b.Source(membroker.SourceConfig{Durable: "billing"}); err != nil || s.Name() != "billing" {
		t.Errorf("the source is %v, %v", s, err)
	}
	if s, err := b.Source(membroker.SourceConfig{Durable: "billing", Name: "invoices"}); err != nil || s.Name() != "invoices" {
		t.Errorf("the source is %v, %v", s, err)
	}
}

func says(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

//go:build linux || darwin

package brokers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/internal/testserver/private"
	"github.com/waybillhq/waybill/relay"
)

// stand is one broker for these tests.
type stand struct {
	name string
	// timeout is the publish timeout of its sinks; pauses are shorter and
	// longer than that.
	timeout time.Duration
	// start starts a server for faults.
	start func(t *testing.T) (victim, string)
	// shared returns the address of a server that all tests share.
	shared func(tb testing.TB) string
	// place creates a unique topic. The victim is nil on a shared server.
	place func(t *testing.T, address string, v victim) place
}

// victim is a server for faults.
type victim interface {
	Kill(ctx context.Context) error
	Restart(ctx context.Context) error
	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error
}

// place is a topic on a server.
type place interface {
	// topic is the topic of the events.
	topic() string
	// sink connects, through the proxy if there is one.
	sink(ctx context.Context, via *proxy) (relay.DestinationSink, func(), error)
	// source connects.
	source(ctx context.Context, cfg broker.ReceiverConfig) (broker.Source, func(), error)
	// read returns the payloads of all messages, in order, with the broker's
	// own client.
	read(ctx context.Context) ([][]byte, error)
}

func stands() []stand {
	return []stand{pulsarStand(), natsStand(), kafkaStand(), redisStand(), rabbitStand(), webhookStand()}
}

// startPrivate starts a server that ends with the test.
func startPrivate(name string) func(t *testing.T) (victim, string) {
	return func(t *testing.T) (victim, string) {
		t.Helper()
		s := private.Start(t, name)
		return s, s.DSN
	}
}

// letter is the payload of an event: the number-th of its aggregate.
type letter struct {
	Aggregate string `json:"aggregate"`
	Number    int    `json:"number"`
	Amount    int64  `json:"amount"`
}

const (
	aggregateType = "account"
	eventType     = "AmountChanged"
)

// stream is events of many aggregates, in a possible commit order.
type stream struct {
	events []waybill.Event
	count  map[string]int   // per aggregate
	sum    map[string]int64 // per aggregate
}

func newStream(p plan, rng *rand.Rand, topic string) *stream {
	s := &stream{count: make(map[string]int, p.aggregates), sum: make(map[string]int64, p.aggregates)}
	for range p.events {
		l := letter{Aggregate: fmt.Sprint("a", rng.IntN(p.aggregates)), Amount: rng.Int64N(2001) - 1000}
		s.count[l.Aggregate]++
		l.Number = s.count[l.Aggregate]
		s.sum[l.Aggregate] += l.Amount
		ev := waybill.NewEvent(eventType, l)
		ev.Topic, ev.AggregateType, ev.AggregateID = topic, aggregateType, l.Aggregate
		s.events = append(s.events, ev)
	}
	return s
}

// arrived returns the number of different events among the payloads. An event
// before its predecessor fails the test; a duplicate does not, because delivery
// is at least once.
func (s *stream) arrived(t *testing.T, payloads [][]byte) int {
	t.Helper()
	last := make(map[string]int, len(s.count))
	found := 0
	for i, payload := range payloads {
		var l letter
		if err := json.Unmarshal(payload, &l); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		switch at := last[l.Aggregate]; {
		case l.Number == at+1:
			last[l.Aggregate]++
			found++
		case l.Number > at+1:
			t.Fatalf("message %d: number %d of aggregate %s is there before number %d", i, l.Number, l.Aggregate, at+1)
		}
	}
	return found
}

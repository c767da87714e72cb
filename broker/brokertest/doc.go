// Package brokertest is the conformance suite that every broker passes: what package broker promises, each promise as a test that can fail. A
// broker runs it from its own tests, against a real server:
//
//	func TestConformance(t *testing.T) {
//		brokertest.Run(t, brokertest.Harness{
//			Name:         "mybroker",
//			Capabilities: brokertest.Capabilities{Source: true, Counts: true, Outage: true},
//			Open:         open, // a sink and a source over a topic that nobody has used
//		})
//	}
//
// What a broker cannot show is skipped with the reason. The suite needs no sleep and asserts no duration: it waits for conditions, with a generous deadline.
// Brokers check for goroutines left behind with goleak in their TestMain.
package brokertest

import (
	"context"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/relay"
)

// Harness is a broker under test.
type Harness struct {
	// Name of the broker.
	Name string
	// Capabilities say what it can do.
	Capabilities Capabilities
	// Parallel: the checks may run side by side, because every instance has a server of its own, or none is broken or restarted.
	Parallel bool
	// Open returns the broker with a topic that nobody has used. What it starts ends with the test.
	Open func(t *testing.T) Instance
}

// Capabilities say what a broker can do. What is false is not tested.
type Capabilities struct {
	// Source: it has one. A webhook has not.
	Source bool
	// Counts: the broker counts deliveries, also those to a consumer that vanished.
	Counts bool
	// Dedup: the broker drops a message whose publish id it has seen a moment ago.
	Dedup bool
	// MaxPayload, if it is not 0, is the largest payload that the instance takes; one of twice the size is refused. At most 512 KiB.
	MaxPayload int
	// Unroutable, if it is not Done, is the class of an event for [Instance.Nowhere].
	Unroutable waybill.Class
	// Outage: the instance can be cut off, see [Instance.Break].
	Outage bool
	// Restart: the server can be killed and started again, and keeps what it has confirmed.
	Restart bool
	// Secrets: opening with a password can fail, see [Instance.OpenWith].
	Secrets bool
}

// Instance is a broker with a topic that nobody has used.
type Instance struct {
	// Topic is what the suite puts into Event.Topic.
	Topic string
	// Sink publishes.
	Sink relay.Sink
	// Codec is the one that the sink uses.
	Codec *broker.Codec
	// Source returns a source of what is published to Topic. Sources of one name are one durable consumer, which begins to exist with the first call.
	Source func(name string, cfg broker.ReceiverConfig) broker.Source
	// Read returns all that was published to Topic so far, in order, with a client that knows nothing of Waybill.
	Read func(ctx context.Context) ([]broker.Message, error)
	// DeadLetters returns what was moved to the dead-letter destination of a source so far.
	DeadLetters func(ctx context.Context, source string) ([]broker.Message, error)
	// Publish publishes a message of any content to Topic.
	Publish func(ctx context.Context, m broker.Message) error
	// Nowhere is a topic for which the server has no place.
	Nowhere string
	// Break cuts the connections of sink and sources, and keeps them cut until Heal.
	Break, Heal func()
	// Restart kills the server and starts it again.
	Restart func()
	// OpenWith tries to open the broker with a password, at an address where that fails, and returns the error.
	OpenWith func(ctx context.Context, password string) error
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	t.Helper()
	for _, c := range checks() {
		t.Run(c.name, func(t *testing.T) {
			if why := h.Capabilities.lacks(c.needs); why != "" {
				t.Skip(h.Name + ": " + why)
			}
			if h.Parallel {
				t.Parallel()
			}
			c.run(&bed{T: t, Instance: h.Open(t), can: h.Capabilities})
		})
	}
}

// need is what a check needs of a broker.
type need int

const (
	needSink need = iota
	needSource
	needDedup
	needLimit
	needUnroutable
	needOutage
	needRestart
	needSecrets
)

// lacks returns why a broker cannot show what needs the capability, or "" if it can.
func (c Capabilities) lacks(n need) string {
	unless := func(has bool, reason string) string {
		if has {
			return ""
		}
		return reason
	}
	switch n {
	case needSink:
	case needSource:
		return unless(c.Source, "it has no source (Capabilities.Source)")
	case needDedup:
		return unless(c.Dedup, "the broker drops no duplicates (Capabilities.Dedup)")
	case needLimit:
		return unless(c.MaxPayload > 0, "it takes messages of any size (Capabilities.MaxPayload)")
	case needUnroutable:
		return unless(c.Unroutable != waybill.ClassDone, "every topic has a place (Capabilities.Unroutable)")
	case needOutage:
		return unless(c.Outage, "it cannot be cut off (Capabilities.Outage)")
	case needRestart:
		return unless(c.Restart, "it cannot be started again (Capabilities.Restart)")
	case needSecrets:
		return unless(c.Secrets, "it has no passwords (Capabilities.Secrets)")
	}
	return ""
}

// check is one promise.
type check struct {
	name  string
	needs need
	run   func(b *bed)
}

func checks() []check {
	return []check{
		{"round trip of every field", needSink, roundTrip},
		{"ids and headers on the wire", needSink, onTheWire},
		{"a replay has a publish id of its own", needSink, replay},
		{"a repeated publish id is dropped", needDedup, repeated},
		{"one result per delivery", needSink, results},
		{"what cannot travel stops nothing", needSink, cannotTravel},
		{"order per aggregate in one batch", needSink, batchOrder},
		{"too large is permanent", needLimit, tooLarge},
		{"unroutable has its class", needUnroutable, unroutable},
		{"an ended context is nobody's fault", needSink, endedContext},
		{"an outage is down and loses nothing", needOutage, outage},
		{"a restart loses nothing", needRestart, restart},
		{"secrets are hidden", needSecrets, secrets},
		{"order per aggregate with many workers", needSource, workerOrder},
		{"a failure comes again and holds its aggregate", needSource, failure},
		{"a failure is given back and holds its aggregate", needSource, givenBack},
		{"what a consumer vanished with comes again", needSource, vanished},
		{"done is acknowledged, once", needSource, acknowledged},
		{"dead goes to the dead letters", needSource, deadLetter},
		{"unreadable goes to the dead letters", needSource, unreadable},
		{"a panic is a failure", needSource, panics},
		{"work in hand is finished", needSource, drain},
		{"end to end", needSource, endToEnd},
	}
}

// Package drivertest is the conformance suite for brokers: it tests every
// guarantee of package broker. A broker runs the suite from its own tests,
// against a real server:
//
//	func TestConformance(t *testing.T) {
//		drivertest.Run(t, drivertest.Harness{
//			Name: "mybroker",
//			Capabilities: drivertest.Capabilities{
//				Source: true, Counts: true, Outage: true,
//			},
//			Open: open, // a sink and a source over an unused topic
//		})
//	}
//
// Checks that need a missing capability are skipped with the reason. The suite
// does not sleep and asserts no duration: it waits for conditions, with a
// generous deadline. Brokers check for leaked goroutines with goleak in their
// TestMain.
package drivertest

import (
	"context"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
)

// Harness describes a broker under test.
type Harness struct {
	// Name is the name of the broker.
	Name string
	// Capabilities describes the broker's features.
	Capabilities Capabilities
	// Parallel allows checks to run concurrently. Set it if every instance has
	// its own server, or if no server is cut off or restarted.
	Parallel bool
	// Open returns the broker with an unused topic. Everything that Open starts
	// must end with the test.
	Open func(t *testing.T) Instance
}

// Capabilities describes the features of a broker. Features that are false are
// not tested.
type Capabilities struct {
	// Source: the broker has a source. Webhooks, for example, have none.
	Source bool
	// Counts: the broker counts deliveries, including those to a consumer that
	// crashed.
	Counts bool
	// Dedup: the broker drops a message with a publish id that it has seen
	// recently.
	Dedup bool
	// MaxPayload, if not 0, is the largest payload that the instance accepts; a
	// payload of twice that size is rejected. At most 512 KiB.
	MaxPayload int
	// Unroutable, if not [waybill.ClassDone], is the class of an event for
	// [Instance.Nowhere].
	Unroutable waybill.Class
	// Outage: the connections of the instance can be cut; see [Instance.Break].
	Outage bool
	// Restart: the server can be killed and started again, and keeps the
	// messages that it has confirmed.
	Restart bool
	// Secrets: opening with a password can fail; see [Instance.OpenWith].
	Secrets bool
}

// Instance is a broker with an unused topic.
type Instance struct {
	// Topic is the Event.Topic that the suite uses.
	Topic string
	// Sink publishes events.
	Sink waybill.Sink
	// Codec is the codec of the sink.
	Codec *broker.Codec
	// Source returns a source for the messages of Topic. Sources with the same
	// name share one durable consumer, which the first call creates.
	Source func(name string, cfg broker.ReceiverConfig) broker.Source
	// Read returns all messages that were published to Topic so far, in order.
	// It must use a client that does not depend on Waybill.
	Read func(ctx context.Context) ([]broker.Message, error)
	// DeadLetters returns the messages in the dead-letter destination of a
	// source.
	DeadLetters func(ctx context.Context, source string) ([]broker.Message, error)
	// Publish publishes an arbitrary message to Topic.
	Publish func(ctx context.Context, m broker.Message) error
	// Nowhere is a topic that does not exist on the server.
	Nowhere string
	// Break cuts the connections of sink and sources and keeps them cut until
	// Heal.
	Break, Heal func()
	// Restart kills the server and starts it again.
	Restart func()
	// OpenWith opens the broker with a password, at an address where that
	// fails, and returns the error.
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

// need is the capability that a check needs.
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

// lacks returns the reason why a broker cannot run a check, or "" if it can.
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
		return unless(c.Source, "the broker has no source (Capabilities.Source)")
	case needDedup:
		return unless(c.Dedup, "the broker does not deduplicate (Capabilities.Dedup)")
	case needLimit:
		return unless(c.MaxPayload > 0, "the broker has no size limit (Capabilities.MaxPayload)")
	case needUnroutable:
		return unless(c.Unroutable != waybill.ClassDone, "every topic is routable (Capabilities.Unroutable)")
	case needOutage:
		return unless(c.Outage, "the connections cannot be cut (Capabilities.Outage)")
	case needRestart:
		return unless(c.Restart, "the server cannot be restarted (Capabilities.Restart)")
	case needSecrets:
		return unless(c.Secrets, "the broker has no passwords (Capabilities.Secrets)")
	}
	return ""
}

// check is one guarantee.
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
		{"invalid events do not affect others", needSink, cannotTravel},
		{"order per aggregate in one batch", needSink, batchOrder},
		{"too large is permanent", needLimit, tooLarge},
		{"unroutable has its class", needUnroutable, unroutable},
		{"an ended context counts no attempt", needSink, endedContext},
		{"an outage counts no attempt and loses nothing", needOutage, outage},
		{"a restart loses nothing", needRestart, restart},
		{"secrets are hidden", needSecrets, secrets},
		{"order per aggregate with many workers", needSource, workerOrder},
		{"a failed message is redelivered and blocks its aggregate", needSource, failure},
		{"a failed message is returned and blocks its aggregate", needSource, givenBack},
		{"messages of a crashed consumer are redelivered", needSource, vanished},
		{"done messages are acknowledged once", needSource, acknowledged},
		{"dead messages go to the dead letters", needSource, deadLetter},
		{"unreadable messages go to the dead letters", needSource, unreadable},
		{"a panic is a failure", needSource, panics},
		{"messages in flight are finished", needSource, drain},
		{"end to end", needSource, endToEnd},
	}
}

package pulsarbroker

import (
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/waybillhq/waybill/broker/driver"
)

// messageDouble is a message of a topic.
type messageDouble struct {
	pulsar.Message
	topic string
	entry int64
}

func (m messageDouble) Topic() string               { return m.topic }
func (m messageDouble) ID() pulsar.MessageID        { return pulsar.NewMessageID(1, m.entry, -1, -1) }
func (messageDouble) Key() string                   { return "k" }
func (messageDouble) Payload() []byte               { return nil }
func (messageDouble) RedeliveryCount() uint32       { return 0 }
func (messageDouble) Properties() map[string]string { return nil }

// tenured is the expected tenure of an incoming message.
type tenured struct {
	tenure *driver.Tenure
	number int
}

// A topic has one tenure until it is taken away. A message behind a later one
// may come from a crashed process, and gets a tenure of its own.
func TestTenures(t *testing.T) {
	s := &session{lost: make(chan tenure, 1), tenures: make(map[string]*reign)}
	take := func(topic string, entry int64) *tenured {
		in := s.incoming(messageDouble{topic: topic, entry: entry})
		h, _ := in.Handle.(handle)
		if in.Tenure == nil {
			t.Fatalf("message %d of %s has no tenure", entry, topic)
		}
		return &tenured{in.Tenure, h.number}
	}
	first, other := take("a", 5), take("b", 1)
	if next := take("a", 6); *next != *first {
		t.Errorf("the next message has %v, want %v", next, first)
	}
	if other.tenure == first.tenure {
		t.Error("two topics have one tenure")
	}
	late, later := take("a", 3), take("a", 4)
	if late.tenure == first.tenure || later.tenure == first.tenure || late.tenure == later.tenure {
		t.Error("a message that comes behind a later one is not a suspect by itself")
	}
	if next := take("a", 7); *next != *first {
		t.Errorf("behind late messages, the next one has %v, want %v", next, first)
	}
	s.BecameInactive(nil, "a", 0)
	if gone := <-s.lost; gone != (tenure{"a", 0}) {
		t.Errorf("lost: %v", gone)
	}
	if again := take("a", 8); again.tenure == first.tenure || again.number != 1 {
		t.Errorf("when the topic has come back, it has %v", again)
	}
	if next := take("b", 2); *next != *other {
		t.Errorf("the other topic has %v, want %v", next, other)
	}
}

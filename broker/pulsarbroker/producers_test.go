package pulsarbroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/waybillhq/waybill"
)

// ErrUnverified is exported for the test of the failure table.
var ErrUnverified = errUnverified

// producerDouble gives answers that a real broker cannot be made to give.
type producerDouble struct {
	pulsar.Producer
	send   func(answer func(pulsar.MessageID, *pulsar.ProducerMessage, error))
	closed chan struct{}
}

func (p *producerDouble) SendAsync(_ context.Context, _ *pulsar.ProducerMessage, answer func(pulsar.MessageID, *pulsar.ProducerMessage, error)) {
	p.send(answer)
}

func (p *producerDouble) Close() { close(p.closed) }

func double(send func(answer func(pulsar.MessageID, *pulsar.ProducerMessage, error))) *producerDouble {
	return &producerDouble{send: send, closed: make(chan struct{})}
}

func stored(answer func(pulsar.MessageID, *pulsar.ProducerMessage, error)) {
	answer(pulsar.NewMessageID(1, 2, -1, -1), nil, nil)
}

// pool returns a pool whose producers come from a list, in order.
func pool(t *testing.T, limit int, made ...*producerDouble) *producers {
	t.Helper()
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	var mu sync.Mutex
	return &producers{
		limit: limit, byTopic: make(map[string]*producer),
		start: func(call func()) bool { running.Go(call); return true },
		create: func(string) (pulsar.Producer, error) {
			mu.Lock()
			defer mu.Unlock()
			if len(made) == 0 {
				return nil, errors.New("server error: TopicNotFound: no more of them")
			}
			next := made[0]
			made = made[1:]
			return next, nil
		},
	}
}

func send(ctx context.Context, p *producers, topic string) error {
	return p.send(ctx, topic, []*pulsar.ProducerMessage{{}})[0]
}

// The broker may treat a message that it never stored as a duplicate. The
// message is published again, by another producer.
func TestAReceiptWithoutAMessageIsNoDelivery(t *testing.T) {
	bad := double(func(answer func(pulsar.MessageID, *pulsar.ProducerMessage, error)) {
		answer(pulsar.NewMessageID(-1, -1, 0, 0), nil, nil)
	})
	p := pool(t, 4, bad, double(stored))
	err := Failures().Classify(send(t.Context(), p, "a"))
	if class, _ := waybill.Classify(err); class != waybill.ClassDefer {
		t.Errorf("class %v: %v", class, err)
	}
	<-bad.closed
	if err := send(t.Context(), p, "a"); err != nil {
		t.Errorf("the second producer: %v", err)
	}
}

// The client would resend the message, perhaps long after another producer has,
// and after later events.
func TestAProducerThatDoesNotAnswerIsClosed(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	// The context ends when the producer has the message.
	silent := double(func(func(pulsar.MessageID, *pulsar.ProducerMessage, error)) { cancel(errSilent) })
	p := pool(t, 4, silent, double(stored))
	if err := send(ctx, p, "a"); !errors.Is(err, errSilent) {
		t.Errorf("%v", err)
	}
	<-silent.closed
	if err := send(t.Context(), p, "a"); err != nil {
		t.Errorf("the second producer: %v", err)
	}
}

// The client closes one of its channels during a send.
func TestAPanicOfTheClientIsAClosedProducer(t *testing.T) {
	broken := double(func(func(pulsar.MessageID, *pulsar.ProducerMessage, error)) { panic("send on closed channel") })
	p := pool(t, 4, broken)
	err := Failures().Classify(send(t.Context(), p, "a"))
	if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable {
		t.Errorf("class %v: %v", class, err)
	}
	<-broken.closed
}

func TestAMessageThatIsTooLargeLeavesTheProducer(t *testing.T) {
	first := true
	p := pool(t, 4, double(func(answer func(pulsar.MessageID, *pulsar.ProducerMessage, error)) {
		if first {
			first = false
			answer(nil, nil, pulsar.ErrMessageTooLarge)
			return
		}
		stored(answer)
	}))
	if err := send(t.Context(), p, "a"); !tooLarge(err) {
		t.Errorf("%v", err)
	}
	if err := send(t.Context(), p, "a"); err != nil {
		t.Errorf("the same producer: %v", err)
	}
}

// A producer that could not be created is not kept.
func TestAProducerIsTriedAgain(t *testing.T) {
	p := pool(t, 4)
	for range 2 {
		if err := send(t.Context(), p, "a"); !reports(err, "TopicNotFound") {
			t.Errorf("%v", err)
		}
	}
	if n := len(p.byTopic); n != 0 {
		t.Errorf("%d producers are kept", n)
	}
}

func TestProducersAreBounded(t *testing.T) {
	var made []*producerDouble
	for range 5 {
		made = append(made, double(stored))
	}
	p := pool(t, 2, made...)
	// b is used least recently, then c.
	for _, topic := range []string{"a", "b", "a", "c", "a", "d"} {
		if err := send(t.Context(), p, topic); err != nil {
			t.Fatal(err)
		}
	}
	<-made[1].closed
	<-made[2].closed
	if len(p.byTopic) != 2 || p.byTopic["a"] == nil || p.byTopic["d"] == nil {
		t.Errorf("kept are %v", fmt.Sprint(p.byTopic))
	}
	p.close()
	<-made[0].closed
	<-made[3].closed
	if err := send(t.Context(), p, "a"); !errors.Is(err, errClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// Positions of messages compare like their ids, however large the ledger, the
// entry or the batch index.
func TestOrder(t *testing.T) {
	last := []uint64{0}
	for _, id := range []pulsar.MessageID{
		pulsar.NewMessageID(0, 0, -1, -1), pulsar.NewMessageID(0, 1, -1, -1), pulsar.NewMessageID(0, 1, 1, -1), pulsar.NewMessageID(0, 1, 999, -1),
		pulsar.NewMessageID(0, 50_000, 0, -1), pulsar.NewMessageID(7, 0, -1, -1), pulsar.NewMessageID(8, 16_000_000, 1000, 3),
		pulsar.NewMessageID(8, 16_000_000, 1023, 3), pulsar.NewMessageID(8, 16_000_000, 1024, 3), pulsar.NewMessageID(8, 17_000_000, 0, 3),
		pulsar.NewMessageID(8, 17_000_001, 0, 3), pulsar.NewMessageID(900_000_000, 0, 0, 3), pulsar.NewMessageID(1<<30, 0, 0, 3),
		pulsar.NewMessageID(1<<30+8, 0, 0, 3), pulsar.NewMessageID(1<<62, 1<<62, 1<<30, 3),
	} {
		n, within := order(id)
		place := append([]uint64{n}, within[:]...)
		if n == 0 || slices.Compare(place, last) <= 0 {
			t.Errorf("%v has the place %d after %d", id, place, last)
		}
		last = place
	}
}

func TestWhole(t *testing.T) {
	for topic, want := range map[string]string{"a-partition-12": "a", "a": "a", "a-partition-b": "a-partition-b", "a-partition-1-dead": "a-partition-1-dead"} {
		if got := whole(topic); got != want {
			t.Errorf("%s is of %s, want %s", topic, got, want)
		}
	}
}

package natsbroker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/broker/natsbroker/natsembed"
)

// takeOver is a stream, and the durable consumer of a process that another one takes over from: a plain client.
type takeOver struct {
	*testing.T
	url    string
	b      *natsbroker.Broker
	conn   *nats.Conn
	before jetstream.Consumer
	sent   int
}

const shortWait = time.Second

func newTakeOver(t *testing.T) *takeOver {
	t.Helper()
	s := startServer(t, natsembed.Config{})
	o := &takeOver{T: t, url: s.url(), b: open(t, s.url(), natsbroker.Config{}), conn: connect(t, s.url())}
	js, err := jetstream.New(o.conn)
	if err != nil {
		t.Fatal(err)
	}
	o.before, err = js.CreateOrUpdateConsumer(t.Context(), "orders", jetstream.ConsumerConfig{
		Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, AckWait: shortWait, MaxDeliver: -1, MaxAckPending: 20_000,
	})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// publish publishes the next n messages of one aggregate.
func (o *takeOver) publish(n int) {
	o.Helper()
	for range n {
		if err := sink(o.T, o.b).Deliver(o.Context(), []waybill.Delivery{event("a", o.sent)})[0]; err != nil {
			o.Fatal(err)
		}
		o.sent++
	}
}

// fetch is the first process taking messages, of which it answers none.
func (o *takeOver) fetch(n int) []jetstream.Msg {
	o.Helper()
	batch, err := o.before.Fetch(n, jetstream.FetchMaxWait(20*time.Second))
	if err != nil {
		o.Fatal(err)
	}
	var msgs []jetstream.Msg
	for m := range batch.Messages() {
		msgs = append(msgs, m)
	}
	if len(msgs) != n {
		o.Fatalf("%d messages of %d, %v", len(msgs), n, batch.Error())
	}
	return msgs
}

// check wants all messages to be handled by the second process in their order.
func (o *takeOver) check(second *seen) {
	o.Helper()
	var want []string
	for n := range o.sent {
		want = append(want, fmt.Sprint("a/n", n))
	}
	await(o.T, "all messages", func() bool { return strings.Count(second.all(), "a/") >= o.sent })
	if got := second.all(); got != strings.Join(want, " ") {
		o.Errorf("handled %s", got)
	}
}

func (o *takeOver) run(cfg broker.ReceiverConfig) *seen {
	o.Helper()
	second := &seen{}
	run(o.T, o.b, natsbroker.SourceConfig{Name: "billing", AckWait: shortWait, Receive: cfg}, second)
	return second
}

// What a process had in hand when it vanished is handled by its successor before anything newer.
func TestSuccessorTakesTheOldestFirst(t *testing.T) {
	t.Parallel()
	o := newTakeOver(t)
	o.publish(2)
	o.fetch(1)
	o.conn.Close()
	o.check(o.run(broker.ReceiverConfig{}))
}

// The successor waits for all of it, however long it takes until the last has come, and although they come in any order.
func TestSuccessorWaitsForAll(t *testing.T) {
	t.Parallel()
	o := newTakeOver(t)
	o.publish(4)
	msgs := o.fetch(4)
	o.publish(3)
	// The server misses its word about the last one first, and about the first one after four times AckWait.
	began := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.NewTicker(shortWait / 5); ; {
			for i, m := range msgs {
				if time.Since(began) < time.Duration(len(msgs)-i-1)*shortWait {
					_ = m.InProgress()
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	}()
	defer func() { cancel(); <-ended }()
	o.check(o.run(broker.ReceiverConfig{MaxInFlight: 1})) // each is handled before the next is put
}

// What the first process had may be more than the second one takes at a time.
func TestSuccessorTakesMoreThanItsShare(t *testing.T) {
	t.Parallel()
	o := newTakeOver(t)
	o.publish(40)
	o.fetch(30)
	o.conn.Close()
	o.check(o.run(broker.ReceiverConfig{MaxInFlight: 4}))
}

// A fetch that a process has left behind takes messages for as long as it lasts. The successor begins when it is over, and waits for them.
func TestSuccessorWaitsForAFetchLeftBehind(t *testing.T) {
	t.Parallel()
	o := newTakeOver(t)
	inbox := nats.NewInbox()
	if _, err := o.conn.SubscribeSync(inbox); err != nil {
		t.Fatal(err)
	}
	if err := o.conn.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.orders.billing", inbox, []byte(`{"batch":1,"expires":450000000}`)); err != nil {
		t.Fatal(err)
	}
	waiting := func() int {
		info, err := o.before.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return info.NumWaiting
	}
	began := time.Now()
	await(t, "the fetch", func() bool { return waiting() == 1 || time.Since(began) > time.Second })
	second := o.run(broker.ReceiverConfig{})
	// One that does not wait fetches by now, and behind the other one.
	began = time.Now()
	await(t, "the successor's fetch, or a moment", func() bool { return waiting() == 2 || time.Since(began) > 150*time.Millisecond })
	o.publish(3)
	o.check(second)
}

// A message that was put off for long, and given up when the process stopped, comes first in the next one.
func TestSuccessorTakesWhatWasPutOff(t *testing.T) {
	t.Parallel()
	o := newTakeOver(t)
	first := &seen{answer: func(context.Context, waybill.Delivery) error { return waybill.Later(time.Hour, errors.New("not yet")) }}
	stop := run(t, o.b, natsbroker.SourceConfig{Name: "billing", AckWait: shortWait}, first)
	o.publish(2)
	await(t, "the first message", func() bool { return first.all() == "a/n0" })
	stop()
	o.publish(1)
	o.check(o.run(broker.ReceiverConfig{}))
}

// A connection that is lost takes messages with it. One that comes back while a fetch is open brings newer ones into the same fetch: they wait for those that were lost.
func TestConnectionComesBackInAFetch(t *testing.T) {
	t.Parallel()
	o := newTakeOver(t)
	p := startProxy(t, o.url)
	back := make(chan struct{}, 1)
	through := open(t, p.url(), natsbroker.Config{Logger: slog.New(slog.NewTextHandler(writerFunc(func(line []byte) (int, error) {
		if strings.Contains(string(line), "is back") {
			back <- struct{}{}
		}
		return len(line), nil
	}), nil))})
	src, err := through.Source(natsbroker.SourceConfig{Name: "billing", AckWait: shortWait})
	if err != nil {
		t.Fatal(err)
	}
	src.FetchFor(4 * time.Second)
	got := &seen{}
	runSource(t, src, got)
	is := func(ok func(*jetstream.ConsumerInfo) bool) func() bool {
		return func() bool {
			info, err := o.before.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return ok(info)
		}
	}
	await(t, "its fetch", is(func(i *jetstream.ConsumerInfo) bool { return i.NumWaiting == 1 }))
	p.freeze()
	o.publish(3)
	await(t, "the server has sent them", is(func(i *jetstream.ConsumerInfo) bool { return i.NumAckPending == 3 }))
	p.cut()
	p.thaw()
	p.heal()
	<-back // to ask the server before would end the fetch: nobody would be there for it
	o.publish(3)
	o.check(got)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

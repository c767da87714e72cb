package natsbroker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/broker/natsembed"
)

// takeOver is a stream with a durable consumer whose first process is a plain
// client, and which another process takes over.
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

// fetch takes messages as the first process, which answers none of them.
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

// check expects the second process to handle all messages in order.
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
	run(o.T, o.b, natsbroker.SourceConfig{Durable: "billing", AckWait: shortWait, Receive: cfg}, second)
	return second
}

// The messages in flight of a crashed process are handled by its successor
// before newer ones.
func TestSuccessorTakesTheOldestFirst(t *testing.T) {
	t.Parallel()
	o := newTakeOver(t)
	o.publish(2)
	o.fetch(1)
	o.conn.Close()
	o.check(o.run(broker.ReceiverConfig{}))
}

// The successor waits for all of them, however long the last one takes, and
// although they arrive in any order.
func TestSuccessorWaitsForAll(t *testing.T) {
	t.Parallel()
	o := newTakeOver(t)
	o.publish(4)
	msgs := o.fetch(4)
	o.publish(3)
	// The deadline of the last message expires first, and that of the first
	// message after four times AckWait.
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

// The first process may have had more messages in flight than the second one
// takes at a time.
func TestSuccessorTakesMoreThanItsShare(t *testing.T) {
	t.Parallel()
	o := newTakeOver(t)
	o.publish(40)
	o.fetch(30)
	o.conn.Close()
	o.check(o.run(broker.ReceiverConfig{MaxInFlight: 4}))
}

// A pending fetch of a crashed process takes messages until it expires. The
// successor starts after that, and waits for those messages.
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
	// A source that does not wait has a fetch pending by now, behind the other
	// one.
	began = time.Now()
	await(t, "the successor's fetch, or a moment", func() bool { return waiting() == 2 || time.Since(began) > 150*time.Millisecond })
	o.publish(3)
	o.check(second)
}

// A message that was deferred for long, and released when its process stopped,
// comes first in the next process.
func TestSuccessorTakesDeferredMessages(t *testing.T) {
	t.Parallel()
	o := newTakeOver(t)
	first := &seen{answer: func(context.Context, waybill.Delivery) error { return waybill.Later(time.Hour, errors.New("not yet")) }}
	stop := run(t, o.b, natsbroker.SourceConfig{Durable: "billing", AckWait: shortWait}, first)
	o.publish(2)
	await(t, "the first message", func() bool { return first.all() == "a/n0" })
	stop()
	o.publish(1)
	o.check(o.run(broker.ReceiverConfig{}))
}

// A lost connection loses messages. If the connection is restored during a
// fetch, newer messages arrive in the same fetch: they wait for the lost ones.
func TestConnectionComesBackInAFetch(t *testing.T) {
	t.Parallel()
	o := newTakeOver(t)
	p := startProxy(t, o.url)
	back := make(chan struct{}, 1)
	through := open(t, p.url(), natsbroker.Config{Logger: slog.New(slog.NewTextHandler(writerFunc(func(line []byte) (int, error) {
		if strings.Contains(string(line), "connection to NATS restored") {
			back <- struct{}{}
		}
		return len(line), nil
	}), nil))})
	src, err := through.Source(natsbroker.SourceConfig{Durable: "billing", AckWait: shortWait})
	if err != nil {
		t.Fatal(err)
	}
	fetchFor(src, 4*time.Second)
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
	// A request to the server before would end the fetch.
	<-back
	o.publish(3)
	o.check(got)
}

// A connection that transmits nothing for a while, as that of a process that
// was paused, loses the messages of a fetch that the client has given up: newer
// messages wait for them.
func TestMessagesArriveAfterTheirFetch(t *testing.T) {
	t.Parallel()
	o := newTakeOver(t)
	p := startProxy(t, o.url)
	conn, err := nats.Connect(p.url(), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	through, err := natsbroker.New(t.Context(), conn, natsbroker.Config{Stream: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	src, err := through.Source(natsbroker.SourceConfig{Durable: "billing", AckWait: 8 * shortWait})
	if err != nil {
		t.Fatal(err)
	}
	fetchFor(src, 4*time.Second)
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
	sent := conn.Stats().OutMsgs
	p.freeze()
	o.publish(3)
	await(t, "the server has sent them", is(func(i *jetstream.ConsumerInfo) bool { return i.NumAckPending == 3 }))
	await(t, "the client's next request, because it has given the fetch up", func() bool { return conn.Stats().OutMsgs > sent })
	p.thaw()
	o.publish(3)
	o.check(got)
}

// fetchFor sets the duration of every fetch of a source. Only tests need
// another duration, so the field is not exported.
func fetchFor(src *natsbroker.Source, d time.Duration) {
	*(*time.Duration)(reflect.ValueOf(src).Elem().FieldByName("fetchFor").Addr().UnsafePointer()) = d
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

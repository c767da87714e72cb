package natsbroker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/broker/natsembed"
	"github.com/waybillhq/waybill/internal/eventfill"
)

// event returns an event of an aggregate; its type is its number.
func event(aggregate string, n int) waybill.Delivery {
	ev := waybill.NewEvent(fmt.Sprint("n", n), n)
	ev.Topic, ev.AggregateType, ev.AggregateID = "orders.placed", "order", aggregate
	return waybill.Delivery{Event: eventfill.Defaults(ev), Attempt: 1}
}

func sink(t *testing.T, b *natsbroker.Broker) *natsbroker.Sink {
	t.Helper()
	s, err := b.Sink(natsbroker.SinkConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// seen is a consumer that records its deliveries.
type seen struct {
	answer func(ctx context.Context, d waybill.Delivery) error

	mu  sync.Mutex
	got []string
}

func (s *seen) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	errs := make([]error, len(batch))
	for i, d := range batch {
		s.mu.Lock()
		s.got = append(s.got, d.AggregateID+"/"+d.Type)
		s.mu.Unlock()
		if s.answer != nil {
			errs[i] = s.answer(ctx, d)
		}
	}
	return errs
}

func (s *seen) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.got, " ")
}

// run runs a source until stop is called or the test ends.
func run(t *testing.T, b *natsbroker.Broker, cfg natsbroker.SourceConfig, c waybill.Sink) (stop func()) {
	t.Helper()
	src, err := b.Source(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return runSource(t, src, c)
}

func runSource(t *testing.T, src *natsbroker.Source, c waybill.Sink) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- src.Run(ctx, c) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Run returned %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// A server that does not answer on an open connection is unavailable within the
// publish timeout, and its message is not published twice when it answers
// again.
func TestFrozenServer(t *testing.T) {
	t.Parallel()
	s := startServer(t, natsembed.Config{})
	p := startProxy(t, s.url())
	b := open(t, p.url(), natsbroker.Config{PublishTimeout: time.Second, Options: []nats.Option{nats.PingInterval(500 * time.Millisecond), nats.MaxPingsOutstanding(2)}})
	to := sink(t, b)
	p.freeze()
	d := event("a", 1)
	err := to.Deliver(t.Context(), []waybill.Delivery{d})[0]
	if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable {
		t.Errorf("the class is %v (%v), want unavailable", class, err)
	}
	p.thaw()
	await(t, "delivery after the thaw", func() bool { return to.Deliver(t.Context(), []waybill.Delivery{d})[0] == nil })
	got, err := readAll(t.Context(), s.url(), "orders", "orders.placed")
	if err != nil || len(got) != 1 {
		t.Errorf("%d messages, %v; want 1", len(got), err)
	}
}

// With a low MaxHold the server holds a deferred message: the message is
// redelivered, counted, before later ones.
func TestNakWithDelay(t *testing.T) {
	t.Parallel()
	s := startServer(t, natsembed.Config{})
	b := open(t, s.url(), natsbroker.Config{})
	var attempts []int
	c := &seen{}
	c.answer = func(_ context.Context, d waybill.Delivery) error {
		if d.Type != "n0" {
			return nil
		}
		attempts = append(attempts, d.Attempt)
		if d.Attempt == 1 {
			return waybill.Later(300*time.Millisecond, errors.New("boom"))
		}
		return nil
	}
	run(t, b, natsbroker.SourceConfig{Durable: "billing", Receive: broker.ReceiverConfig{MaxHold: -1}}, c)
	if errs := sink(t, b).Deliver(t.Context(), []waybill.Delivery{event("a", 0), event("a", 1)}); errors.Join(errs...) != nil {
		t.Fatal(errs)
	}
	await(t, "both messages", func() bool { return strings.Contains(c.all(), "n1") })
	if got := c.all(); got != "a/n0 a/n0 a/n1" || fmt.Sprint(attempts) != "[1 2]" {
		t.Errorf("handled %s, attempts %v", got, attempts)
	}
}

// A message in flight is not redelivered, however long its handling takes.
func TestLongWork(t *testing.T) {
	t.Parallel()
	s := startServer(t, natsembed.Config{})
	b := open(t, s.url(), natsbroker.Config{})
	release := make(chan struct{})
	c := &seen{answer: func(_ context.Context, d waybill.Delivery) error {
		if d.AggregateID == "slow" {
			<-release
		}
		return nil
	}}
	stop := run(t, b, natsbroker.SourceConfig{Durable: "billing", AckWait: time.Second, Receive: broker.ReceiverConfig{BatchSize: 1}}, c)
	to := sink(t, b)
	if err := to.Deliver(t.Context(), []waybill.Delivery{event("slow", 0)})[0]; err != nil {
		t.Fatal(err)
	}
	began, n := time.Now(), 0
	await(t, "three times AckWait", func() bool { // other messages are handled meanwhile
		if err := to.Deliver(t.Context(), []waybill.Delivery{event("quick", n)})[0]; err != nil {
			t.Fatal(err)
		}
		n++
		return time.Since(began) > 3*time.Second
	})
	await(t, "the quick messages", func() bool { return strings.Count(c.all(), "quick") >= n })
	close(release)
	stop()
	if got := strings.Count(c.all(), "slow"); got != 1 {
		t.Errorf("the slow message was handled %d times", got)
	}
	js, err := jetstream.New(connect(t, s.url()))
	if err != nil {
		t.Fatal(err)
	}
	info, err := js.Consumer(t.Context(), "orders", "billing")
	if err != nil {
		t.Fatal(err)
	}
	if got := info.CachedInfo(); got.NumAckPending != 0 || got.NumRedelivered != 0 {
		t.Errorf("%d messages are not acknowledged, %d were delivered again", got.NumAckPending, got.NumRedelivered)
	}
}

func connect(t *testing.T, address string) *nats.Conn {
	t.Helper()
	conn, err := nats.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// The server's own errors get the classes of the failure table.
func TestRefusals(t *testing.T) {
	t.Parallel()
	s := startServer(t, natsembed.Config{})
	js, err := jetstream.New(connect(t, s.url()))
	if err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []jetstream.StreamConfig{
		{Name: "orders", Subjects: []string{"orders.>"}, MaxMsgSize: 2000},
		{Name: "other", Subjects: []string{"other.>"}},
	} {
		if _, err := js.CreateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	b, err := natsbroker.Open(t.Context(), s.url(), natsbroker.Config{Stream: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	large := event("a", 1)
	large.Payload, large.ContentType = bytes.Repeat([]byte("x"), 3000), "text/plain"
	for name, c := range map[string]struct {
		d    waybill.Delivery
		want waybill.Class
	}{
		"larger than the stream permits": {large, waybill.ClassPermanent},
		"another stream's subject":       {to(event("b", 1), "other.x"), waybill.ClassUnavailable},
		"a subject without a stream":     {to(event("c", 1), "nostream.x"), waybill.ClassUnavailable},
		"a wildcard":                     {to(event("d", 1), "orders.*"), waybill.ClassPermanent},
		"all of it":                      {to(event("e", 1), "orders.>"), waybill.ClassPermanent},
		"the server's own":               {to(event("f", 1), "$JS.API.STREAM.DELETE.orders"), waybill.ClassPermanent},
		"an inbox subject":               {to(event("g", 1), "_INBOX.x"), waybill.ClassPermanent},
		"an empty part":                  {to(event("h", 1), "orders..x"), waybill.ClassPermanent},
		"fine":                           {event("i", 1), waybill.ClassDone},
	} {
		err := sink(t, b).Deliver(t.Context(), []waybill.Delivery{c.d})[0]
		if class, _ := waybill.Classify(err); class != c.want {
			t.Errorf("%s is %v (%v), want %v", name, class, err, c.want)
		}
	}
	if _, err := js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}, MaxMsgs: 1, Discard: jetstream.DiscardNew}); err != nil {
		t.Fatal(err)
	}
	err = sink(t, b).Deliver(t.Context(), []waybill.Delivery{event("j", 1)})[0]
	if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable {
		t.Errorf("a full stream is %v (%v), want unavailable", class, err)
	}
}

func to(d waybill.Delivery, subject string) waybill.Delivery {
	d.Topic = subject
	return d
}

func TestOpen(t *testing.T) {
	t.Parallel()
	s := startServer(t, natsembed.Config{})
	if _, err := natsbroker.Open(t.Context(), s.url(), natsbroker.Config{Stream: "none"}); !errors.Is(err, jetstream.ErrStreamNotFound) || !strings.Contains(err.Error(), "Create") {
		t.Errorf("a stream that does not exist: %v", err)
	}
	_, err := natsbroker.Open(t.Context(), s.url(), natsbroker.Config{Stream: "a.b", Create: true, Replicas: -1, PublishTimeout: -1, DedupWindow: -1})
	fields(t, err, "natsbroker: Config.Stream", "Config.Subjects", "Config.Replicas", "Config.DedupWindow", "Config.PublishTimeout")
	b := open(t, s.url(), natsbroker.Config{})
	open(t, s.url(), natsbroker.Config{}) // the streams exist now
	_, err = b.Source(natsbroker.SourceConfig{Durable: "a b", AckWait: time.Millisecond, DeadLetter: "x.*", Receive: broker.ReceiverConfig{Workers: -1}})
	fields(t, err, "natsbroker: SourceConfig.Durable", "SourceConfig.AckWait", "SourceConfig.DeadLetter", "ReceiverConfig.Workers")
	_, err = b.Source(natsbroker.SourceConfig{})
	fields(t, err, "natsbroker: SourceConfig.Durable")
	_, err = b.Sink(natsbroker.SinkConfig{EventSource: "a b"})
	fields(t, err, "natsbroker: SinkConfig.EventSource")
}

// fields checks that an error has one line per field, in this order.
func fields(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want %q", want)
		return
	}
	var got []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		got = append(got, line[:max(strings.LastIndex(line, ": "), 0)])
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// New uses the caller's connection, keeps its handler, and leaves it open.
func TestNew(t *testing.T) {
	t.Parallel()
	s := startServer(t, natsembed.Config{})
	lost := make(chan error, 1)
	conn, err := nats.Connect(s.url(), nats.ReconnectBufSize(-1), nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { lost <- err }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	cfg := natsbroker.Config{Stream: "orders", Subjects: []string{"orders.>"}, Create: true}
	b, err := natsbroker.New(t.Context(), conn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	var c seen
	src := natsbroker.SourceConfig{Durable: "billing", Name: "invoices"}
	stop := run(t, b, src, &c)
	d := event("a", 1)
	if err := sink(t, b).Deliver(t.Context(), []waybill.Delivery{d})[0]; err != nil {
		t.Fatal(err)
	}
	await(t, "the event", func() bool { return c.all() == "a/n1" })
	stop()
	if named, err := b.Source(src); err != nil || named.Name() != "invoices" {
		t.Errorf("the source is %v, %v", named, err)
	}
	if err := b.Close(); err != nil || conn.Status() != nats.CONNECTED {
		t.Errorf("after Close: %v, %v", err, conn.Status())
	}
	if err := conn.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-lost:
	case <-t.Context().Done():
		t.Error("the connection's own handler is not called")
	}
	buffered, err := nats.Connect(s.url())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(buffered.Close)
	_, err = natsbroker.New(t.Context(), buffered, cfg)
	fields(t, err, "natsbroker: connection")
	_, err = natsbroker.New(t.Context(), nil, cfg)
	fields(t, err, "natsbroker: connection")
	cfg.Options = []nats.Option{nats.Name("x")}
	_, err = natsbroker.New(t.Context(), conn, cfg)
	fields(t, err, "natsbroker: Config.Options")
}

// A source recreates its consumer after an operator deleted it.
func TestDeletedConsumer(t *testing.T) {
	t.Parallel()
	s := startServer(t, natsembed.Config{})
	b := open(t, s.url(), natsbroker.Config{})
	var c seen
	run(t, b, natsbroker.SourceConfig{Durable: "billing"}, &c)
	if err := sink(t, b).Deliver(t.Context(), []waybill.Delivery{event("a", 0)})[0]; err != nil {
		t.Fatal(err)
	}
	await(t, "the first message", func() bool { return strings.Contains(c.all(), "n0") })
	js, err := jetstream.New(connect(t, s.url()))
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteConsumer(t.Context(), "orders", "billing"); err != nil {
		t.Fatal(err)
	}
	if err := sink(t, b).Deliver(t.Context(), []waybill.Delivery{event("a", 1)})[0]; err != nil {
		t.Fatal(err)
	}
	await(t, "the second message", func() bool { return strings.Contains(c.all(), "n1") })
}

// A message that arrives while a source stops is returned once: it is not
// redelivered repeatedly into the open fetch.
func TestStoppingCountsNothing(t *testing.T) {
	t.Parallel()
	s := startServer(t, natsembed.Config{})
	b := open(t, s.url(), natsbroker.Config{})
	src, err := b.Source(natsbroker.SourceConfig{Durable: "billing"})
	if err != nil {
		t.Fatal(err)
	}
	to, first := sink(t, b), &seen{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- src.Run(ctx, first) }()
	if err := to.Deliver(t.Context(), []waybill.Delivery{event("a", 0)})[0]; err != nil {
		t.Fatal(err)
	}
	await(t, "the first message", func() bool { return first.all() != "" })
	cancel()
	for n := range 20 {
		if err := to.Deliver(t.Context(), []waybill.Delivery{event(fmt.Sprint("b", n), n)})[0]; err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	var maxAttempt atomic.Int64
	second := &seen{answer: func(_ context.Context, d waybill.Delivery) error {
		maxAttempt.Store(max(maxAttempt.Load(), int64(d.Attempt)))
		return nil
	}}
	run(t, b, natsbroker.SourceConfig{Durable: "billing"}, second)
	await(t, "the others", func() bool { return strings.Count(second.all(), "b") >= 20 })
	if got := maxAttempt.Load(); got > 2 {
		t.Errorf("a message is delivered for the %dth time, although one source has given it back", got)
	}
}

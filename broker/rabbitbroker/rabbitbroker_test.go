package rabbitbroker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/drivertest"
	"github.com/waybillhq/waybill/broker/rabbitbroker"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
	"github.com/waybillhq/waybill/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The relay and the inbox detect these interfaces.
var (
	_ relay.OrderedSink     = (*rabbitbroker.Sink)(nil)
	_ relay.DestinationSink = (*rabbitbroker.Sink)(nil)
	_ broker.Source         = (*rabbitbroker.Source)(nil)
)

func open(t *testing.T, url string, cfg rabbitbroker.Config) *rabbitbroker.Broker {
	t.Helper()
	b, err := rabbitbroker.Open(t.Context(), url, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func sink(t *testing.T, b *rabbitbroker.Broker, cfg rabbitbroker.SinkConfig) *rabbitbroker.Sink {
	t.Helper()
	s, err := b.Sink(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// plain is the client amqp091 without Waybill.
type plain struct {
	t   *testing.T
	url string
}

// on calls fn with a channel of a new connection: a restarted server has
// forgotten the old one.
func (p plain) on(fn func(ch *amqp.Channel) error) error {
	conn, err := amqp.Dial(p.url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return fn(ch)
}

func (p plain) must(fn func(ch *amqp.Channel) error) {
	p.t.Helper()
	if err := p.on(fn); err != nil {
		p.t.Fatal(err)
	}
}

// read returns the messages of a queue and leaves them there.
func (p plain) read(queue string) (found []amqp.Delivery, err error) {
	err = p.on(func(ch *amqp.Channel) error {
		for {
			d, more, err := ch.Get(queue, false)
			if err != nil || !more {
				return err
			}
			found = append(found, d)
		}
	})
	return found, err
}

func messages(found []amqp.Delivery) []broker.Message {
	var out []broker.Message
	for _, d := range found {
		m := broker.Message{PublishID: d.MessageId, ContentType: d.ContentType, RoutingKey: d.RoutingKey, Payload: d.Body}
		for name, value := range d.Headers {
			m.Headers = append(m.Headers, broker.Header{Name: name, Value: fmt.Sprint(value)})
		}
		out = append(out, m)
	}
	return out
}

// exchange creates an exchange with a queue that receives all its messages, and
// returns their common name. Both are deleted at the end of the test.
func (p plain) exchange() string {
	p.t.Helper()
	name := "test." + waybill.NewID().String()
	p.must(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name+".all", true, false, false, false, nil)
		return errors.Join(err, ch.ExchangeDeclare(name, amqp.ExchangeTopic, true, false, false, false, nil), ch.QueueBind(name+".all", "#", name, false, nil))
	})
	p.t.Cleanup(func() {
		_ = p.on(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(name+".all", false, false, false)
			return errors.Join(err, ch.ExchangeDelete(name, false, false))
		})
	})
	return name
}

func TestConformance(t *testing.T) {
	address := testserver.RabbitMQ(t)
	drivertest.Run(t, drivertest.Harness{
		Name: "rabbitbroker",
		Capabilities: drivertest.Capabilities{
			Source: true, Counts: true, Outage: true, Restart: true, Secrets: true, Unroutable: waybill.ClassUnavailable,
		},
		Open: func(t *testing.T) drivertest.Instance {
			if !strings.HasSuffix(t.Name(), "a_restart_loses_nothing") {
				return instance(t, address, false)
			}
			server := private.Start(t, testserver.RabbitMQName) // may be killed
			// RabbitMQ 3.10 can lose a quorum queue that was declared shortly
			// before a crash, because it stores the list of queues late. Older
			// queues lose no messages. Nothing is confirmed for a lost queue
			// until it is deleted.
			in := instance(t, server.DSN, true)
			in.Restart = func() {
				if err := errors.Join(server.Kill(t.Context()), server.Restart(t.Context())); err != nil {
					t.Fatal(err)
				}
			}
			return in
		},
	})
}

func instance(t *testing.T, address string, classic bool) drivertest.Instance {
	t.Helper()
	// The broker under test connects through a proxy that can be cut; the
	// inspecting client does not.
	cut, client := newProxy(t, address), plain{t, address}
	b := open(t, cut.url, rabbitbroker.Config{PublishTimeout: 5 * time.Second})
	topic := client.exchange()
	codec, err := broker.NewCodec(broker.AMQP, broker.CodecConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return drivertest.Instance{
		Topic: topic, Sink: sink(t, b, rabbitbroker.SinkConfig{Create: true}), Codec: codec, Nowhere: topic + ".nowhere",
		Source: func(name string, cfg broker.ReceiverConfig) broker.Source {
			queue := topic + "." + name
			client.must(func(ch *amqp.Channel) error {
				args := amqp.Table{"x-single-active-consumer": true}
				if !classic {
					args["x-queue-type"] = "quorum"
				}
				_, err := ch.QueueDeclare(queue, true, false, false, false, args)
				return errors.Join(err, ch.QueueBind(queue, "#", topic, false, nil))
			})
			t.Cleanup(func() {
				_ = client.on(func(ch *amqp.Channel) error {
					_, err := ch.QueueDelete(queue, false, false, false)
					_, other := ch.QueueDelete(queue+".dead", false, false, false)
					return errors.Join(err, other)
				})
			})
			s, err := b.Source(rabbitbroker.SourceConfig{
				Queue: queue, Bind: []rabbitbroker.Binding{{Exchange: topic, Key: "#"}}, Classic: classic, Receive: cfg,
			})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Read: func(context.Context) ([]broker.Message, error) {
			found, err := client.read(topic + ".all")
			return messages(found), err
		},
		DeadLetters: func(_ context.Context, name string) ([]broker.Message, error) {
			found, err := client.read(topic + "." + name + ".dead")
			return messages(found), err
		},
		Publish: func(ctx context.Context, m broker.Message) error {
			headers := amqp.Table{}
			for _, h := range m.Headers {
				headers[h.Name] = h.Value
			}
			return client.on(func(ch *amqp.Channel) error {
				return ch.PublishWithContext(ctx, topic, "key", true, false, amqp.Publishing{
					Headers: headers, ContentType: m.ContentType, MessageId: m.PublishID, Body: m.Payload, DeliveryMode: amqp.Persistent,
				})
			})
		},
		Break: cut.stop, Heal: cut.start,
		OpenWith: func(ctx context.Context, password string) error {
			u, err := url.Parse(address)
			if err != nil {
				return err
			}
			u.User = url.UserPassword("user", password)
			b, err := rabbitbroker.Open(ctx, u.String(), rabbitbroker.Config{})
			if err == nil {
				_ = b.Close()
			}
			return err
		},
	}
}

func event(topic, id string) waybill.Delivery {
	ev := waybill.NewEvent("OrderPlaced", 1)
	ev.Topic, ev.AggregateType, ev.AggregateID = topic, "order", id
	return waybill.Delivery{Event: eventfill.Defaults(ev), Attempt: 1}
}

// amqp091 alone reads properties, headers and payload as documented.
func TestAForeignClientReadsIt(t *testing.T) {
	address := testserver.RabbitMQ(t)
	client := plain{t, address}
	topic := client.exchange()
	s := sink(t, open(t, address, rabbitbroker.Config{}), rabbitbroker.SinkConfig{EventSource: "/shop"})
	first, second := event(topic, "A-1"), event(topic, "A-1")
	first.TenantID, first.Headers, first.RoutingKey, first.Replay = "acme", map[string]string{"color": "red"}, "eu.north", 1
	for i, err := range s.Deliver(t.Context(), []waybill.Delivery{first, second}) {
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	found, err := client.read(topic + ".all")
	if err != nil || len(found) != 2 {
		t.Fatalf("%d messages, %v", len(found), err)
	}
	d := found[0]
	for what, pair := range map[string][2]string{
		"message-id": {d.MessageId, first.ID.String() + "-r1"}, "type": {d.Type, "OrderPlaced"}, "content-type": {d.ContentType, "application/json"},
		"routing key": {d.RoutingKey, "eu.north"}, "body": {string(d.Body), "1"}, "delivery mode": {fmt.Sprint(d.DeliveryMode), "2"},
		"id": {fmt.Sprint(d.Headers["cloudEvents:id"]), first.ID.String()}, "source": {fmt.Sprint(d.Headers["cloudEvents:source"]), "/shop"},
		"tenant": {fmt.Sprint(d.Headers["cloudEvents:tenantid"]), "acme"}, "own header": {fmt.Sprint(d.Headers["waybill:color"]), "red"},
		"routing key without one": {found[1].RoutingKey, "OrderPlaced"}, "message-id of the second": {found[1].MessageId, second.ID.String()},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %q, want %q", what, pair[0], pair[1])
		}
	}
}

// An invalid topic does not affect another topic in the same batch.
func TestTopicsAreDownByThemselves(t *testing.T) {
	address := testserver.RabbitMQ(t)
	client := plain{t, address}
	good := client.exchange()
	full := client.exchange() + ".full"
	client.must(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(full, true, false, false, false, amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
		return errors.Join(err, ch.ExchangeDeclare(full, amqp.ExchangeTopic, true, false, false, false, nil), ch.QueueBind(full, "#", full, false, nil))
	})
	t.Cleanup(func() {
		_ = client.on(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(full, false, false, false)
			return errors.Join(err, ch.ExchangeDelete(full, false, false))
		})
	})
	s := sink(t, open(t, address, rabbitbroker.Config{}), rabbitbroker.SinkConfig{})
	missing := good + ".missing"
	batch := []waybill.Delivery{event(missing, "1"), event(good, "2"), event(full, "3"), event(good, "4")}
	for range 2 { // also with channels that were used before
		results := s.Deliver(t.Context(), batch)
		for i, text := range []string{"NOT_FOUND", "", "nack", ""} {
			class, _ := waybill.Classify(results[i])
			if text == "" && results[i] != nil {
				t.Errorf("%d: %v", i, results[i])
			}
			if text != "" && (class != waybill.ClassUnavailable || !strings.Contains(results[i].Error(), text)) {
				t.Errorf("%d: class %v: %v, want %s", i, class, results[i], text)
			}
		}
	}
	a, b := event(missing, "1"), event(good, "1")
	if s.Destination(&a.Event) == s.Destination(&b.Event) {
		t.Error("both have one destination")
	}
}

// An event that reaches no queue is not delivered; once a queue is bound, it
// is.
func TestReturnedIsNotDelivered(t *testing.T) {
	address := testserver.RabbitMQ(t)
	client := plain{t, address}
	topic := "test." + waybill.NewID().String()
	t.Cleanup(func() { _ = client.on(func(ch *amqp.Channel) error { return ch.ExchangeDelete(topic, false, false) }) })
	s := sink(t, open(t, address, rabbitbroker.Config{}), rabbitbroker.SinkConfig{Create: true})
	batch := []waybill.Delivery{event(topic, "1"), event(topic, "2"), event(topic, "1")}
	for i, err := range s.Deliver(t.Context(), batch)[:2] {
		if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable || !strings.Contains(err.Error(), "NO_ROUTE") {
			t.Errorf("%d: class %v: %v", i, class, err)
		}
	}
	client.must(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclare(topic, false, true, false, false, nil)
		return errors.Join(err, ch.QueueBind(q.Name, "#", topic, false, nil))
	})
	t.Cleanup(func() {
		_ = client.on(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(topic, false, false, false)
			return err
		})
	})
	for i, err := range s.Deliver(t.Context(), batch) {
		if err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func TestToQueues(t *testing.T) {
	address := testserver.RabbitMQ(t)
	client := plain{t, address}
	queue := "test." + waybill.NewID().String()
	t.Cleanup(func() {
		_ = client.on(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(queue, false, false, false)
			return err
		})
	})
	s := sink(t, open(t, address, rabbitbroker.Config{}), rabbitbroker.SinkConfig{ToQueues: true, Create: true})
	if err := s.Deliver(t.Context(), []waybill.Delivery{event(queue, "1")})[0]; err != nil {
		t.Fatal(err)
	}
	if found, err := client.read(queue); err != nil || len(found) != 1 {
		t.Errorf("%d messages, %v", len(found), err)
	}
}

// A sink disconnects from a server that does not answer, in time, and uses the
// server again when it answers.
func TestFrozenServer(t *testing.T) {
	server := private.Start(t, testserver.RabbitMQName)
	client := plain{t, server.DSN}
	topic := client.exchange()
	s := sink(t, open(t, server.DSN, rabbitbroker.Config{PublishTimeout: 10 * time.Second}), rabbitbroker.SinkConfig{})
	if err := s.Deliver(t.Context(), []waybill.Delivery{event(topic, "1")})[0]; err != nil {
		t.Fatal(err)
	}
	if err := server.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := s.Deliver(ctx, []waybill.Delivery{event(topic, "2")})[0]
	if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable {
		t.Errorf("frozen: class %v: %v", class, err)
	}
	if err := server.Thaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The cut connection is not used again: the next delivery opens a new one
	// and succeeds at once.
	if err := s.Deliver(t.Context(), []waybill.Delivery{event(topic, "3")})[0]; err != nil {
		t.Errorf("thawed: %v", err)
	}
	blocked(t, server, s, topic)
}

// control runs rabbitmqctl, which finds the node by its name server and its
// cookie.
func control(t *testing.T, server manage.Server, args ...string) {
	t.Helper()
	cookie, err := os.ReadFile(filepath.Join(filepath.Dir(server.Data), ".erlang.cookie"))
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"-n", "waybill@localhost", "--erlang-cookie", string(cookie)}, args...)
	cmd := exec.CommandContext(t.Context(), "rabbitmqctl", args...) //nolint:gosec // a test's own words
	cmd.Env = append(os.Environ(), fmt.Sprintf("ERL_EPMD_PORT=%d", server.Ports[2]))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// blocked: while the broker is short of memory, nothing is sent, and no attempt
// is counted.
func blocked(t *testing.T, server manage.Server, s *rabbitbroker.Sink, topic string) {
	t.Helper()
	control(t, server, "set_vm_memory_high_watermark", "0.0000001")
	down := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := s.Deliver(ctx, []waybill.Delivery{event(topic, "4")})[0]
		class, _ := waybill.Classify(err)
		if err != nil && class != waybill.ClassUnavailable {
			t.Fatalf("blocked: class %v: %v", class, err)
		}
		return err != nil && strings.Contains(err.Error(), "blocked")
	}
	for deadline := time.Now().Add(60 * time.Second); !down(); {
		if time.Now().After(deadline) {
			t.Fatal("a blocked connection was never noticed")
		}
	}
	control(t, server, "set_vm_memory_high_watermark", "0.6")
	for deadline := time.Now().Add(60 * time.Second); s.Deliver(t.Context(), []waybill.Delivery{event(topic, "5")})[0] != nil; {
		if time.Now().After(deadline) {
			t.Fatal("it does not go on when the broker does")
		}
	}
}

// Every exception in the documentation has the documented class.
func TestFailures(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want waybill.Class
	}{
		"not found":    {&amqp.Error{Code: amqp.NotFound, Reason: "NOT_FOUND - no exchange 'x'"}, waybill.ClassUnavailable},
		"refused":      {&amqp.Error{Code: amqp.AccessRefused}, waybill.ClassUnavailable},
		"locked":       {&amqp.Error{Code: amqp.ResourceLocked}, waybill.ClassUnavailable},
		"precondition": {&amqp.Error{Code: amqp.PreconditionFailed, Reason: "PRECONDITION_FAILED - inequivalent arg"}, waybill.ClassUnavailable},
		"too large": {
			&amqp.Error{Code: amqp.PreconditionFailed, Reason: "PRECONDITION_FAILED - message size 9 is larger than configured max size 8"}, waybill.ClassPermanent,
		},
		"content too large": {&amqp.Error{Code: amqp.ContentTooLarge}, waybill.ClassPermanent},
		"forced":            {&amqp.Error{Code: amqp.ConnectionForced}, waybill.ClassUnavailable},
		"internal":          {&amqp.Error{Code: amqp.InternalError}, waybill.ClassUnavailable},
		"closed":            {amqp.ErrClosed, waybill.ClassUnavailable},
		"eof":               {io.EOF, waybill.ClassUnavailable},
		"anything else":     {errors.New("no"), waybill.ClassRetry},
	} {
		if class, _ := waybill.Classify(rabbitbroker.Failures().Classify(fmt.Errorf("x: %w", tc.err))); class != tc.want {
			t.Errorf("%s: class %v, want %v", name, class, tc.want)
		}
	}
}

func TestTheTableIsInTheDocumentation(t *testing.T) {
	for _, name := range []string{"doc.go", "../../docs/brokers.md"} {
		doc, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.ReplaceAll(string(doc), "// ", ""); !strings.Contains(text, strings.TrimSpace(rabbitbroker.Failures().Table())) {
			t.Errorf("%s does not have\n%s", name, rabbitbroker.Failures().Table())
		}
	}
}

// A source returns an error for a missing queue, instead of retrying forever.
func TestASourceWithoutItsQueue(t *testing.T) {
	b := open(t, testserver.RabbitMQ(t), rabbitbroker.Config{})
	name := "test." + waybill.NewID().String()
	s, err := b.Source(rabbitbroker.SourceConfig{Queue: name})
	if err != nil {
		t.Fatal(err)
	}
	client := plain{t, testserver.RabbitMQ(t)}
	t.Cleanup(func() {
		_ = client.on(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(name+".dead", false, false, false)
			return err
		})
	})
	if err := s.Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "NOT_FOUND") {
		t.Errorf("Run = %v", err)
	}
}

func TestConfigs(t *testing.T) {
	var b rabbitbroker.Broker
	_, err := b.Source(rabbitbroker.SourceConfig{Bind: []rabbitbroker.Binding{{Exchange: "a b"}}, Receive: broker.ReceiverConfig{Workers: -1}})
	says(t, err, "rabbitbroker: SourceConfig.Queue: empty\nSourceConfig.Bind.Exchange: \"a b\" has an invalid character\nReceiverConfig.Workers: -1 is negative")
	_, err = b.Source(rabbitbroker.SourceConfig{Queue: "a", DeadLetter: "a"})
	says(t, err, "rabbitbroker: SourceConfig.DeadLetter: equal to Queue")
	_, err = b.Source(rabbitbroker.SourceConfig{DeadLetter: "a b"})
	says(t, err, "rabbitbroker: SourceConfig.Queue: empty\nSourceConfig.DeadLetter: \"a b\" has an invalid character")
	_, err = b.Sink(rabbitbroker.SinkConfig{EventSource: "a b"})
	says(t, err, "rabbitbroker: SinkConfig.EventSource: not a URI reference of at most 512 printable ASCII characters")
	_, err = rabbitbroker.New(nil, rabbitbroker.Config{PublishTimeout: -1, Heartbeat: -1})
	says(t, err, "rabbitbroker: Config.PublishTimeout: -1ns is negative\nConfig.Heartbeat: -1ns is negative")
	_, err = rabbitbroker.New(nil, rabbitbroker.Config{})
	says(t, err, "rabbitbroker: dial: nil")
	for want, cfg := range map[string]rabbitbroker.SourceConfig{"billing": {Queue: "billing"}, "invoices": {Queue: "billing", Name: "invoices"}} {
		if s, err := b.Source(cfg); err != nil || s.Name() != want {
			t.Errorf("the source is %v, %v", s, err)
		}
	}
	if _, err := rabbitbroker.Open(t.Context(), "amqp://u:canary@[bad", rabbitbroker.Config{}); err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("a bad URL: %v", err)
	}
}

func says(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

type consumerFunc func(ctx context.Context, batch []waybill.Delivery) []error

func (f consumerFunc) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return f(ctx, batch)
}

// New connects with the caller's function: once for the sinks and once for each
// source.
func TestNew(t *testing.T) {
	address := testserver.RabbitMQ(t)
	var dialed atomic.Int32
	b, err := rabbitbroker.New(func(_ context.Context, config amqp.Config) (*amqp.Connection, error) {
		dialed.Add(1)
		return amqp.DialConfig(address, config)
	}, rabbitbroker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	if n := dialed.Load(); n != 0 {
		t.Errorf("New has connected %d times", n)
	}
	queue := "new-" + waybill.NewID().String()
	src, err := b.Source(rabbitbroker.SourceConfig{Queue: queue, Bind: []rabbitbroker.Binding{{Exchange: queue, Key: "#"}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan string, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- src.Run(ctx, consumerFunc(func(_ context.Context, batch []waybill.Delivery) []error {
			got <- batch[0].AggregateID
			return make([]error, len(batch))
		}))
	}()
	s := sink(t, b, rabbitbroker.SinkConfig{Create: true})
	for err := errors.New("not published"); err != nil; { // until the source has bound its queue
		if err = s.Deliver(t.Context(), []waybill.Delivery{event(queue, "42")})[0]; t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	if id := <-got; id != "42" || dialed.Load() != 2 {
		t.Errorf("event of %s over %d connections, want 42 over 2", id, dialed.Load())
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A connection that the broker could not cut is rejected.
func TestNewNeedsItsSocket(t *testing.T) {
	address := testserver.RabbitMQ(t)
	b, err := rabbitbroker.New(func(_ context.Context, config amqp.Config) (*amqp.Connection, error) {
		config.Dial = nil
		return amqp.DialConfig(address, config)
	}, rabbitbroker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	err = sink(t, b, rabbitbroker.SinkConfig{}).Deliver(t.Context(), []waybill.Delivery{event("x", "1")})[0]
	if err == nil || !strings.Contains(err.Error(), "Dial") {
		t.Errorf("the error is %v", err)
	}
}

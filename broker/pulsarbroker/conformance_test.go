package pulsarbroker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/drivertest"
	"github.com/waybillhq/waybill/broker/pulsarbroker"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/private"
	"github.com/waybillhq/waybill/relay"
)

func TestMain(m *testing.M) {
	// The client leaks one goroutine when it closes a producer by itself,
	// because the topic was deleted. An unclosed producer would leak other
	// goroutines as well. The client also never answers a request to a consumer
	// that it closes by itself.
	const client = "github.com/apache/pulsar-client-go/pulsar."
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(client+"(*partitionProducer).runEventsLoop.func1"),
		goleak.IgnoreTopFunction(client+"(*partitionConsumer).getLastMessageIDAndMarkDeletePosition.func1"))
}

// The relay and the inbox detect these interfaces.
var (
	_ relay.OrderedSink     = (*pulsarbroker.Sink)(nil)
	_ relay.DestinationSink = (*pulsarbroker.Sink)(nil)
	_ broker.Source         = (*pulsarbroker.Source)(nil)
)

const patience = 60 * time.Second

func open(t *testing.T, url string, cfg pulsarbroker.Config) *pulsarbroker.Broker {
	t.Helper()
	b, err := pulsarbroker.Open(t.Context(), url, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func sink(t *testing.T, b *pulsarbroker.Broker, cfg pulsarbroker.SinkConfig) *pulsarbroker.Sink {
	t.Helper()
	s, err := b.Sink(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func source(t *testing.T, b *pulsarbroker.Broker, cfg pulsarbroker.SourceConfig) *pulsarbroker.Source {
	t.Helper()
	s, err := b.Source(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// plain is Pulsar's client without Waybill.
type plain struct{ pulsar.Client }

func client(t *testing.T, url string) plain {
	t.Helper()
	c, err := pulsar.NewClient(pulsar.ClientOptions{URL: url, Logger: log.DefaultNopLogger(), MetricsRegisterer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return plain{c}
}

// read returns the messages of a topic.
func (p plain) read(ctx context.Context, topic string) (found []pulsar.Message, err error) {
	r, err := p.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for r.HasNext() {
		m, err := r.Next(ctx)
		if err != nil {
			return found, err
		}
		found = append(found, m)
	}
	return found, nil
}

func messages(found []pulsar.Message) []broker.Message {
	var out []broker.Message
	for _, p := range found {
		m := broker.Message{Key: p.Key(), Payload: p.Payload(), PublishID: p.Properties()["publish_id"], ContentType: p.Properties()["content-type"]}
		for name, value := range p.Properties() {
			if name != "publish_id" {
				m.Headers = append(m.Headers, broker.Header{Name: name, Value: value})
			}
		}
		out = append(out, m)
	}
	return out
}

// admin calls the REST API of the shared server. Its address is set beside that
// of the command-line client.
func admin(t *testing.T, method, path string, body any) []byte {
	t.Helper()
	conf, err := os.ReadFile(filepath.Join(filepath.Dir(testserver.Shell(t, "pulsar-client")), "client.conf"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(conf), "webServiceUrl=")
	address, _, _ := strings.Cut(rest, "\n")
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	if body == nil {
		data = nil
	}
	req, err := http.NewRequestWithContext(t.Context(), method, address+"/admin/v2/"+path, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil {
		t.Fatal(err)
	}
	if res.StatusCode >= 300 {
		t.Fatalf("%s %s: %s: %s", method, path, res.Status, answer)
	}
	return answer
}

// namespace creates a namespace for the test.
func namespace(t *testing.T) string {
	t.Helper()
	name := "public/test-" + waybill.NewID().String()
	admin(t, http.MethodPut, "namespaces/"+name, map[string]any{})
	return name
}

func newTopic() string { return "test-" + waybill.NewID().String() }

func TestConformance(t *testing.T) {
	address := testserver.Pulsar(t)
	server := private.Start(t, testserver.PulsarName) // may be killed or stopped
	drivertest.Run(t, drivertest.Harness{
		Name:         "pulsarbroker",
		Capabilities: drivertest.Capabilities{Source: true, Outage: true, Restart: true, Secrets: true, Unroutable: waybill.ClassUnavailable},
		Open: func(t *testing.T) drivertest.Instance {
			if !strings.HasSuffix(t.Name(), "a_restart_loses_nothing") && !strings.HasSuffix(t.Name(), "an_outage_counts_no_attempt_and_loses_nothing") {
				return instance(t, address, false)
			}
			must := func(err error) {
				if err != nil {
					t.Fatal(err)
				}
			}
			in := instance(t, server.DSN, false)
			in.Restart = func() { must(errors.Join(server.Kill(t.Context()), server.Restart(t.Context()))) }
			in.Break = func() { must(server.Freeze(t.Context())) }
			in.Heal = func() { must(server.Thaw(t.Context())) }
			return in
		},
	})
}

func TestConformanceOfKeyShared(t *testing.T) {
	address := testserver.Pulsar(t)
	drivertest.Run(t, drivertest.Harness{
		Name: "pulsarbroker, Key_Shared", Capabilities: drivertest.Capabilities{Source: true}, Parallel: true,
		Open: func(t *testing.T) drivertest.Instance { return instance(t, address, true) },
	})
}

func instance(t *testing.T, address string, keyShared bool) drivertest.Instance {
	t.Helper()
	c := client(t, address)
	b := open(t, address, pulsarbroker.Config{PublishTimeout: 5 * time.Second, Heartbeat: time.Second})
	topic := newTopic()
	codec, err := broker.NewCodec(broker.Pulsar, broker.CodecConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return drivertest.Instance{
		Topic: topic, Codec: codec, Nowhere: "public/nowhere-" + topic + "/" + topic,
		Sink: sink(t, b, pulsarbroker.SinkConfig{}),
		Source: func(name string, cfg broker.ReceiverConfig) broker.Source {
			return source(t, b, pulsarbroker.SourceConfig{Subscription: name, Topics: []string{topic}, KeyShared: keyShared, Receive: cfg})
		},
		Read: func(ctx context.Context) ([]broker.Message, error) {
			found, err := c.read(ctx, topic)
			return messages(found), err
		},
		DeadLetters: func(ctx context.Context, _ string) ([]broker.Message, error) {
			found, err := c.read(ctx, topic+"-dead")
			return messages(found), err
		},
		Publish: func(ctx context.Context, m broker.Message) error {
			p, err := c.CreateProducer(pulsar.ProducerOptions{Topic: topic, SendTimeout: -1})
			if err != nil {
				return err
			}
			defer p.Close()
			properties := make(map[string]string)
			for _, h := range m.Headers {
				properties[h.Name] = h.Value
			}
			_, err = p.Send(ctx, &pulsar.ProducerMessage{Payload: m.Payload, Properties: properties})
			return err
		},
		OpenWith: func(ctx context.Context, password string) error {
			_, err := pulsarbroker.Open(ctx, "pulsar://user:"+strings.NewReplacer("%", "%25", "/", "%2F").Replace(password)+"@127.0.0.1:1?token="+password,
				pulsarbroker.Config{PublishTimeout: 200 * time.Millisecond})
			return err
		},
	}
}

func event(topic, id string) waybill.Delivery {
	ev := waybill.NewEvent("OrderPlaced", 1)
	ev.Topic, ev.AggregateType, ev.AggregateID = topic, "order", id
	return waybill.Delivery{Event: eventfill.Defaults(ev), Attempt: 1}
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within %v", what, patience)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// run runs a source until stop is called or the test ends.
func run(t *testing.T, s broker.Source, handle func(d *waybill.Delivery) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, consumer(handle)) }()
	stop = func() {
		cancel()
		if err, running := <-ended; running {
			close(ended)
			if err != nil {
				t.Errorf("Run returned %v", err)
			}
		}
	}
	t.Cleanup(stop)
	return stop
}

type consumer func(d *waybill.Delivery) error

// Deliver implements waybill.Sink.
func (c consumer) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	results := make([]error, len(batch))
	for i := range batch {
		results[i] = c(&batch[i])
	}
	return results
}

func deliver(t *testing.T, s *pulsarbroker.Sink, batch ...waybill.Delivery) {
	t.Helper()
	for i, err := range s.Deliver(t.Context(), batch) {
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
}

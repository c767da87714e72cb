package pulsarbroker_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
	"github.com/waybillhq/waybill/broker/drivertest"
	"github.com/waybillhq/waybill/broker/pulsarbroker"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/observe"
)

// Pulsar's own command-line client reads ids, headers and payload as
// documented.
func TestAForeignClientReadsIt(t *testing.T) {
	t.Parallel()
	address, shell, topic := testserver.Pulsar(t), testserver.Shell(t, "pulsar-client"), newTopic()
	s := sink(t, open(t, address, pulsarbroker.Config{}), pulsarbroker.SinkConfig{EventSource: "/shop"})
	first, second := event(topic, "A-1"), event(topic, "A-1")
	first.TenantID, first.Headers, first.Replay, first.OccurredAt = "acme", map[string]string{"color": "red"}, 1, time.UnixMilli(1_700_000_000_000)
	second.RoutingKey = "eu.north"
	deliver(t, s, first, second)
	out, err := exec.CommandContext(t.Context(), shell, "consume", "-s", "cli", "-n", "2", "-p", "Earliest", topic).CombinedOutput() //nolint:gosec // a test's own words
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	parts := strings.Split(string(out), "----- got message -----")
	if len(parts) != 3 {
		t.Fatalf("it shows %s", out)
	}
	for i, wanted := range [][]string{
		{
			"eventTime:[1700000000000]", "key:[acme/order/A-1]", "publish_id=" + first.ID.String() + "-r1", "ce_id=" + first.ID.String(), "ce_source=/shop",
			"ce_type=OrderPlaced", "ce_tenantid=acme", "ce_aggregateid=A-1", "ce_specversion=1.0", "content-type=application/json", "waybill_color=red", "content:1",
		},
		{"key:[eu.north]", "publish_id=" + second.ID.String(), "ce_id=" + second.ID.String(), "ce_routingkey=eu.north"},
	} {
		for _, want := range wanted {
			if !strings.Contains(parts[i+1], want) {
				t.Errorf("message %d has no %s: %s", i, want, parts[i+1])
			}
		}
	}
}

// A missing or terminated topic does not affect another topic in the same
// batch.
func TestTopicsAreDownByThemselves(t *testing.T) {
	t.Parallel()
	address, good, space := testserver.Pulsar(t), newTopic(), namespace(t)
	admin(t, http.MethodPost, "namespaces/"+space+"/autoTopicCreation", map[string]any{"allowAutoTopicCreation": false})
	admin(t, http.MethodPut, "persistent/"+space+"/ended", nil)
	admin(t, http.MethodPost, "persistent/"+space+"/ended/terminate", nil)
	s := sink(t, open(t, address, pulsarbroker.Config{}), pulsarbroker.SinkConfig{})
	batch := []waybill.Delivery{event(space+"/missing", "1"), event(good, "2"), event(space+"/ended", "3"), event(good, "4")}
	for range 2 {
		results := s.Deliver(t.Context(), batch)
		for i, text := range []string{"TopicNotFound", "", "TopicTerminated", ""} {
			class, _ := waybill.Classify(results[i])
			if text == "" && results[i] != nil {
				t.Errorf("%d: %v", i, results[i])
			}
			if text != "" && (class != waybill.ClassUnavailable || !strings.Contains(results[i].Error(), text)) {
				t.Errorf("%d: class %v: %v, want %s", i, class, results[i], text)
			}
		}
	}
	if s.Destination(&batch[0].Event) == s.Destination(&batch[1].Event) || s.Destination(&batch[1].Event) != s.Destination(&batch[3].Event) {
		t.Error("topics share a destination")
	}
	// The topic is used once it exists.
	admin(t, http.MethodPut, "persistent/"+space+"/missing", nil)
	deliver(t, s, batch[0])
}

// A topic that is deleted while in use is unavailable, and used again when it
// exists again.
func TestDeletedTopic(t *testing.T) {
	t.Parallel()
	address, space := testserver.Pulsar(t), namespace(t)
	topic := space + "/gone"
	admin(t, http.MethodPost, "namespaces/"+space+"/autoTopicCreation", map[string]any{"allowAutoTopicCreation": false})
	admin(t, http.MethodPut, "persistent/"+topic, nil)
	b := open(t, address, pulsarbroker.Config{Heartbeat: 200 * time.Millisecond, PublishTimeout: 2 * time.Second})
	s := sink(t, b, pulsarbroker.SinkConfig{})
	var mu sync.Mutex
	got := make(map[waybill.ID]bool)
	run(t, source(t, b, pulsarbroker.SourceConfig{Subscription: "s", Topics: []string{topic}}), func(d *waybill.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		got[d.ID] = true
		return nil
	})
	has := func(d waybill.Delivery) func() bool {
		return func() bool { mu.Lock(); defer mu.Unlock(); return got[d.ID] }
	}
	first, second := event(topic, "1"), event(topic, "1")
	deliver(t, s, first)
	await(t, "first event", has(first))
	admin(t, http.MethodDelete, "persistent/"+topic+"?force=true", nil)
	await(t, "failure", func() bool {
		err := s.Deliver(t.Context(), []waybill.Delivery{second})[0]
		if class, _ := waybill.Classify(err); err != nil && class != waybill.ClassUnavailable {
			t.Fatalf("class %v: %v", class, err)
		}
		return err != nil && strings.Contains(err.Error(), "TopicNotFound")
	})
	admin(t, http.MethodPut, "persistent/"+topic, nil)
	await(t, "delivery", func() bool { return s.Deliver(t.Context(), []waybill.Delivery{second})[0] == nil })
	await(t, "second event", has(second)) // the client alone would have given up
}

// A broker with deduplication drops none of Waybill's messages: a retry and a
// replay are both stored, and the inbox deduplicates them.
func TestDeduplicationSwallowsNothing(t *testing.T) {
	t.Parallel()
	address, space := testserver.Pulsar(t), namespace(t)
	admin(t, http.MethodPost, "namespaces/"+space+"/deduplication", true)
	topic := space + "/dedup"
	b := open(t, address, pulsarbroker.Config{})
	d := event(topic, "1")
	replay := d
	replay.Replay = 1
	deliver(t, sink(t, b, pulsarbroker.SinkConfig{}), d)
	deliver(t, sink(t, b, pulsarbroker.SinkConfig{}), d) // another process
	deliver(t, sink(t, b, pulsarbroker.SinkConfig{}), replay)
	found, err := client(t, address).read(t.Context(), topic)
	if err != nil || len(found) != 3 {
		t.Fatalf("%d messages, %v", len(found), err)
	}
	if id := found[2].Properties()["publish_id"]; id != d.ID.String()+"-r1" {
		t.Errorf("the replay's publish id is %s", id)
	}
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	address, topic := testserver.Pulsar(t), newTopic()
	for _, batch := range []bool{false, true} {
		s := sink(t, open(t, address, pulsarbroker.Config{}), pulsarbroker.SinkConfig{Batching: batch})
		payload, headers, fine := event(topic, "1"), event(topic, "2"), event(topic, "3")
		payload.Payload = bytes.Repeat([]byte("x"), 6<<20)
		headers.Headers = map[string]string{"x": strings.Repeat("x", 6<<20)}
		results := s.Deliver(t.Context(), []waybill.Delivery{payload, headers, fine})
		for i := range 2 {
			if class, _ := waybill.Classify(results[i]); class != waybill.ClassPermanent {
				t.Errorf("batch %v, %d: class %v: %v", batch, i, class, results[i])
			}
		}
		if results[2] != nil {
			t.Errorf("batch %v: its neighbor: %v", batch, results[2])
		}
	}
}

// A topic has its subscriptions before its first event, and so does the
// dead-letter topic: Pulsar keeps messages only for subscriptions.
func TestSubscriptionsAreMadeFirst(t *testing.T) {
	t.Parallel()
	b, topic := open(t, testserver.Pulsar(t), pulsarbroker.Config{}), newTopic()
	deliver(t, sink(t, b, pulsarbroker.SinkConfig{Subscriptions: []string{"billing"}}), event(topic, "1"))
	has := func(topic, name string) bool {
		return strings.Contains(string(admin(t, http.MethodGet, "persistent/public/default/"+topic+"/subscriptions", nil)), `"`+name+`"`)
	}
	if !has(topic, "billing") {
		t.Error("the subscription was not made")
	}
	var dead sync.Once
	set := make(chan struct{})
	cfg := broker.ReceiverConfig{}
	cfg.Observe.DeadLettered = func(observe.DeadLetteredInfo) { dead.Do(func() { close(set) }) }
	run(t, source(t, b, pulsarbroker.SourceConfig{Subscription: "billing", Topics: []string{topic}, Receive: cfg}), func(*waybill.Delivery) error {
		return waybill.Permanent(errors.New("no good"))
	})
	<-set
	if !has(topic+"-dead", pulsarbroker.DeadLetterSubscription) {
		t.Error("the dead letters have no subscription")
	}
	// A second sink finds the subscription in use.
	deliver(t, sink(t, b, pulsarbroker.SinkConfig{Subscriptions: []string{"billing"}}), event(topic, "2"))
}

// With partitions, batches, and processes that start and stop, every event is
// handled, and those of an aggregate in order.
func TestPartitions(t *testing.T) {
	t.Parallel()
	const aggregates, n = 10, 30
	for _, keyShared := range []bool{false, true} {
		t.Run(fmt.Sprint("key shared ", keyShared), func(t *testing.T) {
			t.Parallel()
			address, topic := testserver.Pulsar(t), newTopic()
			admin(t, http.MethodPut, "persistent/public/default/"+topic+"/partitions", 3)
			s := sink(t, open(t, address, pulsarbroker.Config{}), pulsarbroker.SinkConfig{Batching: !keyShared, Subscriptions: []string{"s"}})
			var mu sync.Mutex
			next := make(map[string]int)
			done := 0
			handle := func(d *waybill.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				var k int
				if _, err := fmt.Sscan(string(d.Payload), &k); err != nil {
					return err
				}
				if k > next[d.AggregateID] {
					t.Errorf("aggregate %s: %d before %d", d.AggregateID, k, next[d.AggregateID])
				}
				if k == next[d.AggregateID] {
					next[d.AggregateID]++
					done++
				}
				return nil
			}
			process := func() (stop func()) {
				b := open(t, address, pulsarbroker.Config{})
				return run(t, source(t, b, pulsarbroker.SourceConfig{Subscription: "s", Topics: []string{topic}, KeyShared: keyShared}), handle)
			}
			stop := process()
			for k := range n {
				var batch []waybill.Delivery
				for a := range aggregates {
					d := event(topic, fmt.Sprint("a", a))
					d.Payload = fmt.Append(nil, k)
					batch = append(batch, d)
				}
				deliver(t, s, batch...)
				switch k {
				case n / 3:
					process()
				case 2 * n / 3:
					stop()
				}
			}
			await(t, "all events", func() bool { mu.Lock(); defer mu.Unlock(); return done == aggregates*n })
		})
	}
}

// A process that loses a partition drops its messages in flight. If it kept a
// deferred message that another process has handled, later messages would wait
// behind it when the partition comes back.
func TestAPartitionThatMovesAndComesBack(t *testing.T) {
	t.Parallel()
	address, topic := testserver.Pulsar(t), newTopic()
	admin(t, http.MethodPut, "persistent/public/default/"+topic+"/partitions", 2)
	const aggregates = 10
	start := func(verdict error) (seen func(id string) int, stop func()) {
		var mu sync.Mutex
		times := make(map[string]int)
		src := source(t, open(t, address, pulsarbroker.Config{}), pulsarbroker.SourceConfig{Subscription: "s", Topics: []string{topic}})
		stop = run(t, src, func(d *waybill.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			times[d.AggregateID]++
			return verdict
		})
		return func(id string) int { mu.Lock(); defer mu.Unlock(); return times[id] }, stop
	}
	first, _ := start(waybill.Later(time.Hour, errors.New("not now")))
	s := sink(t, open(t, address, pulsarbroker.Config{}), pulsarbroker.SinkConfig{})
	for a := range aggregates {
		deliver(t, s, event(topic, fmt.Sprint("a", a)))
	}
	await(t, "all events", func() bool {
		for a := range aggregates {
			if first(fmt.Sprint("a", a)) == 0 {
				return false
			}
		}
		return true
	})
	second, stop := start(nil)
	moved := ""
	await(t, "move of a partition", func() bool {
		for a := range aggregates {
			if id := fmt.Sprint("a", a); second(id) > 0 {
				moved = id
			}
		}
		return moved != ""
	})
	stop()
	before := first(moved)
	defer func() {
		if t.Failed() {
			t.Logf("the first consumer had the aggregate %d times, %d of them before the second stopped, which had it %d times", first(moved), before, second(moved))
		}
	}()
	// Sometimes the broker delivers the messages that the second process has
	// left behind only when a new message arrives, also with its own client.
	deliver(t, s, event(topic, moved))
	await(t, "event of a partition that has come back", func() bool { return first(moved) > before })
}

// Key_Shared assigns an entry as a whole, so an entry with several messages
// would combine keys of different processes.
func TestEveryMessageIsAnEntry(t *testing.T) {
	t.Parallel()
	address, topic := testserver.Pulsar(t), newTopic()
	b := open(t, address, pulsarbroker.Config{})
	var batch []waybill.Delivery
	for a := range 50 {
		batch = append(batch, event(topic, fmt.Sprint("a", a)))
	}
	entries := func(cfg pulsarbroker.SinkConfig) int {
		deliver(t, sink(t, b, cfg), batch...)
		found, err := client(t, address).read(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		ids := make(map[[2]int64]bool)
		for _, m := range found[len(found)-len(batch):] {
			ids[[2]int64{m.ID().LedgerID(), m.ID().EntryID()}] = true
		}
		return len(ids)
	}
	if n := entries(pulsarbroker.SinkConfig{}); n != len(batch) {
		t.Errorf("%d messages are %d entries", len(batch), n)
	}
	if n := entries(pulsarbroker.SinkConfig{Batching: true}); n >= len(batch) {
		t.Errorf("%d messages in batches are %d entries", len(batch), n)
	}
}

// Every error in the documentation has the documented class.
func TestFailures(t *testing.T) {
	server := func(code string) error { return fmt.Errorf("x: %w", errors.New("server error: "+code+": why")) }
	drivertest.Failures(t, pulsarbroker.Failures(), map[string]error{
		"larger than MaxMessageSize":                    fmt.Errorf("x: %w", pulsar.ErrMessageTooLarge),
		"InvalidTopicName":                              server("InvalidTopicName"),
		"receipt without a message id (-1:-1)":          pulsarbroker.ErrUnverified,
		"TopicNotFound":                                 errors.Join(pulsar.ErrTopicNotfound, server("TopicNotFound")),
		"TopicTerminated":                               server("TopicTerminatedError"),
		"ProducerBlockedQuotaExceeded":                  server("ProducerBlockedQuotaExceededException"),
		"AuthorizationError, NotAllowedError":           server("AuthorizationError"),
		"IncompatibleSchema":                            server("IncompatibleSchema"),
		"ProducerClosed, ProducerFenced, ProducerBusy":  pulsar.ErrProducerClosed,
		"ProducerQueueIsFull, ClientMemoryBufferIsFull": pulsar.ErrSendQueueIsFull,
		"any other error of the server":                 server("ServiceNotReady"),
		"connection lost, refused or silent":            errors.New("connection closed"),
	}, "../../docs/brokers.md")
	for name, tc := range map[string]struct {
		err  error
		want waybill.Class
	}{
		"metadata too large":  {pulsar.ErrMetaTooLarge, waybill.ClassPermanent},
		"the code alone":      {errors.New("TopicNotFound"), waybill.ClassUnavailable},
		"a topic of the name": {errors.New("no idea: TopicNotFound"), waybill.ClassRetry},
		"terminated":          {pulsar.ErrTopicTerminated, waybill.ClassUnavailable},
		"memory":              {pulsar.ErrMemoryBufferIsFull, waybill.ClassDefer},
		"timeout":             {pulsar.ErrContextExpired, waybill.ClassUnavailable},
		"request":             {errors.New("request timed out"), waybill.ClassUnavailable},
		"not connected":       {errors.New("connection error"), waybill.ClassUnavailable},
		"anything else":       {errors.New("no"), waybill.ClassRetry},
	} {
		if class, _ := waybill.Classify(pulsarbroker.Failures().Classify(fmt.Errorf("x: %w", tc.err))); class != tc.want {
			t.Errorf("%s: class %v, want %v", name, class, tc.want)
		}
	}
}

func TestTheTableIsInThePackageComment(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.ReplaceAll(string(doc), "// ", ""); !strings.Contains(text, strings.TrimSpace(pulsarbroker.Failures().Table())) {
		t.Errorf("the package comment does not have\n%s", pulsarbroker.Failures().Table())
	}
}

// A source returns an error for a missing topic that it may not create, instead
// of retrying forever.
func TestASourceWithoutItsTopic(t *testing.T) {
	t.Parallel()
	space := namespace(t)
	admin(t, http.MethodPost, "namespaces/"+space+"/autoTopicCreation", map[string]any{"allowAutoTopicCreation": false})
	s := source(t, open(t, testserver.Pulsar(t), pulsarbroker.Config{PublishTimeout: 5 * time.Second}), pulsarbroker.SourceConfig{
		Subscription: "s", Topics: []string{space + "/missing"},
	})
	if err := s.Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "TopicNotFound") {
		t.Errorf("Run = %v", err)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	s := sink(t, open(t, testserver.Pulsar(t), pulsarbroker.Config{Namespace: "shop/eu"}), pulsarbroker.SinkConfig{})
	for topic, want := range map[string]string{
		"orders": "persistent://shop/eu/orders", "a/b/c": "persistent://a/b/c", "persistent://a/b/c": "persistent://a/b/c",
		"non-persistent://a/b/c": "", "a/b": "", "a/b/c/d": "", "a//c": "", "persistent://c": "", "a b": "",
	} {
		d := event(topic, "1")
		if got := s.Destination(&d.Event); got != want {
			t.Errorf("%s is %q, want %q", topic, got, want)
		}
		if want == "" {
			if class, _ := waybill.Classify(s.Deliver(t.Context(), []waybill.Delivery{d})[0]); class != waybill.ClassPermanent {
				t.Errorf("%s has class %v", topic, class)
			}
		}
	}
	topics, err := pulsarbroker.Names().Template("shop/{tenant}/{type}")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topics(&waybill.Event{TenantID: "a/b", Type: "x"}); err == nil {
		t.Error("a tenant reaches into another's namespace")
	}
}

func TestConfigs(t *testing.T) {
	var b pulsarbroker.Broker
	_, err := b.Source(pulsarbroker.SourceConfig{Topics: []string{"a b"}, DeadLetter: "a/b", Receive: broker.ReceiverConfig{Workers: -1}})
	says(t, err, "pulsarbroker: SourceConfig.Subscription: empty\nSourceConfig.Topics: \"a b\" has an invalid character\n"+
		"SourceConfig.DeadLetter: \"a/b\": want a name, tenant/namespace/name, or persistent://tenant/namespace/name\nReceiverConfig.Workers: -1 is negative")
	_, err = b.Sink(pulsarbroker.SinkConfig{EventSource: "a b", Subscriptions: []string{""}, MaxProducers: -1})
	says(t, err, "pulsarbroker: SinkConfig.EventSource: not a URI reference of at most 512 printable ASCII characters\n"+
		"SinkConfig.Subscriptions: empty name\nSinkConfig.MaxProducers: -1 is negative")
	_, err = pulsarbroker.New(nil, pulsarbroker.Config{Namespace: "x", PublishTimeout: -1, Heartbeat: -1})
	says(t, err, "pulsarbroker: Config.Namespace: \"x\", want tenant/namespace\nConfig.PublishTimeout: -1ns is negative\nConfig.Heartbeat: -1ns is negative")
	_, err = pulsarbroker.New(nil, pulsarbroker.Config{Options: func(*pulsar.ClientOptions) {}})
	says(t, err, "pulsarbroker: Config.Options: not nil, but New uses the caller's client")
	_, err = pulsarbroker.New(nil, pulsarbroker.Config{})
	says(t, err, "pulsarbroker: client: nil")
	for _, url := range []string{"http://localhost", "pulsar://u:canary%@host", "pulsar://host?token=canary&x=y", "pulsar://host?token=canary%"} {
		if _, err := pulsarbroker.Open(t.Context(), url, pulsarbroker.Config{}); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", driver.Redact(url), err)
		}
	}
	if _, err := pulsarbroker.Open(t.Context(), "pulsar://host", pulsarbroker.Config{Namespace: "x"}); err == nil {
		t.Error("a namespace without a tenant")
	}
}

func says(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

// New uses the caller's client and leaves it open.
func TestNew(t *testing.T) {
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: testserver.Pulsar(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	b, err := pulsarbroker.New(client, pulsarbroker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	topic := "new-" + waybill.NewID().String()
	s, err := b.Sink(pulsarbroker.SinkConfig{Topics: broker.OneTopic(topic)})
	if err != nil {
		t.Fatal(err)
	}
	d := waybill.Delivery{Event: eventfill.Defaults(waybill.NewEvent("x", 1)), Attempt: 1}
	if err := s.Deliver(t.Context(), []waybill.Delivery{d})[0]; err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if _, err := client.TopicPartitions(topic); err != nil {
		t.Errorf("the client after Close: %v", err)
	}
}

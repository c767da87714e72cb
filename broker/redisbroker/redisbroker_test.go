package redisbroker_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/drivertest"
	"github.com/waybillhq/waybill/broker/redisbroker"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/private"
	"github.com/waybillhq/waybill/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The relay and the inbox detect these interfaces.
var (
	_ relay.OrderedSink     = (*redisbroker.Sink)(nil)
	_ relay.DestinationSink = (*redisbroker.Sink)(nil)
	_ broker.Source         = (*redisbroker.Source)(nil)
)

func open(t *testing.T, url string) *redisbroker.Broker {
	t.Helper()
	b, err := redisbroker.Open(t.Context(), url, redisbroker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// plain returns a client that does not depend on Waybill.
func plain(t *testing.T, url string) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(opts)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func sink(t *testing.T, b *redisbroker.Broker, cfg redisbroker.SinkConfig) *redisbroker.Sink {
	t.Helper()
	s, err := b.Sink(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	address := testserver.Redis(t)
	drivertest.Run(t, drivertest.Harness{
		Name:         "redisbroker",
		Capabilities: drivertest.Capabilities{Source: true, Counts: true, Outage: true, Restart: true, Secrets: true},
		Open: func(t *testing.T) drivertest.Instance {
			if !strings.HasSuffix(t.Name(), "a_restart_loses_nothing") {
				return instance(t, address)
			}
			server := private.Start(t, testserver.RedisName) // may be killed
			in := instance(t, server.DSN)
			in.Restart = func() {
				if err := errors.Join(server.Kill(t.Context()), server.Restart(t.Context())); err != nil {
					t.Fatal(err)
				}
			}
			return in
		},
	})
}

func instance(t *testing.T, address string) drivertest.Instance {
	t.Helper()
	// The broker under test connects through a proxy that can be cut; the
	// inspecting client does not.
	cut := newProxy(t, address)
	b, client := open(t, cut.url), plain(t, address)
	topic := "test:" + waybill.NewID().String()
	t.Cleanup(func() {
		_ = client.Del(context.WithoutCancel(t.Context()), topic).Err()
	})
	codec, err := broker.NewCodec(broker.Redis, broker.CodecConfig{})
	if err != nil {
		t.Fatal(err)
	}
	read := func(ctx context.Context, stream string) ([]broker.Message, error) {
		entries, err := client.XRange(ctx, stream, "-", "+").Result()
		var found []broker.Message
		for _, e := range entries {
			m := broker.Message{Topic: stream}
			for name, value := range e.Values {
				text := fmt.Sprint(value)
				switch name {
				case "data":
					m.Payload = []byte(text)
				case "publish_id":
					m.PublishID = text
				case "content-type":
					m.ContentType = text
					m.Headers = append(m.Headers, broker.Header{Name: name, Value: text})
				default:
					m.Headers = append(m.Headers, broker.Header{Name: name, Value: text})
				}
			}
			found = append(found, m)
		}
		return found, err
	}
	return drivertest.Instance{
		Topic: topic, Sink: sink(t, b, redisbroker.SinkConfig{}), Codec: codec,
		Source: func(name string, cfg broker.ReceiverConfig) broker.Source {
			s, err := b.Source(redisbroker.SourceConfig{
				Group: name, Streams: []string{topic}, DeadLetter: topic + ":" + name + ":dead", ClaimIdle: 2 * time.Second, Receive: cfg,
			})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Read: func(ctx context.Context) ([]broker.Message, error) { return read(ctx, topic) },
		DeadLetters: func(ctx context.Context, name string) ([]broker.Message, error) {
			return read(ctx, topic+":"+name+":dead")
		},
		Publish: func(ctx context.Context, m broker.Message) error {
			values := []any{"data", m.Payload}
			for _, h := range m.Headers {
				values = append(values, h.Name, h.Value)
			}
			return client.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: values}).Err()
		},
		Break: cut.stop, Heal: cut.start,
		OpenWith: func(ctx context.Context, password string) error {
			u, err := url.Parse(address)
			if err != nil {
				return err
			}
			u.User = url.UserPassword("user", password)
			b, err := redisbroker.Open(ctx, u.String(), redisbroker.Config{})
			if err == nil {
				_ = b.Close()
			}
			return err
		},
	}
}

// Every answer in the documentation has the documented class, in Redis's own
// words.
func TestFailures(t *testing.T) {
	client := plain(t, testserver.Redis(t))
	for answer, want := range map[string]waybill.Class{
		"OOM command not allowed when used memory > 'maxmemory'.":           waybill.ClassUnavailable,
		"MISCONF Redis is configured to save RDB snapshots":                 waybill.ClassUnavailable,
		"LOADING Redis is loading the dataset in memory":                    waybill.ClassUnavailable,
		"MASTERDOWN Link with MASTER is down":                               waybill.ClassUnavailable,
		"READONLY You can't write against a read only replica.":             waybill.ClassUnavailable,
		"CLUSTERDOWN The cluster is down":                                   waybill.ClassUnavailable,
		"TRYAGAIN Multiple keys request during rehashing of slot":           waybill.ClassUnavailable,
		"NOREPLICAS Not enough good replicas to write.":                     waybill.ClassUnavailable,
		"BUSY Redis is busy running a script.":                              waybill.ClassUnavailable,
		"UNKILLABLE Sorry the script already executed write commands":       waybill.ClassUnavailable,
		"ERR max number of clients reached":                                 waybill.ClassUnavailable,
		"NOAUTH Authentication required.":                                   waybill.ClassUnavailable,
		"WRONGPASS invalid username-password pair":                          waybill.ClassUnavailable,
		"NOPERM this user has no permissions to run the 'xadd' command":     waybill.ClassUnavailable,
		"WRONGTYPE Operation against a key holding the wrong kind of value": waybill.ClassUnavailable,
		"ERR Protocol error: invalid bulk length":                           waybill.ClassPermanent,
		"ERR an unknown error":                                              waybill.ClassRetry,
	} {
		// The server itself returns the error, so that the test covers the
		// client's handling of the answer.
		err := client.Eval(t.Context(), "return redis.error_reply(ARGV[1])", nil, answer).Err()
		if class, _ := waybill.Classify(redisbroker.Failures().Classify(err)); class != want {
			t.Errorf("%s: class %v, want %v", answer, class, want)
		}
	}
}

func TestTheTableIsInTheDocumentation(t *testing.T) {
	for _, name := range []string{"doc.go", "../../docs/brokers.md"} {
		doc, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.ReplaceAll(string(doc), "// ", ""); !strings.Contains(text, strings.TrimSpace(redisbroker.Failures().Table())) {
			t.Errorf("%s does not have\n%s", name, redisbroker.Failures().Table())
		}
	}
}

// A server without memory rejects everything; no event is dead.
func TestFullMemoryIsDown(t *testing.T) {
	server := private.Start(t, testserver.RedisName)
	client := plain(t, server.DSN)
	s := sink(t, open(t, server.DSN), redisbroker.SinkConfig{})
	if err := client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	err := s.Deliver(t.Context(), []waybill.Delivery{event("orders")})[0]
	if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("class %v: %v", class, err)
	}
	if err := client.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.Deliver(t.Context(), []waybill.Delivery{event("orders")})[0]; err != nil {
		t.Error(err)
	}
}

func event(topic string) waybill.Delivery {
	ev := waybill.NewEvent("OrderPlaced", 1)
	ev.Topic = topic
	return waybill.Delivery{Event: eventfill.Defaults(ev), Attempt: 1}
}

// A stream that cannot be written to does not affect another stream.
func TestAWrongKeyIsDownByItself(t *testing.T) {
	address := testserver.Redis(t)
	client := plain(t, address)
	wrong, right := "test:"+waybill.NewID().String(), "test:"+waybill.NewID().String()
	if err := client.Set(t.Context(), wrong, "text", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Del(context.WithoutCancel(t.Context()), wrong, right).Err() })
	s := sink(t, open(t, address), redisbroker.SinkConfig{})
	results := s.Deliver(t.Context(), []waybill.Delivery{event(wrong), event(right)})
	if class, _ := waybill.Classify(results[0]); class != waybill.ClassUnavailable || results[1] != nil {
		t.Errorf("results %v", results)
	}
	a, b := event(wrong), event(right)
	if s.Destination(&a.Event) == s.Destination(&b.Event) {
		t.Error("both have one destination")
	}
}

func TestStreamsThatMustExist(t *testing.T) {
	address := testserver.Redis(t)
	client := plain(t, address)
	name := "test:" + waybill.NewID().String()
	s := sink(t, open(t, address), redisbroker.SinkConfig{NoCreate: true})
	err := s.Deliver(t.Context(), []waybill.Delivery{event(name)})[0]
	if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable {
		t.Errorf("class %v: %v", class, err)
	}
	if n, err := client.Exists(t.Context(), name).Result(); err != nil || n != 0 {
		t.Errorf("the stream was made: %d, %v", n, err)
	}
}

// redis-cli shows ids, headers and payload as documented.
func TestRedisCLIReadsIt(t *testing.T) {
	address := testserver.Redis(t)
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Fatal("redis-cli is not installed: run `make test`, or install the package redis-tools")
	}
	name := "test:" + waybill.NewID().String()
	t.Cleanup(func() { _ = plain(t, address).Del(context.WithoutCancel(t.Context()), name).Err() })
	d := event(name)
	d.AggregateType, d.AggregateID, d.TenantID, d.Headers, d.Replay = "order", "A-1", "acme", map[string]string{"color": "red"}, 1
	if err := sink(t, open(t, address), redisbroker.SinkConfig{EventSource: "/shop"}).Deliver(t.Context(), []waybill.Delivery{d})[0]; err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), cli, "-u", address, "XRANGE", name, "-", "+").Output() //nolint:gosec // a test's own address
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(out), "\n")
	fields := map[string]string{}
	for i := 1; i+1 < len(lines); i += 2 {
		fields[strings.TrimSpace(lines[i])] = strings.TrimSpace(lines[i+1])
	}
	for field, want := range map[string]string{
		"ce_id": d.ID.String(), "ce_type": "OrderPlaced", "ce_source": "/shop", "ce_specversion": "1.0", "ce_aggregateid": "A-1", "ce_tenantid": "acme",
		"waybill_color": "red", "content-type": "application/json", "publish_id": d.ID.String() + "-r1", "data": "1",
	} {
		if fields[field] != want {
			t.Errorf("%s is %q, want %q", field, fields[field], want)
		}
	}
}

// The unanswered entries of a consumer with a fixed name come first after its
// restart.
func TestAConsumerGoesOnInOrder(t *testing.T) {
	address := testserver.Redis(t)
	b := open(t, address)
	name := "test:" + waybill.NewID().String()
	t.Cleanup(func() { _ = plain(t, address).Del(context.WithoutCancel(t.Context()), name).Err() })
	s := sink(t, b, redisbroker.SinkConfig{})
	var want []string
	publish := func(n int) {
		for range n {
			d := event(name)
			d.AggregateType, d.AggregateID = "order", "A-1"
			if err := s.Deliver(t.Context(), []waybill.Delivery{d})[0]; err != nil {
				t.Fatal(err)
			}
			want = append(want, d.ID.String())
		}
	}
	publish(3)
	// Another client reads under the consumer's name, as if the process had
	// crashed with the entries in flight.
	client := plain(t, address)
	if err := client.XGroupCreate(t.Context(), name, "billing", "0").Err(); err != nil {
		t.Fatal(err)
	}
	args := &redis.XReadGroupArgs{Group: "billing", Consumer: "node-1", Streams: []string{name, ">"}, Count: 2}
	if err := client.XReadGroup(t.Context(), args).Err(); err != nil {
		t.Fatal(err)
	}
	publish(2)
	source, err := b.Source(redisbroker.SourceConfig{Group: "billing", Consumer: "node-1", Streams: []string{name}, DeleteAcked: true})
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{want: 5, done: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- source.Run(ctx, c) }()
	select {
	case <-c.done:
	case <-time.After(30 * time.Second):
		t.Error("they did not come")
	}
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if got := strings.Join(c.ids, " "); got != strings.Join(want, " ") {
		t.Errorf("order %s, want %s", got, strings.Join(want, " "))
	}
	if len(c.attempts) == 5 && (c.attempts[0] != 2 || c.attempts[4] != 1) {
		t.Errorf("attempts %v: the first two were handed out before", c.attempts)
	}
	if n, err := client.XLen(t.Context(), name).Result(); err != nil || n != 0 {
		t.Errorf("%d entries are left although acknowledged ones are deleted: %v", n, err)
	}
}

type collector struct {
	mu       sync.Mutex
	want     int
	ids      []string
	attempts []int
	done     chan struct{}
}

func (c *collector) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range batch {
		c.ids, c.attempts = append(c.ids, d.ID.String()), append(c.attempts, d.Attempt)
		if len(c.ids) == c.want {
			close(c.done)
		}
	}
	return make([]error, len(batch))
}

// Entries of one aggregate in two streams are two messages, although their ids
// are equal.
func TestTwoStreamsWithEqualIDs(t *testing.T) {
	address := testserver.Redis(t)
	b, client := open(t, address), plain(t, address)
	streams := []string{"test:" + waybill.NewID().String(), "test:" + waybill.NewID().String()}
	t.Cleanup(func() { _ = client.Del(context.WithoutCancel(t.Context()), streams...).Err() })
	for i, stream := range streams {
		args := &redis.XAddArgs{Stream: stream, ID: "1700000000000-7", Values: []any{
			"ce_specversion", "1.0", "ce_id", fmt.Sprint(i), "ce_source", "/elsewhere", "ce_type", "Ping", "ce_subject", "A-1", "data", "{}",
		}}
		if err := client.XAdd(t.Context(), args).Err(); err != nil {
			t.Fatal(err)
		}
	}
	source, err := b.Source(redisbroker.SourceConfig{Group: "billing", Streams: streams})
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{want: 2, done: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- source.Run(ctx, c) }()
	select {
	case <-c.done:
	case <-time.After(20 * time.Second): // less than ClaimIdle, after which it would be redelivered
		t.Error("one of them was taken for the other")
	}
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

// When the server's clock is set back, new entries get the last millisecond and
// an increasing count. They are distinct messages, in order.
func TestEntriesOfOneMillisecond(t *testing.T) {
	address := testserver.Redis(t)
	b, client := open(t, address), plain(t, address)
	for name, ids := range map[string][]string{
		"few":               {"1700000000000-5", "1700000000000-6", "1700000000000-7", "1700000000000-8"},
		"many":              {"1700000000000-20000", "1700000000000-20001", "1700000000000-20002", "1700000000000-20003"},
		"more than 32 bits": {"1700000000000-9000000000", "1700000000000-9000000001", "1700000000000-18446744073709551615", "1700000000001-0"},
		"no clock":          {"0-1", "0-2", "1-0", "17592186044416-0"},
		"a far one":         {"1-0", "17592186044416-0", "17592186044417-0", "18446744073709551615-1"},
	} {
		t.Run(name, func(t *testing.T) {
			stream := "test:" + waybill.NewID().String()
			t.Cleanup(func() { _ = client.Del(context.WithoutCancel(t.Context()), stream).Err() })
			var want []string
			for i, id := range ids {
				args := &redis.XAddArgs{Stream: stream, ID: id, Values: []any{
					"ce_specversion", "1.0", "ce_id", waybill.NewID().String(), "ce_source", "/elsewhere", "ce_type", fmt.Sprint("e", i), "ce_subject", "A-1", "data", "{}",
				}}
				if err := client.XAdd(t.Context(), args).Err(); err != nil {
					t.Fatal(err)
				}
				want = append(want, fmt.Sprint("e", i))
			}
			source, err := b.Source(redisbroker.SourceConfig{Group: "billing", Streams: []string{stream}, ClaimIdle: 5 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			var got []string
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			err = source.Run(ctx, consumerFunc(func(ctx context.Context, batch []waybill.Delivery) []error {
				for ctx.Err() == nil { // until all are handed out, so that they wait in line
					if all, err := client.XPending(ctx, stream, "billing").Result(); err == nil && all.Count+int64(len(got)) >= int64(len(ids)) {
						break
					}
				}
				mu.Lock()
				defer mu.Unlock()
				for _, d := range batch {
					got = append(got, d.Type)
				}
				if len(got) >= len(ids) {
					stop()
				}
				return make([]error, len(batch))
			}))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Errorf("handled %v, want %v", got, want)
			}
		})
	}
}

type consumerFunc func(ctx context.Context, batch []waybill.Delivery) []error

func (f consumerFunc) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return f(ctx, batch)
}

func TestConfigs(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "localhost:1"})
	t.Cleanup(func() { _ = client.Close() })
	b, err := redisbroker.New(client, redisbroker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Source(redisbroker.SourceConfig{Streams: []string{"a b"}, DeadLetter: "a b", ClaimIdle: -1, Receive: broker.ReceiverConfig{Workers: -1}})
	says(t, err, "redisbroker: SourceConfig.Group: empty\nSourceConfig.Streams: \"a b\" has an invalid character\nSourceConfig.ClaimIdle: -1ns is negative\n"+
		"SourceConfig.DeadLetter: a b is one of Streams\nReceiverConfig.Workers: -1 is negative")
	_, err = b.Sink(redisbroker.SinkConfig{EventSource: "a b"})
	says(t, err, "redisbroker: SinkConfig.EventSource: not a URI reference of at most 512 printable ASCII characters")
	_, err = b.Sink(redisbroker.SinkConfig{Replicas: -1})
	says(t, err, "redisbroker: SinkConfig.Replicas: -1 is negative")
	_, err = redisbroker.Open(t.Context(), "redis://localhost:1", redisbroker.Config{PoolSize: -1})
	says(t, err, "redisbroker: Config.PoolSize: -1 is negative")
	_, err = redisbroker.New(client, redisbroker.Config{PoolSize: 3})
	says(t, err, "redisbroker: Config.PoolSize: 3, but New uses the caller's client")
	_, err = redisbroker.New(nil, redisbroker.Config{})
	says(t, err, "redisbroker: client: nil")
	for want, cfg := range map[string]redisbroker.SourceConfig{
		"billing":  {Group: "billing", Streams: []string{"a"}},
		"invoices": {Group: "billing", Name: "invoices", Streams: []string{"a"}},
	} {
		if s, err := b.Source(cfg); err != nil || s.Name() != want {
			t.Errorf("the source is %v, %v", s, err)
		}
	}
	if _, err := redisbroker.Open(t.Context(), "redis://:canary@[bad", redisbroker.Config{}); err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("a bad URL: %v", err)
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
	opts, err := redisbroker.Options(testserver.Redis(t))
	if err != nil {
		t.Fatal(err)
	}
	opts.MaxRetries = -1
	client := redis.NewUniversalClient(opts)
	t.Cleanup(func() { _ = client.Close() })
	b, err := redisbroker.New(client, redisbroker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	stream := "new-" + waybill.NewID().String()
	s, err := b.Sink(redisbroker.SinkConfig{Topics: broker.OneTopic(stream)})
	if err != nil {
		t.Fatal(err)
	}
	d := waybill.Delivery{Event: eventfill.Defaults(waybill.NewEvent("x", 1)), Attempt: 1}
	if err := s.Deliver(t.Context(), []waybill.Delivery{d})[0]; err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if n, err := client.XLen(t.Context(), stream).Result(); err != nil || n != 1 {
		t.Errorf("%d entries, %v", n, err)
	}
}

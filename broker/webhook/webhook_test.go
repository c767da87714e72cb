package webhook_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/webhook"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	secret = "whsec_" + base64.StdEncoding.EncodeToString([]byte("twenty-four bytes or more of secret"))
	second = "whsec_" + base64.StdEncoding.EncodeToString([]byte("another secret of enough length ok"))
)

func delivery(id string) waybill.Delivery {
	ev := eventfill.Defaults(waybill.Event{
		Type: "OrderPlaced", AggregateType: "order", AggregateID: id, TenantID: "acme", CorrelationID: "c-1", CausationID: "c-0", DedupKey: "d-" + id,
		SchemaID: "urn:orders", SchemaVersion: 3, RoutingKey: "eu", Topic: "orders", Priority: 7,
		Headers: map[string]string{"Über": "naïve, \"quoted\" 100 %", "plain": "x"}, Payload: []byte(`{"total":9990}`),
	})
	return waybill.Delivery{Event: ev, Attempt: 1, Position: waybill.Position{Lane: 3, Epoch: 4, Seq: 5}}
}

// consumer answers with a function and records its deliveries.
type consumer struct {
	mu     sync.Mutex
	got    []waybill.Delivery
	answer func(ctx context.Context, d waybill.Delivery) error
}

func (c *consumer) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	results := make([]error, len(batch))
	for i, d := range batch {
		c.mu.Lock()
		c.got = append(c.got, d)
		c.mu.Unlock()
		if c.answer != nil {
			results[i] = c.answer(ctx, d)
		}
	}
	return results
}

func (c *consumer) events() []waybill.Delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]waybill.Delivery(nil), c.got...)
}

func serve(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func receiver(t *testing.T, c waybill.Sink, cfg webhook.ReceiverConfig) *httptest.Server {
	t.Helper()
	if cfg.Secrets == nil && !cfg.Unsigned {
		cfg.Secrets = []string{secret}
	}
	r, err := webhook.NewReceiver(c, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, r)
}

func sink(t *testing.T, url string, cfg webhook.Config) *webhook.Sink {
	t.Helper()
	if cfg.Secrets == nil && !cfg.Unsigned {
		cfg.Secrets = []string{secret}
	}
	s, err := webhook.NewSink(url, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func deliver(t *testing.T, s *webhook.Sink, d waybill.Delivery) error {
	t.Helper()
	results := s.Deliver(t.Context(), []waybill.Delivery{d})
	if len(results) != 1 {
		t.Fatalf("%d results for one delivery", len(results))
	}
	return results[0]
}

func TestAnEventArrivesAsItWas(t *testing.T) {
	c := &consumer{}
	s := sink(t, receiver(t, c, webhook.ReceiverConfig{}).URL, webhook.Config{})
	want := delivery("A-1")
	if err := deliver(t, s, want); err != nil {
		t.Fatal(err)
	}
	got := c.events()
	if len(got) != 1 || !reflect.DeepEqual(got[0].Event, want.Event) {
		t.Fatalf("got %+v, want %+v", got, want.Event)
	}
	if !got[0].Uncounted || got[0].Suspect {
		t.Errorf("uncounted %v, suspect %v: the sender cannot tell that a receiver died of it", got[0].Uncounted, got[0].Suspect)
	}
	if got[0].Position != want.Position {
		t.Errorf("position %v, want %v", got[0].Position, want.Position)
	}
}

func attributes(h http.Header) {
	for name, value := range map[string]string{
		"ce-id": "1", "ce-source": "/elsewhere", "ce-type": "Ping", "ce-specversion": "1.0", "Content-Type": "application/json",
	} {
		h.Set(name, value)
	}
}

func post(t *testing.T, url string, h http.Header, body string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = h
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer func() { _ = res.Body.Close() }()
	return res.StatusCode
}

// Every status has the class of the documented table.
func TestAnswers(t *testing.T) {
	var code int
	var header http.Header
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for name, values := range header {
			w.Header()[name] = values
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, "line one\nline two")
	}))
	s := sink(t, server.URL, webhook.Config{})
	named := map[int]bool{}
	for _, row := range webhook.Failures() {
		for field := range strings.SplitSeq(strings.TrimSuffix(row.Name, " with Retry-After"), ", ") {
			var n int
			if _, err := fmt.Sscanf(field, "%d", &n); err != nil {
				continue
			}
			named[n] = true
			code, header = n, http.Header{"Retry-After": {"7"}, "Content-Type": {"text/plain"}}
			err := deliver(t, s, delivery("A-1"))
			class, delay := waybill.Classify(err)
			if class != row.Class {
				t.Errorf("%d: class %v, want %v (%v)", n, class, row.Class, err)
			}
			if asks := row.Class == waybill.ClassRetry || row.Class == waybill.ClassDefer; asks && delay != 7*time.Second {
				t.Errorf("%d: delay %v, want the 7 s it asks for", n, delay)
			}
			if !strings.Contains(err.Error(), "line one line two") {
				t.Errorf("%d: %q does not show what the endpoint said", n, err)
			}
		}
	}
	header = nil
	for n := 300; n < 600; n++ {
		if named[n] || n == http.StatusTooEarly {
			continue
		}
		code = n
		if class, _ := waybill.Classify(deliver(t, s, delivery("A-1"))); class != waybill.ClassRetry {
			t.Errorf("%d: class %v, want retry", n, class)
		}
	}
	for _, n := range []int{200, 201, 202, 204} {
		code = n
		if err := deliver(t, s, delivery("A-1")); err != nil {
			t.Errorf("%d: %v", n, err)
		}
	}
}

func TestTheTableIsInTheDocumentation(t *testing.T) {
	table := strings.Replace(strings.TrimSpace(webhook.Failures().Table()), "broker error", "endpoint response", 1)
	for _, name := range []string{"doc.go", "../../docs/brokers.md"} {
		doc, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.ReplaceAll(string(doc), "// ", ""); !strings.Contains(text, table) {
			t.Errorf("%s does not have\n%s", name, table)
		}
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	followed := false
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/else" {
			followed = true
			return
		}
		http.Redirect(w, r, "/else", http.StatusTemporaryRedirect)
	}))
	err := deliver(t, sink(t, server.URL+"/hooks", webhook.Config{Client: &http.Client{Transport: transport(t)}}), delivery("A-1"))
	if class, _ := waybill.Classify(err); class != waybill.ClassRetry || followed {
		t.Errorf("class %v, followed %v: %v", class, followed, err)
	}
}

func transport(t *testing.T) *http.Transport {
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// An unavailable endpoint does not affect another.
func TestEndpointsAreTheirOwnDestinations(t *testing.T) {
	c := &consumer{}
	up := receiver(t, c, webhook.ReceiverConfig{})
	gone, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	down := "http://" + gone.Addr().String() + "/hooks?token=canary"
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	s := sink(t, "", webhook.Config{Endpoint: func(ev *waybill.Event) (string, error) {
		switch ev.AggregateID {
		case "up":
			return up.URL, nil
		case "down":
			return down, nil
		}
		return "", errors.New("no endpoint")
	}})
	results := s.Deliver(t.Context(), []waybill.Delivery{delivery("down"), delivery("up"), delivery("none")})
	var classes []waybill.Class
	for _, err := range results {
		class, _ := waybill.Classify(err)
		classes = append(classes, class)
	}
	if want := []waybill.Class{waybill.ClassUnavailable, waybill.ClassDone, waybill.ClassPermanent}; !reflect.DeepEqual(classes, want) {
		t.Errorf("classes %v, want %v: %v", classes, want, results)
	}
	if strings.Contains(results[0].Error(), "canary") {
		t.Errorf("the error shows the URL's token: %v", results[0])
	}
	a, b := delivery("up"), delivery("down")
	if s.Destination(&a.Event) == s.Destination(&b.Event) {
		t.Error("both have one destination")
	}
}

func TestAnUntrustedCertificateIsNotTheEventsFault(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	t.Cleanup(server.Close)
	err := deliver(t, sink(t, server.URL, webhook.Config{}), delivery("A-1"))
	if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable {
		t.Errorf("class %v: %v", class, err)
	}
}

// The sink understands the receiver's answers: the sink's class is the
// consumer's.
func TestResultsTravelBack(t *testing.T) {
	for name, tc := range map[string]struct {
		result error
		class  waybill.Class
		delay  time.Duration
	}{
		"done":        {nil, waybill.ClassDone, 0},
		"settled":     {waybill.ErrSettled, waybill.ClassDone, 0},
		"in progress": {waybill.Later(2500*time.Millisecond, waybill.ErrInProgress), waybill.ClassDefer, 3 * time.Second},
		"failed":      {errors.New("boom: canary"), waybill.ClassRetry, 0},
		"with delay":  {waybill.RetryAfter(9*time.Second, errors.New("boom")), waybill.ClassRetry, 9 * time.Second},
		"down":        {waybill.Unavailable(errors.New("boom")), waybill.ClassUnavailable, 0},
		"dead":        {waybill.ErrDead, waybill.ClassPermanent, 0},
		"conflict":    {waybill.ErrConflict, waybill.ClassPermanent, 0},
	} {
		t.Run(name, func(t *testing.T) {
			aside := 0
			c := &consumer{answer: func(context.Context, waybill.Delivery) error { return tc.result }}
			server := receiver(t, c, webhook.ReceiverConfig{Observe: observe.Hooks{DeadLettered: func(observe.DeadLetteredInfo) { aside++ }}})
			err := deliver(t, sink(t, server.URL, webhook.Config{}), delivery("A-1"))
			class, delay := waybill.Classify(err)
			if class != tc.class || delay != tc.delay {
				t.Errorf("class %v after %v, want %v after %v: %v", class, delay, tc.class, tc.delay, err)
			}
			if err != nil && strings.Contains(err.Error(), "canary") {
				t.Errorf("the sender is shown an inside view: %v", err)
			}
			if (aside == 1) != (tc.class == waybill.ClassPermanent) {
				t.Errorf("%d alarms", aside)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	c := &consumer{}
	server := receiver(t, c, webhook.ReceiverConfig{Unsigned: true, MaxBody: 100})
	h := http.Header{}
	attributes(h)
	if code := post(t, server.URL, h, strings.Repeat("1", 101)); code != http.StatusRequestEntityTooLarge {
		t.Errorf("too large: %d", code)
	}
	h.Del("ce-id")
	if code := post(t, server.URL, h, "{}"); code != http.StatusBadRequest {
		t.Errorf("without an id: %d", code)
	}
	attributes(h)
	h["Ce-Id"] = []string{"1", "2"}
	if code := post(t, server.URL, h, "{}"); code != http.StatusBadRequest {
		t.Errorf("with two ids: %d", code)
	}
	res, err := http.Get(server.URL) //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusMethodNotAllowed || len(c.events()) != 0 {
		t.Errorf("GET: %d; %d events were handled", res.StatusCode, len(c.events()))
	}
}

// A client that disconnects does not stop the consumer, whose work would have
// to be repeated.
func TestTheConsumerFinishesWithoutItsClient(t *testing.T) {
	entered, release, finished := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	c := &consumer{answer: func(ctx context.Context, _ waybill.Delivery) error {
		close(entered)
		<-release
		finished <- ctx.Err()
		return nil
	}}
	server := receiver(t, c, webhook.ReceiverConfig{})
	s := sink(t, server.URL, webhook.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Deliver(ctx, []waybill.Delivery{delivery("A-1")})[0] }()
	<-entered
	cancel()
	if class, _ := waybill.Classify(<-done); class != waybill.ClassUnavailable {
		t.Errorf("class %v: the event was not rejected", class)
	}
	close(release)
	if err := <-finished; err != nil {
		t.Errorf("the consumer's context has ended: %v", err)
	}
}

// Requests in flight when a source's context ends are answered.
func TestSourceDrains(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	source, err := webhook.NewSource(l, webhook.ReceiverConfig{Secrets: []string{secret}})
	if err != nil {
		t.Fatal(err)
	}
	entered, release := make(chan struct{}), make(chan struct{})
	c := &consumer{answer: func(context.Context, waybill.Delivery) error {
		close(entered)
		<-release
		return nil
	}}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- source.Run(ctx, c) }()
	s := sink(t, "http://"+l.Addr().String(), webhook.Config{})
	done := make(chan error, 1)
	go func() { done <- s.Deliver(context.WithoutCancel(ctx), []waybill.Delivery{delivery("A-1")})[0] }()
	<-entered
	stop()
	close(release)
	if err := <-done; err != nil {
		t.Errorf("the request in flight: %v", err)
	}
	if err := <-ran; err != nil {
		t.Errorf("Run: %v", err)
	}
	if class, _ := waybill.Classify(deliver(t, s, delivery("A-2"))); class != waybill.ClassUnavailable {
		t.Errorf("after its end: class %v", class)
	}
}

func TestConfigNamesEveryMistake(t *testing.T) {
	_, err := webhook.NewSink("ftp://canary@host", webhook.Config{Secrets: []string{"whsec_canary", "whsec_AAAA"}, Requests: -1})
	for _, want := range []string{"url:", "Secrets[0]", "Secrets[1]", "Requests"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	if err != nil && strings.Contains(err.Error(), "canary") {
		t.Errorf("it shows a secret: %v", err)
	}
	if _, err := webhook.NewSink("https://host", webhook.Config{}); err == nil {
		t.Error("a sink without secrets was made")
	}
	if _, err := webhook.NewReceiver(&consumer{}, webhook.ReceiverConfig{}); err == nil {
		t.Error("a receiver without secrets was made")
	}
	if _, err := webhook.NewSource(nil, webhook.ReceiverConfig{Unsigned: true}); err == nil {
		t.Error("a source without a listener was made")
	}
}

// Configured headers never override attributes or the signature.
func TestOwnHeadersOverrideNothing(t *testing.T) {
	c := &consumer{}
	server := receiver(t, c, webhook.ReceiverConfig{})
	s := sink(t, server.URL, webhook.Config{Header: http.Header{"ce-type": {"Forged"}, "webhook-id": {"forged"}, "Authorization": {"Bearer x"}}})
	d := delivery("A-1")
	d.Headers = map[string]string{"ce-type": "Forged", "webhook-signature": "forged", "Content-Type": "forged", "Host": "forged"}
	if err := deliver(t, s, d); err != nil {
		t.Fatal(err)
	}
	got := c.events()
	if len(got) != 1 || got[0].Type != "OrderPlaced" || !reflect.DeepEqual(got[0].Headers, d.Headers) {
		t.Errorf("got %+v", got)
	}
}

func TestBatchesRunTogether(t *testing.T) {
	const n = 8
	var wg sync.WaitGroup
	wg.Add(n)
	c := &consumer{answer: func(context.Context, waybill.Delivery) error {
		wg.Done()
		wg.Wait() // returns only if all requests are in flight together
		return nil
	}}
	s := sink(t, receiver(t, c, webhook.ReceiverConfig{}).URL, webhook.Config{Requests: n})
	batch := make([]waybill.Delivery, n)
	for i := range batch {
		batch[i] = delivery(fmt.Sprint(i))
	}
	for i, err := range s.Deliver(t.Context(), batch) {
		if err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func ExampleNewReceiver() {
	apply := func(_ context.Context, batch []waybill.Delivery) []error {
		fmt.Println(batch[0].Type, string(batch[0].Payload))
		return make([]error, len(batch))
	}
	r, err := webhook.NewReceiver(consumerFunc(apply), webhook.ReceiverConfig{Secrets: []string{secret}}) // usually an inbox group
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(r)
	defer server.Close()
	s, err := webhook.NewSink(server.URL, webhook.Config{Secrets: []string{secret}}) // usually given to a relay
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = s.Close() }()
	ev := eventfill.Defaults(waybill.NewEvent("OrderPlaced", map[string]int{"total": 9990}))
	fmt.Println(s.Deliver(context.Background(), []waybill.Delivery{{Event: ev, Attempt: 1}}))
	// Output:
	// OrderPlaced {"total":9990}
	// [<nil>]
}

type consumerFunc func(ctx context.Context, batch []waybill.Delivery) []error

func (f consumerFunc) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return f(ctx, batch)
}

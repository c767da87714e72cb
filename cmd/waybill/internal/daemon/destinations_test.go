package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/natsembed"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// endpoint is a webhook that can be started and stopped at one address.
type endpoint struct {
	t       *testing.T
	address string

	mu  sync.Mutex
	got []string // the payloads, in the order of the requests
}

// newEndpoint returns an endpoint that is not started.
func newEndpoint(t *testing.T) *endpoint {
	t.Helper()
	return &endpoint{t: t, address: freeAddress(t)}
}

// freeAddress returns an address at which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed at once
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func (e *endpoint) start() {
	e.t.Helper()
	l, err := net.Listen("tcp", e.address) //nolint:noctx // closed by the server
	if err != nil {
		e.t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			e.t.Error(err)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.got = append(e.got, string(body))
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	e.t.Cleanup(func() { _ = server.Close(); <-done })
}

func (e *endpoint) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.got)
}

// served is a daemon of a test.
type served struct {
	t *testing.T
	*Relay
	store *connect.Store // of the test
}

// serve runs a daemon with the settings of a file until the test ends.
func serve(t *testing.T, text string) *served {
	t.Helper()
	if err := os.WriteFile("w.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := settings.Load(settings.Sources{Config: "w.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	d, err := Open(t.Context(), loaded, Config{Logger: slog.New(slog.DiscardHandler), Out: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	st, err := connect.OpenStore(t.Context(), loaded.Relays[0].Store, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return &served{t, d.Relays[0], st}
}

// send writes the events of one number, one for each of three aggregates, and
// returns their payloads.
func (s *served) send(number int) (payloads []string) {
	s.t.Helper()
	for aggregate := range 3 {
		text := fmt.Sprintf(`"%d-%03d"`, aggregate, number)
		ev := waybill.Event{ID: waybill.NewID(), Type: "OrderPlaced", AggregateType: "order", AggregateID: fmt.Sprint(aggregate), Payload: []byte(text)}
		if _, err := s.store.Send(s.t.Context(), ev); err != nil {
			s.t.Fatal(err)
		}
		payloads = append(payloads, text)
	}
	return payloads
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

// complete checks that an endpoint has received each event once, and those of
// each aggregate in order.
func complete(t *testing.T, name string, got, sent []string) {
	t.Helper()
	last := map[string]string{}
	for _, payload := range got {
		aggregate, _, _ := strings.Cut(payload, "-")
		if payload <= last[aggregate] {
			t.Errorf("%s received %s after %s", name, payload, last[aggregate])
		}
		last[aggregate] = payload
	}
	slices.Sort(got)
	slices.Sort(sent)
	if !slices.Equal(got, sent) {
		t.Errorf("%s received %d events, want %d: %v", name, len(got), len(sent), got)
	}
}

// TestADestinationThatIsDown checks that one destination that is down when the
// daemon starts, and another whose server does not even accept connections
// then, do not keep the others waiting, that readiness names them, and that
// they receive all events, in order, when they are available.
func TestADestinationThatIsDown(t *testing.T) {
	t.Chdir(t.TempDir())
	healthy, down, bus := newEndpoint(t), newEndpoint(t), freeAddress(t)
	healthy.start()
	s := serve(t, fmt.Sprintf(`
store: sqlite:waybill.db
sink: {secret: unsigned}
relay: {backoff-base: 10ms, backoff-max: 50ms, poll-interval: 20ms, heartbeat: 100ms}
http: {enabled: false}
destinations:
  billing: {sink: http://%s/}
  partner: {sink: http://%s/, rate: 10000/s, concurrency: 2, max-attempts: off}
  bus: {sink: "nats://u:secret@%s/ORDERS?create=true"}
`, healthy.address, down.address, bus))
	var sent []string
	for number := range 20 {
		sent = append(sent, s.send(number)...)
	}
	await(t, "the events of the available destination", func() bool { return len(healthy.all()) >= len(sent) })
	complete(t, "billing", healthy.all(), slices.Clone(sent))
	await(t, "the names of the unavailable destinations", func() bool {
		report := s.Progress.Report()
		return slices.Contains(report.Paused, "bus: OrderPlaced") && slices.ContainsFunc(report.Paused, func(name string) bool { return strings.HasPrefix(name, "partner") })
	})
	if why := s.Progress.Stuck(30 * time.Second); why != "" {
		t.Errorf("the relay is not ready because of one destination: %s", why)
	}
	waiting := func(name string) int64 {
		d, err := s.Destinations.Find(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return d.Waiting()
	}
	await(t, "the backlogs", func() bool {
		return waiting("partner") == int64(len(sent)) && waiting("bus") == int64(len(sent)) && waiting("billing") == 0
	})

	down.start()
	port, err := strconv.Atoi(bus[strings.LastIndex(bus, ":")+1:])
	if err != nil {
		t.Fatal(err)
	}
	server, err := natsembed.Start(t.Context(), natsembed.Config{Dir: "jetstream", Port: port, User: "u", Password: "secret", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	sent = append(sent, s.send(20)...)
	await(t, "the events of the others", func() bool { return len(down.all()) >= len(sent) && waiting("partner")+waiting("bus") == 0 })
	complete(t, "partner", down.all(), slices.Clone(sent))
	await(t, "the events of the available destination", func() bool { return len(healthy.all()) >= len(sent) })
	complete(t, "billing", healthy.all(), slices.Clone(sent))
	await(t, "readiness", func() bool { return len(s.Progress.Report().Paused) == 0 })
}

// TestDestinationsReceiveWhatTheySelect checks the filters of the settings, and
// that an event that no destination takes is done.
func TestDestinationsReceiveWhatTheySelect(t *testing.T) {
	t.Chdir(t.TempDir())
	orders, acme := newEndpoint(t), newEndpoint(t)
	orders.start()
	acme.start()
	s := serve(t, fmt.Sprintf(`
store: sqlite:waybill.db
sink: {secret: unsigned}
relay: {poll-interval: 20ms}
http: {enabled: false}
destinations:
  orders: {sink: http://%s/, types: [OrderPlaced]}
  acme: {sink: http://%s/, tenants: [acme], aggregate-types: [order]}
`, orders.address, acme.address))
	for i, ev := range []waybill.Event{
		{Type: "OrderPlaced", AggregateType: "order", AggregateID: "1", TenantID: "acme"},
		{Type: "OrderPlaced", AggregateType: "order", AggregateID: "2"},
		{Type: "OrderPaid", AggregateType: "order", AggregateID: "3", TenantID: "acme"},
		{Type: "OrderPaid", AggregateType: "bill", AggregateID: "4", TenantID: "acme"}, // no destination takes it
	} {
		ev.Payload = fmt.Appendf(nil, "%d", i)
		if _, err := s.store.Send(t.Context(), ev); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the events", func() bool {
		stats, err := s.Outbox.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return stats.Ready+stats.Failed+stats.Scheduled == 0
	})
	for _, c := range []struct {
		of   *endpoint
		want string
	}{{orders, "0 1"}, {acme, "0 2"}} {
		got := c.of.all()
		slices.Sort(got)
		if strings.Join(got, " ") != c.want {
			t.Errorf("got %v, want %s", got, c.want)
		}
	}
}

// TestDestinationsOfAnotherRelay checks that an outbox that another relay
// serves is refused, and that the error names all destinations and no secret.
func TestDestinationsOfAnotherRelay(t *testing.T) {
	t.Chdir(t.TempDir())
	const text = "store: sqlite:waybill.db\ndestinations: {b: {sink: 'https://h/c4nary', types: [X]}, a: {sink: 'log:'}}\nsink: {secret: unsigned}\n"
	if err := os.WriteFile("w.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := settings.Load(settings.Sources{Config: "w.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	st, err := connect.OpenStore(t.Context(), loaded.Relays[0].Store, true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	if _, err := st.Migrator.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Logger: slog.New(slog.DiscardHandler), Out: io.Discard}
	own, err := Fingerprint(loaded.Relays[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, recorded := range []string{"in-process (relay relay)", own} {
		if _, err := st.SQL.ExecContext(t.Context(), "DELETE FROM waybill_setting WHERE name = 'sink'"); err != nil {
			t.Fatal(err)
		}
		if _, err := st.SQL.ExecContext(t.Context(), "INSERT INTO waybill_setting (name, value) VALUES ('sink', ?)", recorded); err != nil {
			t.Fatal(err)
		}
		d, err := Open(t.Context(), loaded, cfg)
		if recorded == own {
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "this relay is destinations a log:, b https://h/") || strings.Contains(err.Error(), "c4nary") {
			t.Errorf("the error is %v", err)
		}
	}
}

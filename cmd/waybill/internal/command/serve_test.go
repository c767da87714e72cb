package command_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/command"
	"github.com/waybillhq/waybill/cmd/waybill/internal/soak"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// output is a buffer that a running daemon writes to.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// served is a running daemon.
type served struct {
	out, err output
	stop     context.CancelFunc
	code     chan int
}

func serve(t *testing.T, environ []string, args ...string) *served {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	d := &served{stop: stop, code: make(chan int, 1)}
	go func() {
		environ = append([]string{"WAYBILL_HTTP_LISTEN=127.0.0.1:0"}, environ...) // tests run concurrently
		d.code <- command.Run(ctx, append([]string{"serve"}, args...), command.Streams{In: strings.NewReader(""), Out: &d.out, Err: &d.err, Environ: environ})
	}()
	t.Cleanup(stop)
	return d
}

// end stops the daemon gracefully.
func (d *served) end(t *testing.T) {
	t.Helper()
	d.stop()
	select {
	case code := <-d.code:
		if code != command.Ok {
			t.Errorf("serve ended with %d:\n%s", code, d.err.String())
		}
	case <-time.After(60 * time.Second):
		t.Fatalf("serve does not end:\n%s", d.err.String())
	}
}

func TestServeDeliversPurgesAndStopsGracefully(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres", "mysql", "mariadb"} {
		t.Run(kind, func(t *testing.T) {
			s := newScript(t, kind)
			d := serve(t, s.environ, "--sink", "log:", "--relay-poll-interval", "50ms", "--relay-history-retention", "1ms", "--purge-interval", "50ms")
			waitFor(t, "the tables", func() bool {
				_, _, code := s.run(t.Context(), []string{"stats"}, "")
				return code == command.Ok
			})
			for i := range 5 {
				if _, errs, code := s.run(t.Context(), []string{"send", "OrderPlaced", "--aggregate", fmt.Sprint(i), "--aggregate-type", "order"}, ""); code != 0 {
					t.Fatal(errs)
				}
			}
			waitFor(t, "the events to be printed", func() bool { return strings.Count(d.out.String(), `"type":"OrderPlaced"`) == 5 })
			waitFor(t, "the history to be purged", func() bool {
				out, _, _ := s.run(t.Context(), []string{"list", "--json"}, "")
				return strings.Contains(out, `"events": []`)
			})
			d.end(t)
			out, _, _ := s.run(t.Context(), []string{"stats", "--json"}, "")
			if !strings.Contains(out, `"nodes": []`) || !strings.Contains(out, `"owned": 0`) {
				t.Errorf("the lanes were not released: %s", out)
			}
		})
	}
}

// TestServeWithoutSettings checks the default file and the embedded broker. Its
// port is not the default, because tests run concurrently.
func TestServeWithoutSettings(t *testing.T) {
	t.Chdir(t.TempDir())
	s := &script{t: t, ids: map[string]string{}}
	d := serve(t, nil, "--sink", "nats:embedded?listen=127.0.0.1:-1")
	waitFor(t, "serving", func() bool { return strings.Contains(d.err.String(), "msg=serving") })
	out, errs, code := s.run(t.Context(), []string{"send", "OrderPlaced", "--json"}, "")
	if code != 0 {
		t.Fatal(errs)
	}
	var sent struct{ ID string }
	if err := json.Unmarshal([]byte(out), &sent); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the event to be delivered", func() bool {
		out, _, _ := s.run(t.Context(), []string{"show", sent.ID, "--json"}, "")
		return strings.Contains(out, `"state": "delivered"`)
	})
	d.end(t)
	if _, err := os.Stat("waybill-jetstream"); err != nil {
		t.Error(err)
	}
}

// TestServeSeveralRelays checks that each relay uses its own tables and sink,
// and that disabled tasks do not run.
func TestServeSeveralRelays(t *testing.T) {
	t.Chdir(t.TempDir())
	var mu sync.Mutex
	posted := map[string]int{}
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		posted[r.Header.Get("Ce-Type")]++
	}))
	defer hook.Close()
	file := fmt.Sprintf(`
relay: {poll-interval: 50ms}
sink: {url: 'log:'}
relays:
  orders: {store: {prefix: orders_}, sink: {url: '%s/hook', secret: unsigned}}
  bills:  {store: {prefix: bills_}}
  notes:  {store: {prefix: notes_}, enabled: false}
`, hook.URL)
	if err := os.WriteFile("waybill.yaml", []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, ids: map[string]string{}}
	for _, name := range []string{"orders", "bills", "notes"} {
		for _, args := range [][]string{{"migrate", "up"}, {"send", "From" + name}} {
			if _, errs, code := s.run(t.Context(), append(args, "--relay", name), ""); code != 0 {
				t.Fatal(errs)
			}
		}
	}
	d := serve(t, nil)
	waitFor(t, "both deliveries", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return posted["Fromorders"] == 1 && strings.Contains(d.out.String(), `"type":"Frombills"`)
	})
	d.end(t)
	out, _, _ := s.run(t.Context(), []string{"list", "--relay", "notes", "--state", "ready"}, "")
	if !strings.Contains(out, "Fromnotes") {
		t.Errorf("the disabled relay has delivered: %s", out)
	}
}

// TestServeRedeliversStoredEvents checks that a failed event that a group
// stored goes to the sink again when it is due, once per attempt.
func TestServeRedeliversStoredEvents(t *testing.T) {
	t.Chdir(t.TempDir())
	db, err := sqlitestore.Open("waybill.db", sqlitestore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(db, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	group := in.MustGroup("BILLING", inbox.Options{StoreEvent: true, BackoffBase: time.Millisecond, BackoffMax: time.Millisecond})
	ev := eventfill.Defaults(waybill.NewEvent("OrderPlaced", 7))
	fails := func(context.Context, txOf, waybill.Event) error { return fmt.Errorf("out of stock") }
	if _, err := group.Consume(t.Context(), ev, fails); err == nil {
		t.Fatal("the event did not fail")
	}
	d := serve(t, nil, "--sink", "log:", "--inbox-retry", "--inbox-retry-interval", "10ms")
	times := func() int { return strings.Count(d.out.String(), ev.ID.String()) }
	waitFor(t, "the event to be sent again", func() bool { return times() == 1 })
	if _, err := group.Consume(t.Context(), ev, fails); err == nil {
		t.Fatal("the event did not fail")
	}
	waitFor(t, "the event to be sent once more", func() bool { return times() == 2 })
	if _, err := group.Consume(t.Context(), ev, func(context.Context, txOf, waybill.Event) error { return nil }); err != nil {
		t.Fatal(err)
	}
	d.end(t)
	if times() != 2 {
		t.Errorf("sent %d times, want one for each attempt", times())
	}
}

// TestServePurgesTheInbox checks that records of processed events are deleted
// after the retention, and others are kept.
func TestServePurgesTheInbox(t *testing.T) {
	t.Chdir(t.TempDir())
	db, err := sqlitestore.Open("waybill.db", sqlitestore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(db, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	group := in.MustGroup("BILLING", inbox.Options{})
	good, bad := eventfill.Defaults(waybill.NewEvent("OrderPlaced", 1)), eventfill.Defaults(waybill.NewEvent("OrderPlaced", 2))
	if _, err := group.Consume(t.Context(), good, func(context.Context, txOf, waybill.Event) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := group.Consume(t.Context(), bad, func(context.Context, txOf, waybill.Event) error { return fmt.Errorf("no") }); err == nil {
		t.Fatal("the event did not fail")
	}
	d := serve(t, nil, "--relay-enabled=false", "--inbox-retention", "1ms", "--inbox-redelivery-window", "1ms", "--inbox-purge-interval", "10ms")
	waitFor(t, "the record to go", func() bool {
		_, there, err := db.Driver().InboxRecords.FindRecord(t.Context(), "BILLING", good.ID)
		return err == nil && !there
	})
	d.end(t)
	if rec, there, err := db.Driver().InboxRecords.FindRecord(t.Context(), "BILLING", bad.ID); err != nil || !there || rec.State != store.InboxFailed {
		t.Errorf("the failed record: %v, %v, %v", rec.State, there, err)
	}
}

func TestServeRunsTheJobsOfTheFile(t *testing.T) {
	s := newScript(t, "sqlite")
	s.fixture([]string{"orders"}, "")
	file := "jobs:\n  orders: {sql: \"SELECT id AS aggregate_id, '{}' AS payload FROM orders WHERE ?1 < ?2\", type: OrderPlaced, aggregate-type: order}\n"
	if err := os.WriteFile("waybill.yaml", []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	d := serve(t, s.environ, "--sink", "log:", "--relay-poll-interval", "50ms")
	waitFor(t, "the missing events", func() bool {
		return strings.Contains(d.out.String(), `"aggregate":"order/o-1"`) && strings.Contains(d.out.String(), `"aggregate":"order/o-2"`)
	})
	d.end(t)
}

// TestServeRefusesASecondRelayOfAnotherName checks that two services cannot
// share an outbox by mistake.
func TestServeRefusesASecondRelayOfAnotherName(t *testing.T) {
	t.Chdir(t.TempDir())
	first := serve(t, nil, "--sink", "log:")
	waitFor(t, "the first relay", func() bool { return strings.Contains(first.err.String(), "lanes acquired") })
	s := &script{t: t, ids: map[string]string{}}
	_, errs, code := s.run(t.Context(), []string{"serve", "--sink", "log:", "--relay-name", "other", "--http-listen", "127.0.0.1:0"}, "")
	if code != command.Failed || !strings.Contains(errs, "(hint: one outbox has one relay") {
		t.Errorf("the second ended with %d: %s", code, errs)
	}
	first.end(t)
}

// TestServeRefusesNewerTables checks tables with a migration that this program
// does not know.
func TestServeRefusesNewerTables(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres", "mysql", "mariadb"} {
		t.Run(kind, func(t *testing.T) { testServeRefusesNewerTables(t, kind) })
	}
}

func testServeRefusesNewerTables(t *testing.T, kind string) {
	s := newScript(t, kind)
	table, at := "waybill_migration", "CURRENT_TIMESTAMP"
	switch kind {
	case "sqlite":
		at = "0"
	case "postgres":
		table = s.database + "." + table
	}
	st := s.open()
	_, err := st.SQL.ExecContext(t.Context(), "INSERT INTO "+table+" (version, name, applied_at) VALUES (99, 'from the future', "+at+")")
	s.must(err)
	s.must(st.Close())
	for _, migrate := range []string{"true", "false"} {
		_, errs, code := s.run(t.Context(), []string{"serve", "--sink", "log:", "--store-migrate=" + migrate, "--http-listen", "127.0.0.1:0"}, "")
		if code != command.Failed || !strings.Contains(errs, "99 (from the future)") || !strings.Contains(errs, "store.newer-tables") {
			t.Errorf("store.migrate=%s: exit code %d: %s", migrate, code, errs)
		}
	}
	d := serve(t, s.environ, "--sink", "log:", "--store-newer-tables")
	waitFor(t, "the relay", func() bool { return strings.Contains(d.err.String(), "lanes acquired") })
	if !strings.Contains(d.err.String(), "newer than this relay") {
		t.Errorf("no message about the tables: %s", d.err.String())
	}
	d.end(t)
}

// TestServeMaintainsACapturedOutbox checks that without a relay delayed events
// become ready, and old events are deleted.
func TestServeMaintainsACapturedOutbox(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres", "mysql", "mariadb"} {
		t.Run(kind, func(t *testing.T) { testServeLooksAfterACapturedOutbox(t, kind) })
	}
}

func testServeLooksAfterACapturedOutbox(t *testing.T, kind string) {
	s := newScript(t, kind)
	if _, errs, code := s.run(t.Context(), []string{"migrate", "up"}, ""); code != command.Ok {
		t.Fatal(errs)
	}
	if _, errs, code := s.run(t.Context(), []string{"send", "A", "--delay", "10ms", "--payload", "1"}, ""); code != command.Ok {
		t.Fatal(errs)
	}
	d := serve(t, s.environ, "--relay-enabled=false", "--cdc-enabled", "--cdc-retention", "1ms", "--cdc-interval", "10ms", "--purge-interval", "10ms")
	waitFor(t, "the event to become ready, and then to go", func() bool {
		out, _, code := s.run(t.Context(), []string{"stats", "--json"}, "")
		return code == command.Ok && strings.Contains(out, `"ready": 0`) && strings.Contains(out, `"scheduled": 0`)
	})
	d.end(t)
}

// asProgram makes the test binary run as the program, for tests that need a
// process: TestCompletionInBash.
const asProgram = "WAYBILL_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if soak.IsChild(os.Environ()) {
		os.Exit(command.Run(context.Background(), os.Args[1:], command.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ()}))
	}
	if os.Getenv(asProgram) != "" {
		os.Exit(command.Run(context.Background(), os.Args[1:], command.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
	}
	goleak.VerifyTestMain(m)
}

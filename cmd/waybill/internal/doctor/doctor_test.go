package doctor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// TestMain ignores goroutines of NATS servers that are stopped while they
// create a stream.
func TestMain(m *testing.M) {
	const nats = "github.com/nats-io/nats-server/v2/server"
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(nats+".(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreTopFunction(nats+".(*msgBlock).flushLoop"), goleak.IgnoreTopFunction(nats+"/ats.Register.func1"))
}

// ward is a configuration under inspection.
type ward struct {
	t     *testing.T
	flags map[string]string
	file  string // of settings; "": none
	tune  func(p *patient)
	made  []*made
	// instead runs a check on a server that no setting can name. Defaults to
	// the one of the settings.
	instead func(c Check) Finding
}

func newWard(t *testing.T, flags ...string) *ward {
	t.Helper()
	w := &ward{t: t, flags: map[string]string{"sink.url": "log:"}}
	if !slices.Contains(flags, "store.url") {
		w.flags["store.url"] = "sqlite:" + filepath.Join(t.TempDir(), "waybill.db")
	}
	w.set(flags...)
	return w
}

func (w *ward) set(flags ...string) {
	for i := 0; i < len(flags); i += 2 {
		w.flags[flags[i]] = flags[i+1]
	}
}

func (w *ward) settings() *settings.Settings {
	w.t.Helper()
	loaded, err := settings.Load(settings.Sources{Flags: w.flags, Config: w.file})
	if err != nil {
		w.t.Fatal(err)
	}
	return loaded.Relays[0]
}

// open opens the store, with its tables.
func (w *ward) open() *connect.Store {
	w.t.Helper()
	st, err := connect.OpenStore(w.t.Context(), w.settings().Store, true)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = st.Close() })
	if _, err := st.Migrator.Migrate(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return st
}

// look runs one check with its own connections, as a run of the program does.
func (w *ward) look(check string) Finding {
	w.t.Helper()
	f, _, ok := w.run(check)
	if !ok {
		w.t.Fatalf("no check %s applies", check)
	}
	return f
}

// run returns false if the check does not apply to the settings.
func (w *ward) run(check string) (Finding, Check, bool) {
	w.t.Helper()
	p := &patient{Settings: w.settings(), now: time.Now, long: longTransaction, lag: cdcLag}
	if w.tune != nil {
		w.tune(p)
	}
	if name, own, ok := strings.Cut(check, ": "); ok {
		return w.runOf(p, name, own)
	}
	i := slices.IndexFunc(Table(), func(c Check) bool { return c.Name == check && p.concerns(c) })
	if i < 0 {
		return Finding{}, Check{}, false
	}
	c := Table()[i]
	var f Finding
	if w.instead != nil {
		f = w.instead(c)
	} else {
		p.open(w.t.Context())
		defer p.close()
		f = p.examine(w.t.Context(), []Check{c})[0]
	}
	return w.checked(f, c)
}

// runOf is run for a check of a destination.
func (w *ward) runOf(p *patient, destination, check string) (Finding, Check, bool) {
	w.t.Helper()
	p.open(w.t.Context())
	defer p.close()
	for _, one := range p.destinations {
		i := slices.IndexFunc(Table(), func(c Check) bool { return c.Name == check && one.concerns(c) })
		if one.to.name == destination && i >= 0 {
			return w.checked(one.examine(w.t.Context(), Table()[i:i+1])[0], Table()[i])
		}
	}
	return Finding{}, Check{}, false
}

// checked records a finding.
func (w *ward) checked(f Finding, c Check) (Finding, Check, bool) {
	w.t.Helper()
	switch {
	case f.Status == OK:
		w.fixed(c)
	case f.Status != NotChecked && f.Type == "":
		w.t.Fatalf("%s: %s %q without advice", f.Check, f.Status, f.Text)
	}
	return f, c, true
}

// sees expects a finding and returns its advice.
func (w *ward) sees(check string, status Status, finding, advice string) string {
	w.t.Helper()
	f, c, ok := w.run(check)
	if !ok || !f.is(status, finding, advice) {
		w.t.Fatalf("%s: %s %q, type %q; want %s %q, type %q", check, f.Status, f.Text, f.Type, status, finding, advice)
	}
	w.saw(c, f)
	return f.Type
}

func (f Finding) is(status Status, finding, advice string) bool {
	return f.Status == status && strings.Contains(f.Text, finding) && strings.Contains(f.Type, advice)
}

// awaits is sees for a change that takes a while.
func (w *ward) awaits(check string, status Status, finding, advice string) string {
	w.t.Helper()
	var f Finding
	var c Check
	w.await(fmt.Sprintf("%s: %s %q, type %q", check, status, finding, advice), func() bool {
		f, c, _ = w.run(check)
		return f.is(status, finding, advice)
	})
	w.saw(c, f)
	return f.Type
}

// well expects a check without findings.
func (w *ward) well(check string) {
	w.t.Helper()
	if f := w.look(check); f.Status != OK {
		w.t.Fatalf("%s: %s %q, type %q; want ok", check, f.Status, f.Text, f.Type)
	}
}

// gone is well for a check that is never ok: it expects no failure, or that the
// check does not apply any more.
func (w *ward) gone(check string) {
	w.t.Helper()
	if f, _, ok := w.run(check); ok && f.Status != NotChecked {
		w.t.Fatalf("%s: %s %q, type %q; want no finding", check, f.Status, f.Text, f.Type)
	}
	i := slices.IndexFunc(Table(), func(c Check) bool { return c.Name == check })
	w.fixed(Table()[i])
}

func (w *ward) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestSettings makes each finding, checks it, fixes it by the advice, and
// checks that it is gone.
func TestSettings(t *testing.T) {
	w := newWard(t, "relay.enabled", "false")
	w.sees("enabled", Warn, "the relay is disabled", "relay.enabled")
	w.set("relay.enabled", "true")
	w.well("enabled")

	w.set("http.listen", "0.0.0.0:9292")
	w.sees("http", Fail, "accessible from the network", "http.token")
	w.set("http.listen", "127.0.0.1:9292")
	w.well("http")

	w.well("retention")
	w.set("inbox.retention", "1m", "inbox.redelivery-window", "1m", "relay.dead-retention", "1m")
	w.sees("retention", Fail, "applied again", "set inbox.retention to more than 1m42s")
	w.set("inbox.retention", "103s")
	w.well("retention")
	w.set("relay.max-attempts", "off")
	w.sees("retention", Warn, "at any time", "set relay.max-attempts")
	w.set("relay.max-attempts", "10", "relay.dead-retention", "0s")
	w.sees("retention", Warn, "replayed later", "relay.dead-retention")
	w.set("relay.dead-retention", "1m")
	w.well("retention")
}

func TestLastAttempt(t *testing.T) {
	for _, c := range []struct {
		relay settings.Relay
		want  time.Duration
	}{
		{settings.Relay{MaxAttempts: 1, BackoffBase: time.Second, BackoffMax: time.Minute}, 0},
		{settings.Relay{MaxAttempts: 4, BackoffBase: time.Second, BackoffMax: time.Minute}, 7 * time.Second},
		{settings.Relay{MaxAttempts: 4, BackoffBase: time.Second, BackoffMax: 2 * time.Second}, 5 * time.Second},
		{settings.Relay{MaxAttempts: 4, BackoffSeries: []time.Duration{time.Second, time.Hour}}, 2*time.Hour + time.Second},
	} {
		if got, ever := lastAttempt(c.relay); got != c.want || ever {
			t.Errorf("%+v: %v, want %v", c.relay, got, c.want)
		}
	}
}

func TestSinksWithoutAServer(t *testing.T) {
	w := newWard(t)
	w.sees("log sink", Warn, "count as delivered", "sink.url")
	w.set("sink.url", "nats://127.0.0.1")
	w.gone("log sink")
	w.set("sink.url", "http://hooks.example/x", "sink.secret", "unsigned")
	w.sees("webhook", Fail, "unencrypted", "https://")
	w.set("sink.url", "https://hooks.example/x")
	w.sees("webhook", Warn, "not signed", "whsec_")
	w.set("sink.secret", "")
	w.sees("webhook", Fail, "sink.secret is missing", "whsec_")
	w.set("sink.secret", "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0", "sink.unsigned-attributes", "true")
	w.sees("webhook", Warn, "only the payload", "unsigned-attributes")
	w.set("sink.unsigned-attributes", "false")
	w.well("webhook")
	w.set("sink.url", "https://hooks.example/x?ca=/no/such.pem")
	w.sees("webhook", Fail, "parameter ca", "files in PEM")
	w.set("sink.url", "https://hooks.example/x?insecure=true")
	w.sees("webhook", Warn, "every certificate is accepted", "ca=FILE")
	w.set("sink.url", "https://hooks.example/x")
	w.well("webhook")
	w.set("sink.url", "odd://x")
	w.sees("sink", Fail, "unknown scheme odd", "use one of")
	w.set("sink.url", "nats:embedded?listen=127.0.0.1:1")
	w.sees("sink", NotChecked, "inside waybill serve", "waybill serve")
}

func TestStoreAndTables(t *testing.T) {
	w := newWard(t)
	w.sees("store", Fail, "does not exist", "waybill migrate up")
	w.sees("tables", NotChecked, "unreachable", "")
	st, err := connect.OpenStore(t.Context(), w.settings().Store, true)
	w.must(err)
	defer func() { _ = st.Close() }()
	w.well("store")
	w.sees("tables", Fail, "migrations are not applied: 1 outbox", "waybill migrate up")
	_, err = st.Migrator.Migrate(t.Context())
	w.must(err)
	w.well("tables")
	_, err = st.SQL.ExecContext(t.Context(), "INSERT INTO waybill_migration SELECT 99, 'future', applied_at FROM waybill_migration WHERE version = 3")
	w.must(err)
	w.sees("tables", Fail, "does not know 99 future", "the version of waybill")
	_, err = st.SQL.ExecContext(t.Context(), "DELETE FROM waybill_migration WHERE version = 99") // a migration that this program knows
	w.must(err)
	w.well("tables")
}

func TestClock(t *testing.T) {
	w := newWard(t)
	w.open()
	w.tune = func(p *patient) { p.now = func() time.Time { return time.Now().Add(-time.Hour) } }
	w.sees("clock", Warn, "1h apart", "set-ntp")
	w.tune = nil
	w.well("clock")
}

// runRelay runs a relay until the returned function is called.
func (w *ward) runRelay(st *connect.Store, name string, sink waybill.Sink, onDead relay.OnDead) (stop func()) {
	w.t.Helper()
	r, err := relay.New(st, sink, relay.Config{Name: name, OnDead: onDead})
	w.must(err)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return func() {
		w.t.Helper()
		cancel()
		w.must(<-done)
	}
}

func (w *ward) await(what string, done func() bool) {
	w.t.Helper()
	tick := time.NewTicker(200 * time.Millisecond) // MariaDB caches the view for 100 ms
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !done(); <-tick.C {
		if time.Now().After(deadline) {
			w.t.Fatalf("timed out waiting for %s", what)
		}
	}
}

func TestRelayAndLanes(t *testing.T) {
	w := newWard(t)
	st := w.open()
	w.sees("relay", Warn, "no relay is alive", "waybill serve")
	_, err := st.Send(t.Context(), waybill.NewEvent("OrderPlaced", 1))
	w.must(err)
	w.sees("relay", Fail, "1 events are ready", "waybill serve")
	node := store.Node{ID: waybill.NewID(), Relay: "waybill"}
	_, err = st.Relay.Heartbeat(t.Context(), node, 10*time.Minute)
	w.must(err)
	w.sees("relay", Warn, "1 of 1 lanes have no owner", "run doctor again")
	_, err = st.Relay.Acquire(t.Context(), node, []int{0}, 100)
	w.must(err)
	w.well("relay")
	w.goneNodes(st, node)
	w.set("relay.name", "other")
	w.sees("relay", Fail, "relay waybill owns these tables", "set relay.name to waybill")
	w.set("relay.name", "waybill")
	w.well("relay")
}

// goneNodes makes the node that owns the lane disappear: it is alive for one
// more millisecond, and does not release the lane.
func (w *ward) goneNodes(st *connect.Store, node store.Node) {
	w.t.Helper()
	ctx := w.t.Context()
	beat := func(n store.Node, lease time.Duration) {
		_, err := st.Relay.Heartbeat(ctx, n, lease)
		w.must(err)
	}
	beat(node, time.Millisecond)
	const killed = "it was killed, or is cut off from the database"
	w.awaits("relay", Fail, "1 events are ready; node "+node.ID.String()+" ended without releasing its lanes: "+killed, "waybill serve")
	other := store.Node{ID: waybill.NewID(), Relay: "waybill"}
	beat(other, 10*time.Minute)
	w.sees("relay", Warn, "1 of 1 lanes belong to node "+node.ID.String()+", which is gone: "+killed, "see the log of node "+node.ID.String())
	_, err := st.Relay.Acquire(ctx, other, []int{0}, 100)
	w.must(err)
	w.well("relay")
	w.must(st.Relay.Leave(ctx, other))
	beat(node, 10*time.Minute)
	_, err = st.Relay.Acquire(ctx, node, []int{0}, 100)
	w.must(err)
	w.well("relay")
}

// TestWaiting checks that doctor reports events that have waited for minutes,
// also while a relay is alive.
func TestWaiting(t *testing.T) {
	w := newWard(t)
	st := w.open()
	w.well("waiting")
	_, err := st.Send(t.Context(), waybill.NewEvent("OrderPlaced", 1))
	w.must(err)
	w.well("waiting")
	node := store.Node{ID: waybill.NewID(), Relay: "waybill"}
	_, err = st.Relay.Heartbeat(t.Context(), node, 10*time.Minute)
	w.must(err)
	_, err = st.Relay.Acquire(t.Context(), node, []int{0}, 100)
	w.must(err)
	older := func(by time.Duration) {
		t.Helper()
		_, err := st.SQL.ExecContext(t.Context(), "UPDATE waybill_outbox SET created_at = created_at - ?", by.Microseconds())
		w.must(err)
	}
	older(2 * time.Minute)
	w.sees("waiting", Warn, "1 event is ready, and the oldest has waited for 2m", "/readyz")
	older(-2 * time.Minute)
	w.well("waiting")
	older(11 * time.Minute)
	w.sees("waiting", Fail, "1 event is ready, and no event is delivered: the oldest has waited for 11m", "/readyz")
	w.well("relay")
	_, err = st.SQL.ExecContext(t.Context(), "DELETE FROM waybill_outbox")
	w.must(err)
	w.well("waiting")
}

// TestRecordedSink checks that doctor reports the recorded sink of the outbox,
// and does not advise an operator to deliver a service's events elsewhere.
func TestRecordedSink(t *testing.T) {
	w := newWard(t)
	st := w.open()
	w.sees("relay", Warn, "no relay is alive", "waybill serve")
	w.well("outbox")
	_, err := st.SinkGuard.ClaimSink(t.Context(), store.Node{ID: waybill.NewID()}, "in-process (relay relay)", false)
	w.must(err)
	w.sees("relay", Warn, "no relay is alive", "start the service, or the waybill serve, that delivers to in-process (relay relay)")
	w.sees("outbox", Fail, "the outbox records in-process (relay relay)", "--take-over")
	w.set("take-over", "true")
	w.sees("outbox", Warn, "serve will take it over", "then without")
	w.set("take-over", "false")
	w.set("sink.url", "")
	w.well("outbox")
	w.sees("sink", NotChecked, "no sink is configured", "set sink.url")
	w.sees("relay", Warn, "no relay is alive", "start the service")
}

// TestItemsForAnOperator checks dead letters, blocked aggregates, dead records
// and uncertain keys until an operator resolves each.
func TestItemsForAnOperator(t *testing.T) {
	w := newWard(t)
	st := w.open()
	for _, check := range []string{"dead letters", "blocked", "inbox", "keys"} {
		w.well(check)
	}
	evs := []waybill.Event{
		{ID: waybill.NewID(), Type: "OrderPlaced", AggregateType: "order", AggregateID: "1", Payload: []byte("{}")},
		{ID: waybill.NewID(), Type: "OrderPaid", AggregateType: "order", AggregateID: "1", Payload: []byte("{}")},
	}
	_, err := st.Send(t.Context(), evs...)
	w.must(err)
	never := relay.SinkFunc(func(context.Context, waybill.Delivery) error { return waybill.Permanent(errors.New("never")) })
	stop := w.runRelay(st, "relay", never, relay.Block)
	w.await("the dead letter", func() bool { return w.look("dead letters").Status == Warn })
	stop()
	w.sees("dead letters", Warn, "1 dead letters", "waybill dead list")
	w.sees("blocked", Warn, "1 aggregates wait behind a dead letter", "waybill blocked list")
	_, err = st.OutboxAdmin.Discard(t.Context(), []waybill.ID{evs[0].ID})
	w.must(err)
	w.well("dead letters")
	w.well("blocked")

	key := waybill.NewID()
	group, ok := st.Relay.(driver.Claimer)
	if !ok {
		t.Fatal("no claims")
	}
	_, err = group.FailEvent(t.Context(), store.InboxEntry{Group: "BILLING", Key: key, Event: key, Type: "X"}, driver.Failure{Owner: waybill.NewID(), Dead: true, Error: "no"})
	w.must(err)
	w.sees("inbox", Warn, "BILLING has 1", "waybill inbox redrive")
	_, err = st.InboxRecords.Redrive(t.Context(), "BILLING", []waybill.ID{key}, 1)
	w.must(err)
	w.well("inbox")

	keys, ok := st.Relay.(driver.KeyClaimer)
	if !ok {
		t.Fatal("no keys")
	}
	id := store.KeyID{Operation: "POST /orders", Key: "k"}
	claim := driver.KeyClaim{KeyID: id, Hash: "v1:" + strings.Repeat("a", 64), Owner: waybill.NewID(), Lease: time.Minute}
	rec, _, err := keys.ClaimKey(t.Context(), claim)
	w.must(err)
	_, err = keys.EndKey(t.Context(), driver.KeyAttempt{KeyID: id, Owner: claim.Owner, Fence: rec.Fence}, driver.KeyEnd{State: store.KeyUncertain, Error: "?"})
	w.must(err)
	w.sees("keys", Warn, "1 uncertain idempotency keys", "waybill keys resolve")
	p := &patient{Settings: w.settings(), now: time.Now}
	p.open(t.Context())
	defer p.close()
	w.must(p.keys.RunAgain(t.Context(), id, "no", time.Hour))
	w.well("keys")
}

// TestUncheckedIsNeverOK checks that, with an unreachable store and sink, every
// check of them is not checked.
func TestUncheckedIsNeverOK(t *testing.T) {
	for _, c := range [][2]string{
		{"postgres://u:c4nary@127.0.0.1:1/x?sslmode=disable&connect_timeout=2", "redis://u:c4nary@127.0.0.1:1/0"},
		{"mysql://u:c4nary@127.0.0.1:1/x", "amqp://u:c4nary@127.0.0.1:1/"},
		{"sqlite:/nonexistent/x.db", "nats://u:c4nary@127.0.0.1:1"},
		{"sqlite:/nonexistent/x.db", "kafka://u:c4nary@127.0.0.1:1"},
	} {
		w := newWard(t, "store.url", c[0], "sink.url", c[1])
		findings := Run(t.Context(), Config{Settings: w.settings(), Timeout: 5 * time.Second})
		byName := make(map[string]Status)
		for _, f := range findings {
			byName[f.Check] = f.Status
			if strings.Contains(f.Text+f.Type, "c4nary") {
				t.Errorf("%s shows a password: %q", f.Check, f.Text)
			}
		}
		for _, check := range Table() {
			status, run := byName[check.Name]
			switch {
			case !run || check.For == settled && check.Name != "store" && check.Name != "tables":
			case check.Name == "store" || check.Name == "sink":
				if status != Fail {
					t.Errorf("%s: %s is %s", c, check.Name, status)
				}
			case status != NotChecked:
				t.Errorf("%s: %s is %s", c, check.Name, status)
			}
		}
	}
}

// TestEveryCheckIsInTheTable checks that every row is complete.
func TestEveryCheckIsInTheTable(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range Table() {
		if c.Name == "" || c.For == "" || c.Looks == "" || c.Wants == "" || c.run == nil || seen[c.Name+c.For] {
			t.Errorf("%+v", c)
		}
		seen[c.Name+c.For] = true
	}
}

package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/daemon"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// write sets the settings that are only in a file.
func (w *ward) write(text string) {
	w.t.Helper()
	if w.file == "" {
		w.file = filepath.Join(w.t.TempDir(), "w.yaml")
		delete(w.flags, "sink.url")
	}
	w.must(os.WriteFile(w.file, []byte(text), 0o600))
}

// runDestinations runs a relay with destinations until the returned function is
// called.
func (w *ward) runDestinations(st *connect.Store, all ...relay.Destination) (stop func()) {
	w.t.Helper()
	own, err := daemon.Fingerprint(w.settings())
	w.must(err)
	sink, name, _ := strings.Cut(strings.TrimSuffix(own, ")"), " (relay ")
	r, err := relay.NewTo(st, relay.Config{Name: name, SinkName: sink, Heartbeat: 50 * time.Millisecond, Lease: time.Second}, all...)
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

// TestSinksOfDestinations checks that the sink of each destination is checked,
// and that findings name the destination's own settings.
func TestSinksOfDestinations(t *testing.T) {
	w := newWard(t)
	w.write("destinations: {a: {sink: 'log:'}, b: {sink: 'http://hooks.example/x'}, c: {sink: 'redis://u:c4nary@127.0.0.1:1/0'}}\nsink: {secret: unsigned}")
	w.sees("a: log sink", Warn, "count as delivered", "set destinations.a.sink.url to a broker")
	w.sees("b: webhook", Fail, "unencrypted", "destinations.b.sink.url")
	w.sees("c: sink", Fail, "destinations.c.sink.url", "origin of destinations.c.sink.url")
	w.sees("c: redis persistence", NotChecked, "the sink cannot be inspected", "")
	if _, _, ok := w.run("a: webhook"); ok {
		t.Error("log: is checked like a webhook")
	}
	if _, _, ok := w.run("sink"); ok {
		t.Error("a relay with destinations is checked like one with a sink")
	}
	w.sees("c: destination", NotChecked, "the tables are missing", "")
	w.open()
	w.well("c: destination")
	w.well("c: backlog")
	w.well("c: dead letters")
	var names []string
	for _, f := range Run(t.Context(), Config{Settings: w.settings(), Timeout: 5 * time.Second}) {
		names = append(names, f.Check)
		if strings.Contains(f.Text+f.Type, "c4nary") {
			t.Errorf("%s shows a password: %q", f.Check, f.Text)
		}
	}
	own := names[slices.Index(names, "a: destination"):]
	if got := strings.Join(own, ", "); got != "a: destination, a: backlog, a: dead letters, a: sink, a: log sink, b: destination, b: backlog, b: dead letters, b: sink, b: webhook, "+
		"c: destination, c: backlog, c: dead letters, c: sink, c: redis persistence, c: redis eviction, c: redis replication" {
		t.Errorf("the checks are %s", got)
	}
	w.write("destinations: {b: {sink: 'https://hooks.example/x'}}\nsink: {secret: whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0}")
	w.well("b: webhook")
}

// TestTopicsOfADestination checks that only the topics of events that a
// destination takes are checked.
func TestTopicsOfADestination(t *testing.T) {
	w := newWard(t)
	w.write("destinations: {a: {sink: 'log:', types: [X]}, b: {sink: 'log:', tenants: [''], aggregate-types: [order, __GLOBAL__]}}")
	st := w.open()
	for _, ev := range []waybill.Event{{Type: "X", Topic: "one"}, {Type: "Y", Topic: "two", TenantID: "acme"}, {Type: "Z", Topic: "three"}, {Type: "Z", AggregateType: "bill", AggregateID: "1", Topic: "four"}} {
		ev.Payload = []byte("{}")
		_, err := st.Send(t.Context(), ev)
		w.must(err)
	}
	p := &patient{Settings: w.settings(), now: time.Now}
	p.open(t.Context())
	defer p.close()
	for i, want := range []string{"[one]", "[one three]"} {
		names, err := p.destinations[i].topics(t.Context(), broker.TopicRules{})
		w.must(err)
		slices.Sort(names)
		if fmt.Sprint(names) != want {
			t.Errorf("%s: %v, want %s", p.destinations[i].to.name, names, want)
		}
	}
}

// TestDestinations makes each finding about a destination, checks it, fixes it
// by the advice, and checks that it is gone.
func TestDestinations(t *testing.T) {
	w := newWard(t)
	w.write("destinations: {billing: {sink: 'log:'}, partner: {sink: 'log:payload'}}")
	st := w.open()
	ops, err := admin.NewDestinations(st, admin.Config{})
	w.must(err)
	ev := waybill.Event{Type: "OrderPlaced", AggregateType: "order", AggregateID: "1", Payload: []byte("{}")}
	_, err = st.Send(t.Context(), ev, ev, ev)
	w.must(err)
	down := relay.SinkFunc(func(context.Context, waybill.Delivery) error { return waybill.Unavailable(errors.New("down")) })
	refusing := relay.SinkFunc(func(context.Context, waybill.Delivery) error { return waybill.Permanent(errors.New("no")) })
	count := func(name string) admin.Destination {
		d, err := ops.Find(t.Context(), name)
		if errors.Is(err, driver.ErrNoDestination) {
			return admin.Destination{}
		}
		w.must(err)
		return d
	}
	stop := w.runDestinations(st, relay.Destination{Name: "billing", Sink: refusing}, relay.Destination{Name: "partner", Sink: down})
	w.await("the backlogs", func() bool { return count("partner").Waiting() == 3 && count("billing").Dead == 3 })
	w.well("relay")
	stop()

	w.well("billing: backlog")
	w.well("partner: backlog")
	_, err = st.SQL.ExecContext(t.Context(), "UPDATE waybill_backlog SET created_at = created_at - ?", (2 * time.Minute).Microseconds())
	w.must(err)
	w.sees("partner: backlog", Warn, "it is behind: 3 events are waiting, and the oldest was written 2m", "waybill destinations probe partner")

	w.sees("billing: dead letters", Warn, "it has 3 dead letters", "waybill dead list --destination billing;")
	rows, err := ops.Outbox(t.Context(), "billing")
	w.must(err)
	dead, err := rows.List(t.Context(), store.Dead, store.Filter{}, 0, 10)
	w.must(err)
	for _, r := range dead.Records {
		_, err := rows.Discard(t.Context(), r.Event.ID)
		w.must(err)
	}
	w.well("billing: dead letters")

	w.well("partner: destination")
	_, err = ops.Pause(t.Context(), "partner", "moves to another address")
	w.must(err)
	w.sees("partner: destination", Warn, "because: moves to another address; 3 events are waiting", "waybill destinations resume partner")
	w.sees("partner: backlog", NotChecked, "3 events are waiting; see partner: destination", "")
	_, err = ops.Resume(t.Context(), "partner")
	w.must(err)
	w.well("partner: destination")

	w.write("destinations: {billing: {sink: 'log:'}}")
	w.well("partner: destination") // of the relay that the outbox records
	w.sees("partner: backlog", Warn, "it is behind", "waybill destinations probe partner")
	_, err = st.SQL.ExecContext(t.Context(), "DELETE FROM waybill_setting WHERE name = 'sink'")
	w.must(err)
	w.sees("partner: destination", Warn, "no relay delivers the 3 events in its backlog", "waybill destinations remove partner")
	w.sees("partner: backlog", NotChecked, "see partner: destination", "")
	if _, _, ok := w.run("partner: sink"); ok {
		t.Error("a destination that the settings do not have has a sink")
	}
	_, err = st.SQL.ExecContext(t.Context(), "DELETE FROM waybill_backlog")
	w.must(err)
	w.well("partner: destination")
	w.well("partner: backlog")
}

// TestRetentionOfDestinations checks that inbox records must outlive the last
// attempt at each destination.
func TestRetentionOfDestinations(t *testing.T) {
	w := newWard(t, "inbox.retention", "1h", "inbox.redelivery-window", "1m", "relay.dead-retention", "1m")
	w.write("destinations: {a: {sink: 'log:'}, b: {sink: 'log:', max-attempts: 3, backoff-base: 1h, backoff-max: 1h}}")
	w.sees("retention", Fail, "applied again", "set inbox.retention to more than 2h")
	w.write("destinations: {a: {sink: 'log:'}, b: {sink: 'log:', max-attempts: off}}")
	w.sees("retention", Warn, "at any time", "set max-attempts of every destination")
	w.write("destinations: {a: {sink: 'log:'}, b: {sink: 'log:'}}")
	w.well("retention")
}

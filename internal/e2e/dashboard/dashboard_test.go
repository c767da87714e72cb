package dashboard_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/dashboard"
	"github.com/waybillhq/waybill/internal/e2e/browser"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

var pictures = flag.Bool("pictures", false, "write the pictures of docs/dashboard.md (SQLite)")

// script is an event type that would run if a page did not escape it.
const script = "<script>alert(1)</script>"

// TestSQLite walks through the dashboard of a SQLite outbox.
func TestSQLite(t *testing.T) {
	db, err := sqlitestore.Open(filepath.Join(t.TempDir(), "shop.db"), sqlitestore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	walk(t, db)
}

// TestPostgres walks through the dashboard of a PostgreSQL outbox.
func TestPostgres(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), testserver.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	schema := "t_" + strings.ToLower(waybill.NewID().String())
	db, err := pgstore.New(pool, pgstore.Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, err := pool.Exec(context.Background(), `DROP SCHEMA "`+schema+`" CASCADE`)
		if err != nil {
			t.Error(err)
		}
	})
	if _, err := pool.Exec(t.Context(), `CREATE SCHEMA "`+schema+`"`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	walk(t, db)
}

// shop is an outbox with a running relay and two destinations.
type shop struct {
	t      *testing.T
	ops    *admin.Outbox
	to     *admin.Destinations
	mended atomic.Bool
	dead   waybill.ID
}

// newShop writes events: billing refuses the hostile type until it is mended,
// and shipping asks for a long delay of one event.
func newShop[T any](t *testing.T, db driver.Store[T]) *shop {
	t.Helper()
	s := &shop{t: t, dead: waybill.NewID()}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	s.ops, err = admin.NewOutbox(db, admin.Config{})
	must(err)
	s.to, err = admin.NewDestinations(db, admin.Config{})
	must(err)
	box, err := outbox.New(db, outbox.Config{Logger: slog.New(slog.DiscardHandler)})
	must(err)
	billing := relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		if d.Type == script && !s.mended.Load() {
			return waybill.Permanent(errors.New("status 422: customer \"4711\" is unknown \x1b[31m"))
		}
		return nil
	})
	shipping := relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		if d.Type == "OrderShipped" {
			return waybill.RetryAfter(time.Hour, errors.New("connection refused"))
		}
		return nil
	})
	r, err := relay.NewTo(db, relay.Config{Logger: slog.New(slog.DiscardHandler), Heartbeat: 200 * time.Millisecond, PollInterval: 100 * time.Millisecond},
		relay.Destination{Name: "billing", Sink: billing}, relay.Destination{Name: "shipping", Sink: shipping})
	must(err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		must(<-done)
	})
	must(box.InTx(t.Context(), func(ctx context.Context, tx T) error {
		var all []waybill.Event
		for i, kind := range []string{"OrderPlaced", "OrderPaid", "OrderShipped", "OrderPlaced", script} {
			ev := waybill.NewEvent(kind, map[string]int{"total": 990 + i})
			ev.AggregateType, ev.AggregateID, ev.TenantID = "order", fmt.Sprint(i), "acme"
			if kind == script {
				ev.ID = s.dead
			}
			all = append(all, ev)
		}
		return box.Write(ctx, tx, all...)
	}))
	s.until("the events are where they belong", func(all []admin.Destination) bool {
		// The delay that shipping asks for lowers its rate for a moment.
		return len(all) == 2 && all[0].Dead == 1 && all[0].Waiting() == 0 && all[1].Failed == 1 && all[1].Waiting() == 1 && len(all[1].Troubles) == 0
	})
	return s
}

// until waits for a state of the destinations.
func (s *shop) until(what string, reached func(all []admin.Destination) bool) {
	s.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		all, err := s.to.List(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		if reached(all) {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("not reached: %s: %+v", what, all)
		}
	}
}

// walk opens every screen, follows links, changes something, and walks by
// keyboard. The browser must not report anything.
func walk[T any](t *testing.T, db driver.Store[T]) {
	b := tab{Tab: browser.New(t), t: t}
	s := newShop(t, db)
	groups, err := admin.NewInbox(db, admin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := admin.NewKeys(db, admin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	audit, err := admin.NewAudit(db, admin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := admin.NewJobs(db, admin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := dashboard.New(dashboard.Config{
		Jobs: jobs, Doctor: func(context.Context) ([]dashboard.Finding, error) {
			return []dashboard.Finding{{Check: "waiting", Status: "fail", Text: "the oldest event waits", Command: "waybill serve"}, {Check: "sink", Status: "not checked", Text: "none"}}, nil
		},
		Audit: audit, Outbox: s.ops, Destinations: s.to, Inbox: groups, Keys: keys, ShowPayloads: true, Interval: 100 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler), Allow: func(*http.Request, dashboard.Action) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/ops/", http.StripPrefix("/ops", d))
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		d.Close()
		server.Close()
	})
	at := server.URL + "/ops/"

	screens(b, at, s.dead)
	changes(b, at, s)
	keyboard(b, at)
}

// screens opens every screen.
func screens(b tab, at string, dead waybill.ID) {
	b.t.Helper()
	b.open(at)
	b.Says("Destination shipping fails: 1 event waits", "connection refused", "1 dead letter at destination billing", "customer \"…\" is unknown")
	// The counts arrive with a heartbeat, and the overview updates itself.
	b.Until(`[...document.querySelectorAll('#throughput rect.ready')].some(r => r.getBoundingClientRect().height > 0)`)
	b.Clean("the chart")
	b.picture("overview")
	for _, path := range []string{"dead", "dead?destination=billing", "events", "events?destination=shipping", "destinations", "blocked", "blocked?destination=shipping", "groups", "relays", "keys", "throughput", "throughput?period=14d&destination=billing", "jobs", "doctor", "dead?since=1h&error=unknown"} {
		b.open(at + path)
	}
	b.open(at + "throughput")
	b.Says("Results by destination", "Results by type of event", "Results by time", script)
	b.open(at + "dead?destination=billing")
	b.Says(script, `\x1b[31m`)
	b.picture("dead")
	b.Click("document.querySelector('a.id')", ".verdict")
	b.Clean("the link to the event")
	if got := browser.Value[string](b.Tab, "location.href"); got != at+"events/"+dead.String() {
		b.t.Errorf("the link leads to %s", got)
	}
	b.Says("It has been a dead letter at destination billing for", `"total": 994`, script)
	b.picture("event")
	if browser.Value[bool](b.Tab, "document.querySelectorAll('script').length !== 1") {
		b.t.Error("the event has added a script")
	}
}

// changes pauses and resumes a destination, and replays a dead letter.
func changes(b tab, at string, s *shop) {
	b.t.Helper()
	b.open(at + "destinations")
	b.submit("pause", "billing")
	b.Says("Destination billing is paused.")
	s.until("billing is paused", func(all []admin.Destination) bool { return all[0].IsPaused() })

	// The open overview follows a change that another operator makes.
	b.open(at)
	b.Says("Destination billing has been paused")
	if _, err := s.to.Resume(s.t.Context(), "billing"); err != nil {
		s.t.Fatal(err)
	}
	b.Until(`!document.body.innerText.includes('Destination billing has been paused')`)
	b.Clean("the live overview")

	b.open(at + "destinations")
	b.submit("pause", "shipping")
	b.open(at)
	b.submit("resume", "shipping")
	b.Says("Destination shipping is resumed.")
	s.until("shipping is resumed", func(all []admin.Destination) bool { return !all[1].IsPaused() })

	s.mended.Store(true)
	b.open(at + "events/" + s.dead.String())
	b.submit("replay", s.dead.String())
	b.Says("Replayed 1 event.")
	s.until("the letter is delivered", func(all []admin.Destination) bool { return all[0].Rows() == 0 })
	b.open(at + "events/" + s.dead.String())
	b.Says("It was delivered ")
	b.open(at + "audit")
	b.Says("replay", s.dead.String())
}

// keyboard reaches the content, the screens and the search without a mouse.
func keyboard(b tab, at string) {
	b.t.Helper()
	focus := func() string {
		return browser.Value[string](b.Tab, "document.activeElement.textContent.trim() || document.activeElement.id")
	}
	b.open(at + "relays")
	b.Key(kb.Tab)
	if got := focus(); got != "Skip to the content" {
		b.t.Errorf("the first stop is %q", got)
	}
	seen := map[string]bool{}
	for range 15 {
		b.Key(kb.Tab)
		seen[focus()] = true
		if !browser.Value[bool](b.Tab, "getComputedStyle(document.activeElement).outlineStyle !== 'none'") {
			b.t.Errorf("the focus on %q is not visible", focus())
		}
	}
	for _, name := range []string{"Overview", "Dead letters", "Events", "Destinations", "Blocked", "Keys", "Throughput", "Jobs", "Doctor", "Audit", "find", "Open"} {
		if !seen[name] {
			b.t.Errorf("the keyboard does not reach %s: %v", name, seen)
		}
	}
	b.open(at + "relays")
	b.Key("/")
	if got := browser.Value[string](b.Tab, "document.activeElement.id"); got != "find" {
		b.t.Errorf("the key / leads to %q", got)
	}
	// The driver types the character although the page has handled the key.
	browser.Value[string](b.Tab, "document.activeElement.value = ''")
	b.Key("01JZ3V8Q5R7M2N4P6S8T0W1X3Y" + kb.Enter)
	b.Until(`document.querySelector('.notice.bad') !== null`)
	b.Says("The tables do not have this event")
}

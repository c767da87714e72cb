package dashboard_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/dashboard"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// shop is an outbox with two destinations, and a browser in front of its
// dashboard.
type shop struct {
	t     *testing.T
	db    *memstore.Store[*memstore.Tx]
	roles driver.Roles[*memstore.Tx]
	ops   *admin.Outbox
	to    *admin.Destinations
	cfg   dashboard.Config
	// Of the server.
	url    string
	client *http.Client
	dash   *dashboard.Dashboard
}

// anything permits every change.
func anything(*http.Request, dashboard.Action) error { return nil }

// newShop returns a shop whose dashboard is not open yet.
func newShop(t *testing.T) *shop {
	t.Helper()
	db, err := memstore.New(memstore.Config{Lanes: 4})
	if err != nil {
		t.Fatal(err)
	}
	s := &shop{t: t, db: db, roles: db.Driver()}
	if s.ops, err = admin.NewOutbox(db, admin.Config{}); err != nil {
		t.Fatal(err)
	}
	if s.to, err = admin.NewDestinations(db, admin.Config{}); err != nil {
		t.Fatal(err)
	}
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
	s.cfg = dashboard.Config{
		Audit: audit, Actor: func(r *http.Request) string { return r.Header.Get("X-User") },
		Outbox: s.ops, Destinations: s.to, Inbox: groups, Keys: keys, Groups: []string{"inventory"},
		Logger: slog.New(slog.DiscardHandler), Interval: 10 * time.Millisecond,
	}
	return s
}

// open mounts the dashboard under /ops/waybill.
func (s *shop) open() {
	s.t.Helper()
	d, err := dashboard.New(s.cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.dash = d
	mux := http.NewServeMux()
	mux.Handle("/ops/waybill/", http.StripPrefix("/ops/waybill", d))
	mux.Handle("/ops/waybill", http.StripPrefix("/ops/waybill", d))
	server := httptest.NewServer(mux)
	s.t.Cleanup(func() {
		d.Close()
		server.Close()
	})
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.url, s.client = server.URL+"/ops/waybill", &http.Client{Jar: jar}
}

// event returns an event of an aggregate, or an unordered one.
func event(kind, aggregate string) waybill.Event {
	ev := waybill.NewEvent(kind, map[string]string{"secret": "payload-canary"})
	ev.ID = waybill.NewID()
	ev.Headers = map[string]string{"x-canary": "header-canary"}
	if aggregate != "" {
		ev.AggregateType, ev.AggregateID = "order", aggregate
	}
	return ev
}

func (s *shop) write(events ...waybill.Event) {
	s.t.Helper()
	box, err := outbox.New(s.db, outbox.Config{})
	s.must(err)
	s.must(box.InTx(s.t.Context(), func(ctx context.Context, tx *memstore.Tx) error { return box.Write(ctx, tx, events...) }))
}

func (s *shop) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// queue is the outbox or the backlog of a destination.
type queue interface {
	Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error)
	Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error)
}

// settle passes the ready rows of the outbox, or of a backlog, to a function
// that decides about them.
func (s *shop) settle(rows queue, decide func(row store.Row, out *driver.Settlement)) {
	s.t.Helper()
	ctx := s.t.Context()
	node := store.Node{ID: waybill.NewID(), Relay: "relay"}
	_, err := s.roles.Relay.Heartbeat(ctx, node, time.Minute)
	s.must(err)
	leases, err := s.roles.Relay.Acquire(ctx, node, []int{0, 1, 2, 3}, 100)
	s.must(err)
	page, err := rows.Fetch(ctx, []driver.Cursor{{Lane: 0}, {Lane: 1}, {Lane: 2}, {Lane: 3}}, 1000)
	s.must(err)
	out := driver.Settlement{Leases: leases, History: true}
	for _, row := range page.Rows {
		decide(row, &out)
	}
	_, err = rows.Settle(ctx, out)
	s.must(err)
	s.must(s.roles.Relay.Leave(ctx, node))
}

func failure(row store.Row, attempts int, text string) driver.Result {
	return driver.Result{Lane: row.Lane, ID: row.ID, Seq: row.Seq, Attempts: attempts, Error: text, Delay: time.Hour, Holds: row.Event.Ordered()}
}

// kill makes all ready events dead letters.
func (s *shop) kill(text func(row store.Row) string) {
	s.t.Helper()
	s.settle(s.roles.Relay, func(row store.Row, out *driver.Settlement) { out.Dead = append(out.Dead, failure(row, 3, text(row))) })
}

func says(text string) func(store.Row) string { return func(store.Row) string { return text } }

// divert moves all ready events to the backlog of destination, which fails.
func (s *shop) divert(name, text string) {
	s.t.Helper()
	all, err := s.roles.Backlogs.AddDestinations(s.t.Context(), name)
	s.must(err)
	for _, d := range all {
		if d.Name != name {
			continue
		}
		s.settle(s.roles.Relay, func(row store.Row, out *driver.Settlement) {
			out.Done = append(out.Done, driver.Result{Lane: row.Lane, ID: row.ID, Seq: row.Seq})
			out.Divert = append(out.Divert, driver.Diversion{Destination: d.Number, ID: row.ID})
		})
		s.settle(s.roles.Backlogs.Backlog(d.Number), func(row store.Row, out *driver.Settlement) {
			out.Retry = append(out.Retry, failure(row, 2, text))
		})
	}
}

// consume makes an event a dead record of the group inventory.
func (s *shop) consume(ev waybill.Event, text string) {
	s.t.Helper()
	in, err := inbox.New(s.db, inbox.Config{Logger: slog.New(slog.DiscardHandler)})
	s.must(err)
	g := in.MustGroup("inventory", inbox.Options{})
	_, _ = g.Consume(s.t.Context(), eventfill.Defaults(ev), func(context.Context, *memstore.Tx, waybill.Event) error {
		return waybill.Permanent(errors.New(text))
	})
}

// answer is the answer to a request.
type answer struct {
	status int
	text   string
	header http.Header
	// at is the address of the page after redirects.
	at *url.URL
}

func (s *shop) do(r *http.Request) answer {
	s.t.Helper()
	a, err := s.client.Do(r)
	s.must(err)
	text, err := io.ReadAll(a.Body)
	s.must(errors.Join(err, a.Body.Close()))
	return answer{a.StatusCode, string(text), a.Header, a.Request.URL}
}

// get opens a page.
func (s *shop) get(path string) answer {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+path, nil)
	s.must(err)
	return s.do(r)
}

// page opens a page that exists.
func (s *shop) page(path string) string {
	s.t.Helper()
	a := s.get(path)
	if a.status != http.StatusOK {
		s.t.Fatalf("%s: status %d: %s", path, a.status, a.text)
	}
	return a.text
}

// hidden matches the fields of a form that a reader does not fill in.
var hidden = regexp.MustCompile(`<input type="hidden" name="([a-z_]+)" value="([^"]*)">`)

// form returns the hidden fields of the first form of a page that leads to an
// action and contains a text.
func (s *shop) form(page, action, with string) url.Values {
	s.t.Helper()
	for part := range strings.SplitSeq(page, "<form ") {
		part, _, _ = strings.Cut(part, "</form>")
		if !strings.Contains(part, "do/"+action) || !strings.Contains(part, with) {
			continue
		}
		out := url.Values{}
		for _, m := range hidden.FindAllStringSubmatch(part, -1) {
			out.Add(m[1], strings.NewReplacer("&amp;", "&", "&#43;", "+", "&#39;", "'").Replace(m[2]))
		}
		return out
	}
	s.t.Fatalf("the page has no form for %s with %q:\n%s", action, with, page)
	return nil
}

// post sends a form.
func (s *shop) post(action string, form url.Values, headers ...string) answer {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/do/"+action, strings.NewReader(form.Encode()))
	s.must(err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return s.do(r)
}

// count returns the number of events in a state.
func (s *shop) count(state store.State) int64 {
	s.t.Helper()
	n, err := s.ops.Count(s.t.Context(), state, store.Filter{})
	s.must(err)
	return n
}

func has(t *testing.T, page string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(page, text) {
			t.Errorf("the page does not contain %q:\n%s", text, page)
			return
		}
	}
}

func lacks(t *testing.T, page string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(page, text) {
			t.Errorf("the page contains %q", text)
		}
	}
}

type settlement = driver.Settlement

// newLines returns the lines of a stream.
func newLines(from io.Reader) <-chan string {
	out := make(chan string)
	go func() {
		defer close(out)
		scanner := bufio.NewScanner(from)
		scanner.Buffer(nil, 1<<20)
		for scanner.Scan() {
			out <- scanner.Text()
		}
	}()
	return out
}

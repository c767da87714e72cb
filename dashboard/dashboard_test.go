package dashboard_test

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/dashboard"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// A service mounts the dashboard beside its own pages. Only operators may
// change something.
func Example() {
	db, _ := memstore.New(memstore.Config{})
	ops, _ := admin.NewOutbox(db, admin.Config{})
	d, err := dashboard.New(dashboard.Config{
		Outbox: ops,
		Allow: func(r *http.Request, action dashboard.Action) error {
			if r.Header.Get("X-Role") != "operator" { // of the service's own authentication
				return fmt.Errorf("%s is for operators", action)
			}
			return nil
		},
	})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/waybill/", http.StripPrefix("/waybill", d))
	server := &http.Server{Handler: mux}
	server.RegisterOnShutdown(d.Close)
	fmt.Println(dashboard.New(dashboard.Config{}))
	// Output: <nil> dashboard: Config.Outbox: required
}

// TestConfig: the error names every wrong field.
func TestConfig(t *testing.T) {
	_, err := dashboard.New(dashboard.Config{QueryTimeout: -1, Interval: -1})
	for _, want := range []string{"dashboard: Config.Outbox: required", "dashboard: Config.QueryTimeout: -1ns is negative", "dashboard: Config.Interval: -1ns is negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// busy is a shop with something on every screen.
func busy(t *testing.T) (s *shop, dead, late, ready waybill.Event) {
	t.Helper()
	s = newShop(t)
	dead, late, ready = event("OrderPlaced", "17"), event("OrderShipped", "18"), event("OrderPaid", "17")
	dead.TenantID = "acme"
	s.write(dead)
	s.kill(says("customer 4711 is unknown"))
	s.write(late)
	s.divert("shipping", "connection refused")
	_, _, err := s.to.Add(t.Context(), "billing")
	s.must(err)
	_, err = s.to.Pause(t.Context(), "billing", "moves to another data center")
	s.must(err)
	s.write(ready)
	s.consume(dead, "no such product")
	return s, dead, late, ready
}

// TestScreens: every screen shows its rows, and only those of the
// configuration exist.
func TestScreens(t *testing.T) {
	s, dead, late, ready := busy(t)
	s.open()
	has(t, s.page("/"),
		"No relay is running: 2 events cannot be delivered", "waybill doctor",
		"1 dead letter", "customer # is unknown",
		"Destination shipping fails: 1 event waits", "connection refused", "waybill destinations probe shipping",
		"Destination billing has been paused", "moves to another data center", "waybill destinations resume billing",
		"Consumer group inventory cannot apply 1 event",
		"Lanes owned", "Keys in progress")
	has(t, s.page("/dead"), "customer # is unknown", dead.ID.String(), "acme", "customer 4711 is unknown")
	has(t, s.page("/events?state=ready"), ready.ID.String(), "OrderPaid")
	lacks(t, s.page("/events?state=ready"), dead.ID.String())
	all := s.page("/events")
	has(t, all, ready.ID.String(), dead.ID.String(), late.ID.String())
	has(t, s.page("/events?destination=shipping"), late.ID.String(), "connection refused", "Failed, to be retried")
	has(t, s.page("/destinations"), "shipping", "failing", "connection refused", "billing", "paused", "moves to another data center")
	has(t, s.page("/blocked?destination=shipping"), late.ID.String(), "connection refused")
	has(t, s.page("/groups"), "inventory", "no such product", dead.ID.String())
	has(t, s.page("/keys"), "No key is open.")
	has(t, s.page("/relays"), "No relay is running", "Lanes: 0 of 4 have a live owner")

	s.cfg = dashboard.Config{Outbox: s.ops, Logger: s.cfg.Logger}
	s.open()
	lacks(t, s.page("/"), ">Destinations<", ">Consumer groups<", ">Keys<")
	for _, path := range []string{"/destinations", "/groups", "/keys", "/nothing", "/events/17", "/events/" + waybill.NewID().String(), "/assets/", "/events?destination=x"} {
		if a := s.get(path); a.status != http.StatusNotFound {
			t.Errorf("%s: status %d", path, a.status)
		}
	}
	for _, path := range []string{"/events?id=17", "/events?state=gone", "/events?state=ready&after=x"} {
		if a := s.get(path); a.status != http.StatusBadRequest {
			t.Errorf("%s: status %d", path, a.status)
		}
	}
}

// TestEvent: the page of an event says in words what it waits for.
func TestEvent(t *testing.T) {
	s, dead, late, ready := busy(t)
	s.open()
	has(t, s.page("/events/"+dead.ID.String()), "It has been a dead letter for", "waybill dead replay "+dead.ID.String(), "customer 4711 is unknown", "acme", "inventory", "no such product")
	has(t, s.page("/events/"+late.ID.String()), "No relay is running: nothing is delivered until one starts.",
		"It has failed at destination shipping, 2 times, and is tried again in", "connection refused", "waybill list --state failed --destination shipping")
	has(t, s.page("/events/"+ready.ID.String()), "No relay is running: nothing is delivered until one starts.", "<code>waybill doctor</code>")
	_, err := s.to.Pause(t.Context(), "shipping", "is rebuilt")
	s.must(err)
	s.open()
	has(t, s.page("/events/"+late.ID.String()), "Destination shipping has been paused for", "is rebuilt", "waybill destinations resume shipping")
	has(t, s.get("/events/"+waybill.NewID().String()).text, "The tables do not have this event. It was never committed to these tables")

	if a := s.get("/events?id=" + strings.ToLower(ready.ID.String())); a.status != http.StatusOK || a.at.Path != "/ops/waybill/events/"+ready.ID.String() {
		t.Errorf("a search for an id leads to %s, status %d", a.at, a.status)
	}
}

// TestPayloads: payloads and headers are shown only if the configuration says
// so.
func TestPayloads(t *testing.T) {
	s, dead, _, _ := busy(t)
	s.open()
	for _, path := range []string{"/", "/dead", "/events", "/events/" + dead.ID.String(), "/groups"} {
		lacks(t, s.page(path), "payload-canary", "header-canary")
	}
	s.cfg.ShowPayloads = true
	s.open()
	has(t, s.page("/events/"+dead.ID.String()), "payload-canary", "header-canary")
	for _, path := range []string{"/", "/dead", "/events"} {
		lacks(t, s.page(path), "payload-canary", "header-canary")
	}
}

// TestCauses: dead letters with the same cause are one group, and the address
// of a group shows its letters.
func TestCauses(t *testing.T) {
	s := newShop(t)
	var mine []string
	for i := range 12 {
		ev := event("OrderPlaced", "")
		s.write(ev)
		if i%3 == 0 {
			s.kill(says("status 503: upstream is away"))
			mine = append(mine, ev.ID.String())
		} else {
			s.kill(says(fmt.Sprintf("order %q at 10.0.0.%d:%d: unknown product 01J%dABC", fmt.Sprint("A-", i), i, i*100, i)))
		}
	}
	s.open()
	page := s.page("/dead")
	has(t, page, "<b>8</b>", "<b>4</b>", "status 503: upstream is away", "unknown product #")
	cause := regexp.MustCompile(`cause=([0-9a-f]{12})[^>]*><bdi>status`).FindStringSubmatch(page)
	if cause == nil {
		t.Fatalf("no link to the cause:\n%s", page)
	}
	page = s.page("/dead?cause=" + cause[1])
	has(t, page, mine...)
	lacks(t, page, "unknown product")
	has(t, s.page("/dead?cause="+cause[1]+"&type=Other"), "No dead letters with this cause")
}

// TestLongLists: lists are read in pages.
func TestLongLists(t *testing.T) {
	s := newShop(t)
	var events []waybill.Event
	for range 120 {
		events = append(events, event("OrderPlaced", ""))
	}
	s.write(events...)
	s.open()
	follow := func(path string) {
		t.Helper()
		seen := map[string]bool{}
		next := regexp.MustCompile(`href="(\?[^"]*)" rel="next"`)
		for n := 0; path != "" && n < 5; n++ {
			page := s.page(path)
			for _, m := range regexp.MustCompile(`events/([0-9A-Z]{26})`).FindAllStringSubmatch(page, -1) {
				seen[m[1]] = true
			}
			m := next.FindStringSubmatch(page)
			before, _, _ := strings.Cut(path, "?")
			if path = ""; m != nil {
				path = before + strings.ReplaceAll(m[1], "&amp;", "&")
			}
		}
		if len(seen) != len(events) {
			t.Errorf("%d of %d events are listed", len(seen), len(events))
		}
	}
	follow("/events?state=ready&type=OrderPlaced")
	s.kill(says("no"))
	follow("/dead?type=OrderPlaced")
}

// TestDeliveredEvents: the newest delivered events come first, in pages that a
// filter narrows.
func TestDeliveredEvents(t *testing.T) {
	s := newShop(t)
	var ids []string
	for i := range 60 {
		ev := event([]string{"OrderPlaced", "OrderPaid", "OrderSent"}[i%3], "")
		s.write(ev)
		ids = append(ids, ev.ID.String())
	}
	s.settle(s.roles.Relay, func(row store.Row, out *driver.Settlement) {
		out.Done = append(out.Done, driver.Result{Lane: row.Lane, ID: row.ID, Seq: row.Seq})
	})
	s.open()
	listed := func(path string) (got []string, next string) {
		page := s.page(path)
		for _, m := range regexp.MustCompile(`events/([0-9A-Z]{26})`).FindAllStringSubmatch(page, -1) {
			got = append(got, m[1])
		}
		got = slices.Compact(got)
		if m := regexp.MustCompile(`href="(\?[^"]*)" rel="next"`).FindStringSubmatch(page); m != nil {
			next = "/events" + strings.ReplaceAll(m[1], "&amp;", "&")
		}
		has(t, page, "Delivered, newest first")
		return got, next
	}
	slices.Reverse(ids)
	first, next := listed("/events?state=delivered")
	rest, end := listed(next)
	if !slices.Equal(first, ids[:50]) || !slices.Equal(rest, ids[50:]) || end != "" {
		t.Errorf("the pages have %v, then %v, then %q; want %v", first, rest, end, ids)
	}
	all, _ := listed("/events")
	if !slices.Equal(all, ids[:20]) {
		t.Errorf("the page of all states has %v", all)
	}
	few, end := listed("/events?state=delivered&type=OrderPaid")
	if len(few) != 20 || few[0] != ids[1] || few[1] != ids[4] || end != "" {
		t.Errorf("the page of one type has %v, then %q", few, end)
	}
	// A search ends after 25 events, whether it has found any or not.
	s.dash.SearchRows(25)
	found, next := listed("/events?state=delivered&type=OrderPaid")
	has(t, s.page("/events?state=delivered&type=OrderPaid"), "Searched the delivered events back to", "Search further back")
	for i := 0; next != "" && i < 3; i++ {
		var more []string
		more, next = listed(next)
		found = append(found, more...)
	}
	if !slices.Equal(found, few) {
		t.Errorf("the steps of a search found %v, want %v", found, few)
	}
	if found, next = listed("/events?type=OrderPaid"); len(found) != 8 || !strings.Contains(next, "state=delivered") {
		t.Errorf("the page of all states has %v, then %q", found, next)
	}
	if none := s.page("/events?type=Unknown"); strings.Contains(none, "No event matches") {
		t.Error("a search that has not ended found that no event matches")
	}
	if a := s.get("/events?state=delivered&after=17"); a.status != http.StatusBadRequest {
		t.Errorf("a position that is no id: status %d", a.status)
	}
}

// TestCausesOfManyLetters: a page about more dead letters than it reads has the
// causes of all, and computes none: letters without a cause are in the groups
// of those that it reads.
func TestCausesOfManyLetters(t *testing.T) {
	s := newShop(t)
	for i, n := range []int{4000, 1200} {
		var events []waybill.Event
		for range n {
			events = append(events, event("OrderPlaced", ""))
		}
		s.write(events...)
		text := []string{"status 503: upstream is away", "unknown product 17"}[i]
		for range n/1000 + 1 {
			s.kill(says(text))
		}
	}
	causes := s.roles.OutboxAdmin.(driver.Causes)
	unknown := func() (letters int64) {
		counts, err := causes.CountCauses(t.Context(), 10)
		s.must(err)
		for _, c := range counts {
			if c.ID == "" {
				letters += c.Letters
			}
		}
		return letters
	}
	_, err := causes.NoteCauses(t.Context(), 3000)
	s.must(err)
	s.open()
	has(t, s.page("/dead"), "Dead letters without a cause yet: 2,200.", "waybill dead groups", "status 503: upstream is away", "unknown product #", "Only the oldest 5,000 dead letters are read")
	if n := unknown(); n != 2200 {
		t.Errorf("after the page, %d letters have no cause, want 2200", n)
	}
	_, err = causes.NoteCauses(t.Context(), 3000)
	s.must(err)
	page := s.page("/dead")
	has(t, page, "<b>4,000</b>", "<b>1,200</b>", "the causes are of all")
	lacks(t, page, "without a cause yet")
}

// TestCauseBehindManyLetters: the page of a cause has its letters, and changes
// them, also if more older letters than a page reads have another cause, and if
// one of them has no stored cause yet.
func TestCauseBehindManyLetters(t *testing.T) {
	s := newShop(t)
	s.cfg.Allow = anything
	bury := func(n int, text string) {
		t.Helper()
		for i := 0; i < n; i += 900 {
			var events []waybill.Event
			for range min(n-i, 900) {
				events = append(events, event("OrderPlaced", ""))
			}
			s.write(events...)
			s.kill(says(text))
		}
	}
	bury(2, "unknown product 1")
	bury(5100, "status 503: upstream is away")
	bury(3, "unknown product 2")
	_, err := s.roles.OutboxAdmin.(driver.Causes).NoteCauses(t.Context(), 10_000)
	s.must(err)
	bury(1, "unknown product 3")
	s.open()
	path := "/dead?cause=" + driver.CauseOf("unknown product 1")
	page := s.page(path)
	has(t, page, "5 dead letters, the first", "Change all 5", "unknown product 1", "unknown product 2", "Dead letters without a cause yet: 1.")
	lacks(t, page, "unknown product 3", "status 503", "Only the oldest")
	f := s.form(page, "replay", `name="all"`)
	f.Set("number", "5")
	has(t, s.post("replay", f).text, "Replayed 5 events.")
	page = s.page("/dead?cause=" + driver.CauseOf("status 503: upstream is away"))
	has(t, page, "5,100 dead letters, the first", "Change all 5,000", "Only the oldest 5,000 dead letters are read.")
}

// TestHostileTexts: nothing that a producer, a consumer or an error wrote can
// act in the page.
func TestHostileTexts(t *testing.T) {
	const script, marks = "<script>alert(1)</script>", "\u202egnp.exe\u202c"
	s := newShop(t)
	s.cfg.Title, s.cfg.ShowPayloads, s.cfg.Allow = script, true, anything
	ev := event(script, `"><img src=x onerror=alert(2)>`)
	ev.AggregateType, ev.TenantID, ev.CorrelationID = "'onclick='alert(3)", "javascript:alert(4)", marks
	ev.Headers = map[string]string{script: marks}
	other := event("Reversed"+marks, script)
	s.write(ev, other)
	s.kill(says("\x1b[31mred\x1b[0m </pre>" + script + marks + "\x00\u2066\u200b"))
	s.consume(ev, script)
	broken := event("Broken", "")
	broken.AggregateType, broken.AggregateID = script, marks
	s.write(broken)
	s.divert("a\"><i>", script)
	_, err := s.to.Pause(t.Context(), "a\"><i>", script+"\x1b[2J"+marks)
	s.must(err)
	s.open()
	pages := []string{
		"/", "/dead", "/events", "/events?type=" + script, "/events/" + ev.ID.String(), "/events/" + other.ID.String(), "/events/" + broken.ID.String(), "/destinations",
		"/blocked", "/groups", "/groups?group=" + script, "/events?destination=a%22%3E%3Ci%3E", "/blocked?destination=a%22%3E%3Ci%3E",
	}
	for _, path := range pages {
		page := s.page(path)
		lacks(t, page, "<script>", "<img", "<i>", `onerror="`, "\x1b", "\u2066", "\x00", "\u200b", `href="javascript:`)
		if got := strings.Count(page, "<script"); got != 1 { // that of the layout
			t.Errorf("%s has %d scripts", path, got)
		}
		visible := regexp.MustCompile(`value="[^"]*"`).ReplaceAllString(page, "")
		lacks(t, visible, "\u202e", "\u202c")
	}
	has(t, s.page("/dead"), `\x1b[31mred\x1b[0m`, `\u202egnp.exe\u202c`, "&lt;script&gt;")
	for _, path := range []string{"/events?state=" + script, "/events?id=" + script, "/nothing" + script, "/dead?destination=" + script, "/?done=" + script} {
		lacks(t, s.get(path).text, "<script>")
	}
}

// TestHeaders: every answer has the strict policy, and no page has inline
// scripts or styles, or anything of another site.
func TestHeaders(t *testing.T) {
	s, dead, _, _ := busy(t)
	s.cfg.Allow, s.cfg.ShowPayloads = anything, true
	s.open()
	const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
	inline := regexp.MustCompile(`(?i) style=| on[a-z]+=|<style|<script(?: [^>]*)?>[^<]|(?:src|href|action)="(?:https?:)?//`)
	for _, path := range []string{
		"/", "/dead", "/events", "/events/" + dead.ID.String(), "/destinations", "/blocked", "/groups", "/relays", "/throughput", "/keys", "/assets/style.css", "/assets/app.js",
		"/assets/icon.svg", "/nothing", "/assets/nothing",
	} {
		a := s.get(path)
		if got := a.header.Get("Content-Security-Policy"); got != policy {
			t.Errorf("%s: policy %q", path, got)
		}
		if a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s may be sniffed", path)
		}
		if strings.HasPrefix(a.header.Get("Content-Type"), "text/html") {
			if m := inline.FindString(a.text); m != "" {
				t.Errorf("%s contains %s", path, m)
			}
			structure(t, path, a.text)
		}
	}
}

// structure checks the outline of a page.
func structure(t *testing.T, path, page string) {
	t.Helper()
	for _, once := range []string{"<h1>", "<main ", "<header ", "<footer>", `class="skip" href="#main"`, `<html lang="en">`} {
		if n := strings.Count(page, once); n != 1 {
			t.Errorf("%s has %s %d times", path, once, n)
		}
	}
	if tables, captions := strings.Count(page, "<table"), strings.Count(page, "<caption"); tables != captions {
		t.Errorf("%s has %d tables and %d captions", path, tables, captions)
	}
	for _, m := range regexp.MustCompile(`<th[ >][^>]*>`).FindAllString(page, -1) {
		if !strings.Contains(m, "scope=") && !strings.HasPrefix(m, "<thead") {
			t.Errorf("%s has a header cell without a scope: %s", path, m)
		}
	}
	ids := map[string]bool{}
	for _, m := range regexp.MustCompile(` id="([^"]+)"`).FindAllStringSubmatch(page, -1) {
		if ids[m[1]] {
			t.Errorf("%s has the id %s twice", path, m[1])
		}
		ids[m[1]] = true
	}
}

// TestMounting: the links of every page stay below the mount.
func TestMounting(t *testing.T) {
	s, dead, _, _ := busy(t)
	s.cfg.Allow = anything
	s.open()
	if a := s.get(""); a.status != http.StatusOK || a.at.Path != "/ops/waybill/" {
		t.Errorf("the mount leads to %s, status %d", a.at, a.status)
	}
	address := regexp.MustCompile(`(?:href|src|action|formaction)="([^"]*)"`)
	checked := 0
	for _, path := range []string{"/", "/dead", "/events", "/events/" + dead.ID.String(), "/destinations", "/groups", "/nothing", "/deep/er/nothing"} {
		a := s.get(path)
		for _, m := range address.FindAllStringSubmatch(a.text, -1) {
			to, err := a.at.Parse(strings.ReplaceAll(m[1], "&amp;", "&"))
			s.must(err)
			if !strings.HasPrefix(to.Path, "/ops/waybill/") || to.Host != a.at.Host {
				t.Errorf("%s leads to %s", path, to)
				continue
			}
			if strings.Contains(to.Path, "/do/") || strings.Contains(m[0], "#main") {
				continue
			}
			checked++
			if got := s.get(strings.TrimPrefix(to.RequestURI(), "/ops/waybill")); got.status != http.StatusOK && !strings.HasSuffix(to.Path, "nothing") {
				t.Errorf("%s leads to %s, status %d", path, to, got.status)
			}
		}
	}
	if checked < 50 {
		t.Errorf("%d links were followed", checked)
	}
}

// TestFailures: a query that fails shows neither its error nor half a page.
func TestFailures(t *testing.T) {
	s := newShop(t)
	s.cfg.QueryTimeout = 1
	s.open()
	a := s.get("/")
	if a.status != http.StatusGatewayTimeout && a.status != http.StatusServiceUnavailable {
		t.Errorf("status %d: %s", a.status, a.text)
	}
	structure(t, "the error", a.text)
	if n := s.count(store.Dead); n != 0 {
		t.Error(n)
	}
}

package dashboard_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/waybillhq/waybill/dashboard"
	"github.com/waybillhq/waybill/store"
)

// nothing settles no event.
func nothing(store.Row, *settlement) {}

// TestReadOnly: without Allow there is no button, and forms are refused.
func TestReadOnly(t *testing.T) {
	s, dead, late, _ := busy(t)
	s.open()
	for _, path := range []string{"/", "/dead", "/events/" + dead.ID.String(), "/events/" + late.ID.String(), "/destinations", "/blocked?destination=shipping", "/groups"} {
		page := s.page(path)
		lacks(t, page, `method="post" action="./do`, `action="../do`, "<details", "type=\"checkbox\"", "name=\"token\"")
		has(t, page, "This dashboard is read-only.")
	}
	if cookie := s.get("/").header.Get("Set-Cookie"); cookie != "" {
		t.Errorf("a dashboard without forms sets the cookie %s", cookie)
	}
	for _, action := range []string{"replay", "discard", "unblock", "pause", "resume", "probe", "redrive", "else"} {
		if a := s.post(action, url.Values{"id": {dead.ID.String()}}); a.status != http.StatusForbidden {
			t.Errorf("%s: status %d", action, a.status)
		}
	}
	if n := s.count(store.Dead); n != 1 {
		t.Errorf("%d dead letters", n)
	}
}

// TestAllow: pages have only the buttons that a request may use, and forms for
// other changes are refused.
func TestAllow(t *testing.T) {
	s, dead, _, _ := busy(t)
	s.cfg.Allow = func(_ *http.Request, action dashboard.Action) error {
		if action != dashboard.Replay {
			return errors.New("only replays")
		}
		return nil
	}
	s.open()
	page := s.page("/events/" + dead.ID.String())
	has(t, page, "do/replay")
	lacks(t, page, "do/discard", "do/unblock")
	lacks(t, s.page("/destinations"), "do/pause")
	form := s.form(page, "replay", dead.ID.String())
	if a := s.post("discard", form); a.status != http.StatusForbidden || !strings.Contains(a.text, "You may not do this: only replays") {
		t.Errorf("status %d: %s", a.status, a.text)
	}
	if n := s.count(store.Dead); n != 1 {
		t.Errorf("%d dead letters", n)
	}
	if a := s.post("replay", form); a.status != http.StatusOK || !strings.Contains(a.text, "Replayed 1 event.") {
		t.Errorf("status %d: %s", a.status, a.text)
	}
	if n := s.count(store.Dead); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// TestForgedForms: a form counts only with the token of the browser's cookie,
// from the dashboard's own site.
func TestForgedForms(t *testing.T) {
	s, dead, _, _ := busy(t)
	s.cfg.Allow = anything
	s.open()
	form := func() url.Values { return s.form(s.page("/events/"+dead.ID.String()), "replay", dead.ID.String()) }
	other := *s.client
	refused := func(what string, change func(f url.Values) []string) {
		t.Helper()
		f := form()
		if a := s.post("replay", f, change(f)...); a.status != http.StatusForbidden && a.status != http.StatusBadRequest {
			t.Errorf("%s: status %d", what, a.status)
		}
		s.client = &other
	}
	refused("no token", func(f url.Values) []string { f.Del("token"); return nil })
	refused("another token", func(f url.Values) []string { f.Set("token", f.Get("token")[1:]+"A"); return nil })
	refused("no cookie", func(url.Values) []string { s.client = &http.Client{}; return nil })
	refused("another cookie", func(url.Values) []string {
		s.client = &http.Client{}
		return []string{"Cookie", "waybill-dashboard=ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
	})
	refused("another site", func(url.Values) []string { return []string{"Sec-Fetch-Site", "cross-site"} })
	refused("a neighbor", func(url.Values) []string { return []string{"Sec-Fetch-Site", "same-site"} })
	refused("another origin", func(url.Values) []string { return []string{"Origin", "https://evil.example"} })
	refused("no nonce", func(f url.Values) []string { f.Del("nonce"); return nil })
	refused("a nonce that is an address", func(f url.Values) []string { f.Set("nonce", "//evil.example/a/long/enough"); return nil })
	if n := s.count(store.Dead); n != 1 {
		t.Errorf("%d dead letters", n)
	}
	cookie := ""
	s.client = &http.Client{}
	if a := s.get("/"); a.header.Get("Set-Cookie") != "" {
		cookie = a.header.Get("Set-Cookie")
	}
	if !strings.Contains(cookie, "HttpOnly") || !strings.Contains(cookie, "SameSite=Strict") {
		t.Errorf("cookie %q", cookie)
	}
	s.client = &other
	f := form()
	f.Set("back", "//evil.example/x")
	if a := s.post("replay", f, "Origin", strings.TrimSuffix(s.url, "/ops/waybill")); !strings.HasPrefix(a.at.String(), s.url) {
		t.Errorf("the form leads to %s", a.at)
	}
	if n := s.count(store.Dead); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// TestDoubleClick: a form that is sent twice, also at the same time, makes one
// change, and both clients see its result.
func TestDoubleClick(t *testing.T) {
	s, dead, _, _ := busy(t)
	s.cfg.Allow = anything
	s.open()
	form := s.form(s.page("/events/"+dead.ID.String()), "replay", dead.ID.String())
	var all sync.WaitGroup
	answers := make([]answer, 4)
	for i := range answers {
		all.Go(func() { answers[i] = s.post("replay", form) })
	}
	all.Wait()
	s.settle(s.roles.Relay, nothing)
	for _, a := range answers {
		has(t, a.text, "Replayed 1 event.")
	}
	has(t, s.post("replay", form).text, "Replayed 1 event.")
	j, err := s.ops.Journey(t.Context(), dead.ID)
	s.must(err)
	if j.Replay != 1 {
		t.Errorf("replayed %d times", j.Replay)
	}
}

// TestBulk: a change of several events needs their number, and changes only
// those that the page has shown.
func TestBulk(t *testing.T) {
	for _, action := range []string{"replay", "discard"} {
		s := newShop(t)
		s.cfg.Allow = anything
		for i := range 5 {
			s.write(event("OrderPlaced", ""))
			s.kill(says(fmt.Sprintf("product %d is unknown", i)))
		}
		s.write(event("OrderPlaced", ""))
		s.kill(says("another cause"))
		s.open()
		page := s.page("/dead")
		path := page[strings.Index(page, "?cause="):]
		path = "/dead" + path[:strings.Index(path, `"`)]
		form := func() url.Values { return s.form(s.page(path), action, `name="all"`) }
		for number, status := range map[string]string{"": "type the number of events, 5", "6": "the number typed is 6, and there are 5 now"} {
			f := form()
			f.Set("number", number)
			has(t, s.post(action, f).text, status, `class="notice bad"`)
		}
		f := form()
		f.Set("number", "5")
		s.write(event("OrderPlaced", ""))
		s.kill(says("product 99 is unknown"))
		has(t, s.post(action, f).text, map[string]string{"replay": "Replayed 5 events.", "discard": "Discarded 5 events."}[action])
		if n := s.count(store.Dead); n != 2 {
			t.Errorf("%s: %d dead letters are left", action, n)
		}
	}
}

// TestSelected: the checked letters of a list are changed, several only with
// their number.
func TestSelected(t *testing.T) {
	s := newShop(t)
	s.cfg.Allow = anything
	var ids []string
	for range 3 {
		ev := event("OrderPlaced", "")
		ids = append(ids, ev.ID.String())
		s.write(ev)
	}
	s.kill(says("no"))
	s.open()
	form := func(number string, ids ...string) url.Values {
		f := s.form(s.page("/dead"), "replay", `id="selected"`)
		f["id"] = ids
		f.Set("number", number)
		return f
	}
	has(t, s.post("discard", form("")).text, "no event is selected")
	has(t, s.post("discard", form("", "x")).text, "invalid id")
	has(t, s.post("discard", form("", ids[0], ids[1])).text, "type the number of events, 2")
	has(t, s.post("discard", form("", ids[0])).text, "Discarded 1 event.")
	has(t, s.post("replay", form("2", ids[0], ids[1])).text, "Replayed 1 event.", "1 event was not dead anymore.")
	if n := s.count(store.Dead); n != 1 {
		t.Errorf("%d dead letters are left", n)
	}
}

// TestDestinationForms: an operator pauses, resumes and probes a destination.
func TestDestinationForms(t *testing.T) {
	s, _, late, _ := busy(t)
	s.cfg.Allow = anything
	s.open()
	find := func() (paused bool, reason string, probed bool) {
		d, err := s.to.Find(t.Context(), "shipping")
		s.must(err)
		return d.IsPaused(), d.Reason, !d.ProbeAt.IsZero()
	}
	f := s.form(s.page("/destinations"), "pause", `value="shipping"`)
	f.Set("reason", "is rebuilt")
	has(t, s.post("pause", f).text, "Destination shipping is paused.", "is rebuilt")
	if paused, reason, _ := find(); !paused || reason != "is rebuilt" {
		t.Error(paused, reason)
	}
	f = s.form(s.page("/"), "resume", `value="shipping"`)
	a := s.post("resume", f)
	has(t, a.text, "Destination shipping is resumed.", "<h1>Overview</h1>")
	f = s.form(s.page("/destinations"), "probe", `value="shipping"`)
	has(t, s.post("probe", f).text, "Running relays try destination shipping now")
	if paused, _, probed := find(); paused || !probed {
		t.Error(paused, probed)
	}
	f = s.form(s.page("/destinations"), "pause", `value="shipping"`)
	f.Set("name", "nowhere")
	has(t, s.post("pause", f).text, "Unknown destination", `class="notice bad"`)

	f = s.form(s.page("/blocked?destination=shipping"), "unblock", late.ID.String())
	a = s.post("unblock", f)
	has(t, a.text, "The aggregate continues.", "No aggregate is blocked.")
	if a.at.Query().Get("destination") != "shipping" {
		t.Errorf("the form leads to %s", a.at)
	}
}

// TestRedrive: records of a consumer group are retried, one by one and all.
func TestRedrive(t *testing.T) {
	s := newShop(t)
	s.cfg.Allow = anything
	for range 3 {
		s.consume(event("OrderPlaced", ""), "no such product")
	}
	s.open()
	has(t, s.post("redrive", s.form(s.page("/groups"), "redrive", `name="id"`)).text, "1 record of the group will be retried")
	f := s.form(s.page("/groups?group=inventory"), "redrive", `name="all"`)
	f.Set("number", "3")
	has(t, s.post("redrive", f).text, "the number typed is 3, and there are 2 now")
	f = s.form(s.page("/groups?group=inventory"), "redrive", `name="all"`)
	f.Set("number", "2")
	has(t, s.post("redrive", f).text, "2 records of the group will be retried")
}

// TestLive: an open overview is told of changes, until the dashboard is closed.
func TestLive(t *testing.T) {
	s := newShop(t)
	s.open()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/live", nil)
	s.must(err)
	a, err := s.client.Do(r)
	s.must(err)
	defer func() { s.must(a.Body.Close()) }()
	if a.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("content type %s", a.Header.Get("Content-Type"))
	}
	lines := newLines(a.Body)
	until := func(text string) {
		t.Helper()
		for line := range lines {
			if strings.HasPrefix(line, "data: ") && strings.Contains(line, text) {
				return
			}
		}
		t.Fatalf("the stream ends before it has %q", text)
	}
	until("Nothing needs attention.")
	s.write(event("OrderPlaced", ""))
	until("No relay is running: 1 event cannot be delivered")
	s.dash.Close()
	s.dash.Close()
	for range lines {
	}
}

package dashboard_test

import (
	"net/http"
	"testing"
)

// TestAudit: a change has the name of who made it, and its page shows it.
func TestAudit(t *testing.T) {
	s := newShop(t)
	s.cfg.Allow = anything
	ev := event("OrderPlaced", "")
	s.write(ev)
	s.kill(says("no such customer"))
	s.open()
	has(t, s.page("/audit"), "No change is recorded")
	f := s.form(s.page("/events/"+ev.ID.String()), "replay", `name="id"`)
	has(t, s.post("replay", f, "X-User", "alice <b>").text, "Replayed 1 event")
	has(t, s.page("/audit"), "alice &lt;b&gt;", "dashboard", "127.0.0.1:", "replay", ev.ID.String(), `<td class="n">1</td>`)
	has(t, s.page("/audit?actor=bob"), "No change is recorded", `value="bob"`)
	has(t, s.page("/audit?action=replay"), "alice")
	_, _, err := s.to.Add(t.Context(), "billing")
	s.must(err)
	for range 50 {
		s.must(s.to.Probe(t.Context(), "billing"))
	}
	page := s.page("/audit")
	lacks(t, page, "alice")
	has(t, page, "Older changes", "after_id=")
	if got := s.get("/audit?after_id=1"); got.status != http.StatusBadRequest {
		t.Errorf("a position that is not valid gives %d", got.status)
	}
}

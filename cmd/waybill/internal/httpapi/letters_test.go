package httpapi

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
)

// TestChangesByTimeAndError: a filter selects the dead letters that a request
// lists and changes, and a rate bounds how many a request changes.
func TestChangesByTimeAndError(t *testing.T) {
	b := newEnv(t)
	b.fill()
	first, err := b.relay.Outbox.Find(t.Context(), b.dead[0])
	if err != nil {
		t.Fatal(err)
	}
	text := first.LastError[1:]
	want := func(code int, answer string, parts ...string) {
		t.Helper()
		answer = strings.Join(strings.Fields(answer), " ")
		for _, part := range parts {
			if code != http.StatusOK || !strings.Contains(answer, part) {
				t.Errorf("%d %s, want %q", code, answer, part)
			}
		}
	}
	query := url.Values{"error": {text}, "until": {"2126-01-01T00:00:00Z"}, "since": {"2026-01-01T00:00:00Z"}}
	code, answer := b.call("GET", "/api/dead?"+query.Encode(), "", withToken)
	want(code, answer, b.dead[0].String(), b.dead[1].String())
	query.Set("since", "2125-01-01T00:00:00Z")
	code, answer = b.call("GET", "/api/dead?"+query.Encode(), "", withToken)
	want(code, answer, `"events": []`)
	if code, answer = b.call("GET", "/api/events?state=dead&since=now", "", withToken); code != http.StatusBadRequest {
		t.Errorf("since=now: %d %s", code, answer)
	}
	code, answer = b.call("POST", "/api/dead/replay", `{"error": `+strconv.Quote(text)+`, "rate": 0.001}`, withToken)
	want(code, answer, `"ids": [ "`+b.dead[0].String()+`" ]`, `"left": 1`)
	code, answer = b.call("POST", "/api/dead/discard", `{"since": "2026-01-01T00:00:00Z", "rate": 1000}`, withToken)
	want(code, answer, `"ids": [ "`+b.dead[1].String()+`" ]`, `"left": 0`)
}

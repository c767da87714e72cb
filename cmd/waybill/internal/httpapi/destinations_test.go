package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
)

// divert writes events and runs a relay with two destinations: billing receives
// all events, and partner refuses the first one.
func (b *env) divert(n int) []waybill.ID {
	b.t.Helper()
	evs := make([]waybill.Event, n)
	ids := make([]waybill.ID, n)
	for i := range evs {
		ids[i] = waybill.NewID()
		evs[i] = waybill.Event{ID: ids[i], Type: "OrderPlaced", AggregateType: "order", AggregateID: fmt.Sprint(i), Payload: []byte(`{"card": "4111"}`)}
	}
	if _, err := b.relay.Store.Send(b.t.Context(), evs...); err != nil {
		b.t.Fatal(err)
	}
	sink := func(refused waybill.ID) waybill.Sink {
		return relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
			if d.ID == refused {
				return waybill.Permanent(errors.New("never"))
			}
			return nil
		})
	}
	r, err := relay.NewTo(b.relay.Store, relay.Config{},
		relay.Destination{Name: "billing", Sink: sink(waybill.ID{})}, relay.Destination{Name: "partner", Sink: sink(ids[0]), OnDead: relay.Block})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		all, err := b.relay.Destinations.List(b.t.Context())
		if err != nil || time.Now().After(deadline) {
			b.t.Fatalf("%+v, %v", all, err)
		}
		delivered, err := b.relay.Outbox.Count(b.t.Context(), store.Delivered, store.Filter{})
		if err != nil {
			b.t.Fatal(err)
		}
		if len(all) == 2 && all[1].Dead == 1 && all[1].Waiting() == 0 && delivered == int64(n) {
			break
		}
	}
	stop()
	if err := <-done; err != nil {
		b.t.Fatal(err)
	}
	return ids
}

// want sends a request and checks its status and parts of its answer.
func (b *env) want(method, path, body string, status int, parts ...string) string {
	b.t.Helper()
	code, text := b.call(method, path, body, withToken)
	if code != status || !json.Valid([]byte(text)) {
		b.t.Fatalf("%s %s %s: %d, want %d: %s", method, path, body, code, status, text)
	}
	for _, part := range parts {
		if !strings.Contains(text, part) {
			b.t.Errorf("%s %s %s: %s, without %s", method, path, body, text, part)
		}
	}
	return text
}

// TestDestinations checks the routes of destinations, and the routes of the
// outbox on the backlog of one.
func TestDestinations(t *testing.T) {
	b := newEnv(t)
	b.want("GET", "/api/destinations", "", 200, `"destinations": []`)
	b.want("POST", "/api/destinations/billing/pause", "", 404, "the outbox has no destinations")
	if text := b.want("GET", "/api/stats", "", 200); strings.Contains(text, "destinations") {
		t.Errorf("stats without destinations: %s", text)
	}
	dead := b.divert(3)[0].String()
	b.want("GET", "/api/destinations", "", 200, `"name": "billing"`, `"name": "partner"`, `"dead": 1`)
	b.want("GET", "/api/stats", "", 200, `"name": "billing"`, `"name": "partner"`)
	b.want("GET", "/api/events/"+dead, "", 200, `"destination": "partner"`, `"last_error": "never"`, "delivered, but not to partner",
		`"reason": "dead"`, `"text": "It has been a dead letter at destination partner for `, `"waybill dead replay `+dead+` --destination partner"`)
	b.want("GET", "/api/events/01JZ3V8Q5R7M2N4P6S8T0W1X3Y", "", 404, `"error": "no such event: 01JZ3V8Q5R7M2N4P6S8T0W1X3Y"`, `"reason": "unknown"`, `"text": "It was never committed to these tables`)

	b.want("POST", "/api/destinations/partner/pause", `{"reason": "it moves"}`, 200, `"paused": true`)
	b.want("GET", "/api/destinations", "", 200, `"reason": "it moves"`, `"paused_at": `)
	b.want("POST", "/api/destinations/partner/pause", "", 200, `"paused": false`)
	b.want("POST", "/api/destinations/partner/resume", "", 200, `"resumed": true`)
	b.want("POST", "/api/destinations/partner/resume", "", 200, `"resumed": false`)
	b.want("POST", "/api/destinations/partner/probe", "", 200, `"probed": true`)
	b.want("GET", "/api/destinations", "", 200, `"probe_at": `)

	b.want("GET", "/api/dead", "", 200, `"events": []`)
	b.want("GET", "/api/dead?destination=partner", "", 200, dead)
	b.want("GET", "/api/events?state=dead&destination=partner", "", 200, dead)
	b.want("GET", "/api/blocked?destination=partner", "", 200, dead)
	ids := `{"ids": ["` + dead + `"]}`
	b.want("POST", "/api/blocked/unblock?destination=partner", ids, 200, dead)
	b.want("POST", "/api/dead/replay", ids, 200, `"ids": []`)
	b.want("POST", "/api/dead/replay?destination=billing", ids, 200, `"ids": []`)
	b.want("POST", "/api/dead/replay?destination=partner", ids, 200, dead)
	b.want("POST", "/api/dead/discard?destination=partner", ids, 200, `"ids": []`)

	for path, body := range map[string]string{
		"/api/destinations/partnr/pause":          "",
		"/api/destinations/partnr/resume":         "",
		"/api/destinations/partnr/probe":          "",
		"/api/dead/replay?destination=partnr":     ids,
		"/api/dead/discard?destination=":          ids,
		"/api/blocked/unblock?destination=partnr": ids,
		"/api/replay": `{"destination": "partnr"}`,
		"/api/destinations/partner/pause?relay=all": "",
	} {
		text := b.want("POST", path, body, 404)
		if !strings.Contains(path, "relay=") && !strings.Contains(text, "the outbox has billing, partner") {
			t.Errorf("%s: %s", path, text)
		}
	}
	b.want("POST", "/api/destinations/partner/pause", `{"because": "it moves"}`, 400, "unknown field")
	b.want("POST", "/api/destinations/partner/pause", `{"reason": "`+strings.Repeat("x", 4001)+`"}`, 400, "at most 4000")
}

// TestReplayOverHTTP continues a replay request by request.
func TestReplayOverHTTP(t *testing.T) {
	b := newEnv(t)
	b.divert(5)
	b.want("POST", "/api/replay", `{"destination": "billing", "dry_run": true}`, 200, `"matched": 5`, `"replayed": 0`, `"dry_run": true`)
	b.want("POST", "/api/replay", `{"destination": "billing", "types": ["Other"]}`, 200, `"matched": 0`)
	b.want("POST", "/api/replay", `{"destination": "billing", "aggregate_types": ["order"], "aggregate_id": "3", "tenants": [""], "since": "2026-01-01T00:00:00Z", "dry_run": true}`,
		200, `"matched": 1`)
	in := replayRequest{Destination: "billing", Limit: 2}
	var sum int64
	for requests := 1; ; requests++ {
		body, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		var out view.Replay
		if err := json.Unmarshal([]byte(b.want("POST", "/api/replay", string(body), 200)), &out); err != nil {
			t.Fatal(err)
		}
		sum += out.Replayed
		if out.Next == nil {
			if sum != 5 || requests != 3 {
				t.Errorf("%d events in %d requests", sum, requests)
			}
			break
		}
		in.After, in.Until = out.Next, out.Until
	}
	b.want("GET", "/api/events?state=ready&destination=billing", "", 200, `"replay": 1`)
	for what, body := range map[string]string{
		"no destination":      `{}`,
		"a misspelt field":    `{"destination": "billing", "typ": ["A"]}`,
		"a negative limit":    `{"destination": "billing", "limit": -1}`,
		"a large limit":       `{"destination": "billing", "limit": 10001}`,
		"a time without zone": `{"destination": "billing", "since": "2026-01-31T10:00:00"}`,
		"the future":          `{"destination": "billing", "since": "2999-01-31T10:00:00Z"}`,
		"exchanged times":     `{"destination": "billing", "since": "2026-01-31T10:00:00Z", "until": "2026-01-30T10:00:00Z"}`,
		"after without until": `{"destination": "billing", "after": {"at": "2026-01-31T10:00:00Z", "id": "` + waybill.NewID().String() + `"}}`,
		"after without id":    `{"destination": "billing", "until": "2026-01-31T10:00:00Z", "after": {"at": "2026-01-31T10:00:00Z", "id": "x"}}`,
		"no body":             ``,
	} {
		if code, text := b.call("POST", "/api/replay", body, withToken); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", what, code, text)
		}
	}
}

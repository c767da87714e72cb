package shop

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestDashboard: the demo prints the address of its dashboard, which shows the
// tables of the shop to clients of this machine.
func TestDashboard(t *testing.T) {
	var out buffer
	cfg := Config{Line: &Webhooks{}, Out: &out}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	w, err := open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}()
	w.screen.begin(w)
	if address := w.url + "/dashboard/"; !strings.Contains(out.String(), "dashboard: "+address) {
		t.Errorf("the output has no %s:\n%s", address, out.String())
	}
	get := func(path, host string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/dashboard/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if host != "" {
			r.Host = host
		}
		a, err := w.customers.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(a.Body)
		if err = errors.Join(err, a.Body.Close()); err != nil {
			t.Fatal(err)
		}
		return a.StatusCode, string(text)
	}
	for path, want := range map[string]string{
		"": "Backlog of each destination", "dead": "No dead letters", "events": "Events", "destinations": "courier", "blocked": "No aggregate is blocked", "groups": "Consumer groups",
		"relays": "Live relays", "keys": "In progress",
	} {
		// The relay registers its destinations with its first heartbeat.
		for deadline := time.Now().Add(20 * time.Second); ; {
			status, text := get(path, "")
			if status == http.StatusOK && strings.Contains(text, want) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("/dashboard/%s: status %d: %s", path, status, text)
			}
		}
	}
	if status, _ := get("", "evil.example:80"); status != http.StatusForbidden {
		t.Errorf("another host: status %d", status)
	}
}

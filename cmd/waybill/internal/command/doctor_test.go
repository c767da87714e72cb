package command_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/cmd/waybill/internal/command"
	"github.com/waybillhq/waybill/cmd/waybill/internal/doctor"
	"github.com/waybillhq/waybill/cmd/waybill/internal/httpapi"
	"github.com/waybillhq/waybill/internal/docblock"
)

// TestDoctorDocs checks that docs/cli.md lists the checks and the routes.
// -update writes them.
func TestDoctorDocs(t *testing.T) {
	path := filepath.Join(docblock.Root(t), "docs", "cli.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := strings.ReplaceAll(string(text), "\r\n", "\n")
	var checks, routes strings.Builder
	checks.WriteString("| check | of | looks at | wants |\n|---|---|---|---|\n")
	for _, c := range doctor.Table() {
		fmt.Fprintf(&checks, "| %s | %s | %s | %s |\n", c.Name, c.For, c.Looks, c.Wants)
	}
	routes.WriteString("| route | token | what it does |\n|---|---|---|\n")
	for _, r := range httpapi.Routes() {
		fmt.Fprintf(&routes, "| `%s %s` | %s | %s |\n", r.Method, r.Path, r.Token, r.Help)
	}
	want := between(t, between(t, page, "checks", checks.String()), "http", routes.String())
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if want != page {
		t.Error("docs/cli.md differs from the program; go test ./internal/command -run TestDoctorDocs -update writes it")
	}
}

// TestDoctorOnEveryStore checks that a fresh store has no failures, the exit
// codes with and without --strict, and the JSON.
func TestDoctorOnEveryStore(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres", "mysql", "mariadb"} {
		t.Run(kind, func(t *testing.T) {
			s := newScript(t, kind)
			if out, _, code := s.run(t.Context(), []string{"doctor", "--sink", "log:", "--json"}, ""); code != command.Failed || !strings.Contains(out, "waybill migrate up") {
				t.Errorf("without tables: %d %s", code, out)
			}
			s.fixture([]string{"tables"}, "")
			out, errs, code := s.run(t.Context(), []string{"doctor", "--sink", "log:", "--json"}, "")
			var got struct {
				Relays []struct{ Findings []doctor.Finding }
			}
			if err := json.Unmarshal([]byte(out), &got); err != nil || code != command.Ok {
				t.Fatalf("%d %v: %s%s", code, err, out, errs)
			}
			for _, f := range got.Relays[0].Findings {
				if f.Status == doctor.Fail {
					t.Errorf("%+v", f)
				}
			}
			if _, _, code := s.run(t.Context(), []string{"doctor", "--sink", "log:", "--strict"}, ""); code != command.Failed {
				t.Errorf("strict, and no relay is alive: %d", code)
			}
		})
	}
}

// TestServeAnswersHTTP checks health, readiness after the first read, and
// metrics with the configured prefix.
func TestServeAnswersHTTP(t *testing.T) {
	s := newScript(t, "sqlite")
	d := serve(t, s.environ, "--sink", "log:", "--metrics-prefix", "orders", "--http-token", canary, "--relay-poll-interval", "50ms")
	at := ""
	waitFor(t, "the address", func() bool {
		_, rest, ok := strings.Cut(d.err.String(), "HTTP API started\" component=http address=")
		at, _, _ = strings.Cut(rest, " ")
		return ok && at != ""
	})
	waitFor(t, "readiness", func() bool { code, _ := get(t, at, "/readyz"); return code == 200 })
	if _, errs, code := s.run(t.Context(), []string{"send", "OrderPlaced"}, ""); code != 0 {
		t.Fatal(errs)
	}
	waitFor(t, "the delivery to be counted", func() bool {
		_, text := get(t, at, "/metrics")
		if strings.Contains(text, canary) {
			t.Error("the token is in the metrics")
		}
		return strings.Contains(text, "orders_published_total") || strings.Contains(text, "orders_") && strings.Contains(text, `OrderPlaced`)
	})
	for _, path := range []string{"/healthz", "/readyz", "/api/stats", "/api/dead", "/api/blocked", "/api/inbox", "/api/keys", "/api/events?state=delivered"} {
		if code, text := get(t, at, path); code != 200 || strings.Contains(text, canary) {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	d.end(t)
}

// TestServeRefusesToExposeItself checks that any address but loopback requires
// a token and a certificate.
func TestServeRefusesToExposeItself(t *testing.T) {
	s := newScript(t, "sqlite")
	for _, extra := range [][]string{nil, {"--http-token", canary}} {
		args := append([]string{"serve", "--sink", "log:", "--http-listen", "0.0.0.0:0"}, extra...)
		_, errs, code := s.run(t.Context(), args, "")
		if code != command.Usage || !strings.Contains(errs, "accessible from the network") || !strings.Contains(errs, "(hint: ") {
			t.Errorf("%v: %d %s", extra, code, errs)
		}
	}
	if _, err := os.Stat("waybill.db"); err == nil {
		t.Error("tables were created before the refusal")
	}
}

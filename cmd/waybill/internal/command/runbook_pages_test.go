//go:build linux || darwin

package command_test

import (
	"context"
	"encoding/json"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"time"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/dashboard"
)

// board opens the dashboard of the outbox.
func (b *broken) board() *dashboard.Dashboard {
	b.t.Helper()
	cfg := dashboard.Config{Logger: slog.New(slog.DiscardHandler), Doctor: b.findings, QueryTimeout: time.Minute}
	var err error
	cfg.Outbox, err = admin.NewOutbox(b.st, admin.Config{})
	b.must(err)
	cfg.Destinations, err = admin.NewDestinations(b.st, admin.Config{})
	b.must(err)
	cfg.Inbox, err = admin.NewInbox(b.st, admin.Config{})
	b.must(err)
	cfg.Keys, err = admin.NewKeys(b.st, admin.Config{})
	b.must(err)
	cfg.Jobs, err = admin.NewJobs(b.st, admin.Config{})
	b.must(err)
	d, err := dashboard.New(cfg)
	b.must(err)
	return d
}

// findings returns those of waybill doctor, with the settings of the script.
func (b *broken) findings(ctx context.Context) ([]dashboard.Finding, error) {
	out, _, _ := b.run(ctx, []string{"doctor", "--json"}, "")
	var v struct {
		Relays []struct {
			Findings []struct{ Check, Status, Finding, Type string }
		}
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		return nil, err
	}
	var all []dashboard.Finding
	for _, f := range v.Relays[0].Findings {
		all = append(all, dashboard.Finding{Check: f.Check, Status: f.Status, Text: f.Finding, Command: f.Type})
	}
	return all, nil
}

var tag = regexp.MustCompile(`(?s)<title>.*?</title>|<[^>]*>`)

// shows opens a page of the dashboard, and expects the cause in its text.
func (b *broken) shows(path string, causes ...string) {
	b.t.Helper()
	d := b.board()
	defer d.Close()
	w := httptest.NewRecorder()
	d.ServeHTTP(w, httptest.NewRequestWithContext(b.t.Context(), http.MethodGet, path, nil))
	text := strings.Join(strings.Fields(html.UnescapeString(tag.ReplaceAllString(w.Body.String(), " "))), " ")
	if w.Code != http.StatusOK {
		b.t.Fatalf("%s: status %d: %s", path, w.Code, text)
	}
	b.pages = append(b.pages, path)
	for _, cause := range causes {
		if !strings.Contains(text, cause) {
			b.t.Errorf("%s does not say %q: %s", path, cause, text)
		}
	}
}

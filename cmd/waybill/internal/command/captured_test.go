package command_test

import (
	"strings"
	"testing"

	"github.com/waybillhq/waybill/cmd/waybill/internal/command"
)

// TestServeReportsNoBacklogOfACapturedOutbox checks that the gauges of backlog
// alerts are absent if change data capture reads the outbox, because events
// stay there for days, and that the explaining gauges are present.
func TestServeReportsNoBacklogOfACapturedOutbox(t *testing.T) {
	s := newScript(t, "sqlite")
	if _, errs, code := s.run(t.Context(), []string{"migrate", "up"}, ""); code != command.Ok {
		t.Fatal(errs)
	}
	if _, errs, code := s.run(t.Context(), []string{"send", "A", "--payload", "1"}, ""); code != command.Ok {
		t.Fatal(errs)
	}
	d := serve(t, s.environ, "--relay-enabled=false", "--cdc-enabled", "--metrics-interval", "10ms")
	page := func() string {
		_, rest, there := strings.Cut(d.err.String(), "address=")
		if !there {
			return ""
		}
		_, text := get(t, strings.Fields(rest)[0], "/metrics")
		return text
	}
	waitFor(t, "the outbox to be counted", func() bool { return strings.Contains(page(), "\nwaybill_captured 1\n") })
	text := page()
	for _, name := range []string{"waybill_backlog", "waybill_backlog_oldest_seconds", "waybill_lanes_owned"} {
		if strings.Contains(text, "\n"+name) {
			t.Errorf("%s is reported for an outbox without a relay:\n%s", name, text)
		}
	}
	d.end(t)
}

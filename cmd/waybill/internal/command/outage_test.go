//go:build linux || darwin

package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/private"
)

// TestServeLogsAnOutageOnce checks that during an outage of the database each
// component logs the outage once, and the recovery once, independent of the
// number of retries. The intervals are the defaults.
func TestServeLogsAnOutageOnce(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		parts []string // components that retry every few seconds
	}{
		"relay": {[]string{"--sink", "log:", "--inbox-retry"}, []string{"the database", "inbox retry", "the reconciler's database", "counting"}},
		"cdc":   {[]string{"--relay-enabled=false", "--cdc-enabled"}, []string{"maintaining a captured outbox", "the reconciler's database", "counting"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := private.Start(t, testserver.PostgresName)
			file := filepath.Join(t.TempDir(), "waybill.yaml")
			job := "jobs:\n  orders: {every: 1s, type: OrderPlaced, aggregate-type: order, sql: \"SELECT 'o-1' AS aggregate_id, '{}' AS payload WHERE $1::timestamptz > $2::timestamptz\"}\n"
			if err := os.WriteFile(file, []byte(job), 0o600); err != nil {
				t.Fatal(err)
			}
			d := serve(t, []string{"WAYBILL_STORE=" + server.DSN, "WAYBILL_LOG_LEVEL=debug", "WAYBILL_CONFIG=" + file}, c.args...)
			said := func(text string) int { return strings.Count(d.err.String(), text) }
			waitFor(t, "serve to start", func() bool {
				return said("msg=serving") == 1 && said("job=orders") > 0 && (name == "cdc" || said("lanes acquired") > 0)
			})
			before := loud(d.err.String())
			if err := server.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, part := range c.parts {
				again := 2
				if part == "counting" { // every 10 s
					again = 1
				}
				waitFor(t, part+" to fail again", func() bool { return said(part+" fails again") >= again })
			}
			if err := server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, part := range c.parts {
				waitFor(t, part+" to work again", func() bool { return said(part+" recovered") == 1 })
			}
			lines := loud(d.err.String())[len(before):]
			d.end(t)
			// In addition: a lapsed lease, a run of the job that was not
			// released, and components that run every few minutes: purging, the
			// key cleaner.
			if limit := len(c.parts) + 4; len(lines) > limit {
				t.Errorf("%d lines about one outage, want at most %d:\n%s", len(lines), limit, strings.Join(lines, "\n"))
			}
			for _, part := range c.parts {
				if n := said(part + " fails and is retried"); n != 1 {
					t.Errorf("%s: %d lines about the failure", part, n)
				}
			}
		})
	}
}

// loud returns the lines of a log at WARN and ERROR.
func loud(log string) []string {
	var out []string
	for line := range strings.Lines(log) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

//go:build linux || darwin

package command_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/cmd/waybill/internal/command"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/private"
)

// TestThroughAPooler checks that serve, send, stats and doctor work through
// PgBouncer in transaction mode, with the settings of docs/operating.md.
func TestThroughAPooler(t *testing.T) {
	own := testserver.Postgres(t)
	for name, address := range map[string]func(t *testing.T) string{
		"exec": func(t *testing.T) string {
			return private.PgBouncer(t, own, "transaction") + "&default_query_exec_mode=exec"
		},
		"max_prepared_statements": func(t *testing.T) string {
			return private.NewPgBouncer(t, own, "transaction", "max_prepared_statements = 200")
		},
	} {
		t.Run(name, func(t *testing.T) {
			through := address(t) // before the script changes its folder
			s := newScript(t, "postgres")
			s.environ = append(s.environ, "WAYBILL_STORE="+through, "WAYBILL_STORE_LISTEN_URL="+own)
			d := serve(t, s.environ, "--sink", "log:", "--relay-poll-interval", "1h") // only a notification delivers the event in time
			waitFor(t, "the tables", func() bool {
				_, _, code := s.run(t.Context(), []string{"stats"}, "")
				return code == command.Ok
			})
			for i := range 20 {
				if _, errs, code := s.run(t.Context(), []string{"send", "OrderPlaced", "--aggregate", fmt.Sprint(i % 3), "--aggregate-type", "order"}, ""); code != command.Ok {
					t.Fatal(errs)
				}
				waitFor(t, "the event to be printed", func() bool { return strings.Count(d.out.String(), `"type":"OrderPlaced"`) == i+1 })
			}
			out, errs, code := s.run(t.Context(), []string{"doctor", "--sink", "log:"}, "")
			if code != command.Ok || !strings.Contains(strings.Join(strings.Fields(out), " "), "through a pooler in transaction mode, and store.listen-url leads to the server") {
				t.Errorf("doctor ended with %d:\n%s%s", code, out, errs)
			}
			d.end(t)
		})
	}
}

package command

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// TestTheLogIsScrubbed checks log lines of clients in both formats.
func TestTheLogIsScrubbed(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		a := &app{Streams: Streams{Err: &out}, scrubber: settings.NewScrubber(settings.NewSecret("nats://u:c4nary-Passw0rd@h"))}
		a.logger(settings.Log{Level: "info", Format: format}).Info("dialing nats://u:c4nary-Passw0rd@h", slog.String("with", "c4nary-Passw0rd"))
		if strings.Contains(out.String(), "c4nary") || !strings.Contains(out.String(), "dialing nats://u:xxxxx@h") {
			t.Errorf("%s: %s", format, out.String())
		}
	}
}

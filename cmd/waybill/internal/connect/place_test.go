package connect

import (
	"errors"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// TestErrorsDoNotQuoteTheURL checks the errors without the scrubber.
func TestErrorsDoNotQuoteTheURL(t *testing.T) {
	const canary = "c4nary-Passw0rd"
	for _, text := range []string{"postgres://u:" + canary, "mysql://u:" + canary, "postgres://u:%zz" + canary + "@h/x", canary, canary + "://x", "odd://u:" + canary + "@h"} {
		_, err := OpenStore(t.Context(), settings.Store{URL: settings.NewSecret(text)}, false)
		if !errors.Is(err, ErrBadURL) || strings.Contains(err.Error(), canary) {
			t.Errorf("%v", err)
		}
		if err := CheckSink(settings.Sink{URL: settings.NewSecret(text)}); !errors.Is(err, ErrBadURL) || strings.Contains(err.Error(), canary) {
			t.Errorf("%v", err)
		}
	}
}

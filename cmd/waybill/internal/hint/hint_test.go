package hint_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
)

func TestNearest(t *testing.T) {
	names := []string{"relay.workers", "relay.lease", "store.url", "sink.url", "enabled"}
	for wrong, want := range map[string]string{
		"relay.worker": "relay.workers", "realy.workers": "relay.workers", "stroe.url": "store.url", "enabeld": "enabled",
		"relay.leese": "relay.lease", "nothing.like.it": "", "": "",
	} {
		if got := hint.Nearest(wrong, names); got != want {
			t.Errorf("nearest to %q is %q, want %q", wrong, got, want)
		}
	}
}

func TestAHintSurvivesWrapping(t *testing.T) {
	cause := errors.New("connection refused")
	err := fmt.Errorf("while starting: %w", hint.New("start the server", "no answer: %w", cause))
	if hint.Of(err) != "start the server" || !errors.Is(err, cause) || err.Error() != "while starting: no answer: connection refused" {
		t.Errorf("%v, hint %q", err, hint.Of(err))
	}
	if got := hint.Of(cause); got != "" {
		t.Errorf("an error without a hint has %q", got)
	}
}

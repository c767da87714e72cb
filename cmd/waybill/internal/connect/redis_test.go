package connect_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testserver"
)

// TestRedisReplicas: replicas=N of a URL is what the sink waits for.
func TestRedisReplicas(t *testing.T) {
	address := testserver.Redis(t)
	deliver := func(query string) error {
		s, err := connect.OpenSink(t.Context(), connect.SinkConfig{Sink: settings.Sink{URL: settings.NewSecret(address + query)}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		d := waybill.Delivery{Event: eventfill.Defaults(waybill.NewEvent("replicas", 1)), Attempt: 1}
		return errors.Join(s.Deliver(t.Context(), []waybill.Delivery{d})[0], s.Close())
	}
	for _, query := range []string{"", "?replicas=0"} {
		if err := deliver(query); err != nil {
			t.Errorf("%q: %v", query, err)
		}
	}
	if err := deliver("?replicas=1"); err == nil || !strings.Contains(err.Error(), "0 of 1 replicas have received the event") {
		t.Errorf("replicas=1: %v", err)
	}
	for _, text := range []string{"-1", "6", "one"} {
		if err := deliver("?replicas=" + text); !errors.Is(err, connect.ErrBadURL) || !strings.Contains(err.Error(), "is not a number from 0 to 5") {
			t.Errorf("replicas=%s: %v", text, err)
		}
	}
}

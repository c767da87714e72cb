package connect_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill/broker/natsembed"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// TestReplicas: replicas=N applies to a stream that create=true creates, and
// nothing else is accepted.
func TestReplicas(t *testing.T) {
	server, err := natsembed.Start(t.Context(), natsembed.Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	open := func(address string) error {
		s, err := connect.OpenSink(t.Context(), connect.SinkConfig{Sink: settings.Sink{URL: settings.NewSecret(address)}, Logger: slog.New(slog.DiscardHandler)})
		if err == nil {
			err = s.Close()
		}
		return err
	}
	for query, want := range map[string]string{
		"create=true&replicas=0":  "replicas=0 is not a number from 1 to 5",
		"create=true&replicas=6":  "replicas=6 is not a number from 1 to 5",
		"create=true&replicas=3x": "replicas=3x is not a number from 1 to 5",
		"replicas=3":              "replicas applies to a stream that create=true creates",
		"create=no&replicas=3":    "replicas applies to a stream that create=true creates",
	} {
		if err := open(server.URL() + "/one?" + query); !errors.Is(err, connect.ErrBadURL) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", query, err)
		}
	}
	// A server on its own cannot keep three replicas.
	if err := open(server.URL() + "/three?create=true&replicas=3"); err == nil || !strings.Contains(err.Error(), "replicas > 1 not supported in non-clustered mode") {
		t.Errorf("replicas=3: %v", err)
	}
	if err := open(server.URL() + "/one?create=true&replicas=1"); err != nil {
		t.Fatal(err)
	}
	conn, err := nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := js.Stream(t.Context(), "one"); err != nil || s.CachedInfo().Config.Replicas != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := js.Stream(t.Context(), "three"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("a stream was created without its replicas: %v", err)
	}
}

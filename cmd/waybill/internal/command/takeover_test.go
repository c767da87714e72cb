package command_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/command"
	"github.com/waybillhq/waybill/relay"
)

// service is a service with a relay of the library in its process.
func service(t *testing.T, s *script) (stop func()) {
	t.Helper()
	st := s.open()
	r, err := relay.New(st, relay.SinkFunc(func(context.Context, waybill.Delivery) error { return nil }), relay.Config{PollInterval: 20 * time.Millisecond})
	s.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	_, err = st.Send(ctx, waybill.NewEvent("First", 1))
	s.must(err)
	waitFor(t, "the service to deliver its first event", func() bool {
		out, _, _ := s.run(t.Context(), []string{"list", "--state", "delivered"}, "")
		return strings.Contains(out, "First")
	})
	return func() {
		cancel()
		s.must(<-done)
		s.must(st.Close())
	}
}

// refusedServe runs serve, which must end with an error that contains every
// text of want.
func refusedServe(t *testing.T, s *script, want []string, args ...string) {
	t.Helper()
	_, errs, code := s.run(t.Context(), append([]string{"serve", "--http-enabled=false"}, args...), "")
	if code == command.Ok {
		t.Errorf("serve %v ended with 0:\n%s", args, errs)
	}
	for _, text := range want {
		if !strings.Contains(errs, text) {
			t.Errorf("serve %v does not report %q:\n%s", args, text, errs)
		}
	}
}

// TestServeDoesNotDrainAService checks that serve does not deliver the outbox
// of a service with its own relay, running or stopped, unless the operator
// permits it.
func TestServeDoesNotDrainAService(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres", "mysql", "mariadb"} {
		t.Run(kind, func(t *testing.T) {
			s := newScript(t, kind)
			stop := service(t, s)
			refusedServe(t, s, nil)
			refusedServe(t, s, nil, "--sink", "log:")
			refusedServe(t, s, []string{"stop every waybill serve"}, "--sink", "log:", "--relay-name", "relay", "--take-over")
			stop()
			if _, errs, code := s.run(t.Context(), []string{"send", "Pending"}, ""); code != command.Ok {
				t.Fatal(errs)
			}
			refusedServe(t, s, []string{"no sink is configured", "WAYBILL_SINK"})
			refusedServe(t, s, []string{"in-process (relay relay)", "--take-over"}, "--sink", "log:")
			refusedServe(t, s, []string{"in-process (relay relay)"}, "--sink", "log:", "--relay-name", "relay")
			refusedServe(t, s, []string{"in-process (relay relay)"}, "--sink", "nats:embedded")
			if _, err := os.Stat("waybill-jetstream"); err == nil {
				t.Error("a refused serve has started a broker")
			}
			if out, errs, _ := s.run(t.Context(), []string{"list", "--state", "ready"}, ""); !strings.Contains(out, "Pending") {
				t.Fatalf("the event is not pending any more:\n%s%s", out, errs)
			}
			d := serve(t, s.environ, "--sink", "log:", "--take-over")
			waitFor(t, "the event to be printed", func() bool { return strings.Contains(d.out.String(), "Pending") })
			d.end(t)
			if !strings.Contains(d.err.String(), "took over the outbox") {
				t.Errorf("the log does not report the take-over:\n%s", d.err.String())
			}
			d = serve(t, s.environ, "--sink", "log:payload") // the same sink
			waitFor(t, "serving", func() bool { return strings.Contains(d.err.String(), "lanes acquired") })
			d.end(t)
		})
	}
}

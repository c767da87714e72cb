package command_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/webhook"
	"github.com/waybillhq/waybill/internal/testserver"
)

// TestServeSignsTheWholeEvent checks that a webhook is signed as a whole and
// accepted by the library's receiver. With sink.unsigned-attributes, by flag,
// variable or file, it is sent in binary mode, which a receiver accepts only on
// request.
func TestServeSignsTheWholeEvent(t *testing.T) {
	const secret = "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"
	for name, c := range map[string]struct {
		environ, args []string
		file          string
		binary        bool
	}{
		"structured": {},
		"flag":       {args: []string{"--sink-unsigned-attributes"}, binary: true},
		"variable":   {environ: []string{"WAYBILL_SINK_UNSIGNED_ATTRIBUTES=true"}, binary: true},
		"file":       {file: "sink:\n  unsigned-attributes: true\n", binary: true},
	} {
		t.Run(name, func(t *testing.T) {
			type request struct{ id, kind string }
			taken, refused := make(chan request, 16), make(chan int, 16)
			consumer := consumerFunc(func(_ context.Context, batch []waybill.Delivery) []error {
				for _, d := range batch {
					taken <- request{id: d.ID.String(), kind: d.Type}
				}
				return make([]error, len(batch))
			})
			receive := func(cfg webhook.ReceiverConfig) http.Handler {
				cfg.Secrets = []string{secret}
				r, err := webhook.NewReceiver(consumer, cfg)
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			asked, strict := receive(webhook.ReceiverConfig{UnsignedAttributes: c.binary}), receive(webhook.ReceiverConfig{})
			types := make(chan string, 16)
			hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				types <- r.Header.Get("Content-Type")
				if c.binary {
					again, seen := r.Clone(r.Context()), httptest.NewRecorder()
					again.Body = io.NopCloser(bytes.NewReader(body))
					strict.ServeHTTP(seen, again)
					refused <- seen.Code
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				asked.ServeHTTP(w, r)
			}))
			defer hook.Close()
			s := newScript(t, "sqlite")
			args := append([]string{"--sink", hook.URL + "/hook", "--sink-secret", secret, "--relay-poll-interval", "50ms"}, c.args...)
			if c.file != "" {
				path := filepath.Join(t.TempDir(), "waybill.yaml")
				if err := os.WriteFile(path, []byte(c.file), 0o600); err != nil {
					t.Fatal(err)
				}
				args = append(args, "--config", path)
			}
			d := serve(t, append(slices.Clone(s.environ), c.environ...), args...)
			waitFor(t, "serving", func() bool { return strings.Contains(d.err.String(), "msg=serving") })
			out, errs, code := s.run(t.Context(), []string{"send", "Placed", "--json"}, "")
			var sent struct{ ID string }
			if err := json.Unmarshal([]byte(out), &sent); err != nil || code != 0 {
				t.Fatal(err, errs)
			}
			if got := <-taken; got.id != sent.ID || got.kind != "Placed" {
				t.Errorf("the receiver accepted %+v, want %s", got, sent.ID)
			}
			if got := <-types; strings.HasPrefix(got, "application/cloudevents+json") == c.binary {
				t.Errorf("sent as %s", got)
			}
			if c.binary {
				if got := <-refused; got/100 != 4 {
					t.Errorf("a receiver that requires a full signature answers %d", got)
				}
			}
			d.end(t)
		})
	}
}

// consumerFunc is a consumer.
type consumerFunc func(ctx context.Context, batch []waybill.Delivery) []error

func (f consumerFunc) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return f(ctx, batch)
}

// TestServeDeliversToEverySink checks that an event reaches each of the six
// sinks with only a URL.
func TestServeDeliversToEverySink(t *testing.T) {
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer hook.Close()
	with := func(address, query string) string {
		if strings.Contains(address, "?") {
			return address + "&" + query
		}
		return address + "?" + query
	}
	for name, address := range map[string]func(t *testing.T) string{
		"nats":    func(*testing.T) string { return "nats:embedded?listen=127.0.0.1:-1" },
		"kafka":   func(t *testing.T) string { return "kafka://" + testserver.Kafka(t) + "?create=true" },
		"amqp":    func(t *testing.T) string { return with(testserver.RabbitMQ(t), "create=true&queues=true") },
		"redis":   func(t *testing.T) string { return testserver.Redis(t) },
		"pulsar":  func(t *testing.T) string { return testserver.Pulsar(t) + "/public/default?subscriptions=billing" },
		"webhook": func(*testing.T) string { return hook.URL + "/hook" },
	} {
		t.Run(name, func(t *testing.T) {
			url := address(t)
			s := newScript(t, "sqlite")
			kind := "Placed" + waybill.NewID().String()
			d := serve(t, s.environ, "--sink", url, "--sink-secret", "unsigned", "--relay-poll-interval", "50ms")
			waitFor(t, "serving", func() bool { return strings.Contains(d.err.String(), "msg=serving") })
			out, errs, code := s.run(t.Context(), []string{"send", kind, "--json"}, "")
			var sent struct{ ID string }
			if err := json.Unmarshal([]byte(out), &sent); err != nil || code != 0 {
				t.Fatal(err, errs)
			}
			waitFor(t, "the event to be delivered", func() bool {
				out, _, _ := s.run(t.Context(), []string{"show", sent.ID, "--json"}, "")
				return strings.Contains(out, `"state": "delivered"`)
			})
			d.end(t)
		})
	}
}

package command_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
)

// TestServeDeliversToEverySink: an event reaches each of the six by nothing but a URL.
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
		"amqp":    func(t *testing.T) string { return with(testserver.RabbitMQ(t), "declare=true&queues=true") },
		"redis":   func(t *testing.T) string { return testserver.Redis(t) },
		"pulsar":  func(t *testing.T) string { return testserver.Pulsar(t) + "/public/default?subscriptions=billing" },
		"webhook": func(*testing.T) string { return hook.URL + "/hook" },
	} {
		t.Run(name, func(t *testing.T) {
			url := address(t)
			s := newScript(t, "sqlite")
			kind := "Placed" + waybill.NewID().String()
			d := serve(t, s.environ, "--sink", url, "--sink-secret", "unsigned", "--relay-poll", "50ms")
			waitFor(t, "serving", func() bool { return strings.Contains(d.err.String(), "waybill: serving") })
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

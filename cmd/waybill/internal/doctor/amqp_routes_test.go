package doctor

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// TestRoutes finds routing keys that reach no queue, with answers of RabbitMQ's
// management API.
func TestRoutes(t *testing.T) {
	const queue, other = `"destination_type": "queue"`, `"destination_type": "exchange"`
	bindings := map[string]string{
		"fan":     `{` + queue + `, "routing_key": ""}`,
		"unbound": ``,
		"topics":  `{` + queue + `, "routing_key": "order.*"}, {` + queue + `, "routing_key": "bill.#"}, {` + queue + `, "routing_key": "#.done"}`,
		"direct":  `{` + queue + `, "routing_key": "OrderPlaced"}`,
		"chained": `{` + other + `, "routing_key": ""}`,
		"headers": `{` + queue + `, "routing_key": ""}`,
	}
	kinds := map[string]string{"fan": "fanout", "unbound": "fanout", "topics": "topic", "direct": "direct", "chained": "fanout", "headers": "headers"}
	var bound atomic.Bool // the exchange unbound has a queue
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, more, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/api/exchanges/%2Fshop/"), "/")
		user, password, _ := r.BasicAuth()
		switch kind := kinds[strings.TrimSuffix(name, "-2")]; {
		case user != "relay" || password != "secret":
			w.WriteHeader(http.StatusUnauthorized)
		case kind == "" || r.Method != http.MethodGet:
			w.WriteHeader(http.StatusNotFound)
		case more == "bindings/source" && name == "unbound" && bound.Load():
			fmt.Fprintf(w, "[%s]", bindings["fan"])
		case more == "bindings/source":
			fmt.Fprintf(w, "[%s]", bindings[strings.TrimSuffix(name, "-2")])
		case strings.HasSuffix(name, "-2"):
			fmt.Fprintf(w, `{"type": %q, "arguments": {"alternate-exchange": "rest"}}`, kind)
		default:
			fmt.Fprintf(w, `{"type": %q, "arguments": {}}`, kind)
		}
	}))
	defer server.Close()
	u, err := url.Parse("amqp://relay:secret@localhost//shop")
	if err != nil {
		t.Fatal(err)
	}
	api, err := managementOf(u)
	if err != nil || api.base != "http://localhost:15672" {
		t.Fatal(api.base, err)
	}
	api.base = server.URL
	for _, c := range []struct {
		exchange, key string
		want          Status
		text          string
	}{
		{"fan", "x", OK, "1 routing keys"},
		{"unbound", "OrderPlaced", Fail, "no queue is bound to exchange unbound with the key OrderPlaced"},
		{"topics", "order.placed", OK, ""},
		{"topics", "order", Fail, ""},
		{"topics", "order.placed.twice", Fail, ""},
		{"topics", "bill", OK, ""},
		{"topics", "bill.paid.late", OK, ""},
		{"topics", "all.is.done", OK, ""},
		{"topics", "done.all", Fail, ""},
		{"direct", "OrderPlaced", OK, ""},
		{"direct", "OrderShipped", Fail, ""},
		{"direct-2", "OrderShipped", NotChecked, "direct-2"},
		{"direct-2", "OrderPlaced", OK, ""},
		{"chained", "x", NotChecked, "another exchange"},
		{"headers", "x", NotChecked, "by headers"},
		{"missing", "x", NotChecked, "status 404"},
	} {
		f := api.routes(t.Context(), []amqpPlace{{c.exchange, c.key}})
		if f.Status != c.want || !strings.Contains(f.Text, c.text) {
			t.Errorf("%s %s: %s, %s; want %s, %q", c.exchange, c.key, f.Status, f.Text, c.want, c.text)
		}
	}
	both := api.routes(t.Context(), []amqpPlace{{"fan", "x"}, {"chained", "x"}, {"unbound", "x"}})
	if both.Status != Fail || !strings.Contains(both.Text, "unbound") {
		t.Errorf("three exchanges: %+v", both)
	}
	c := Table()[slices.IndexFunc(Table(), func(c Check) bool { return c.Name == "rabbitmq routing" })]
	w := &ward{t: t}
	w.saw(c, api.routes(t.Context(), []amqpPlace{{"unbound", "x"}}))
	bound.Store(true)
	if f := api.routes(t.Context(), []amqpPlace{{"unbound", "x"}}); f.Status != OK {
		t.Errorf("with a binding: %+v", f)
	}
	w.fixed(c)
	api.user = url.UserPassword("relay", "wrong")
	if f := api.routes(t.Context(), []amqpPlace{{"fan", "x"}}); f.Status != NotChecked || !strings.Contains(f.Text, "status 401") {
		t.Errorf("with another password: %+v", f)
	}
	secure, err := url.Parse("amqps://[::1]:5671/")
	if err != nil {
		t.Fatal(err)
	}
	if api, err := managementOf(secure); err != nil || api.base != "https://[::1]:15671" || api.vhost != "/" {
		t.Errorf("the API of %s is at %s, vhost %s, %v", secure, api.base, api.vhost, err)
	}
}

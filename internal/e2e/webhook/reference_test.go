package webhook_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/webhook"
	"github.com/waybillhq/waybill/internal/eventfill"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	secret = "whsec_" + base64.StdEncoding.EncodeToString([]byte("twenty-four bytes or more of secret"))
	second = "whsec_" + base64.StdEncoding.EncodeToString([]byte("another secret of enough length ok"))
)

func serve(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// deliver posts one delivery to a URL.
func deliver(t *testing.T, url string, secrets []string, d waybill.Delivery) error {
	t.Helper()
	s, err := webhook.NewSink(url, webhook.Config{Secrets: secrets})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	return s.Deliver(t.Context(), []waybill.Delivery{d})[0]
}

// counter counts the events that it consumes.
type counter struct{ events int }

func (c *counter) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	c.events += len(batch)
	return make([]error, len(batch))
}

// post returns the status of the answer to a request.
func post(t *testing.T, url string, h http.Header, body string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = h
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode
}

// The specification's reference library accepts the sink's requests, and a
// replay has a separate id.
func TestTheReferenceLibraryVerifies(t *testing.T) {
	reference, err := standard.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	var ids, events []string
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if err := reference.Verify(body, r.Header); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		var event struct{ ID string }
		if err := json.Unmarshal(body, &event); err != nil {
			t.Error(err)
		}
		ids, events = append(ids, r.Header.Get("webhook-id")), append(events, event.ID)
	}))
	ev := waybill.NewEvent("OrderPlaced", map[string]int{"total": 9990})
	ev.AggregateType, ev.AggregateID, ev.Topic = "order", "A-1", "orders"
	d := waybill.Delivery{Event: eventfill.Defaults(ev), Attempt: 1}
	// While secrets are rotated, a receiver may have either.
	for _, secrets := range [][]string{{secret}, {second, secret}} {
		if err := deliver(t, server.URL, secrets, d); err != nil {
			t.Errorf("%d secrets: %v", len(secrets), err)
		}
	}
	d.Replay = 2
	if err := deliver(t, server.URL, []string{secret}, d); err != nil {
		t.Error(err)
	}
	id := d.ID.String()
	if want := []string{id, id, id + "-r2"}; !reflect.DeepEqual(ids, want) {
		t.Errorf("webhook-id %v, want %v", ids, want)
	}
	if want := []string{id, id, id}; !reflect.DeepEqual(events, want) {
		t.Errorf("event ids %v, want %v", events, want)
	}
}

// The receiver accepts the requests that the reference library signs, and no
// changed ones.
func TestTheReferenceLibrarySigns(t *testing.T) {
	reference, err := standard.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	c := &counter{}
	receiver, err := webhook.NewReceiver(c, webhook.ReceiverConfig{Secrets: []string{second, secret}})
	if err != nil {
		t.Fatal(err)
	}
	server := serve(t, receiver)
	message := func(n int) string {
		return fmt.Sprintf(`{"specversion":"1.0","id":"msg_1","source":"/elsewhere","type":"Ping","data":{"a":%d}}`, n)
	}
	now, body := time.Now(), []byte(message(1))
	signature, err := reference.Sign("msg_1", now, body)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(h http.Header)
		body   string
		want   int
	}{
		"genuine":            {func(http.Header) {}, message(1), http.StatusNoContent},
		"another body":       {func(http.Header) {}, message(2), http.StatusUnauthorized},
		"another id":         {func(h http.Header) { h.Set("webhook-id", "msg_2") }, message(1), http.StatusUnauthorized},
		"no signature":       {func(h http.Header) { h.Del("webhook-signature") }, message(1), http.StatusUnauthorized},
		"no id":              {func(h http.Header) { h.Del("webhook-id") }, message(1), http.StatusUnauthorized},
		"not a time":         {func(h http.Header) { h.Set("webhook-timestamp", "soon") }, message(1), http.StatusUnauthorized},
		"another version":    {func(h http.Header) { h.Set("webhook-signature", "v2,AAAA") }, message(1), http.StatusUnauthorized},
		"made to look newer": {func(h http.Header) { h.Set("webhook-timestamp", fmt.Sprint(now.Unix()+1)) }, message(1), http.StatusUnauthorized},
		"many signatures": {
			func(h http.Header) { h.Set("webhook-signature", "v1,AAAA v1a,BBBB "+h.Get("webhook-signature")) }, message(1), http.StatusNoContent,
		},
	} {
		h := http.Header{}
		h.Set("webhook-id", "msg_1")
		h.Set("webhook-timestamp", fmt.Sprint(now.Unix()))
		h.Set("webhook-signature", signature)
		h.Set("Content-Type", "application/cloudevents+json")
		tc.change(h)
		before := c.events
		if code := post(t, server.URL, h, tc.body); code != tc.want {
			t.Errorf("%s: answered %d, want %d", name, code, tc.want)
		}
		if handled := c.events > before; handled != (tc.want == http.StatusNoContent) {
			t.Errorf("%s: handled is %v", name, handled)
		}
	}
	// An old request is rejected although its signature is valid: it may be a
	// captured copy.
	old := now.Add(-6 * time.Minute)
	signature, err = reference.Sign("msg_1", old, body)
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{"Webhook-Id": {"msg_1"}, "Webhook-Timestamp": {fmt.Sprint(old.Unix())}, "Webhook-Signature": {signature}}
	h.Set("Content-Type", "application/cloudevents+json")
	if code := post(t, server.URL, h, string(body)); code != http.StatusUnauthorized {
		t.Errorf("an old request: answered %d", code)
	}
}

package webhook_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"testing"
	"time"

	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/waybillhq/waybill/broker/webhook"
)

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
	d := delivery("A-1")
	// While secrets are rotated, a receiver may have either.
	for _, secrets := range [][]string{{secret}, {second, secret}} {
		if err := deliver(t, sink(t, server.URL, webhook.Config{Secrets: secrets}), d); err != nil {
			t.Errorf("%d secrets: %v", len(secrets), err)
		}
	}
	d.Replay = 2
	if err := deliver(t, sink(t, server.URL, webhook.Config{}), d); err != nil {
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

func TestTheReferenceLibrarySigns(t *testing.T) {
	reference, err := standard.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	c := &consumer{}
	server := receiver(t, c, webhook.ReceiverConfig{Secrets: []string{second, secret}})
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
		before := len(c.events())
		if code := post(t, server.URL, h, tc.body); code != tc.want {
			t.Errorf("%s: answered %d, want %d", name, code, tc.want)
		}
		if handled := len(c.events()) > before; handled != (tc.want == http.StatusNoContent) {
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

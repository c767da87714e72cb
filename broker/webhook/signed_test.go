package webhook_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/webhook"
)

// captured is a request as an attacker on the network sees it.
type captured struct {
	header http.Header
	body   string
}

// capture returns the request that the sink posts for a delivery.
func capture(t *testing.T, d waybill.Delivery, cfg webhook.Config) captured {
	t.Helper()
	var seen captured
	server := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen = captured{r.Header.Clone(), string(body)}
	}))
	if err := deliver(t, sink(t, server.URL, cfg), d); err != nil {
		t.Fatal(err)
	}
	return seen
}

// A captured request can be sent again only unchanged: no header adds to the
// event or changes it.
func TestACapturedRequestCannotBeChanged(t *testing.T) {
	t.Run("with headers of its own", func(t *testing.T) { cannotBeChanged(t, delivery("A-1")) })
	t.Run("without any", func(t *testing.T) {
		d := delivery("A-1")
		d.Headers = nil
		cannotBeChanged(t, d)
	})
}

func cannotBeChanged(t *testing.T, d waybill.Delivery) {
	t.Helper()
	seen := capture(t, d, webhook.Config{})
	other := waybill.NewID().String()
	binary := func(h http.Header) {
		h.Set("Content-Type", "application/json")
		for name, value := range map[string]string{
			"Ce-Specversion": "1.0", "Ce-Id": d.ID.String(), "Ce-Source": "waybill", "Ce-Type": "Forged", "Ce-Tenantid": "other",
		} {
			h.Set(name, value)
		}
	}
	for name, change := range map[string]func(h http.Header){
		"as it was":        func(http.Header) {},
		"another id":       func(h http.Header) { h.Set("Ce-Id", other) },
		"another type":     func(h http.Header) { h.Set("Ce-Type", "OrderCanceled") },
		"another tenant":   func(h http.Header) { h.Set("Ce-Tenantid", "other") },
		"another order":    func(h http.Header) { h.Set("Ce-Aggregateid", "A-2"); h.Set("Ce-Subject", "A-2") },
		"another position": func(h http.Header) { h.Set("Ce-Position", "3/4/6") },
		"a replay":         func(h http.Header) { h.Set("Ce-Replay", "1") },
		"an added header":  func(h http.Header) { h.Set("Waybill-Role", "admin") },
		"another trace":    func(h http.Header) { h.Set("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01") },
		"another content":  func(h http.Header) { h.Set("Content-Type", "text/plain") },
		"binary mode":      binary,
		"binary mode, another id": func(h http.Header) {
			binary(h)
			h.Set("Ce-Id", other)
		},
		"two content types": func(h http.Header) { h["Content-Type"] = []string{"application/json", "application/cloudevents+json"} },
	} {
		t.Run(name, func(t *testing.T) {
			c := &consumer{}
			h := seen.header.Clone()
			change(h)
			code := post(t, receiver(t, c, webhook.ReceiverConfig{}).URL, h, seen.body)
			for _, got := range c.events() {
				if !reflect.DeepEqual(got.Event, d.Event) || got.Replay != d.Replay || got.Position != d.Position {
					t.Errorf("answered %d, and the consumer got %+v, want %+v", code, got, d)
				}
			}
			if handled := len(c.events()) == 1; handled != (code == http.StatusNoContent) {
				t.Errorf("answered %d with %d events handled", code, len(c.events()))
			}
			if name == "as it was" && code != http.StatusNoContent {
				t.Errorf("answered %d", code)
			}
		})
	}
}

// The signed body is a CloudEvents message in structured mode, which any
// receiver can read: JSON stays JSON, and any other payload is base64.
func TestTheSignedBodyIsTheWholeEvent(t *testing.T) {
	for name, tc := range map[string]struct {
		contentType, payload string
		data                 string // "data" or "data_base64"
	}{
		"an object":           {waybill.JSON, `{"total":9990, "a":"<b>"}`, "data"},
		"null":                {waybill.JSON, `null`, "data"},
		"a string":            {waybill.JSON, `"text"`, "data"},
		"of another schema":   {"application/vnd.shop+json; charset=utf-8", `[1]`, "data"},
		"with space around":   {waybill.JSON, " {}\n", "data_base64"},
		"not quite Unicode":   {waybill.JSON, "\"\xff\"", "data_base64"},
		"a text":              {"text/plain", `"text"`, "data_base64"},
		"bytes":               {"application/octet-stream", "\x00\xff\r\n", "data_base64"},
		"nothing":             {"application/octet-stream", "", ""},
		"as large as can be":  {"application/octet-stream", strings.Repeat("\xfe", waybill.MaxPayload), "data_base64"},
		"JSON, large as well": {waybill.JSON, `"` + strings.Repeat("x", waybill.MaxPayload-2) + `"`, "data"},
	} {
		t.Run(name, func(t *testing.T) {
			d := delivery("A-1")
			d.ContentType, d.Payload = tc.contentType, []byte(tc.payload)
			d.Headers = map[string]string{
				"Über": "naïve \"100 %\" \\", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "ce_type": "x", "data": "y",
			}
			d.Replay = 2
			seen := capture(t, d, webhook.Config{})
			var members map[string]any
			if err := json.Unmarshal([]byte(seen.body), &members); err != nil {
				t.Fatal(err)
			}
			if members["id"] != d.ID.String() || members["type"] != d.Type || members["datacontenttype"] != tc.contentType {
				t.Errorf("the body says id %v, type %v, datacontenttype %v", members["id"], members["type"], members["datacontenttype"])
			}
			for _, member := range []string{"data", "data_base64"} {
				if _, has := members[member]; has != (member == tc.data) {
					t.Errorf("%s: %v", member, has)
				}
			}
			for header := range seen.header {
				if low := strings.ToLower(header); strings.HasPrefix(low, "ce-") || strings.HasPrefix(low, "waybill-") {
					t.Errorf("%s is sent, and is not signed", header)
				}
			}
			if seen.header.Get("Traceparent") != d.Headers["traceparent"] {
				t.Error("tracing libraries look for the header traceparent")
			}
			c := &consumer{}
			if code := post(t, receiver(t, c, webhook.ReceiverConfig{}).URL, seen.header, seen.body); code != http.StatusNoContent {
				t.Fatalf("answered %d", code)
			}
			got := c.events()[0]
			if !reflect.DeepEqual(got.Event, d.Event) || got.Replay != 2 || got.Position != d.Position {
				t.Errorf("got %.500v, want %.500v", got, d)
			}
		})
	}
}

// signed returns the signature of a body, as the specification computes it.
func signed(t *testing.T, id string, at time.Time, body string) string {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%d.%s", id, at.Unix(), body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// The signed id is the event's id: a request that is signed with one id for
// another event is rejected.
func TestTheSignedIDIsTheEvents(t *testing.T) {
	id := waybill.NewID().String()
	for name, tc := range map[string]struct {
		webhookID, eventID, replay string
		want                       int
	}{
		"the event's":       {id, id, "", http.StatusNoContent},
		"of a replay":       {id + "-r2", id, `,"replay":"2"`, http.StatusNoContent},
		"foreign":           {"msg_1", "msg_1", "", http.StatusNoContent},
		"another":           {waybill.NewID().String(), id, "", http.StatusUnauthorized},
		"another foreign":   {"msg_2", "msg_1", "", http.StatusUnauthorized},
		"of another replay": {id + "-r1", id, `,"replay":"2"`, http.StatusUnauthorized},
		"of no replay":      {id, id, `,"replay":"2"`, http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			c := &consumer{}
			now := time.Now()
			body := `{"specversion":"1.0","id":"` + tc.eventID + `","source":"/x","type":"Ping"` + tc.replay + `,"data":{}}`
			signature := signed(t, tc.webhookID, now, body)
			h := http.Header{
				"Webhook-Id": {tc.webhookID}, "Webhook-Timestamp": {fmt.Sprint(now.Unix())}, "Webhook-Signature": {signature},
				"Content-Type": {"application/cloudevents+json; charset=utf-8"},
			}
			if code := post(t, receiver(t, c, webhook.ReceiverConfig{}).URL, h, body); code != tc.want || len(c.events()) == 1 != (tc.want == http.StatusNoContent) {
				t.Errorf("answered %d, want %d; %d events were handled", code, tc.want, len(c.events()))
			}
		})
	}
}

// For an upgrade, both ends support binary mode as well, if configured. Even
// then a request belongs to one event.
func TestUnsignedAttributes(t *testing.T) {
	d := delivery("A-1")
	seen := capture(t, d, webhook.Config{UnsignedAttributes: true})
	if seen.body != string(d.Payload) || seen.header.Get("Ce-Id") != d.ID.String() {
		t.Errorf("the sink posted %q with %v", seen.body, seen.header)
	}
	c := &consumer{}
	if code := post(t, receiver(t, c, webhook.ReceiverConfig{}).URL, seen.header, seen.body); code != http.StatusUnauthorized || len(c.events()) != 0 {
		t.Errorf("not configured: answered %d, %d events were handled", code, len(c.events()))
	}
	both := receiver(t, c, webhook.ReceiverConfig{UnsignedAttributes: true})
	for _, request := range []captured{seen, capture(t, d, webhook.Config{})} {
		if code := post(t, both.URL, request.header, request.body); code != http.StatusNoContent {
			t.Errorf("answered %d", code)
		}
	}
	if got := c.events(); len(got) != 2 || slices.ContainsFunc(got, func(g waybill.Delivery) bool { return !reflect.DeepEqual(g.Event, d.Event) }) {
		t.Errorf("got %+v, want %+v twice", got, d)
	}
	d.Replay = 1
	replayed := capture(t, d, webhook.Config{UnsignedAttributes: true})
	for name, change := range map[string]func(h http.Header){
		"another id":      func(h http.Header) { h.Set("Ce-Id", waybill.NewID().String()) },
		"the replay's id": func(h http.Header) { h.Set("Ce-Id", h.Get("Webhook-Id")); h.Del("Ce-Replay") },
		"a header for the id": func(h http.Header) {
			h.Set("Ce-Id", waybill.NewID().String())
			h.Set("Waybill-Ce_id", h.Get("Webhook-Id"))
		},
	} {
		forged := replayed.header.Clone()
		change(forged)
		if code := post(t, both.URL, forged, replayed.body); code != http.StatusUnauthorized || len(c.events()) != 2 {
			t.Errorf("%s: answered %d, %d events were handled", name, code, len(c.events()))
		}
	}
	if _, err := webhook.NewSink("https://host", webhook.Config{Unsigned: true, UnsignedAttributes: true}); err == nil {
		t.Error("a sink that signs nothing was made with UnsignedAttributes")
	}
	if _, err := webhook.NewReceiver(c, webhook.ReceiverConfig{Unsigned: true, UnsignedAttributes: true}); err == nil {
		t.Error("a receiver that checks nothing was made with UnsignedAttributes")
	}
}

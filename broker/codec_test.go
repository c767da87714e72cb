package broker_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
	"github.com/waybillhq/waybill/internal/eventfill"
)

var bindings = []broker.Binding{broker.HTTP, broker.NATS, broker.Kafka, broker.AMQP, broker.Pulsar, broker.Redis}

func codec(t testing.TB, b broker.Binding, cfg broker.CodecConfig) *broker.Codec {
	t.Helper()
	c, err := broker.NewCodec(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// full returns a delivery in which no field has its default value.
func full() waybill.Delivery {
	ev := waybill.Event{
		ID: waybill.NewID(), Type: "Order Placed%", AggregateType: "order", AggregateID: `"quoted" ü`, TenantID: "Söhne", Topic: "orders", RoutingKey: "eu.west",
		SchemaID: "urn:schema:1", SchemaVersion: 7, DedupKey: "k", Priority: 3, OccurredAt: time.Now(), AvailableAt: time.Now().Add(time.Hour),
		CorrelationID: "c1", CausationID: "c2", ContentType: "text/plain; charset=utf-8", Payload: []byte("hello\x00"),
		Headers: map[string]string{
			"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=ü", "A": "1", "a": "2", "with space": " x ",
			"ce_id": "x", "ce-id": "y", "cloudEvents:id": "z", "waybill_": "w", "percent%20": "%20", "empty": "", "日本": "✓", "id": "mine",
		},
	}
	return waybill.Delivery{
		Event: eventfill.Defaults(ev), Attempt: 1, Replay: 4, Position: waybill.Position{Lane: 3, Epoch: 2, Seq: 1},
	}
}

func TestRoundTrip(t *testing.T) {
	for _, b := range bindings {
		for name, d := range map[string]waybill.Delivery{
			"every field": full(),
			"no field":    {Event: eventfill.Defaults(waybill.Event{Type: "x", Payload: []byte("1")}), Attempt: 1},
			"no payload":  {Event: eventfill.Defaults(waybill.Event{Type: "x", ContentType: "text/plain"}), Attempt: 1},
		} {
			t.Run(fmt.Sprint(b, "/", name), func(t *testing.T) {
				c := codec(t, b, broker.CodecConfig{})
				m, err := c.Encode(&d)
				if err != nil {
					t.Fatal(err)
				}
				got, err := c.Decode(&m)
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got, d) {
					t.Errorf("got\n%+v, want\n%+v", got, d)
				}
				if names := repeats(&m); names != "" {
					t.Errorf("headers that come twice: %s", names)
				}
			})
		}
	}
}

func repeats(m *broker.Message) string {
	seen := make(map[string]bool)
	for _, h := range m.Headers {
		name := strings.ToLower(h.Name)
		if seen[name] && m.Header("A") == "" && !strings.HasPrefix(name, "waybill") {
			return name
		}
		seen[name] = true
	}
	return ""
}

// HTTP header names are case-insensitive, and clients change their case:
// headers in Go's canonical form are decoded alike.
func TestNamesWithoutCase(t *testing.T) {
	c := codec(t, broker.HTTP, broker.CodecConfig{})
	d := full()
	m, err := c.Encode(&d)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for i := range m.Headers {
		m.Headers[i].Name = strings.ToUpper(m.Headers[i].Name)
		if seen[m.Headers[i].Name] {
			t.Errorf("%s comes twice", m.Headers[i].Name)
		}
		seen[m.Headers[i].Name] = true
	}
	got, err := c.Decode(&m)
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got.Headers, d.Headers) {
		t.Errorf("headers\n%q, want\n%q", got.Headers, d.Headers)
	}
}

// In protocols with ASCII headers, names are tokens and values are printable,
// without a space or a quote.
func TestASCII(t *testing.T) {
	for _, b := range []broker.Binding{broker.HTTP, broker.NATS} {
		d := full()
		m, err := codec(t, b, broker.CodecConfig{}).Encode(&d)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range m.Headers {
			if strings.ContainsFunc(h.Name, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`()<>@,;:\"/[]?={}`, r) }) {
				t.Errorf("%v: the name %q is not a token", b, h.Name)
			}
			if strings.ContainsFunc(h.Value, func(r rune) bool { return r < ' ' || r >= 0x7f }) {
				t.Errorf("%v: the value of %s is %q", b, h.Name, h.Value)
			}
		}
	}
}

// Bytes that could end one header and begin another are never sent, in any
// field.
func TestInjection(t *testing.T) {
	for _, bad := range []string{"a\r\nce_id: x", "a\nb", "a\x00b", "a\x7fb", "a\u0085b", "a\xffb"} {
		for field, set := range map[string]func(*waybill.Event){
			"a header's value": func(e *waybill.Event) { e.Headers = map[string]string{"x": bad} },
			"a header's name":  func(e *waybill.Event) { e.Headers = map[string]string{bad: "x"} },
			"trace context":    func(e *waybill.Event) { e.Headers = map[string]string{"traceparent": bad} },
			"the type":         func(e *waybill.Event) { e.Type = bad },
			"the tenant":       func(e *waybill.Event) { e.TenantID = bad },
			"the content type": func(e *waybill.Event) { e.ContentType = bad },
		} {
			for _, b := range bindings {
				if b == broker.AMQP && field == "the content type" {
					continue // not a header there; the client encodes its length
				}
				d := waybill.Delivery{Event: eventfill.Defaults(waybill.Event{Type: "x", Topic: "t", Payload: []byte("1")})}
				set(&d.Event)
				_, err := codec(t, b, broker.CodecConfig{}).Encode(&d)
				if class, _ := waybill.Classify(err); class != waybill.ClassPermanent {
					t.Errorf("%v: %q in %s: %v", b, bad, field, err)
				}
			}
		}
	}
}

// An event's own headers never become attributes, and never replace a header of
// the broker.
func TestUserHeadersHaveTheirOwnNames(t *testing.T) {
	for _, b := range bindings {
		c := codec(t, b, broker.CodecConfig{})
		d := waybill.Delivery{Event: eventfill.Defaults(waybill.Event{Type: "x", Payload: []byte("1"), Headers: map[string]string{}})}
		plain, err := c.Encode(&d)
		if err != nil {
			t.Fatal(err)
		}
		d.Headers = map[string]string{"Nats-Msg-Id": "forged", "data": "forged", "publish_id": "forged", "": "forged"}
		for _, h := range plain.Headers {
			d.Headers[h.Name] = "forged"
			d.Headers[strings.TrimPrefix(h.Name, b.Attribute(""))] = "forged"
		}
		m, err := c.Encode(&d)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range m.Headers {
			if h.Value == "forged" && !strings.HasPrefix(h.Name, "waybill") {
				t.Errorf("%v: %s is the user's", b, h.Name)
			}
		}
		for _, h := range plain.Headers {
			if got := m.Header(h.Name); got != h.Value {
				t.Errorf("%v: %s is %q, was %q", b, h.Name, got, h.Value)
			}
		}
	}
}

func TestPublishID(t *testing.T) {
	id := waybill.NewID()
	if got := driver.PublishID(id, 0); got != id.String() {
		t.Errorf("%s, want the event's id", got)
	}
	if one, two := driver.PublishID(id, 1), driver.PublishID(id, 2); one == two || one == id.String() {
		t.Errorf("replays have %s and %s", one, two)
	}
}

func TestKey(t *testing.T) {
	c := codec(t, broker.Kafka, broker.CodecConfig{})
	key := func(ev waybill.Event) string {
		d := waybill.Delivery{Event: eventfill.Defaults(ev)}
		m, err := c.Encode(&d)
		if err != nil {
			t.Fatal(err)
		}
		return m.Key
	}
	if got := key(waybill.Event{Type: "x", AggregateID: "1", RoutingKey: "eu"}); got != "eu" {
		t.Errorf("the routing key gives %q", got)
	}
	if got := key(waybill.Event{Type: "x"}); got != "" {
		t.Errorf("no aggregate gives %q", got)
	}
	seen := make(map[string]bool)
	for _, ev := range []waybill.Event{
		{TenantID: "a/b", AggregateType: "c", AggregateID: "d"},
		{TenantID: "a", AggregateType: "b/c", AggregateID: "d"},
		{TenantID: "a", AggregateType: "b", AggregateID: "c/d"},
		{TenantID: "a%2Fb", AggregateType: "c", AggregateID: "d"},
	} {
		ev.Type = "x"
		if k := key(ev); seen[k] {
			t.Errorf("two aggregates have the key %q", k)
		} else {
			seen[k] = true
		}
	}
}

// headers returns attributes of a foreign CloudEvents producer, in the binding.
func headers(b broker.Binding, attrs map[string]string) []broker.Header {
	var hs []broker.Header
	for name, value := range attrs {
		hs = append(hs, broker.Header{Name: b.Attribute(name), Value: value})
	}
	return hs
}

func TestForeignProducer(t *testing.T) {
	for _, b := range bindings {
		c := codec(t, b, broker.CodecConfig{})
		m := broker.Message{Payload: []byte(`{"a":1}`), Headers: headers(b, map[string]string{
			"specversion": "1.0", "id": "A234-1234", "source": "/mycontext/4", "type": "com.example.x", "subject": "order-7", "time": "2018-04-05T17:31:00+02:00",
			"priority": "high", "myext": "kept", "position": "first",
		})}
		m.Headers = append(m.Headers, broker.Header{Name: "traceparent", Value: "tp"}, broker.Header{Name: "x-other", Value: "ignored"})
		d, err := c.Decode(&m)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte("/mycontext/4\x00A234-1234"))
		if d.ID != waybill.ID(sum[:16]) {
			t.Errorf("%v: the id is %v", b, d.ID)
		}
		want := map[string]string{"ce_id": "A234-1234", "ce_source": "/mycontext/4", "myext": "kept", "priority": "high", "position": "first", "traceparent": "tp"}
		if !maps.Equal(d.Headers, want) {
			t.Errorf("%v: headers %q", b, d.Headers)
		}
		if d.Type != "com.example.x" || d.AggregateID != "order-7" || d.ContentType != waybill.JSON || !d.OccurredAt.Equal(time.Date(2018, 4, 5, 15, 31, 0, 0, time.UTC)) {
			t.Errorf("%v: event %+v", b, d.Event)
		}
	}
}

func TestStructured(t *testing.T) {
	c := codec(t, broker.Kafka, broker.CodecConfig{})
	decode := func(body string) (waybill.Delivery, error) {
		return c.Decode(&broker.Message{ContentType: "application/CloudEvents+json; charset=utf-8", Payload: []byte(body)})
	}
	for body, want := range map[string]string{
		`{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"a": 1}}`:                                        `application/json {"a": 1}`,
		`{"specversion":"1.0","id":"1","source":"s","type":"t","data":"text"}`:                                          `application/json "text"`,
		`{"specversion":"1.0","id":"1","source":"s","type":"t","datacontenttype":"text/plain","data":"text"}`:           `text/plain text`,
		`{"specversion":"1.0","id":"1","source":"s","type":"t","datacontenttype":"image/png","data_base64":"AAE="}`:     "image/png \x00\x01",
		`{"specversion":"1.0","id":"1","source":"s","type":"t"}`:                                                        `application/octet-stream `,
		`{"specversion":"1.0","id":"1","source":"s","type":"t","data":null,"tenantid":null,"flag":true,"num":12345678}`: `application/json null`,
	} {
		d, err := decode(body)
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		if got := d.ContentType + " " + string(d.Payload); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
	for _, body := range []string{
		``, `null`, `[]`, `{`, `{"specversion":"1.0"}`, `{"specversion":"1.0","id":"1","source":"s","type":"t","x":{}}`,
		`{"specversion":"1.0","id":"1","source":"s","type":"t","data":1,"data_base64":""}`, `{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"?"}`,
	} {
		if _, err := decode(body); !errors.Is(err, broker.ErrMessage) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// Messages that cannot be decoded are dead, and the error shows neither payload
// nor values.
func TestUnreadable(t *testing.T) {
	many := make([]broker.Header, 300)
	for i := range many {
		many[i] = broker.Header{Name: fmt.Sprint("x", i), Value: "v"}
	}
	base := map[string]string{"specversion": "1.0", "id": "1", "source": "s", "type": "canary"}
	with := func(name, value string) []broker.Header {
		attrs := maps.Clone(base)
		attrs[name] = value
		return headers(broker.Kafka, attrs)
	}
	for name, m := range map[string]broker.Message{
		"nothing":             {},
		"no id":               {Headers: with("id", "")},
		"no type":             {Headers: with("type", "")},
		"no specversion":      {Headers: with("specversion", "")},
		"another specversion": {Headers: with("specversion", "0.3")},
		"id twice":            {Headers: append(with("id", "1"), broker.Header{Name: "ce_id", Value: "2"})},
		"a header twice":      {Headers: append(with("id", "1"), broker.Header{Name: "waybill_a", Value: "1"}, broker.Header{Name: "waybill_a", Value: "2"})},
		"a long subject":      {Headers: with("subject", strings.Repeat("canary", 100))},
		"a control character": {Headers: with("tenantid", "canary\n")},
		"not UTF-8":           {Headers: with("tenantid", "canary\xff")},
		"no JSON":             {Headers: with("id", "1"), ContentType: "application/json", Payload: []byte("canary")},
		"a large payload":     {Headers: with("id", "1"), ContentType: "text/plain", Payload: bytes.Repeat([]byte("canary"), 1<<18)},
		"many headers":        {Headers: append(with("id", "1"), many...)},
		"long headers":        {Headers: append(with("id", "1"), broker.Header{Name: "x", Value: strings.Repeat("canary", 20000)})},
		"a large structure":   {ContentType: "application/cloudevents+json", Payload: bytes.Repeat([]byte(" "), 5<<20)},
	} {
		_, err := codec(t, broker.Kafka, broker.CodecConfig{}).Decode(&m)
		if class, _ := waybill.Classify(err); class != waybill.ClassPermanent || !errors.Is(err, broker.ErrMessage) {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), "canary") && name != "a control character" && name != "not UTF-8" && !strings.Contains(err.Error(), "event canary") {
			t.Errorf("%s: the error shows a value: %v", name, err)
		}
	}
}

// AMQP has two prefixes; readers must accept both.
func TestAMQPPrefixes(t *testing.T) {
	for _, prefix := range []string{"cloudEvents:", "cloudEvents_"} {
		m := broker.Message{Payload: []byte("1")}
		for name, value := range map[string]string{"specversion": "1.0", "id": "1", "source": "s", "type": "t"} {
			m.Headers = append(m.Headers, broker.Header{Name: prefix + name, Value: value})
		}
		if _, err := codec(t, broker.AMQP, broker.CodecConfig{}).Decode(&m); err != nil {
			t.Errorf("%s: %v", prefix, err)
		}
	}
}

func TestCodecConfig(t *testing.T) {
	if _, err := broker.NewCodec(0, broker.CodecConfig{}); err == nil {
		t.Error("a codec of no binding")
	}
	for _, source := range []string{"a b", "a\n", "ü", strings.Repeat("x", 600)} {
		if _, err := broker.NewCodec(broker.Kafka, broker.CodecConfig{EventSource: source}); err == nil {
			t.Errorf("the source %q is accepted", source)
		}
	}
	c := codec(t, broker.Kafka, broker.CodecConfig{EventSource: "/shop", Topics: broker.OneTopic("")})
	d := full()
	if _, err := c.Encode(&d); err == nil {
		t.Error("an event without a topic is published")
	}
	d.ID = waybill.ID{}
	if _, err := codec(t, broker.Kafka, broker.CodecConfig{}).Encode(&d); err == nil {
		t.Error("an event without an id is published")
	}
}

// A dead letter is the same event, and contains the reason in headers that
// cannot be broken out of.
func TestDeadLetter(t *testing.T) {
	for _, b := range bindings {
		c := codec(t, b, broker.CodecConfig{})
		d := full()
		m, err := c.Encode(&d)
		if err != nil {
			t.Fatal(err)
		}
		in := &driver.Incoming{Message: m, Attempt: 3}
		dead := driver.DeadLetter(c, "billing", in, errors.New("bad\r\nce_id: x "+strings.Repeat("é", 1000)))
		dead = driver.DeadLetter(c, "billing", &driver.Incoming{Message: dead, Attempt: 4}, errors.New("bad\r\nce_id: x "+strings.Repeat("é", 1000)))
		got, err := c.Decode(&dead)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, d) {
			t.Errorf("%v: it is another event", b)
		}
		if reason := dead.Header(broker.HeaderDeadReason); reason == "" || strings.ContainsAny(reason, "\r\n") || len(reason) > 4000 {
			t.Errorf("%v: the reason is %q", b, reason)
		}
		if dead.Header(broker.HeaderDeadAttempt) != "4" || len(dead.Headers) != len(m.Headers)+4 || dead.PublishID == m.PublishID {
			t.Errorf("%v: %d headers, attempt %s, publish id %s", b, len(dead.Headers), dead.Header(broker.HeaderDeadAttempt), dead.PublishID)
		}
	}
}

// FuzzDecode decodes arbitrary messages: every failure is an ErrMessage, and
// every decoded event is valid and survives another round trip.
func FuzzDecode(f *testing.F) {
	for _, b := range bindings {
		d := full()
		m, err := codec(f, b, broker.CodecConfig{}).Encode(&d)
		if err != nil {
			f.Fatal(err)
		}
		hs, err := json.Marshal(m.Headers)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(int(b), m.ContentType, hs, m.Payload)
	}
	f.Add(int(broker.HTTP), "application/cloudevents+json", []byte("[]"), []byte(`{"specversion":"1.0","id":"1","source":"s","type":"t","data":{}}`))
	f.Fuzz(func(t *testing.T, binding int, contentType string, rawHeaders, payload []byte) {
		var hs []broker.Header
		if json.Unmarshal(rawHeaders, &hs) != nil {
			return
		}
		c, err := broker.NewCodec(broker.Binding(binding), broker.CodecConfig{})
		if err != nil {
			return
		}
		d, err := c.Decode(&broker.Message{ContentType: contentType, Headers: hs, Payload: payload})
		if err != nil {
			if !errors.Is(err, broker.ErrMessage) {
				t.Fatalf("another error: %v", err)
			}
			return
		}
		if err := d.Validate(); err != nil || d.ID.IsZero() {
			t.Fatalf("an event that no outbox would take: %v", err)
		}
		m, err := c.Encode(&d)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		again, err := c.Decode(&m)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		if !reflect.DeepEqual(again, d) {
			t.Fatalf("got\n%+v, want\n%+v", again, d)
		}
	})
}

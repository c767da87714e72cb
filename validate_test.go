package waybill_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
)

func valid() waybill.Event {
	return waybill.Event{Type: "OrderPlaced", Payload: []byte(`{}`)}
}

// fields returns the names of the fields that an error reports.
func fields(err error) []string {
	var names []string
	var walk func(error)
	walk = func(err error) {
		switch e := err.(type) { //nolint:errorlint // walks every error of the tree
		case *waybill.FieldError:
			names = append(names, e.Field)
		case interface{ Unwrap() error }:
			walk(e.Unwrap())
		case interface{ Unwrap() []error }:
			for _, branch := range e.Unwrap() {
				walk(branch)
			}
		}
	}
	walk(err)
	return names
}

// Every text has a limit in bytes: a text at the limit is accepted, one byte
// more is rejected with the field's name.
func TestValidateTexts(t *testing.T) {
	for _, f := range []struct {
		name  string
		limit int
		set   func(ev *waybill.Event, s string)
	}{
		{"Type", 128, func(ev *waybill.Event, s string) { ev.Type = s }},
		{"AggregateType", 64, func(ev *waybill.Event, s string) { ev.AggregateType = s }},
		{"AggregateID", 128, func(ev *waybill.Event, s string) { ev.AggregateID = s }},
		{"TenantID", 64, func(ev *waybill.Event, s string) { ev.TenantID = s }},
		{"Topic", 128, func(ev *waybill.Event, s string) { ev.Topic = s }},
		{"RoutingKey", 100, func(ev *waybill.Event, s string) { ev.RoutingKey = s }},
		{"SchemaID", 128, func(ev *waybill.Event, s string) { ev.SchemaID = s }},
		{"DedupKey", 255, func(ev *waybill.Event, s string) { ev.DedupKey = s }},
		{"CorrelationID", 128, func(ev *waybill.Event, s string) { ev.CorrelationID = s }},
		{"CausationID", 128, func(ev *waybill.Event, s string) { ev.CausationID = s }},
		{"ContentType", 128, func(ev *waybill.Event, s string) { ev.ContentType = s }},
	} {
		t.Run(f.name, func(t *testing.T) {
			for _, good := range []string{
				"a", strings.Repeat("x", f.limit), strings.Repeat("é", f.limit/2), "\u00a0", "日本", "😀", "a b", "~", "\ufffd", "\u2028",
			} {
				ev := valid()
				f.set(&ev, good)
				if err := ev.Validate(); err != nil {
					t.Errorf("%.20q… of %d bytes: %v", good, len(good), err)
				}
			}
			for _, bad := range []string{
				strings.Repeat("x", f.limit+1), strings.Repeat("é", f.limit/2+1), strings.Repeat("x", 10*f.limit),
				"\x00", "a\x1fb", "a\nb", "a\rb", "\t", "\x7f", "a\u0080", "a\u009f", "\xff", "a\xc3", "\xed\xa0\x80",
			} {
				ev := valid()
				f.set(&ev, bad)
				err := ev.Validate()
				if got := fields(err); len(got) != 1 || got[0] != f.name {
					t.Errorf("%.20q… of %d bytes: %v, want an error about %s", bad, len(bad), err, f.name)
				}
				if err != nil && strings.Contains(err.Error(), bad) {
					t.Errorf("the error %q contains the field's value", err)
				}
			}
		})
	}
}

func TestValidateOtherFields(t *testing.T) {
	at := func(year int) time.Time { return time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC) }
	east := time.FixedZone("", 14*3600)
	headers := func(n, size int) map[string]string {
		h := map[string]string{}
		for i := range n {
			h[fmt.Sprintf("h%03d", i)] = strings.Repeat("v", size)
		}
		return h
	}
	for _, c := range []struct {
		name  string
		set   func(ev *waybill.Event)
		field string // "" if the event is valid
	}{
		{"only a type", func(*waybill.Event) {}, ""},
		{"no type", func(ev *waybill.Event) { ev.Type = "" }, "Type"},
		{"priority 32767", func(ev *waybill.Event) { ev.Priority = 32767 }, ""},
		{"priority 32768", func(ev *waybill.Event) { ev.Priority = 32768 }, "Priority"},
		{"priority -1", func(ev *waybill.Event) { ev.Priority = -1 }, "Priority"},
		{"version 2147483647", func(ev *waybill.Event) { ev.SchemaVersion = 1<<31 - 1 }, ""},
		{"version 2147483648", func(ev *waybill.Event) { ev.SchemaVersion = 1 << 31 }, "SchemaVersion"},
		{"version -1", func(ev *waybill.Event) { ev.SchemaVersion = -1 }, "SchemaVersion"},
		{"occurred in 1000", func(ev *waybill.Event) { ev.OccurredAt = at(1000) }, ""},
		{"occurred in 999", func(ev *waybill.Event) { ev.OccurredAt = at(999) }, "OccurredAt"},
		{"occurred in 1000 local time, 999 in UTC", func(ev *waybill.Event) {
			ev.OccurredAt = time.Date(1000, 1, 1, 0, 0, 0, 0, east)
		}, "OccurredAt"},
		{"occurred at the end of 9999", func(ev *waybill.Event) { ev.OccurredAt = at(10000).Add(-1) }, ""},
		{"occurred in 10000", func(ev *waybill.Event) { ev.OccurredAt = at(10000) }, "OccurredAt"},
		{"available in 1000", func(ev *waybill.Event) { ev.AvailableAt = at(1000) }, ""},
		{"available in 999", func(ev *waybill.Event) { ev.AvailableAt = at(999) }, "AvailableAt"},
		{"available at the end of 9999", func(ev *waybill.Event) { ev.AvailableAt = at(10000).Add(-1) }, ""},
		{"available in 10000", func(ev *waybill.Event) { ev.AvailableAt = at(10000) }, "AvailableAt"},
		{"delay of 100 years", func(ev *waybill.Event) { ev.Delay = 100 * 365 * 24 * time.Hour }, ""},
		{"delay above 100 years", func(ev *waybill.Event) { ev.Delay = 100*365*24*time.Hour + 1 }, "Delay"},
		{"delay below zero", func(ev *waybill.Event) { ev.Delay = -1 }, "Delay"},
		{"delay and time", func(ev *waybill.Event) { ev.Delay, ev.AvailableAt = 1, at(2030) }, "Delay"},
		{"64 headers", func(ev *waybill.Event) { ev.Headers = headers(64, 1) }, ""},
		{"65 headers", func(ev *waybill.Event) { ev.Headers = headers(65, 1) }, "Headers"},
		{"16 KiB of headers", func(ev *waybill.Event) { ev.Headers = headers(64, 16<<10/64-4) }, ""},
		{"one byte more", func(ev *waybill.Event) {
			ev.Headers = headers(64, 16<<10/64-4)
			ev.Headers["h000"] += "v"
		}, "Headers"},
		{"a header without a value", func(ev *waybill.Event) { ev.Headers = map[string]string{"a": ""} }, ""},
		{"a header without a name", func(ev *waybill.Event) { ev.Headers = map[string]string{"": "a"} }, "Headers"},
		{"a header with a line break", func(ev *waybill.Event) { ev.Headers = map[string]string{"a": "b\r\nc: d"} }, "Headers"},
		{"a name with NUL", func(ev *waybill.Event) { ev.Headers = map[string]string{"a\x00": "b"} }, "Headers"},
		{"a value that is not UTF-8", func(ev *waybill.Event) { ev.Headers = map[string]string{"a": "\xff"} }, "Headers"},
		{"no payload at all", func(ev *waybill.Event) { ev.Payload = nil }, "Payload"},
		{"half a payload", func(ev *waybill.Event) { ev.Payload = []byte(`{"a":`) }, "Payload"},
		{"no payload, and not JSON", func(ev *waybill.Event) { ev.Payload, ev.ContentType = nil, "text/plain" }, ""},
		{"any bytes", func(ev *waybill.Event) { ev.Payload, ev.ContentType = []byte{0, 255}, "application/octet-stream" }, ""},
		{"JSON with a parameter", func(ev *waybill.Event) {
			ev.Payload, ev.ContentType = []byte("x"), "Application/JSON; charset=utf-8"
		}, "Payload"},
		{"a kind of JSON", func(ev *waybill.Event) { ev.Payload, ev.ContentType = []byte("x"), "application/cloudevents+JSON" }, "Payload"},
		{"not a kind of JSON", func(ev *waybill.Event) { ev.Payload, ev.ContentType = []byte("x"), "application/json-seq" }, ""},
		{"1,048,576 bytes", func(ev *waybill.Event) {
			ev.Payload, ev.ContentType = make([]byte, waybill.MaxPayload), "application/octet-stream"
		}, ""},
		{"1,048,577 bytes", func(ev *waybill.Event) {
			ev.Payload, ev.ContentType = make([]byte, waybill.MaxPayload+1), "application/octet-stream"
		}, "Payload"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ev := valid()
			c.set(&ev)
			err := ev.Validate()
			switch got := fields(err); {
			case c.field == "" && err != nil:
				t.Errorf("Validate: %v", err)
			case c.field != "" && (len(got) != 1 || got[0] != c.field):
				t.Errorf("Validate: %v, about %v, want an error about %s", err, got, c.field)
			}
			if err == nil {
				if again := eventfill.Defaults(ev).Validate(); again != nil {
					t.Errorf("completing the event made it invalid: %v", again)
				}
			}
		})
	}
}

// Validate reports all invalid fields at once, with the event's type and
// without any value.
func TestValidateReportsAll(t *testing.T) {
	ev := valid()
	ev.AggregateID = strings.Repeat("secret", 100)
	ev.TenantID = "a\nb"
	ev.Priority = -7
	ev.Headers = map[string]string{"z": "\x00", "password": "hunter2\n", "a": "fine"}
	ev.Payload = []byte("not json, but a secret")
	err := ev.Validate()
	if got := fmt.Sprint(fields(err)); got != "[AggregateID TenantID Priority Headers Payload]" {
		t.Errorf("reported are %s: %v", got, err)
	}
	var field *waybill.FieldError
	if !errors.As(err, &field) || field.Field != "AggregateID" || field.Problem == "" {
		t.Errorf("the first is %+v", field)
	}
	text := err.Error()
	for _, secret := range []string{"secretsecret", "hunter2", "not json, but"} {
		if strings.Contains(text, secret) {
			t.Errorf("the error %q contains a value", text)
		}
	}
	for _, want := range []string{"OrderPlaced", `"password"`, "600 bytes, at most 128"} {
		if !strings.Contains(text, want) {
			t.Errorf("the error %q does not contain %q", text, want)
		}
	}
	for range 20 { // map order must not change the error
		if again := ev.Validate().Error(); again != text {
			t.Fatalf("the same event gave %q and %q", text, again)
		}
	}
	bad := waybill.Event{Type: "x\ny", Payload: []byte("{}")}
	if text := bad.Validate().Error(); strings.Contains(text, "\n") || !strings.Contains(text, "event ?") {
		t.Errorf("the error contains an invalid type: %q", text)
	}
}

func TestCompleteFillsInAndCopies(t *testing.T) {
	start := time.Now().Truncate(time.Microsecond)
	ev := waybill.Event{Type: "t"}
	c := eventfill.Defaults(ev)
	if c.ID.IsZero() || c.AggregateType != waybill.GlobalAggregate || c.Topic != "t" || c.SchemaVersion != 1 ||
		c.ContentType != waybill.JSON || c.OccurredAt.Before(start) || c.Payload == nil || c.Headers != nil {
		t.Errorf("complete is %+v", c)
	}
	if c.Ordered() || c.Delayed() {
		t.Errorf("an event without aggregate and time is ordered or delayed")
	}
	zone := time.FixedZone("", 3600)
	full := waybill.Event{
		ID: waybill.NewID(), Type: "t", AggregateType: "a", AggregateID: "1", Topic: "topic", SchemaVersion: 2, ContentType: "text/plain",
		OccurredAt:  time.Date(2024, 1, 2, 3, 4, 5, 6789, zone),
		AvailableAt: time.Date(2030, 1, 2, 3, 4, 5, 6789, zone),
		Headers:     map[string]string{"a": "1"}, Payload: []byte("x"),
	}
	c = eventfill.Defaults(full)
	if c.OccurredAt != time.Date(2024, 1, 2, 2, 4, 5, 6000, time.UTC) || c.AvailableAt.Location() != time.UTC ||
		c.AvailableAt.Nanosecond()%1000 != 0 {
		t.Errorf("times are %v and %v, want microseconds in UTC", c.OccurredAt, c.AvailableAt)
	}
	if c.Topic != "topic" || c.AggregateType != "a" || c.SchemaVersion != 2 || c.ContentType != "text/plain" || c.ID != full.ID {
		t.Errorf("Complete changed a field that was set: %+v", c)
	}
	full.Headers["a"], full.Payload[0] = "2", 'y'
	if c.Headers["a"] != "1" || string(c.Payload) != "x" {
		t.Errorf("a complete event shares its headers or payload with the original")
	}
	if again := eventfill.Defaults(c); fmt.Sprint(again) != fmt.Sprint(c) {
		t.Errorf("completing twice changed %+v to %+v", c, again)
	}
	if !c.Ordered() || !c.Delayed() || !(waybill.Event{Delay: 1}).Delayed() {
		t.Errorf("an event with aggregate and time is not ordered or not delayed")
	}
	if short := eventfill.Defaults((waybill.Event{Delay: 1})); short.Delay == 0 {
		t.Errorf("a short delay was rounded to none")
	}
}

func TestNewEvent(t *testing.T) {
	ev := waybill.NewEvent("t", map[string]int{"total": 9990})
	if err := ev.Validate(); err != nil || string(ev.Payload) != `{"total":9990}` {
		t.Errorf("NewEvent: %s, %v", ev.Payload, err)
	}
	raw := json.RawMessage(`{ "b": 1,  "a": "<&>" }`)
	if ev = waybill.NewEvent("t", raw); string(ev.Payload) != string(raw) {
		t.Errorf("raw JSON became %s, want it unchanged", ev.Payload)
	}
	if err := waybill.NewEvent("t", json.RawMessage(`{`)).Validate(); len(fields(err)) != 1 {
		t.Errorf("invalid raw JSON: %v", err)
	}
	if ev = waybill.NewEvent("t", json.RawMessage(nil)); string(ev.Payload) != "null" || ev.Validate() != nil {
		t.Errorf("nil raw JSON became %q", ev.Payload)
	}
	if ev = waybill.NewEvent("t", nil); string(ev.Payload) != "null" {
		t.Errorf("nil became %q", ev.Payload)
	}
	err := waybill.NewEvent("t", func() {}).Validate()
	if got := fields(err); len(got) != 1 || got[0] != "Payload" {
		t.Errorf("a payload that cannot be encoded: %v", err)
	}
}

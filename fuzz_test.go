package waybill_test

import (
	"maps"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/store/driver"
)

// ParseID accepts exactly one text per id and returns the zero id for all other
// texts.
func FuzzParseID(f *testing.F) {
	for _, s := range []string{
		"", "01J9ZK3V5M8Q4XWYR2T7N6P0HB", "7ZZZZZZZZZZZZZZZZZZZZZZZZZ", "8ZZZZZZZZZZZZZZZZZZZZZZZZZ", "00000000000000000000000000",
		"01j9zk3v5m8q4xwyr2t7n6p0hb", "0IJ9ZK3V5M8Q4XWYR2T7N6P0HB", "\xff", strings.Repeat("é", 13),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := waybill.ParseID(s)
		if err != nil {
			if !id.IsZero() {
				t.Errorf("ParseID(%q) failed and returned %v", s, id)
			}
			return
		}
		if id.String() != s {
			t.Errorf("ParseID(%q) is the id %s: two texts for one id", s, id)
		}
		data, err := id.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		var back waybill.ID
		if err := back.UnmarshalBinary(data); err != nil || back != id {
			t.Errorf("%s came back as %s, %v", id, back, err)
		}
	})
}

// An event that Validate accepts can be stored by every database: its texts are
// clean, its headers and its defaults survive, and Complete keeps it valid.
func FuzzValidate(f *testing.F) {
	f.Add("OrderPlaced", "order", "o-1", "key", "name", "value", "", []byte(`{}`), int64(0), int64(0), 0, 0)
	f.Add("é", "日本", "😀", "a\u2028b", "h\xff", "v\r\n", "text/plain", []byte{0xff}, int64(1_700_000_000_123), int64(5), 32767, 1<<31-1)
	f.Add("t", "", "", "", "", "", "application/x+json; q=1", []byte(`{`), int64(253_402_300_799_999), int64(-1), -1, 32768)
	f.Add("\x7f", "\u0085", "\x00", "\ufffd", "\"\\", "<&>", "JSON", []byte("null"), int64(-62_135_596_800_001), int64(1)<<62, 1, 1)
	f.Fuzz(func(t *testing.T, kind, aggregate, id, key, name, value, contentType string, payload []byte, ms, delay int64, priority, version int) {
		ev := waybill.Event{
			Type: kind, AggregateType: aggregate, AggregateID: id, TenantID: aggregate, Topic: kind, RoutingKey: id, SchemaID: id, DedupKey: key,
			SchemaVersion: version, OccurredAt: time.UnixMilli(ms), Delay: time.Duration(delay), Priority: priority, CorrelationID: id,
			CausationID: key, Headers: map[string]string{name: value}, ContentType: contentType, Payload: payload,
		}
		if err := ev.Validate(); err != nil {
			if !utf8.ValidString(err.Error()) {
				t.Errorf("the error is not valid UTF-8: %q", err)
			}
			return
		}
		texts := []string{
			ev.Type, ev.AggregateType, ev.AggregateID, ev.TenantID, ev.Topic, ev.RoutingKey, ev.SchemaID, ev.DedupKey, ev.CorrelationID,
			ev.CausationID, ev.ContentType, name, value,
		}
		for _, s := range texts {
			if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
				t.Errorf("Validate accepts the text %q", s)
			}
		}
		c := eventfill.Defaults(ev)
		if err := c.Validate(); err != nil {
			t.Errorf("completing the event made it invalid: %v", err)
		}
		if c.Type == "" || c.Topic == "" || c.AggregateType == "" || c.ContentType == "" || c.SchemaVersion < 1 || c.ID.IsZero() || c.Payload == nil {
			t.Errorf("complete is %+v", c)
		}
		if y := c.OccurredAt.Year(); y < 1000 || y > 9999 {
			t.Errorf("complete, it occurred in the year %d", y)
		}
		if string(c.Payload) != string(payload) {
			t.Errorf("completing the event changed its payload")
		}
		text, err := driver.EncodeHeaders(c.Headers)
		if err != nil {
			t.Fatalf("EncodeHeaders: %v", err)
		}
		headers, err := driver.DecodeHeaders(text)
		if err != nil || !maps.Equal(headers, ev.Headers) {
			t.Errorf("headers %q came back as %q, %v", ev.Headers, headers, err)
		}
	})
}

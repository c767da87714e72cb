package waybill_test

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
)

func TestDedupKeys(t *testing.T) {
	ev := waybill.Event{Type: "Enrolled", AggregateType: "student", AggregateID: "s-1"}
	at := time.Date(2026, 3, 1, 0, 59, 0, 0, time.FixedZone("", 2*3600))
	third := ev
	third.SchemaVersion = 3
	global := waybill.Event{Type: "Enrolled", AggregateID: "s-1"}
	awkward := waybill.Event{Type: "a:b", AggregateType: "c#d", AggregateID: "50%"}
	for _, c := range []struct{ got, want string }{
		{ev.NaturalKey(), "student:Enrolled:s-1#1"},
		{third.NaturalKey(), "student:Enrolled:s-1#3"},
		{ev.VersionKey(42), "student:Enrolled:s-1#v42"},
		{ev.HourKey(at), "student:Enrolled:s-1#h2026022822"},
		{ev.HourKey(at.Add(time.Minute)), "student:Enrolled:s-1#h2026022823"},
		{global.NaturalKey(), "__GLOBAL__:Enrolled:s-1#1"},
		{eventfill.Defaults(global).NaturalKey(), global.NaturalKey()},
		{awkward.NaturalKey(), "c%23d:a%3Ab:50%25#1"},
		{waybill.DedupKey("a", "b", "c"), "a:b:c"},
		{waybill.DedupKey("a:b", "c"), "a%3Ab:c"},
		{waybill.DedupKey("a%3Ab", "c"), "a%253Ab:c"},
		{waybill.DedupKey("", ""), ":"},
		{waybill.DedupKey(), ""},
		{waybill.DedupKey(""), ""},
	} {
		if c.got != c.want {
			t.Errorf("the key is %q, want %q", c.got, c.want)
		}
	}
}

// If two different facts share a key, the event of the second fact is absorbed
// by the first one and lost.
func TestDedupKeysOfDifferentFactsDiffer(t *testing.T) {
	at := time.Date(2026, 2, 28, 22, 0, 0, 0, time.UTC)
	order := waybill.Event{Type: "Created", AggregateType: "order", AggregateID: "1"}
	user := waybill.Event{Type: "Created", AggregateType: "user", AggregateID: "1"}
	short := waybill.Event{Type: "a", AggregateID: "b:c"}
	long := waybill.Event{Type: "a:b", AggregateID: "c"}
	long128 := waybill.Event{Type: strings.Repeat("t", 128), AggregateType: strings.Repeat("a", 64), AggregateID: strings.Repeat("i", 127) + "1"}
	other128 := long128
	other128.AggregateID = strings.Repeat("i", 127) + "2"
	keys := map[string]string{}
	add := func(name, key string) {
		t.Helper()
		if before, there := keys[key]; there {
			t.Errorf("%s and %s have the same key %q", before, name, key)
		}
		keys[key] = name
	}
	for name, ev := range map[string]waybill.Event{
		"order 1": order, "user 1": user, "a of b:c": short, "a:b of c": long, "128 bytes": long128, "other 128 bytes": other128,
	} {
		add(name+", natural", ev.NaturalKey())
		add(name+", version 1", ev.VersionKey(1))
		add(name+", version 2026022822", ev.VersionKey(2026022822))
		add(name+", hour", ev.HourKey(at))
		add(name+", parts", waybill.DedupKey(ev.AggregateType, ev.Type, ev.AggregateID, "1"))
		add(name+", parts with the tail", waybill.DedupKey(ev.AggregateType, ev.Type, ev.AggregateID+"#1"))
	}
	for i, parts := range [][]string{{"a", "b", "c"}, {"a:b", "c"}, {"a", "b:c"}, {"a:b:c"}, {"a%3Ab", "c"}, {"a", "b", "c", ""}, {"", "a", "b", "c"}} {
		add(fmt.Sprintf("parts %d", i), waybill.DedupKey(parts...))
	}
}

// Every valid event has valid keys: a key that is too long is truncated and
// ends in a hash.
func TestDedupKeysFit(t *testing.T) {
	for _, filler := range []string{"x", "%", ":", "é", "日", "😀"} {
		fill := func(limit int) string { return strings.Repeat(filler, limit/len(filler)) }
		ev := waybill.Event{Type: fill(128), AggregateType: fill(64), AggregateID: fill(128), SchemaVersion: 1<<31 - 1, Payload: []byte("{}")}
		for name, key := range map[string]string{
			"natural": ev.NaturalKey(), "version": ev.VersionKey(-1 << 63), "hour": ev.HourKey(time.Now()),
			"parts": waybill.DedupKey(ev.Type, ev.AggregateID, ev.AggregateType),
		} {
			ev.DedupKey = key
			if err := ev.Validate(); err != nil {
				t.Errorf("%s key of %q: %v", name, filler, err)
			}
			if !strings.HasPrefix(key, waybill.DedupKey(filler)) || !strings.Contains(key, "#sha256-") || len(key) < 250 {
				t.Errorf("%s key of %q is %q", name, filler, key)
			}
		}
	}
	// The longest key that is kept as it is, and the shortest one that is
	// truncated.
	if key := waybill.DedupKey(strings.Repeat("k", 255)); key != strings.Repeat("k", 255) {
		t.Errorf("255 bytes became %q", key)
	}
	if key := waybill.DedupKey(strings.Repeat("k", 256)); len(key) != 255 ||
		key != strings.Repeat("k", 183)+"#sha256-"+"ce16fe78208a4e93f7158e62393680e025b2ad584f4e875ce903a654bb74cf93" {
		t.Errorf("256 bytes became %q (%d bytes)", key, len(key))
	}
}

// partsOf is the inverse of DedupKey for keys that were not shortened.
func partsOf(t *testing.T, key string) []string {
	t.Helper()
	if key == "" {
		return nil
	}
	parts := strings.Split(key, ":")
	for i, part := range parts {
		var b strings.Builder
		for len(part) > 0 {
			if part[0] == '#' {
				t.Fatalf("key %q: a part has a bare #", key)
			}
			if part[0] != '%' {
				b.WriteByte(part[0])
				part = part[1:]
				continue
			}
			if len(part) < 3 {
				t.Fatalf("key %q: an escape is cut off", key)
			}
			c, err := hex.DecodeString(part[1:3])
			if err != nil {
				t.Fatalf("key %q: %v", key, err)
			}
			b.Write(c)
			part = part[3:]
		}
		parts[i] = b.String()
	}
	return parts
}

// The input can be decoded from the key, so no two inputs have the same key.
func FuzzDedupKey(f *testing.F) {
	f.Add("Created", "order", "1", 1, int64(0))
	f.Add("a:b", "c", "d", 42, int64(1_772_316_000))
	f.Add("a", "b:c", "%3A", -1, int64(-1))
	f.Add("%", "%25", "#v1", 2026022822, int64(1)<<40)
	f.Add("", "#1", "::", 0, int64(1))
	f.Add(strings.Repeat("é", 64), strings.Repeat(":", 64), strings.Repeat("%", 128), 1, int64(1))
	f.Fuzz(func(t *testing.T, kind, aggregate, id string, version int, seconds int64) {
		ev := waybill.Event{Type: kind, AggregateType: aggregate, AggregateID: id, SchemaVersion: version}
		at := time.Unix(seconds%(1<<36), 0).UTC()
		if aggregate == "" {
			aggregate = waybill.GlobalAggregate
		}
		want := []string{aggregate, kind, id}
		tails := map[string]string{
			ev.NaturalKey(): fmt.Sprint(max(version, 1)), ev.VersionKey(version): fmt.Sprintf("v%d", version), ev.HourKey(at): "h" + at.Format("2006010215"),
		}
		if len(tails) != 3 {
			t.Errorf("two of the keys are the same: %q", tails)
		}
		for key, tail := range tails {
			body, got, ok := strings.Cut(key, "#")
			switch {
			case !ok || len(key) > 255:
				t.Errorf("the key is %q", key)
			case strings.HasPrefix(got, "sha256-"):
				if len(kind)+len(aggregate)+len(id) < 60 {
					t.Errorf("a short key was hashed: %q", key)
				}
			case got != tail || !slices.Equal(partsOf(t, body), want):
				t.Errorf("the key %q does not say %q %q", key, want, tail)
			}
		}
		for _, parts := range [][]string{{kind, aggregate, id}, {kind, id}, {id}, {"", id}, {id, ""}} {
			key := waybill.DedupKey(parts...)
			switch {
			case len(parts) == 1 && parts[0] == "":
				if key != "" {
					t.Errorf("one empty part has the key %q", key)
				}
			case len(key) > 255:
				t.Errorf("a key of %d bytes: %q", len(key), key)
			case strings.Contains(key, "#sha256-"):
				if utf8.ValidString(strings.Join(parts, "")) && !utf8.ValidString(key) {
					t.Errorf("the key %q was cut inside a character", key)
				}
			case !slices.Equal(partsOf(t, key), parts):
				t.Errorf("the key %q does not say %q", key, parts)
			}
		}
	})
}

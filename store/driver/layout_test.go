package driver_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// The vectors were computed with another program: databases and other languages
// must compute the same lanes.
func TestLaneOfVectors(t *testing.T) {
	sizes := []int{1, 2, 7, 32, 1024}
	for _, v := range []struct {
		tenant, kind, id string
		lanes            []int
	}{
		{"", "order", "1", []int{0, 1, 5, 25, 281}},
		{"acme", "order", "1", []int{0, 1, 6, 1, 929}},
		{"", "__GLOBAL__", "x", []int{0, 1, 3, 17, 753}},
		{"", "", "", []int{0, 0, 1, 0, 64}},
		{"日本語", "größe", "Zürich", []int{0, 1, 0, 21, 917}},
		{"a", "b", "", []int{0, 1, 0, 25, 89}},
		{"", "ab", "", []int{0, 1, 0, 19, 883}},
		{strings.Repeat("t", 64), strings.Repeat("a", 64), strings.Repeat("i", 128), []int{0, 1, 3, 1, 289}},
		{"", "order", "order-42", []int{0, 0, 0, 22, 982}},
	} {
		for i, n := range sizes {
			if got := driver.LaneOf(v.tenant, v.kind, v.id, n); got != v.lanes[i] {
				t.Errorf("LaneOf(%.10q, %.10q, %.10q, %d) is %d, want %d", v.tenant, v.kind, v.id, n, got, v.lanes[i])
			}
		}
	}
	for _, n := range []int{0, -1} {
		if got := driver.LaneOf("", "a", "b", n); got != 0 {
			t.Errorf("of %d lanes LaneOf chose %d", n, got)
		}
	}
}

// Events are spread about equally over the lanes.
func TestLaneOfSpreads(t *testing.T) {
	const n, each = 32, 500
	var count [n]int
	for i := range n * each {
		count[driver.LaneOf("", "order", fmt.Sprint(i), n)]++
	}
	for lane, c := range count {
		if c < each*3/4 || c > each*5/4 {
			t.Errorf("lane %d has %d of %d events", lane, c, n*each)
		}
	}
}

func TestLaneOfDoesNotAllocate(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { driver.LaneOf("acme", "order", "order-42", 32) }); n > 0 {
		t.Errorf("LaneOf allocates %v times", n)
	}
}

func TestHeadersRoundTrip(t *testing.T) {
	for _, h := range []map[string]string{
		nil, {}, {"a": "1"}, {"a": ""}, {"é": "😀", `"`: `\`, "<&>": "\u2028"},
	} {
		text, err := driver.EncodeHeaders(h)
		if err != nil {
			t.Fatalf("EncodeHeaders(%v): %v", h, err)
		}
		if (text == "") != (len(h) == 0) {
			t.Errorf("EncodeHeaders(%v) is %q", h, text)
		}
		got, err := driver.DecodeHeaders(text)
		if err != nil || !maps.Equal(got, h) {
			t.Errorf("%v came back as %v, %v", h, got, err)
		}
		if len(h) == 0 && got != nil {
			t.Errorf("no headers came back as %v, want nil", got)
		}
	}
	if _, err := driver.EncodeHeaders(map[string]string{"": "x"}); err == nil {
		t.Errorf("an empty name was accepted")
	}
}

func TestDecodeHeaders(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"": nil, "null": nil, "{}": nil, " { } ": nil, " null ": nil, `{"a":"b"}`: {"a": "b"}, `{ "a" : "\u00e9" }`: {"a": "é"},
		`{"a":"1","a":"2"}`: {"a": "2"},
	} {
		if got, err := driver.DecodeHeaders(text); err != nil || !maps.Equal(got, want) || want == nil && got != nil {
			t.Errorf("DecodeHeaders(%q) is %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"garbage", "{", `{"a":1}`, `{"a":null}`, `{"a":{}}`, `{"a":["b"]}`, `[]`, `"a"`, "1", "true", `{"":"x"}`, `{"a":"b"} x`, "\x00",
	} {
		if got, err := driver.DecodeHeaders(text); err == nil || got != nil {
			t.Errorf("DecodeHeaders(%q) is %v, %v, want an error", text, got, err)
		}
	}
}

// Decoding, encoding and decoding again gives the same headers.
func FuzzHeaders(f *testing.F) {
	for _, text := range []string{"", "null", "{}", `{"a":"b"}`, `{"a":null}`, `{"":""}`, `{"\ud800":"\u0000"}`, "{\"\xff\":\"\xfe\"}", `[1]`, `{"a":"1","a":"2"}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		first, err := driver.DecodeHeaders(text)
		if err != nil {
			if first != nil {
				t.Errorf("DecodeHeaders(%q) failed and returned %v", text, first)
			}
			return
		}
		if first != nil && len(first) == 0 {
			t.Errorf("DecodeHeaders(%q) is empty and not nil", text)
		}
		again, err := driver.EncodeHeaders(first)
		if err != nil {
			t.Fatalf("EncodeHeaders(%q): %v", first, err)
		}
		second, err := driver.DecodeHeaders(again)
		if err != nil || !maps.Equal(first, second) {
			t.Errorf("%q came back as %q, %v", first, second, err)
		}
	})
}

func TestCutError(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"short", "connection refused", "connection refused"},
		{"empty", "", ""},
		{"lines", "a\n\tb", "a\n\tb"},
		{"NUL", "a\x00b", "a?b"},
		{"broken", "a\xffb\xc3", "a?b?"},
		{"the replacement character", "a\ufffdb", "a?b"},
		{"exactly 4000", strings.Repeat("x", 4000), strings.Repeat("x", 4000)},
		{"4001", strings.Repeat("x", 4001), strings.Repeat("x", 4000)},
		{"runes at the edge", strings.Repeat("é", 2001), strings.Repeat("é", 2000)},
		{"a rune over the edge", "x" + strings.Repeat("é", 2000), "x" + strings.Repeat("é", 1999)},
		{"four bytes over the edge", "xyz" + strings.Repeat("😀", 1000), "xyz" + strings.Repeat("😀", 999)},
		// Latin-1 keeps its length.
		{"all broken", strings.Repeat("\xe9", 5000), strings.Repeat("?", 4000)},
		{"broken at the edge", strings.Repeat("x", 3999) + "\xc3\xa9", strings.Repeat("x", 3999)},
	} {
		got := driver.CutError(c.text)
		if got != c.want {
			t.Errorf("%s: %d bytes became %d, want %d", c.name, len(c.text), len(got), len(c.want))
		}
		if driver.CutError(got) != got {
			t.Errorf("%s: cutting twice is not the same as once", c.name)
		}
	}
}

func FuzzCutError(f *testing.F) {
	f.Add("plain", 1)
	f.Add("\xff\x00é", 1500)
	f.Add("😀", 1001)
	f.Fuzz(func(t *testing.T, text string, n int) {
		text = strings.Repeat(text, min(max(n, 1), 3000))
		got := driver.CutError(text)
		if len(got) > 4000 || !utf8.ValidString(got) || strings.ContainsRune(got, 0) {
			t.Errorf("%d bytes, valid: %v", len(got), utf8.ValidString(got))
		}
		if len(text) > 4000 && len(got) < 4000/3 {
			t.Errorf("%d bytes were cut to %d", len(text), len(got))
		}
	})
}

func TestHistoryReaches(t *testing.T) {
	id := waybill.NewID()
	at := id.Time()
	for from, want := range map[string]bool{
		"":      true,
		"never": false,
		"x":     false,
		at.Add(-2 * time.Hour).Format(time.RFC3339):                           true,
		at.Add(-2 * time.Hour).Add(time.Millisecond).Format(time.RFC3339Nano): true,
		// Within clockMargin.
		at.Add(-time.Minute).Format(time.RFC3339): false,
		at.Add(time.Hour).Format(time.RFC3339):    false,
	} {
		if got := driver.HistoryReaches(from, id); got != want {
			t.Errorf("history from %q, an event of %v: %v, want %v", from, at, got, want)
		}
	}
}

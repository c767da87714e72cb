package waybill_test

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
)

func TestNewIDIncreasesAcrossGoroutines(t *testing.T) {
	const goroutines, each = 8, 5000
	made := make([][]waybill.ID, goroutines)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			ids := make([]waybill.ID, each)
			for i := range ids {
				ids[i] = waybill.NewID()
			}
			made[g] = ids
		})
	}
	wg.Wait()
	seen := make(map[waybill.ID]bool, goroutines*each)
	for _, ids := range made {
		if !slices.IsSortedFunc(ids, func(a, b waybill.ID) int { return slices.Compare(a[:], b[:]) }) {
			t.Errorf("the ids of one goroutine do not increase")
		}
		for _, id := range ids {
			if seen[id] {
				t.Fatalf("id %s was made twice", id)
			}
			seen[id] = true
		}
	}
	// An id is larger than every id that was created before it, by any
	// goroutine.
	last := waybill.NewID()
	for range 1000 {
		next := make(chan waybill.ID)
		go func() { next <- waybill.NewID() }()
		if id := <-next; slices.Compare(id[:], last[:]) <= 0 {
			t.Fatalf("id %s was made after %s and is not larger", id, last)
		} else {
			last = id
		}
	}
}

func TestIDTime(t *testing.T) {
	before := time.Now().Truncate(time.Millisecond)
	id := waybill.NewID()
	// Other tests may have pushed the ids of the process slightly ahead of the
	// clock.
	if got := id.Time(); got.Before(before) || got.After(time.Now().Add(time.Minute)) || got.Location() != time.UTC {
		t.Errorf("the time of an id created at %v is %v", before, got)
	}
	if (waybill.ID{}).Time().UnixMilli() != 0 {
		t.Errorf("the zero id has the time %v", waybill.ID{}.Time())
	}
}

func TestIDTextRoundTrip(t *testing.T) {
	for _, id := range []waybill.ID{
		waybill.NewID(),
		{15: 1},
		{0: 0xff, 15: 0xff},
		{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255},
	} {
		text := id.String()
		if len(text) != 26 {
			t.Errorf("%q has %d characters, want 26", text, len(text))
		}
		parsed, err := waybill.ParseID(text)
		if err != nil || parsed != id {
			t.Errorf("ParseID(%q) is %v, %v", text, parsed, err)
		}
		data, err := json.Marshal(map[string]waybill.ID{"id": id})
		if err != nil || string(data) != `{"id":"`+text+`"}` {
			t.Errorf("as JSON: %s, %v", data, err)
		}
		var back map[string]waybill.ID
		if err := json.Unmarshal(data, &back); err != nil || back["id"] != id {
			t.Errorf("from JSON: %v, %v", back, err)
		}
		bin, err := id.MarshalBinary()
		if err != nil || len(bin) != 16 {
			t.Errorf("MarshalBinary: %x, %v", bin, err)
		}
		var other waybill.ID
		if err := other.UnmarshalBinary(bin); err != nil || other != id {
			t.Errorf("UnmarshalBinary: %v, %v", other, err)
		}
		bin[0] ^= 1 // the bytes are the caller's
		if again, _ := id.MarshalBinary(); slices.Equal(again, bin) {
			t.Errorf("MarshalBinary returns the id's own bytes")
		}
	}
}

// The text of the zero id is empty, and an empty text is the zero id.
func TestIDZero(t *testing.T) {
	var zero waybill.ID
	if !zero.IsZero() || waybill.NewID().IsZero() {
		t.Errorf("IsZero is wrong")
	}
	if text, err := zero.MarshalText(); err != nil || string(text) != "" {
		t.Errorf("MarshalText of zero: %q, %v", text, err)
	}
	id := waybill.NewID()
	if err := id.UnmarshalText(nil); err != nil || !id.IsZero() {
		t.Errorf("UnmarshalText of nothing: %v, %v", id, err)
	}
	if _, err := waybill.ParseID(""); err == nil {
		t.Errorf("ParseID accepts an empty text")
	}
}

// One id has one text: ParseID rejects the alternative spellings of Crockford's
// base 32.
func TestParseIDIsStrict(t *testing.T) {
	const good = "01J9ZK3V5M8Q4XWYR2T7N6P0HB"
	if _, err := waybill.ParseID(good); err != nil {
		t.Fatalf("ParseID(%q): %v", good, err)
	}
	for name, text := range map[string]string{
		"short":          good[:25],
		"long":           good + "0",
		"lower case":     strings.ToLower(good),
		"I for 1":        "0IJ9ZK3V5M8Q4XWYR2T7N6P0HB",
		"O for 0":        "O1J9ZK3V5M8Q4XWYR2T7N6P0HB",
		"L for 1":        "0LJ9ZK3V5M8Q4XWYR2T7N6P0HB",
		"U":              "01J9ZK3V5M8Q4XWYR2T7N6P0HU",
		"hyphen":         "01J9ZK3V5M8Q4-WYR2T7N6P0HB",
		"space":          " 1J9ZK3V5M8Q4XWYR2T7N6P0HB",
		"NUL":            "01J9ZK3V5M8Q4XWYR2T7N6P0H\x00",
		"more than 128":  "81J9ZK3V5M8Q4XWYR2T7N6P0HB",
		"multibyte":      "01J9ZK3V5M8Q4XWYR2T7N6P0é",
		"a uuid":         "0192fe61-ed28-4a27-ac96-9b26d5e1d22b",
		"26 of nonsense": strings.Repeat("!", 26),
	} {
		id, err := waybill.ParseID(text)
		if err == nil || !id.IsZero() {
			t.Errorf("%s: ParseID(%q) is %v, %v, want an error", name, text, id, err)
		}
		other := waybill.NewID()
		before := other
		if err := other.UnmarshalText([]byte(text)); err == nil || other != before {
			t.Errorf("%s: UnmarshalText(%q) changed the id to %v, %v", name, text, other, err)
		}
	}
	var id waybill.ID
	for _, n := range []int{0, 15, 17, 26} {
		if err := id.UnmarshalBinary(make([]byte, n)); err == nil {
			t.Errorf("UnmarshalBinary accepts %d bytes", n)
		}
	}
}

func TestIDUUID(t *testing.T) {
	id := waybill.ID{0x01, 0x92, 0xfe, 0x61, 0xed, 0x28, 0x4a, 0x27, 0xac, 0x96, 0x9b, 0x26, 0xd5, 0xe1, 0xd2, 0x2b}
	if got, want := id.UUID(), "0192fe61-ed28-4a27-ac96-9b26d5e1d22b"; got != want {
		t.Errorf("UUID is %s, want %s", got, want)
	}
}

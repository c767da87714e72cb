package waybill

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// A dedup key says which events mean the same, so that a second one is absorbed while the first is pending. Use it
// for "this fact must be told once"; never for "it changed again", because a change that meets an event already in
// delivery is absorbed by it, and its news is lost.
//
// An event that is absorbed is never delivered, so two facts must never share a key. The keys made here are injective:
// colons join parts, "#" begins the tail of an event's own key, and a part that contains one of them, or a percent
// sign, has it escaped. The form is
//
//	key  = part *(":" part) ["#" tail]
//	tail = schema version / "v" version / "h" hour / "sha256-" hash
//
// Only the keys of an event have a tail, so that no key of DedupKey is the key of an event. A key that would be longer
// than an event's DedupKey may be keeps its beginning and ends in the hash of the whole.

// NaturalKey returns "aggregateType:type:aggregateID#schemaVersion", the key of a thing that happens once to an
// aggregate.
func (e Event) NaturalKey() string {
	return e.key(strconv.Itoa(max(e.SchemaVersion, 1)))
}

// VersionKey returns "aggregateType:type:aggregateID#vVersion", the key of a thing that happens once to each version of
// an aggregate.
func (e Event) VersionKey(version int) string {
	return e.key("v" + strconv.Itoa(version))
}

// HourKey returns "aggregateType:type:aggregateID#hYYYYMMDDHH", in UTC: the key of a thing that may happen again every
// hour.
func (e Event) HourKey(at time.Time) string {
	return e.key("h" + at.UTC().Format("2006010215"))
}

// key returns the event's key with a tail.
func (e *Event) key(tail string) string {
	aggregateType := e.AggregateType
	if aggregateType == "" {
		aggregateType = GlobalAggregate // as Complete does: the key is the same before and after
	}
	return fitKey(joinKey(aggregateType, e.Type, e.AggregateID) + "#" + tail)
}

// DedupKey joins the parts of a key of your own with colons: DedupKey("enrollment", id). Different parts never have the
// same key: inside a part, ":", "#" and "%" are written as "%3A", "%23" and "%25". A key of more than 255 bytes is cut,
// and ends in "#sha256-" and the hash of the whole. Without parts, or with one that is empty, there is no key.
func DedupKey(parts ...string) string {
	return fitKey(joinKey(parts...))
}

var keyEscapes = strings.NewReplacer("%", "%25", ":", "%3A", "#", "%23")

func joinKey(parts ...string) string {
	escaped := make([]string, len(parts))
	for i, part := range parts {
		escaped[i] = keyEscapes.Replace(part)
	}
	return strings.Join(escaped, ":")
}

// fitKey shortens a key that is too long. What it returns then has a tail that no other key has.
func fitKey(key string) string {
	if len(key) <= maxDedupKey {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	tail := "#sha256-" + hex.EncodeToString(sum[:])
	end := maxDedupKey - len(tail)
	for end > 0 && !utf8.RuneStart(key[end]) {
		end--
	}
	return key[:end] + tail
}

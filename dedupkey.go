package waybill

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// A dedup key identifies events that mean the same: a second event with the key
// is absorbed while the first one is pending. Use a dedup key for a fact that
// is published once, never for "it changed again": a change that meets an event
// already in flight is absorbed by that event, and consumers never learn of the
// change.
//
// An absorbed event is never delivered, so two facts must never share a key.
// The keys made here are injective: colons join parts, "#" begins the tail of
// an event's own key, and colons, "#" and percent signs inside a part are
// escaped. The form is
//
//	key  = part *(":" part) ["#" tail]
//	tail = schema version / "v" version / "h" hour / "sha256-" hash
//
// Only the keys of an event have a tail, so that no key of DedupKey equals the
// key of an event. A key that exceeds the limit of Event.DedupKey is truncated
// and ends in the hash of the whole key.

// NaturalKey returns "aggregateType:type:aggregateID#schemaVersion", the key of
// an event that happens once per aggregate.
func (e Event) NaturalKey() string {
	return e.key(strconv.Itoa(max(e.SchemaVersion, 1)))
}

// VersionKey returns "aggregateType:type:aggregateID#vVersion", the key of an
// event that happens once per version of an aggregate.
func (e Event) VersionKey(version int) string {
	return e.key("v" + strconv.Itoa(version))
}

// HourKey returns "aggregateType:type:aggregateID#hYYYYMMDDHH", in UTC: the key
// of an event that may repeat every hour.
func (e Event) HourKey(at time.Time) string {
	return e.key("h" + at.UTC().Format("2006010215"))
}

// key returns the event's key with a tail.
func (e *Event) key(tail string) string {
	aggregateType := e.AggregateType
	if aggregateType == "" {
		// As in Complete: same key before and after.
		aggregateType = GlobalAggregate
	}
	return fitKey(joinKey(aggregateType, e.Type, e.AggregateID) + "#" + tail)
}

// DedupKey joins the parts of a custom key with colons: DedupKey("enrollment",
// id). Different parts never give the same key: inside a part, ":", "#" and "%"
// are written as "%3A", "%23" and "%25". A key of more than 255 bytes is
// truncated and ends in "#sha256-" and the hash of the whole key. Without
// parts, or with a single empty part, the key is empty.
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

// fitKey truncates a key that is too long. A truncated key has a tail that no
// other key has.
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

package waybill

import (
	"strconv"
	"strings"
	"time"
)

// A dedup key says which events mean the same, so that a second one is absorbed while the first is pending. Use it
// for "this fact must be told once"; never for "it changed again", because a change that meets an event already in
// delivery is absorbed by it, and its news is lost.

// NaturalKey returns "type:aggregateID:schemaVersion", the key of a thing that happens once to an aggregate.
func (e Event) NaturalKey() string {
	return e.VersionKey(max(e.SchemaVersion, 1))
}

// VersionKey returns "type:aggregateID:version", the key of a thing that happens once to each version of an aggregate.
func (e Event) VersionKey(version int) string {
	return DedupKey(e.Type, e.AggregateID, strconv.Itoa(version))
}

// HourKey returns "type:aggregateID:yyyyMMddHH", in UTC: the key of a thing that may happen again every hour.
func (e Event) HourKey(at time.Time) string {
	return DedupKey(e.Type, e.AggregateID, at.UTC().Format("2006010215"))
}

// DedupKey joins the parts of a key of your own with colons: DedupKey("enrolment", id).
func DedupKey(parts ...string) string {
	return strings.Join(parts, ":")
}

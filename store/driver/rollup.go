package driver

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
)

// Rollups is implemented by stores that keep how many events relays delivered,
// by minute, destination and type.
//
// A heartbeat brings rows: [store.Node.Rollup], in the form of [EncodeRollup].
// The store writes them in the transaction of the heartbeat; a heartbeat that
// is rejected writes none. Minute, Source, Destination and Type identify a row.
// Of a row that exists, the store keeps the higher value of each count: counts
// of a source only rise, so a heartbeat that is repeated, or that arrives
// behind a later one, changes nothing.
type Rollups interface {
	// ListRollups returns the sums of the counts that match, in the order of
	// At, Destination and Type.
	ListRollups(ctx context.Context, f RollupFilter) ([]Rollup, error)
	// MergeRollups adds rows of minutes to rows of hours, which have no source,
	// and deletes them: at most limit rows of hours that ended longer ago than
	// age, by the database's clock. It returns the number of deleted rows, and
	// may run on several nodes concurrently. A node must not send counts of a
	// minute that may be merged.
	MergeRollups(ctx context.Context, age time.Duration, limit int) (int, error)
	// PurgeRollups deletes at most limit rows that began longer ago than age,
	// and returns their number.
	PurgeRollups(ctx context.Context, age time.Duration, limit int) (int, error)
}

// RollupFilter selects counts; empty fields match everything.
type RollupFilter struct {
	// Since and Until select by the begin of the minute, or of the hour if its
	// minutes are merged: at or after Since, and before Until.
	Since, Until time.Time
	// Destination and Type are the name of a destination and a type of events.
	Destination, Type string
	// Step is the time that one result spans, in whole minutes; less counts as
	// a minute. A step begins at a multiple of its length since 1970.
	Step time.Duration
	// ByType makes the results differ by type; otherwise their types are empty.
	ByType bool
}

// Minutes returns Since, Until and Step as stores compare them: the first
// minute since 1970, the one after the last, and a number of minutes.
func (f RollupFilter) Minutes() (since, until, step int64) {
	until = maxMinute
	if !f.Until.IsZero() {
		until = ceilMinute(f.Until)
	}
	if !f.Since.IsZero() {
		since = ceilMinute(f.Since)
	}
	return max(since, 0), min(max(until, 0), maxMinute), max(int64(f.Step/time.Minute), 1)
}

// maxMinute is a minute that databases store as 32 bits, in the year 6053.
const maxMinute = 1<<31 - 1

func ceilMinute(t time.Time) int64 {
	m := t.Unix() / 60
	if t.After(time.Unix(m*60, 0)) {
		m++
	}
	return m
}

// MinuteOf returns the number of the minute of a time since 1970.
func MinuteOf(t time.Time) int64 { return min(max(t.Unix()/60, 0), maxMinute) }

// TimeOfMinute returns the time at which a minute since 1970 begins.
func TimeOfMinute(minute int64) time.Time { return time.Unix(minute*60, 0).UTC() }

// HourMinutes is the number of minutes of an hour: the span of merged rows.
const HourMinutes = 60

// MergeBefore returns the minute before which [Rollups.MergeRollups] merges
// rows at a time of the database: the begin of an hour.
func MergeBefore(now time.Time, age time.Duration) int64 {
	return MinuteOf(now.Add(-age)) / HourMinutes * HourMinutes
}

// Rollup holds the counts of a span of time.
type Rollup struct {
	// At is the time at which the span begins.
	At time.Time
	// Destination is the name of the destination; empty for a relay with one
	// sink. Type is the type of the events; empty for the types for which a
	// relay had no room.
	Destination, Type string
	RollupCounts
}

// RollupCounts are numbers of results of deliveries. An event counts at each of
// its destinations.
type RollupCounts struct {
	// Delivered is the number of deliveries that succeeded. Failed is the
	// number of those that did not and will be repeated. Dead is the number of
	// events that became dead letters.
	Delivered, Failed, Dead int64
}

// Add adds other counts.
func (c *RollupCounts) Add(o RollupCounts) {
	c.Delivered += o.Delivered
	c.Failed += o.Failed
	c.Dead += o.Dead
}

// Raise raises each count to that of o.
func (c *RollupCounts) Raise(o RollupCounts) {
	c.Delivered, c.Failed, c.Dead = max(c.Delivered, o.Delivered), max(c.Failed, o.Failed), max(c.Dead, o.Dead)
}

// RollupRow is a row that a heartbeat brings: what one node has counted in a
// minute so far.
type RollupRow struct {
	// Minute is the number of the minute since 1970, by the node's estimate of
	// the database's clock.
	Minute int64
	// Source identifies the counts of a node in a minute. It is new for each
	// minute and each run, and not the id of the node, which may change within
	// a minute.
	Source            waybill.ID
	Destination, Type string
	RollupCounts
}

// EncodeRollup returns the form in which a heartbeat brings rows: a JSON array
// of arrays [minute, source, destination, type, delivered, failed, dead]. The
// source has 32 hexadecimal digits. EncodeRollup returns "" for no rows.
func EncodeRollup(rows []RollupRow) string {
	if len(rows) == 0 {
		return ""
	}
	out := make([][7]any, len(rows))
	for i, r := range rows {
		out[i] = [7]any{
			r.Minute, hex.EncodeToString(r.Source[:]), cutText(r.Destination, MaxDestinationName), RollupType(r.Type),
			r.Delivered, r.Failed, r.Dead,
		}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return "" // impossible: numbers and strings
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

// maxRollupType is the maximum length of a type, that of an event.
const maxRollupType = 128

// RollupType returns the form in which a row has a type: writers without this
// library may store texts that are no types. Rows of a heartbeat whose types
// have the same form must be one row.
func RollupType(kind string) string { return cutText(kind, maxRollupType) }

// DecodeRollup reads the text that [EncodeRollup] writes. SQL stores pass the
// text to the database instead.
func DecodeRollup(text string) ([]RollupRow, error) {
	if text == "" {
		return nil, nil
	}
	var in [][7]json.RawMessage
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		return nil, fmt.Errorf("driver: roll-up: %w", err)
	}
	rows := make([]RollupRow, len(in))
	for i, fields := range in {
		r := &rows[i]
		var source string
		for at, to := range []any{&r.Minute, &source, &r.Destination, &r.Type, &r.Delivered, &r.Failed, &r.Dead} {
			if err := json.Unmarshal(fields[at], to); err != nil {
				return nil, fmt.Errorf("driver: roll-up: row %d: %w", i, err)
			}
		}
		id, err := hex.DecodeString(source)
		if err != nil || len(id) != len(r.Source) {
			return nil, fmt.Errorf("driver: roll-up: row %d: %q is not a source", i, source)
		}
		copy(r.Source[:], id)
	}
	return rows, nil
}

package drivertest

import (
	"bytes"
	"fmt"
	"maps"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
)

// differences returns the fields in which a read event differs from the written
// one. The checks of delays compare Delay and AvailableAt.
func differences(got, written waybill.Event) []string {
	want := eventfill.Defaults(written)
	var diffs []string
	differ := func(name string, same bool, got, want any) {
		if !same {
			diffs = append(diffs, fmt.Sprintf("%s is %.100q, want %.100q", name, fmt.Sprint(got), fmt.Sprint(want)))
		}
	}
	text := func(name, got, want string) { differ(name, got == want, got, want) }
	differ("ID", got.ID == want.ID, got.ID, want.ID)
	text("Type", got.Type, want.Type)
	text("AggregateType", got.AggregateType, want.AggregateType)
	text("AggregateID", got.AggregateID, want.AggregateID)
	text("TenantID", got.TenantID, want.TenantID)
	text("Topic", got.Topic, want.Topic)
	text("RoutingKey", got.RoutingKey, want.RoutingKey)
	text("SchemaID", got.SchemaID, want.SchemaID)
	differ("SchemaVersion", got.SchemaVersion == want.SchemaVersion, got.SchemaVersion, want.SchemaVersion)
	text("DedupKey", got.DedupKey, want.DedupKey)
	if !written.OccurredAt.IsZero() { // otherwise the write set it
		differ("OccurredAt", got.OccurredAt.Equal(want.OccurredAt), got.OccurredAt, want.OccurredAt)
	}
	differ("OccurredAt", inMicrosUTC(got.OccurredAt), got.OccurredAt, "a time in UTC without nanoseconds")
	differ("Delay", got.Delay == 0, got.Delay, 0)
	differ("Priority", got.Priority == want.Priority, got.Priority, want.Priority)
	text("CorrelationID", got.CorrelationID, want.CorrelationID)
	text("CausationID", got.CausationID, want.CausationID)
	differ("Headers", maps.Equal(got.Headers, want.Headers), got.Headers, want.Headers)
	text("ContentType", got.ContentType, want.ContentType)
	differ("Payload", bytes.Equal(got.Payload, want.Payload), got.Payload, want.Payload)
	return diffs
}

func inMicrosUTC(t time.Time) bool {
	return !t.IsZero() && t.Location() == time.UTC && t.Nanosecond()%1000 == 0
}

// wantEvent asserts that a row holds the event as it was written, in the right
// lane.
func wantEvent(t tb, row row, written waybill.Event) {
	t.Helper()
	if row.Err != nil {
		t.Errorf("event %s cannot be read: %v", row.ID, row.Err)
	}
	for _, diff := range differences(row.Event, written) {
		t.Errorf("event %s as it was read: %s", row.ID, diff)
	}
	if !inMicrosUTC(row.CreatedAt) {
		t.Errorf("CreatedAt is %v, want a time in UTC without nanoseconds", row.CreatedAt)
	}
	if row.Event.Payload == nil {
		t.Errorf("the payload of event %s is nil, want an empty one", row.ID)
	}
}

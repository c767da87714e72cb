package eventrow_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
)

var encoder = eventrow.Encoder{
	ID:   func(id waybill.ID) any { return id[:] },
	Time: func(t time.Time) any { return t.UnixMicro() },
}

func TestEncoderFollowsColumns(t *testing.T) {
	ev := eventfill.Defaults(waybill.Event{Type: "A", Payload: []byte("1")})
	args, err := encoder.Append(nil, ev)
	if err != nil || len(args) != len(eventrow.Columns()) {
		t.Fatalf("%d values, %v; want one for each of %d columns", len(args), err, len(eventrow.Columns()))
	}
	for i, name := range eventrow.Columns() {
		required := strings.Contains(" id type aggregate_type topic schema_version occurred_at priority payload ", " "+name+" ")
		if (args[i] == nil) == required {
			t.Errorf("%s is %v", name, args[i])
		}
	}
}

// TestFinish: a row that cannot be decoded is reported with the readable
// values.
func TestFinish(t *testing.T) {
	row := store.Row{Event: waybill.Event{Type: "A"}}
	eventrow.Finish(&row, `{"a": 1}`)
	if row.Err == nil || row.Event.Topic != "A" {
		t.Errorf("headers that are no strings: %+v", row)
	}
	row = store.Row{Err: errors.New("the id is broken")}
	eventrow.Finish(&row, `{"a": 1}`)
	if row.Err == nil || row.Err.Error() != "the id is broken" {
		t.Errorf("the first problem counts, got %v", row.Err)
	}
	row = store.Row{}
	eventrow.Finish(&row, "")
	if row.Err == nil {
		t.Error("a row without a type was accepted")
	}
	at := time.Date(2031, 1, 2, 3, 4, 5, 6000, time.UTC)
	row = store.Row{CreatedAt: at, Event: waybill.Event{Type: "A"}}
	eventrow.Finish(&row, "")
	if ev := row.Event; row.Err != nil || ev.AggregateType != waybill.GlobalAggregate || ev.Topic != "A" || ev.ContentType != waybill.JSON ||
		ev.SchemaVersion != 1 || !ev.OccurredAt.Equal(at) || ev.Payload == nil {
		t.Errorf("the defaults of a row are %+v, %v", ev, row.Err)
	}
	full := waybill.Event{Type: "A", AggregateType: "a", Topic: "t", ContentType: "text/plain", SchemaVersion: 2, OccurredAt: at.Add(-1), Payload: []byte("x")}
	row = store.Row{CreatedAt: at, Event: full}
	eventrow.Finish(&row, "")
	if ev := row.Event; ev.AggregateType != "a" || ev.Topic != "t" || ev.ContentType != "text/plain" || ev.SchemaVersion != 2 || ev.OccurredAt != full.OccurredAt {
		t.Errorf("a row that has all fields became %+v", ev)
	}
}

func ExampleEncoder_Append() {
	ev := waybill.Event{ID: waybill.ID{15: 1}, Type: "OrderPlaced", AggregateID: "A-1", OccurredAt: time.Unix(1, 0), Payload: []byte("{}")}
	args, err := encoder.Append([]any{"lane 3"}, eventfill.Defaults(ev))
	fmt.Println(len(args), args[0], args[2], args[4], args[5], err)
	// Output: 18 lane 3 OrderPlaced A-1 <nil> <nil>
}

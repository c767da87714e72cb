package inbox_test

import (
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestDestinationsAreApart: no two kinds of events share a destination of a
// group or a bus, even if a type contains colons.
func TestDestinationsAreApart(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(db, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	group := in.MustGroup("g", inbox.Options{})
	one, two := waybill.Event{AggregateType: "a:b", Type: "c"}, waybill.Event{AggregateType: "a", Type: "b:c"}
	usual := waybill.Event{AggregateType: "order", Type: "OrderPlaced"}
	for name, destination := range map[string]func(*waybill.Event) string{
		"group": group.Destination, "bus": inbox.NewBus(group).Destination,
	} {
		if destination(&one) == destination(&two) {
			t.Errorf("%s: both are %s", name, destination(&one))
		}
		if got := destination(&usual); got != "order:OrderPlaced" {
			t.Errorf("%s: a usual destination is %s", name, got)
		}
	}
}

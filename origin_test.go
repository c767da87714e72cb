package waybill_test

import (
	"context"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
)

func TestOrigin(t *testing.T) {
	ctx := context.Background()
	if got := waybill.OriginFrom(ctx); got != (waybill.Origin{}) {
		t.Errorf("nothing has the origin %+v", got)
	}
	given := waybill.Origin{TenantID: "acme", CorrelationID: "corr", CausationID: "cause"}
	from := waybill.ContextWithOrigin(ctx, given)
	if got := waybill.OriginFrom(from); got != given {
		t.Errorf("the origin is %+v, want %+v", got, given)
	}
	handled := waybill.Delivery{Event: waybill.Event{ID: waybill.NewID(), TenantID: "t", CorrelationID: "c", CausationID: "not this"}, Attempt: 2}
	handling := waybill.ContextWithDelivery(ctx, handled)
	if got, want := waybill.OriginFrom(handling), (waybill.Origin{TenantID: "t", CorrelationID: "c", CausationID: handled.ID.String()}); got != want {
		t.Errorf("in a handler the origin is %+v, want %+v", got, want)
	}
	// The explicit origin wins field by field, in either order of the two
	// calls.
	for name, both := range map[string]context.Context{
		"origin in delivery": waybill.ContextWithOrigin(handling, waybill.Origin{TenantID: "mine"}),
		"delivery in origin": waybill.ContextWithDelivery(waybill.ContextWithOrigin(ctx, waybill.Origin{TenantID: "mine"}), handled),
	} {
		if got, want := waybill.OriginFrom(both), (waybill.Origin{TenantID: "mine", CorrelationID: "c", CausationID: handled.ID.String()}); got != want {
			t.Errorf("%s: the origin is %+v, want %+v", name, got, want)
		}
	}
	if got := waybill.OriginFrom(waybill.ContextWithDelivery(ctx, waybill.Delivery{})); got.CausationID != "" {
		t.Errorf("an event without an id is the cause %q", got.CausationID)
	}
}

func TestOriginFill(t *testing.T) {
	o := waybill.Origin{TenantID: "t", CorrelationID: "c", CausationID: "a"}
	if got := eventfill.Origin(o, waybill.Event{}); got.TenantID != "t" || got.CorrelationID != "c" || got.CausationID != "a" {
		t.Errorf("an empty event became %+v", got)
	}
	own := waybill.Event{TenantID: "1", CorrelationID: "2", CausationID: "3"}
	if got := eventfill.Origin(o, own); got.TenantID != "1" || got.CorrelationID != "2" || got.CausationID != "3" {
		t.Errorf("an event's own origin became %+v", got)
	}
}

func TestDeliveryFrom(t *testing.T) {
	if _, ok := waybill.DeliveryFrom(context.Background()); ok {
		t.Errorf("nothing is a delivery")
	}
	pos := waybill.Position{Lane: 3, Epoch: 2, Seq: 7}
	token := waybill.NewID()
	d := waybill.Delivery{Event: waybill.Event{Type: "t"}, Attempt: 1, Position: pos, Claim: token}
	got, ok := waybill.DeliveryFrom(waybill.ContextWithDelivery(context.Background(), d))
	if !ok || got.Type != "t" || got.Attempt != 1 || got.Position != pos || got.Claim != any(token) {
		t.Errorf("the delivery is %+v, %v", got, ok)
	}
}

func TestPositionNewer(t *testing.T) {
	at := func(lane int, epoch, seq int64) waybill.Position {
		return waybill.Position{Lane: lane, Epoch: epoch, Seq: seq}
	}
	for _, c := range []struct {
		p, q waybill.Position
		want bool
	}{
		{at(0, 1, 2), at(0, 1, 1), true},
		{at(0, 1, 1), at(0, 1, 1), false},
		{at(0, 1, 1), at(0, 1, 2), false},
		{at(0, 2, 1), at(0, 1, 9), true}, // new owner, lower seq
		{at(0, 1, 9), at(0, 2, 1), false},
		{at(1, 9, 9), at(0, 1, 1), false}, // different lanes
	} {
		if got := c.p.Newer(c.q); got != c.want {
			t.Errorf("%+v newer than %+v is %v", c.p, c.q, got)
		}
	}
}

func TestLog(t *testing.T) {
	var l waybill.Log
	if n := len(l.Raised()); n != 0 {
		t.Errorf("a new log has %d events", n)
	}
	given := waybill.Event{ID: waybill.NewID(), Type: "given"}
	l.Raise(waybill.Event{Type: "one"}, given)
	l.Raise(waybill.Event{Type: "three"})
	first := l.Raised()
	if len(first) != 3 || first[0].Type != "one" || first[1].ID != given.ID || first[0].ID.IsZero() || first[2].ID.IsZero() {
		t.Fatalf("raised are %+v", first)
	}
	if second := l.Raised(); second[0].ID != first[0].ID || second[2].ID != first[2].ID {
		t.Errorf("an event was given another id")
	}
	first[0].Type = "changed"
	if l.Raised()[0].Type != "one" {
		t.Errorf("the slice is not the caller's own")
	}
	l.ForgetRaised(2)
	if left := l.Raised(); len(left) != 1 || left[0].Type != "three" {
		t.Errorf("left are %+v", left)
	}
	l.ForgetRaised(-1)
	l.ForgetRaised(0)
	if len(l.Raised()) != 1 {
		t.Errorf("forgetting none forgot some")
	}
	l.ForgetRaised(99)
	if len(l.Raised()) != 0 {
		t.Errorf("forgetting all left some")
	}
	l.Raise(waybill.Event{Type: "again"})
	if len(l.Raised()) != 1 {
		t.Errorf("a log that was emptied takes no more")
	}
}

package waybill_test

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
)

type placed struct {
	Total int `json:"total"`
}

func TestDefineNewAndDecode(t *testing.T) {
	d := waybill.Define[placed]("OrderPlaced", waybill.Spec{
		AggregateType: "order", Topic: "orders", SchemaID: "order-v2", SchemaVersion: 2, ContentType: "application/vnd.order+json",
	})
	if d.Type() != "OrderPlaced" || d.AggregateType() != "order" {
		t.Errorf("the definition is of %s, %s", d.Type(), d.AggregateType())
	}
	ev := d.New("o-1", placed{Total: 9990})
	if err := ev.Validate(); err != nil {
		t.Fatalf("Validate: %v", err)
	}
	if ev.Type != "OrderPlaced" || ev.AggregateType != "order" || ev.AggregateID != "o-1" || ev.Topic != "orders" ||
		ev.SchemaID != "order-v2" || ev.SchemaVersion != 2 || ev.ContentType != "application/vnd.order+json" ||
		string(ev.Payload) != `{"total":9990}` {
		t.Errorf("the event is %+v", ev)
	}
	p, err := d.Decode(eventfill.Defaults(ev))
	if err != nil || p.Total != 9990 {
		t.Errorf("Decode: %+v, %v", p, err)
	}
	bare := waybill.Define[placed]("Ping", waybill.Spec{})
	if bare.AggregateType() != waybill.GlobalAggregate || bare.New("", placed{}).Ordered() {
		t.Errorf("a definition without an aggregate type is of %s", bare.AggregateType())
	}
	if ev := bare.New("some-id", placed{}); !ev.Ordered() || ev.Validate() != nil {
		t.Errorf("a definition without an aggregate type refuses an aggregate: %v", ev.Validate())
	}
}

// An encoding error or a missing aggregate is stored in the event and reported
// by Validate.
func TestDefinitionKeepsErrors(t *testing.T) {
	d := waybill.Define[any]("T", waybill.Spec{AggregateType: "order"})
	for name, ev := range map[string]waybill.Event{
		"AggregateID": d.New("", 1),
		"Payload":     d.New("o-1", math.Inf(1)),
		"Type":        waybill.Definition[int]{}.New("", 1),
	} {
		if got := fields(ev.Validate()); len(got) != 1 || got[0] != name {
			t.Errorf("Validate: %v, want an error about %s", ev.Validate(), name)
		}
		if got := fields(eventfill.Defaults(ev).Validate()); len(got) != 1 {
			t.Errorf("completing the event lost its error about %s", name)
		}
	}
}

func TestDecodeErrorsArePermanent(t *testing.T) {
	d := waybill.Define[placed]("OrderPlaced", waybill.Spec{})
	for name, ev := range map[string]waybill.Event{
		"another type":  {Type: "OrderPaid", Payload: []byte(`{}`)},
		"not JSON":      {Type: "OrderPlaced", Payload: []byte(`{`)},
		"another shape": {Type: "OrderPlaced", Payload: []byte(`{"total": "much"}`)},
	} {
		p, err := d.Decode(ev)
		if class, _ := waybill.Classify(err); class != waybill.ClassPermanent || p != (placed{}) {
			t.Errorf("%s: Decode is %+v, %v of class %s, want permanent", name, p, err, class)
		}
	}
}

func TestDefinePanicsOnBadNames(t *testing.T) {
	for name, define := range map[string]func(){
		"no type":         func() { waybill.Define[placed]("", waybill.Spec{}) },
		"a long type":     func() { waybill.Define[placed](strings.Repeat("x", 129), waybill.Spec{}) },
		"a bad topic":     func() { waybill.Define[placed]("T", waybill.Spec{Topic: "a\nb"}) },
		"a bad version":   func() { waybill.Define[placed]("T", waybill.Spec{SchemaVersion: -1}) },
		"a bad aggregate": func() { waybill.Define[placed]("T", waybill.Spec{AggregateType: strings.Repeat("x", 65)}) },
		"no codec":        func() { waybill.Define[placed]("T", waybill.Spec{ContentType: "application/protobuf"}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: Define did not panic", name)
				}
			}()
			define()
		}()
	}
}

// number is a custom codec.
type number struct{}

func (number) Marshal(v any) ([]byte, error) {
	n := v.(uint64)
	if n == 0 {
		return nil, errors.New("zero")
	}
	return binary.BigEndian.AppendUint64(nil, n), nil
}

func (number) Unmarshal(data []byte, v any) error {
	if len(data) != 8 {
		return errors.New("not 8 bytes")
	}
	*v.(*uint64) = binary.BigEndian.Uint64(data)
	return nil
}

func TestDefineWithACodec(t *testing.T) {
	d := waybill.Define[uint64]("N", waybill.Spec{ContentType: "application/octet-stream", Codec: number{}})
	ev := d.New("", 7)
	if n, err := d.Decode(eventfill.Defaults(ev)); err != nil || n != 7 || len(ev.Payload) != 8 || ev.Validate() != nil {
		t.Errorf("round trip: %d, %v, payload %x", n, err, ev.Payload)
	}
	if got := fields(d.New("", 0).Validate()); len(got) != 1 || got[0] != "Payload" {
		t.Errorf("the codec's error is lost: %v", got)
	}
	if _, err := d.Decode(waybill.Event{Type: "N"}); err == nil {
		t.Errorf("the codec's error is lost")
	}
}

// A []byte payload needs no codec, and the definition does not retain it.
func TestDefineBytes(t *testing.T) {
	d := waybill.Define[[]byte]("B", waybill.Spec{ContentType: "image/png"})
	data := []byte{0, 255, 1}
	ev := eventfill.Defaults(d.New("", data))
	got, err := d.Decode(ev)
	if err != nil || string(got) != string(data) {
		t.Fatalf("round trip: %x, %v", got, err)
	}
	got[0] = 9
	if ev.Payload[0] != 0 {
		t.Errorf("decoded bytes are the event's own")
	}
}

// TestDefineWithADedupKey: the definition's key is that of each new event, and
// may be replaced.
func TestDefineWithADedupKey(t *testing.T) {
	d := waybill.Define[placed]("OrderPlaced", waybill.Spec{AggregateType: "order", SchemaVersion: 3, DedupKey: waybill.Event.NaturalKey})
	ev := d.New("o-1", placed{Total: 1})
	if want := "order:OrderPlaced:o-1#3"; ev.DedupKey != want || ev.NaturalKey() != want {
		t.Errorf("the key is %q, want %q", ev.DedupKey, want)
	}
	payload := waybill.Define[placed]("OrderPlaced", waybill.Spec{DedupKey: func(ev waybill.Event) string { return string(ev.Payload) }})
	if ev := payload.New("", placed{Total: 7}); ev.DedupKey != `{"total":7}` {
		t.Errorf("the function does not get the payload: %q", ev.DedupKey)
	}
	if ev := waybill.Define[placed]("OrderPlaced", waybill.Spec{}).New("", placed{}); ev.DedupKey != "" {
		t.Errorf("without a function, the key is %q", ev.DedupKey)
	}
}

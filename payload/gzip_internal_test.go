package payload

import (
	"testing"

	"github.com/waybillhq/waybill"
)

// TestBomb: a payload that grows beyond the limit when it is opened is
// rejected, and one above the limit is not compressed.
func TestBomb(t *testing.T) {
	if c := Gzip(7); c != (compression{7, MaxOpened}) {
		t.Errorf("the limit is %+v", c)
	}
	gzip := compression{limit: 1000}
	sealed, _, _, err := gzip.Seal(t.Context(), waybill.Event{}, make([]byte, 1000))
	if err != nil {
		t.Fatal(err)
	}
	if data, err := gzip.Open(t.Context(), waybill.Event{}, nil, sealed); err != nil || len(data) != 1000 {
		t.Errorf("a payload of the largest size: %d bytes, %v", len(data), err)
	}
	// a gzip stream may have several members
	larger, _, _, err := gzip.Seal(t.Context(), waybill.Event{}, make([]byte, 100))
	if err != nil {
		t.Fatal(err)
	}
	_, err = gzip.Open(t.Context(), waybill.Event{}, nil, append(sealed, larger...))
	if class, _ := waybill.Classify(err); class != waybill.ClassPermanent {
		t.Errorf("a larger one: %v", err)
	}
	if _, _, ok, err := gzip.Seal(t.Context(), waybill.Event{}, make([]byte, 1001)); ok || err != nil {
		t.Errorf("a payload that would not open is sealed: %v, %v", ok, err)
	}
}

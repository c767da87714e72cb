package eventrow_test

import (
	"slices"
	"testing"

	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// TestPlain: a lane without a row that was seen has no priority row, if the
// store has looked for any.
func TestPlain(t *testing.T) {
	from := []driver.Cursor{{Lane: 1}, {Lane: 2}, {Lane: 3}}
	seen := []driver.RowRef{{Key: store.Key{Lane: 2, Seq: 9}}}
	for limit, want := range map[int][]int{0: nil, 1: {1, 3}} {
		if got := eventrow.Plain(from, seen, limit); !slices.Equal(got, want) {
			t.Errorf("limit %d: the lanes %v have no priority row, want %v", limit, got, want)
		}
	}
}

package eventrow_test

import (
	"slices"
	"testing"

	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
)

func TestSort(t *testing.T) {
	key := func(k *store.Key) store.Key { return *k }
	want := []store.Key{{Lane: 1, Seq: 5}, {Lane: 1, Seq: 9}, {Lane: 2, Seq: 3}, {Lane: 2, Seq: 4}}
	for _, order := range [][]int{{0, 1, 2, 3}, {0, 1, 3, 2}, {2, 3, 0, 1}, {3, 2, 1, 0}, {1, 0, 2, 3}} {
		var rows []store.Key
		for _, i := range order {
			rows = append(rows, want[i])
		}
		eventrow.Sort(rows, key)
		if !slices.Equal(rows, want) {
			t.Errorf("%v is sorted to %v", order, rows)
		}
	}
	eventrow.Sort(nil, key)
}

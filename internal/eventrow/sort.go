package eventrow

import (
	"cmp"
	"slices"

	"github.com/waybillhq/waybill/store"
)

// Sort sorts rows by lane and seq. Rows are nearly always in this order
// already; then Sort only checks them in place. Sorting in the database would
// move the payloads through the sort.
func Sort[E any](rows []E, key func(*E) store.Key) {
	order := func(a, b *E) int { return compareKeys(key(a), key(b)) }
	for i := 1; i < len(rows); i++ {
		if order(&rows[i-1], &rows[i]) > 0 {
			slices.SortFunc(rows, func(a, b E) int { return order(&a, &b) })
			return
		}
	}
}

func compareKeys(a, b store.Key) int {
	return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Seq, b.Seq))
}

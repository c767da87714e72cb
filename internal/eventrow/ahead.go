package eventrow

import (
	"slices"

	"github.com/waybillhq/waybill/store"
)

// AheadReach is how many rows with a priority a store looks at, for each that is asked for: some
// of them wait for others.
const AheadReach = 10

// aheadShare: one aggregate has at most this part of the rows, so that it does not keep the
// others out.
const aheadShare = 8

// Ahead picks, of rows with a priority in the order of lane and seq, those that may be taken
// ahead of the others, at most limit per lane: unordered ones, and those that have no row of
// their aggregate without a priority between the cursor and them. plain returns the seq of the
// first such row of each of these aggregates in the cursor's stretch; it may return other
// aggregates as well. looked is how long the longest of these stretches is.
func Ahead(
	from []store.Cursor, seen []store.RowRef, limit int, plain func(store.Cursor, []store.Aggregate) (map[store.Aggregate]int64, error),
) (keys []store.Key, looked int, err error) {
	for _, c := range from {
		var aggs []store.Aggregate
		many := make(map[store.Aggregate]int)
		for i := range seen {
			if s := &seen[i]; s.Lane == c.Lane && !s.Aggregate.IsZero() {
				c.UpTo = s.Seq
				if many[s.Aggregate]++; many[s.Aggregate] == 1 {
					aggs = append(aggs, s.Aggregate)
				}
			}
		}
		var first map[store.Aggregate]int64
		if len(aggs) > 0 {
			looked = max(looked, int(c.UpTo-c.After))
			if first, err = plain(c, aggs); err != nil {
				return nil, 0, err
			}
		}
		clear(many)
		most := max(limit/aheadShare, 1)
		left := limit
		for i := range seen {
			s := &seen[i]
			if s.Lane != c.Lane || left <= 0 {
				continue
			}
			if !s.Aggregate.IsZero() {
				if seq, waits := first[s.Aggregate]; waits && seq < s.Seq || many[s.Aggregate] >= most {
					continue
				}
				many[s.Aggregate]++
			}
			keys = append(keys, s.Key)
			left--
		}
	}
	slices.SortFunc(keys, compareKeys)
	return keys, looked, nil
}

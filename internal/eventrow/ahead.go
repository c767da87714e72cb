package eventrow

import (
	"slices"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// AheadReach is the number of priority rows that a store inspects for each
// requested row: some of them wait for other rows.
const AheadReach = 10

// aheadShare limits one aggregate to this fraction of the rows, so that it does
// not crowd out the others.
const aheadShare = 8

// Ahead selects, from priority rows in the order of lane and seq, those that
// may be delivered ahead of the others, at most limit per lane: unordered rows,
// and rows without a plain row of their aggregate between the cursor and them.
// plain returns the seq of the first such row of each of these aggregates in
// the cursor's range; it may return other aggregates as well. looked is the
// length of the longest of these ranges.
func Ahead(
	from []driver.Cursor, seen []driver.RowRef, limit int, plain func(driver.Cursor, []store.Aggregate) (map[store.Aggregate]int64, error),
) (keys []store.Key, looked int, err error) {
	for _, c := range from {
		var aggs []store.Aggregate
		taken := make(map[store.Aggregate]int)
		for i := range seen {
			if s := &seen[i]; s.Lane == c.Lane && !s.Aggregate.IsZero() {
				c.UpTo = s.Seq
				if taken[s.Aggregate]++; taken[s.Aggregate] == 1 {
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
		clear(taken)
		share := max(limit/aheadShare, 1)
		left := limit
		for i := range seen {
			s := &seen[i]
			if s.Lane != c.Lane || left <= 0 {
				continue
			}
			if !s.Aggregate.IsZero() {
				if seq, waits := first[s.Aggregate]; waits && seq < s.Seq || taken[s.Aggregate] >= share {
					continue
				}
				taken[s.Aggregate]++
			}
			keys = append(keys, s.Key)
			left--
		}
	}
	slices.SortFunc(keys, compareKeys)
	return keys, looked, nil
}

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
		aggs, last := aggregatesOf(seen, c.Lane)
		var first map[store.Aggregate]int64
		if len(aggs) > 0 {
			c.UpTo = last
			looked = max(looked, int(c.UpTo-c.After))
			if first, err = plain(c, aggs); err != nil {
				return nil, 0, err
			}
		}
		keys = appendAhead(keys, seen, c.Lane, limit, first)
	}
	slices.SortFunc(keys, compareKeys)
	return keys, looked, nil
}

// Plain returns the lanes of cursors in whose range no priority row was seen:
// none if the store looked for no rows.
func Plain(from []driver.Cursor, seen []driver.RowRef, limit int) (lanes []int) {
	if limit <= 0 {
		return nil
	}
	for _, c := range from {
		if !slices.ContainsFunc(seen, func(s driver.RowRef) bool { return s.Lane == c.Lane }) {
			lanes = append(lanes, c.Lane)
		}
	}
	return lanes
}

// aggregatesOf returns the aggregates of a lane's rows, each once, and the
// highest seq of their rows.
func aggregatesOf(seen []driver.RowRef, lane int) (aggs []store.Aggregate, last int64) {
	known := make(map[store.Aggregate]bool)
	for i := range seen {
		s := &seen[i]
		if s.Lane != lane || s.Aggregate.IsZero() {
			continue
		}
		last = s.Seq
		if !known[s.Aggregate] {
			known[s.Aggregate] = true
			aggs = append(aggs, s.Aggregate)
		}
	}
	return aggs, last
}

// appendAhead appends the keys of a lane's rows that may be delivered, at most
// limit. first has the seq of the first plain row of each aggregate.
func appendAhead(keys []store.Key, seen []driver.RowRef, lane, limit int, first map[store.Aggregate]int64) []store.Key {
	chosen := make(map[store.Aggregate]int)
	maxPerAggregate := max(limit/aheadShare, 1)
	for i := range seen {
		s := &seen[i]
		if s.Lane != lane || limit <= 0 {
			continue
		}
		if !s.Aggregate.IsZero() {
			if seq, waits := first[s.Aggregate]; waits && seq < s.Seq || chosen[s.Aggregate] >= maxPerAggregate {
				continue
			}
			chosen[s.Aggregate]++
		}
		keys = append(keys, s.Key)
		limit--
	}
	return keys
}

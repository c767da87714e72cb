package memstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// rollupKey identifies a row of counts. The span is a number of minutes; a row
// of an hour has no source.
type rollupKey struct {
	span, minute      int64
	source            waybill.ID
	destination, kind string
}

func (k rollupKey) compare(o rollupKey) int {
	return cmp.Or(cmp.Compare(k.minute, o.minute), cmp.Compare(k.span, o.span), slices.Compare(k.source[:], o.source[:]),
		strings.Compare(k.destination, o.destination), strings.Compare(k.kind, o.kind))
}

// countUp stores the rows that a heartbeat brought; mu is held.
func (t *tables) countUp(rows []driver.RollupRow) {
	for _, r := range rows {
		key := rollupKey{span: 1, minute: r.Minute, source: r.Source, destination: r.Destination, kind: r.Type}
		counts := t.rollups[key]
		counts.Raise(r.RollupCounts)
		t.rollups[key] = counts
	}
}

// ListRollups implements [driver.Rollups].
func (t *tables) ListRollups(_ context.Context, f driver.RollupFilter) ([]driver.Rollup, error) {
	since, until, step := f.Minutes()
	sums := make(map[rollupKey]driver.RollupCounts)
	t.mu.Lock()
	for k, counts := range t.rollups {
		if k.minute < since || k.minute >= until || f.Destination != "" && k.destination != f.Destination || f.Type != "" && k.kind != f.Type {
			continue
		}
		key := rollupKey{minute: k.minute / step * step, destination: k.destination}
		if f.ByType {
			key.kind = k.kind
		}
		sum := sums[key]
		sum.Add(counts)
		sums[key] = sum
	}
	t.mu.Unlock()
	var out []driver.Rollup
	for _, k := range inOrder(sums) {
		out = append(out, driver.Rollup{At: driver.TimeOfMinute(k.minute), Destination: k.destination, Type: k.kind, RollupCounts: sums[k]})
	}
	return out, nil
}

// inOrder returns the keys of rows in their order.
func inOrder(rows map[rollupKey]driver.RollupCounts) []rollupKey {
	var keys []rollupKey
	for k := range rows {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, rollupKey.compare)
	return keys
}

// MergeRollups implements [driver.Rollups].
func (t *tables) MergeRollups(_ context.Context, age time.Duration, limit int) (int, error) {
	return t.takeRollups(age, limit, func(now time.Time, k rollupKey) bool {
		return k.span == 1 && k.minute < driver.MergeBefore(now, age)
	}, func(k rollupKey, counts driver.RollupCounts) {
		hour := rollupKey{span: driver.HourMinutes, minute: k.minute / driver.HourMinutes * driver.HourMinutes, destination: k.destination, kind: k.kind}
		sum := t.rollups[hour]
		sum.Add(counts)
		t.rollups[hour] = sum
	})
}

// PurgeRollups implements [driver.Rollups].
func (t *tables) PurgeRollups(_ context.Context, age time.Duration, limit int) (int, error) {
	return t.takeRollups(age, limit, func(now time.Time, k rollupKey) bool {
		return k.minute < driver.MinuteOf(now.Add(-age))
	}, func(rollupKey, driver.RollupCounts) {})
}

// takeRollups deletes rows, the oldest first, and passes them on.
func (t *tables) takeRollups(
	age time.Duration, limit int, which func(now time.Time, k rollupKey) bool, then func(k rollupKey, counts driver.RollupCounts),
) (int, error) {
	if age < 0 {
		return 0, fmt.Errorf("memstore: roll-ups: negative age %v", age)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n, now := 0, clock()
	for _, k := range inOrder(t.rollups) {
		if n >= limit {
			break
		}
		if which(now, k) {
			counts := t.rollups[k]
			delete(t.rollups, k)
			then(k, counts)
			n++
		}
	}
	return n, nil
}

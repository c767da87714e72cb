package memstore

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// Refill implements [driver.Backlog].
func (b backlog) Refill(ctx context.Context, q driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error) {
	t := b.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.destination(b.number)
	out := driver.Refilled{Next: after}
	for _, r := range t.deliveries(q, after, limit) {
		out.Matched++
		out.Next = driver.HistoryCursor{At: r.ended, ID: r.ID}
		if d == nil || d.rows[r.ID] != nil {
			continue
		}
		next := untried(r.Row)
		next.Replay++
		// The number of lanes may have changed since the delivery.
		if next.Event.Ordered() || !t.has(next.Lane) {
			next.Lane = laneAmong(len(t.lanes), next)
		}
		d.put(next)
		out.Copied++
	}
	t.note(ctx, out.Copied)
	return out, nil
}

// CountHistory implements [driver.Backlog].
func (b backlog) CountHistory(_ context.Context, q driver.HistoryQuery) (int64, error) {
	t := b.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	n := int64(0)
	for r := range t.history.from(q.Since) {
		if matches(r, q) {
			n++
		}
	}
	return n, nil
}

// deliveries returns at most limit delivered events that match, after a cursor,
// in the order of delivery time and id; mu is held.
func (t *tables) deliveries(q driver.HistoryQuery, after driver.HistoryCursor, limit int) []*record {
	if limit <= 0 {
		return nil
	}
	start := q.Since
	if after.At.After(start) {
		start = after.At
	}
	var found []*record
	for r := range t.history.from(start) {
		// Events with the same delivery time are in the order of their seqs.
		if n := len(found); n >= limit && r.ended.After(found[n-1].ended) {
			break
		}
		if matches(r, q) && (after.At.IsZero() || byDelivery(r, after.At, after.ID) > 0) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b *record) int { return byDelivery(a, b.ended, b.ID) })
	return found[:min(limit, len(found))]
}

// byDelivery compares the place of a record in the history with another place.
func byDelivery(r *record, at time.Time, id waybill.ID) int {
	return cmp.Or(r.ended.Compare(at), bytes.Compare(r.ID[:], id[:]))
}

// matches reports whether a query selects a delivered event.
func matches(r *record, q driver.HistoryQuery) bool {
	among := func(names []string, name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	ev := &r.Event
	return !r.ended.Before(q.Since) && (q.Until.IsZero() || r.ended.Before(q.Until)) &&
		among(q.Types, ev.Type) && among(q.AggregateTypes, ev.AggregateType) && among(q.Tenants, ev.TenantID) &&
		(q.AggregateID == "" || q.AggregateID == ev.AggregateID)
}

package ledger

import (
	"slices"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

func anItem(hot bool, priority int, seq int64) *Item {
	return &Item{state: queued, hot: hot, row: &store.Row{Key: store.Key{Seq: seq}, Event: waybill.Event{Priority: priority}}}
}

// TestQueuesPullTwoToOne: while both wait, two hot items are delivered for each
// cold one; otherwise items are delivered as they come.
func TestQueuesPullTwoToOne(t *testing.T) {
	var q queues
	for i := range 9 {
		q.push(anItem(true, 0, int64(i)))
	}
	for i := range 6 {
		q.push(anItem(false, 0, int64(i)))
	}
	got := ""
	for it := q.pop(); it != nil; it = q.pop() {
		it.state = inFlight
		if it.hot {
			got += "h"
		} else {
			got += "c"
		}
	}
	if want := "hhchhchhchhchcc"; got != want {
		t.Errorf("pulled %s, want %s", got, want)
	}
	if q.depth() != 0 {
		t.Errorf("depth %d at the end", q.depth())
	}
}

// TestPriority: at most three of four deliveries are urgent while others wait;
// urgent items go by priority, then by seq.
func TestPriority(t *testing.T) {
	var q queue
	for i := range 4 {
		q.push(anItem(false, 0, int64(100+i)))
	}
	for i, p := range []int{1, 9, 5, 9, 2, 7, 3} {
		q.push(anItem(false, p, int64(i)))
	}
	var got []int64
	for it := q.pop(); it != nil; it = q.pop() {
		it.state = inFlight
		got = append(got, it.row.Seq)
	}
	want := []int64{1, 3, 5, 100, 2, 6, 4, 101, 0, 102, 103}
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Fatalf("order %v, want %v", got, want)
		}
	}
}

// TestDroppedItemsArePassedOver: items that were dropped while they waited are
// not delivered, and do not count.
func TestDroppedItemsArePassedOver(t *testing.T) {
	var q queues
	first, second := anItem(true, 0, 1), anItem(false, 3, 2)
	q.push(first)
	q.push(second)
	q.push(anItem(false, 0, 3))
	for _, it := range []*Item{first, second} {
		q.forget(it)
		it.state = dropped
	}
	if q.depth() != 1 {
		t.Errorf("depth %d, want 1", q.depth())
	}
	if it := q.pop(); it == nil || it.row.Seq != 3 {
		t.Errorf("pulled %+v, want the third", it)
	}
	if it := q.pop(); it != nil {
		t.Errorf("pulled %+v from empty queues", it)
	}
}

// TestTenantsTakeTurns: the items of one tenant keep their order, and tenants
// take turns; an item that was dropped takes no turn.
func TestTenantsTakeTurns(t *testing.T) {
	var q queue
	push := func(tenant string, from, n int64) (items []*Item) {
		for i := range n {
			it := anItem(false, 0, from+i)
			it.row.Event.TenantID = tenant
			items = append(items, it)
			q.push(it)
		}
		return items
	}
	pop := func(n int) (got []int64) {
		for range n {
			it := q.pop()
			if it == nil {
				break
			}
			it.state = inFlight
			got = append(got, it.row.Seq)
		}
		return got
	}
	want := func(got []int64, want ...int64) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Fatalf("order %v, want %v", got, want)
		}
	}
	push("flood", 100, 6)
	want(pop(2), 100, 101)
	quiet := push("quiet", 200, 4)
	push("other", 300, 1)
	quiet[1].state = dropped
	q.depth--
	want(pop(5), 102, 200, 300, 103, 202)
	push("other", 301, 2)
	want(pop(9), 104, 203, 301, 105, 302)
	if q.depth != 0 || q.pop() != nil {
		t.Errorf("depth %d at the end", q.depth)
	}
	push("flood", 106, 2)
	push("quiet", 204, 1)
	want(pop(9), 106, 204, 107)
}

package drivertest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// relayName is the name of the suite's relay.
const relayName = "drivertest"

// defaultLease is longer than any check takes.
const defaultLease = 10 * time.Minute

// allLanes returns the numbers of all lanes.
func (b *env[T]) allLanes() []int {
	lanes := make([]int, b.lanes)
	for i := range lanes {
		lanes[i] = i
	}
	return lanes
}

// cursors returns all lanes from their beginning.
func (b *env[T]) cursors() []driver.Cursor {
	from := make([]driver.Cursor, b.lanes)
	for i := range from {
		from[i].Lane = i
	}
	return from
}

// laneOf returns the expected lane of an ordered event.
func (b *env[T]) laneOf(ev waybill.Event) int {
	kind := cmp.Or(ev.AggregateType, waybill.GlobalAggregate)
	return driver.LaneOf(ev.TenantID, kind, ev.AggregateID, b.lanes)
}

// aggregates returns the names of n aggregates whose events are in different
// lanes, as far as there are enough lanes.
func (b *env[T]) aggregates(n int) []string {
	var names []string
	taken := map[int]bool{}
	for i := 0; len(names) < min(n, b.lanes); i++ {
		name := "agg" + string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676))
		if lane := b.laneOf(b.event(name)); !taken[lane] {
			taken[lane] = true
			names = append(names, name)
		}
	}
	return names
}

// ready returns all ready rows, in the order of seq.
func (b *env[T]) ready(ctx context.Context, t tb) []store.Row {
	t.Helper()
	if b.DB.Relay != nil {
		return b.readyIn(ctx, t, b.DB.Relay)
	}
	return slices.DeleteFunc(b.pending(ctx, t), func(r store.Row) bool { return !r.DueAt.IsZero() })
}

// pending returns all rows of Instance.Pending, in the order of seq.
func (b *env[T]) pending(ctx context.Context, t tb) []store.Row {
	t.Helper()
	rows, err := b.Pending(ctx)
	if err != nil {
		t.Fatalf("Pending: %v", err)
	}
	slices.SortFunc(rows, bySeq)
	return rows
}

func (b *env[T]) readyIn(ctx context.Context, t tb, db driver.Reader) []store.Row {
	t.Helper()
	const limit = 1000
	var rows []store.Row
	for from := b.cursors(); len(from) > 0; {
		page, err := db.Fetch(ctx, from, limit)
		if err != nil {
			t.Fatalf("Fetch: %v", err)
		}
		for _, row := range page.Rows {
			if row.Lane < 0 || row.Lane >= b.lanes {
				t.Fatalf("Fetch returned a row of lane %d; there are %d lanes", row.Lane, b.lanes)
			}
		}
		rows = append(rows, page.Rows...)
		from = next(from, page.Rows, limit)
	}
	slices.SortFunc(rows, func(a, b store.Row) int { return cmp.Compare(a.Seq, b.Seq) })
	return rows
}

// next returns the cursors of the lanes that returned a full page, moved after
// it.
func next(from []driver.Cursor, rows []store.Row, limit int) []driver.Cursor {
	found, last := map[int]int{}, map[int]int64{}
	for _, row := range rows {
		found[row.Lane]++
		last[row.Lane] = max(last[row.Lane], row.Seq)
	}
	var more []driver.Cursor
	for _, c := range from {
		if found[c.Lane] >= limit && last[c.Lane] > c.After {
			c.After = last[c.Lane]
			more = append(more, c)
		}
	}
	return more
}

// wantReady asserts that exactly these events are ready, and that their seqs
// have this order.
func (b *env[T]) wantReady(ctx context.Context, t tb, want ...waybill.Event) []store.Row {
	t.Helper()
	rows := b.ready(ctx, t)
	if got, want := rowIDs(rows), idsOf(want); !slices.Equal(got, want) {
		t.Errorf("ready are %d events %v, want these %d in this order: %v", len(got), few(got), len(want), few(want))
	}
	return rows
}

// few truncates a list that is too long to read.
func few(ids []waybill.ID) []waybill.ID { return ids[:min(len(ids), 12)] }

func rowIDs(rows []store.Row) []waybill.ID {
	ids := make([]waybill.ID, len(rows))
	for i, row := range rows {
		ids[i] = row.ID
	}
	return ids
}

// row returns the ready row of an event.
func (b *env[T]) row(ctx context.Context, t tb, id waybill.ID) store.Row {
	t.Helper()
	row, ok := find(b.ready(ctx, t), id)
	if !ok {
		t.Fatalf("event %s is not ready", id)
	}
	return row
}

func find(rows []store.Row, id waybill.ID) (store.Row, bool) {
	i := slices.IndexFunc(rows, func(r store.Row) bool { return r.ID == id })
	if i < 0 {
		return store.Row{}, false
	}
	return rows[i], true
}

// due returns the deferred rows of all lanes that are due, and the database's
// clock; the clock of this process if the store has no role Relay.
func (b *env[T]) due(ctx context.Context, t tb) driver.Page {
	t.Helper()
	if b.DB.Relay == nil {
		now := time.Now()
		due := func(r store.Row) bool { return !r.DueAt.IsZero() && !r.DueAt.After(now) }
		return driver.Page{Now: now, Rows: slices.DeleteFunc(b.pending(ctx, t), func(r store.Row) bool { return !due(r) })}
	}
	page, err := b.DB.Relay.Due(ctx, b.allLanes(), 10_000)
	if err != nil {
		t.Fatalf("Due: %v", err)
	}
	for _, row := range page.Rows {
		if row.DueAt.IsZero() || row.DueAt.After(page.Now) {
			t.Errorf("Due returned event %s at %v, which is due at %v", row.ID, page.Now, row.DueAt)
		}
	}
	return page
}

// awaitDue polls until the event is due and returns its row.
func (b *env[T]) awaitDue(ctx context.Context, t tb, id waybill.ID) store.Row {
	t.Helper()
	var row store.Row
	b.await(ctx, t, "event "+id.String()+" becomes due", func() bool {
		var ok bool
		row, ok = find(b.due(ctx, t).Rows, id)
		return ok
	})
	return row
}

// now returns the database's clock; the clock of this process if the store has
// no role Relay.
func (b *env[T]) now(ctx context.Context, t tb) time.Time {
	t.Helper()
	if b.DB.Relay == nil {
		return time.Now()
	}
	return b.due(ctx, t).Now
}

// committed polls the outcome of an event until the store is certain.
func (b *env[T]) committed(ctx context.Context, t tb, id waybill.ID) bool {
	t.Helper()
	var yes bool
	b.await(ctx, t, "Committed is certain about "+id.String(), func() bool {
		var err error
		yes, err = b.DB.Outbox.Committed(ctx, id)
		if err != nil && !errors.Is(err, waybill.ErrUncertain) {
			t.Fatalf("Committed: %v", err)
		}
		return err == nil
	})
	return yes
}

// wantCommitted asserts the result of Committed for events.
func (b *env[T]) wantCommitted(ctx context.Context, t tb, want bool, evs ...waybill.Event) {
	t.Helper()
	for _, ev := range evs {
		if got := b.committed(ctx, t, ev.ID); got != want {
			t.Errorf("Committed(%s) is %v, want %v", ev.ID, got, want)
		}
	}
}

// node makes a node live; it leaves at the end of the check.
func (b *env[T]) node(ctx context.Context, t tb, db driver.Lanes) store.Node {
	t.Helper()
	n := store.Node{ID: waybill.NewID(), Relay: relayName}
	b.beat(ctx, t, db, n, defaultLease)
	b.laterDo(func(ctx context.Context) error { return db.Leave(ctx, n) })
	return n
}

func (b *env[T]) beat(ctx context.Context, t tb, db driver.Lanes, n store.Node, lease time.Duration) store.Membership {
	t.Helper()
	m, err := db.Heartbeat(ctx, n, lease)
	if err != nil {
		t.Fatalf("Heartbeat: %v", err)
	}
	return m
}

// expire makes a node's lease expire, and returns once the database confirms
// it.
func (b *env[T]) expire(ctx context.Context, t tb, db driver.Lanes, n, witness store.Node) {
	t.Helper()
	if b.ExpireNode != nil {
		if err := b.ExpireNode(ctx, n.ID); err != nil {
			t.Fatalf("ExpireNode: %v", err)
		}
	} else {
		b.beat(ctx, t, db, n, time.Millisecond)
	}
	b.await(ctx, t, "the node's lease ends", func() bool {
		m := b.beat(ctx, t, db, witness, defaultLease)
		return !slices.ContainsFunc(m.Nodes, func(live store.Node) bool { return live.ID == n.ID })
	})
}

// acquire acquires lanes and fails the test unless it gets all of them.
func (b *env[T]) acquire(ctx context.Context, t tb, db driver.Lanes, n store.Node, lanes ...int) []driver.Lease {
	t.Helper()
	leases, err := db.Acquire(ctx, n, lanes, 7)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	if len(leases) != len(lanes) {
		t.Fatalf("Acquire of the lanes %v gave %d leases: %v", lanes, len(leases), leases)
	}
	return leases
}

// own makes a node live that owns all lanes; leases are in the order of their
// lanes.
func (b *env[T]) own(ctx context.Context, t tb) []driver.Lease {
	t.Helper()
	leases := b.acquire(ctx, t, b.DB.Relay, b.node(ctx, t, b.DB.Relay), b.allLanes()...)
	slices.SortFunc(leases, func(a, b driver.Lease) int { return cmp.Compare(a.Lane, b.Lane) })
	return leases
}

// settle settles and fails the test unless all lanes of the leases were held.
func (b *env[T]) settle(ctx context.Context, t tb, s driver.Settlement) driver.Settled {
	t.Helper()
	settled, err := b.DB.Relay.Settle(ctx, s)
	if err != nil {
		t.Fatalf("Settle: %v", err)
	}
	held := slices.Sorted(slices.Values(settled.Held))
	var want []int
	for _, l := range s.Leases {
		want = append(want, l.Lane)
	}
	slices.Sort(want)
	if !slices.Equal(held, slices.Compact(want)) {
		t.Fatalf("Settle held the lanes %v, want %v", held, want)
	}
	return settled
}

// wantMoved asserts which events a settlement moved, in any order.
func wantMoved(t tb, settled driver.Settled, want ...waybill.ID) {
	t.Helper()
	order := func(a, b waybill.ID) int { return slices.Compare(a[:], b[:]) }
	got := slices.SortedFunc(slices.Values(settled.Moved), order)
	if want = slices.SortedFunc(slices.Values(want), order); !slices.Equal(got, want) {
		t.Errorf("Settle moved %v, want %v", few(got), few(want))
	}
}

// wantHeld asserts which lanes a settlement found held.
func wantHeld(t tb, settled driver.Settled, want ...int) {
	t.Helper()
	got := slices.Sorted(slices.Values(settled.Held))
	if want = slices.Sorted(slices.Values(want)); !slices.Equal(got, want) {
		t.Errorf("Settle held the lanes %v, want %v", got, want)
	}
}

// result is an event's result in the lane of its row.
func result(row store.Row) driver.Result {
	return driver.Result{Lane: row.Lane, ID: row.ID, Seq: row.Seq, Late: !row.DueAt.IsZero(), Replay: row.Replay}
}

func results(rows []store.Row) []driver.Result {
	rs := make([]driver.Result, len(rows))
	for i, row := range rows {
		rs[i] = result(row)
	}
	return rs
}

// row is short for the most used type.
type row = store.Row

func bySeq(a, b row) int { return cmp.Compare(a.Seq, b.Seq) }

// settlement returns a settlement whose results are all of one kind: 0 done,
// with history, 1 retry, 2 dead.
func settlement(kind int, leases []driver.Lease, rs ...driver.Result) driver.Settlement {
	s := driver.Settlement{Leases: leases, History: true}
	switch kind {
	case 0:
		s.Done = rs
	case 1:
		s.Retry = rs
	default:
		s.Dead = rs
	}
	return s
}

package drivertest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// seekChecks check how a relay finds particular events.
func seekChecks[T any]() []check[T] {
	return []check[T]{
		{row: "due", name: "time of the next due row", fresh: true, run: dueNext[T]},
		{row: "holds", name: "holds of deferred and dead rows", run: holds[T]},
		{row: "holds", name: "holds of these lanes in order", run: holdsOfLanes[T]},
		{row: "fetch_aggregate", name: "fetch one aggregate", run: follows[T]},
		{row: "fetch_aggregate", name: "fetch similar aggregates", run: followsAlike[T]},
		{row: "fetch_priority", name: "priority rows", run: urgent[T]},
		{row: "fetch_priority", name: "priority rows of aggregates", run: urgentOrdered[T]},
	}
}

// dueNext queries when the next row is due, with rows that are due and rows of
// other lanes.
func dueNext[T any](ctx context.Context, t tb, b *env[T]) {
	next := func(limit int, lanes ...int) time.Time {
		t.Helper()
		page, err := b.DB.Relay.Due(ctx, lanes, limit)
		if err != nil {
			t.Fatalf("Due: %v", err)
		}
		return page.Next
	}
	want := func(when string, got, want time.Time) {
		t.Helper()
		if !got.Equal(want) {
			t.Errorf("%s: the next row is due at %v, want %v", when, got, want)
		}
	}
	want("empty tables", next(10, b.allLanes()...), time.Time{})
	names := b.aggregates(2)
	at := b.now(ctx, t).Add(time.Hour).Truncate(time.Millisecond)
	var evs []waybill.Event
	for i, name := range []string{names[0], names[0], names[len(names)-1]} {
		ev := b.event(name)
		// The last is due first.
		ev.AvailableAt = at.Add(time.Duration(3-i) * time.Minute)
		evs = append(evs, ev)
	}
	b.write(ctx, t, b.event(names[0]))
	want("no deferred rows", next(10, b.allLanes()...), time.Time{})
	b.write(ctx, t, evs...)
	first, last := b.laneOf(evs[0]), b.laneOf(evs[2])
	want("all lanes", next(10, b.allLanes()...), evs[2].AvailableAt)
	if first != last {
		want("one lane", next(10, first), evs[1].AvailableAt)
		want("the other lane", next(10, last), evs[2].AvailableAt)
		want("a lane without any", next(10, b.otherLane(first, last)), time.Time{})
	}
	// A row that is already due is not the next one, whether it is in the page
	// or not.
	soon := []waybill.Event{b.event(names[0]), b.event(names[0])}
	soon[0].Delay, soon[1].Delay = 1, 1
	b.write(ctx, t, soon...)
	for _, ev := range soon {
		b.awaitDue(ctx, t, ev.ID)
	}
	for _, limit := range []int{1, 2, 10} {
		want(fmt.Sprintf("%d of two that are due", limit), next(limit, b.allLanes()...), evs[2].AvailableAt)
	}
	done := driver.Settlement{Leases: b.own(ctx, t), History: true}
	for _, ev := range evs {
		done.Done = append(done.Done, driver.Result{Lane: b.laneOf(ev), ID: ev.ID})
	}
	b.settle(ctx, t, done)
	want("only due rows", next(10, b.allLanes()...), time.Time{})
}

// otherLane returns a lane that is not in the list; the first of the list if
// there is none.
func (b *env[T]) otherLane(not ...int) int {
	for lane := range b.lanes {
		if !slices.Contains(not, lane) {
			return lane
		}
	}
	return not[0]
}

// heldBy returns the holds of these events, in the order of the store.
func (b *env[T]) heldBy(ctx context.Context, t tb, lanes []int, evs ...waybill.Event) []driver.Hold {
	t.Helper()
	held, err := b.DB.Relay.Holds(ctx, lanes)
	if err != nil {
		t.Fatalf("Holds: %v", err)
	}
	return slices.DeleteFunc(held, func(h driver.Hold) bool { return !slices.Contains(idsOf(evs), h.ID) })
}

// wantHolds asserts which of the events block their aggregate, and from which
// table.
func (b *env[T]) wantHolds(ctx context.Context, t tb, when string, among []waybill.Event, want ...driver.Hold) {
	t.Helper()
	if got := b.heldBy(ctx, t, b.allLanes(), among...); !slices.Equal(got, want) {
		t.Errorf("%s: Holds returned %v, want %v", when, got, want)
	}
}

// hold is the expected hold of an event in this row.
func hold(r row, dead bool) driver.Hold {
	return driver.Hold{Key: r.Key, Aggregate: driver.AggregateOf(&r.Event), Dead: dead}
}

func holds[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(6, "a") // one aggregate: the result is in the order of seq
	for i := range evs {
		evs[i].TenantID, evs[i].AggregateType = "tenant", ""
	}
	evs[5].Delay = defaultLease // scheduled: blocks no aggregate
	b.write(ctx, t, evs...)
	rows := b.ready(ctx, t)
	leases := b.own(ctx, t)
	s := driver.Settlement{Leases: leases}
	for i, row := range rows[:4] {
		// 0 and 1 are deferred, 2 and 3 dead; 0 and 2 hold
		r := result(row)
		r.Delay, r.Attempts, r.Holds = defaultLease, 1, i%2 == 0
		if i < 2 {
			s.Retry = append(s.Retry, r)
		} else {
			s.Dead = append(s.Dead, r)
		}
	}
	b.wantHolds(ctx, t, "before", evs)
	b.settle(ctx, t, s)
	b.wantHolds(ctx, t, "deferred and dead", evs, hold(rows[0], false), hold(rows[2], true))
	if got := b.heldBy(ctx, t, b.allLanes(), evs[0]); len(got) == 1 && got[0].Aggregate.Type != waybill.GlobalAggregate {
		t.Errorf("an aggregate without a type is %+v", got[0].Aggregate)
	}
	if held, err := b.DB.Relay.Holds(ctx, nil); err != nil || len(held) > 0 {
		t.Errorf("Holds of no lanes returned %v, %v", held, err)
	}
	if lane := b.otherLane(rows[0].Lane); lane != rows[0].Lane {
		if got := b.heldBy(ctx, t, []int{lane}, evs...); len(got) > 0 {
			t.Errorf("Holds of lane %d returned %v", lane, got)
		}
	}
	// A deferred event may end or start a hold when it is deferred again; a
	// done event holds no aggregate.
	s.Retry[0].Holds, s.Retry[1].Holds, s.Dead = false, true, nil
	b.settle(ctx, t, s)
	b.wantHolds(ctx, t, "deferred again", evs, hold(rows[1], false), hold(rows[2], true))
	b.settle(ctx, t, driver.Settlement{Leases: leases, History: true, Done: results(rows[1:2])})
	b.wantHolds(ctx, t, "delivered", evs, hold(rows[2], true))
}

func holdsOfLanes[T any](ctx context.Context, t tb, b *env[T]) {
	var evs []waybill.Event
	for range 2 {
		for _, name := range b.aggregates(3) {
			evs = append(evs, b.event(name))
		}
	}
	rows := b.writeRows(ctx, t, evs...)
	s := driver.Settlement{Leases: b.own(ctx, t)}
	var want []driver.Hold
	for i, row := range rows {
		r := result(row)
		r.Delay, r.Holds = defaultLease, true
		if i < len(rows)/2 { // first of each aggregate dead, second deferred
			s.Dead = append(s.Dead, r)
		} else {
			s.Retry = append(s.Retry, r)
		}
		want = append(want, hold(row, i < len(rows)/2))
	}
	b.settle(ctx, t, s)
	slices.SortFunc(want, func(x, y driver.Hold) int {
		if x.Lane != y.Lane {
			return x.Lane - y.Lane
		}
		return int(x.Seq - y.Seq)
	})
	b.wantHolds(ctx, t, "all lanes", evs, want...)
	one := slices.DeleteFunc(slices.Clone(want), func(h driver.Hold) bool { return h.Lane != want[0].Lane })
	if got := b.heldBy(ctx, t, []int{want[0].Lane}, evs...); !slices.Equal(got, one) {
		t.Errorf("Holds of lane %d returned %v, want %v", want[0].Lane, got, one)
	}
}

func (b *env[T]) follow(ctx context.Context, t tb, agg store.Aggregate, from driver.Cursor, limit int) []row {
	t.Helper()
	page, err := b.DB.Relay.FetchAggregate(ctx, agg, from, limit)
	if err != nil {
		t.Fatalf("Follow: %v", err)
	}
	if page.Now.IsZero() {
		t.Errorf("Follow does not say when it was")
	}
	return page.Rows
}

// neighbors returns two aggregates in one lane, the second by a change of the
// first one's name.
func (b *env[T]) neighbors(change func(name string) string) (string, string) {
	for i := 0; ; i++ {
		name := fmt.Sprintf("neighbor%d", i)
		if other := change(name); b.laneOf(b.event(name)) == b.laneOf(b.event(other)) {
			return name, other
		}
	}
}

func follows[T any](ctx context.Context, t tb, b *env[T]) {
	name, other := b.neighbors(func(name string) string { return name + "s" })
	var mine, all []waybill.Event
	for i := range 16 { // two own, one neighbor, one unordered
		ev := b.event([]string{name, name, other, ""}[i%4])
		if ev.AggregateID == b.unique(name) {
			mine = append(mine, ev)
		}
		all = append(all, ev)
	}
	rows := b.writeRows(ctx, t, all...)
	agg, lane := driver.AggregateOf(&mine[0]), b.laneOf(mine[0])
	var seqs []int64
	for _, row := range rows {
		if row.Event.AggregateID == agg.ID {
			seqs = append(seqs, row.Seq)
		}
	}
	got := b.follow(ctx, t, agg, driver.Cursor{Lane: lane}, 100)
	wantIDs(t, "Follow", got, mine)
	for i := range min(len(got), len(mine)) {
		wantEvent(t, got[i], mine[i])
	}
	wantIDs(t, "Follow of 3", b.follow(ctx, t, agg, driver.Cursor{Lane: lane}, 3), mine[:3])
	wantIDs(t, "Follow after the third", b.follow(ctx, t, agg, driver.Cursor{Lane: lane, After: seqs[2]}, 100), mine[3:])
	wantIDs(t, "Follow up to the fifth", b.follow(ctx, t, agg, driver.Cursor{Lane: lane, UpTo: seqs[4]}, 100), mine[:5])
	wantIDs(t, "Follow of 1 from third to fifth", b.follow(ctx, t, agg, driver.Cursor{Lane: lane, After: seqs[1], UpTo: seqs[4]}, 1), mine[2:3])
	wantIDs(t, "Follow of an empty stretch", b.follow(ctx, t, agg, driver.Cursor{Lane: lane, After: seqs[4], UpTo: seqs[4]}, 100), nil)
	wantIDs(t, "Follow behind the end", b.follow(ctx, t, agg, driver.Cursor{Lane: lane, After: seqs[7]}, 100), nil)
	wantIDs(t, "FetchAggregate of an unknown aggregate", b.follow(ctx, t, store.Aggregate{Type: "thing", ID: b.unique("none")}, driver.Cursor{Lane: lane}, 100), nil)
	wantIDs(t, "Follow of no aggregate", b.follow(ctx, t, store.Aggregate{}, driver.Cursor{Lane: lane}, 100), nil)
	if apart := b.otherLane(lane); apart != lane {
		wantIDs(t, "Follow in another lane", b.follow(ctx, t, agg, driver.Cursor{Lane: apart}, 100), nil)
	}
	// Ready rows only.
	s := driver.Settlement{Leases: b.own(ctx, t), History: true}
	for i, ev := range mine[:3] {
		r := driver.Result{Lane: lane, ID: ev.ID, Delay: defaultLease, Holds: true}
		switch i {
		case 0:
			s.Done = append(s.Done, r)
		case 1:
			s.Retry = append(s.Retry, r)
		default:
			s.Dead = append(s.Dead, r)
		}
	}
	b.settle(ctx, t, s)
	wantIDs(t, "Follow after a settlement", b.follow(ctx, t, agg, driver.Cursor{Lane: lane}, 100), mine[3:])
}

// followsAlike reads aggregates of one lane whose names a database may confuse.
func followsAlike[T any](ctx context.Context, t tb, b *env[T]) {
	for _, change := range []func(string) string{
		strings.ToUpper, func(name string) string { return name + " " }, func(name string) string { return strings.Replace(name, "e", "é", 1) },
	} {
		name, other := b.neighbors(change)
		evs := []waybill.Event{b.event(name), b.event(other)}
		if b.lanes == 1 { // also other tenants and types
			tenant, kind := b.event(name), b.event(name)
			tenant.TenantID, kind.AggregateType = "other", "Thing"
			evs = append(evs, tenant, kind)
		}
		b.write(ctx, t, evs...)
		for _, ev := range evs {
			got := b.follow(ctx, t, driver.AggregateOf(&ev), driver.Cursor{Lane: b.laneOf(ev)}, 100)
			wantIDs(t, fmt.Sprintf("Follow of %+v", driver.AggregateOf(&ev)), got, []waybill.Event{ev})
		}
		s := driver.Settlement{Leases: b.own(ctx, t), Done: results(b.ready(ctx, t)), History: true}
		b.settle(ctx, t, s)
		b.end()
	}
}

func urgent[T any](ctx context.Context, t tb, b *env[T]) {
	var evs []waybill.Event
	for i := range 8 {
		ev := b.event("")
		ev.Priority = []int{0, 1, 32767, 5}[i%4]
		evs = append(evs, ev)
	}
	ordered, later := b.event("a"), b.event("")
	ordered.Priority, later.Priority, later.Delay = 9, 9, defaultLease
	evs = append(evs, ordered)
	page, err := b.DB.Relay.FetchPriority(ctx, b.cursors(), 100)
	if err != nil || len(page.Rows) > 0 {
		t.Errorf("Urgent of empty tables returned %v, %v", rowIDs(page.Rows), err)
	}
	b.wantPlain(ctx, t, page, b.cursors()) // every lane, also of a store with one
	b.write(ctx, t, append(evs, later)...)
	byLane := map[int][]row{}
	for _, row := range b.ready(ctx, t) {
		if row.Event.Priority > 0 {
			byLane[row.Lane] = append(byLane[row.Lane], row)
		}
	}
	look := func(limit int, from ...driver.Cursor) map[int][]waybill.ID {
		t.Helper()
		page, err := b.DB.Relay.FetchPriority(ctx, from, limit)
		if err != nil {
			t.Fatalf("Urgent: %v", err)
		}
		b.wantPlain(ctx, t, page, from)
		got := map[int][]waybill.ID{}
		for _, row := range page.Rows {
			if i := slices.IndexFunc(evs, func(ev waybill.Event) bool { return ev.ID == row.ID }); i >= 0 {
				wantEvent(t, row, evs[i])
			}
			got[row.Lane] = append(got[row.Lane], row.ID)
		}
		return got
	}
	want := func(what string, got map[int][]waybill.ID, cut func(rows []row) []row) {
		t.Helper()
		for lane := range b.lanes {
			if want := rowIDs(cut(byLane[lane])); !slices.Equal(got[lane], want) {
				t.Errorf("%s returned %v in lane %d, want %v", what, got[lane], lane, want)
			}
		}
	}
	all := func(rows []row) []row { return rows }
	want("Urgent", look(100, b.cursors()...), all)
	want("Urgent of 1", look(1, b.cursors()...), func(rows []row) []row { return rows[:min(1, len(rows))] })
	behind, upTo := b.cursors(), b.cursors()
	for lane, rows := range byLane {
		behind[lane].After, upTo[lane].UpTo = rows[0].Seq, rows[0].Seq
	}
	want("Urgent behind the first", look(100, behind...), func(rows []row) []row { return rows[min(1, len(rows)):] })
	want("Urgent up to the first", look(100, upTo...), func(rows []row) []row { return rows[:min(1, len(rows))] })
	want("Urgent of no lanes", look(100), func([]row) []row { return nil })
	s := driver.Settlement{Leases: b.own(ctx, t), History: true}
	for _, rows := range byLane {
		s.Done = append(s.Done, result(rows[0]))
	}
	b.settle(ctx, t, s)
	want("Urgent after a settlement", look(100, b.cursors()...), func(rows []row) []row { return rows[min(1, len(rows)):] })
}

// wantPlain checks that a page of priority rows names the lanes that have none:
// the relay must not believe this of a lane whose rows the page omits.
func (b *env[T]) wantPlain(ctx context.Context, t tb, page driver.Page, from []driver.Cursor) {
	t.Helper()
	rows := b.ready(ctx, t)
	for _, c := range from {
		want := !slices.ContainsFunc(rows, func(r row) bool {
			return r.Lane == c.Lane && r.Event.Priority > 0 && r.Seq > c.After && (c.UpTo == 0 || r.Seq <= c.UpTo)
		})
		if got := slices.Contains(page.Plain, c.Lane); got != want {
			t.Errorf("Urgent from %+v: the page says that no row has a priority: %v, want %v", c, got, want)
		}
	}
}

// urgentOrdered checks that a row with a priority is not returned before a row
// of its aggregate without one; the same id with another tenant or type is
// another aggregate.
func urgentOrdered[T any](ctx context.Context, t tb, b *env[T]) {
	ev := func(aggregate, kind, tenant string, priority int) waybill.Event {
		ev := b.event(aggregate)
		ev.Priority = priority
		if kind != "" {
			ev.AggregateType = kind
		}
		ev.TenantID = tenant
		return ev
	}
	before := ev("a", "", "", 0)
	free := ev("a", "", "", 2)
	evs := []waybill.Event{
		before, free, ev("b", "", "", 0), ev("b", "", "", 7), ev("b", "", "", 0), ev("b", "other", "", 7), ev("b", "", "tenant", 7), ev("B", "", "", 7),
		ev("c", "", "", 1), ev("c", "", "", 9), ev("c", "", "", 0), ev("c", "", "", 9), ev("d", "", "", 0), ev("", "", "", 1),
	}
	b.write(ctx, t, evs...)
	rows := map[waybill.ID]row{}
	for _, row := range b.ready(ctx, t) {
		rows[row.ID] = row
	}
	from := func(after, upTo int64) []driver.Cursor {
		cs := b.cursors()
		for i := range cs {
			cs[i].After, cs[i].UpTo = after, upTo
		}
		return cs
	}
	want := func(what string, limit int, from []driver.Cursor, want ...waybill.Event) {
		t.Helper()
		page, err := b.DB.Relay.FetchPriority(ctx, from, limit)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		b.wantPlain(ctx, t, page, from)
		ids := make([]waybill.ID, len(want))
		for i := range want {
			ids[i] = want[i].ID
		}
		var got []waybill.ID
		for i, row := range page.Rows {
			got = append(got, row.ID)
			if i > 0 && (page.Rows[i-1].Lane > row.Lane || page.Rows[i-1].Lane == row.Lane && page.Rows[i-1].Seq >= row.Seq) {
				t.Errorf("%s: row %d is out of order", what, i)
			}
		}
		byID := func(a, b waybill.ID) int { return bytes.Compare(a[:], b[:]) }
		slices.SortFunc(ids, byID)
		slices.SortFunc(got, byID)
		if !slices.Equal(got, ids) {
			t.Errorf("%s: Urgent returned %v, want %v", what, got, ids)
		}
	}
	all := []waybill.Event{evs[5], evs[6], evs[7], evs[8], evs[9], evs[13]}
	want("all", 100, from(0, 0), all...)
	want("behind a's first", 100, from(rows[before.ID].Seq, 0), append([]waybill.Event{free}, all...)...)
	want("up to b's second", 100, from(rows[before.ID].Seq, rows[evs[3].ID].Seq), free)
	want("rows that wait", 100, from(0, rows[evs[3].ID].Seq))
	// Of one aggregate, the first rows are returned.
	b.settle(ctx, t, driver.Settlement{Leases: b.own(ctx, t), Done: []driver.Result{result(rows[before.ID]), result(rows[evs[8].ID])}, History: true})
	want("after a settlement", 100, from(0, 0), free, evs[5], evs[6], evs[7], evs[9], evs[13])
}

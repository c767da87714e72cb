package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// refillChecks check Refill and CountHistory.
func refillChecks[T any]() []check[T] {
	return []check[T]{
		{row: "refill", name: "delivered events, with every column", run: refills[T]},
		{row: "refill", name: "fields of a query", fresh: true, run: refillsByQuery[T]},
		{row: "refill", name: "names compare as bytes", fresh: true, run: refillsAsBytes[T]},
		{row: "refill", name: "bounds are exact", fresh: true, run: refillsBetween[T]},
		{row: "refill", name: "pages", fresh: true, run: refillsPages[T]},
		{row: "refill", name: "existing rows are skipped", fresh: true, run: refillsMissing[T]},
		{row: "refill", name: "many", fresh: true, large: true, run: refillsMany[T]},
		{row: "refill", name: "rows go to the present lanes", fresh: true, run: refillsLanes[T]},
	}
}

// deliver settles events as done, group by group, at different times. It
// returns their records in the order of refills.
func (b *env[T]) deliver(ctx context.Context, t tb, groups ...[]waybill.Event) []store.Record {
	t.Helper()
	rows := b.writeRows(ctx, t, slices.Concat(groups...)...)
	n := b.node(ctx, t, b.DB.Relay)
	leases := b.acquire(ctx, t, b.DB.Relay, n, b.allLanes()...)
	for _, group := range groups {
		part := rows[:len(group)]
		rows = rows[len(group):]
		wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Done: results(part), History: true}), idsOf(group)...)
		b.tick(ctx, t)
	}
	if err := b.DB.Relay.Leave(ctx, n); err != nil {
		t.Fatalf("Leave: %v", err)
	}
	var recs []store.Record
	for _, ev := range slices.Concat(groups...) {
		recs = append(recs, b.wantState(ctx, t, ev, store.Delivered))
	}
	slices.SortFunc(recs, byEnd)
	return recs
}

// refillAll copies everything that matches in pages of limit. It returns how
// many events matched and were copied, and the last cursor. It may run in any
// goroutine.
func refillAll(
	ctx context.Context, backlog driver.Backlog, q driver.HistoryQuery, limit int,
) (matched, copied int, cursor driver.HistoryCursor, err error) {
	for {
		r, err := backlog.Refill(ctx, q, cursor, limit)
		switch matched, copied, cursor = matched+r.Matched, copied+r.Copied, r.Next; {
		case err != nil:
			return matched, copied, cursor, err
		case r.Matched < 0 || r.Matched > limit || r.Copied < 0 || r.Copied > r.Matched:
			return matched, copied, cursor, fmt.Errorf("a page of %d matched %d and copied %d", limit, r.Matched, r.Copied)
		case r.Matched < limit:
			return matched, copied, cursor, nil
		case matched > 10_000:
			return matched, copied, cursor, errors.New("the pages do not end")
		}
	}
}

// refill copies everything that matches in pages of limit, and returns how many
// events matched and were copied.
func refill(ctx context.Context, t tb, backlog driver.Backlog, q driver.HistoryQuery, limit int) (matched, copied int) {
	t.Helper()
	matched, copied, cursor, err := refillAll(ctx, backlog, q, limit)
	if err != nil {
		t.Fatalf("Refill(%+v): %v", q, err)
	}
	// Behind the end there is nothing.
	if r, err := backlog.Refill(ctx, q, cursor, limit); err != nil || r.Matched+r.Copied > 0 {
		t.Errorf("Refill(%+v) behind the end matched %d and copied %d, %v", q, r.Matched, r.Copied, err)
	}
	return matched, copied
}

// emptied removes all rows of a backlog that are ready, and returns them.
func (b *env[T]) emptied(ctx context.Context, t tb, leases []driver.Lease, backlog driver.Backlog) []row {
	t.Helper()
	rows := b.readyIn(ctx, t, backlog)
	wantMoved(t, settleIn(ctx, t, backlog, driver.Settlement{Leases: leases, Done: readyResults(rows)}), rowIDs(rows)...)
	return rows
}

// wantRefilled refills an empty backlog by a query, and asserts which events
// match.
func (b *env[T]) wantRefilled(ctx context.Context, t tb, leases []driver.Lease, number int, q driver.HistoryQuery, want ...store.Record) {
	t.Helper()
	backlog := b.backlog(number)
	what := fmt.Sprintf("Refill(%+v)", q)
	if n, err := backlog.CountHistory(ctx, q); err != nil || n != int64(len(want)) {
		t.Errorf("CountHistory(%+v) is %d, %v, want %d", q, n, err, len(want))
	}
	if matched, copied := refill(ctx, t, backlog, q, 100); matched != len(want) || copied != len(want) {
		t.Errorf("%s matched %d and copied %d, want %d", what, matched, copied, len(want))
	}
	expected := make([]row, len(want))
	for i, rec := range want {
		expected[i] = refilled(rec)
	}
	slices.SortFunc(expected, bySeq)
	wantRows(t, what, b.emptied(ctx, t, leases, backlog), expected)
}

// refilled returns the record of a delivered event as it is expected in a
// backlog.
func refilled(rec store.Record) row {
	r := queued(rec.Row, driver.Diversion{})
	r.Replay++
	return r
}

// refills copies events that were delivered at the first attempt, after a retry
// and after a replay, to one of several destinations.
func refills[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b", "c")
	evs := []waybill.Event{full(t, waybill.NewID()), full(t, waybill.NewID()), full(t, waybill.NewID()), b.event("")}
	for i := range evs {
		evs[i].Type, evs[i].DedupKey = b.unique("refilled"), b.unique(evs[i].ID.String())
	}
	evs[3].Payload, evs[3].ContentType = []byte("\x00\xff"), "application/octet-stream"
	b.bury(ctx, t, nil, evs[1])
	b.replay(ctx, t, evs[1])
	replayed := b.wantState(ctx, t, evs[1], store.Delayed).Row
	b.write(ctx, t, evs[0], evs[2], evs[3])
	pending := b.keyed("a", "pending")
	pending.Type = evs[0].Type
	b.write(ctx, t, pending)
	leases := b.own(ctx, t)
	retry := result(b.row(ctx, t, evs[2].ID))
	retry.Attempts, retry.Error, retry.Holds = 4, "the outbox's error", true
	b.settle(ctx, t, driver.Settlement{Leases: leases, Retry: []driver.Result{retry}})
	rows := []row{b.row(ctx, t, evs[0].ID), replayed, b.wantState(ctx, t, evs[2], store.Delayed).Row, b.row(ctx, t, evs[3].ID)}
	b.divert(ctx, t, leases, rows)
	q := driver.HistoryQuery{Types: []string{evs[0].Type}}
	var expected []row
	var recs []store.Record
	for i, ev := range evs {
		rec := b.wantState(ctx, t, ev, store.Delivered)
		recs = append(recs, rec)
		expected = append(expected, refilled(rec))
		wantEvent(t, rec.Row, ev)
		if want := []int{1, 2, 1, 1}[i]; expected[i].Replay != want {
			t.Errorf("a refill gives event %d the replay number %d, want %d", i, expected[i].Replay, want)
		}
	}
	slices.SortFunc(expected, bySeq)
	next := b.keyed("a", "key") // the keys of refilled events are not taken
	next.DedupKey = evs[0].DedupKey
	wantReceipts(t, receipts(ctx, t, b.box(t), next), written(next))
	got, err := b.backlog(numbers[1]).Refill(ctx, q, driver.HistoryCursor{}, 100)
	slices.SortFunc(recs, byEnd)
	last := recs[len(recs)-1]
	want(t, "Refill", got, driver.Refilled{Matched: 4, Copied: 4, Next: driver.HistoryCursor{At: last.EndedAt, ID: last.ID}})
	if err != nil {
		t.Errorf("Refill: %v", err)
	}
	b.wantBacklog(ctx, t, "refilled", numbers[1], expected...)
	b.wantEmpty(ctx, t, "another destination was refilled", numbers[0], numbers[2])
	for i, ev := range evs { // the history is unchanged
		rec := b.wantState(ctx, t, ev, store.Delivered)
		at := slices.IndexFunc(recs, func(r store.Record) bool { return r.ID == ev.ID })
		if !rec.EndedAt.Equal(recs[at].EndedAt) {
			t.Errorf("a refill changed the delivery time of event %d from %v to %v", i, recs[at].EndedAt, rec.EndedAt)
		}
		wantRow(t, "in the history", rec.Row, recs[at].Row)
	}
	// The rows are settled like others; the next refill has the same number.
	done := readyResults(b.readyIn(ctx, t, b.backlog(numbers[1])))
	wantMoved(t, settleIn(ctx, t, b.backlog(numbers[1]), driver.Settlement{Leases: leases, Done: done}), idsOf(evs)...)
	refill(ctx, t, b.backlog(numbers[1]), q, 100)
	b.wantBacklog(ctx, t, "refilled again", numbers[1], expected...)
}

// refillsByQuery uses each field of a query alone, and fields together.
func refillsByQuery[T any](ctx context.Context, t tb, b *env[T]) {
	number, _ := b.backlogOf(ctx, t, "a")
	var groups [][]waybill.Event
	for i := range 24 {
		ev := b.event([]string{"a", "b", ""}[i%3])
		ev.Type = []string{"T", "U", "V"}[i/2%3]
		ev.TenantID = []string{"", "one", "two", ""}[i%4]
		if ev.Ordered() {
			ev.AggregateType = []string{"X", "Y"}[i/5%2]
		}
		groups = append(groups, []waybill.Event{ev})
	}
	recs := b.deliver(ctx, t, groups...)
	leases := b.own(ctx, t)
	since, until := recs[5].EndedAt, recs[17].EndedAt
	for _, q := range []driver.HistoryQuery{
		{},
		{Types: []string{"T"}},
		{Types: []string{"T", "V"}},
		{Types: []string{"none"}},
		{Types: []string{"none", "U", "U"}},
		{Types: []string{}, AggregateTypes: []string{}, Tenants: []string{}},
		{AggregateTypes: []string{"X"}},
		{AggregateTypes: []string{"X", "Y"}},
		{AggregateTypes: []string{waybill.GlobalAggregate}},
		{Tenants: []string{"one"}},
		{Tenants: []string{"one", "two"}},
		{Tenants: []string{""}},
		{Tenants: []string{"two", ""}},
		{AggregateID: b.unique("a")},
		{AggregateID: b.unique("none")},
		{Since: since},
		{Until: until},
		{Since: since, Until: until},
		{Since: until, Until: since},
		{Since: since, Until: until, Types: []string{"T", "U"}, Tenants: []string{"", "one"}},
		{Types: []string{"T"}, AggregateTypes: []string{"X"}},
		{Types: []string{"T"}, Tenants: []string{""}},
		{AggregateTypes: []string{"Y"}, AggregateID: b.unique("b"), Tenants: []string{"two"}},
		{Types: []string{"U", "V"}, AggregateTypes: []string{"X", "Y"}, AggregateID: b.unique("a"), Tenants: []string{"", "one", "two"}, Since: since},
	} {
		var want []store.Record
		for _, rec := range recs {
			if matches(rec, q) {
				want = append(want, rec)
			}
		}
		b.wantRefilled(ctx, t, leases, number, q, want...)
	}
}

// matches reports whether a query selects a delivered event.
func matches(rec store.Record, q driver.HistoryQuery) bool {
	among := func(names []string, name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	ev := &rec.Event
	return among(q.Types, ev.Type) && among(q.AggregateTypes, ev.AggregateType) && among(q.Tenants, ev.TenantID) &&
		(q.AggregateID == "" || q.AggregateID == ev.AggregateID) &&
		(q.Since.IsZero() || !rec.EndedAt.Before(q.Since)) && (q.Until.IsZero() || rec.EndedAt.Before(q.Until))
}

// refillsAsBytes selects by names that a database may fold, pad or quote.
func refillsAsBytes[T any](ctx context.Context, t tb, b *env[T]) {
	number, _ := b.backlogOf(ctx, t, "a")
	names := []string{"Café", "cafe", "CAFE", "caf_", "caf%", "cafe ", `caf\e`, `ca"fe'`, "ca,fe", "{cafe}", "straße", "strasse", "null"}
	var evs []waybill.Event
	for _, name := range names {
		ev := b.event("a")
		ev.Type, ev.AggregateID, ev.AggregateType, ev.TenantID = name, name, name, name
		evs = append(evs, ev)
	}
	recs := b.deliver(ctx, t, evs)
	leases := b.own(ctx, t)
	for _, rec := range recs {
		name := rec.Event.Type
		for _, q := range []driver.HistoryQuery{
			{Types: []string{name}}, {AggregateTypes: []string{name}}, {Tenants: []string{name}}, {AggregateID: name},
		} {
			b.wantRefilled(ctx, t, leases, number, q, rec)
		}
	}
	b.wantRefilled(ctx, t, leases, number, driver.HistoryQuery{Tenants: []string{""}})
}

// refillsBetween uses delivery times as bounds: at Since matches, at Until does
// not.
func refillsBetween[T any](ctx context.Context, t tb, b *env[T]) {
	number, backlog := b.backlogOf(ctx, t, "a")
	recs := b.deliver(ctx, t, b.events(1, "a"), b.events(2, "a"), b.events(1, "b"), b.events(1, "a"))
	leases := b.own(ctx, t)
	between := func(since, until time.Time) {
		t.Helper()
		q := driver.HistoryQuery{Since: since, Until: until}
		var want []store.Record
		for _, rec := range recs {
			if matches(rec, q) {
				want = append(want, rec)
			}
		}
		b.wantRefilled(ctx, t, leases, number, q, want...)
	}
	zone := time.FixedZone("", -5*3600)
	for _, from := range recs {
		for _, shift := range []time.Duration{-time.Microsecond, 0, time.Nanosecond, time.Microsecond} {
			at := from.EndedAt.Add(shift)
			between(at, time.Time{})
			between(time.Time{}, at)
			between(at, recs[3].EndedAt)
		}
		between(from.EndedAt.In(zone), from.EndedAt.In(zone))
		between(from.EndedAt.In(zone), from.EndedAt.Add(time.Microsecond).In(zone))
	}
	between(beyond(1), beyond(12345))
	// A cursor is a bound, too, and none without a time.
	for i, rec := range recs {
		cursor := driver.HistoryCursor{At: rec.EndedAt, ID: rec.ID}
		got, err := backlog.Refill(ctx, driver.HistoryQuery{}, cursor, 100)
		if want := len(recs) - i - 1; err != nil || got.Matched != want {
			t.Errorf("Refill behind delivery %d of %d matched %d, %v, want %d", i, len(recs), got.Matched, err, want)
		}
		cursor.ID = waybill.ID{}
		got, err = backlog.Refill(ctx, driver.HistoryQuery{}, cursor, 100)
		want := len(slices.DeleteFunc(slices.Clone(recs), func(r store.Record) bool { return r.EndedAt.Before(rec.EndedAt) }))
		if err != nil || got.Matched != want {
			t.Errorf("Refill from the time of delivery %d of %d matched %d, %v, want %d", i, len(recs), got.Matched, err, want)
		}
	}
}

// refillsPages refills in pages of any size. Several events have one delivery
// time, and their ids are in another order than their seqs.
func refillsPages[T any](ctx context.Context, t tb, b *env[T]) {
	number, backlog := b.backlogOf(ctx, t, "a")
	evs := b.events(11, "a")
	ids := idsOf(evs)
	for i, place := range []int{5, 3, 4, 0, 10, 2, 1, 8, 9, 7, 6} {
		evs[i].ID = ids[place]
		evs[i].Type = []string{"T", "U"}[i%2]
	}
	recs := b.deliver(ctx, t, evs[:6], evs[6:7], evs[7:])
	leases := b.own(ctx, t)
	for _, q := range []driver.HistoryQuery{{}, {Types: []string{"T"}}, {Since: recs[1].EndedAt, Until: recs[10].EndedAt}} {
		want := slices.DeleteFunc(slices.Clone(recs), func(r store.Record) bool { return !matches(r, q) })
		for limit := 1; limit <= len(want)+1; limit++ {
			var cursor driver.HistoryCursor
			for at := 0; ; {
				part := want[at:min(at+limit, len(want))]
				got, err := backlog.Refill(ctx, q, cursor, limit)
				if err != nil || got.Matched != len(part) || got.Copied != len(part) {
					t.Fatalf("Refill(%+v) of %d behind %d of %d returned %+v, %v", q, limit, at, len(want), got, err)
				}
				if len(part) > 0 {
					last := part[len(part)-1]
					if !got.Next.At.Equal(last.EndedAt) || got.Next.ID != last.ID {
						t.Errorf("Refill(%+v) of %d behind %d has the cursor %+v, want that of %v, %s", q, limit, at, got.Next, last.EndedAt, last.ID)
					}
				}
				if missing := slices.DeleteFunc(recordIDs(part), func(id waybill.ID) bool {
					_, ok := recordIn(ctx, t, backlog, id)
					return ok
				}); len(missing) > 0 {
					t.Errorf("Refill(%+v) of %d behind %d has copied other events than %v", q, limit, at, missing)
				}
				cursor, at = got.Next, at+len(part)
				if len(part) < limit {
					break
				}
			}
			if rows := b.emptied(ctx, t, leases, backlog); len(rows) != len(want) {
				t.Errorf("Refill(%+v) in pages of %d copied %d events, want %d", q, limit, len(rows), len(want))
			}
		}
	}
	if got, err := backlog.Refill(ctx, driver.HistoryQuery{}, driver.HistoryCursor{}, 0); err != nil || got.Matched+got.Copied > 0 {
		t.Errorf("Refill of 0 returned %+v, %v", got, err)
	}
	b.wantBacklog(ctx, t, "Refill of 0", number)
}

// refillsMissing refills a backlog that has rows in every state: they stay as
// they are.
func refillsMissing[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b")
	rows := b.threeStates(ctx, t, numbers[0])
	b.end()
	missing := b.deliver(ctx, t, b.events(2, "a"))
	backlog := b.backlog(numbers[0])
	var before []store.Record
	for _, r := range rows {
		rec, _ := recordIn(ctx, t, backlog, r.ID)
		before = append(before, rec)
	}
	for i, copied := range []int{2, 0} {
		got, err := backlog.Refill(ctx, driver.HistoryQuery{}, driver.HistoryCursor{}, 100)
		if err != nil || got.Matched != len(rows)+2 || got.Copied != copied {
			t.Errorf("Refill %d matched %d and copied %d, %v, want %d and %d", i, got.Matched, got.Copied, err, len(rows)+2, copied)
		}
		for i, r := range rows {
			rec := wantIn(ctx, t, backlog, r.ID, before[i].State)
			wantRow(t, "skipped by a refill", rec.Row, before[i].Row)
		}
		for _, rec := range missing {
			wantRow(t, "refilled", wantIn(ctx, t, backlog, rec.ID, store.Ready).Row, refilled(rec))
		}
	}
	// The rows of one destination do not count for another.
	if matched, copied := refill(ctx, t, b.backlog(numbers[1]), driver.HistoryQuery{}, 3); matched != len(rows)+2 || copied != matched {
		t.Errorf("Refill of another destination matched %d and copied %d, want %d", matched, copied, len(rows)+2)
	}
	b.removeDestination(ctx, t, "b", int64(len(rows)+2))
	// Without a registered destination, there is no backlog.
	if got, err := b.backlog(numbers[1]).Refill(ctx, driver.HistoryQuery{}, driver.HistoryCursor{}, 100); err == nil && got.Copied > 0 {
		t.Errorf("Refill of a destination that was removed copied %d", got.Copied)
	}
	b.register(ctx, t, "c")
	b.wantEmpty(ctx, t, "a destination with the number of a removed one", numbers[1])
}

func refillsMany[T any](ctx context.Context, t tb, b *env[T]) {
	number, backlog := b.backlogOf(ctx, t, "a")
	var evs []waybill.Event
	for i, names := 0, b.aggregates(5); i < 1500; i++ {
		evs = append(evs, b.event(names[i%len(names)]))
	}
	b.deliver(ctx, t, evs[:1100], evs[1100:])
	got, err := backlog.Refill(ctx, driver.HistoryQuery{}, driver.HistoryCursor{}, 1000)
	if err != nil || got.Matched != 1000 || got.Copied != 1000 {
		t.Fatalf("Refill of 1000 returned %+v, %v", got, err)
	}
	if matched, copied := refill(ctx, t, backlog, driver.HistoryQuery{}, 700); matched != 1500 || copied != 500 {
		t.Errorf("Refill of the rest matched %d and copied %d, want 1500 and 500", matched, copied)
	}
	if rows := b.readyIn(ctx, t, b.backlog(number)); !slices.Equal(rowIDs(rows), idsOf(evs)) {
		t.Errorf("refilled are %d rows, want %d in the order of their writes", len(rows), len(evs))
	}
}

// refillsLanes refills events that were delivered when the outbox had another
// number of lanes.
func refillsLanes[T any](ctx context.Context, t tb, b *env[T]) {
	number, backlog := b.backlogOf(ctx, t, "a")
	var evs []waybill.Event
	for i := range 20 {
		evs = append(evs, b.event([]string{"a", "b", "c", "d", ""}[i%5]))
	}
	recs := b.deliver(ctx, t, evs)
	for _, n := range b.numbers() {
		b.setLanes(ctx, t, n)
		if matched, copied := refill(ctx, t, backlog, driver.HistoryQuery{}, 7); matched != len(recs) || copied != len(recs) {
			t.Errorf("with %d lanes, Refill matched %d and copied %d, want %d", n, matched, copied, len(recs))
		}
		rows := b.readyIn(ctx, t, b.backlog(number))
		if !slices.Equal(rowIDs(rows), idsOf(evs)) {
			t.Errorf("with %d lanes, refilled are %v, want %v", n, rowIDs(rows), idsOf(evs))
		}
		for _, r := range rows {
			b.wantLane(t, r)
		}
		b.emptied(ctx, t, b.own(ctx, t), backlog)
		b.end()
	}
}

package drivertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// divertFenceChecks check what a settlement must not divert.
func divertFenceChecks[T any]() []check[T] {
	return []check[T]{
		{row: "divert", name: "only rows that were moved", run: divertsMoved[T]},
		{row: "divert", name: "only registered destinations", run: divertsRegistered[T]},
		{row: "divert", name: "nothing without the fence", run: divertsUnderTheFence[T]},
		{row: "divert", name: "a settlement whose answer was lost", run: divertsOnce[T]},
		{row: "divert", name: "an id that the backlog has already", fresh: true, run: divertsKnown[T]},
		{row: "divert", name: "the outbox is as after any delivery", fresh: true, run: divertsFromTheOutbox[T]},
		{row: "divert", name: "against a takeover", run: divertAgainstTakeOver[T]},
	}
}

// divertsMoved names rows that the settlement does not move.
func divertsMoved[T any](ctx context.Context, t tb, b *env[T]) {
	number, _ := b.backlogOf(ctx, t, "a")
	names := b.aggregates(2)
	evs := append(b.events(5, names[0]), b.event(names[len(names)-1]))
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	b.divert(ctx, t, leases, rows[:1]) // done, without any diversion
	buried := result(rows[4])
	buried.Attempts, buried.Error = 1, "boom"
	b.settle(ctx, t, driver.Settlement{Leases: leases, Dead: []driver.Result{buried}})
	never := driver.Result{Lane: rows[1].Lane, ID: waybill.NewID(), Seq: rows[1].Seq}
	retry := result(rows[2])
	retry.Attempts, retry.Delay = 1, defaultLease
	wrong := result(rows[5])
	wrong.Lane = b.otherLane(rows[5].Lane)
	s := driver.Settlement{
		Leases: leases, History: true, Done: []driver.Result{result(rows[0]), result(rows[1]), never, buried}, Retry: []driver.Result{retry},
		Divert: append(spread(rows, number), driver.Diversion{Destination: number, ID: never.ID}),
	}
	moved := []waybill.ID{rows[1].ID, rows[2].ID}
	if wrong.Lane != rows[5].Lane { // a row of a lane without a lease
		s.Leases = slices.DeleteFunc(slices.Clone(leases), func(l driver.Lease) bool { return l.Lane == rows[5].Lane })
		s.Done = append(s.Done, wrong)
	}
	wantMoved(t, b.settle(ctx, t, s), moved...)
	b.wantBacklog(ctx, t, "one of many was moved", number, queued(rows[1], driver.Diversion{}))
	b.wantReady(ctx, t, evs[3], evs[5])
	b.wantState(ctx, t, evs[2], store.Delayed)
	b.wantState(ctx, t, evs[4], store.Dead)
}

func divertsRegistered[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b")
	b.removeDestination(ctx, t, "a", 0)
	rows := b.writeRows(ctx, t, b.events(3, "a")...)
	b.divert(ctx, t, b.own(ctx, t), rows, spread(rows, 1, 2, 3, driver.MaxDestinations, 0)...)
	b.end()
	var expected []row
	for _, r := range rows {
		expected = append(expected, queued(r, driver.Diversion{}))
	}
	check := func(when string) {
		t.Helper()
		b.wantBacklog(ctx, t, when, numbers[1], expected...)
		b.wantEmpty(ctx, t, when, 1, 3, driver.MaxDestinations)
	}
	check("not registered")
	b.wantReady(ctx, t) // the other destinations are served
	names := make([]string, driver.MaxDestinations-1)
	for i := range names {
		names[i] = fmt.Sprintf("d%d", i)
	}
	b.register(ctx, t, names...)
	check("registered later")
}

// divertsUnderTheFence settles with leases that are not held, alone and beside
// one that is.
func divertsUnderTheFence[T any](ctx context.Context, t tb, b *env[T]) {
	number, _ := b.backlogOf(ctx, t, "a")
	names := b.aggregates(2)
	evs := b.events(2, names[0])
	if len(names) > 1 {
		evs = append(evs, b.events(2, names[1])...)
	}
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	lost := leases[rows[0].Lane]
	if err := b.DB.Relay.Release(ctx, []driver.Lease{lost}, false); err != nil {
		t.Fatalf("Release: %v", err)
	}
	next := b.acquire(ctx, t, b.second().Relay, b.node(ctx, t, b.second().Relay), lost.Lane)[0]
	for what, change := range map[string]func(l *driver.Lease){
		"the lease before the present one":    func(*driver.Lease) {},
		"an old epoch with the present token": func(l *driver.Lease) { l.Token = next.Token },
		"the present epoch with an old token": func(l *driver.Lease) { l.Epoch = next.Epoch },
	} {
		lease := lost
		change(&lease)
		s := driver.Settlement{Leases: []driver.Lease{lease}, History: true, Done: results(rows[:2]), Divert: spread(rows[:2], number)}
		if settled, err := b.DB.Relay.Settle(ctx, s); err != nil || len(settled.Held)+len(settled.Moved) > 0 {
			t.Errorf("%s: the settlement was accepted: %+v, %v", what, settled, err)
		}
		b.wantBacklog(ctx, t, what, number)
		b.wantReady(ctx, t, evs...)
	}
	// One lane lost of two.
	s := driver.Settlement{Leases: leases, History: true, Done: results(rows), Divert: spread(rows, number)}
	settled, err := b.DB.Relay.Settle(ctx, s)
	if err != nil {
		t.Fatalf("Settle: %v", err)
	}
	wantMoved(t, settled, idsOf(evs[2:])...)
	var expected []row
	for _, r := range rows[2:] {
		expected = append(expected, queued(r, driver.Diversion{}))
	}
	b.wantBacklog(ctx, t, "one lane is lost", number, expected...)
	b.wantReady(ctx, t, evs[:2]...)
}

// divertsOnce repeats a settlement, before and after the destination has
// settled the rows.
func divertsOnce[T any](ctx context.Context, t tb, b *env[T]) {
	number, backlog := b.backlogOf(ctx, t, "a")
	rows := b.writeRows(ctx, t, b.events(4, "a")...)
	leases := b.own(ctx, t)
	s := driver.Settlement{Leases: leases, History: true, Done: results(rows), Divert: spread(rows, number)}
	for i := range s.Divert {
		s.Divert[i].Attempts, s.Divert[i].Delay = i, time.Duration(i)*time.Minute
	}
	b.settle(ctx, t, s)
	before := b.readyIn(ctx, t, backlog)
	if len(before) != len(rows) {
		t.Fatalf("%d diverted events gave %d rows", len(rows), len(before))
	}
	repeat := func(when string, settled driver.Settled) {
		t.Helper()
		if len(settled.Moved) > 0 {
			t.Errorf("%s: a repeated settlement moved %v", when, settled.Moved)
		}
	}
	repeat("unchanged", b.settle(ctx, t, s))
	b.wantBacklog(ctx, t, "repeated", number, before...)
	retry := readyResult(rows[1])
	retry.Delay, retry.Attempts = defaultLease, 7
	settleIn(ctx, t, backlog, driver.Settlement{
		Leases: leases, History: true, Done: readyResults(rows[:1]), Retry: []driver.Result{retry}, Dead: readyResults(rows[2:3]),
	})
	repeat("settled", b.settle(ctx, t, s))
	b.wantBacklog(ctx, t, "settled", number, before[3:]...)
	wantNotIn(ctx, t, backlog, rows[0].ID)
	if rec := wantIn(ctx, t, backlog, rows[1].ID, store.Delayed); rec.Attempts != 7 {
		t.Errorf("a repeated settlement changed a deferred row to %+v", rec.Row)
	}
	wantIn(ctx, t, backlog, rows[2].ID, store.Dead)
}

// divertsKnown diverts an event whose id was written again after the first
// event had left the outbox without a trace: the settlement succeeds, and the
// backlog keeps the row that it has.
func divertsKnown[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b")
	leases := b.own(ctx, t)
	evs := b.events(2, "a")
	divert := func(rows []row, diversions ...driver.Diversion) {
		t.Helper()
		s := driver.Settlement{Leases: leases, Done: results(rows), Divert: diversions}
		wantMoved(t, b.settle(ctx, t, s), rowIDs(rows)...)
	}
	first := b.writeRows(ctx, t, evs[0])
	divert(first, driver.Diversion{Destination: numbers[0], ID: evs[0].ID, Attempts: 3, Error: "first"})
	known := b.readyIn(ctx, t, b.backlog(numbers[0]))
	if len(known) != 1 {
		t.Fatalf("one diverted event gave %d rows", len(known))
	}
	second := b.writeRows(ctx, t, evs...)
	divert(second, spread(second, numbers...)...)
	b.wantReady(ctx, t)
	other := queued(second[1], driver.Diversion{})
	b.wantBacklog(ctx, t, "the id was known", numbers[0], append(known, other)...)
	b.wantBacklog(ctx, t, "the id was new", numbers[1], queued(second[0], driver.Diversion{}), other)
	// Settlements of a backlog leave a pending event with the id alone.
	b.write(ctx, t, evs[0])
	res := driver.Result{Lane: known[0].Lane, ID: evs[0].ID}
	wantMoved(t, settleIn(ctx, t, b.backlog(numbers[0]), driver.Settlement{Leases: leases, Done: []driver.Result{res}, History: true}), evs[0].ID)
	b.wantReady(ctx, t, evs[0])
}

// divertsFromTheOutbox checks that backlogs do not appear in the outbox's own
// numbers, lists and outcomes.
func divertsFromTheOutbox[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b")
	rows := b.threeStates(ctx, t, numbers...)
	own := append(b.events(3, "a"), b.keyed("a", "k"))
	kept := b.writeRows(ctx, t, own...)
	b.end()
	b.endOneByOne(ctx, t, 2, kept[0])
	s := b.stats(ctx, t)
	wantFields(t, "Stats of the outbox", s, func(want *store.Stats) {
		*want = store.Stats{Now: s.Now, Ready: 3, Dead: 1, Oldest: s.Oldest, Membership: s.Membership}
	})
	if !s.Oldest.Equal(kept[1].CreatedAt) {
		t.Errorf("the oldest event of the outbox was written at %v; Stats has %v", kept[1].CreatedAt, s.Oldest)
	}
	for state, want := range map[store.State][]waybill.ID{
		store.Ready: idsOf(own[1:]), store.Delayed: nil, store.Dead: idsOf(own[:1]), store.Delivered: rowIDs(rows),
	} {
		if got := recordIDs(b.list(ctx, t, state, store.Filter{}, 100)); !slices.Equal(got, want) {
			t.Errorf("List(%v) of the outbox returned %v, want %v", state, got, want)
		}
		if n, err := b.DB.OutboxAdmin.Count(ctx, state, store.Filter{}); err != nil || n != int64(len(want)) {
			t.Errorf("Count(%v) of the outbox is %d, %v, want %d", state, n, err, len(want))
		}
	}
	var diverted []waybill.Event
	for _, r := range rows {
		diverted = append(diverted, r.Event)
		rec := b.wantState(ctx, t, r.Event, store.Delivered) // and in no other place
		if rec.Attempts != 0 || rec.LastError != "" || rec.Holds || rec.Final {
			t.Errorf("diverted, the event is in the history as %+v", rec.Row)
		}
	}
	b.wantCommitted(ctx, t, true, diverted...)
	b.wantCommitted(ctx, t, false, b.event("a"))
	if held := b.heldBy(ctx, t, b.allLanes(), diverted...); len(held) > 0 {
		t.Errorf("Holds of the outbox returned %v of a backlog", held)
	}
	// Commands of the outbox change nothing in a backlog.
	wantSame(t, "Replay", b.replay(ctx, t, diverted...).IDs)
	wantSame(t, "Unblock", b.unblock(ctx, t, diverted...))
	wantSame(t, "Discard", b.discard(ctx, t, diverted...))
	b.tick(ctx, t)
	for state, want := range map[store.State]int{store.Dead: 1, store.Delivered: len(rows)} {
		if n := b.purge(ctx, t, state, 0, 1000); n != want {
			t.Errorf("Purge of the outbox deleted %d that are %v, want %d", n, state, want)
		}
	}
	if n := b.purgeWritten(ctx, t, 0, 1000); n != 3 {
		t.Errorf("PurgeWritten deleted %d, want 3", n)
	}
	if n := b.makeReady(ctx, t, 1000); n > 0 {
		t.Errorf("MakeReady moved %d", n)
	}
	if err := b.DB.OutboxAdmin.Tidy(ctx, keepDays); err != nil {
		t.Errorf("Tidy: %v", err)
	}
	b.wantThreeStates(ctx, t, "after commands of the outbox", numbers[0])
	b.wantThreeStates(ctx, t, "after commands of the outbox", numbers[1])
}

// divertAgainstTakeOver lets a stale owner divert during the takeover of its
// lane: the new owner sees either the row in the backlog, or the row in the
// outbox, which then stays.
func divertAgainstTakeOver[T any](ctx context.Context, t tb, b *env[T]) {
	rounds := 30
	if b.short {
		rounds = 10
	}
	number, backlog := b.backlogOf(ctx, t, "a")
	other := b.second()
	for round := range rounds {
		ev := b.event("a")
		row := b.writeRows(ctx, t, ev)[0]
		stale, heir := b.node(ctx, t, b.DB.Relay), b.node(ctx, t, other.Relay)
		lease := b.acquire(ctx, t, b.DB.Relay, stale, row.Lane)[0]
		b.expire(ctx, t, b.DB.Relay, stale, heir)
		var wg sync.WaitGroup
		wg.Go(func() {
			b.stumble(ctx)
			s := driver.Settlement{Leases: []driver.Lease{lease}, History: true, Done: []driver.Result{result(row)}, Divert: spread(rowList(row), number)}
			if _, err := b.DB.Relay.Settle(ctx, s); err != nil {
				t.Errorf("Settle: %v", err)
			}
		})
		var next []driver.Lease
		var diverted bool
		wg.Go(func() {
			b.stumble(ctx)
			var err error
			if next, err = other.Relay.Acquire(ctx, heir, []int{row.Lane}, 7); err != nil {
				t.Errorf("Acquire: %v", err)
			}
			recs, err := other.Backlogs.Backlog(number).Find(ctx, ev.ID)
			if err != nil {
				t.Errorf("Find: %v", err)
			}
			diverted = len(recs) > 0
		})
		wg.Wait()
		_, stays := find(b.ready(ctx, t), ev.ID)
		_, there := recordIn(ctx, t, backlog, ev.ID)
		if there != diverted || stays == diverted {
			t.Errorf("round %d: the new owner saw the row in the backlog: %v; later it is in the backlog: %v, in the outbox: %v", round, diverted, there, stays)
		}
		if stays {
			b.settle(ctx, t, driver.Settlement{Leases: next, History: true, Done: []driver.Result{result(row)}})
		} else {
			settleIn(ctx, t, backlog, driver.Settlement{Leases: next, Done: []driver.Result{readyResult(row)}})
		}
		b.end() // both nodes leave
	}
}

func rowList(r row) []row { return []row{r} }

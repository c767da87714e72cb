package drivertest

import (
	"context"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// backlogSettleChecks check settlements of a backlog.
func backlogSettleChecks[T any]() []check[T] {
	return slices.Concat(
		inBacklog("backlog_settle", slices.Concat(doneChecks[T](), retryChecks[T](), fenceChecks[T](), raceChecks[T]()),
			"with history", "without history", "many at once", "a ready row is deferred", "a deferred row is deferred again",
			"a settlement repeated after a replay changes nothing", "all results in one settlement", "missing rows are skipped",
			"errors are truncated and cleaned", "stale leases change nothing", "a lost lane beside a held one", "results without a lease",
			"settlement against takeover", "concurrent settlements of one owner"),
		[]check[T]{
			{row: "backlog_settle", name: "every result from every state", run: backlogSettles[T]},
			{row: "backlog_settle", name: "the delivery time in the history", run: backlogHistory[T]},
			{row: "backlog_settle", name: "not while another has the lane", run: backlogFence[T]},
			{row: "backlog_settle", name: "ready rows that were replayed", run: backlogReplayNumber[T]},
			{row: "backlog_settle", name: "rows move with the lanes", fresh: true, run: backlogSetsLanes[T]},
		},
	)
}

// backlogSettles settles ready rows with attempts, a due time and the mark of a
// final failure: only ready rows have the mark.
func backlogSettles[T any](ctx context.Context, t tb, b *env[T]) {
	number, backlog := b.backlogOf(ctx, t, "a")
	rows := b.writeRows(ctx, t, full(t, waybill.NewID()), full(t, waybill.NewID()), full(t, waybill.NewID()))
	diversions := spread(rows, number)
	for i := range diversions {
		d := &diversions[i]
		d.Attempts, d.Delay, d.Final, d.Error = 4, time.Hour, true, "the first attempt's error"
	}
	leases := b.own(ctx, t)
	b.divert(ctx, t, leases, rows, diversions...)
	results := readyResults(rows)
	for i := range results {
		results[i].Attempts, results[i].Error, results[i].Holds, results[i].Delay = 5+i, "new", true, defaultLease
	}
	before := b.now(ctx, t)
	s := driver.Settlement{Leases: leases, History: true, Done: results[:1], Retry: results[1:2], Dead: results[2:]}
	wantMoved(t, settleIn(ctx, t, backlog, s), rowIDs(rows)...)
	after := b.now(ctx, t)
	wantNotIn(ctx, t, backlog, rows[0].ID)
	compare := func(rec store.Record, origin row, attempts int) {
		t.Helper()
		expected := queued(origin, driver.Diversion{Attempts: attempts, Error: "new"})
		expected.DueAt, expected.Holds = rec.DueAt, true
		wantRow(t, rec.State.String(), rec.Row, expected)
	}
	late := wantIn(ctx, t, backlog, rows[1].ID, store.Delayed)
	compare(late, rows[1], 6)
	if late.DueAt.Before(before.Add(defaultLease)) || late.DueAt.After(after.Add(defaultLease)) {
		t.Errorf("deferred between %v and %v by %v, the row is due at %v", before, after, defaultLease, late.DueAt)
	}
	dead := wantIn(ctx, t, backlog, rows[2].ID, store.Dead)
	compare(dead, rows[2], 7)
	if !dead.DueAt.IsZero() || dead.EndedAt.Before(before) || dead.EndedAt.After(after) {
		t.Errorf("dead between %v and %v, the row is due at %v, ended at %v", before, after, dead.DueAt, dead.EndedAt)
	}
	// From the deferred rows, and not from the dead ones.
	retry, kill := result(late.Row), readyResult(rows[2])
	retry.Attempts, retry.Error = 9, "again"
	wantMoved(t, settleIn(ctx, t, backlog, driver.Settlement{
		Leases: leases, History: true, Dead: []driver.Result{retry}, Done: []driver.Result{kill}, Retry: []driver.Result{kill},
	}), rows[1].ID)
	if rec := wantIn(ctx, t, backlog, rows[1].ID, store.Dead); rec.Attempts != 9 || rec.LastError != "again" || rec.Holds || !rec.DueAt.IsZero() {
		t.Errorf("dead after it was deferred, the row is %+v", rec.Row)
	}
	wantIn(ctx, t, backlog, rows[2].ID, store.Dead)
	for i, r := range rows { // in the outbox, they are delivered
		rec := b.wantState(ctx, t, r.Event, store.Delivered)
		expected := r
		expected.Err = rec.Err
		wantRow(t, "in the history", rec.Row, expected)
		if i > 0 && rec.EndedAt.After(before) {
			t.Errorf("the event was not delivered, and its delivery time is %v, after %v", rec.EndedAt, before)
		}
	}
}

// backlogHistory compares delivery times in the history, before and after
// settlements with and without history.
func backlogHistory[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b")
	rows := b.writeRows(ctx, t, b.events(6, "a")...)
	leases := b.own(ctx, t)
	b.divert(ctx, t, leases, rows, spread(rows, numbers...)...)
	ended := map[waybill.ID]time.Time{}
	for _, r := range rows {
		ended[r.ID] = b.wantState(ctx, t, r.Event, store.Delivered).EndedAt
	}
	backlog := b.backlog(numbers[0])
	retry := readyResult(rows[4])
	settleIn(ctx, t, backlog, driver.Settlement{Leases: leases, Retry: []driver.Result{retry}})
	b.tick(ctx, t)
	changed := func(what string, settle func(), changed ...row) {
		t.Helper()
		before := b.now(ctx, t)
		settle()
		after := b.now(ctx, t)
		for i, r := range rows {
			rec := b.wantState(ctx, t, r.Event, store.Delivered)
			if slices.Contains(rowIDs(changed), r.ID) {
				if rec.EndedAt.Before(before) || rec.EndedAt.After(after) || !inMicrosUTC(rec.EndedAt) {
					t.Errorf("%s between %v and %v: the delivery time of event %d is %v", what, before, after, i, rec.EndedAt)
				}
				ended[r.ID] = rec.EndedAt
			} else if !rec.EndedAt.Equal(ended[r.ID]) {
				t.Errorf("%s: the delivery time of event %d became %v; it was %v", what, i, rec.EndedAt, ended[r.ID])
			}
			expected := r
			expected.Err = rec.Err
			wantRow(t, what+": in the history", rec.Row, expected)
		}
		b.tick(ctx, t)
	}
	settle := func(number int, s driver.Settlement, moved ...row) func() {
		return func() {
			t.Helper()
			s.Leases = leases
			wantMoved(t, settleIn(ctx, t, b.backlog(number), s), rowIDs(moved)...)
		}
	}
	dead := readyResult(rows[5])
	s := driver.Settlement{History: true, Done: append(readyResults(rows[:2]), result(wantIn(ctx, t, backlog, rows[4].ID, store.Delayed).Row))}
	s.Dead = []driver.Result{dead}
	changed("delivered", settle(numbers[0], s, rows[0], rows[1], rows[4], rows[5]), rows[0], rows[1], rows[4])
	changed("delivered again", settle(numbers[0], s))
	changed("without history", settle(numbers[0], driver.Settlement{Done: readyResults(rows[2:3])}, rows[2]))
	changed("another destination", settle(numbers[1], driver.Settlement{History: true, Done: readyResults(rows[1:3])}, rows[1], rows[2]), rows[1], rows[2])
	wrong := slices.Clone(leases)
	for i := range wrong {
		wrong[i].Epoch++
	}
	changed("without the fence", func() {
		if out, err := backlog.Settle(ctx, driver.Settlement{Leases: wrong, History: true, Done: readyResults(rows[3:4])}); err != nil || len(out.Held)+len(out.Moved) > 0 {
			t.Errorf("a settlement without the fence: %+v, %v", out, err)
		}
	})
}

// backlogFence settles a backlog with the lease of a lane that another node has
// acquired since: the lease of a lane is the fence of all backlogs.
func backlogFence[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b")
	evs := []waybill.Event{b.event("a"), b.event("a")}
	old := b.own(ctx, t)
	rows := b.fill(ctx, t, old, numbers, evs...)
	lane := rows[0].Lane
	if err := b.DB.Relay.Release(ctx, old, false); err != nil {
		t.Fatalf("Release: %v", err)
	}
	try := func(what string, lease driver.Lease) {
		t.Helper()
		for kind := range 3 {
			res := readyResult(rows[0])
			res.Attempts, res.Error, res.Delay, res.Holds = 9, "stale", defaultLease, true
			for _, number := range numbers {
				if out, err := b.backlog(number).Settle(ctx, settlement(kind, []driver.Lease{lease}, res)); err != nil || len(out.Held)+len(out.Moved) > 0 {
					t.Errorf("%s: the settlement was accepted: %+v, %v", what, out, err)
				}
			}
		}
		for _, number := range numbers {
			b.wantBacklog(ctx, t, what, number, rows...)
		}
	}
	try("released", old[lane])
	held := b.acquire(ctx, t, b.second().Relay, b.node(ctx, t, b.second().Relay), lane)[0]
	try("acquired by another node", old[lane])
	for what, change := range map[string]func(l *driver.Lease){
		"a stale epoch": func(l *driver.Lease) { l.Epoch = old[lane].Epoch },
		"a stale token": func(l *driver.Lease) { l.Token = old[lane].Token },
		"no token":      func(l *driver.Lease) { l.Token = waybill.ID{} },
		// As the rows of a backlog may be numbered.
		"a lane of the next destination": func(l *driver.Lease) { l.Lane += 1024 },
		"the row's own lane in a table":  func(l *driver.Lease) { l.Lane += 1024 * numbers[0] },
	} {
		lease := held
		change(&lease)
		try(what, lease)
	}
	// The fence of the outbox is that of the backlogs, and of each alone.
	wantMoved(t, settleIn(ctx, t, b.backlog(numbers[1]), driver.Settlement{Leases: []driver.Lease{held}, Done: readyResults(rows), History: true}), rowIDs(rows)...)
	b.wantBacklog(ctx, t, "another destination was served", numbers[0], rows...)
	b.wantBacklog(ctx, t, "served", numbers[1])
}

// backlogReplayNumber settles ready rows under another replay number than they
// have: refills and replays in the outbox raise it.
func backlogReplayNumber[T any](ctx context.Context, t tb, b *env[T]) {
	number, backlog := b.backlogOf(ctx, t, "a")
	evs := b.events(3, "a")
	b.bury(ctx, t, nil, evs...)
	b.replay(ctx, t, evs...)
	leases := b.own(ctx, t)
	var delayed []row
	for _, ev := range evs {
		delayed = append(delayed, b.wantState(ctx, t, ev, store.Delayed).Row)
	}
	b.divert(ctx, t, leases, delayed, spread(delayed, number)...)
	rows := b.readyIn(ctx, t, backlog)
	if len(rows) != len(evs) || rows[0].Replay != 1 {
		t.Fatalf("replayed and diverted, the rows are %+v", rows)
	}
	s := driver.Settlement{Leases: leases, History: true, Done: readyResults(rows[:1]), Retry: readyResults(rows[1:2]), Dead: readyResults(rows[2:])}
	for _, replay := range []int{0, 2} {
		for _, list := range [][]driver.Result{s.Retry, s.Dead} {
			list[0].Replay = replay
		}
		wantMoved(t, settleIn(ctx, t, backlog, driver.Settlement{Leases: leases, Retry: s.Retry, Dead: s.Dead}))
		b.wantBacklog(ctx, t, "settled under another replay number", number, rows...)
	}
	s.Done[0].Replay, s.Retry[0].Replay, s.Dead[0].Replay = 7, 1, 1
	wantMoved(t, settleIn(ctx, t, backlog, s), rowIDs(rows)...) // Done has no replay number
	for i, state := range []store.State{store.Delayed, store.Dead} {
		if rec := wantIn(ctx, t, backlog, rows[i+1].ID, state); rec.Replay != 1 {
			t.Errorf("%v after a replay, the row has the replay number %d", state, rec.Replay)
		}
	}
}

// backlogSetsLanes changes the number of lanes: the rows of backlogs move to
// the lanes in which the outbox's events of the same aggregates are.
func backlogSetsLanes[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b")
	var evs []waybill.Event
	for i := range 24 {
		ev := b.event([]string{"a", "b", "c", "d", ""}[i%5])
		if i%2 == 0 {
			ev.TenantID = "tenant"
		}
		evs = append(evs, ev)
	}
	leases := b.own(ctx, t)
	rows := b.fill(ctx, t, leases, numbers, evs...)
	s := driver.Settlement{Leases: leases, Retry: readyResults(rows[8:16]), Dead: readyResults(rows[16:])}
	for i := range s.Retry {
		s.Retry[i].Delay, s.Retry[i].Holds = defaultLease, rows[8+i].Event.Ordered()
		s.Dead[i].Holds = rows[16+i].Event.Ordered()
	}
	settleIn(ctx, t, b.backlog(numbers[0]), s)
	b.end()
	for _, n := range b.numbers() {
		b.setLanes(ctx, t, n)
		for i, r := range rows {
			mine := wantIn(ctx, t, b.backlog(numbers[0]), r.ID, []store.State{store.Ready, store.Delayed, store.Dead}[i/8])
			other := wantIn(ctx, t, b.backlog(numbers[1]), r.ID, store.Ready)
			b.wantLane(t, mine.Row)
			if mine.Lane != other.Lane || mine.Seq != r.Seq || other.Seq != r.Seq {
				t.Errorf("with %d lanes the rows of event %d are %+v and %+v; it was %+v", n, i, mine.Key, other.Key, r.Key)
			}
		}
		if ready := b.readyIn(ctx, t, b.backlog(numbers[0])); !slices.Equal(rowIDs(ready), idsOf(evs[:8])) {
			t.Errorf("with %d lanes, %d rows are ready, want 8", n, len(ready))
		}
	}
	leases = b.own(ctx, t)
	left := b.readyIn(ctx, t, b.backlog(numbers[1]))
	wantMoved(t, settleIn(ctx, t, b.backlog(numbers[1]), driver.Settlement{Leases: leases, Done: readyResults(left), History: true}), idsOf(evs)...)
	held, err := b.backlog(numbers[0]).Holds(ctx, b.allLanes())
	want := 0
	for _, r := range rows[8:] {
		if r.Event.Ordered() {
			want++
		}
	}
	if err != nil || len(held) != want {
		t.Errorf("after SetLanes, %d rows hold their aggregate, %v, want %d", len(held), err, want)
	}
}

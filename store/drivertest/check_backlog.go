package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// backlogReadChecks check the reads of a backlog: those of the outbox, and what
// is different.
func backlogReadChecks[T any]() []check[T] {
	return slices.Concat(
		inBacklog("backlog_reads", slices.Concat(readChecks[T](), pageChecks[T](), dueChecks[T](), seekChecks[T]()),
			"fetch in order", "fetch several lanes", "fetch nothing", "sweep finds the rows of fetch", "load by key", "load many", "large rows",
			"due in order", "due of these lanes only", "holds of deferred and dead rows", "holds of these lanes in order", "fetch one aggregate",
			"fetch similar aggregates", "priority rows", "priority rows of aggregates"),
		[]check[T]{
			{row: "backlog_reads", name: "time of the next due row", run: backlogNext[T]},
			{row: "backlog_reads", name: "lanes that do not exist", run: backlogOutside[T]},
			{row: "backlog_reads", name: "the first and the last lane of neighbors", fresh: true, run: backlogEdges[T]},
			{row: "backlog_reads", name: "no open writers", run: backlogWriters[T]},
			{row: "backlog_reads", name: "rows appear below existing ones", run: backlogBelow[T]},
		},
	)
}

// backlogNext has rows that are due in a minute, in one lane of one backlog,
// and sooner in its neighbors.
func backlogNext[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b", "c")
	names := b.aggregates(2)
	leases := b.own(ctx, t)
	evs := []waybill.Event{b.event(names[0]), b.event(names[0]), b.event(names[len(names)-1])}
	rows := b.fill(ctx, t, leases, numbers, evs...)
	retry := func(number int, delay time.Duration, rows ...row) {
		t.Helper()
		s := driver.Settlement{Leases: leases, Retry: readyResults(rows)}
		for i := range s.Retry {
			s.Retry[i].Delay = delay
		}
		settleIn(ctx, t, b.backlog(number), s)
	}
	wantNext := func(what string, want time.Time, lanes ...int) {
		t.Helper()
		page, err := b.backlog(numbers[1]).Due(ctx, lanes, 10)
		if err != nil || !page.Next.Equal(want) || page.Now.IsZero() {
			t.Errorf("%s: Due at %v has the next row at %v, %v, want %v", what, page.Now, page.Next, err, want)
		}
	}
	retry(numbers[0], time.Second, rows...)
	retry(numbers[2], time.Second, rows...)
	wantNext("rows of neighbors", time.Time{}, b.allLanes()...)
	retry(numbers[1], time.Hour, rows[0])
	retry(numbers[1], time.Minute, rows[1])
	first := wantIn(ctx, t, b.backlog(numbers[1]), evs[1].ID, store.Delayed)
	wantNext("two rows", first.DueAt, b.allLanes()...)
	wantNext("one lane", first.DueAt, rows[0].Lane)
	if lane := b.otherLane(rows[0].Lane); lane != rows[0].Lane {
		wantNext("another lane", time.Time{}, lane)
	}
}

// backlogOutside reads and settles lanes that the outbox does not have: a store
// that keeps several backlogs in one table must not find those of neighbors
// there.
func backlogOutside[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b", "c")
	rows := b.threeStates(ctx, t, numbers...)
	backlog := b.backlog(numbers[1])
	var lanes []int
	var from []driver.Cursor
	var keys []store.Key
	for _, r := range rows {
		for _, shift := range []int{-2048, -1024, -b.lanes, b.lanes, 1024, 2048} {
			lane := r.Lane + shift
			lanes, from = append(lanes, lane), append(from, driver.Cursor{Lane: lane})
			keys = append(keys, store.Key{Lane: lane, Seq: r.Seq, ID: r.ID})
			if page, err := backlog.FetchAggregate(ctx, driver.AggregateOf(&r.Event), driver.Cursor{Lane: lane}, 100); err != nil || len(page.Rows) > 0 {
				t.Errorf("FetchAggregate of lane %d returned %v, %v", lane, rowIDs(page.Rows), err)
			}
		}
	}
	for what, read := range map[string]func() (driver.Page, error){
		"Fetch":         func() (driver.Page, error) { return backlog.Fetch(ctx, from, 100) },
		"FetchPriority": func() (driver.Page, error) { return backlog.FetchPriority(ctx, from, 100) },
		"Load":          func() (driver.Page, error) { return backlog.Load(ctx, keys) },
		"Due":           func() (driver.Page, error) { return backlog.Due(ctx, lanes, 100) },
	} {
		if page, err := read(); err != nil || len(page.Rows) > 0 || !page.Next.IsZero() {
			t.Errorf("%s of lanes that do not exist returned %v, next %v, %v", what, rowIDs(page.Rows), page.Next, err)
		}
	}
	if refs, err := backlog.Sweep(ctx, from, 100); err != nil || len(refs) > 0 {
		t.Errorf("Sweep of lanes that do not exist returned %v, %v", refs, err)
	}
	if held, err := backlog.Holds(ctx, lanes); err != nil || len(held) > 0 {
		t.Errorf("Holds of lanes that do not exist returned %v, %v", held, err)
	}
	s := driver.Settlement{History: true}
	for _, key := range keys {
		s.Leases = append(s.Leases, driver.Lease{Lane: key.Lane, Epoch: 1})
		s.Done = append(s.Done, driver.Result{Lane: key.Lane, ID: key.ID, Seq: key.Seq})
	}
	if settled, err := backlog.Settle(ctx, s); err != nil || len(settled.Held)+len(settled.Moved) > 0 {
		t.Errorf("a settlement of lanes that do not exist: %+v, %v", settled, err)
	}
	for _, number := range numbers {
		b.wantThreeStates(ctx, t, "lanes that do not exist were settled", number)
	}
}

// backlogEdges fills the first and the last of 1024 lanes of three
// destinations.
func backlogEdges[T any](ctx context.Context, t tb, b *env[T]) {
	const most = 1024
	if !b.features.OneLane {
		b.setLanes(ctx, t, most)
	}
	numbers := b.register(ctx, t, "a", "b", "c")
	edges := []int{0, b.lanes - 1}
	var evs []waybill.Event
	for _, lane := range edges {
		for i := 0; ; i++ {
			if ev := b.event(fmt.Sprintf("edge%d", i)); b.laneOf(ev) == lane {
				evs = append(evs, ev)
				break
			}
		}
	}
	leases := b.acquire(ctx, t, b.DB.Relay, b.node(ctx, t, b.DB.Relay), slices.Compact(edges)...)
	b.fill(ctx, t, leases, numbers, evs...)
	for i, number := range numbers {
		rows := b.readyIn(ctx, t, b.backlog(number))
		for j, r := range rows {
			if r.Lane != edges[j] {
				t.Errorf("destination %d: event %d is in lane %d, want %d", number, j, r.Lane, edges[j])
			}
		}
		var kinds driver.Settlement // every destination has another state in the end
		kinds.Leases = leases
		switch i {
		case 0:
			kinds.Retry = readyResults(rows)
		case 1:
			kinds.Dead = readyResults(rows)
			for k := range kinds.Dead {
				kinds.Dead[k].Holds = true
			}
		}
		settleIn(ctx, t, b.backlog(number), kinds)
	}
	for i, number := range numbers {
		s, err := b.backlog(number).Stats(ctx)
		if err != nil {
			t.Fatalf("Stats: %v", err)
		}
		if got, want := []int64{s.Scheduled, s.Dead, s.Ready}, []int64{0, 0, 0}; true {
			want[i] = 2
			if !slices.Equal(got, want) {
				t.Errorf("destination %d has %v rows that are scheduled, dead and ready, want %v", number, got, want)
			}
		}
		occupied, err := b.backlog(number).Occupied(ctx)
		if err != nil || !slices.Equal(occupied, slices.Compact(slices.Clone(edges))) {
			t.Errorf("destination %d occupies the lanes %v, %v, want %v", number, occupied, err, edges)
		}
	}
	b.end()
	b.removeDestination(ctx, t, "b", 2)
	for i, number := range []int{numbers[0], numbers[2]} {
		state := []store.State{store.Delayed, store.Ready}[i]
		if n, err := b.backlog(number).Count(ctx, state, store.Filter{}); err != nil || n != 2 {
			t.Errorf("a neighbor was removed, and %d rows of destination %d are %v, %v, want 2", n, number, state, err)
		}
	}
}

// backlogWriters checks that a backlog has no transactions that draw a seq,
// also while one is open that writes to the outbox.
func backlogWriters[T any](ctx context.Context, t tb, b *env[T]) {
	number, backlog := b.backlogOf(ctx, t, "a")
	b.fill(ctx, t, b.own(ctx, t), []int{number}, b.event("a"))
	wantNone := func(when string) {
		t.Helper()
		w, err := backlog.OpenWriters(ctx)
		if err != nil || w.HighSeq != math.MaxInt64 || w.Issued != math.MaxInt64 || len(w.Open) > 0 || w.Unknown {
			t.Errorf("%s: OpenWriters of a backlog returned %+v, %v; want none, and the highest seqs", when, w, err)
		}
	}
	wantNone("no transaction")
	box := boxOver(t, b.DB.Outbox, outbox.Config{})
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		if _, err := box.WriteEach(ctx, tx, b.event("a")); err != nil {
			return err
		}
		wantNone("a transaction that has written")
		return errBoom
	})
	if !errors.Is(err, errBoom) {
		t.Errorf("InTx: %v", err)
	}
}

// backlogBelow diverts an event behind a later one of its lane: reads are in
// the order of seq, whatever the order of the diversions.
func backlogBelow[T any](ctx context.Context, t tb, b *env[T]) {
	number, backlog := b.backlogOf(ctx, t, "a")
	rows := b.writeRows(ctx, t, b.events(4, "a")...)
	leases := b.own(ctx, t)
	for _, i := range []int{3, 1, 2, 0} {
		b.divert(ctx, t, leases, rows[i:i+1], spread(rows[i:i+1], number)...)
	}
	var expected []row
	for _, r := range rows {
		expected = append(expected, queued(r, driver.Diversion{}))
	}
	b.wantBacklog(ctx, t, "diverted in another order", number, expected...)
	refs, err := backlog.Sweep(ctx, []driver.Cursor{{Lane: rows[0].Lane}}, 10)
	if err != nil || !slices.Equal(refs, sightings(rows)) {
		t.Errorf("Sweep without an upper bound returned %v, %v, want %v", refs, err, sightings(rows))
	}
}

// backlogInspectChecks check Stats, Count, List, Find and Occupied.
func backlogInspectChecks[T any]() []check[T] {
	return slices.Concat(
		inBacklog("backlog_inspect", slices.Concat(inspectChecks[T](), statsChecks[T]()),
			"list and count by filter", "list and count by time and error", "list in pages", "filters compare as bytes", "states that do not exist", "counts"),
		[]check[T]{
			{row: "backlog_inspect", name: "attempts of ready rows", run: backlogAttempts[T]},
			{row: "backlog_inspect", name: "no nodes and no lanes", run: backlogStats[T]},
			{row: "backlog_inspect", name: "find an event in every state", run: backlogFinds[T]},
			{row: "backlog_inspect", name: "occupied lanes", run: backlogOccupied[T]},
		},
	)
}

// backlogAttempts counts and lists ready rows by their attempts, which only
// backlogs have.
func backlogAttempts[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b")
	rows := b.writeRows(ctx, t, b.events(4, "a")...)
	diversions := spread(rows, numbers...)
	for i := range diversions {
		diversions[i].Attempts = []int{0, 20, 3, 20, 0, 20, 9, 20}[i] // 20: the other destination
		diversions[i].Delay = time.Duration(i) * time.Minute
	}
	leases := b.own(ctx, t)
	b.divert(ctx, t, leases, rows, diversions...)
	backlog := b.backlog(numbers[0])
	want := func(what string, f store.Filter, want ...row) {
		t.Helper()
		recs, err := backlog.List(ctx, store.Ready, f, 0, 100)
		if err != nil || !slices.Equal(recordIDs(recs), rowIDs(want)) {
			t.Errorf("%s: List returned %v, %v, want %v", what, recordIDs(recs), err, rowIDs(want))
		}
		if n, err := backlog.Count(ctx, store.Ready, f); err != nil || n != int64(len(want)) {
			t.Errorf("%s: Count returned %d, %v, want %d", what, n, err, len(want))
		}
	}
	want("all", store.Filter{}, rows...)
	want("failed", store.Filter{Failed: true}, rows[1], rows[3])
	want("untried", store.Filter{Untried: true}, rows[0], rows[2])
	want("failed of another type", store.Filter{Failed: true, Type: "another"})
	want("holding", store.Filter{Holding: true})
	maxAttempts := func(what string, want int) {
		t.Helper()
		if s, err := backlog.Stats(ctx); err != nil || s.MaxAttempts != want || s.Ready+s.Failed != 4 {
			t.Errorf("%s: Stats returned %+v, %v, want at most %d attempts, and 4 rows", what, s, err, want)
		}
	}
	maxAttempts("ready rows", 9)
	retry := readyResult(rows[1])
	retry.Delay, retry.Attempts = defaultLease, 8
	settleIn(ctx, t, backlog, driver.Settlement{Leases: leases, Retry: []driver.Result{retry}})
	maxAttempts("a deferred row with fewer", 9)
	retry.Late, retry.Attempts = true, 10
	settleIn(ctx, t, backlog, driver.Settlement{Leases: leases, Retry: []driver.Result{retry}})
	maxAttempts("a deferred row with more", 10)
}

func backlogStats[T any](ctx context.Context, t tb, b *env[T]) {
	number, backlog := b.backlogOf(ctx, t, "a")
	rows := b.fill(ctx, t, b.own(ctx, t), []int{number}, b.events(2, "a")...)
	s, err := backlog.Stats(ctx)
	if err != nil {
		t.Fatalf("Stats: %v", err)
	}
	if now := b.now(ctx, t); s.Now.After(now) || s.Now.Before(now.Add(-time.Minute)) {
		t.Errorf("Stats is of %v, asked at %v", s.Now, now)
	}
	want(t, "Stats of a backlog while a relay is live", s, store.Stats{Now: s.Now, Ready: 2, Oldest: rows[0].CreatedAt})
}

// backlogFinds finds the row of one destination, with all of its fields, while
// others have rows of the same event, and the outbox another event.
func backlogFinds[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b", "c")
	evs := []waybill.Event{full(t, waybill.NewID()), full(t, waybill.NewID()), full(t, waybill.NewID())}
	pending := b.event("a")
	leases := b.own(ctx, t)
	rows := b.writeRows(ctx, t, evs...)
	b.divert(ctx, t, leases, rows, spread(rows, numbers[0], numbers[1])...)
	b.write(ctx, t, pending)
	before := b.now(ctx, t)
	retry, dead := readyResult(rows[1]), readyResult(rows[2])
	retry.Delay, retry.Attempts, retry.Error, retry.Holds = defaultLease, 2, "deferred", true
	dead.Attempts, dead.Error, dead.Holds = 9, "dead", true
	backlog := b.backlog(numbers[1])
	settleIn(ctx, t, backlog, driver.Settlement{Leases: leases, Retry: []driver.Result{retry}, Dead: []driver.Result{dead}})
	for i, state := range []store.State{store.Ready, store.Delayed, store.Dead} {
		rec := wantIn(ctx, t, backlog, evs[i].ID, state)
		wantEvent(t, rec.Row, evs[i])
		expected := queued(rows[i], driver.Diversion{})
		expected.DueAt, expected.Holds = rec.DueAt, state != store.Ready
		expected.Attempts, expected.LastError = []int{0, 2, 9}[i], []string{"", "deferred", "dead"}[i]
		wantRow(t, state.String(), rec.Row, expected)
		if ended := !rec.EndedAt.IsZero(); ended != (state == store.Dead) || ended && (rec.EndedAt.Before(before) || !inMicrosUTC(rec.EndedAt)) {
			t.Errorf("%v: it ended at %v; it was ready at %v", state, rec.EndedAt, before)
		}
		if late := !rec.DueAt.IsZero(); late != (state == store.Delayed) || late && rec.DueAt.Before(before.Add(defaultLease)) {
			t.Errorf("%v: the row is due at %v", state, rec.DueAt)
		}
		wantIn(ctx, t, b.backlog(numbers[0]), evs[i].ID, store.Ready)
	}
	wantNotIn(ctx, t, b.backlog(numbers[2]), idsOf(evs)...)
	wantNotIn(ctx, t, backlog, pending.ID, waybill.NewID())
	wantMoved(t, settleIn(ctx, t, backlog, driver.Settlement{Leases: leases, Done: readyResults(rows[:1]), History: true}), evs[0].ID)
	wantNotIn(ctx, t, backlog, evs[0].ID) // also not as delivered
	for _, state := range []store.State{store.Ready, store.Delivered} {
		if recs, err := backlog.List(ctx, state, store.Filter{}, 0, 100); err != nil || len(recs) > 0 {
			t.Errorf("List(%v) returned %v, %v; a backlog has no delivered events", state, recordIDs(recs), err)
		}
		if n, err := backlog.Count(ctx, state, store.Filter{}); err != nil || n != 0 {
			t.Errorf("Count(%v) returned %d, %v; a backlog has no delivered events", state, n, err)
		}
	}
}

// backlogOccupied ends the rows of lanes in every way, one after another.
func backlogOccupied[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b", "c")
	backlog := b.backlog(numbers[1])
	wantLanes := func(what string, rows ...row) {
		t.Helper()
		var want []int
		for _, r := range rows {
			want = append(want, r.Lane)
		}
		slices.Sort(want)
		if got, err := backlog.Occupied(ctx); err != nil || !slices.Equal(got, slices.Compact(want)) {
			t.Errorf("%s: the lanes %v are occupied, %v, want %v", what, got, err, want)
		}
	}
	wantLanes("empty")
	var evs []waybill.Event
	names := b.aggregates(4)
	for range 2 {
		for _, name := range names {
			evs = append(evs, b.event(name))
		}
	}
	leases := b.own(ctx, t)
	b.fill(ctx, t, leases, []int{numbers[0], numbers[2]}, b.events(3, names[0])...)
	wantLanes("rows of other destinations")
	rows := b.fill(ctx, t, leases, []int{numbers[1]}, evs...)
	wantLanes("ready rows", rows...)
	second := rows[len(names):]
	settleIn(ctx, t, backlog, driver.Settlement{Leases: leases, Done: readyResults(second), History: true})
	wantLanes("ready rows", rows[:len(names)]...)
	s := driver.Settlement{Leases: leases}
	left := []row{}
	for i, r := range rows[:len(names)] { // done, deferred, dead and blocking, dead and not blocking
		res := readyResult(r)
		res.Delay, res.Holds = defaultLease, i == 2
		switch i {
		case 0:
			s.Done = append(s.Done, res)
		case 1:
			s.Retry = append(s.Retry, res)
			left = append(left, r)
		case 2:
			s.Dead = append(s.Dead, res)
			left = append(left, r)
		case 3:
			s.Dead = append(s.Dead, res)
		}
	}
	settleIn(ctx, t, backlog, s)
	wantLanes("deferred and dead rows", left...)
	if len(left) < 2 {
		return
	}
	if ids, err := backlog.Unblock(ctx, []waybill.ID{left[1].ID}); err != nil || len(ids) != 1 {
		t.Errorf("Unblock: %v, %v", ids, err)
	}
	wantLanes("unblocked", left[0])
}

package drivertest

import (
	"context"
	"errors"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// readChecks check how a relay finds ready rows.
func readChecks[T any]() []check[T] {
	return []check[T]{
		{row: "fetch", name: "fetch in order", run: fetchInOrder[T]},
		{row: "fetch", name: "fetch several lanes", run: fetchLanes[T]},
		{row: "fetch", name: "fetch nothing", run: fetchNothing[T]},
		{row: "sweep", name: "sweep finds the rows of fetch", run: sweeps[T]},
		{row: "load", name: "load by key", run: loads[T]},
		{row: "load", name: "load many", large: true, run: loadsMany[T]},
		{row: "reads_see_committed_rows", name: "uncommitted rows are invisible", run: readsCommitted[T]},
	}
}

func (b *env[T]) fetch(ctx context.Context, t tb, limit int, from ...driver.Cursor) []row {
	t.Helper()
	page, err := b.DB.Relay.Fetch(ctx, from, limit)
	if err != nil {
		t.Fatalf("Fetch: %v", err)
	}
	return page.Rows
}

func (b *env[T]) sweep(ctx context.Context, t tb, limit int, from ...driver.Cursor) []driver.RowRef {
	t.Helper()
	seen, err := b.DB.Relay.Sweep(ctx, from, limit)
	if err != nil {
		t.Fatalf("Sweep: %v", err)
	}
	return seen
}

// sightings returns the row references of a sweep.
func sightings(rows []row) []driver.RowRef {
	seen := make([]driver.RowRef, len(rows))
	for i, row := range rows {
		seen[i] = driver.RowRef{Key: row.Key, Aggregate: driver.AggregateOf(&row.Event), Tenant: row.Event.TenantID}
	}
	return seen
}

func keysOf(rows []row) []store.Key {
	keys := make([]store.Key, len(rows))
	for i, row := range rows {
		keys[i] = row.Key
	}
	return keys
}

func wantIDs(t tb, what string, got []row, want []waybill.Event) {
	t.Helper()
	if !slices.Equal(rowIDs(got), idsOf(want)) {
		t.Errorf("%s returned %v, want %v", what, rowIDs(got), idsOf(want))
	}
}

// fetchInOrder reads one lane with every kind of cursor.
func fetchInOrder[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(10, "a")
	for _, part := range [][]waybill.Event{evs[:3], evs[3:4], evs[4:]} {
		b.write(ctx, t, part...)
	}
	lane := b.laneOf(evs[0])
	page, err := b.DB.Relay.Fetch(ctx, []driver.Cursor{{Lane: lane}}, 100)
	if err != nil {
		t.Fatalf("Fetch: %v", err)
	}
	all := page.Rows
	wantIDs(t, "Fetch", all, evs)
	if len(all) != 10 {
		return
	}
	for i, row := range all {
		wantEvent(t, row, evs[i])
		if row.Lane != lane || i > 0 && row.Seq <= all[i-1].Seq || row.Seq <= 0 {
			t.Errorf("row %d is at lane %d, seq %d; the one before at seq %d", i, row.Lane, row.Seq, all[max(i-1, 0)].Seq)
		}
		if row.CreatedAt.After(page.Now) {
			t.Errorf("a row was created at %v, read at %v", row.CreatedAt, page.Now)
		}
	}
	at := func(i int) int64 { return all[i].Seq }
	wantIDs(t, "Fetch of 4", b.fetch(ctx, t, 4, driver.Cursor{Lane: lane}), evs[:4])
	wantIDs(t, "Fetch after the third", b.fetch(ctx, t, 100, driver.Cursor{Lane: lane, After: at(2)}), evs[3:])
	wantIDs(t, "Fetch of 2 after the third", b.fetch(ctx, t, 2, driver.Cursor{Lane: lane, After: at(2)}), evs[3:5])
	wantIDs(t, "Fetch up to the sixth", b.fetch(ctx, t, 100, driver.Cursor{Lane: lane, UpTo: at(5)}), evs[:6])
	wantIDs(t, "Fetch from third to sixth", b.fetch(ctx, t, 100, driver.Cursor{Lane: lane, After: at(1), UpTo: at(5)}), evs[2:6])
	wantIDs(t, "Fetch of 1 from third to sixth", b.fetch(ctx, t, 1, driver.Cursor{Lane: lane, After: at(1), UpTo: at(5)}), evs[2:3])
	wantIDs(t, "Fetch of an empty stretch", b.fetch(ctx, t, 100, driver.Cursor{Lane: lane, After: at(5), UpTo: at(5)}), nil)
	wantIDs(t, "Fetch behind the end", b.fetch(ctx, t, 100, driver.Cursor{Lane: lane, After: at(9)}), nil)
	var paged []row
	for c := (driver.Cursor{Lane: lane}); ; {
		rows := b.fetch(ctx, t, 3, c)
		if len(rows) == 0 {
			break
		}
		paged = append(paged, rows...)
		c.After = rows[len(rows)-1].Seq
		if len(paged) > len(evs) {
			break
		}
	}
	wantIDs(t, "paging by three", paged, evs)
	// Reading changes nothing.
	wantIDs(t, "Fetch again", b.fetch(ctx, t, 100, driver.Cursor{Lane: lane}), evs)
}

// fetchLanes reads several lanes at once, each from its own position.
func fetchLanes[T any](ctx context.Context, t tb, b *env[T]) {
	names := b.aggregates(5)
	byLane := map[int][]waybill.Event{}
	var evs []waybill.Event
	for range 6 {
		for _, name := range names {
			ev := b.event(name)
			byLane[b.laneOf(ev)] = append(byLane[b.laneOf(ev)], ev)
			evs = append(evs, ev)
		}
	}
	b.write(ctx, t, evs...)
	all := b.wantReady(ctx, t, evs...)
	perLane := func(rows []row) map[int][]row {
		lanes := map[int][]row{}
		for _, row := range rows {
			lanes[row.Lane] = append(lanes[row.Lane], row)
		}
		return lanes
	}
	rowsOf := perLane(all)
	for lane, want := range byLane { // one lane returns only its own rows
		wantIDs(t, "Fetch of one lane", b.fetch(ctx, t, 100, driver.Cursor{Lane: lane}), want)
	}
	var from []driver.Cursor
	want := map[int][]waybill.Event{}
	for i, name := range names {
		lane := b.laneOf(b.event(name))
		if len(rowsOf[lane]) != 6 {
			return // reported above
		}
		c := driver.Cursor{Lane: lane}
		if i > 0 {
			c.After = rowsOf[lane][i-1].Seq
		}
		if i == 2 {
			c.UpTo = rowsOf[lane][2].Seq
		}
		from = append(from, c)
		want[lane] = byLane[lane][i:min(i+3, 6)]
		if i == 2 {
			want[lane] = byLane[lane][2:3]
		}
	}
	slices.Reverse(from)
	got := perLane(b.fetch(ctx, t, 3, from...))
	for lane := range rowsOf {
		wantIDs(t, "Fetch of several lanes", got[lane], want[lane])
	}
}

func fetchNothing[T any](ctx context.Context, t tb, b *env[T]) {
	wantIDs(t, "Fetch of empty tables", b.fetch(ctx, t, 10, b.cursors()...), nil)
	page, err := b.DB.Relay.Fetch(ctx, nil, 10)
	if err != nil || len(page.Rows) != 0 {
		t.Errorf("Fetch of no lanes returned %d rows, %v", len(page.Rows), err)
	}
	if seen, err := b.DB.Relay.Sweep(ctx, nil, 10); err != nil || len(seen) != 0 {
		t.Errorf("Sweep of no lanes returned %v, %v", seen, err)
	}
	if page, err := b.DB.Relay.Load(ctx, nil); err != nil || len(page.Rows) != 0 {
		t.Errorf("Load of no keys returned %d rows, %v", len(page.Rows), err)
	}
	if page, err := b.DB.Relay.Due(ctx, nil, 10); err != nil || len(page.Rows) != 0 {
		t.Errorf("Due of no lanes returned %d rows, %v", len(page.Rows), err)
	}
	first := b.now(ctx, t)
	if second := b.now(ctx, t); first.IsZero() || second.Before(first) {
		t.Errorf("the database's clock is %v, then %v", first, second)
	}
}

func sweeps[T any](ctx context.Context, t tb, b *env[T]) {
	var evs []waybill.Event
	names := b.aggregates(3)
	for i := range 12 {
		evs = append(evs, b.event(names[i%len(names)]))
	}
	// Tenants, also of unordered events, which have no aggregate.
	for i, tenant := range []string{"north", "north", "", "south"} {
		ev := b.event([]string{"", names[0]}[i%2])
		ev.TenantID = tenant
		evs = append(evs, ev)
	}
	b.write(ctx, t, evs...)
	all := b.wantReady(ctx, t, evs...)
	if len(all) != len(evs) {
		return
	}
	top := all[len(all)-1].Seq
	for _, c := range []struct {
		after, upTo int64
		limit       int
	}{{0, top, 100}, {0, top, 2}, {all[2].Seq, top, 100}, {0, all[7].Seq, 100}, {all[2].Seq, all[7].Seq, 1}, {top, top, 10}} {
		for lane := range b.lanes {
			cursor := driver.Cursor{Lane: lane, After: c.after, UpTo: c.upTo}
			seen, rows := b.sweep(ctx, t, c.limit, cursor), b.fetch(ctx, t, c.limit, cursor)
			if !slices.Equal(seen, sightings(rows)) {
				t.Errorf("Sweep(%+v, %d) returned %v, Fetch %v", cursor, c.limit, seen, sightings(rows))
			}
		}
	}
	// Several lanes at once.
	var from []driver.Cursor
	for lane := range b.lanes {
		from = append(from, driver.Cursor{Lane: lane, UpTo: top})
	}
	seen := b.sweep(ctx, t, 100, from...)
	slices.SortFunc(seen, func(a, b driver.RowRef) int { return int(a.Seq - b.Seq) })
	if !slices.Equal(seen, sightings(all)) {
		t.Errorf("Sweep of all lanes returned %v, want %v", seen, sightings(all))
	}
}

func loads[T any](ctx context.Context, t tb, b *env[T]) {
	var evs []waybill.Event
	names := b.aggregates(3)
	for i := range 9 {
		evs = append(evs, b.event(names[i%len(names)]))
	}
	b.write(ctx, t, evs...)
	all := b.wantReady(ctx, t, evs...)
	if len(all) != len(evs) {
		return
	}
	byKey := slices.SortedFunc(slices.Values(all), func(a, b row) int {
		if a.Lane != b.Lane {
			return a.Lane - b.Lane
		}
		return bySeq(a, b)
	})
	keys := keysOf(byKey)
	shuffled := slices.Clone(keys)
	slices.Reverse(shuffled)
	page, err := b.DB.Relay.Load(ctx, shuffled)
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	if !slices.Equal(keysOf(page.Rows), keys) {
		t.Errorf("Load returned %v, want the order of lane and seq: %v", keysOf(page.Rows), keys)
	}
	for _, row := range page.Rows {
		if i := slices.IndexFunc(evs, func(ev waybill.Event) bool { return ev.ID == row.ID }); i >= 0 {
			wantEvent(t, row, evs[i])
		}
	}
	// Load skips rows that are gone, deferred, or never existed.
	leases := b.own(ctx, t)
	retry := result(byKey[1])
	retry.Delay = defaultLease
	b.settle(ctx, t, driver.Settlement{Leases: leases, Done: results(byKey[:1]), History: true, Retry: []driver.Result{retry}})
	never := store.Key{Lane: keys[2].Lane, Seq: keys[len(keys)-1].Seq + 1000, ID: waybill.NewID()}
	page, err = b.DB.Relay.Load(ctx, append(slices.Clone(keys[:4]), never))
	if err != nil || !slices.Equal(keysOf(page.Rows), keys[2:4]) {
		t.Errorf("Load returned %v, %v, want %v", keysOf(page.Rows), err, keys[2:4])
	}
}

func loadsMany[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(1500, "a")
	b.write(ctx, t, evs...)
	all := b.wantReady(ctx, t, evs...)
	page, err := b.DB.Relay.Load(ctx, keysOf(all))
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	wantIDs(t, "Load", page.Rows, evs)
}

func readsCommitted[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	old := b.event("a")
	b.write(ctx, t, old)
	ready, soon := b.event("a"), b.event("a")
	soon.Delay = 1 // due at once, if it were visible
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		if _, err := box.WriteEach(ctx, tx, ready, soon); err != nil {
			return err
		}
		for _, db := range []driver.Roles[T]{b.DB, b.second()} {
			rows := b.readyIn(ctx, t, db.Relay)
			wantIDs(t, "Fetch beside an open transaction", rows, []waybill.Event{old})
			if len(rows) != 1 {
				continue
			}
			seen, err := db.Relay.Sweep(ctx, []driver.Cursor{{Lane: rows[0].Lane, UpTo: 1 << 62}}, 10)
			if err != nil || !slices.Equal(seen, sightings(rows)) {
				t.Errorf("Sweep beside an open transaction returned %v, %v, want %v", seen, err, sightings(rows))
			}
			if page, err := db.Relay.Due(ctx, b.allLanes(), 100); err != nil {
				t.Errorf("Due: %v", err)
			} else if _, seen := find(page.Rows, soon.ID); seen {
				t.Errorf("Due shows an event that is not committed")
			}
			if yes, err := db.Outbox.Committed(ctx, ready.ID); yes || err != nil && !errors.Is(err, waybill.ErrUncertain) {
				t.Errorf("Committed is %v, %v for an event in an open transaction", yes, err)
			}
		}
		return errBoom
	})
	if !errors.Is(err, errBoom) {
		t.Errorf("InTx returned %v, want the function's own error", err)
	}
	b.wantReady(ctx, t, old)
}

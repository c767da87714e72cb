package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// inspectChecks check Count, List and Find.
func inspectChecks[T any]() []check[T] {
	return []check[T]{
		{row: "count_and_list", name: "list and count by filter", run: listsByFilter[T]},
		{row: "count_and_list", name: "list and count by time and error", run: listsByEnd[T]},
		{row: "count_and_list", name: "list in pages", fresh: true, run: listsPages[T]},
		{row: "count_and_list", name: "the newest first", fresh: true, run: listsRecent[T]},
		{row: "count_and_list", name: "filters compare as bytes", run: filtersAsBytes[T]},
		{row: "count_and_list", name: "rows that cannot be read", run: listsBroken[T]},
		{row: "count_and_list", name: "states that do not exist", run: listsNothing[T]},
		{row: "find", name: "find an event in every state", run: finds[T]},
	}
}

// states are all states.
var states = []store.State{store.Ready, store.Delayed, store.Dead, store.Delivered}

// exhibit is an event and its state.
type exhibit struct {
	waybill.Event
	state           store.State
	holding, failed bool
}

// exhibits writes events that differ in every field of a filter, and spreads
// them over all states.
func exhibits[T any](ctx context.Context, t tb, b *env[T]) []exhibit {
	t.Helper()
	var all []exhibit
	for i := range 24 {
		ev := b.event([]string{"a", "b", ""}[i%3])
		ev.Type = b.unique([]string{"T", "U"}[i/4%2])
		if i%4 == 1 {
			ev.TenantID = "tenant"
		}
		if i%5 == 1 {
			ev.AggregateType = "another"
		}
		all = append(all, exhibit{Event: ev})
	}
	var evs []waybill.Event
	for _, e := range all {
		evs = append(evs, e.Event)
	}
	rows := b.writeRows(ctx, t, evs...)
	s := driver.Settlement{Leases: b.own(ctx, t), History: true}
	for i, row := range rows {
		r := result(row)
		r.Delay, r.Error, r.Attempts, r.Holds = defaultLease, "boom", i%3, i%2 == 0
		e := &all[i]
		switch e.state = states[i%4]; e.state {
		case store.Ready:
		case store.Delayed:
			s.Retry = append(s.Retry, r)
			e.holding, e.failed = r.Holds, r.Attempts > 0
		case store.Dead:
			s.Dead = append(s.Dead, r)
			e.holding, e.failed = r.Holds, r.Attempts > 0
		case store.Delivered:
			s.Done = append(s.Done, r)
		}
	}
	b.settle(ctx, t, s)
	b.end()
	if b.noHistory {
		all = slices.DeleteFunc(all, func(e exhibit) bool { return e.state == store.Delivered })
	}
	return all
}

func (e exhibit) fits(state store.State, f store.Filter) bool {
	same := func(want, got string) bool { return want == "" || want == got }
	ev := eventfill.Defaults(e.Event)
	if f.NoTenant {
		f.TenantID = ""
	}
	f.Failed = f.Failed && !f.Untried
	return e.state == state && same(f.Type, ev.Type) && same(f.AggregateType, ev.AggregateType) &&
		same(f.AggregateID, ev.AggregateID) && same(f.TenantID, ev.TenantID) && (!f.Holding || e.holding) && (!f.Failed || e.failed) &&
		(!f.NoTenant || ev.TenantID == "") && (!f.Untried || !e.failed)
}

// list returns all matching records of a state, page by page.
func (b *env[T]) list(ctx context.Context, t tb, state store.State, f store.Filter, limit int) []store.Record {
	t.Helper()
	var all []store.Record
	for after := int64(0); ; {
		page, err := b.DB.OutboxAdmin.List(ctx, state, f, after, limit)
		if err != nil {
			t.Fatalf("List: %v", err)
		}
		if len(page) > limit {
			t.Fatalf("List of %d returned %d records", limit, len(page))
		}
		for _, rec := range page {
			if rec.Seq <= after || rec.State != state {
				t.Fatalf("List of %v returned seq %d, %v behind seq %d", state, rec.Seq, rec.State, after)
			}
			after = rec.Seq
		}
		all = append(all, page...)
		if len(page) < limit {
			return all
		}
	}
}

func recordIDs(recs []store.Record) []waybill.ID {
	ids := make([]waybill.ID, len(recs))
	for i, rec := range recs {
		ids[i] = rec.ID
	}
	return ids
}

func listsByFilter[T any](ctx context.Context, t tb, b *env[T]) {
	all := exhibits(ctx, t, b)
	kind := b.unique("T") // rows of other checks have another type
	for _, f := range []store.Filter{
		{Type: kind},
		{Type: b.unique("U")},
		{Type: kind, TenantID: "tenant"},
		{Type: kind, AggregateType: "thing"},
		{Type: kind, AggregateType: "another"},
		{AggregateID: b.unique("a")},
		{Type: kind, AggregateID: b.unique("b"), AggregateType: "thing"},
		{AggregateID: b.unique("b"), Holding: true},
		{Type: kind, Failed: true},
		{Type: kind, Holding: true, Failed: true},
		{Type: kind, NoTenant: true},
		{AggregateID: b.unique("a"), NoTenant: true},
		{Type: kind, NoTenant: true, TenantID: "tenant"},
		{Type: kind, Untried: true},
		{Type: kind, Untried: true, NoTenant: true},
		{Type: kind, Untried: true, Failed: true},
		{Type: kind, AggregateType: waybill.GlobalAggregate},
		{Type: b.unique("none")},
		{Type: kind, TenantID: "unknown"},
		{Type: kind, AggregateType: "thing", AggregateID: b.unique("a"), TenantID: "tenant"},
	} {
		for _, state := range states {
			var want []waybill.ID
			for _, e := range all {
				if e.fits(state, f) {
					want = append(want, e.ID)
				}
			}
			if got := recordIDs(b.list(ctx, t, state, f, 100)); !slices.Equal(got, want) {
				t.Errorf("List(%v, %+v) returned %v, want %v", state, f, got, want)
			}
			if n, err := b.DB.OutboxAdmin.Count(ctx, state, f); err != nil || n != int64(len(want)) {
				t.Errorf("Count(%v, %+v) is %d, %v, want %d", state, f, n, err, len(want))
			}
		}
	}
}

func listsPages[T any](ctx context.Context, t tb, b *env[T]) {
	all := exhibits(ctx, t, b)
	for _, state := range states {
		var want []waybill.ID
		for _, e := range all {
			if e.state == state {
				want = append(want, e.ID)
			}
		}
		for _, limit := range []int{1, 2, 6, 100} {
			if got := recordIDs(b.list(ctx, t, state, store.Filter{}, limit)); !slices.Equal(got, want) {
				t.Errorf("List(%v) in pages of %d returned %v, want %v", state, limit, got, want)
			}
		}
		if n, err := b.DB.OutboxAdmin.Count(ctx, state, store.Filter{}); err != nil || n != int64(len(want)) {
			t.Errorf("Count(%v) is %d, %v, want %d", state, n, err, len(want))
		}
	}
}

// listsRecent compares ListRecent, if the store has it, with List: with and
// without a filter, in pages of several sizes, and in several steps.
func listsRecent[T any](ctx context.Context, t tb, b *env[T]) {
	db, ok := b.DB.OutboxAdmin.(driver.Recent)
	if !ok {
		return
	}
	all := exhibits(ctx, t, b)
	for _, f := range []store.Filter{{}, {Type: all[0].Type}, {AggregateID: all[0].AggregateID, AggregateType: all[0].AggregateType}, {NoTenant: true}, {TenantID: "tenant"}, {Type: b.unique("none")}} {
		want := recordIDs(b.list(ctx, t, store.Delivered, f, 100))
		slices.SortFunc(want, func(a, b waybill.ID) int { return slices.Compare(b[:], a[:]) })
		for _, size := range [][2]int{{1, 0}, {2, 0}, {100, 0}, {2, 1}, {1, 3}, {100, 3}, {100, 100}} {
			limit, scan := size[0], size[1]
			var got []waybill.ID
			for before := (waybill.ID{}); ; {
				page, floor, err := db.ListRecent(ctx, f, before, limit, scan)
				if err != nil || len(page) > limit {
					t.Fatalf("ListRecent of %d returned %d records, %v", limit, len(page), err)
				}
				for _, r := range page {
					if r.State != store.Delivered || r.EndedAt.IsZero() {
						t.Errorf("ListRecent returned %+v", r)
					}
				}
				got = append(got, recordIDs(page)...)
				switch {
				case len(page) == limit:
					before = page[len(page)-1].ID
				case !floor.IsZero() && slices.ContainsFunc(page, func(r store.Record) bool { return bytes.Compare(r.ID[:], floor[:]) < 0 }):
					t.Fatalf("ListRecent returned events below %v", floor)
				default:
					before = floor
				}
				if before.IsZero() {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("ListRecent(%+v) in pages of %d, of %d searched, returned %v, want %v", f, limit, scan, got, want)
			}
		}
	}
	if page, floor, err := db.ListRecent(ctx, store.Filter{}, waybill.ID{}, 100, 2); err != nil || len(page) != 2 || page[1].ID != floor {
		t.Errorf("ListRecent of the newest two returned %d records down to %v, %v", len(page), floor, err)
	}
	if page, _, err := db.ListRecent(ctx, store.Filter{}, waybill.ID{}, 0, 0); err != nil || len(page) > 0 {
		t.Errorf("ListRecent of none returned %d records, %v", len(page), err)
	}
}

// filtersAsBytes filters by names that a database may fold or pad into others.
func filtersAsBytes[T any](ctx context.Context, t tb, b *env[T]) {
	names := []string{"Café", "cafe", "CAFE", "Cafe", "caf_", "caf%", "cafe ", `caf\e`, "straße", "strasse"}
	var evs []waybill.Event
	for _, name := range names {
		ev := b.event("a")
		ev.Type, ev.AggregateID, ev.AggregateType, ev.TenantID = b.unique(name), b.unique(name), b.unique(name), b.unique(name)
		evs = append(evs, ev)
	}
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	for kind, state := range []store.State{store.Ready, store.Delayed, store.Dead, store.Delivered} {
		if state == store.Delivered && b.noHistory {
			break
		}
		s := driver.Settlement{Leases: leases, History: true}
		for _, row := range rows {
			r := result(row)
			r.Delay = defaultLease
			switch kind {
			case 1:
				s.Retry = append(s.Retry, r)
			case 2:
				s.Dead = append(s.Dead, r)
			case 3:
				s.Done = append(s.Done, r)
			}
		}
		if kind == 3 { // a dead letter must be replayed first
			b.replay(ctx, t, evs...)
		}
		b.settle(ctx, t, s)
		for i, name := range names {
			name = b.unique(name)
			for _, f := range []store.Filter{{Type: name}, {AggregateID: name}, {AggregateType: name}, {TenantID: name}} {
				if got := recordIDs(b.list(ctx, t, state, f, 100)); !slices.Equal(got, []waybill.ID{evs[i].ID}) {
					t.Errorf("List(%v, %+v) returned %d records, want the one that is exactly so", state, f, len(got))
				}
			}
		}
	}
}

func listsBroken[T any](ctx context.Context, t tb, b *env[T]) {
	if b.features.lacks(storedHeaders) != "" {
		t.Skipf("the stored text of headers cannot be overwritten")
	}
	ev := b.event("a")
	b.write(ctx, t, ev)
	if err := b.SetHeaders(ctx, ev.ID, `{"a": 1}`); err != nil {
		t.Fatalf("SetHeaders: %v", err)
	}
	recs := b.list(ctx, t, store.Ready, store.Filter{AggregateID: ev.AggregateID}, 10)
	if len(recs) != 1 || recs[0].Err == nil || recs[0].Event.Type != ev.Type {
		t.Errorf("List of a row that cannot be read returned %+v, want it with its error", recs)
	}
	if rec := b.wantState(ctx, t, ev, store.Ready); rec.Err == nil {
		t.Errorf("Find of a row that cannot be read returned no error with it")
	}
}

func listsNothing[T any](ctx context.Context, t tb, b *env[T]) {
	for _, state := range []store.State{-1, 4, 99} {
		if _, err := b.DB.OutboxAdmin.List(ctx, state, store.Filter{}, 0, 10); err == nil {
			t.Errorf("List of %v returned no error", state)
		}
		if _, err := b.DB.OutboxAdmin.Count(ctx, state, store.Filter{}); err == nil {
			t.Errorf("Count of %v returned no error", state)
		}
	}
}

func finds[T any](ctx context.Context, t tb, b *env[T]) {
	evs := []waybill.Event{full(t, waybill.NewID()), full(t, waybill.NewID()), full(t, waybill.NewID()), full(t, waybill.NewID())}
	rows := b.writeRows(ctx, t, evs...)
	before := b.now(ctx, t)
	retry, dead := result(rows[1]), result(rows[2])
	retry.Delay, retry.Attempts, retry.Error, retry.Holds = defaultLease, 2, "deferred", true
	dead.Attempts, dead.Error, dead.Holds = 9, "dead", true
	b.settle(ctx, t, driver.Settlement{
		Leases: b.own(ctx, t), History: true,
		Retry: []driver.Result{retry}, Dead: []driver.Result{dead}, Done: results(rows[3:]),
	})
	for i, want := range []struct {
		attempts  int
		lastError string
		holds     bool
	}{{}, {2, "deferred", true}, {9, "dead", true}, {}} {
		rec := b.wantState(ctx, t, evs[i], states[i])
		wantEvent(t, rec.Row, evs[i])
		if rec.Key != rows[i].Key || !rec.CreatedAt.Equal(rows[i].CreatedAt) {
			t.Errorf("%v: the record is %+v, created at %v; the row was %+v, created at %v", rec.State, rec.Key, rec.CreatedAt, rows[i].Key, rows[i].CreatedAt)
		}
		if rec.Attempts != want.attempts || rec.LastError != want.lastError || rec.Holds != want.holds || rec.Replay != 0 {
			t.Errorf("%v: the record has attempts %d, error %q, holds %v, replay %d", rec.State, rec.Attempts, rec.LastError, rec.Holds, rec.Replay)
		}
		if ended := !rec.EndedAt.IsZero(); ended != (i >= 2) || ended && (rec.EndedAt.Before(before) || !inMicrosUTC(rec.EndedAt)) {
			t.Errorf("%v: it ended at %v; it was pending at %v", rec.State, rec.EndedAt, before)
		}
		if put := !rec.DueAt.IsZero(); put != (i == 1) || put && rec.DueAt.Before(before.Add(defaultLease)) {
			t.Errorf("%v: the row is due at %v", rec.State, rec.DueAt)
		}
	}
	if recs, err := b.DB.OutboxAdmin.Find(ctx, waybill.NewID()); err != nil || len(recs) > 0 {
		t.Errorf("Find of an event that does not exist returned %v, %v", recs, err)
	}
	open := b.event("a")
	err := b.box(t).InTx(ctx, func(ctx context.Context, tx T) error {
		if _, err := b.box(t).WriteEach(ctx, tx, open); err != nil {
			return err
		}
		b.wantNowhere(ctx, t, open) // not visible outside the transaction
		return errBoom
	})
	if !errors.Is(err, errBoom) {
		t.Errorf("InTx: %v", err)
	}
}

// statsChecks check Stats.
func statsChecks[T any]() []check[T] {
	return []check[T]{
		{row: "stats", name: "counts", fresh: true, run: stats[T]},
		{row: "stats", name: "members", fresh: true, run: statsMembers[T]},
	}
}

func (b *env[T]) stats(ctx context.Context, t tb) store.Stats {
	t.Helper()
	s, err := b.DB.OutboxAdmin.Stats(ctx)
	if err != nil {
		t.Fatalf("Stats: %v", err)
	}
	return s
}

func stats[T any](ctx context.Context, t tb, b *env[T]) {
	want := func(when string, want store.Stats) {
		t.Helper()
		got := b.stats(ctx, t)
		if got.Ready != want.Ready || got.Scheduled != want.Scheduled || got.Failed != want.Failed || got.Dead != want.Dead ||
			got.Holding != want.Holding || got.MaxAttempts != want.MaxAttempts || !got.Oldest.Equal(want.Oldest) {
			t.Errorf("%s: Stats is %+v, want %+v", when, got, want)
		}
		if now := b.now(ctx, t); got.Now.After(now) || got.Now.Before(now.Add(-time.Minute)) {
			t.Errorf("%s: Stats is of %v, asked at %v", when, got.Now, now)
		}
	}
	want("empty", store.Stats{})
	var evs []waybill.Event
	for i, names := 0, b.aggregates(4); i < 8; i++ {
		// One by one, at different times.
		evs = append(evs, b.event(names[i%len(names)]))
		b.write(ctx, t, evs[i])
		b.tick(ctx, t)
	}
	rows := b.wantReady(ctx, t, evs...)
	later := b.events(2, "a")
	later[0].Delay, later[1].Delay = defaultLease, defaultLease
	b.write(ctx, t, later...)
	want("written", store.Stats{Ready: 8, Scheduled: 2, Oldest: rows[0].CreatedAt})
	s := driver.Settlement{Leases: b.own(ctx, t), History: true, Done: results(rows[:1])}
	for i, row := range rows[1:6] {
		r := result(row)
		r.Delay, r.Holds, r.Attempts = defaultLease, i%2 == 0, i+2
		if i < 3 {
			s.Retry = append(s.Retry, r)
		} else {
			s.Dead = append(s.Dead, r)
		}
	}
	s.Retry[1].Attempts = 0 // deferred without an attempt
	b.settle(ctx, t, s)
	want("settled", store.Stats{Ready: 2, Scheduled: 3, Failed: 2, Dead: 2, Holding: 3, MaxAttempts: 4, Oldest: rows[6].CreatedAt})
	done := driver.Settlement{Leases: s.Leases, History: true, Done: append(results(rows[6:]), s.Retry...)}
	b.settle(ctx, t, done)
	want("nearly nothing", store.Stats{Scheduled: 2, Dead: 2, Holding: 1})
}

// wantMembers compares Members, if the store has it, with Stats.
func (b *env[T]) wantMembers(ctx context.Context, t tb) {
	t.Helper()
	db, ok := b.DB.OutboxAdmin.(driver.Members)
	if !ok {
		return
	}
	before := b.now(ctx, t)
	got, err := db.Members(ctx)
	if err != nil || got.Now.Before(before.Add(-time.Millisecond)) || got.Now.After(b.now(ctx, t).Add(time.Millisecond)) {
		t.Errorf("Members is of %v, asked at %v; %v", got.Now, before, err)
	}
	s := b.stats(ctx, t)
	s = store.Stats{Now: got.Now, Membership: s.Membership}
	show := func(s store.Stats) string {
		return fmt.Sprint(s.Lanes, s.Nodes, s.Ready, s.Dead, s.Holding, s.Oldest)
	}
	if show(got) != show(s) {
		t.Errorf("Members is\n%s, want\n%s", show(got), show(s))
	}
}

// statsMembers compares Stats with a heartbeat; Stats makes no node live.
func statsMembers[T any](ctx context.Context, t tb, b *env[T]) {
	if s := b.stats(ctx, t); len(s.Nodes) > 0 || len(s.Lanes) != b.lanes {
		t.Errorf("with no relay, Stats has the nodes %v and %d of %d lanes", s.Nodes, len(s.Lanes), b.lanes)
	}
	one, two := b.node(ctx, t, b.DB.Relay), b.node(ctx, t, b.second().Relay)
	b.wantMembers(ctx, t)
	b.acquire(ctx, t, b.DB.Relay, one, 0)
	b.wantMembers(ctx, t)
	m := b.beat(ctx, t, b.DB.Relay, two, defaultLease)
	s := b.stats(ctx, t)
	s.Nodes = withoutReports(s.Nodes)
	byID := func(x, y store.Node) int { return slices.Compare(x.ID[:], y.ID[:]) }
	if got, want := slices.SortedFunc(slices.Values(s.Nodes), byID), slices.SortedFunc(slices.Values(m.Nodes), byID); !slices.Equal(got, want) {
		t.Errorf("Stats has the nodes %v, want %v", got, want)
	}
	byLane := func(x, y store.LaneState) int { return x.Lane - y.Lane }
	if got, want := slices.SortedFunc(slices.Values(s.Lanes), byLane), slices.SortedFunc(slices.Values(m.Lanes), byLane); !slices.Equal(got, want) {
		t.Errorf("Stats has the lanes %v, want %v", got, want)
	}
	b.expire(ctx, t, b.DB.Relay, one, two)
	if s := b.stats(ctx, t); !slices.Equal(withoutReports(s.Nodes), []store.Node{two}) || s.Lanes[0].Owner != one.ID || s.Lanes[0].Live {
		t.Errorf("one of two nodes is dead, and Stats has the nodes %v, lane 0 as %+v", s.Nodes, s.Lanes[0])
	}
}

// withoutReports returns nodes as a heartbeat does.
func withoutReports(nodes []store.Node) []store.Node {
	var out []store.Node
	for _, n := range nodes {
		out = append(out, store.Node{ID: n.ID, Relay: n.Relay})
	}
	return out
}

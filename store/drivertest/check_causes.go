package drivertest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// causesChecks check the causes of dead letters, of the outbox and of a
// backlog.
func causesChecks[T any]() []check[T] {
	return []check[T]{
		{row: "causes", name: "groups", fresh: true, run: groupsCauses[T]},
		{row: "causes", name: "replayed letters", fresh: true, run: forgetsCauses[T]},
	}
}

func backlogCausesChecks[T any]() []check[T] {
	return []check[T]{{row: "causes", name: "groups of a backlog", run: groupsBacklogCauses[T]}}
}

// causesOf returns the causes of the dead letters of a store or of a backlog,
// or nil if it has none.
func causesOf(t tb, rows any) driver.Causes {
	t.Helper()
	causes, ok := rows.(driver.Causes)
	if !ok {
		t.Skipf("the store has no causes")
	}
	return causes
}

// causeTexts are errors of three causes, 3, 2 and 1 of them.
var causeTexts = []string{
	"order 1 is unknown", `order 27 is unknown`, "dial: connection refused", "dial:  connection refused", "order A-3 is unknown", "",
}

// wantCauses asserts the groups of dead letters, which died with causeTexts, in
// that order.
func (b *env[T]) wantCauses(ctx context.Context, t tb, db driver.Causes, dead []waybill.Event, find func(waybill.ID) store.Record) {
	t.Helper()
	note := func(limit, want int) {
		t.Helper()
		if n, err := db.NoteCauses(ctx, limit); err != nil || n != want {
			t.Errorf("NoteCauses of %d returned %d, %v; want %d", limit, n, err, want)
		}
	}
	count := func(limit int) []driver.CauseCount {
		t.Helper()
		all, err := db.CountCauses(ctx, limit)
		if err != nil {
			t.Fatalf("CountCauses: %v", err)
		}
		return all
	}
	span := func(id string, at ...int) driver.CauseCount {
		c := driver.CauseCount{ID: id, Letters: int64(len(at))}
		for _, i := range at {
			died := find(dead[i].ID).EndedAt
			if c.First.IsZero() || died.Before(c.First) {
				c.First = died
			}
			if died.After(c.Last) {
				c.Last = died
			}
		}
		return c
	}
	same := func(what string, got []driver.CauseCount, want ...driver.CauseCount) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: the causes are %+v, want %+v", what, got, want)
		}
	}
	same("before", count(10), span("", 0, 1, 2, 3, 4, 5))
	note(0, 0)
	if bounded, ok := db.(driver.Bounded); ok {
		if counts, err := bounded.CountCausesUpTo(ctx, 10, 4); err != nil || len(counts) != 1 || counts[0].ID != "" || counts[0].Letters != 4 {
			t.Errorf("CountCausesUpTo before: %+v, %v; want 4 letters without a cause", counts, err)
		}
	}
	note(4, 4)
	left := int64(0)
	for _, c := range count(10) {
		if c.ID == "" {
			left = c.Letters
		}
	}
	if left != 2 {
		t.Errorf("after 4 of 6, %d letters have no cause, want 2", left)
	}
	note(10, 2)
	note(10, 0)
	orders, dials, none := driver.CauseOf(causeTexts[0]), driver.CauseOf(causeTexts[2]), driver.CauseOf("")
	want := []driver.CauseCount{span(orders, 0, 1, 4), span(dials, 2, 3), span(none, 5)}
	same("all", count(10), want...)
	same("two", count(2), want[:2]...)
	wantBounded(ctx, t, db, want)
	for _, c := range []struct {
		cause       string
		after       int64
		limit       int
		description string
		want        []int
	}{
		{orders, 0, 10, "all of a cause", []int{0, 1, 4}},
		{orders, 0, 2, "two of a cause", []int{0, 1}},
		{orders, find(dead[0].ID).Seq, 10, "after the first one", []int{1, 4}},
		{none, 0, 10, "without an error", []int{5}},
		{"", 0, 10, "of no cause", nil},
		{"000000000000", 0, 10, "of an unknown cause", nil},
	} {
		recs, err := db.ListCause(ctx, c.cause, c.after, c.limit)
		if err != nil {
			t.Fatalf("ListCause: %v", err)
		}
		var ids []waybill.ID
		for _, r := range recs {
			ids = append(ids, r.ID)
			if full := find(r.ID); fmt.Sprint(full) != fmt.Sprint(r) {
				t.Errorf("ListCause returned %+v, and Find %+v", r, full)
			}
		}
		var expected []waybill.ID
		for _, i := range c.want {
			expected = append(expected, dead[i].ID)
		}
		if !slices.Equal(ids, expected) {
			t.Errorf("ListCause %s returned %v, want %v", c.description, ids, expected)
		}
		if c.cause != "" {
			wantCauseFilter(ctx, t, db, c.cause, c.after, c.limit, expected)
		}
	}
}

// wantBounded compares counts up to a number with the groups of all.
func wantBounded(ctx context.Context, t tb, db driver.Causes, all []driver.CauseCount) {
	t.Helper()
	bounded, ok := db.(driver.Bounded)
	if !ok {
		return
	}
	full, err := db.(driver.Inspector).Stats(ctx)
	if err != nil {
		t.Fatalf("Stats: %v", err)
	}
	for _, most := range []int64{1, 2, 3, full.Dead, full.Dead + 10} {
		s, err := bounded.StatsUpTo(ctx, most)
		if err != nil || s.Dead != min(most, full.Dead) || s.Ready != full.Ready || s.Failed != full.Failed || s.Holding != full.Holding {
			t.Errorf("StatsUpTo of %d returned %+v, %v; all are %+v", most, s, err, full)
		}
		counts, err := bounded.CountCausesUpTo(ctx, 10, most)
		if err != nil || len(counts) != len(all) {
			t.Errorf("CountCausesUpTo of %d returned %+v, %v, want %d causes", most, counts, err, len(all))
		}
		for _, want := range all {
			i := slices.IndexFunc(counts, func(c driver.CauseCount) bool { return c.ID == want.ID })
			if i < 0 || counts[i].Letters != min(most, want.Letters) || most > want.Letters && counts[i] != want {
				t.Errorf("CountCausesUpTo of %d returned %+v, want up to so many of %+v", most, counts, want)
			}
		}
	}
	if counts, err := bounded.CountCausesUpTo(ctx, 2, 100); err != nil || !slices.Equal(counts, all[:2]) {
		t.Errorf("CountCausesUpTo of two causes returned %+v, %v, want %+v", counts, err, all[:2])
	}
}

// wantCauseFilter lists dead letters by a filter with a cause.
func wantCauseFilter(ctx context.Context, t tb, db driver.Causes, cause string, after int64, limit int, want []waybill.ID) {
	t.Helper()
	rows, f := db.(driver.Inspector), store.Filter{Cause: cause}
	recs, err := rows.List(ctx, store.Dead, f, after, limit)
	if err != nil || !slices.Equal(recordIDs(recs), want) {
		t.Errorf("List(%+v) returned %v, %v, want %v", f, recordIDs(recs), err, want)
	}
	if n, err := rows.Count(ctx, store.Dead, f); err != nil || n < int64(len(want)) || after == 0 && limit == 10 && n != int64(len(want)) {
		t.Errorf("Count(%+v) is %d, %v, want %d", f, n, err, len(want))
	}
	for _, state := range []store.State{store.Ready, store.Delayed, store.Delivered} {
		if recs, err := rows.List(ctx, state, f, 0, limit); err != nil || len(recs) > 0 {
			t.Errorf("List of %v returned %d records with a cause, %v", state, len(recs), err)
		}
	}
	if len(want) == 0 || len(recs) == 0 {
		return
	}
	f.Since = recs[0].EndedAt.Add(time.Hour)
	if n, err := rows.Count(ctx, store.Dead, f); err != nil || n != 0 {
		t.Errorf("Count(%+v) is %d, %v, want 0", f, n, err)
	}
}

func groupsCauses[T any](ctx context.Context, t tb, b *env[T]) {
	db := causesOf(t, b.DB.OutboxAdmin)
	dead := b.events(len(causeTexts), "")
	leases := b.own(ctx, t)
	for i, row := range b.writeRows(ctx, t, dead...) {
		r := result(row)
		r.Attempts, r.Error = 3, causeTexts[slices.IndexFunc(dead, func(ev waybill.Event) bool { return ev.ID == row.ID })]
		b.settle(ctx, t, driver.Settlement{Leases: leases, Dead: []driver.Result{r}})
		if i%2 == 0 {
			b.tick(ctx, t)
		}
	}
	b.wantCauses(ctx, t, db, dead, func(id waybill.ID) store.Record {
		rec, _ := b.where(ctx, t, id)
		return rec
	})
}

// forgetsCauses replays a dead letter, which then dies with another error.
func forgetsCauses[T any](ctx context.Context, t tb, b *env[T]) {
	db := causesOf(t, b.DB.OutboxAdmin)
	evs := b.events(2, "")
	b.bury(ctx, t, nil, evs...)
	if n, err := db.NoteCauses(ctx, 10); n != 2 || err != nil {
		t.Fatalf("NoteCauses: %d, %v", n, err)
	}
	b.replay(ctx, t, evs[0])
	leases := b.own(ctx, t)
	row := b.awaitDue(ctx, t, evs[0].ID)
	r := result(row)
	r.Late, r.Replay, r.Attempts, r.Error = true, row.Replay, 1, "another error"
	b.settle(ctx, t, driver.Settlement{Leases: leases, Dead: []driver.Result{r}})
	if n, err := db.NoteCauses(ctx, 10); n != 1 || err != nil {
		t.Errorf("NoteCauses of a letter that died again: %d, %v", n, err)
	}
	for _, text := range []string{"boom", "another error"} {
		if recs, err := db.ListCause(ctx, driver.CauseOf(text), 0, 10); len(recs) != 1 || err != nil || recs[0].LastError != text {
			t.Errorf("ListCause of %q returned %+v, %v", text, recs, err)
		}
	}
}

func groupsBacklogCauses[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b")
	rows := b.backlog(numbers[0])
	db := causesOf(t, rows)
	leases := b.own(ctx, t)
	dead := b.events(len(causeTexts), "")
	for _, row := range b.fill(ctx, t, leases, numbers, dead...) {
		r := result(row)
		r.Attempts, r.Error = 3, causeTexts[slices.IndexFunc(dead, func(ev waybill.Event) bool { return ev.ID == row.ID })]
		for _, number := range numbers {
			if number != numbers[0] {
				r.Error = "another cause"
			}
			if _, err := b.backlog(number).Settle(ctx, driver.Settlement{Leases: leases, Dead: []driver.Result{r}}); err != nil {
				t.Fatalf("Settle: %v", err)
			}
		}
	}
	b.wantCauses(ctx, t, db, dead, func(id waybill.ID) store.Record {
		found, err := rows.Find(ctx, id)
		if err != nil || len(found) != 1 {
			t.Fatalf("Find: %v, %v", found, err)
		}
		return found[0]
	})
	other, err := b.backlog(numbers[1]).(driver.Causes).CountCauses(ctx, 10)
	if err != nil || len(other) != 1 || other[0].ID != "" || other[0].Letters != int64(len(dead)) {
		t.Errorf("the causes of another destination are %+v, %v", other, err)
	}
}

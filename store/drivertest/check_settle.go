package drivertest

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// doneChecks check delivered events.
func doneChecks[T any]() []check[T] {
	return []check[T]{
		{row: "settle_done", name: "with history", run: done[T](true)},
		{row: "settle_done", name: "without history", fresh: true, run: done[T](false)},
		{row: "settle_done", name: "many at once", run: doneMany[T]},
	}
}

// retryChecks check the other results.
func retryChecks[T any]() []check[T] {
	return []check[T]{
		{row: "settle_retry", name: "a ready row is deferred", run: retries[T]},
		{row: "settle_retry", name: "a deferred row is deferred again", run: retriesAgain[T]},
		{row: "settle_dead", name: "dead from either table", run: dies[T]},
		{row: "settle_dead", name: "a settlement repeated after a replay changes nothing", suite: adminSuite, run: repeatedBehindReplay[T]},
		{row: "settle_mixed", name: "all results in one settlement", run: mixed[T]},
		{row: "settle_missing_rows", name: "missing rows are skipped", run: gone[T]},
		{row: "stored_errors", name: "errors are truncated and cleaned", run: storedErrors[T]},
	}
}

// writeRows commits events and returns their rows.
func (b *env[T]) writeRows(ctx context.Context, t tb, evs ...waybill.Event) []row {
	t.Helper()
	b.write(ctx, t, evs...)
	rows := b.wantReady(ctx, t, evs...)
	if len(rows) != len(evs) {
		t.Fatalf("%d events gave %d rows", len(evs), len(rows))
	}
	return rows
}

func done[T any](history bool) func(context.Context, tb, *env[T]) {
	return func(ctx context.Context, t tb, b *env[T]) {
		evs := b.events(4, "a")
		rows := b.writeRows(ctx, t, evs...)
		leases := b.own(ctx, t)
		settled := b.settle(ctx, t, driver.Settlement{
			Leases: leases, Done: []driver.Result{result(rows[2]), result(rows[0])}, History: history,
		})
		wantMoved(t, settled, rows[0].ID, rows[2].ID)
		b.wantReady(ctx, t, evs[1], evs[3])
		seen := b.sweep(ctx, t, 100, driver.Cursor{Lane: rows[0].Lane, UpTo: rows[3].Seq})
		if want := sightings([]row{rows[1], rows[3]}); !slices.Equal(seen, want) {
			t.Errorf("Sweep after the settlement returned %v, want %v", seen, want)
		}
		// A settled event cannot be settled again.
		again := b.settle(ctx, t, driver.Settlement{Leases: leases, Done: results(rows[:3]), History: history})
		wantMoved(t, again, rows[1].ID)
		b.wantReady(ctx, t, evs[3])
		if history {
			b.wantCommitted(ctx, t, true, evs...)
		}
		for _, ev := range evs[:3] {
			if page := b.due(ctx, t); slices.Contains(rowIDs(page.Rows), ev.ID) {
				t.Errorf("a delivered event is due")
			}
		}
	}
}

func doneMany[T any](ctx context.Context, t tb, b *env[T]) {
	var evs []waybill.Event
	for _, name := range b.aggregates(8) {
		evs = append(evs, b.events(150, name)...)
	}
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	part := len(rows) - 7
	wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Done: results(rows[:part]), History: true}), rowIDs(rows[:part])...)
	b.wantReady(ctx, t, evs[part:]...)
	// A new event comes after the old ones, whatever was deleted before it.
	next := b.event(b.aggregates(1)[0])
	b.write(ctx, t, next)
	b.wantReady(ctx, t, append(slices.Clone(evs[part:]), next)...)
}

func retries[T any](ctx context.Context, t tb, b *env[T]) {
	ev := full(t, waybill.NewID())
	rows := b.writeRows(ctx, t, ev, b.event("a"))
	leases := b.own(ctx, t)
	r := result(rows[0])
	r.Attempts, r.Delay, r.Holds, r.Error = 3, 100*time.Millisecond, true, "connection refused"
	before := b.now(ctx, t)
	wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Retry: []driver.Result{r}}), ev.ID)
	if got := rowIDs(b.ready(ctx, t)); !slices.Equal(got, []waybill.ID{rows[1].ID}) {
		t.Errorf("ready are %v: a deferred event is never ready again", got)
	}
	row := b.awaitDue(ctx, t, ev.ID) // asserts that the row is not early
	wantEvent(t, row, ev)
	if row.Key != rows[0].Key || !row.CreatedAt.Equal(rows[0].CreatedAt) {
		t.Errorf("deferred, the row is %+v, created at %v; it was %+v, created at %v", row.Key, row.CreatedAt, rows[0].Key, rows[0].CreatedAt)
	}
	if row.Attempts != 3 || !row.Holds || row.LastError != "connection refused" || row.Replay != 0 {
		t.Errorf("deferred, the row has attempts %d, holds %v, error %q, replay %d", row.Attempts, row.Holds, row.LastError, row.Replay)
	}
	if row.DueAt.Before(before.Add(r.Delay)) || !inMicrosUTC(row.DueAt) || !row.Event.AvailableAt.Equal(row.DueAt) {
		t.Errorf("deferred by %v after %v, the row is due at %v, available at %v", r.Delay, before, row.DueAt, row.Event.AvailableAt)
	}
	if page, err := b.DB.Relay.Load(ctx, []store.Key{row.Key}); err != nil || len(page.Rows) > 0 {
		t.Errorf("Load returned a deferred row: %v, %v", rowIDs(page.Rows), err)
	}
	seen := b.sweep(ctx, t, 10, driver.Cursor{Lane: row.Lane, UpTo: 1 << 62})
	if slices.ContainsFunc(seen, func(s driver.RowRef) bool { return s.Key == row.Key }) {
		t.Errorf("Sweep returned a deferred row")
	}
	b.wantCommitted(ctx, t, true, ev)
}

func retriesAgain[T any](ctx context.Context, t tb, b *env[T]) {
	ev := b.event("a")
	rows := b.writeRows(ctx, t, ev)
	leases := b.own(ctx, t)
	r := result(rows[0])
	for i := 1; i <= 3; i++ {
		r.Attempts, r.Delay, r.Holds, r.Error = i, time.Duration(i)*time.Millisecond, i%2 == 1, strings.Repeat("x", i)
		if i == 3 {
			r.Error = ""
		}
		wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Retry: []driver.Result{r}, Durable: i == 2}), ev.ID)
		row := b.awaitDue(ctx, t, ev.ID)
		if row.Attempts != i || row.Holds != r.Holds || row.LastError != r.Error || row.Key != rows[0].Key {
			t.Errorf("deferred for the %d. time, the row is %+v", i, row)
		}
		wantEvent(t, row, ev)
	}
	// After a long deferral the event is not due any more.
	r.Delay = defaultLease
	wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Retry: []driver.Result{r}}), ev.ID)
	if _, ok := find(b.due(ctx, t).Rows, ev.ID); ok {
		t.Errorf("an event that was deferred for a long time is still due")
	}
	// A scheduled event is deferred like any other.
	scheduled := b.event("a")
	scheduled.Delay = time.Millisecond
	b.write(ctx, t, scheduled)
	row := b.awaitDue(ctx, t, scheduled.ID)
	r = result(row)
	r.Attempts = 1
	wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Retry: []driver.Result{r}}), scheduled.ID)
	if again := b.awaitDue(ctx, t, scheduled.ID); again.Attempts != 1 || again.Key != row.Key || again.DueAt.Before(row.DueAt) {
		t.Errorf("a scheduled event, deferred: %+v, before %+v", again, row)
	}
}

func dies[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(3, "a")
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	late := result(rows[1])
	late.Attempts = 1
	b.settle(ctx, t, driver.Settlement{Leases: leases, Retry: []driver.Result{late}})
	b.awaitDue(ctx, t, evs[1].ID)
	dead := []driver.Result{result(rows[0]), late}
	dead[0].Attempts, dead[0].Error, dead[0].Holds = 10, "no handler", true
	wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Dead: dead}), evs[0].ID, evs[1].ID)
	b.wantReady(ctx, t, evs[2])
	for _, row := range b.due(ctx, t).Rows {
		if row.ID == evs[1].ID {
			t.Errorf("a dead event is due")
		}
	}
	b.wantCommitted(ctx, t, true, evs...)
	// No settlement of a relay changes a dead letter.
	again := b.settle(ctx, t, driver.Settlement{Leases: leases, Done: dead[:1], Retry: dead[1:], History: true})
	wantMoved(t, again)
	b.wantReady(ctx, t, evs[2])
}

func mixed[T any](ctx context.Context, t tb, b *env[T]) {
	var evs []waybill.Event
	names := b.aggregates(3)
	for range 4 {
		for _, name := range names {
			evs = append(evs, b.event(name))
		}
	}
	rows := b.writeRows(ctx, t, evs...)
	s := driver.Settlement{Leases: b.own(ctx, t), History: true}
	var moved []waybill.ID
	var left, retried []waybill.Event
	for i, row := range rows {
		r := result(row)
		r.Attempts, r.Error = i, "e"
		switch i / len(names) {
		case 0:
			s.Done = append(s.Done, r)
		case 1:
			s.Retry = append(s.Retry, r)
			retried = append(retried, evs[i])
		case 2:
			s.Dead = append(s.Dead, r)
		default:
			left = append(left, evs[i])
			continue
		}
		moved = append(moved, row.ID)
	}
	wantMoved(t, b.settle(ctx, t, s), moved...)
	b.wantReady(ctx, t, left...)
	for i, ev := range retried {
		if row := b.awaitDue(ctx, t, ev.ID); row.Attempts != len(names)+i {
			t.Errorf("deferred with %d attempts, want %d", row.Attempts, len(names)+i)
		}
	}
	due := rowIDs(b.due(ctx, t).Rows)
	for i, ev := range evs {
		if slices.Contains(due, ev.ID) != (i/len(names) == 1) {
			t.Errorf("event %d of the settlement is due: %v", i, slices.Contains(due, ev.ID))
		}
	}
	b.wantCommitted(ctx, t, true, evs...)
}

// gone settles rows that do not exist, beside one that does.
func gone[T any](ctx context.Context, t tb, b *env[T]) {
	ev, other := b.event("a"), b.event("a")
	rows := b.writeRows(ctx, t, ev, other)
	leases := b.own(ctx, t)
	never := func() driver.Result {
		return driver.Result{Lane: rows[0].Lane, ID: waybill.NewID(), Attempts: 1, Error: "x"}
	}
	settled := b.settle(ctx, t, driver.Settlement{
		Leases: leases, History: true,
		Done:  []driver.Result{never(), result(rows[0])},
		Retry: []driver.Result{never()},
		Dead:  []driver.Result{never()},
	})
	wantMoved(t, settled, ev.ID)
	b.wantReady(ctx, t, other)
	if n := len(b.due(ctx, t).Rows); n > 0 {
		t.Errorf("deferring an event that does not exist created %d rows", n)
	}
	// An empty settlement is no error, with and without leases.
	wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases}))
	if empty, err := b.DB.Relay.Settle(ctx, driver.Settlement{}); err != nil || len(empty.Held)+len(empty.Moved) > 0 {
		t.Errorf("an empty settlement: %+v, %v", empty, err)
	}
}

func storedErrors[T any](ctx context.Context, t tb, b *env[T]) {
	texts := []string{
		"plain", "", "with\x00NUL\x00", "broken \xff\xfe bytes", strings.Repeat("é", 2000), strings.Repeat("é", 2001), "x" + strings.Repeat("é", 2000),
		strings.Repeat("😀", 2000), "xy" + strings.Repeat("😀", 1000), strings.Repeat("\xff", 5000), "multi\nline\ttext", `'"\%`,
	}
	var evs []waybill.Event
	for range texts {
		evs = append(evs, b.event("a"))
	}
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	s := driver.Settlement{Leases: leases}
	for i, row := range rows {
		r := result(row)
		r.Attempts, r.Error = 1, texts[i]
		s.Retry = append(s.Retry, r)
	}
	wantMoved(t, b.settle(ctx, t, s), idsOf(evs)...)
	for i, text := range texts {
		got := b.awaitDue(ctx, t, evs[i].ID).LastError
		if want := driver.CutError(text); got != want {
			t.Errorf("the error %.20q… (%d bytes) is stored as %.20q… (%d bytes), want %d bytes", text, len(text), got, len(got), len(want))
		}
		if len(got) > 4000 || !utf8.ValidString(got) || strings.ContainsRune(got, 0) {
			t.Errorf("the error %.20q… is stored with %d bytes, valid: %v", text, len(got), utf8.ValidString(got))
		}
	}
	// Dead letters store the same texts.
	s.Dead, s.Retry = s.Retry, nil
	wantMoved(t, b.settle(ctx, t, s), idsOf(evs)...)
	b.wantCommitted(ctx, t, true, evs...)
}

// repeatedBehindReplay repeats a settlement whose response was lost: it
// dead-lettered events that an operator has replayed since.
func repeatedBehindReplay[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(3, "a")
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	late := result(rows[1])
	late.Attempts, late.Holds = 1, true
	wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Retry: []driver.Result{late}}), evs[1].ID)
	var dead []driver.Result
	for _, r := range rows[:2] {
		one := result(r)
		one.Attempts, one.Error = 2, "no"
		dead = append(dead, one)
	}
	for replay := 1; replay <= 2; replay++ {
		wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Dead: dead}), evs[0].ID, evs[1].ID)
		if _, err := b.DB.OutboxAdmin.Replay(ctx, idsOf(evs[:2])); err != nil {
			t.Fatalf("Replay: %v", err)
		}
		retry := slices.Clone(dead)
		for i := range retry {
			retry[i].Delay = defaultLease
		}
		for what, s := range map[string]driver.Settlement{"dead": {Dead: dead}, "retry": {Retry: retry}} {
			s.Leases = leases
			if out := b.settle(ctx, t, s); len(out.Moved) != 0 || len(out.Held) == 0 {
				t.Errorf("%s, repeated behind replay %d: %+v; want the lanes held, and nothing moved", what, replay, out)
			}
		}
		for i, ev := range evs[:2] {
			if row := b.awaitDue(ctx, t, ev.ID); row.Replay != replay || row.Attempts != 0 {
				t.Errorf("behind replay %d the row has replay %d and %d attempts", replay, row.Replay, row.Attempts)
			}
			dead[i].Replay = replay
		}
	}
	wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Dead: dead, Done: []driver.Result{result(rows[2])}}), idsOf(evs)...)
}

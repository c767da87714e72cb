package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// divertChecks check Settlement.Divert.
func divertChecks[T any]() []check[T] {
	return []check[T]{
		{row: "divert", name: "ready rows, with every column", run: divertsReady[T]},
		{row: "divert", name: "deferred rows", run: divertsDelayed[T]},
		{row: "divert", name: "one event to several destinations", run: divertsSeveral[T]},
		{row: "divert", name: "payloads and headers byte for byte", run: divertsBytes[T]},
		{row: "divert", name: "stored errors", run: divertsErrors[T]},
		{row: "divert", name: "without history", fresh: true, run: divertsWithoutHistory[T]},
		{row: "divert", name: "dedup keys are free", run: divertsKeys[T]},
		{row: "divert", name: "many", run: divertsMany[T]},
		{row: "divert", name: "in one commit", run: divertsAtOnce[T]},
	}
}

// wantDiverted asserts that a row is as its diversion says, due within a delay
// after the settlement.
func wantDiverted(t tb, got, origin row, d driver.Diversion, before, after time.Time) {
	t.Helper()
	expected := queued(origin, d)
	if d.Delay > 0 {
		expected.DueAt = got.DueAt
		if got.DueAt.Before(before.Add(d.Delay)) || got.DueAt.After(after.Add(d.Delay)) || !inMicrosUTC(got.DueAt) {
			t.Errorf("diverted between %v and %v with a delay of %v, event %s is due at %v", before, after, d.Delay, got.ID, got.DueAt)
		}
	}
	wantRow(t, "diverted", got, expected)
}

// divertsReady diverts rows with all kinds of numbers, and reads them with
// every read.
func divertsReady[T any](ctx context.Context, t tb, b *env[T]) {
	number, backlog := b.backlogOf(ctx, t, "a")
	evs := []waybill.Event{full(t, waybill.NewID()), full(t, waybill.NewID()), full(t, waybill.NewID()), full(t, waybill.NewID()), {
		ID: waybill.NewID(), Type: "bare", Payload: []byte("null"),
	}}
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	diversions := []driver.Diversion{
		{Destination: number, ID: evs[2].ID, Attempts: 1 << 20, Delay: time.Hour, Error: "connection refused"},
		{Destination: number, ID: evs[0].ID},
		{Destination: number, ID: evs[1].ID, Attempts: 7, Final: true, Error: "rejected for good"},
		{Destination: number, ID: evs[3].ID, Attempts: 2, Delay: time.Microsecond, Final: true},
		{Destination: number, ID: evs[4].ID, Attempts: 1, Error: "x"},
	}
	before := b.now(ctx, t)
	b.divert(ctx, t, leases, rows, diversions...)
	after := b.now(ctx, t)
	b.wantReady(ctx, t)
	of := map[waybill.ID]driver.Diversion{}
	for _, d := range diversions {
		of[d.ID] = d
	}
	compare := func(what string, got []row, err error, want []row) {
		t.Helper()
		if err != nil || !slices.Equal(rowIDs(got), rowIDs(want)) {
			t.Errorf("%s returned %v, %v, want %v", what, rowIDs(got), err, rowIDs(want))
			return
		}
		for i := range got {
			wantDiverted(t, got[i], want[i], of[want[i].ID], before, after)
		}
	}
	compare("Fetch", b.readyIn(ctx, t, backlog), nil, rows)
	page, err := backlog.Load(ctx, keysOf(rows[:1]))
	compare("Load", page.Rows, err, rows[:1])
	lane, agg := rows[0].Lane, driver.AggregateOf(&rows[0].Event)
	page, err = backlog.FetchAggregate(ctx, agg, driver.Cursor{Lane: lane}, 100)
	compare("FetchAggregate", page.Rows, err, rows[:4])
	page, err = backlog.FetchPriority(ctx, []driver.Cursor{{Lane: lane}}, 100)
	compare("FetchPriority", page.Rows, err, rows[:4])
	recs, err := backlog.List(ctx, store.Ready, store.Filter{}, 0, 100)
	var listed []row
	for _, rec := range recs {
		listed = append(listed, rec.Row)
		if rec.State != store.Ready || !rec.EndedAt.IsZero() {
			t.Errorf("listed, a diverted event is %v, ended at %v", rec.State, rec.EndedAt)
		}
	}
	compare("List", listed, err, rows)
	for i, r := range rows {
		wantEvent(t, r, evs[i])
		compare("Find", []row{wantIn(ctx, t, backlog, r.ID, store.Ready).Row}, nil, rows[i:i+1])
	}
	// A row with a due time is ready, not deferred.
	if page, err := backlog.Due(ctx, b.allLanes(), 100); err != nil || len(page.Rows) > 0 || !page.Next.IsZero() {
		t.Errorf("Due returned %v, next %v, %v; the rows are ready", rowIDs(page.Rows), page.Next, err)
	}
}

// divertsDelayed diverts events that were deferred, scheduled and replayed.
// Their due time and their attempts in the outbox do not count.
func divertsDelayed[T any](ctx context.Context, t tb, b *env[T]) {
	number, backlog := b.backlogOf(ctx, t, "a")
	evs := []waybill.Event{full(t, waybill.NewID()), full(t, waybill.NewID()), b.event("a"), b.event("a")}
	evs[3].Delay = defaultLease
	b.write(ctx, t, evs...)
	rows := b.wantReady(ctx, t, evs[:3]...)
	leases := b.own(ctx, t)
	retry, dead := results(rows[:2]), results(rows[2:])
	for i := range retry {
		retry[i].Attempts, retry[i].Delay, retry[i].Error, retry[i].Holds = 5, defaultLease, "the outbox's error", true
	}
	b.settle(ctx, t, driver.Settlement{Leases: leases, Retry: retry, Dead: dead})
	if _, err := b.DB.OutboxAdmin.Replay(ctx, idsOf(evs[2:3])); err != nil {
		t.Fatalf("Replay: %v", err)
	}
	var delayed []row
	for _, ev := range evs {
		delayed = append(delayed, b.wantState(ctx, t, ev, store.Delayed).Row)
	}
	diversions := spread(delayed, number)
	diversions[1] = driver.Diversion{Destination: number, ID: evs[1].ID, Attempts: 3, Delay: time.Minute, Error: "new", Final: true}
	before := b.now(ctx, t)
	b.divert(ctx, t, leases, delayed, diversions...)
	after := b.now(ctx, t)
	got := b.readyIn(ctx, t, backlog)
	if !slices.Equal(rowIDs(got), idsOf(evs)) {
		t.Fatalf("diverted were %v, and ready are %v", idsOf(evs), rowIDs(got))
	}
	for i := range got {
		wantDiverted(t, got[i], delayed[i], diversions[i], before, after)
	}
	if got[2].Replay != 1 {
		t.Errorf("an event that was replayed once is diverted with the replay number %d", got[2].Replay)
	}
}

func divertsSeveral[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b", "c", "d")
	evs := b.events(4, "a")
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	var diversions []driver.Diversion
	expected := map[int][]row{}
	for i, r := range rows[:3] { // the last is delivered to all
		for j, number := range numbers[:3] { // the last has received everything
			if (i+j)%3 == 2 {
				continue
			}
			d := driver.Diversion{Destination: number, ID: r.ID, Attempts: 10*i + j, Error: fmt.Sprint(i, j), Final: j == 1}
			diversions = append(diversions, d)
			expected[number] = append(expected[number], queued(r, d))
		}
	}
	slices.Reverse(diversions)
	b.divert(ctx, t, leases, rows, diversions...)
	for _, number := range numbers {
		b.wantBacklog(ctx, t, fmt.Sprintf("destination %d", number), number, expected[number]...)
	}
	b.wantReady(ctx, t)
	for _, ev := range evs {
		b.wantState(ctx, t, ev, store.Delivered)
	}
}

func divertsBytes[T any](ctx context.Context, t tb, b *env[T]) {
	number, _ := b.backlogOf(ctx, t, "a")
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	var evs []waybill.Event
	for _, payload := range []string{string(every), "\x00", "\xff\xfe", `{"a":  1.0}`, "é😀", strings.Repeat("x", 200_000), `\x00\\'`} {
		ev := b.event("a")
		ev.ContentType, ev.Payload = "application/octet-stream", []byte(payload)
		ev.Headers = map[string]string{"é": "😀", "empty": "", "quotes": `'"\`}
		evs = append(evs, ev)
	}
	evs[0].Headers = nil
	rows := b.writeRows(ctx, t, evs...)
	broken := b.features.lacks(storedHeaders) == ""
	if broken {
		if err := b.SetHeaders(ctx, evs[1].ID, `{"a": 1}`); err != nil {
			t.Fatalf("SetHeaders: %v", err)
		}
	}
	b.divert(ctx, t, b.own(ctx, t), rows, spread(rows, number)...)
	got := b.readyIn(ctx, t, b.backlog(number))
	wantIDs(t, "Fetch", got, evs)
	for i := range min(len(got), len(evs)) {
		if broken && i == 1 {
			if got[i].Err == nil || got[i].Event.Type != evs[i].Type {
				t.Errorf("a row that cannot be read is diverted as %+v, want it with its error", got[i])
			}
			continue
		}
		wantEvent(t, got[i], evs[i])
	}
}

func divertsErrors[T any](ctx context.Context, t tb, b *env[T]) {
	number, _ := b.backlogOf(ctx, t, "a")
	texts := []string{"with\x00NUL\x00", "broken \xff\xfe bytes", strings.Repeat("é", 2001), "xy" + strings.Repeat("😀", 1000), "multi\nline\ttext", `'"\%`}
	rows := b.writeRows(ctx, t, b.events(len(texts), "a")...)
	diversions := spread(rows, number)
	var expected []row
	for i := range diversions {
		diversions[i].Error = texts[i]
		expected = append(expected, queued(rows[i], diversions[i]))
	}
	b.divert(ctx, t, b.own(ctx, t), rows, diversions...)
	b.wantBacklog(ctx, t, "errors", number, expected...)
}

func divertsWithoutHistory[T any](ctx context.Context, t tb, b *env[T]) {
	number, backlog := b.backlogOf(ctx, t, "a")
	evs := b.events(3, "a")
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	diversions := spread(rows[:2], number)
	diversions[0].Attempts, diversions[0].Error = 4, "boom"
	s := driver.Settlement{Leases: leases, Done: results(rows), Divert: diversions}
	wantMoved(t, b.settle(ctx, t, s), idsOf(evs)...)
	b.wantBacklog(ctx, t, "without history", number, queued(rows[0], diversions[0]), queued(rows[1], diversions[1]))
	b.wantNowhere(ctx, t, evs...)
	for _, ev := range evs {
		if yes, err := b.DB.Outbox.Committed(ctx, ev.ID); err == nil && !yes {
			t.Errorf("Committed is certain that event %s was never written", ev.ID)
		}
	}
	// Without a row in the history, there is no delivery time to set.
	wantMoved(t, settleIn(ctx, t, backlog, driver.Settlement{Leases: leases, History: true, Done: readyResults(rows[:2])}), idsOf(evs[:2])...)
	b.wantNowhere(ctx, t, evs...)
	b.wantBacklog(ctx, t, "delivered", number)
}

// divertsKeys checks that a diverted event has no dedup key, in whatever state
// it is.
func divertsKeys[T any](ctx context.Context, t tb, b *env[T]) {
	number, backlog := b.backlogOf(ctx, t, "a")
	leases := b.own(ctx, t)
	names := []string{"ready", "retried", "dead", "done"}
	var evs, next []waybill.Event
	for _, name := range names {
		evs = append(evs, b.keyed("a", name))
	}
	rows := b.writeRows(ctx, t, evs...)
	b.divert(ctx, t, leases, rows, spread(rows, number)...)
	retry := readyResult(rows[1])
	retry.Delay, retry.Holds = defaultLease, true
	settleIn(ctx, t, backlog, driver.Settlement{Leases: leases, Retry: []driver.Result{retry}, Dead: readyResults(rows[2:3])})
	for _, name := range names {
		ev := b.keyed("b", name)
		next = append(next, ev)
		wantReceipts(t, receipts(ctx, t, b.box(t), ev), written(ev))
	}
	// A replay takes no key, and settlements of the backlog free none.
	replayed, err := backlog.Replay(ctx, idsOf(evs))
	if err != nil || len(replayed.Refused) > 0 || !slices.Equal(replayed.IDs, idsOf(evs[2:3])) {
		t.Errorf("Replay in a backlog returned %+v, %v; want event %s replayed, and none refused", replayed, err, evs[2].ID)
	}
	dead := result(wantIn(ctx, t, backlog, evs[1].ID, store.Delayed).Row)
	late := result(wantIn(ctx, t, backlog, evs[2].ID, store.Delayed).Row)
	settleIn(ctx, t, backlog, driver.Settlement{
		Leases: leases, History: true, Done: []driver.Result{readyResult(rows[3]), late}, Dead: []driver.Result{dead},
	})
	for i, name := range names {
		wantReceipts(t, receipts(ctx, t, b.box(t), b.keyed("c", name)), duplicateOf(next[i]))
	}
	if rec := wantIn(ctx, t, backlog, evs[0].ID, store.Ready); rec.Event.DedupKey != evs[0].DedupKey {
		t.Errorf("diverted, the event has the dedup key %q, want %q", rec.Event.DedupKey, evs[0].DedupKey)
	}
}

func divertsMany[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b", "c")
	var evs []waybill.Event
	for i, names := 0, b.aggregates(6); i < 600; i++ {
		evs = append(evs, b.event(names[i%len(names)]))
	}
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	diversions := spread(rows, numbers...)
	for i := range diversions {
		diversions[i].Attempts, diversions[i].Error = i, strings.Repeat("e", 100)
	}
	b.divert(ctx, t, leases, rows, diversions...)
	for j, number := range numbers {
		var expected []row
		for i, r := range rows {
			expected = append(expected, queued(r, diversions[i*len(numbers)+j]))
		}
		b.wantBacklog(ctx, t, fmt.Sprintf("destination %d", number), number, expected...)
	}
	wantMoved(t, settleIn(ctx, t, b.backlog(numbers[1]), driver.Settlement{Leases: leases, Done: readyResults(rows), History: true}), rowIDs(rows)...)
	b.wantBacklog(ctx, t, "delivered", numbers[1])
}

// divertsAtOnce reads the outbox and the backlog while events are diverted:
// each event is in one of them, at every moment.
func divertsAtOnce[T any](ctx context.Context, t tb, b *env[T]) {
	_, backlog := b.backlogOf(ctx, t, "a")
	number := b.registered(ctx, t)[0].Number
	evs := b.events(60, "a")
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	settled := make(chan error, 1)
	go func() {
		var err error
		for i, r := range rows {
			s := driver.Settlement{Leases: leases, History: true, Done: []driver.Result{result(r)}, Divert: spread(rows[i:i+1], number)}
			if _, settleErr := b.second().Relay.Settle(ctx, s); settleErr != nil {
				err = errors.Join(err, settleErr)
			}
		}
		settled <- err
	}()
	has := func(db driver.Reader) map[waybill.ID]bool {
		ids := map[waybill.ID]bool{}
		page, err := db.Fetch(ctx, []driver.Cursor{{Lane: rows[0].Lane}}, len(rows))
		if err != nil {
			t.Errorf("Fetch: %v", err)
		}
		for _, r := range page.Rows {
			ids[r.ID] = true
		}
		return ids
	}
	for running := true; running; {
		select {
		case err := <-settled:
			if running = false; err != nil {
				t.Errorf("Settle: %v", err)
			}
		default:
		}
		outbox := has(b.DB.Relay)
		diverted := has(backlog)
		later := has(b.DB.Relay)
		for _, ev := range evs {
			if !outbox[ev.ID] && !diverted[ev.ID] {
				t.Errorf("event %s has left the outbox, and is not in the backlog", ev.ID)
				running = false
			}
			if diverted[ev.ID] && later[ev.ID] {
				t.Errorf("event %s is in the backlog, and later still in the outbox", ev.ID)
				running = false
			}
		}
	}
	b.wantReady(ctx, t)
}

package drivertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// endTexts are the errors of two rounds of events; the last has none.
var endTexts = [2][]string{
	{"dial: connection refused", "status 50%", "Connection refused", ""}, {"dial: connection refused", "status_500", "connection", ""},
}

// listsByEnd filters by the time, the error and the correlation id of events in
// every state. Two rounds of them end at different times.
func listsByEnd[T any](ctx context.Context, t tb, b *env[T]) {
	kind := b.unique("T")
	var evs []waybill.Event
	for i := range len(endTexts) * len(states) * len(endTexts[0]) {
		ev := b.event("a")
		ev.Type, ev.AggregateType = kind, kind
		ev.AggregateID += fmt.Sprint(i)
		ev.CorrelationID = []string{"", "request", "Request"}[i%3]
		evs = append(evs, ev)
	}
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	for round, texts := range endTexts {
		n := len(rows) / len(endTexts)
		endRound(ctx, t, b, leases, rows[round*n:][:n], texts[:])
		b.tick(ctx, t)
	}
	b.end()
	for _, state := range states {
		all := b.list(ctx, t, state, store.Filter{Type: kind}, 100)
		want := 2 * len(endTexts[0])
		if state == store.Delivered && b.noHistory {
			want = 0
		}
		if len(all) != want {
			t.Fatalf("%d events are %v, want %d", len(all), state, want)
		}
		for _, f := range endFilters(all) {
			f.Type = kind
			wantMatches(ctx, t, b, state, f, all)
			if f != (store.Filter{Type: kind}) && state == store.Dead { // other statements may list these
				wantMatches(ctx, t, b, state, store.Filter{AggregateType: kind, Since: f.Since, Until: f.Until, Error: f.Error, CorrelationID: f.CorrelationID}, all)
			}
		}
	}
}

// endRound spreads rows over all states.
func endRound[T any](ctx context.Context, t tb, b *env[T], leases []driver.Lease, rows []row, texts []string) {
	t.Helper()
	s := driver.Settlement{Leases: leases, History: true}
	for i, row := range rows {
		r := result(row)
		r.Delay, r.Error, r.Attempts = defaultLease, texts[i/len(states)], 1
		switch states[i%len(states)] {
		case store.Ready: // it stays so
		case store.Delayed:
			s.Retry = append(s.Retry, r)
		case store.Dead:
			s.Dead = append(s.Dead, r)
		case store.Delivered:
			s.Done = append(s.Done, r)
		}
	}
	b.settle(ctx, t, s)
}

// endedAt is the time of a record that filters use.
func endedAt(r store.Record) time.Time {
	if r.State == store.Dead || r.State == store.Delivered {
		return r.EndedAt
	}
	return r.CreatedAt
}

// endFilters are filters that separate the records.
func endFilters(all []store.Record) []store.Filter {
	out := []store.Filter{
		{},
		{Error: "connection"},
		{Error: "Connection"},
		{Error: "status 50%"},
		{Error: "status_5"},
		{Error: "%"},
		{Error: "unknown"},
		{CorrelationID: "request"},
		{CorrelationID: "Request"},
		{CorrelationID: "quest"},
		{CorrelationID: "request", Error: "refused"},
	}
	if len(all) == 0 {
		return out
	}
	last := endedAt(all[len(all)-1])
	return append(out, store.Filter{Since: last}, store.Filter{Until: last}, store.Filter{Since: last.Add(time.Microsecond)},
		store.Filter{Until: last.Add(time.Microsecond)}, store.Filter{Since: last.Add(-time.Nanosecond)}, store.Filter{Since: last.Add(time.Nanosecond)},
		store.Filter{Since: endedAt(all[0]), Until: last}, store.Filter{Since: last, Error: "connection"})
}

// wantMatches compares List and Count with the records that match.
func wantMatches[T any](ctx context.Context, t tb, b *env[T], state store.State, f store.Filter, all []store.Record) {
	t.Helper()
	var want []waybill.ID
	for _, r := range all {
		at := endedAt(r)
		if !at.Before(f.Since) && (f.Until.IsZero() || at.Before(f.Until)) && (f.Error == "" || strings.Contains(r.LastError, f.Error)) &&
			(f.CorrelationID == "" || f.CorrelationID == r.Event.CorrelationID) {
			want = append(want, r.ID)
		}
	}
	if got := recordIDs(b.list(ctx, t, state, f, 3)); !slices.Equal(got, want) {
		t.Errorf("List(%v, %+v) returned %v, want %v", state, f, got, want)
	}
	if n, err := b.DB.OutboxAdmin.Count(ctx, state, f); err != nil || n != int64(len(want)) {
		t.Errorf("Count(%v, %+v) is %d, %v, want %d", state, f, n, err, len(want))
	}
}

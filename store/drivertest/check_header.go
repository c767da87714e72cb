package drivertest

import (
	"context"
	"fmt"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// headerChecks check stored headers.
func headerChecks[T any]() []check[T] {
	return []check[T]{
		{row: "headers_are_stored_unchanged", name: "round trip", run: headersRoundTrip[T]},
		{row: "headers_are_stored_unchanged", name: "none", needs: storedHeaders, run: headersNone[T]},
		{row: "headers_are_stored_unchanged", name: "garbage", suite: relaySuite, needs: storedHeaders, run: headersGarbage[T]},
	}
}

func headersRoundTrip[T any](ctx context.Context, t tb, b *env[T]) {
	many := map[string]string{}
	for i := range 64 {
		many[fmt.Sprintf("header-%02d", i)] = strings.Repeat("ü", 100)
	}
	var evs []waybill.Event
	for _, h := range []map[string]string{
		{"a": "1"},
		{"a": ""},
		{"größe": "Zürich"},
		{"日本": "語", "😀": "👩‍👩‍👧"},
		{`"quoted"`: `back\slash`, "<&>": "</script>"},
		{"A": "upper", "a": "lower", "a ": "padded"},
		{"\u2028": "\u2029"},
		{"null": "null", "": ""},
		many,
		{},
		nil,
	} {
		delete(h, "")
		ev := b.event("a")
		ev.Headers = h
		evs = append(evs, ev)
	}
	b.write(ctx, t, evs...)
	rows := b.wantReady(ctx, t, evs...)
	for i := range min(len(rows), len(evs)) {
		wantEvent(t, rows[i], evs[i])
	}
}

// headersNone stores the texts that mean "no headers".
func headersNone[T any](ctx context.Context, t tb, b *env[T]) {
	for _, text := range []string{"", "null", "{}"} {
		ev := b.event("a")
		ev.Headers = map[string]string{"a": "1"}
		b.write(ctx, t, ev)
		if err := b.SetHeaders(ctx, ev.ID, text); err != nil {
			t.Fatalf("SetHeaders(%q): %v", text, err)
		}
		if row := b.row(ctx, t, ev.ID); row.Err != nil || len(row.Event.Headers) != 0 {
			t.Errorf("headers stored as %q read as %v, error %v; want none", text, row.Event.Headers, row.Err)
		}
	}
}

// headersGarbage corrupts one row between two others: the row is reported, the
// others are read, and the row can be settled.
func headersGarbage[T any](ctx context.Context, t tb, b *env[T]) {
	leases := b.own(ctx, t)
	for _, text := range []string{"garbage{", `["a"]`, `{"a": {"b": 1}}`, `"text"`, `{"": "empty name"}`} {
		evs := b.events(3, "a")
		for i := range evs {
			evs[i].Headers = map[string]string{"a": "1"}
		}
		b.write(ctx, t, evs...)
		if err := b.SetHeaders(ctx, evs[1].ID, text); err != nil {
			t.Fatalf("SetHeaders(%q): %v", text, err)
		}
		rows := b.wantReady(ctx, t, evs...)
		if len(rows) != 3 {
			return
		}
		wantEvent(t, rows[0], evs[0])
		wantEvent(t, rows[2], evs[2])
		broken := rows[1]
		if broken.Err == nil {
			t.Errorf("headers stored as %q read as %v, without an error", text, broken.Event.Headers)
		}
		if broken.ID != evs[1].ID || broken.Event.Type != evs[1].Type || broken.Event.AggregateID != evs[1].AggregateID ||
			string(broken.Event.Payload) != string(evs[1].Payload) {
			t.Errorf("of a broken row the rest could not be read: %+v", broken)
		}
		// All reads report the same.
		keys := []store.Key{rows[0].Key, broken.Key, rows[2].Key}
		page, err := b.DB.Relay.Load(ctx, keys)
		if err != nil || len(page.Rows) != 3 {
			t.Fatalf("Load beside a broken row: %d rows, %v", len(page.Rows), err)
		}
		if page.Rows[1].Err == nil || page.Rows[0].Err != nil || page.Rows[2].Err != nil {
			t.Errorf("Load beside a broken row: errors %v, %v, %v", page.Rows[0].Err, page.Rows[1].Err, page.Rows[2].Err)
		}
		retry := result(broken)
		retry.Attempts, retry.Error = 1, "broken"
		wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Retry: []driver.Result{retry}}), broken.ID)
		if row := b.awaitDue(ctx, t, broken.ID); row.Err == nil {
			t.Errorf("the corrupt row is readable after it was deferred: %v", row.Event.Headers)
		}
		dead := driver.Settlement{Leases: leases, Dead: []driver.Result{retry}, Done: []driver.Result{result(rows[0]), result(rows[2])}, History: true}
		wantMoved(t, b.settle(ctx, t, dead), rowIDs(rows)...)
	}
	b.wantReady(ctx, t)
}

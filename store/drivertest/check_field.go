package drivertest

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
)

// fieldChecks check that reads return what was written.
func fieldChecks[T any]() []check[T] {
	return []check[T]{
		{row: "fields_are_stored_unchanged", name: "every field", run: everyField[T]},
		{row: "fields_are_stored_unchanged", name: "defaults", run: defaultFields[T]},
		{row: "fields_are_stored_unchanged", name: "awkward texts", run: awkwardTexts[T]},
		{row: "fields_are_stored_unchanged", name: "times", run: times[T]},
		{row: "payloads_are_stored_unchanged", name: "any bytes", run: anyBytes[T]},
		{row: "payloads_are_stored_unchanged", name: "JSON as it was", run: jsonAsItWas[T]},
		{row: "origin_from_the_context", name: "origin", run: originOf[T]},
	}
}

// full returns an event with every field set except the times of delivery, and
// fails for an unknown field.
func full(t tb, id waybill.ID) waybill.Event {
	t.Helper()
	ev := waybill.Event{
		ID: id, Type: "order.placed", AggregateType: "order", AggregateID: "order-1", TenantID: "acme", Topic: "orders",
		RoutingKey: "eu.west", SchemaID: "order-v3", SchemaVersion: 3, DedupKey: "order-1:" + id.String(),
		OccurredAt: time.Date(2024, 2, 29, 23, 59, 59, 123456789, time.FixedZone("", 5*3600+1800)), Priority: 7,
		CorrelationID: "corr-1", CausationID: "cause-1", Headers: map[string]string{"traceparent": "00-ab-cd-01", "x": ""},
		ContentType: "application/vnd.acme+json; charset=utf-8", Payload: []byte(`{"total": 9990}`),
	}
	v := reflect.ValueOf(ev)
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.IsExported() && f.Name != "AvailableAt" && f.Name != "Delay" && v.Field(i).IsZero() {
			t.Errorf("waybill.Event has a field %s that this suite does not set", f.Name)
		}
	}
	return ev
}

func everyField[T any](ctx context.Context, t tb, b *env[T]) {
	ev := full(t, waybill.NewID())
	b.write(ctx, t, ev)
	row := b.row(ctx, t, ev.ID)
	wantEvent(t, row, ev)
	if row.Lane != b.laneOf(ev) {
		t.Errorf("the row is in lane %d, want %d", row.Lane, b.laneOf(ev))
	}
	// A deferred row has the same fields.
	ev = full(t, waybill.NewID())
	ev.Delay = time.Millisecond
	b.write(ctx, t, ev)
	row = b.awaitDue(ctx, t, ev.ID)
	wantEvent(t, row, ev)
	if row.Lane != b.laneOf(ev) {
		t.Errorf("the deferred row is in lane %d, want %d", row.Lane, b.laneOf(ev))
	}
}

func defaultFields[T any](ctx context.Context, t tb, b *env[T]) {
	start := time.Now()
	ev := waybill.Event{ID: waybill.NewID(), Type: "bare", Payload: []byte("null")}
	b.write(ctx, t, ev)
	row := b.row(ctx, t, ev.ID)
	wantEvent(t, row, ev)
	if at := row.Event.OccurredAt; at.Before(start.Truncate(time.Microsecond)) || at.After(time.Now()) {
		t.Errorf("OccurredAt is %v, want the time of the write", at)
	}
	if row.Event.Headers != nil {
		t.Errorf("an event without headers has %v, want nil", row.Event.Headers)
	}
	if row.Lane < 0 || row.Lane >= b.lanes {
		t.Errorf("an unordered event is in lane %d of %d", row.Lane, b.lanes)
	}
}

// awkwardTexts are texts that quoting, padding, folding or normalizing would
// change.
func awkwardTexts[T any](ctx context.Context, t tb, b *env[T]) {
	texts := []string{
		"abc", "ABC", "abc ", " abc", "abc  ", `'; DROP TABLE x; --`, `"quoted"`, "`ticks`", `back\slash`, `\\`, `\n`, `\x41`,
		"100%", "a_b", "{}", "[]", "$1", "?", ":name", "@p1", "NULL", "null", "true", "0", "-1", "1e400", "é", "e\u0301", "ß", "İ",
		"日本語", "עברית", "😀 👩‍👩‍👧", "\u2028", "\u00a0", "\ufeffbom", "\ufffd", "\U0010ffff", strings.Repeat("😀", 16),
	}
	var evs []waybill.Event
	for _, s := range texts {
		ev := full(t, waybill.NewID())
		ev.Type, ev.AggregateType, ev.AggregateID, ev.TenantID, ev.Topic, ev.RoutingKey = s, s, s, s, s, s
		ev.SchemaID, ev.DedupKey, ev.CorrelationID, ev.CausationID = s, b.unique(s), s, s
		ev.Headers = map[string]string{s: s, s + "2": "x"}
		ev.ContentType = "text/plain; x=" + s
		ev.Payload = []byte(s)
		evs = append(evs, ev)
	}
	b.write(ctx, t, evs...)
	rows := b.wantReady(ctx, t, evs...)
	for i := range min(len(rows), len(evs)) {
		wantEvent(t, rows[i], evs[i])
		if want := b.laneOf(evs[i]); rows[i].Lane != want {
			t.Errorf("aggregate %q is in lane %d, want %d", texts[i], rows[i].Lane, want)
		}
	}
}

func times[T any](ctx context.Context, t tb, b *env[T]) {
	zone := time.FixedZone("far east", 14*3600)
	var evs []waybill.Event
	for _, at := range []time.Time{
		time.Date(1000, 1, 1, 0, 0, 0, 0, time.UTC),
		// Skipped by the Gregorian reform.
		time.Date(1582, 10, 10, 12, 0, 0, 1000, time.UTC),
		time.Date(1969, 12, 31, 23, 59, 59, 999999000, time.UTC),
		time.Unix(0, 0),
		time.Date(2000, 2, 29, 0, 0, 0, 999999999, time.UTC),
		time.Date(2038, 1, 19, 3, 14, 8, 500, time.UTC),
		time.Date(2026, 3, 29, 2, 30, 0, 123456789, zone),
		time.Date(2024, 6, 30, 23, 59, 59, 999999999, time.Local),
		time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC),
	} {
		ev := b.event("a")
		ev.OccurredAt = at
		evs = append(evs, ev)
	}
	b.write(ctx, t, evs...)
	rows := b.wantReady(ctx, t, evs...)
	for i := range min(len(rows), len(evs)) {
		wantEvent(t, rows[i], evs[i])
	}
}

func anyBytes[T any](ctx context.Context, t tb, b *env[T]) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	payloads := [][]byte{
		all,
		{},
		nil,
		{0},
		{0, 0, 0},
		[]byte("\\x00"), []byte("E'\\\\x'"), bytes.Repeat(all, 300), []byte("\xff\xfe\x00"),
		[]byte("trailing \x00"), []byte("\r\n\x1a"), []byte("not { json"),
	}
	var evs []waybill.Event
	for _, p := range payloads {
		ev := b.event("a")
		ev.ContentType, ev.Payload = "application/octet-stream", p
		evs = append(evs, ev)
	}
	b.write(ctx, t, evs...)
	rows := b.wantReady(ctx, t, evs...)
	for i := range min(len(rows), len(evs)) {
		wantEvent(t, rows[i], evs[i])
	}
	// One by one as well: a store may write a single event in another way.
	for _, ev := range evs {
		ev.ID = waybill.NewID()
		b.write(ctx, t, ev)
		wantEvent(t, b.row(ctx, t, ev.ID), ev)
	}
}

// jsonAsItWas writes JSON that a database's own JSON type would reorder,
// reformat or reject.
func jsonAsItWas[T any](ctx context.Context, t tb, b *env[T]) {
	var evs []waybill.Event
	for _, s := range []string{
		"{ \"b\" : 1,\n\t\"a\" : 2, \"b\" : 3 }", `1.0`, `1e400`, `123456789012345678901234567890`, ` [ ] `, `"\u0000"`, `"\ud83d\ude00"`,
		`"<>&"`, `"é"`, `null`, `"\ud800"`, `-0`, `1E+2`,
	} {
		ev := b.event("a")
		ev.Payload = []byte(s)
		evs = append(evs, ev)
	}
	b.write(ctx, t, evs...)
	rows := b.wantReady(ctx, t, evs...)
	for i := range min(len(rows), len(evs)) {
		wantEvent(t, rows[i], evs[i])
	}
}

func originOf[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	plain, own := b.event("a"), b.event("a")
	own.TenantID, own.CorrelationID, own.CausationID = "mine", "mine", "mine"
	from := waybill.ContextWithOrigin(ctx, waybill.Origin{TenantID: "acme", CorrelationID: "corr", CausationID: "cause"})
	caused := b.event("a")
	handling := waybill.ContextWithDelivery(ctx, waybill.Delivery{Event: waybill.Event{ID: plain.ID, TenantID: "umbrella", CorrelationID: "c2"}})
	err := errors.Join(
		box.InTx(from, func(ctx context.Context, tx T) error { return box.Write(ctx, tx, plain, own) }),
		box.InTx(handling, func(ctx context.Context, _ T) error { return box.Emit(ctx, caused) }),
	)
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	rows := b.wantReady(ctx, t, plain, own, caused)
	if len(rows) != 3 {
		return
	}
	plain.TenantID, plain.CorrelationID, plain.CausationID = "acme", "corr", "cause"
	caused.TenantID, caused.CorrelationID, caused.CausationID = "umbrella", "c2", plain.ID.String()
	for i, want := range []waybill.Event{plain, own, caused} {
		wantEvent(t, rows[i], want)
		if lane := b.laneOf(want); rows[i].Lane != lane {
			t.Errorf("the event of tenant %q is in lane %d, want %d", want.TenantID, rows[i].Lane, lane)
		}
	}
}

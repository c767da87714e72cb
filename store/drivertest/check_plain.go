package drivertest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// plainChecks check plain SQL inserts: a producer in any language needs a type,
// a payload and, if ordered, an aggregate.
func plainChecks[T any]() []check[T] {
	return []check[T]{
		{row: "plain_sql_is_enough", name: "defaults", needs: plainSQL, run: plainDefaults[T]},
		{row: "plain_sql_is_enough", name: "lane", needs: plainSQL, run: plainLane[T]},
		{row: "plain_sql_is_enough", name: "like any other event", suite: relaySuite, needs: plainSQL, run: plainSettles[T]},
	}
}

func (b *env[T]) insertPlain(ctx context.Context, t tb, p Plain) {
	t.Helper()
	if p.Payload == nil {
		p.Payload = []byte(`{"plain": true}`)
	}
	if err := b.InsertPlain(ctx, p); err != nil {
		t.Fatalf("the plain insert of %+v: %v", p, err)
	}
}

func plainDefaults[T any](ctx context.Context, t tb, b *env[T]) {
	for i := range 8 {
		b.insertPlain(ctx, t, Plain{Type: fmt.Sprintf("plain.%d", i), Payload: []byte(`{ "b": 1,  "a": [2] }`)})
	}
	rows := b.ready(ctx, t)
	if len(rows) != 8 {
		t.Fatalf("8 plain inserts gave %d ready rows", len(rows))
	}
	now := b.now(ctx, t)
	seen := map[waybill.ID]bool{}
	for i, row := range rows {
		want := waybill.Event{ID: row.ID, Type: fmt.Sprintf("plain.%d", i), Payload: []byte(`{ "b": 1,  "a": [2] }`)}
		wantEvent(t, row, want)
		if row.ID.IsZero() || seen[row.ID] {
			t.Errorf("row %d has the id %s, want a new one", i, row.ID)
		}
		seen[row.ID] = true
		if row.Lane < 0 || row.Lane >= b.lanes {
			t.Errorf("an unordered event is in lane %d of %d", row.Lane, b.lanes)
		}
		// All three are by the database's clock: the time of the id, OccurredAt
		// and CreatedAt.
		for what, at := range map[string]time.Time{"id": row.ID.Time(), "OccurredAt": row.Event.OccurredAt, "CreatedAt": row.CreatedAt} {
			if age := now.Sub(at); age < -time.Second || age > 5*time.Minute {
				t.Errorf("the %s of a plain insert is %v, at %v by the database's clock", what, at, now)
			}
		}
		if !row.DueAt.IsZero() || !row.Event.AvailableAt.IsZero() || row.Attempts != 0 || row.Holds {
			t.Errorf("a new row is not blank: %+v", row)
		}
	}
}

// plainLane inserts with various aggregates: Go and the database compute the
// same lane.
func plainLane[T any](ctx context.Context, t tb, b *env[T]) {
	cases := []Plain{
		{AggregateType: "order", AggregateID: "1"},
		{AggregateType: "order", AggregateID: "1", TenantID: "acme"},
		{AggregateID: "only an id"},
		{AggregateID: "only an id", TenantID: "acme"},
		{AggregateType: "Order", AggregateID: "1"},
		{AggregateType: "order", AggregateID: "1 "},
		{AggregateType: "order ", AggregateID: "1"},
		{AggregateType: "größe", AggregateID: "Zürich", TenantID: "日本語"},
		{AggregateType: "emoji", AggregateID: "😀😁", TenantID: "🚚"},
		{AggregateType: "quote", AggregateID: `it's "a" \ test; --`},
		{AggregateType: strings.Repeat("t", 64), AggregateID: strings.Repeat("i", 128), TenantID: strings.Repeat("n", 64)},
	}
	for i := range 24 {
		cases = append(cases, Plain{AggregateType: "order", AggregateID: fmt.Sprintf("order-%d", i*7919)})
	}
	for i := range cases {
		cases[i].Type = fmt.Sprintf("plain.%d", i)
		b.insertPlain(ctx, t, cases[i])
	}
	rows := b.ready(ctx, t)
	if len(rows) != len(cases) {
		t.Fatalf("%d plain inserts gave %d ready rows", len(cases), len(rows))
	}
	for i, row := range rows {
		p := cases[i]
		want := waybill.Event{
			ID: row.ID, Type: p.Type, AggregateType: p.AggregateType, AggregateID: p.AggregateID, TenantID: p.TenantID,
			Payload: []byte(`{"plain": true}`),
		}
		wantEvent(t, row, want)
		if lane := b.laneOf(want); row.Lane != lane {
			t.Errorf("the database put %+v into lane %d, Go into lane %d", p, row.Lane, lane)
		}
	}
	// Events written by Go go to the same lane, after the others.
	ev := b.event("a")
	ev.AggregateType, ev.AggregateID, ev.TenantID = cases[7].AggregateType, cases[7].AggregateID, cases[7].TenantID
	b.write(ctx, t, ev)
	if row := b.row(ctx, t, ev.ID); row.Lane != rows[7].Lane || row.Seq <= rows[len(rows)-1].Seq {
		t.Errorf("Go's event is at lane %d, seq %d; the plain one of its aggregate at %d, %d", row.Lane, row.Seq, rows[7].Lane, rows[7].Seq)
	}
}

func plainSettles[T any](ctx context.Context, t tb, b *env[T]) {
	for i := range 3 {
		b.insertPlain(ctx, t, Plain{Type: "plain", AggregateType: "thing", AggregateID: b.unique(fmt.Sprint(i))})
	}
	rows := b.ready(ctx, t)
	if len(rows) != 3 {
		t.Fatalf("3 plain inserts gave %d ready rows", len(rows))
	}
	leases := b.own(ctx, t)
	retry := result(rows[1])
	retry.Attempts, retry.Error = 1, "not yet"
	settled := b.settle(ctx, t, driver.Settlement{
		Leases: leases, History: true,
		Done: results(rows[:1]), Retry: []driver.Result{retry}, Dead: results(rows[2:]),
	})
	wantMoved(t, settled, rowIDs(rows)...)
	b.wantReady(ctx, t)
	if row := b.awaitDue(ctx, t, rows[1].ID); row.Attempts != 1 || row.LastError != "not yet" || row.Seq != rows[1].Seq {
		t.Errorf("the plain event was deferred as %+v", row)
	}
	for _, row := range rows {
		if !b.committed(ctx, t, row.ID) {
			t.Errorf("Committed(%s) is false for a plain insert", row.ID)
		}
	}
}

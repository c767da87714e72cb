package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
)

// limitChecks check validation, the copying of events, and ids.
func limitChecks[T any]() []check[T] {
	return []check[T]{
		{row: "invalid_events_are_rejected_first", name: "exact payload limit", run: payloadLimit[T]},
		{row: "invalid_events_are_rejected_first", name: "every limit at its edge", run: everyLimit[T]},
		{row: "invalid_events_are_rejected_first", name: "validation precedes the transaction check", run: limitsFirst[T]},
		{row: "written_events_are_copies", name: "later changes", run: laterChanges[T]},
		{row: "ids_increase", name: "ids across goroutines", run: idsIncrease[T]},
	}
}

func payloadLimit[T any](ctx context.Context, t tb, b *env[T]) {
	db := &spy[T]{Outbox: b.DB.Outbox}
	box := boxOver[T](t, db, outbox.Config{})
	fits, tooLong := b.event("a"), b.event("a")
	fits.ContentType, tooLong.ContentType = "application/octet-stream", "application/octet-stream"
	fits.Payload = bytes.Repeat([]byte{0xa5}, waybill.MaxPayload)
	tooLong.Payload = bytes.Repeat([]byte{0xa5}, waybill.MaxPayload+1)
	json, longJSON := b.event("a"), b.event("a")
	json.Payload = []byte(`"` + strings.Repeat("x", waybill.MaxPayload-2) + `"`)
	longJSON.Payload = []byte(`"` + strings.Repeat("x", waybill.MaxPayload-1) + `"`)
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		// An event that is too long rejects its whole write, and nothing else.
		for _, bad := range []waybill.Event{tooLong, longJSON} {
			err := box.Write(ctx, tx, b.event("a"), bad)
			var field *waybill.FieldError
			if !errors.As(err, &field) || field.Field != "Payload" {
				t.Errorf("a payload of %d bytes: %v, want an error about the Payload", len(bad.Payload), err)
			}
		}
		if n := db.writes.Load(); n != 0 {
			t.Errorf("the database was touched %d times for events that are refused", n)
		}
		return box.Write(ctx, tx, fits, json)
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	rows := b.wantReady(ctx, t, fits, json)
	if len(rows) == 2 && (!bytes.Equal(rows[0].Event.Payload, fits.Payload) || !bytes.Equal(rows[1].Event.Payload, json.Payload)) {
		t.Errorf("a payload of exactly %d bytes did not come back as it was", waybill.MaxPayload)
	}
	if db.writes.Load() == 0 {
		t.Errorf("the check does not see the writes that succeed")
	}
}

// everyLimit writes an event with every text at its limit, and one event per
// field with one byte more.
func everyLimit[T any](ctx context.Context, t tb, b *env[T]) {
	db := &spy[T]{Outbox: b.DB.Outbox}
	box := boxOver[T](t, db, outbox.Config{})
	limits := []struct {
		name  string
		limit int
		set   func(ev *waybill.Event, s string)
	}{
		{"Type", 128, func(ev *waybill.Event, s string) { ev.Type = s }},
		{"AggregateType", 64, func(ev *waybill.Event, s string) { ev.AggregateType = s }},
		{"AggregateID", 128, func(ev *waybill.Event, s string) { ev.AggregateID = s }},
		{"TenantID", 64, func(ev *waybill.Event, s string) { ev.TenantID = s }},
		{"Topic", 128, func(ev *waybill.Event, s string) { ev.Topic = s }},
		{"RoutingKey", 100, func(ev *waybill.Event, s string) { ev.RoutingKey = s }},
		{"SchemaID", 128, func(ev *waybill.Event, s string) { ev.SchemaID = s }},
		{"DedupKey", 255, func(ev *waybill.Event, s string) { ev.DedupKey = s }},
		{"CorrelationID", 128, func(ev *waybill.Event, s string) { ev.CorrelationID = s }},
		{"CausationID", 128, func(ev *waybill.Event, s string) { ev.CausationID = s }},
		{"ContentType", 128, func(ev *waybill.Event, s string) { ev.ContentType = s }},
	}
	full := b.event("a")
	for _, l := range limits {
		l.set(&full, strings.Repeat("é", l.limit/2)+strings.Repeat("x", l.limit%2))
	}
	full.Priority, full.SchemaVersion = 32767, 1<<31-1
	full.Headers = map[string]string{}
	for i := range 64 {
		full.Headers[fmt.Sprintf("h%02d", i)] = strings.Repeat("v", 16<<10/64-3)
	}
	refused := func(field string, ev waybill.Event) {
		err := box.InTx(ctx, func(ctx context.Context, tx T) error { return box.Write(ctx, tx, ev) })
		var problem *waybill.FieldError
		if !errors.As(err, &problem) || problem.Field != field {
			t.Errorf("an event beyond the limit of %s: %v, want an error about that field", field, err)
		}
	}
	for _, l := range limits {
		ev := b.event("a")
		l.set(&ev, strings.Repeat("x", l.limit+1))
		refused(l.name, ev)
		l.set(&ev, "a\x00b")
		refused(l.name, ev)
		l.set(&ev, "a\xffb")
		refused(l.name, ev)
	}
	many := b.event("a")
	many.Headers = maps.Clone(full.Headers)
	many.Headers["h64"] = ""
	refused("Headers", many)
	if n := db.writes.Load(); n != 0 {
		t.Errorf("the database was touched %d times for events that are refused", n)
	}
	b.wantReady(ctx, t)

	b.write(ctx, t, full)
	if rows := b.wantReady(ctx, t, full); len(rows) == 1 {
		wantEvent(t, rows[0], full)
	}
}

// limitsFirst writes an invalid event to a transaction on which every statement
// would fail.
func limitsFirst[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	var old T
	if err := box.InTx(ctx, func(_ context.Context, tx T) error { old = tx; return nil }); err != nil {
		t.Fatalf("InTx: %v", err)
	}
	ev := b.event("a")
	ev.Type = ""
	err := box.Write(ctx, old, ev)
	var field *waybill.FieldError
	if errors.Is(err, waybill.ErrTxDone) || !errors.As(err, &field) || field.Field != "Type" {
		t.Errorf("Write returned %v, want an error about the Type only", err)
	}
}

func laterChanges[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	payload := []byte(`{"total":9990}`)
	headers := map[string]string{"a": "1"}
	ev, each := b.event("a"), b.event("a")
	ev.Payload, ev.Headers = payload, headers
	each.Payload, each.Headers = payload, headers
	evs := []waybill.Event{ev, each}
	heard := b.listen(b.DB.Outbox)
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		if _, err := box.WriteEach(ctx, tx, evs[1]); err != nil {
			return err
		}
		if err := box.Write(ctx, tx, evs[:1]...); err != nil {
			return err
		}
		copy(payload, "XXXXXXXXXXXXXX")
		headers["a"], headers["b"] = "2", "3"
		evs[0] = waybill.Event{}
		return b.insert(ctx, tx, "note")
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	same := func(what string, got waybill.Event) {
		if string(got.Payload) != `{"total":9990}` || !maps.Equal(got.Headers, map[string]string{"a": "1"}) {
			t.Errorf("%s has the payload %s and the headers %v: the caller's later changes", what, got.Payload, got.Headers)
		}
	}
	for _, row := range b.wantReady(ctx, t, each, ev) {
		same("the row", row.Event)
	}
	for _, c := range heard.heard() {
		for _, e := range c.Entries {
			same("the published event", e.Event)
		}
	}
}

// idsIncrease writes from several goroutines, one after another and
// concurrently.
func idsIncrease[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	write := func(n int) ([]waybill.ID, error) {
		evs := b.events(n, "a")
		for i := range evs {
			evs[i].ID = waybill.ID{}
		}
		var ids []waybill.ID
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			receipts, err := box.WriteEach(ctx, tx, evs...)
			for _, r := range receipts {
				ids = append(ids, r.ID)
			}
			return err
		})
		return ids, err
	}
	var last waybill.ID
	for range 8 { // each in its own goroutine, one after another
		done := make(chan error, 1)
		go func() {
			ids, err := write(2)
			for _, id := range ids {
				if slices.Compare(id[:], last[:]) <= 0 {
					t.Errorf("id %s was made after %s and is not larger", id, last)
				}
				last = id
			}
			done <- err
		}()
		if err := <-done; err != nil {
			t.Fatalf("InTx: %v", err)
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[waybill.ID]bool{}
	for range 4 {
		wg.Go(func() {
			var last waybill.ID
			for range 3 {
				ids, err := write(5)
				if err != nil {
					t.Errorf("InTx: %v", err)
					return
				}
				mu.Lock()
				for _, id := range ids {
					if seen[id] || slices.Compare(id[:], last[:]) <= 0 {
						t.Errorf("id %s is not new, or not larger than %s before it", id, last)
					}
					seen[id], last = true, id
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, row := range b.ready(ctx, t) {
		delete(seen, row.ID)
	}
	if len(seen) > 0 {
		t.Errorf("%d ids were reported and have no row", len(seen))
	}
}

package drivertest

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// largeChecks check transactions that exceed a packet and a parameter list.
func largeChecks[T any]() []check[T] {
	return []check[T]{
		{row: "large_transactions", name: "20000 events", fresh: true, large: true, run: manyEvents[T]},
		{row: "large_transactions", name: "40 MiB", fresh: true, large: true, run: muchPayload[T]},
	}
}

func manyEvents[T any](ctx context.Context, t tb, b *env[T]) {
	n := 20_000
	if b.short {
		n = 2_000
	}
	// Most events in one write, the rest in small ones after it, all of one
	// aggregate: one order.
	evs := b.events(n, "a")
	evs[n/2].DedupKey = b.unique("k") // in the middle of the large write
	large := n * 9 / 10
	box := b.box(t)
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		if err := box.Write(ctx, tx, evs[:large]...); err != nil {
			return err
		}
		for part := range slices.Chunk(evs[large:], 100) {
			if err := box.Write(ctx, tx, part...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	if b.DB.Relay == nil {
		rows := b.wantReady(ctx, t, evs...)
		for i := range min(len(rows), n) {
			wantEvent(t, rows[i], evs[i])
		}
		return
	}
	cursor := driver.Cursor{Lane: b.laneOf(evs[0]), UpTo: 1 << 62}
	var seen []driver.RowRef
	for {
		page := b.sweep(ctx, t, 5000, cursor)
		seen = append(seen, page...)
		if len(page) < 5000 {
			break
		}
		cursor.After = page[len(page)-1].Seq
	}
	if len(seen) != n {
		t.Fatalf("%d events were written in one transaction, and %d are ready", n, len(seen))
	}
	for i, key := range seen {
		if key.ID != evs[i].ID {
			t.Fatalf("event %d of %d is %s, want %s", i, n, key.ID, evs[i].ID)
		}
	}
	// Samples suffice to check the columns, also where the write was split.
	var samples []store.Key
	var want []waybill.Event
	for i := 0; i < n; i += 97 {
		samples, want = append(samples, seen[i].Key), append(want, evs[i])
	}
	page, err := b.DB.Relay.Load(ctx, samples)
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	wantIDs(t, "Load", page.Rows, want)
	for i := range min(len(page.Rows), len(want)) {
		wantEvent(t, page.Rows[i], want[i])
	}
}

func muchPayload[T any](ctx context.Context, t tb, b *env[T]) {
	n := 40
	if b.short {
		n = 6
	}
	evs := b.events(n, "a")
	for i := range evs {
		evs[i].ContentType = "application/octet-stream"
		evs[i].Payload = bytes.Repeat([]byte(fmt.Sprintf("%07d\xff", i)), waybill.MaxPayload/8)
	}
	box := b.box(t)
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		if err := box.Write(ctx, tx, evs[:n/2]...); err != nil { // in one call
			return err
		}
		for _, ev := range evs[n/2:] { // and in many
			if err := box.Write(ctx, tx, ev); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	if b.DB.Relay == nil {
		rows := b.wantReady(ctx, t, evs...)
		for i := range min(len(rows), n) {
			if !bytes.Equal(rows[i].Event.Payload, evs[i].Payload) {
				t.Fatalf("the payload of event %d of %d was changed", i, n)
			}
		}
		return
	}
	cursor := driver.Cursor{Lane: b.laneOf(evs[0])}
	for i := 0; i < n; {
		page, err := b.DB.Relay.Fetch(ctx, []driver.Cursor{cursor}, 5)
		if err != nil {
			t.Fatalf("Fetch: %v", err)
		}
		if len(page.Rows) == 0 {
			t.Fatalf("%d of %d events are ready", i, n)
		}
		for _, row := range page.Rows {
			if row.ID != evs[i].ID || !bytes.Equal(row.Event.Payload, evs[i].Payload) {
				t.Fatalf("event %d of %d did not come back as it was, where it was", i, n)
			}
			cursor.After = row.Seq
			i++
		}
	}
}

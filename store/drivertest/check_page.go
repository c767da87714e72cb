package drivertest

import (
	"context"
	"errors"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// pageChecks check the size of pages.
func pageChecks[T any]() []check[T] {
	return []check[T]{{row: "page_size", name: "large rows", fresh: true, large: true, run: largePages[T]}}
}

// largePages reads rows that are too large together with every kind of read,
// and then as many as a page can hold.
func largePages[T any](ctx context.Context, t tb, b *env[T]) {
	const many, fit = 12, driver.MaxPageBytes/waybill.MaxPayload - 1 // headers take some of the room
	evs := b.events(many, "a")
	for i := range evs {
		evs[i].ContentType, evs[i].Payload, evs[i].Priority = "application/octet-stream", make([]byte, waybill.MaxPayload), 1
	}
	b.write(ctx, t, evs...)
	cursor := driver.Cursor{Lane: b.laneOf(evs[0])}
	refs := b.sweep(ctx, t, many, cursor)
	if len(refs) != many {
		t.Fatalf("Sweep returned %d rows of %d", len(refs), many)
	}
	keys := func(n int) (keys []store.Key) {
		for _, ref := range refs[:n] {
			keys = append(keys, ref.Key)
		}
		return keys
	}
	read := func(what string, page func(limit int) (driver.Page, error)) {
		if p, err := page(many); !errors.Is(err, driver.ErrPageTooLarge) || len(p.Rows) > 0 {
			t.Errorf("%s of %d MiB returned %d rows and the error %v, want ErrPageTooLarge", what, many, len(p.Rows), err)
		}
		for _, limit := range []int{fit, 1} {
			p, err := page(limit)
			if err != nil {
				t.Errorf("%s of %d MiB: %v", what, limit, err)
			}
			wantIDs(t, fmt.Sprintf("%s of %d MiB", what, limit), p.Rows, evs[:limit])
		}
	}
	db := b.DB.Relay
	read("Fetch", func(n int) (driver.Page, error) { return db.Fetch(ctx, []driver.Cursor{cursor}, n) })
	read("Load", func(n int) (driver.Page, error) { return db.Load(ctx, keys(n)) })
	read("FetchAggregate", func(n int) (driver.Page, error) { return db.FetchAggregate(ctx, refs[0].Aggregate, cursor, n) })
	// A store may omit rows with a priority.
	if p, err := db.FetchPriority(ctx, []driver.Cursor{cursor}, many); err != nil && !errors.Is(err, driver.ErrPageTooLarge) || len(p.Rows) > fit+1 {
		t.Errorf("FetchPriority returned %d MiB and the error %v", len(p.Rows), err)
	}
	var retry []driver.Result
	for _, ref := range refs {
		retry = append(retry, driver.Result{Lane: ref.Lane, ID: ref.ID, Seq: ref.Seq})
	}
	b.settle(ctx, t, driver.Settlement{Leases: b.own(ctx, t), Retry: retry})
	b.await(ctx, t, "the events become due", func() bool {
		p, err := db.Due(ctx, b.allLanes(), 1)
		return err == nil && len(p.Rows) == 1
	})
	read("Due", func(n int) (driver.Page, error) { return db.Due(ctx, b.allLanes(), n) })
}

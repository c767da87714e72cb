package drivertest

import (
	"context"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// listsApplied lists the events that a group applied last, if the store has an
// index for that.
func listsApplied[T any](ctx context.Context, t tb, b *env[T]) {
	db, ok := b.DB.Inbox.(driver.Applied)
	if !ok {
		t.Skipf("the store does not list the last events of a group")
	}
	var in []store.InboxEntry
	for range 5 {
		in = append(in, b.intake("applied"))
		b.accept(ctx, t, waybill.NewID(), in[len(in)-1])
		b.tick(ctx, t)
	}
	b.accept(ctx, t, waybill.NewID(), b.intake("Applied"))
	dead := b.intake("applied")
	if ok, err := b.DB.Inbox.FailEvent(ctx, dead, driver.Failure{Owner: waybill.NewID(), Dead: true, Error: "boom"}); !ok || err != nil {
		t.Fatalf("FailEvent: %v, %v", ok, err)
	}
	slices.Reverse(in)
	for _, limit := range []int{0, 2, 5, 10} {
		got, err := db.ListApplied(ctx, in[0].Group, limit)
		if err != nil || len(got) != min(limit, len(in)) {
			t.Fatalf("ListApplied of %d returned %d records, %v", limit, len(got), err)
		}
		for i, r := range got {
			want(t, "the entry of the record", r.InboxEntry, in[i])
			if r.State != store.InboxSucceeded || r.ProcessedAt.IsZero() || r.Now.Before(r.ProcessedAt) {
				t.Errorf("record %d is %+v", i, r)
			}
		}
	}
	if got, err := db.ListApplied(ctx, b.unique("another"), 10); len(got) != 0 || err != nil {
		t.Errorf("ListApplied of another group returned %+v, %v", got, err)
	}
}

package admin_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/internal/testaudit"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// readsOnly is a store whose account may not change dead letters.
type readsOnly struct{ driver.OutboxAdmin }

func (readsOnly) NoteCauses(context.Context, int) (int, error) {
	return 0, errors.New("permission denied")
}

func (r readsOnly) CountCauses(ctx context.Context, limit int) ([]driver.CauseCount, error) {
	return r.OutboxAdmin.(driver.Causes).CountCauses(ctx, limit)
}

func (r readsOnly) ListCause(ctx context.Context, cause string, after int64, limit int) ([]store.Record, error) {
	return r.OutboxAdmin.(driver.Causes).ListCause(ctx, cause, after, limit)
}

// TestCauses groups dead letters, and changes some of one group.
func TestCauses(t *testing.T) {
	db, err := memstore.New(memstore.Config{Lanes: 1})
	if err != nil {
		t.Fatal(err)
	}
	boom := testaudit.Bury(t, db, 7, "order 1 is unknown")
	other := testaudit.Bury(t, db, 3, "connection refused")
	ops, err := admin.NewOutbox(db, admin.Config{BatchSize: 2})
	if err != nil {
		t.Fatal(err)
	}
	reader := newAdmin(t, readsOnly{db.Driver().OutboxAdmin}, observe.Hooks{})
	if found, err := reader.Causes(t.Context(), 10); err != nil || len(found.Groups) != 0 || found.Unknown != 10 {
		t.Errorf("an account that only reads finds %+v, %v; want 10 letters without a cause", found, err)
	}
	found, err := ops.Causes(t.Context(), 10)
	if err != nil || found.Unknown != 0 || found.More || len(found.Groups) != 2 {
		t.Fatalf("Causes returned %+v, %v", found, err)
	}
	if g := found.Groups[0]; g.Text != "order # is unknown" || g.Letters != 7 || g.Example.ID != boom[0] || g.ID != driver.CauseOf("order 99 is unknown") ||
		g.First.IsZero() || g.Last.Before(g.First) {
		t.Errorf("the first group is %+v", g)
	}
	if first, err := ops.Causes(t.Context(), 1); err != nil || len(first.Groups) != 1 || !first.More {
		t.Errorf("the first of two causes: %+v, %v", first, err)
	}
	cause := found.Groups[0].ID
	var steps []admin.Progress
	replayed, err := ops.ReplayCause(t.Context(), cause, 3, func(p admin.Progress) { steps = append(steps, p) })
	if err != nil || !slices.Equal(replayed.IDs, boom[:3]) || !slices.Equal(steps, []admin.Progress{{Done: 2, Total: 3}, {Done: 3, Total: 3}}) {
		t.Errorf("ReplayCause of 3 replayed %v, %v, in the steps %v", replayed.IDs, err, steps)
	}
	if n, err := ops.CountCause(t.Context(), cause); n != 4 || err != nil {
		t.Errorf("CountCause: %d, %v; want 4", n, err)
	}
	gone, err := ops.DiscardCause(t.Context(), cause, 0, nil)
	if err != nil || !slices.Equal(gone, boom[3:]) {
		t.Errorf("DiscardCause discarded %v, %v", gone, err)
	}
	page, err := ops.ListCause(t.Context(), found.Groups[1].ID, 0, 2)
	if err != nil || len(page.Records) != 2 || page.Next == 0 || page.Records[0].ID != other[0] {
		t.Errorf("ListCause returned %+v, %v", page, err)
	}
	for _, id := range []string{"", "000000000000"} {
		if r, err := ops.ReplayCause(t.Context(), id, 0, nil); err != nil || len(r.IDs) > 0 {
			t.Errorf("ReplayCause of %q replayed %v, %v", id, r.IDs, err)
		}
	}
	plain := newAdmin(t, withoutCauses{db.Driver().OutboxAdmin}, observe.Hooks{})
	if _, err := plain.Causes(t.Context(), 1); !errors.Is(err, admin.ErrNoCauses) {
		t.Errorf("a store without causes returned %v", err)
	}
}

// withoutCauses is a store that keeps no causes.
type withoutCauses struct{ driver.OutboxAdmin }

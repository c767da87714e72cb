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
	of := store.Filter{Cause: cause}
	replayed, err := ops.ReplayAll(t.Context(), of, admin.DeadLetterOptions{Limit: 3, Progress: func(p admin.Progress) { steps = append(steps, p) }})
	if err != nil || !slices.Equal(replayed.IDs, boom[:3]) || !slices.Equal(steps, []admin.Progress{{Done: 2, Total: 3}, {Done: 3, Total: 3}}) {
		t.Errorf("ReplayAll of 3 replayed %v, %v, in the steps %v", replayed.IDs, err, steps)
	}
	for limit, want := range map[int64]int64{0: 4, 3: 3, 5: 4} {
		if n, err := ops.CountDeadLetters(t.Context(), of, admin.DeadLetterOptions{Limit: limit}); n != want || err != nil {
			t.Errorf("CountDeadLetters, at most %d: %d, %v; want %d", limit, n, err, want)
		}
	}
	gone, err := ops.DiscardAll(t.Context(), of, admin.DeadLetterOptions{})
	if err != nil || !slices.Equal(gone, boom[3:]) {
		t.Errorf("DiscardAll discarded %v, %v", gone, err)
	}
	page, err := ops.List(t.Context(), store.Dead, store.Filter{Cause: found.Groups[1].ID}, 0, 2)
	if err != nil || len(page.Records) != 2 || page.Next == 0 || page.Records[0].ID != other[0] {
		t.Errorf("List returned %+v, %v", page, err)
	}
	if r, err := ops.ReplayAll(t.Context(), store.Filter{Cause: "000000000000"}, admin.DeadLetterOptions{}); err != nil || len(r.IDs) > 0 {
		t.Errorf("ReplayAll of an unknown cause replayed %v, %v", r.IDs, err)
	}
	plain := newAdmin(t, withoutCauses{db.Driver().OutboxAdmin}, observe.Hooks{})
	for name, call := range map[string]func() error{
		"Causes":     func() error { _, err := plain.Causes(t.Context(), 1); return err },
		"List":       func() error { _, err := plain.List(t.Context(), store.Dead, of, 0, 1); return err },
		"DiscardAll": func() error { _, err := plain.DiscardAll(t.Context(), of, admin.DeadLetterOptions{}); return err },
	} {
		if err := call(); !errors.Is(err, admin.ErrNoCauses) {
			t.Errorf("%s of a store without causes returned %v", name, err)
		}
	}
}

// withoutCauses is a store that keeps no causes.
type withoutCauses struct{ driver.OutboxAdmin }

package admin_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestGroups: an operator lists groups and records close to the attempt limit,
// and redrives dead ones.
func TestGroups(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(db, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var told []observe.Group
	ops, err := admin.NewInbox(db, admin.Config{BatchSize: 2, Observe: observe.Hooks{Groups: func(info observe.GroupsInfo) { told = info.Groups }}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	g := in.MustGroup("G", inbox.Options{MaxAttempts: 2, BackoffBase: time.Hour, BackoffMax: time.Hour})
	fail := func(context.Context, *memstore.Tx, waybill.Event) error { return errors.New("no") }
	failed := eventfill.Defaults(waybill.NewEvent("A", 0))
	if _, err := g.Consume(ctx, failed, fail); err == nil {
		t.Fatal("it did not fail")
	}
	var dead []waybill.ID
	for i := range 5 {
		ev := eventfill.Defaults(waybill.NewEvent("A", i))
		dead = append(dead, ev.ID)
		_, _ = g.Consume(ctx, ev, func(context.Context, *memstore.Tx, waybill.Event) error {
			return waybill.Permanent(errors.New("never"))
		})
	}
	stats, err := ops.Stats(ctx, false)
	if err != nil || len(stats) != 1 || stats[0].Failed != 1 || stats[0].Dead != 5 || len(told) != 1 || told[0].Dead != 5 {
		t.Errorf("the groups stand at %+v, %v; the observer was told %+v", stats, err, told)
	}
	if near, err := ops.Near(ctx, "G", 2, 1, 10); err != nil || len(near) != 1 || near[0].Event != failed.ID {
		t.Errorf("close to the limit are %+v, %v", near, err)
	}
	if near, err := ops.Near(ctx, "G", 20, 1, 10); err != nil || len(near) != 0 {
		t.Errorf("far from the limit are %+v, %v", near, err)
	}
	page, err := ops.List(ctx, store.RecordFilter{States: []store.InboxState{store.InboxDead}}, "", waybill.ID{}, 3)
	if err != nil || len(page.Records) != 3 || !page.More {
		t.Fatalf("the first page is %+v, %v", page, err)
	}
	page, err = ops.List(ctx, store.RecordFilter{States: []store.InboxState{store.InboxDead}}, page.Group, page.Key, 3)
	if err != nil || len(page.Records) != 2 || page.More {
		t.Errorf("the second page is %+v, %v", page, err)
	}
	if n, err := ops.Redrive(ctx, "G", dead[0], dead[1], dead[2], waybill.NewID()); err != nil || n != 3 {
		t.Errorf("redriven: %d, %v", n, err)
	}
	var steps []admin.Progress
	if n, err := ops.RedriveAll(ctx, "G", func(p admin.Progress) { steps = append(steps, p) }); err != nil || n != 2 || len(steps) != 1 {
		t.Errorf("redriven: %d, %v, in %d steps", n, err, len(steps))
	}
	if rec, err := ops.Find(ctx, "G", dead[4]); err != nil || rec.State != store.InboxFailed || rec.Attempts != 0 {
		t.Errorf("the record is %+v, %v", rec, err)
	}
	if _, err := ops.Find(ctx, "G", waybill.NewID()); !errors.Is(err, admin.ErrNotFound) {
		t.Errorf("a record that is not there: %v", err)
	}
	if _, err := admin.NewInbox[any](nil, admin.Config{}); err == nil {
		t.Error("a nil store was accepted")
	}
}

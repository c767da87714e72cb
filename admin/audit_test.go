package admin_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/internal/testaudit"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestAudit makes every change of this package that a store without traffic
// permits, and reads the records.
func TestAudit(t *testing.T) {
	db, err := memstore.New(memstore.Config{Lanes: 4})
	if err != nil {
		t.Fatal(err)
	}
	ids := testaudit.Bury(t, db, 45, "boom")
	cfg := admin.Config{BatchSize: 10}
	ops, err := admin.NewOutbox(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	to, err := admin.NewDestinations(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	audit, err := admin.NewAudit(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	purger, err := ops.Purger(admin.Retention{History: time.Nanosecond, Dead: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx := admin.WithActor(t.Context(), admin.Actor{Name: "alice", Via: "http", Address: "[::1]:1"})
	first := ids[0].String()
	for _, c := range []struct {
		action, destination, target string
		count                       int64
		change                      func(ctx context.Context) error
	}{
		{"unblock", "", first, 1, func(ctx context.Context) error { _, err := ops.Unblock(ctx, ids[0]); return err }},
		{"replay", "", first, 1, func(ctx context.Context) error { _, err := ops.Replay(ctx, ids[0]); return err }},
		{"discard", "", strings.Join(texts(ids[1:21]), " ") + " and 2 more", 22, func(ctx context.Context) error {
			_, err := ops.Discard(ctx, ids[1:23]...)
			return err
		}},
		{"discard", "", "type=OrderPlaced", 22, func(ctx context.Context) error {
			_, err := ops.DiscardAll(ctx, store.Filter{Type: "OrderPlaced"}, admin.DeadLetterOptions{})
			return err
		}},
		{"set_lanes", "", "4", 1, func(ctx context.Context) error { return ops.SetLanes(ctx, 4) }},
		{"restored", "", "force=yes", 1, func(ctx context.Context) error { _, err := ops.Restored(ctx, true); return err }},
		{"destination_add", "billing", "", 1, func(ctx context.Context) error { _, _, err := to.Add(ctx, "billing"); return err }},
		{"pause", "billing", "its database moves", 1, func(ctx context.Context) error {
			_, err := to.Pause(ctx, "billing", "its database moves")
			return err
		}},
		{"resume", "billing", "", 1, func(ctx context.Context) error { _, err := to.Resume(ctx, "billing"); return err }},
		{"probe", "billing", "", 1, func(ctx context.Context) error { return to.Probe(ctx, "billing") }},
		{"destination_remove", "billing", "", 1, func(ctx context.Context) error { _, err := to.Remove(ctx, "billing"); return err }},
	} {
		if err := c.change(ctx); err != nil {
			t.Fatalf("%s: %v", c.action, err)
		}
		page, err := audit.List(t.Context(), driver.AuditFilter{}, driver.AuditCursor{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		got := page.Records[0]
		want := driver.AuditRecord{
			ID: got.ID, At: got.At, Actor: "alice", Via: "http", Address: "[::1]:1", Action: c.action, Destination: c.destination, Target: c.target, Count: c.count,
		}
		if got != want {
			t.Errorf("the last record is %+v, want %+v", got, want)
		}
	}
	page, err := audit.List(t.Context(), driver.AuditFilter{}, driver.AuditCursor{}, 6)
	if err != nil || len(page.Records) != 6 || !page.More {
		t.Fatalf("the first page has %d records, %v, %v", len(page.Records), page.More, err)
	}
	rest, err := audit.List(t.Context(), driver.AuditFilter{}, page.Next, 6)
	if err != nil || len(rest.Records) != 5 || rest.More || slices.Contains(rest.Records, page.Records[5]) {
		t.Errorf("the second page has %d records, %v, %v", len(rest.Records), rest.More, err)
	}

	// Purges are recorded for an actor only; other changes always.
	before := len(testaudit.Bury(t, db, 2, "boom"))
	if gone, err := purger.Once(t.Context(), nil); err != nil || gone.Dead != before {
		t.Fatalf("Once: %+v, %v", gone, err)
	}
	if all, err := audit.List(t.Context(), driver.AuditFilter{Action: "purge"}, driver.AuditCursor{}, 0); err != nil || len(all.Records) > 0 {
		t.Errorf("a purge by no actor left %+v, %v", all.Records, err)
	}
	last := testaudit.Bury(t, db, 3, "boom")
	if _, err := ops.Discard(t.Context(), last[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := purger.Once(ctx, nil); err != nil {
		t.Fatal(err)
	}
	all, err := audit.List(t.Context(), driver.AuditFilter{}, driver.AuditCursor{}, 2)
	if err != nil || all.Records[0].Action != "purge" || all.Records[0].Count != 2 || all.Records[0].Target != "history=1ns dead=1ns" ||
		all.Records[1].Via != "go" || all.Records[1].Actor == "" || all.Records[1].Address == "" {
		t.Errorf("the last records are %+v, %v", all.Records, err)
	}
}

func texts(ids []waybill.ID) []string {
	var out []string
	for _, id := range ids {
		out = append(out, id.String())
	}
	return out
}

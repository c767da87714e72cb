// Package testaudit checks that a change of an operator and its record in the
// audit commit together.
package testaudit

import (
	"context"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Bury writes n unordered events and makes them dead letters that block, with
// an error.
func Bury[T any](t *testing.T, db driver.Store[T], n int, text string) []waybill.ID {
	t.Helper()
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var evs []waybill.Event
	var ids []waybill.ID
	for range n {
		ev := waybill.NewEvent("OrderPlaced", 1)
		ev.ID = waybill.NewID()
		evs, ids = append(evs, ev), append(ids, ev.ID)
	}
	if err := box.InTx(t.Context(), func(ctx context.Context, tx T) error { return box.Write(ctx, tx, evs...) }); err != nil {
		t.Fatal(err)
	}
	relay := db.Driver().Relay
	node := store.Node{ID: waybill.NewID(), Relay: "test"}
	m, err := relay.Heartbeat(t.Context(), node, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var lanes []int
	var from []driver.Cursor
	for _, l := range m.Lanes {
		lanes, from = append(lanes, l.Lane), append(from, driver.Cursor{Lane: l.Lane})
	}
	leases, err := relay.Acquire(t.Context(), node, lanes, 7)
	if err != nil {
		t.Fatal(err)
	}
	page, err := relay.Fetch(t.Context(), from, n)
	if err != nil {
		t.Fatal(err)
	}
	s := driver.Settlement{Leases: leases}
	for _, row := range page.Rows {
		s.Dead = append(s.Dead, driver.Result{Lane: row.Lane, ID: row.ID, Seq: row.Seq, Attempts: 1, Holds: true, Error: text})
	}
	if settled, err := relay.Settle(t.Context(), s); err != nil || len(settled.Moved) != n {
		t.Fatalf("Settle: %d of %d, %v", len(settled.Moved), n, err)
	}
	if err := relay.Leave(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	return ids
}

// CommitsTogether makes changes after drop has removed the table of the audit:
// each fails, and changes nothing.
func CommitsTogether[T any](t *testing.T, db driver.Store[T], drop func()) {
	t.Helper()
	ids := Bury(t, db, 2, "boom")
	roles := db.Driver()
	if _, err := roles.Backlogs.AddDestinations(t.Context(), "billing"); err != nil {
		t.Fatal(err)
	}
	before, err := roles.OutboxAdmin.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	drop()
	ctx := driver.WithAudit(t.Context(), driver.AuditRecord{ID: waybill.NewID(), Actor: "alice", Action: "change"})
	for name, change := range map[string]func() error{
		"Replay":            func() error { _, err := roles.OutboxAdmin.Replay(ctx, ids); return err },
		"Discard":           func() error { _, err := roles.OutboxAdmin.Discard(ctx, ids); return err },
		"Unblock":           func() error { _, err := roles.OutboxAdmin.Unblock(ctx, ids); return err },
		"Purge":             func() error { _, err := roles.OutboxAdmin.Purge(ctx, store.Dead, 0, 10); return err },
		"PauseDestination":  func() error { _, err := roles.Backlogs.PauseDestination(ctx, "billing", "why"); return err },
		"RemoveDestination": func() error { _, err := roles.Backlogs.RemoveDestination(ctx, "billing"); return err },
		"AddDestinations":   func() error { _, err := roles.Backlogs.AddDestinations(ctx, "shipping"); return err },
		"Restored":          func() error { return roles.Restorer.Restored(ctx, false) },
		"SetLanes":          func() error { return roles.OutboxAdmin.SetLanes(ctx, len(before.Lanes)) },
	} {
		if err := change(); err == nil {
			t.Errorf("%s succeeded without its record", name)
		}
	}
	after, err := roles.OutboxAdmin.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if after.Dead != before.Dead || after.Holding != before.Holding || after.Scheduled != before.Scheduled {
		t.Errorf("changes without their records went through: %+v, before %+v", after, before)
	}
	for i, l := range after.Lanes {
		if l.Epoch != before.Lanes[i].Epoch {
			t.Errorf("lane %d has the epoch %d, before %d", i, l.Epoch, before.Lanes[i].Epoch)
		}
	}
	all, err := roles.Backlogs.AddDestinations(t.Context())
	if err != nil || len(all) != 1 || all[0].IsPaused() {
		t.Errorf("the destinations are %+v, %v; want one that is not paused", all, err)
	}
	// A program that records nothing works on tables without the audit.
	if gone, err := roles.OutboxAdmin.Discard(t.Context(), ids); err != nil || len(gone) != len(ids) {
		t.Errorf("without a record, Discard returned %v, %v", gone, err)
	}
}

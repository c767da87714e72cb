package mysqlstore_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// seqs returns the seqs of events from all tables, in the order of the events.
func seqs(t *testing.T, db *sql.DB, evs []waybill.Event) []int64 {
	t.Helper()
	out := make([]int64, len(evs))
	for i, ev := range evs {
		out[i] = ask[int64](t, db, `SELECT COALESCE((SELECT seq FROM waybill_outbox WHERE id = ?), (SELECT seq FROM waybill_delayed WHERE id = ?), 0)`, ev.ID[:], ev.ID[:])
	}
	return out
}

// TestDelayedInTheirPlace: delayed events are written among others. Each has
// the seq of its position in the write and is in the table that the database's
// clock selects; earlier writes of the transaction stay unchanged.
func TestDelayedInTheirPlace(t *testing.T) { onBoth(t, testDelayedInTheirPlace) }

func testDelayedInTheirPlace(t *testing.T) {
	s, db := openStore(t, param("time_zone", "'+07:00'"))
	write(t, s, db, keyed("taken"))
	absorbed, late, overdue, lateKeyed := keyed("taken"), event("a"), event("a"), keyed("late")
	late.Delay = time.Hour
	overdue.AvailableAt = time.Now().Add(-time.Hour)
	lateKeyed.AvailableAt = time.Now().Add(2 * time.Hour).UTC().Truncate(time.Microsecond)
	evs := []waybill.Event{event("a"), late, overdue, event("b"), lateKeyed, event("a")}

	tx := begin(t, db, nil)
	exec(t, tx, `INSERT INTO business (note) VALUES ('before')`)
	exec(t, tx, `SAVEPOINT mine`)
	placed, err := s.Driver().Outbox.Append(t.Context(), tx, append([]waybill.Event{absorbed}, evs...))
	if err != nil {
		t.Fatal(err)
	}
	gone := event("a")
	gone.Delay = time.Hour
	exec(t, tx, `SAVEPOINT other`)
	if _, err := s.Driver().Outbox.Append(t.Context(), tx, []waybill.Event{gone}); err != nil {
		t.Fatal(err)
	}
	exec(t, tx, `ROLLBACK TO SAVEPOINT other`)
	exec(t, tx, `RELEASE SAVEPOINT mine`)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}

	if placed[0].ID == absorbed.ID {
		t.Error("an event whose key is taken was not absorbed")
	}
	if n := ask[int](t, db, `SELECT COUNT(*) FROM business`); n != 1 {
		t.Errorf("%d rows of the transaction's own are left", n)
	}
	numbers := seqs(t, db, append(evs, gone))
	for i := range evs {
		if i > 0 && numbers[i] <= numbers[i-1] {
			t.Errorf("the numbers are %v, not in the order of the write", numbers)
		}
	}
	if numbers[len(evs)] != 0 {
		t.Error("a delayed event survived a rollback to a savepoint")
	}
	for i, ev := range evs {
		rec, err := s.Driver().OutboxAdmin.Find(t.Context(), ev.ID)
		if err != nil || len(rec) != 1 {
			t.Fatalf("event %d: %+v, %v", i, rec, err)
		}
		row, want := rec[0], store.Ready
		if i == 1 || i == 4 {
			want = store.Delayed
		}
		if row.State != want || row.Lane != placed[i+1].Lane || row.Event.AggregateID != ev.AggregateID || string(row.Event.Payload) != string(ev.Payload) || row.Event.SchemaVersion != 1 {
			t.Errorf("event %d is %+v", i, row)
		}
		switch wait := row.DueAt.Sub(row.CreatedAt); {
		case i == 1 && wait != time.Hour:
			t.Errorf("it waits for %v", wait)
		case i == 4 && !row.DueAt.Equal(lateKeyed.AvailableAt):
			t.Errorf("it waits until %v, want %v", row.DueAt, lateKeyed.AvailableAt)
		}
		if now := clock(t, s.Driver().Relay); now.Sub(row.CreatedAt) > 5*time.Minute || now.Before(row.CreatedAt) {
			t.Errorf("event %d was written at %v, and it is %v", i, row.CreatedAt, now)
		}
	}
	if n := ask[int](t, db, `SELECT COUNT(*) FROM waybill_outbox WHERE available_at IS NOT NULL`); n != 0 {
		t.Errorf("%d ready events have a due time", n)
	}
}

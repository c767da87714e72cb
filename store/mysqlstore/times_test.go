package mysqlstore_test

import (
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// A producer with plain SQL may write any time that the server accepts, even
// "zero" times in a non-strict session. None of them blocks the reading of
// other events, and delayed events are delivered late.
func TestExtremeTimes(t *testing.T) { onBoth(t, testExtremeTimes) }

func testExtremeTimes(t *testing.T) {
	s, db := openStore(t, func(c *mysql.Config) { c.Params = map[string]string{"sql_mode": "''"} })
	_, leases := own(t, s)
	const zero, last, first = "0000-00-00 00:00:00", "9999-12-31 23:59:59.999999", "1000-01-01 00:00:00"
	for _, column := range []string{"occurred_at", "available_at", "created_at"} {
		for _, value := range []string{zero, last, first, "0000-01-01 00:00:00", "2024-00-00 00:00:00"} {
			exec(t, db, "INSERT INTO waybill_outbox (type, aggregate_type, aggregate_id, payload, "+column+") VALUES (?, 'thing', 'x', '', ?)", column+" "+value, value)
		}
	}
	write(t, s, db, event("x"))
	rows := ready(t, s)
	if len(rows) != 16 {
		t.Fatalf("%d rows are read, want 16", len(rows))
	}
	now := clock(t, s.Driver().Relay)
	for _, r := range rows {
		if late := r.DueAt.After(now); late != (r.Event.Type == "available_at "+last) {
			t.Errorf("%s: due at %v", r.Event.Type, r.DueAt)
		}
	}
	// Each event can be deferred, as a relay does with events that are not due,
	// found again, and settled.
	var retry []driver.Result
	for _, r := range rows {
		retry = append(retry, driver.Result{Lane: r.Lane, ID: r.ID, Delay: max(r.DueAt.Sub(now), 0)})
	}
	settled, err := s.Driver().Relay.Settle(t.Context(), driver.Settlement{Leases: leases, Retry: retry})
	if err != nil || len(settled.Moved) != 16 {
		t.Fatalf("Settle: %d moved, %v", len(settled.Moved), err)
	}
	page, err := s.Driver().Relay.Due(t.Context(), allLanes(), 100)
	if err != nil || len(page.Rows) != 15 {
		t.Fatalf("Due: %d rows, %v; want 15", len(page.Rows), err)
	}
	if page.Next.Before(now.Add(100 * 365 * 24 * time.Hour)) {
		t.Errorf("the next is due at %v", page.Next)
	}
	if list, err := s.Driver().OutboxAdmin.List(t.Context(), store.Delayed, store.Filter{}, 0, 100); err != nil || len(list) != 16 {
		t.Errorf("List: %d, %v", len(list), err)
	}
	if _, err := s.Driver().OutboxAdmin.Stats(t.Context()); err != nil {
		t.Error(err)
	}
}

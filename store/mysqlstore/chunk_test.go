package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

func TestPacketBytes(t *testing.T) {
	for allowed, want := range map[int64]int{1024: 64 << 10, 1 << 20: 256 << 10, 16 << 20: 4 << 20, 1 << 30: 4 << 20} {
		if got := mysqlstore.PacketBytes(allowed); got != want {
			t.Errorf("packets of %d bytes: %d, want %d", allowed, got, want)
		}
	}
}

// A write keeps the order of its events and is all or nothing, however it is
// split, prepared or not.
func TestSplitWrites(t *testing.T) { onBoth(t, testSplitWrites) }

func testSplitWrites(t *testing.T) {
	s, db := openStore(t, nil)
	box := newBox(t, s)
	for round := range 3 { // prepared from the second round on
		for _, n := range []int{1, 2, 99, 100, 101, 250, 1000, 1001, 2300} {
			if round == 2 {
				if err := s.ShrinkPackets(t.Context(), 1024); err != nil {
					t.Fatal(err)
				}
			}
			evs := make([]waybill.Event, n)
			for i := range evs {
				evs[i] = event("a")
				switch {
				case n == 250 && i%7 == 0:
					// Another shape, and one that cannot be prepared.
					evs[i].TenantID, evs[i].Headers = "t", map[string]string{"a": "ä"}
				case n == 1001 && i%3 == 0:
					evs[i].Delay = 1 << 50
				}
			}
			err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error { return box.Write(ctx, tx, evs...) })
			if err != nil {
				t.Fatalf("%d events: %v", n, err)
			}
			rows := ready(t, s)
			slices.SortFunc(rows, func(a, b store.Row) int { return int(a.Seq - b.Seq) })
			var got, want []waybill.ID
			for _, row := range rows {
				got = append(got, row.ID)
			}
			for _, ev := range evs {
				if ev.Delay == 0 {
					want = append(want, ev.ID)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%d events: %d rows in another order", n, len(got))
			}
			exec(t, db, "DELETE FROM waybill_outbox")
			exec(t, db, "DELETE FROM waybill_delayed")
		}
	}
	// The last of many events is refused: none is written, although the
	// transaction continues.
	evs := make([]waybill.Event, 1500)
	for i := range evs {
		evs[i] = event("a")
	}
	evs[1499].ID = evs[0].ID
	tx := begin(t, db, nil)
	if _, err := s.Driver().Outbox.Append(t.Context(), tx, evs); err == nil {
		t.Error("a duplicate id is accepted")
	}
	last := event("a")
	if _, err := s.Driver().Outbox.Append(t.Context(), tx, []waybill.Event{last}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if rows := ready(t, s); len(rows) != 1 || rows[0].ID != last.ID {
		t.Errorf("%d rows, want the accepted one", len(rows))
	}
}

// Only a few statements are prepared, whatever the shapes of the events.
func TestFewStatementsArePrepared(t *testing.T) { onBoth(t, testFewStatementsArePrepared) }

func testFewStatementsArePrepared(t *testing.T) {
	s, _ := openStore(t, nil)
	box := newBox(t, s)
	for mask := range 64 {
		ev := event("")
		for bit, set := range []func(){
			func() { ev.AggregateID = "a" }, func() { ev.TenantID = "t" }, func() { ev.RoutingKey = "r" }, func() { ev.SchemaID = "s" },
			func() { ev.CorrelationID = "c" }, func() { ev.Priority = 1 },
		} {
			if mask&(1<<bit) != 0 {
				set()
			}
		}
		many := make([]waybill.Event, 100)
		for i := range many {
			many[i] = ev
			many[i].ID = waybill.NewID()
		}
		for _, evs := range [][]waybill.Event{{ev}, many} {
			err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				return errors.Join(box.Write(ctx, tx, evs...), errRollback)
			})
			if !errors.Is(err, errRollback) || len(err.Error()) > len(errRollback.Error()) {
				t.Fatal(err)
			}
		}
	}
	if n := s.Prepared(); n < 2 || n > 6 {
		t.Errorf("%d statements are prepared, want a few", n)
	}
}

package mysqlstore_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

func results(rows []store.Row) []driver.Result {
	var out []driver.Result
	for _, row := range rows {
		out = append(out, driver.Result{Lane: row.Lane, ID: row.ID, Seq: row.Seq, Replay: row.Replay, Attempts: 1, Error: "x"})
	}
	return out
}

// Discarded rows are skipped in every table, and the rest is settled.
func TestSettleWithoutWhatIsGone(t *testing.T) { onBoth(t, testSettleWithoutWhatIsGone) }

func testSettleWithoutWhatIsGone(t *testing.T) {
	s, db := openStore(t, nil)
	_, leases := own(t, s)
	var evs []waybill.Event
	for i := range 30 {
		ev := event(strings.Repeat("a", i+1))
		if i%3 == 0 {
			ev.Delay = time.Microsecond
		}
		evs = append(evs, ev)
	}
	write(t, s, db, evs...)
	for i, ev := range evs {
		if i%5 == 0 {
			exec(t, db, "DELETE FROM waybill_outbox WHERE id = ?", ev.ID[:])
			exec(t, db, "DELETE FROM waybill_delayed WHERE id = ?", ev.ID[:])
		}
	}
	settlement := driver.Settlement{Leases: leases, History: true}
	var want []waybill.ID
	for i, ev := range evs {
		r := driver.Result{Lane: driver.LaneOf("", "thing", ev.AggregateID, 32), ID: ev.ID, Attempts: 3, Error: "boom"}
		switch i % 4 {
		case 0:
			// Duplicates count once.
			settlement.Done = append(settlement.Done, r, r)
		case 1:
			settlement.Retry = append(settlement.Retry, r)
		case 2:
			settlement.Dead = append(settlement.Dead, r)
		case 3:
			r.Lane = (r.Lane + 1) % 32 // the wrong lane
			settlement.Done = append(settlement.Done, r)
			continue
		}
		if i%5 != 0 {
			want = append(want, ev.ID)
		}
	}
	settled, err := s.Driver().Relay.Settle(t.Context(), settlement)
	if err != nil {
		t.Fatal(err)
	}
	order := func(a, b waybill.ID) int { return slices.Compare(a[:], b[:]) }
	slices.SortFunc(settled.Moved, order)
	slices.SortFunc(want, order)
	if !slices.Equal(settled.Moved, want) || len(settled.Held) != 32 {
		t.Errorf("moved %d, want %d; held %d lanes", len(settled.Moved), len(want), len(settled.Held))
	}
	counts := map[string]int{}
	for _, table := range []string{"history", "dead", "delayed", "outbox"} {
		counts[table] = ask[int](t, db, "SELECT COUNT(*) FROM waybill_"+table)
	}
	total := counts["history"] + counts["dead"] + counts["delayed"] + counts["outbox"]
	if total != 24 || counts["history"]+counts["dead"] == 0 {
		t.Errorf("after it, of 24 rows: %v", counts)
	}
}

// A settlement and a take-over of the same lane: the take-over waits for the
// settlement in progress, and a later settlement finds the lane lost.
func TestTakeOverWaitsForTheLock(t *testing.T) { onBoth(t, testTakeOverWaitsForTheLock) }

func testTakeOverWaitsForTheLock(t *testing.T) {
	s, db := openStore(t, nil)
	old, leases := own(t, s)
	ev := event("a")
	write(t, s, db, ev)
	lane := driver.LaneOf("", "thing", "a", 32)
	// A settlement in progress: it has the lane's row locked as the procedure
	// does.
	under := begin(t, db, nil)
	exec(t, under, "SELECT lane FROM waybill_lane WHERE lane = ? LOCK IN SHARE MODE", lane)
	exec(t, db, "UPDATE waybill_node SET expires_at = UTC_TIMESTAMP(6) WHERE id = ?", old.ID[:])
	heir := store.Node{ID: waybill.NewID(), Relay: "test"}
	if _, err := s.Driver().Relay.Heartbeat(t.Context(), heir, time.Hour); err != nil {
		t.Fatal(err)
	}
	var taken []driver.Lease
	done := make(chan struct{})
	go func() {
		defer close(done)
		var err error
		if taken, err = s.Driver().Relay.Acquire(t.Context(), heir, []int{lane}, 5); err != nil {
			t.Error(err)
		}
	}()
	await(t, "the take-over is in progress", func() bool {
		return lockWaits(t, db) > 0
	})
	select {
	case <-done:
		t.Error("the take-over did not wait for the settlement")
	default:
	}
	if err := under.Commit(); err != nil {
		t.Fatal(err)
	}
	<-done
	if len(taken) != 1 || !taken[0].Unclean || taken[0].Window != 7 || taken[0].Epoch != leases[lane].Epoch+1 {
		t.Errorf("taken: %+v", taken)
	}
	settled, err := s.Driver().Relay.Settle(t.Context(), driver.Settlement{Leases: leases, Done: results(ready(t, s)), History: true})
	if err != nil || len(settled.Held) != 31 || slices.Contains(settled.Held, lane) || len(settled.Moved) != 0 {
		t.Errorf("the old owner settled %+v, %v; want the lane to be lost", settled, err)
	}
	settled, err = s.Driver().Relay.Settle(t.Context(), driver.Settlement{Leases: append(leases[:0:0], taken[0], leases[lane]), Done: results(ready(t, s)), History: true})
	if err != nil || !slices.Equal(settled.Held, []int{lane}) || len(settled.Moved) != 1 {
		t.Errorf("the new owner, with the old lease beside its own, settled %+v, %v", settled, err)
	}
}

// One owner may settle several batches of one lane concurrently.
func TestSettlementsShareALane(t *testing.T) { onBoth(t, testSettlementsShareALane) }

func testSettlementsShareALane(t *testing.T) {
	s, db := openStore(t, impatient)
	_, leases := own(t, s)
	write(t, s, db, event("a"))
	other := begin(t, db, nil)
	exec(t, other, "SELECT lane FROM waybill_lane LOCK IN SHARE MODE")
	if settled, err := s.Driver().Relay.Settle(t.Context(), driver.Settlement{Leases: leases, Done: results(ready(t, s)), History: true}); err != nil || len(settled.Moved) != 1 {
		t.Errorf("Settle: %+v, %v", settled, err)
	}
}

// A failed settlement leaves nothing behind, and its error names the reason.
func TestSettleFails(t *testing.T) { onBoth(t, testSettleFails) }

func testSettleFails(t *testing.T) {
	s, db := openStore(t, nil)
	_, leases := own(t, s)
	write(t, s, db, event("a"), event("b"))
	exec(t, db, "ALTER TABLE waybill_history ADD CONSTRAINT refused CHECK (lane < 0)")
	if _, err := s.Driver().Relay.Settle(t.Context(), driver.Settlement{Leases: leases, Done: results(ready(t, s)), History: true}); err == nil ||
		!strings.Contains(err.Error(), "refused") {
		t.Errorf("Settle: %v, want the server's error", err)
	}
	if rows := ready(t, s); len(rows) != 2 {
		t.Errorf("%d rows are ready, want 2", len(rows))
	}
	if n := ask[int](t, db, "SELECT COUNT(*) FROM waybill_history"); n != 0 {
		t.Errorf("%d rows are in the history", n)
	}
	exec(t, db, "ALTER TABLE waybill_history DROP CONSTRAINT refused")
	if settled, err := s.Driver().Relay.Settle(t.Context(), driver.Settlement{Leases: leases, Done: results(ready(t, s)), History: true}); err != nil || len(settled.Moved) != 2 {
		t.Errorf("Settle: %+v, %v", settled, err)
	}
}

// The seq of events never goes back, whatever is deleted.
func TestSeqIsNeverReused(t *testing.T) { onBoth(t, testSeqIsNeverReused) }

func testSeqIsNeverReused(t *testing.T) {
	s, db := openStore(t, nil)
	write(t, s, db, event("a"), event("a"))
	before := ready(t, s)
	exec(t, db, "DELETE FROM waybill_outbox")
	write(t, s, db, event("a"))
	if after := ready(t, s); len(after) != 1 || after[0].Seq <= before[1].Seq {
		t.Errorf("seq %d after %d", after[0].Seq, before[1].Seq)
	}
}

// Two relays with different names start at the same time: one is alone, the
// other gets an error.
func TestOneRelayWins(t *testing.T) { onBoth(t, testOneRelayWins) }

func testOneRelayWins(t *testing.T) {
	s, db := openStore(t, nil)
	for range 30 {
		names := []string{"a", "b", "c"}
		errs := make([]error, len(names))
		var wg sync.WaitGroup
		for i, name := range names {
			wg.Go(func() {
				_, errs[i] = s.Driver().Relay.Heartbeat(t.Context(), store.Node{ID: waybill.NewID(), Relay: name}, time.Hour)
			})
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			switch {
			case err == nil:
				won++
			case !errors.Is(err, waybill.ErrOtherRelay):
				t.Fatal(err)
			}
		}
		if won != 1 {
			t.Fatalf("%d relays are alone", won)
		}
		exec(t, db, "DELETE FROM waybill_node")
	}
}

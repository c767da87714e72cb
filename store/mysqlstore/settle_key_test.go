package mysqlstore_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// some returns enough events for a settlement by key.
func some() []waybill.Event {
	evs := make([]waybill.Event, 20)
	for i := range evs {
		evs[i] = event("some")
	}
	return evs
}

// The seq of a result is a hint. With any hint, a settlement removes the rows
// of its events and no other row.
func TestSettleWithHints(t *testing.T) { onBoth(t, testSettleWithHints) }

func testSettleWithHints(t *testing.T) {
	s, db := openStore(t, nil)
	_, leases := own(t, s)
	for _, history := range []bool{false, true} {
		for name, hint := range map[string]func(done []driver.Result, other store.Row){
			"right":                func([]driver.Result, store.Row) {},
			"none":                 func(done []driver.Result, _ store.Row) { done[0].Seq = 0 },
			"of no row":            func(done []driver.Result, _ store.Row) { done[0].Seq = 1 << 40 },
			"of another event":     func(done []driver.Result, other store.Row) { done[0].Seq = other.Seq },
			"swapped":              func(done []driver.Result, _ store.Row) { done[0].Seq, done[1].Seq = done[1].Seq, done[0].Seq },
			"late, but it is not":  func(done []driver.Result, _ store.Row) { done[0].Late = true },
			"ready, but it is not": func(done []driver.Result, _ store.Row) { done[len(done)-1].Late = false },
		} {
			t.Run(fmt.Sprintf("%s/history=%t", name, history), func(t *testing.T) {
				exec(t, db, "DELETE FROM waybill_outbox")
				exec(t, db, "DELETE FROM waybill_history")
				late := event("b")
				late.Delay = time.Microsecond
				write(t, s, db, append(some(), event("a"), event("a"), event("b"), event("a"), late)...)
				rows := ready(t, s)
				other := rows[slices.IndexFunc(rows, func(r store.Row) bool { return r.Event.AggregateID == "a" })]
				rows = slices.DeleteFunc(rows, func(r store.Row) bool { return r.ID == other.ID })
				slices.SortFunc(rows, func(a, b store.Row) int { return int(b.Seq - a.Seq) })
				done := results(rows)
				done = append(done, driver.Result{Lane: driver.LaneOf("", "thing", "b", 32), ID: late.ID, Seq: other.Seq + 4, Late: true})
				hint(done, other)
				settled, err := s.Driver().Relay.Settle(t.Context(), driver.Settlement{Leases: leases, Done: done, History: history})
				if err != nil || len(settled.Moved) != 24 {
					t.Errorf("Settle: %+v, %v", settled, err)
				}
				if left := ready(t, s); len(left) != 1 || left[0].ID != other.ID {
					t.Errorf("left: %+v", left)
				}
				want := map[bool]int{true: 24}[history]
				if n := ask[int](t, db, "SELECT COUNT(*) FROM waybill_history"); n != want {
					t.Errorf("%d rows are in the history, want %d", n, want)
				}
			})
		}
	}
}

// A settlement finds some rows by key, and other rows are missing: the rows
// that exist are settled, and no others.
func TestSettleByKeyWithoutWhatIsGone(t *testing.T) {
	onBoth(t, testSettleByKeyWithoutWhatIsGone)
}

func testSettleByKeyWithoutWhatIsGone(t *testing.T) {
	s, db := openStore(t, nil)
	_, leases := own(t, s)
	for name, pick := range map[string]func(r []driver.Result) driver.Settlement{
		"a delivered event is gone": func(r []driver.Result) driver.Settlement {
			return driver.Settlement{Done: r}
		},
		"a failed event is gone": func(r []driver.Result) driver.Settlement {
			return driver.Settlement{Retry: r[:1], Done: r[1:]}
		},
		"a dead event is gone": func(r []driver.Result) driver.Settlement {
			return driver.Settlement{Dead: r[:2], Done: r[2:]}
		},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, s, db, append(some(), event("a"), event("b"))...)
			rows := results(ready(t, s))
			exec(t, db, "DELETE FROM waybill_outbox WHERE id = ?", rows[0].ID[:])
			settlement := pick(rows)
			settlement.Leases, settlement.History = leases, true
			settled, err := s.Driver().Relay.Settle(t.Context(), settlement)
			if err != nil || len(settled.Moved) != 21 || slices.Contains(settled.Moved, rows[0].ID) || len(ready(t, s)) != 0 {
				t.Errorf("Settle: %+v, %v", settled, err)
			}
		})
	}
}

// A settlement of few events, or of more than a condition can have, finds them
// by id.
func TestSettleFewAndManyByID(t *testing.T) {
	results := make([]driver.Result, 0, 3000)
	for range cap(results) {
		results = append(results, driver.Result{Lane: 1, Seq: 7, ID: waybill.NewID()})
	}
	s := driver.Settlement{Leases: []driver.Lease{{Lane: 1}}, Done: results}
	for n, want := range map[int]bool{1: false, 19: false, 20: true, 2000: true, 2001: false} {
		s.Done = results[:n]
		if got := mysqlstore.SettlesByKey(s); got != want {
			t.Errorf("%d events are found by key: %t, want %t", n, got, want)
		}
	}
}

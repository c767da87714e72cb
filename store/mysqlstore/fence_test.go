package mysqlstore_test

import (
	"testing"

	"github.com/waybillhq/waybill/store/driver"
)

// The fence is a lock. A settlement that meets a take-over in progress waits
// for it, and is then refused.
func TestSettlementWaitsForTakeOver(t *testing.T) { onBoth(t, testSettlementWaitsForTakeOver) }

func testSettlementWaitsForTakeOver(t *testing.T) {
	s, db := openStore(t, nil)
	_, leases := own(t, s)
	write(t, s, db, event("a"))
	rows := ready(t, s)
	lane := rows[0].Lane
	takeOver := begin(t, db, nil)
	exec(t, takeOver, "UPDATE waybill_lane SET epoch = epoch + 1, token = RANDOM_BYTES(16) WHERE lane = ?", lane)
	type answer struct {
		settled driver.Settled
		err     error
	}
	answers := make(chan answer, 1)
	go func() {
		settled, err := s.Driver().Relay.Settle(t.Context(), driver.Settlement{Leases: leases[lane : lane+1], Done: results(rows), History: true})
		answers <- answer{settled, err}
	}()
	// innodb_trx is a copy that is not refreshed while it is being read.
	await(t, "the settlement waits, or has ended", func() bool {
		return len(answers) > 0 ||
			lockWaits(t, db) > 0
	})
	if err := takeOver.Commit(); err != nil {
		t.Fatal(err)
	}
	got := <-answers
	if got.err != nil || len(got.settled.Held) > 0 || len(got.settled.Moved) > 0 {
		t.Errorf("the stale settlement: %+v, %v; want nothing held and nothing moved", got.settled, got.err)
	}
	if len(ready(t, s)) != 1 {
		t.Error("the event is gone from the outbox")
	}
}

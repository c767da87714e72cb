package mysqlstore_test

import (
	"database/sql"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Of many concurrent claims of one event, when it is new, when its lease has
// expired and when it is due, one succeeds, and the fence grows by one.
func TestClaimTogether(t *testing.T) { onBoth(t, testClaimTogether) }

func testClaimTogether(t *testing.T) {
	s, db := openStore(t, nil)
	in := intakes("g", 1)[0]
	for round := int64(1); round <= 6; round++ {
		var won atomic.Int64
		var winner atomic.Pointer[store.InboxRecord]
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				record, taken, err := s.Driver().Inbox.ClaimEvent(t.Context(), in, waybill.NewID(), time.Hour, 100, nil)
				if err != nil {
					t.Error(err)
				}
				if taken {
					won.Add(1)
					winner.Store(&record)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d have it", round, won.Load())
		}
		record := winner.Load()
		if record.Fence != round || record.Attempts != int(round) || findRecord(t, s, in).Owner != record.Owner {
			t.Fatalf("round %d: %+v", round, record)
		}
		if round%2 == 0 {
			exec(t, db, "UPDATE waybill_inbox SET lease_until = received_at")
		} else if did, err := s.Driver().Inbox.FailEvent(t.Context(), in, driver.Failure{Owner: record.Owner, Fence: round, Error: "boom"}); !did || err != nil {
			t.Fatalf("FailEvent: %t, %v", did, err)
		}
	}
}

// Many claims find the attempts exhausted: all see the event as dead, and its
// error names the limit once.
func TestGiveUpTogether(t *testing.T) { onBoth(t, testGiveUpTogether) }

func testGiveUpTogether(t *testing.T) {
	s, db := openStore(t, nil)
	in := intakes("g", 1)[0]
	if did, err := s.Driver().Inbox.FailEvent(t.Context(), in, driver.Failure{Error: "boom"}); !did || err != nil {
		t.Fatalf("FailEvent: %t, %v", did, err)
	}
	if did, err := s.Driver().Inbox.FailEvent(t.Context(), in, driver.Failure{Error: "again"}); did || err != nil {
		t.Errorf("FailEvent where there is a record: %t, %v", did, err)
	}
	other := in
	other.Hash[0]++
	if r, taken := claim(t, s, other, time.Hour, 1, nil); taken || r.State != store.InboxFailed || r.Hash != in.Hash {
		t.Errorf("a conflict: %t, %+v", taken, r)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			r, taken, err := s.Driver().Inbox.ClaimEvent(t.Context(), in, waybill.NewID(), time.Hour, 1, nil)
			if err != nil || taken || r.State != store.InboxDead || r.LastError != "boom; "+driver.ExceededMaxAttempts || r.ProcessedAt.IsZero() {
				t.Errorf("ClaimEvent: %+v, %t, %v", r, taken, err)
			}
		})
	}
	wg.Wait()
	if n, err := s.Driver().InboxRecords.Redrive(t.Context(), "g", []waybill.ID{in.Key, in.Key}, 10); n != 1 || err != nil {
		t.Errorf("Redrive: %d, %v", n, err)
	}
	if r, taken := claim(t, s, in, time.Hour, 1, nil); !taken || r.Attempts != 1 || r.Fence != 2 || !r.ProcessedAt.IsZero() {
		t.Errorf("after the redrive: %t, %+v", taken, r)
	}
	if n := ask[int](t, db, "SELECT COUNT(*) FROM waybill_inbox"); n != 1 {
		t.Errorf("%d records", n)
	}
}

// A consumer whose event was taken over can neither succeed nor fail nor
// release it, even with a snapshot from before the take-over.
func TestZombie(t *testing.T) { onBoth(t, testZombie) }

func testZombie(t *testing.T) {
	for _, level := range levels {
		s, db := openStore(t, nil)
		in := intakes("g", 1)[0]
		old, _ := claim(t, s, in, time.Hour, 5, nil)
		attempt := func(r store.InboxRecord) driver.Attempt {
			return driver.Attempt{Group: r.Group, Key: r.Key, Owner: r.Owner, Fence: r.Fence}
		}
		succeed := func(tx *sql.Tx, a driver.Attempt) bool {
			did, err := s.Driver().Inbox.Succeed(t.Context(), tx, a)
			if err != nil {
				t.Fatal(err)
			}
			return did
		}
		zombie := begin(t, db, &sql.TxOptions{Isolation: level})
		exec(t, zombie, "INSERT INTO business (note) VALUES ('of the zombie')")
		takeSnapshot(t, zombie)
		exec(t, db, "UPDATE waybill_inbox SET lease_until = received_at")
		next, taken := claim(t, s, in, time.Hour, 5, []byte("kept"))
		if !taken || next.Fence != old.Fence+1 {
			t.Fatalf("%v: the take-over: %+v, %t", level, next, taken)
		}
		if succeed(zombie, attempt(old)) {
			t.Errorf("%v: the old attempt succeeded", level)
		}
		_ = zombie.Rollback()
		if did, err := s.Driver().Inbox.FailEvent(t.Context(), in, driver.Failure{Owner: old.Owner, Fence: old.Fence, Error: "late"}); did || err != nil {
			t.Errorf("FailEvent of the old attempt: %t, %v", did, err)
		}
		if held, err := s.Driver().Inbox.ReleaseEvent(t.Context(), attempt(old)); held || err != nil {
			t.Errorf("ReleaseEvent of the old attempt: %t, %v", held, err)
		}
		if held, err := s.Driver().Inbox.ReleaseEvent(t.Context(), attempt(next)); !held || err != nil {
			t.Errorf("ReleaseEvent: %t, %v", held, err)
		}
		if r := findRecord(t, s, in); r.State != store.InboxFailed || r.Attempts != 1 || string(r.Stored) != "kept" || r.NextRetryAt.After(r.Now) {
			t.Errorf("released: %+v", r)
		}
		last, _ := claim(t, s, in, time.Hour, 5, nil)
		tx := begin(t, db, &sql.TxOptions{Isolation: level})
		if !succeed(tx, attempt(last)) || succeed(tx, attempt(last)) {
			t.Error("the last attempt did not succeed exactly once")
		}
		commit(t, tx)
		if r := findRecord(t, s, in); r.State != store.InboxSucceeded || r.ProcessedAt.IsZero() || !r.LeaseUntil.IsZero() || string(r.Stored) != "kept" {
			t.Errorf("after it: %+v", r)
		}
	}
}

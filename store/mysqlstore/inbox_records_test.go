package mysqlstore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Only succeeded records are purged, and the purge does not wait for records
// locked by a transaction.
func TestPurgeRecords(t *testing.T) { onBoth(t, testPurgeRecords) }

func testPurgeRecords(t *testing.T) {
	s, db := openStore(t, nil)
	done, elsewhere := intakes("g", 6), intakes("other", 2)
	received(t, s, db, waybill.NewID(), append(done, elsewhere...))
	open := intakes("g", 3)
	claim(t, s, open[0], 0, 3, nil)
	for i, dead := range []bool{false, true} {
		if _, err := s.Driver().Inbox.FailEvent(t.Context(), open[1+i], driver.Failure{Dead: dead}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := s.Driver().InboxRecords.PurgeRecords(t.Context(), "g", time.Hour, 100); n != 0 || err != nil {
		t.Errorf("none is old: %d, %v", n, err)
	}
	exec(t, db, `UPDATE waybill_inbox SET received_at = '2001-01-01', processed_at = IF(processed_at IS NULL, NULL, '2001-01-01'),
 lease_until = IF(lease_until IS NULL, NULL, '2001-01-01'), next_retry_at = IF(next_retry_at IS NULL, NULL, '2001-01-01')`)
	met := begin(t, db, nil)
	accept(t, s, met, waybill.NewID(), done[5:])
	for _, want := range []int{3, 2, 0} {
		if n, err := s.Driver().InboxRecords.PurgeRecords(t.Context(), "g", time.Hour, 3); n != want || err != nil {
			t.Errorf("PurgeRecords: %d, %v; want %d", n, err, want)
		}
	}
	_ = met.Rollback()
	if n, err := s.Driver().InboxRecords.PurgeRecords(t.Context(), "g", time.Hour, 3); n != 1 || err != nil {
		t.Errorf("PurgeRecords: %d, %v", n, err)
	}
	if n := ask[int](t, db, "SELECT COUNT(*) FROM waybill_inbox"); n != len(open)+len(elsewhere) {
		t.Errorf("%d records are left", n)
	}
	if _, err := s.Driver().InboxRecords.PurgeRecords(t.Context(), "g", -1, 3); err == nil {
		t.Error("a negative age was accepted")
	}
}

// Records of several groups are listed, counted and redriven; groups compare as
// bytes.
func TestRecordsInOrder(t *testing.T) { onBoth(t, testRecordsInOrder) }

func testRecordsInOrder(t *testing.T) {
	s, db := openStore(t, nil)
	received(t, s, db, waybill.NewID(), intakes("done", 3))
	var failed, dead []store.InboxEntry
	for _, group := range []string{"b", "B", "b "} {
		for i, in := range intakes(group, 4) {
			f := driver.Failure{Error: "boom", Dead: i == 3, Delay: time.Duration(i-2) * time.Hour}
			if i != 1 {
				f.Stored = []byte(group)
			}
			if did, err := s.Driver().Inbox.FailEvent(t.Context(), in, f); !did || err != nil {
				t.Fatal(did, err)
			}
			if f.Dead {
				dead = append(dead, in)
			} else {
				failed = append(failed, in)
			}
		}
	}
	overdue := intakes("b", 1)[0]
	claim(t, s, overdue, -time.Hour, 3, []byte("b"))
	due, err := s.Driver().InboxRecords.DueRecords(t.Context(), "b", 10)
	if err != nil || len(due) != 3 || due[0].InboxEntry != failed[0] || due[1].InboxEntry != overdue || due[2].InboxEntry != failed[2] || string(due[0].Stored) != "b" {
		t.Errorf("DueRecords: %+v, %v", due, err)
	}
	if due, err := s.Driver().InboxRecords.DueRecords(t.Context(), "b", 1); err != nil || len(due) != 1 || due[0].InboxEntry != failed[0] {
		t.Errorf("DueRecords: %+v, %v", due, err)
	}
	var groups []string
	var group string
	var key waybill.ID
	for {
		page, err := s.Driver().InboxRecords.ListRecords(t.Context(), store.RecordFilter{}, group, key, 5)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page {
			group, key = r.Group, r.Key
			groups = append(groups, group)
		}
		if len(page) < 5 {
			break
		}
	}
	if got := strings.Join(groups, ","); got != "B,B,B,B,b,b,b,b,b,b ,b ,b ,b " {
		t.Errorf("ListRecords: %q", got)
	}
	only := store.RecordFilter{Group: "b", States: []store.InboxState{store.InboxDead, store.InboxSucceeded}, MinAttempts: 1}
	if page, err := s.Driver().InboxRecords.ListRecords(t.Context(), only, "", waybill.ID{}, 5); err != nil || len(page) != 1 || page[0].InboxEntry != dead[0] {
		t.Errorf("ListRecords of the dead: %+v, %v", page, err)
	}
	if _, err := s.Driver().InboxRecords.ListRecords(t.Context(), store.RecordFilter{States: []store.InboxState{7}}, "", waybill.ID{}, 5); err == nil {
		t.Error("an unknown state was accepted")
	}
	for all, want := range map[bool]string{false: "B,b,b ", true: "B,b,b ,done"} {
		stats, err := s.Driver().InboxRecords.GroupStats(t.Context(), all)
		var names []string
		for _, g := range stats {
			names = append(names, g.Group)
			if g.Group != "done" && (g.Failed != 3 || g.Dead != 1 || g.HighestAttempts != 1 || g.OldestDue < 2*time.Hour) ||
				g.Processing != int64(strings.Count(g.Group, "b")-strings.Count(g.Group, "b ")) {
				t.Errorf("GroupStats: %+v", g)
			}
		}
		if got := strings.Join(names, ","); err != nil || got != want {
			t.Errorf("GroupStats(%t): %q, %v", all, got, err)
		}
	}
	for _, want := range []int{1, 0} {
		if n, err := s.Driver().InboxRecords.Redrive(t.Context(), "b", nil, 10); n != want || err != nil {
			t.Errorf("Redrive: %d, %v; want %d", n, err, want)
		}
	}
	if n, err := s.Driver().InboxRecords.Redrive(t.Context(), "B", []waybill.ID{failed[3].Key, failed[4].Key, dead[1].Key, waybill.NewID()}, 2); n != 2 || err != nil {
		t.Errorf("Redrive of some: %d, %v", n, err)
	}
}

// Errors of conflicting transactions are retryable.
func TestRestartable(t *testing.T) { onBoth(t, testRestartable) }

func testRestartable(t *testing.T) {
	s, db := openStore(t, impatient)
	in := intakes("g", 1)
	tx := begin(t, db, nil)
	accept(t, s, tx, waybill.NewID(), in)
	_, _, err := s.Driver().Inbox.ClaimEvent(t.Context(), in[0], waybill.NewID(), time.Hour, 3, nil)
	if !s.Driver().Inbox.(driver.RetryClassifier).IsRetryable(err) {
		t.Errorf("ClaimEvent beside a transaction that accepts: %v", err)
	}
	commit(t, tx)
	if r, taken := claim(t, s, in[0], time.Hour, 3, nil); taken || r.State != store.InboxSucceeded {
		t.Errorf("ClaimEvent after it: %+v, %t", r, taken)
	}
	for _, other := range []error{nil, errRollback, context.Canceled, &mysql.MySQLError{Number: 1062}} {
		if s.Driver().Inbox.(driver.RetryClassifier).IsRetryable(other) {
			t.Errorf("%v is restartable", other)
		}
	}
}

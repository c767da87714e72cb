package sqlitestore_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// intakes returns n new events for a group.
func intakes(group string, n int) []store.InboxEntry {
	list := make([]store.InboxEntry, n)
	for i := range list {
		id := waybill.NewID()
		list[i] = store.InboxEntry{Group: group, Key: id, Event: id, Tenant: "t", Type: "OrderPlaced", Hash: [16]byte{1, byte(i)}}
	}
	return list
}

// accept accepts events in a transaction of their own, and commits the
// transaction unless there is an error.
func accept(t testing.TB, db *sqlitestore.Store, owner waybill.ID, in []store.InboxEntry) []driver.AcceptResult {
	t.Helper()
	var out []driver.AcceptResult
	err := newBox(t, db.Driver().Outbox).InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		var err error
		out, err = db.Driver().Inbox.Accept(ctx, tx, owner, in)
		return err
	})
	if err != nil || len(out) != len(in) {
		t.Fatalf("Accept of %d: %d answers, %v", len(in), len(out), err)
	}
	return out
}

func claim(t testing.TB, db *sqlitestore.Store, in store.InboxEntry, lease time.Duration, maxAttempts int, kept []byte) (store.InboxRecord, bool) {
	t.Helper()
	record, taken, err := db.Driver().Inbox.ClaimEvent(t.Context(), in, waybill.NewID(), lease, maxAttempts, kept)
	if err != nil {
		t.Fatal(err)
	}
	return record, taken
}

func find(t testing.TB, db *sqlitestore.Store, in store.InboxEntry) store.InboxRecord {
	t.Helper()
	record, found, err := db.Driver().InboxRecords.FindRecord(t.Context(), in.Group, in.Key)
	if err != nil || !found {
		t.Fatalf("FindRecord: %t, %v", found, err)
	}
	return record
}

// TestAcceptSizes accepts every number of events around the sizes of the
// prepared statements; some events already have a record.
func TestAcceptSizes(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	for _, n := range []int{1, 2, 7, 8, 9, 16, 63, 64, 65, 150} {
		in := intakes("g"+strconv.Itoa(n), n)
		var there []store.InboxEntry
		for i := range in {
			if i%3 == 1 {
				there = append(there, in[i])
			}
		}
		first, owner := waybill.NewID(), waybill.NewID()
		if len(there) > 0 {
			accept(t, db, first, there)
		}
		for i, a := range accept(t, db, owner, in) {
			want := owner
			if i%3 == 1 {
				want = first
				if a.Record.Owner != first || a.Record.InboxEntry != in[i] || a.Record.State != store.InboxSucceeded || a.Record.Now.IsZero() {
					t.Errorf("%d of %d: the record that was there is %+v", i, n, a.Record)
				}
			}
			if a.Busy || a.Accepted != (i%3 != 1) {
				t.Errorf("%d of %d: %+v", i, n, a)
			}
			r := find(t, db, in[i])
			if r.Owner != want || r.InboxEntry != in[i] || r.Fence != 1 || r.Attempts != 1 || r.ProcessedAt.IsZero() || r.ReceivedAt.IsZero() {
				t.Errorf("%d of %d is stored as %+v", i, n, r)
			}
		}
	}
}

// TestAcceptWithEffects: the record commits or rolls back with its transaction,
// which may be the store's or the caller's.
func TestAcceptWithEffects(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	db := openAt(t, path, sqlitestore.Config{})
	other := over(t, path, deferred, sqlitestore.Config{})
	run(t, db, `CREATE TABLE business (note TEXT NOT NULL)`)
	for name, handle := range map[string]*sql.DB{"own handle": db.DB(), "other handle": other.DB()} {
		in := intakes("g", 1)
		for _, commit := range []bool{false, true} {
			tx, err := handle.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			answers, err := db.Driver().Inbox.Accept(t.Context(), tx, waybill.NewID(), in)
			if err != nil || !answers[0].Accepted {
				t.Fatalf("%s: %+v, %v", name, answers, err)
			}
			if _, err := tx.ExecContext(t.Context(), `INSERT INTO business (note) VALUES ('x')`); err != nil {
				t.Fatal(err)
			}
			end := tx.Rollback
			if commit {
				end = tx.Commit
			}
			if err := end(); err != nil {
				t.Fatal(err)
			}
			if _, found, err := db.Driver().InboxRecords.FindRecord(t.Context(), "g", in[0].Key); err != nil || found != commit {
				t.Errorf("%s: committed %t: %t, %v", name, commit, found, err)
			}
		}
	}
}

// TestAcceptNeedsTx: an ended transaction and a read-only transaction are
// rejected.
func TestAcceptNeedsTx(t *testing.T) {
	db := withBusiness(t)
	in := intakes("g", 1)
	claimed, _ := claim(t, db, intakes("g", 1)[0], time.Hour, 3, nil)
	attempt := driver.Attempt{Group: "g", Key: claimed.Key, Owner: claimed.Owner, Fence: claimed.Fence}
	refused := func(tx *sql.Tx, when string, fits func(error) bool) {
		if _, err := db.Driver().Inbox.Accept(t.Context(), tx, waybill.NewID(), in); !fits(err) {
			t.Errorf("Accept %s: %v", when, err)
		}
		if done, err := db.Driver().Inbox.Succeed(t.Context(), tx, attempt); done || !fits(err) {
			t.Errorf("Succeed %s: %t, %v", when, done, err)
		}
	}
	done := func(err error) bool { return errors.Is(err, waybill.ErrTxDone) }
	tx, err := db.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	interrupt(t.Context(), t, tx)
	refused(tx, "after SQLite has rolled back", done)
	_ = tx.Rollback()
	refused(tx, "after a rollback", done)
	session, err := db.Driver().Outbox.Begin(t.Context(), &sql.TxOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	refused(session.Tx(), "in a transaction that reads", func(err error) bool {
		return err != nil && strings.Contains(err.Error(), "read-only")
	})
	if err := session.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	if n := value[int](t, db, `SELECT count(*) FROM waybill_inbox WHERE status = 1`); n != 0 {
		t.Errorf("%d records", n)
	}
}

// TestAcceptEndedInside ends the transaction as SQL text: the outcome is
// certain if SQLite rolled back, and uncertain if it committed.
func TestAcceptEndedInside(t *testing.T) {
	for text, uncertain := range map[string]bool{"COMMIT": true, "ROLLBACK": false} {
		db := open(t, sqlitestore.Config{})
		in := intakes("g", 1)
		session, err := db.Driver().Outbox.Begin(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.Driver().Inbox.Accept(t.Context(), session.Tx(), waybill.NewID(), in); err != nil {
			t.Fatal(err)
		}
		if _, err := session.Tx().ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
		if _, err := session.Commit(t.Context(), nil, false); err == nil || errors.Is(err, waybill.ErrUncertain) != uncertain {
			t.Errorf("after %s: %v", text, err)
		}
	}
}

// TestEndedInsideBesideOthers rolls a transaction back as SQL text while the
// success of another attempt is stored: the outcome is certain.
func TestEndedInsideBesideOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	db, other := openAt(t, path, sqlitestore.Config{}), openAt(t, path, sqlitestore.Config{})
	accept := func(t *testing.T, in store.InboxEntry) {
		t.Helper()
		err := newBox(t, other.Driver().Outbox).InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			_, err := other.Driver().Inbox.Accept(ctx, tx, waybill.NewID(), []store.InboxEntry{in})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for what, work := range map[string]func(t *testing.T, tx *sql.Tx, in store.InboxEntry) (others func()){
		"an event accepted by another": func(t *testing.T, tx *sql.Tx, in store.InboxEntry) func() {
			if _, err := db.Driver().Inbox.Accept(t.Context(), tx, waybill.NewID(), []store.InboxEntry{in}); err != nil {
				t.Fatal(err)
			}
			return func() { accept(t, in) }
		},
		"a claim that is still held": func(t *testing.T, tx *sql.Tx, in store.InboxEntry) func() {
			r := find(t, db, in)
			if ok, err := db.Driver().Inbox.Succeed(t.Context(), tx, driver.Attempt{Group: r.Group, Key: r.Key, Owner: r.Owner, Fence: r.Fence}); !ok || err != nil {
				t.Fatal(ok, err)
			}
			return func() {}
		},
	} {
		t.Run(what, func(t *testing.T) {
			in := intakes("g", 1)[0]
			if what == "a claim that is still held" {
				claim(t, db, in, time.Hour, 3, nil)
			}
			session, err := db.Driver().Outbox.Begin(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			others := work(t, session.Tx(), in)
			if _, err := session.Tx().ExecContext(t.Context(), "ROLLBACK"); err != nil {
				t.Fatal(err)
			}
			others()
			if _, err := session.Commit(t.Context(), nil, false); err == nil || errors.Is(err, waybill.ErrUncertain) {
				t.Errorf("Commit: %v, want a certain rollback", err)
			}
		})
	}
}

// TestClaimTogether claims one event concurrently from two handles: when it is
// new, when its lease has expired and when it is due. Each time one claim
// succeeds, and the fence grows by one.
func TestClaimTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	stores := []*sqlitestore.Store{openAt(t, path, sqlitestore.Config{}), openAt(t, path, sqlitestore.Config{})}
	in := intakes("g", 1)[0]
	for round := int64(1); round <= 6; round++ {
		var won atomic.Int64
		var winner atomic.Pointer[store.InboxRecord]
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				record, taken, err := stores[i%2].Driver().Inbox.ClaimEvent(t.Context(), in, waybill.NewID(), time.Hour, 100, nil)
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
		if record.Fence != round || record.Attempts != int(round) || find(t, stores[0], in).Owner != record.Owner {
			t.Fatalf("round %d: %+v", round, record)
		}
		if round%2 == 0 {
			run(t, stores[0], `UPDATE waybill_inbox SET lease_until = received_at`)
		} else if did, err := stores[1].Driver().Inbox.FailEvent(t.Context(), in, driver.Failure{Owner: record.Owner, Fence: round, Error: "boom"}); !did || err != nil {
			t.Fatalf("FailEvent: %t, %v", did, err)
		}
	}
}

// TestZombie: an attempt that was taken over can neither succeed nor fail nor
// release its event.
func TestZombie(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	in := intakes("g", 1)[0]
	old, _ := claim(t, db, in, 0, 3, nil)
	attempt := func(r store.InboxRecord) driver.Attempt {
		return driver.Attempt{Group: r.Group, Key: r.Key, Owner: r.Owner, Fence: r.Fence}
	}
	succeed := func(a driver.Attempt) (did bool) {
		err := newBox(t, db.Driver().Outbox).InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			var err error
			did, err = db.Driver().Inbox.Succeed(ctx, tx, a)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return did
	}
	next, taken := claim(t, db, in, time.Hour, 3, []byte("kept"))
	if !taken || next.Fence != old.Fence+1 {
		t.Fatalf("the takeover: %+v, %t", next, taken)
	}
	if succeed(attempt(old)) {
		t.Error("succeeded after another attempt had taken over")
	}
	if did, err := db.Driver().Inbox.FailEvent(t.Context(), in, driver.Failure{Owner: old.Owner, Fence: old.Fence, Error: "late"}); did || err != nil {
		t.Errorf("FailEvent of the old attempt: %t, %v", did, err)
	}
	if held, err := db.Driver().Inbox.ReleaseEvent(t.Context(), attempt(old)); held || err != nil {
		t.Errorf("ReleaseEvent of the old attempt: %t, %v", held, err)
	}
	if held, err := db.Driver().Inbox.ReleaseEvent(t.Context(), attempt(next)); !held || err != nil {
		t.Errorf("ReleaseEvent: %t, %v", held, err)
	}
	if r := find(t, db, in); r.State != store.InboxFailed || r.Attempts != 1 || string(r.Stored) != "kept" || r.NextRetryAt.After(r.Now) {
		t.Errorf("given back: %+v", r)
	}
	last, _ := claim(t, db, in, time.Hour, 3, nil)
	if !succeed(attempt(last)) || succeed(attempt(last)) {
		t.Error("the last attempt did not succeed exactly once")
	}
	if r := find(t, db, in); r.State != store.InboxSucceeded || r.ProcessedAt.IsZero() || !r.LeaseUntil.IsZero() || string(r.Stored) != "kept" {
		t.Errorf("after it: %+v", r)
	}
}

// TestAttemptsExhausted: an event without attempts left is dead and states the
// reason; a conflict does not change it.
func TestAttemptsExhausted(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	in := intakes("g", 1)[0]
	long := strings.Repeat("ä", 3000)
	if did, err := db.Driver().Inbox.FailEvent(t.Context(), in, driver.Failure{Error: long, Stored: []byte("e")}); !did || err != nil {
		t.Fatalf("FailEvent: %t, %v", did, err)
	}
	if did, err := db.Driver().Inbox.FailEvent(t.Context(), in, driver.Failure{Error: "again"}); did || err != nil {
		t.Errorf("FailEvent where there is a record: %t, %v", did, err)
	}
	other := in
	other.Hash[0]++
	if r, taken := claim(t, db, other, time.Hour, 1, nil); taken || r.State != store.InboxFailed || r.Hash != in.Hash {
		t.Errorf("a conflict: %t, %+v", taken, r)
	}
	r, taken := claim(t, db, in, time.Hour, 1, nil)
	stored := find(t, db, in)
	stored.Now = r.Now
	if taken || r.State != store.InboxDead || r.ProcessedAt.IsZero() || !strings.HasSuffix(r.LastError, driver.ExceededMaxAttempts) || len(r.LastError) > 4000 {
		t.Errorf("dead: %t, %+v", taken, r)
	}
	if stored.LastError != r.LastError || stored.State != r.State || stored.ProcessedAt != r.ProcessedAt || !stored.NextRetryAt.IsZero() {
		t.Errorf("stored: %+v", stored)
	}
	if n, err := db.Driver().InboxRecords.Redrive(t.Context(), "g", []waybill.ID{in.Key, in.Key}, 10); n != 1 || err != nil {
		t.Errorf("Redrive: %d, %v", n, err)
	}
	if r, taken := claim(t, db, in, time.Hour, 1, nil); !taken || r.Attempts != 1 || r.Fence != 2 || !r.ProcessedAt.IsZero() {
		t.Errorf("after the redrive: %t, %+v", taken, r)
	}
}

// TestPurgeRecords purges succeeded records, and nothing else.
func TestPurgeRecords(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	done, elsewhere := intakes("g", 5), intakes("other", 2)
	accept(t, db, waybill.NewID(), append(done, elsewhere...))
	open := intakes("g", 3)
	claim(t, db, open[0], 0, 3, nil)
	for i, dead := range []bool{false, true} {
		if _, err := db.Driver().Inbox.FailEvent(t.Context(), open[1+i], driver.Failure{Dead: dead}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := db.Driver().InboxRecords.PurgeRecords(t.Context(), "g", time.Hour, 100); n != 0 || err != nil {
		t.Errorf("none is old: %d, %v", n, err)
	}
	run(t, db, `UPDATE waybill_inbox SET received_at = 0, processed_at = 0, lease_until = min(lease_until, 0), next_retry_at = min(next_retry_at, 0)`)
	for _, want := range []int{3, 2, 0} {
		if n, err := db.Driver().InboxRecords.PurgeRecords(t.Context(), "g", time.Hour, 3); n != want || err != nil {
			t.Errorf("PurgeRecords: %d, %v; want %d", n, err, want)
		}
	}
	if n := value[int](t, db, `SELECT count(*) FROM waybill_inbox`); n != len(open)+len(elsewhere) {
		t.Errorf("%d records are left", n)
	}
	if _, err := db.Driver().InboxRecords.PurgeRecords(t.Context(), "g", -1, 3); err == nil {
		t.Error("a negative age was taken")
	}
}

// TestRecordsInOrder lists, counts and redrives records of several groups.
func TestRecordsInOrder(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	accept(t, db, waybill.NewID(), intakes("done", 3))
	var failed, dead []store.InboxEntry
	for _, group := range []string{"b", "B", "b "} {
		for i, in := range intakes(group, 4) {
			f := driver.Failure{Error: "boom", Dead: i == 3, Delay: time.Duration(i-2) * time.Hour}
			if i != 1 {
				f.Stored = []byte(group)
			}
			if did, err := db.Driver().Inbox.FailEvent(t.Context(), in, f); !did || err != nil {
				t.Fatal(did, err)
			}
			if f.Dead {
				dead = append(dead, in)
			} else {
				failed = append(failed, in)
			}
		}
	}
	due, err := db.Driver().InboxRecords.DueRecords(t.Context(), "b", 10)
	if err != nil || len(due) != 2 || due[0].InboxEntry != failed[0] || due[1].InboxEntry != failed[2] || string(due[0].Stored) != "b" {
		t.Errorf("DueRecords: %+v, %v", due, err)
	}
	var groups []string
	var group string
	var key waybill.ID
	for {
		page, err := db.Driver().InboxRecords.ListRecords(t.Context(), store.RecordFilter{}, group, key, 5)
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
	if got := strings.Join(groups, ","); got != "B,B,B,B,b,b,b,b,b ,b ,b ,b " {
		t.Errorf("ListRecords: %q", got)
	}
	only := store.RecordFilter{Group: "b", States: []store.InboxState{store.InboxDead, store.InboxSucceeded}, MinAttempts: 1}
	if page, err := db.Driver().InboxRecords.ListRecords(t.Context(), only, "", waybill.ID{}, 5); err != nil || len(page) != 1 || page[0].InboxEntry != dead[0] {
		t.Errorf("ListRecords of the dead: %+v, %v", page, err)
	}
	if _, err := db.Driver().InboxRecords.ListRecords(t.Context(), store.RecordFilter{States: []store.InboxState{7}}, "", waybill.ID{}, 5); err == nil {
		t.Error("a state that is none was taken")
	}
	for all, want := range map[bool]string{false: "B,b,b ", true: "B,b,b ,done"} {
		stats, err := db.Driver().InboxRecords.GroupStats(t.Context(), all)
		var names []string
		for _, g := range stats {
			names = append(names, g.Group)
			if g.Group != "done" && (g.Failed != 3 || g.Dead != 1 || g.HighestAttempts != 1 || g.OldestDue < 2*time.Hour) || g.Processing != 0 {
				t.Errorf("GroupStats: %+v", g)
			}
		}
		if got := strings.Join(names, ","); err != nil || got != want {
			t.Errorf("GroupStats(%t): %q, %v", all, got, err)
		}
	}
	for _, want := range []int{1, 0} {
		if n, err := db.Driver().InboxRecords.Redrive(t.Context(), "b", nil, 10); n != want || err != nil {
			t.Errorf("Redrive: %d, %v; want %d", n, err, want)
		}
	}
}

// TestRestartable: a transaction that turned from reading to writing too late
// is retryable; a transaction that has waited for the busy timeout is not.
func TestRestartable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	db := openAt(t, path, sqlitestore.Config{BusyTimeout: -1})
	late := over(t, path, deferred, sqlitestore.Config{})
	tx, err := late.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // the test is over then
	var n int
	if err := tx.QueryRowContext(t.Context(), `SELECT count(*) FROM waybill_inbox`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	accept(t, db, waybill.NewID(), intakes("g", 1))
	if _, err := late.Driver().Inbox.Accept(t.Context(), tx, waybill.NewID(), intakes("g", 1)); !late.Driver().Inbox.(driver.RetryClassifier).IsRetryable(err) {
		t.Errorf("Accept: %v", err)
	}
	session, err := db.Driver().Outbox.Begin(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Driver().Inbox.ReleaseEvent(t.Context(), driver.Attempt{}); err == nil || db.Driver().Inbox.(driver.RetryClassifier).IsRetryable(err) {
		t.Errorf("after waiting: %v", err)
	}
	if err := session.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	if db.Driver().Inbox.(driver.RetryClassifier).IsRetryable(nil) || db.Driver().Inbox.(driver.RetryClassifier).IsRetryable(errors.New("other")) {
		t.Error("other errors are restartable")
	}
}

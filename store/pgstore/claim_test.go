package pgstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Of several concurrent claims of an event, one succeeds: without a record, and
// after a lease has expired.
func TestInboxClaimHasOneWinner(t *testing.T) {
	eachFace(t, func(t *testing.T, f face, _ *pgxpool.Pool, _ string) {
		race := func(in store.InboxEntry, fence int64, attempts int) {
			t.Helper()
			var won atomic.Int64
			var wg sync.WaitGroup
			for range 30 {
				wg.Go(func() {
					rec, taken, err := f.ClaimEvent(t.Context(), in, waybill.NewID(), time.Hour, 9, nil)
					if err != nil || rec.State != store.InboxProcessing || rec.Fence != fence || rec.Attempts != attempts || rec.InboxEntry != in {
						t.Errorf("got %+v, %v; want fence %d, attempt %d", rec, err, fence, attempts)
					}
					if taken {
						won.Add(1)
					}
				})
			}
			wg.Wait()
			if won.Load() != 1 {
				t.Errorf("%d won", won.Load())
			}
		}
		for range 5 {
			fresh, over := intake("g"), intake("g")
			race(fresh, 1, 1)
			if _, taken := f.claim(t, over, 0, 9); !taken {
				t.Fatal("an event without a record was not taken")
			}
			race(over, 2, 2)
		}
	})
}

// A claim that waits for a transaction that is accepting the event gets a whole
// lease if that transaction rolls back, and the record if it commits.
func TestInboxClaimWaitsForAccept(t *testing.T) {
	eachFace(t, func(t *testing.T, f face, pool *pgxpool.Pool, schema string) {
		for _, commits := range []bool{false, true} {
			in := intake("g")
			tx := f.begin(t, sql.LevelDefault)
			if _, err := tx.accept(t.Context(), waybill.NewID(), in); err != nil {
				t.Fatal(err)
			}
			type answer struct {
				rec   store.InboxRecord
				taken bool
				err   error
			}
			done := make(chan answer, 1)
			go func() {
				var a answer
				a.rec, a.taken, a.err = f.ClaimEvent(t.Context(), in, waybill.NewID(), time.Hour, 3, []byte("kept"))
				done <- a
			}()
			awaitLockWait(t, pool, schema, done)
			var ended time.Time
			if err := pool.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&ended); err != nil {
				t.Fatal(err)
			}
			end := tx.rollback
			if commits {
				end = tx.commit
			}
			if err := end(); err != nil {
				t.Fatal(err)
			}
			a := <-done
			switch {
			case a.err != nil || a.taken == commits:
				t.Errorf("commits: %v; got %+v", commits, a)
			case commits && a.rec.State != store.InboxSucceeded:
				t.Errorf("it committed; got %+v", a.rec)
			case !commits && (a.rec.LeaseUntil.Before(ended.Add(time.Hour)) || string(a.rec.Stored) != "kept"):
				t.Errorf("it rolled back at %v; got %+v", ended, a.rec)
			}
		}
	})
}

func TestInboxAttempts(t *testing.T) {
	eachFace(t, func(t *testing.T, f face, _ *pgxpool.Pool, _ string) {
		in := intake("g")
		fail := func(a driver.Attempt, fl driver.Failure, want bool) {
			t.Helper()
			fl.Owner, fl.Fence = a.Owner, a.Fence
			if did, err := f.FailEvent(t.Context(), in, fl); err != nil || did != want {
				t.Fatalf("FailEvent: %v, %v; want %v", did, err, want)
			}
		}
		succeed := func(a driver.Attempt, want bool) {
			t.Helper()
			tx := f.begin(t, sql.LevelDefault)
			if ok, err := tx.succeed(t.Context(), a); err != nil || ok != want {
				t.Fatalf("Succeed: %v, %v; want %v", ok, err, want)
			}
			if err := tx.commit(); err != nil {
				t.Fatal(err)
			}
		}
		// The first attempt fails without a claim.
		fail(driver.Attempt{}, driver.Failure{Error: "no", Delay: time.Hour, Stored: []byte{}}, true)
		fail(driver.Attempt{}, driver.Failure{Error: "again"}, false)
		rec, taken := f.claim(t, in, time.Hour, 9)
		if taken || rec.State != store.InboxFailed || rec.Attempts != 1 || rec.LastError != "no" || rec.Stored == nil || !rec.Owner.IsZero() ||
			rec.NextRetryAt.Sub(rec.Now) < time.Minute || !rec.ProcessedAt.IsZero() || !rec.LeaseUntil.IsZero() {
			t.Fatalf("an event that is not due: %v, %+v", taken, rec)
		}
		if n, err := f.Redrive(t.Context(), "g", []waybill.ID{in.Key}, 10); err != nil || n != 1 {
			t.Fatal(n, err)
		}
		// A conflict claims nothing.
		conflict := in
		conflict.Hash[15] = 9
		if rec, taken := f.claim(t, conflict, time.Hour, 9); taken || rec.Hash != in.Hash || rec.State != store.InboxFailed {
			t.Fatalf("another hash: %v, %+v", taken, rec)
		}
		// A released attempt does not count.
		rec, taken = f.claim(t, in, time.Hour, 9)
		if !taken || rec.Attempts != 1 || !rec.NextRetryAt.IsZero() {
			t.Fatal(taken, rec)
		}
		if ok, err := f.ReleaseEvent(t.Context(), attemptOf(rec)); err != nil || !ok {
			t.Fatal(ok, err)
		}
		if ok, err := f.ReleaseEvent(t.Context(), attemptOf(rec)); err != nil || ok {
			t.Fatal("twice:", ok, err)
		}
		succeed(attemptOf(rec), false)
		// An attempt whose lease has expired and was taken over can neither
		// succeed nor fail.
		late, taken := f.claim(t, in, 0, 9)
		if !taken || late.Attempts != 1 || late.Fence != rec.Fence+1 {
			t.Fatal(taken, late)
		}
		heir, taken := f.claim(t, in, time.Hour, 9)
		if !taken || heir.Attempts != 2 {
			t.Fatal(taken, heir)
		}
		succeed(attemptOf(late), false)
		fail(attemptOf(late), driver.Failure{}, false)
		fail(attemptOf(heir), driver.Failure{Error: "bad \x00\xff", Dead: true}, true)
		rec, _ = f.find(t, in)
		if rec.State != store.InboxDead || rec.ProcessedAt.IsZero() || rec.LastError != "bad ??" || !rec.LeaseUntil.IsZero() {
			t.Fatalf("a dead event: %+v", rec)
		}
		if rec, taken := f.claim(t, in, time.Hour, 9); taken || rec.State != store.InboxDead {
			t.Fatal(taken, rec)
		}
		if n, err := f.Redrive(t.Context(), "g", nil, 10); err != nil || n != 1 {
			t.Fatal(n, err)
		}
		last, taken := f.claim(t, in, time.Hour, 9)
		if !taken || last.Attempts != 1 || last.Fence != heir.Fence+1 || !last.ProcessedAt.IsZero() {
			t.Fatal(taken, last)
		}
		succeed(attemptOf(last), true)
		if rec, taken := f.claim(t, in, time.Hour, 9); taken || rec.State != store.InboxSucceeded || rec.Owner != last.Owner || rec.Fence != last.Fence {
			t.Fatal(taken, rec)
		}
	})
}

// A record without attempts left is dead, states the reason, and keeps as much
// of its last error as fits.
func TestInboxAttemptsExhausted(t *testing.T) {
	eachFace(t, func(t *testing.T, f face, _ *pgxpool.Pool, _ string) {
		for name, text := range map[string]string{"no error": "", "a short error": "no", "a long error": strings.Repeat("\u20ac", 2000)} {
			in := intake("g")
			if did, err := f.FailEvent(t.Context(), in, driver.Failure{Error: text}); err != nil || !did {
				t.Fatal(did, err)
			}
			// The process crashes after the claim.
			if _, taken := f.claim(t, in, 0, 2); !taken {
				t.Fatal("the second of two attempts was refused")
			}
			var dead atomic.Int64
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					rec, taken, err := f.ClaimEvent(t.Context(), in, waybill.NewID(), time.Hour, 2, nil)
					if err != nil || taken || rec.State != store.InboxDead || rec.Attempts != 2 || rec.ProcessedAt.IsZero() || !rec.LeaseUntil.IsZero() {
						t.Errorf("%s: %v, %+v, %v", name, taken, rec, err)
					}
					if rec.LastError == driver.ExceededError(driver.CutError(text)) && len(rec.LastError) <= 4000 && utf8.ValidString(rec.LastError) {
						dead.Add(1)
					}
				})
			}
			wg.Wait()
			if dead.Load() != 8 {
				rec, _ := f.find(t, in)
				t.Errorf("%s: the error is %q", name, rec.LastError)
			}
		}
	})
}

// A claim is durable when it returns, even in a session with synchronous_commit
// off.
func TestInboxClaimsAreDurable(t *testing.T) {
	pool := openPool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = "off" })
	db, schema := openStore(t, pool)
	for _, query := range []string{
		`CREATE TABLE "` + schema + `".seen (mode text)`,
		`CREATE FUNCTION "` + schema + `".note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO "` + schema + `".seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$`,
		`CREATE CONSTRAINT TRIGGER note AFTER INSERT OR UPDATE ON "` + schema + `".waybill_inbox DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION "` + schema + `".note()`,
	} {
		if _, err := pool.Exec(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	in, lost := intake("g"), intake("g")
	var rec store.InboxRecord
	for name, step := range []func() (bool, error){
		func() (did bool, err error) {
			rec, did, err = db.Driver().Inbox.ClaimEvent(t.Context(), in, waybill.NewID(), time.Hour, 9, nil)
			return did, err
		},
		func() (bool, error) { return db.Driver().Inbox.ReleaseEvent(t.Context(), attemptOf(rec)) },
		func() (did bool, err error) {
			rec, did, err = db.Driver().Inbox.ClaimEvent(t.Context(), in, waybill.NewID(), time.Hour, 9, nil)
			return did, err
		},
		func() (bool, error) {
			return db.Driver().Inbox.FailEvent(t.Context(), in, driver.Failure{Owner: rec.Owner, Fence: rec.Fence})
		},
		func() (bool, error) { return db.Driver().Inbox.FailEvent(t.Context(), lost, driver.Failure{}) },
		func() (bool, error) {
			rec, _, err := db.Driver().Inbox.ClaimEvent(t.Context(), lost, waybill.NewID(), time.Hour, 1, nil)
			return rec.State == store.InboxDead, err
		},
		func() (bool, error) {
			n, err := db.Driver().InboxRecords.Redrive(t.Context(), "g", nil, 9)
			return n == 1, err
		},
	} {
		if did, err := step(); err != nil || !did {
			t.Fatal(name, did, err)
		}
	}
	var n, off int
	err := pool.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE mode = 'off') FROM "`+schema+`".seen`).Scan(&n, &off)
	if err != nil || n != 7 || off != 0 {
		t.Errorf("%d changes, %d of them not durable, %v", n, off, err)
	}
}

// Only a conflict of two transactions is retryable.
func TestInboxRestartable(t *testing.T) {
	eachFace(t, func(t *testing.T, f face, pool *pgxpool.Pool, schema string) {
		if _, err := pool.Exec(t.Context(), `INSERT INTO "`+schema+`".business VALUES ('a'), ('b')`); err != nil {
			t.Fatal(err)
		}
		update := func(tx faceTx, note string) error {
			return tx.exec(t.Context(), `UPDATE "`+schema+`".business SET note = note WHERE note = '`+note+`'`)
		}
		one, two := f.begin(t, sql.LevelDefault), f.begin(t, sql.LevelDefault)
		if err := errors.Join(update(one, "a"), update(two, "b")); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			err := update(one, "b")
			done <- errors.Join(err, one.rollback())
		}()
		awaitLockWait(t, pool, schema, done)
		err := errors.Join(update(two, "a"), two.rollback())
		if err = errors.Join(err, <-done); err == nil || !f.IsRetryable(fmt.Errorf("a handler: %w", err)) {
			t.Errorf("a deadlock: %v", err)
		}
		wrong := f.begin(t, sql.LevelDefault).exec(t.Context(), `SELECT 1/0`)
		if f.IsRetryable(wrong) || f.IsRetryable(errors.New("no")) || f.IsRetryable(nil) {
			t.Errorf("not a collision: %v", wrong)
		}
	})
}

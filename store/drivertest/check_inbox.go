package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// inboxChecks check the records of consumer groups. Package inboxtest checks
// the groups themselves.
func inboxChecks[T any]() []check[T] {
	return []check[T]{
		{row: "accept_events", name: "accept in order, with existing records", run: accepts[T]},
		{row: "accept_events", name: "a rollback leaves no record", run: acceptRollback[T]},
		{row: "accept_events", name: "accept needs an open transaction", needs: foreignTx, run: acceptEnded[T]},
		{row: "claim_events", name: "one of many claims an event", run: claimRace[T]},
		{row: "claim_events", name: "claims, failures and their fences", run: claims[T]},
		{row: "claim_events", name: "attempts are used up", run: claimsUsedUp[T]},
		{row: "overtaken_attempts_roll_back", name: "success under a claim", run: succeeds[T]},
		{row: "due_records", name: "due records", run: dueRecords[T]},
		{row: "last_applied", name: "the last ones first", run: listsApplied[T]},
	}
}

// intake returns an event of a group, with all fields of a record.
func (b *env[T]) intake(group string) store.InboxEntry {
	id := waybill.NewID()
	return store.InboxEntry{Group: group, Key: id, Event: waybill.NewID(), Tenant: "tenant", Type: "Happened", Hash: [16]byte(waybill.NewID())}
}

// inTx runs fn in a transaction of the store and commits it, unless fn fails.
func (b *env[T]) inTx(ctx context.Context, fn func(tx T) error) error {
	s, err := b.beginner.Begin(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(s.Tx()); err != nil {
		return errors.Join(err, s.Rollback(ctx))
	}
	_, err = s.Commit(ctx, nil, false)
	return err
}

func (b *env[T]) accept(ctx context.Context, t tb, owner waybill.ID, in ...store.InboxEntry) (out []driver.AcceptResult) {
	t.Helper()
	err := b.inTx(ctx, func(tx T) (err error) {
		out, err = b.DB.Inbox.Accept(ctx, tx, owner, in)
		return err
	})
	if err != nil || len(out) != len(in) {
		t.Fatalf("Accept of %d events: %d answers, %v", len(in), len(out), err)
	}
	return out
}

func (b *env[T]) record(ctx context.Context, t tb, in store.InboxEntry) store.InboxRecord {
	t.Helper()
	rec, ok, err := b.DB.Inbox.FindRecord(ctx, in.Group, in.Key)
	if err != nil || !ok {
		t.Fatalf("the record of %+v: %v, %v", in, ok, err)
	}
	want(t, "the entry of the record", rec.InboxEntry, in)
	return rec
}

func accepts[T any](ctx context.Context, t tb, b *env[T]) {
	var in []store.InboxEntry
	for range 50 {
		in = append(in, b.intake("Group"))
	}
	owner := waybill.NewID()
	b.accept(ctx, t, owner, in[10], in[20], in[30])
	other := in[5]
	other.Group = "group" // groups compare as bytes
	b.accept(ctx, t, owner, other)
	for i, a := range b.accept(ctx, t, waybill.NewID(), in...) {
		known := i == 10 || i == 20 || i == 30
		wantFields(t, fmt.Sprintf("event %d", i), a, func(w *driver.AcceptResult) {
			w.Busy, w.Accepted = false, !known
			if known {
				w.Record.InboxEntry, w.Record.State, w.Record.Owner = in[i], store.InboxSucceeded, owner
			}
		})
	}
	rec := b.record(ctx, t, in[10])
	wantFields(t, "the record", rec, func(w *store.InboxRecord) { w.Fence, w.Attempts, w.LeaseUntil = 1, 1, time.Time{} })
	if rec.ProcessedAt.IsZero() || rec.ReceivedAt.IsZero() || rec.Now.Before(rec.ProcessedAt) {
		t.Errorf("the event was received at %v and processed at %v; it is %v", rec.ReceivedAt, rec.ProcessedAt, rec.Now)
	}
	if out := b.accept(ctx, t, owner); len(out) != 0 {
		t.Errorf("nothing was answered with %v", out)
	}
}

var errRollBack = errors.New("roll back")

func acceptRollback[T any](ctx context.Context, t tb, b *env[T]) {
	in := b.intake("rolled back")
	err := b.inTx(ctx, func(tx T) error {
		if _, err := b.DB.Inbox.Accept(ctx, tx, waybill.NewID(), []store.InboxEntry{in}); err != nil {
			return err
		}
		return errRollBack
	})
	if !errors.Is(err, errRollBack) {
		t.Fatalf("the transaction: %v", err)
	}
	if rec, ok, err := b.DB.Inbox.FindRecord(ctx, in.Group, in.Key); ok || err != nil {
		t.Errorf("a record is there: %+v, %v", rec, err)
	}
	if out := b.accept(ctx, t, waybill.NewID(), in); !out[0].Accepted {
		t.Errorf("after the rollback: %+v", out[0])
	}
}

func acceptEnded[T any](ctx context.Context, t tb, b *env[T]) {
	tx := b.foreign(ctx, t)
	if err := tx.Commit(); err != nil {
		t.Fatalf("%v", err)
	}
	in := b.intake("G")
	if _, err := b.DB.Inbox.Accept(ctx, tx.Tx, waybill.NewID(), []store.InboxEntry{in}); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("Accept in a transaction that has ended: %v", err)
	}
	if _, ok, err := b.DB.Inbox.FindRecord(ctx, in.Group, in.Key); ok || err != nil {
		t.Errorf("it left a record: %v", err)
	}
}

// claimRace claims an event concurrently: a new one, one whose lease has
// expired, and a failed one that is due.
func claimRace[T any](ctx context.Context, t tb, b *env[T]) {
	lapsed, failed := b.intake("race"), b.intake("race")
	if _, ok, err := b.DB.Inbox.ClaimEvent(ctx, lapsed, waybill.NewID(), 0, 1000, nil); !ok || err != nil {
		t.Fatalf("Claim: %v, %v", ok, err)
	}
	if ok, err := b.DB.Inbox.FailEvent(ctx, failed, driver.Failure{}); !ok || err != nil {
		t.Fatalf("Fail: %v, %v", ok, err)
	}
	for in, before := range map[store.InboxEntry]int64{b.intake("race"): 0, lapsed: 1, failed: 1} {
		var won atomic.Int64
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				rec, ok, err := b.DB.Inbox.ClaimEvent(ctx, in, waybill.NewID(), time.Minute, 1000, nil)
				if err != nil || rec.State != store.InboxProcessing {
					t.Errorf("Claim: %+v, %v", rec, err)
				}
				if ok {
					won.Add(1)
				}
			})
		}
		all.Wait()
		rec := b.record(ctx, t, in)
		if n := won.Load(); n != 1 {
			t.Errorf("%d of 20 have the event", n)
		}
		wantFields(t, "the record", rec, func(w *store.InboxRecord) { w.Fence, w.Attempts = before+1, int(before+1) })
	}
}

func claims[T any](ctx context.Context, t tb, b *env[T]) {
	in := b.intake("claims")
	owner := waybill.NewID()
	kept := []byte{0, 1, 255, '\''}
	rec, ok, err := b.DB.Inbox.ClaimEvent(ctx, in, owner, time.Hour, 5, kept)
	if !ok || err != nil {
		t.Fatalf("the first claim: %v, %v", ok, err)
	}
	wantFields(t, "the first claim", rec, func(w *store.InboxRecord) {
		w.InboxEntry, w.State, w.Owner, w.Fence, w.Attempts, w.Stored = in, store.InboxProcessing, owner, 1, 1, kept
	})
	if left := rec.LeaseUntil.Sub(rec.Now); left < 59*time.Minute || left > time.Hour {
		t.Errorf("its lease is %v", left)
	}
	if rec, ok, err := b.DB.Inbox.ClaimEvent(ctx, in, waybill.NewID(), time.Hour, 5, nil); ok || err != nil || rec.Owner != owner {
		t.Errorf("a claim of a held event: %+v, %v, %v", rec, ok, err)
	}
	for what, f := range map[string]driver.Failure{"another owner": {Owner: waybill.NewID(), Fence: 1}, "another fence": {Owner: owner, Fence: 2}, "no claim": {}} {
		if ok, err := b.DB.Inbox.FailEvent(ctx, in, f); ok || err != nil {
			t.Errorf("a failure of %s was recorded: %v, %v", what, ok, err)
		}
	}
	long := strings.Repeat("ü", 3000)
	if ok, err := b.DB.Inbox.FailEvent(ctx, in, driver.Failure{Owner: owner, Fence: 1, Delay: time.Hour, Error: long}); !ok || err != nil {
		t.Fatalf("Fail: %v, %v", ok, err)
	}
	rec = b.record(ctx, t, in)
	wantFields(t, "after the failure", rec, func(w *store.InboxRecord) {
		w.State, w.LastError, w.Owner, w.LeaseUntil, w.Stored = store.InboxFailed, driver.CutError(long), waybill.ID{}, time.Time{}, kept
	})
	if _, ok, err := b.DB.Inbox.ClaimEvent(ctx, in, owner, time.Hour, 5, nil); ok || err != nil {
		t.Errorf("a claim of an event that is not due: %v, %v", ok, err)
	}
	if n, err := b.DB.Inbox.Redrive(ctx, "claims", []waybill.ID{in.Key}, 10); n != 1 || err != nil {
		t.Fatalf("Redrive: %d, %v", n, err)
	}
	other := in
	other.Hash[0]++
	if _, ok, err := b.DB.Inbox.ClaimEvent(ctx, other, owner, time.Hour, 5, nil); ok || err != nil {
		t.Errorf("a claim with another content: %v, %v", ok, err)
	}
	rec, ok, err = b.DB.Inbox.ClaimEvent(ctx, in, owner, time.Hour, 5, nil)
	if !ok || err != nil {
		t.Fatalf("the second claim: %v, %v", ok, err)
	}
	wantFields(t, "the second claim", rec, func(w *store.InboxRecord) { w.Fence, w.Attempts = 2, 1 })
	a := driver.Attempt{Group: "claims", Key: in.Key, Owner: owner, Fence: 2}
	if ok, err := b.DB.Inbox.ReleaseEvent(ctx, a); !ok || err != nil {
		t.Fatalf("Release: %v, %v", ok, err)
	}
	if ok, err := b.DB.Inbox.ReleaseEvent(ctx, a); ok || err != nil {
		t.Errorf("a second Release: %v, %v", ok, err)
	}
	rec = b.record(ctx, t, in)
	wantFields(t, "after the release", rec, func(w *store.InboxRecord) { w.State, w.Attempts, w.Fence = store.InboxFailed, 0, 2 })
	if rec.NextRetryAt.After(rec.Now) {
		t.Errorf("after the release the event is due at %v; it is %v", rec.NextRetryAt, rec.Now)
	}
}

func claimsUsedUp[T any](ctx context.Context, t tb, b *env[T]) {
	in := b.intake("used up")
	defer b.unchanged(ctx, t, in)()
	for n := range 2 {
		if _, ok, err := b.DB.Inbox.ClaimEvent(ctx, in, waybill.NewID(), 0, 2, nil); !ok || err != nil {
			t.Fatalf("claim %d: %v, %v", n, ok, err)
		}
	}
	rec, ok, err := b.DB.Inbox.ClaimEvent(ctx, in, waybill.NewID(), time.Hour, 2, nil)
	if ok || err != nil || rec.ProcessedAt.IsZero() {
		t.Errorf("the third claim: %v, %v; processed at %v", ok, err, rec.ProcessedAt)
	}
	wantFields(t, "the third claim", rec, func(w *store.InboxRecord) {
		w.State, w.LastError, w.Attempts = store.InboxDead, driver.ExceededMaxAttempts, 2
	})
	failed := b.intake("used up")
	long := strings.Repeat("x", 5000)
	if ok, err := b.DB.Inbox.FailEvent(ctx, failed, driver.Failure{Error: long}); !ok || err != nil {
		t.Fatalf("Fail: %v, %v", ok, err)
	}
	rec, ok, err = b.DB.Inbox.ClaimEvent(ctx, failed, waybill.NewID(), time.Hour, 1, nil)
	if ok || err != nil || rec.State != store.InboxDead || rec.LastError != driver.ExceededError(long) || !strings.HasSuffix(rec.LastError, driver.ExceededMaxAttempts) {
		t.Errorf("a claim beyond its attempts: %v, %v, %v, %q", rec.State, ok, err, rec.LastError)
	}
}

func succeeds[T any](ctx context.Context, t tb, b *env[T]) {
	in := b.intake("succeeds")
	defer b.unchanged(ctx, t, in)()
	owner := waybill.NewID()
	if _, ok, err := b.DB.Inbox.ClaimEvent(ctx, in, owner, time.Hour, 5, nil); !ok || err != nil {
		t.Fatalf("Claim: %v, %v", ok, err)
	}
	a := driver.Attempt{Group: "succeeds", Key: in.Key, Owner: owner, Fence: 1}
	succeed := func(a driver.Attempt) (ok bool) {
		t.Helper()
		err := b.inTx(ctx, func(tx T) (err error) {
			ok, err = b.DB.Inbox.Succeed(ctx, tx, a)
			return err
		})
		if err != nil {
			t.Fatalf("Succeed: %v", err)
		}
		return ok
	}
	for what, wrong := range map[string]driver.Attempt{
		"another owner": {Group: "succeeds", Key: in.Key, Owner: waybill.NewID(), Fence: 1}, "another fence": {Group: "succeeds", Key: in.Key, Owner: owner, Fence: 2},
		"another group": {Group: "H", Key: in.Key, Owner: owner, Fence: 1},
	} {
		if succeed(wrong) {
			t.Errorf("%s succeeded", what)
		}
	}
	_ = b.inTx(ctx, func(tx T) error {
		if ok, err := b.DB.Inbox.Succeed(ctx, tx, a); !ok || err != nil {
			t.Errorf("Succeed: %v, %v", ok, err)
		}
		return errRollBack
	})
	if rec := b.record(ctx, t, in); rec.State != store.InboxProcessing {
		t.Errorf("after a rollback the record is %+v", rec)
	}
	if !succeed(a) || succeed(a) {
		t.Errorf("it did not succeed once")
	}
	rec := b.record(ctx, t, in)
	wantFields(t, "after the success", rec, func(w *store.InboxRecord) { w.State, w.Owner, w.LeaseUntil = store.InboxSucceeded, owner, time.Time{} })
	if rec.ProcessedAt.IsZero() {
		t.Errorf("after the success the record has no time of processing")
	}
	late := b.intake("succeeds")
	if _, ok, err := b.DB.Inbox.ClaimEvent(ctx, late, owner, 0, 5, nil); !ok || err != nil {
		t.Fatalf("Claim: %v, %v", ok, err)
	}
	if !succeed(driver.Attempt{Group: "succeeds", Key: late.Key, Owner: owner, Fence: 1}) {
		t.Errorf("Succeed failed after the lease expired, without a takeover")
	}
	lost := b.intake("succeeds")
	for range 2 {
		if _, ok, err := b.DB.Inbox.ClaimEvent(ctx, lost, owner, 0, 5, nil); !ok || err != nil {
			t.Fatalf("Claim: %v, %v", ok, err)
		}
	}
	if succeed(driver.Attempt{Group: "succeeds", Key: lost.Key, Owner: owner, Fence: 1}) {
		t.Errorf("it succeeded after another attempt had taken over")
	}
}

func dueRecords[T any](ctx context.Context, t tb, b *env[T]) {
	var in []store.InboxEntry
	fail := func(group string, kept []byte, f driver.Failure) {
		t.Helper()
		one := b.intake(group)
		in = append(in, one)
		f.Stored = kept
		if ok, err := b.DB.Inbox.FailEvent(ctx, one, f); !ok || err != nil {
			t.Fatalf("Fail: %v, %v", ok, err)
		}
	}
	kept := []byte("event")
	fail("due", kept, driver.Failure{})                 // due first
	fail("due", kept, driver.Failure{})                 // due next
	fail("due", kept, driver.Failure{Delay: time.Hour}) // not due
	fail("due", nil, driver.Failure{})                  // no stored event
	fail("due", kept, driver.Failure{Dead: true})       // dead
	fail("other", kept, driver.Failure{})               // of another group
	lapsed, held := b.intake("due"), b.intake("due")
	for one, lease := range map[store.InboxEntry]time.Duration{lapsed: 0, held: time.Hour} {
		if _, ok, err := b.DB.Inbox.ClaimEvent(ctx, one, waybill.NewID(), lease, 5, kept); !ok || err != nil {
			t.Fatalf("Claim: %v, %v", ok, err)
		}
	}
	due, err := b.DB.Inbox.DueRecords(ctx, "due", 10)
	if err != nil || len(due) != 3 || due[0].InboxEntry != in[0] || due[1].InboxEntry != in[1] || due[2].InboxEntry != lapsed || string(due[0].Stored) != "event" {
		t.Errorf("due are %+v, %v", due, err)
	}
	if due, err := b.DB.Inbox.DueRecords(ctx, "due", 1); err != nil || len(due) != 1 || due[0].InboxEntry != in[0] {
		t.Errorf("the first that is due is %+v, %v", due, err)
	}
}

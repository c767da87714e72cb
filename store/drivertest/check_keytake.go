package drivertest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// take takes a key in a transaction.
func (b *env[T]) take(ctx context.Context, t tb, tx T, c driver.KeyClaim) driver.KeyTaken {
	t.Helper()
	taken, err := b.DB.Keys.TakeKey(ctx, tx, c)
	if err != nil {
		t.Fatalf("TakeKey: %v", err)
	}
	return taken
}

// keep stores an answer in a transaction, and reports whether it changed
// anything.
func (b *env[T]) keep(ctx context.Context, t tb, tx T, a driver.KeyAttempt, ref string) bool {
	t.Helper()
	ok, err := b.DB.Keys.StoreAnswer(ctx, tx, a, answered(ref).Answer)
	if err != nil {
		t.Fatalf("KeepKey: %v", err)
	}
	return ok
}

// begun starts a transaction of the store, which is rolled back at the end of
// the check unless it was committed.
func (b *env[T]) begun(ctx context.Context, t tb) (tx T, end func(commit bool)) {
	t.Helper()
	s, err := b.beginner.Begin(ctx, nil)
	if err != nil {
		t.Fatalf("Begin: %v", err)
	}
	over := false
	end = func(commit bool) {
		t.Helper()
		if over {
			return
		}
		over = true
		err := error(nil)
		if commit {
			_, err = s.Commit(ctx, nil, false)
		} else {
			err = s.Rollback(ctx)
		}
		if err != nil {
			t.Errorf("the end of a transaction: %v", err)
		}
	}
	b.later(func() { end(false) })
	return s.Tx(), end
}

// taken takes a key and stores an answer, in one transaction.
func (b *env[T]) taken(ctx context.Context, t tb, c driver.KeyClaim, ref string) driver.KeyTaken {
	t.Helper()
	tx, end := b.begun(ctx, t)
	taken := b.take(ctx, t, tx, c)
	if taken.Taken && !b.keep(ctx, t, tx, taken.Attempt, ref) {
		t.Errorf("the answer of %+v was not kept", taken.Attempt)
	}
	end(true)
	return taken
}

func keyTake[T any](ctx context.Context, t tb, b *env[T]) {
	c := b.claim("take")
	got := b.taken(ctx, t, c, "done")
	if !got.Taken || got.Busy || got.Attempt != (driver.KeyAttempt{KeyID: c.KeyID, Owner: c.Owner, Fence: 1}) {
		t.Fatalf("taken as %+v", got)
	}
	rec := b.key(ctx, t, c.KeyID)
	wantFields(t, "the record", rec, func(w *store.KeyRecord) {
		w.State, w.Hash, w.Owner, w.Fence, w.Attempts, w.Ref = store.KeySucceeded, c.Hash, c.Owner, 1, 1, "done"
		w.LeaseUntil = time.Time{}
	})
	if rec.CreatedAt.IsZero() || rec.CompletedAt.IsZero() || !anHour(rec) {
		t.Errorf("the record was made at %v, completed at %v, and expires at %v", rec.CreatedAt, rec.CompletedAt, rec.ExpiresAt)
	}
	for name, hash := range map[string]string{"a repeat": c.Hash, "another request": keyHash("b")} {
		next := again(c)
		next.Hash = hash
		wantFields(t, name, b.taken(ctx, t, next, name), func(w *driver.KeyTaken) {
			w.Taken, w.Busy = false, false
			w.Record.State, w.Record.Hash, w.Record.Ref, w.Record.Result = store.KeySucceeded, c.Hash, "done", []byte("done")
		})
	}
	short := b.claim("expired")
	err := b.inTx(ctx, func(tx T) error {
		got := b.take(ctx, t, tx, short)
		ok, err := b.DB.Keys.StoreAnswer(ctx, tx, got.Attempt, driver.KeyAnswer{Ref: "old"})
		if !ok {
			t.Errorf("it was not kept")
		}
		return err
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	b.wantNoKey(ctx, t, short.KeyID)
	next := again(short)
	next.Hash = keyHash("b")
	if got := b.taken(ctx, t, next, "new"); !got.Taken {
		t.Errorf("an expired key, with another hash: %+v", got)
	}
	wantFields(t, "the record of an expired key", b.key(ctx, t, short.KeyID), func(w *store.KeyRecord) {
		w.Hash, w.Ref, w.Attempts, w.Owner = next.Hash, "new", 1, next.Owner
	})
}

func keyTakeRollback[T any](ctx context.Context, t tb, b *env[T]) {
	c := b.claim("rolled back")
	err := b.inTx(ctx, func(tx T) error {
		b.keep(ctx, t, tx, b.take(ctx, t, tx, c).Attempt, "never")
		return errRollBack
	})
	if !errors.Is(err, errRollBack) {
		t.Fatalf("the transaction: %v", err)
	}
	b.wantNoKey(ctx, t, c.KeyID)
	if got := b.taken(ctx, t, again(c), "after"); !got.Taken || got.Attempt.Fence != 1 {
		t.Errorf("after the rollback: %+v", got)
	}
}

// keyTakeUnkept checks that a commit without an answer changes nothing: for a
// new key, and for a failed one.
func keyTakeUnkept[T any](ctx context.Context, t tb, b *env[T]) {
	fresh, lost := b.claim("unkept"), b.claim("unkept after a failure")
	b.endKey(ctx, t, b.claimed(ctx, t, lost), failed("first"))
	before := b.key(ctx, t, lost.KeyID)
	var attempts []driver.KeyAttempt
	for _, c := range []driver.KeyClaim{fresh, again(lost)} {
		tx, end := b.begun(ctx, t)
		got := b.take(ctx, t, tx, c)
		if !got.Taken {
			t.Fatalf("it was not taken: %+v", got)
		}
		attempts = append(attempts, got.Attempt)
		end(true)
	}
	b.wantNoKey(ctx, t, fresh.KeyID)
	after := b.key(ctx, t, lost.KeyID)
	after.Now = before.Now
	want(t, "the record of the failure", after, before)
	if rec, ok := b.tryClaim(ctx, t, again(fresh)); !ok || rec.Attempts != 1 {
		t.Errorf("a claim afterwards: %v, %+v", ok, rec)
	}
	if rec, ok := b.tryClaim(ctx, t, again(lost)); !ok || rec.Attempts != 2 || rec.Fence != before.Fence+1 {
		t.Errorf("a claim afterwards: %v, %+v", ok, rec)
	}
	for _, a := range attempts {
		tx, end := b.begun(ctx, t)
		if b.keep(ctx, t, tx, a, "stale") {
			t.Errorf("an answer was stored after another attempt had claimed the key")
		}
		end(false)
	}
}

func keyTakeAgain[T any](ctx context.Context, t tb, b *env[T]) {
	lost, lapsed, held := b.claim("take failed"), b.claim("take lapsed"), b.claim("take held")
	b.endKey(ctx, t, b.claimed(ctx, t, lost), failed("first"))
	lapsed.Lease = 0
	late := b.claimed(ctx, t, lapsed)
	b.claimed(ctx, t, held)
	for _, c := range []driver.KeyClaim{lost, lapsed} {
		next := again(c)
		next.Hash = keyHash("b")
		if got := b.taken(ctx, t, next, "no"); got.Taken || got.Busy || got.Record.Hash != c.Hash {
			t.Errorf("another request for %q: %+v", c.Key, got)
		}
		if got := b.taken(ctx, t, again(c), "yes"); !got.Taken || got.Attempt.Fence != 2 {
			t.Errorf("%q: %+v", c.Key, got)
		}
		wantFields(t, "the record of "+c.Key, b.key(ctx, t, c.KeyID), func(w *store.KeyRecord) {
			w.State, w.Fence, w.Attempts, w.Ref, w.LastError = store.KeySucceeded, 2, 2, "yes", ""
		})
	}
	if b.endKey(ctx, t, late, failed("late")) || b.endKey(ctx, t, late, answered("late")) {
		t.Errorf("the attempt that was taken over has ended the second time")
	}
	if got := b.taken(ctx, t, again(held), "no"); got.Taken || got.Busy || got.Record.State != store.KeyProcessing || got.Record.Owner != held.Owner {
		t.Errorf("a held key: %+v", got)
	}
}

// keyTakeBusy checks that while a transaction has a key, others see at once
// that the key is busy: for a new key, and for a failed one. After the commit
// they see the answer; after the rollback they can take the key.
func keyTakeBusy[T any](ctx context.Context, t tb, b *env[T]) {
	if b.features.OneWriter {
		t.Skipf("one transaction writes at a time: the second has waited for the end of the first")
	}
	for _, commit := range []bool{true, false} {
		for _, before := range []string{"new", "failed", "expired"} {
			c := b.claim("busy " + before + map[bool]string{true: " commit", false: " rollback"}[commit])
			switch before {
			case "failed":
				b.endKey(ctx, t, b.claimed(ctx, t, c), failed("first"))
			case "expired":
				b.endKey(ctx, t, b.claimed(ctx, t, c), driver.KeyEnd{State: store.KeySucceeded})
			}
			c = again(c)
			tx, end := b.begun(ctx, t)
			got := b.take(ctx, t, tx, c)
			busy := func(when string) {
				t.Helper()
				other, endOther := b.begun(ctx, t)
				if got := b.take(ctx, t, other, again(c)); !got.Busy || got.Taken {
					t.Errorf("%s, %s: the other got %+v", c.Key, when, got)
				}
				endOther(false)
			}
			busy("taken")
			if !got.Taken || !b.keep(ctx, t, tx, got.Attempt, "done") {
				t.Errorf("%s: not taken, or not kept: %+v", c.Key, got)
			}
			busy("kept")
			end(commit)
			switch got := b.taken(ctx, t, again(c), "second"); {
			case commit && (got.Taken || got.Busy || got.Record.Ref != "done"):
				t.Errorf("%s: after the commit the other got %+v", c.Key, got)
			case !commit && !got.Taken:
				t.Errorf("%s: after the rollback the other got %+v", c.Key, got)
			}
		}
	}
}

// keyTakeRace runs a key in concurrent transactions: one succeeds, whatever the
// others see meanwhile.
func keyTakeRace[T any](ctx context.Context, t tb, b *env[T]) {
	c, note := b.claim("take race"), b.unique("take race")
	var won, repeated atomic.Int64
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			for ctx.Err() == nil {
				got := driver.KeyTaken{}
				err := b.inTx(ctx, func(tx T) (err error) {
					if got, err = b.DB.Keys.TakeKey(ctx, tx, again(c)); err != nil || !got.Taken {
						return errors.Join(err, errRollBack)
					}
					if err := b.insert(ctx, tx, note); err != nil {
						return err
					}
					ok, err := b.DB.Keys.StoreAnswer(ctx, tx, got.Attempt, answered("done").Answer)
					if err == nil && !ok {
						err = errRollBack
					}
					return err
				})
				switch {
				case err == nil:
					won.Add(1)
					return
				case got.Record.State == store.KeySucceeded:
					repeated.Add(1)
					return
				}
			}
		})
	}
	all.Wait()
	if won.Load() != 1 || repeated.Load() != 29 {
		t.Errorf("%d of 30 ran it, %d got its answer", won.Load(), repeated.Load())
	}
	b.wantNotes(ctx, t, note, 1)
	if rec := b.key(ctx, t, c.KeyID); rec.Fence != 1 || rec.Attempts != 1 {
		t.Errorf("the record is %+v", rec)
	}
}

func keyTakeEnded[T any](ctx context.Context, t tb, b *env[T]) {
	tx := b.foreign(ctx, t)
	if err := tx.Commit(); err != nil {
		t.Fatalf("%v", err)
	}
	c := b.claim("ended")
	if _, err := b.DB.Keys.TakeKey(ctx, tx.Tx, c); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("TakeKey in a transaction that has ended: %v", err)
	}
	held := b.claim("ended and held")
	a := b.claimed(ctx, t, held)
	if _, err := b.DB.Keys.StoreAnswer(ctx, tx.Tx, a, answered("no").Answer); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("KeepKey in a transaction that has ended: %v", err)
	}
	if _, err := b.DB.Keys.SavePoint(ctx, tx.Tx, a, store.KeyPoint{Name: "no"}); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("SavePoint in a transaction that has ended: %v", err)
	}
	b.wantNoKey(ctx, t, c.KeyID)
	if rec := b.key(ctx, t, held.KeyID); rec.State != store.KeyProcessing || rec.Point.Name != "" {
		t.Errorf("they left %+v", rec)
	}
}

func keyKeepClaimed[T any](ctx context.Context, t tb, b *env[T]) {
	c := b.claim("keep claimed")
	a := b.claimed(ctx, t, c)
	for what, wrong := range strangers(a) {
		tx, end := b.begun(ctx, t)
		if b.keep(ctx, t, tx, wrong, "no") {
			t.Errorf("%s kept an answer", what)
		}
		end(false)
	}
	tx, end := b.begun(ctx, t)
	if !b.keep(ctx, t, tx, a, "rolled back") {
		t.Errorf("it was not kept")
	}
	end(false)
	if rec := b.key(ctx, t, c.KeyID); rec.State != store.KeyProcessing || rec.Owner != c.Owner {
		t.Errorf("after a rollback the record is %+v", rec)
	}
	tx, end = b.begun(ctx, t)
	if !b.keep(ctx, t, tx, a, "done") || b.keep(ctx, t, tx, a, "twice") {
		t.Errorf("it was not kept once")
	}
	end(true)
	wantFields(t, "the record", b.key(ctx, t, c.KeyID), func(w *store.KeyRecord) {
		w.State, w.Ref, w.Fence, w.Attempts, w.LeaseUntil = store.KeySucceeded, "done", 1, 1, time.Time{}
	})
}

// keyKeepLate checks that a lease that expires before or inside a transaction
// changes nothing, as long as no other attempt has taken over: the fence
// decides.
func keyKeepLate[T any](ctx context.Context, t tb, b *env[T]) {
	c, other := b.claim("keep late"), b.claim("begins the transaction")
	a := b.claimed(ctx, t, c)
	if b.features.OneWriter {
		b.lapse(ctx, t, a)
	}
	tx, end := b.begun(ctx, t)
	b.take(ctx, t, tx, other)
	if !b.features.OneWriter {
		b.lapse(ctx, t, a)
	}
	if ok, err := b.DB.Keys.SavePoint(ctx, tx, a, store.KeyPoint{Name: "late"}); !ok || err != nil {
		t.Errorf("a point was not saved after the lease was over: %v, %v", ok, err)
	}
	if !b.keep(ctx, t, tx, a, "late") {
		t.Errorf("an answer was not kept after the lease was over")
	}
	end(false)
	if ok, err := b.DB.Keys.RenewKey(ctx, a, time.Hour); !ok || err != nil {
		t.Errorf("a lease was not renewed after it was over: %v, %v", ok, err)
	}
	if rec, ok := b.tryClaim(ctx, t, again(c)); ok || rec.Fence != a.Fence {
		t.Errorf("a lease that was renewed was taken over: %+v", rec)
	}
	b.lapse(ctx, t, a)
	b.claimed(ctx, t, again(c))
	tx, end = b.begun(ctx, t)
	if ok, err := b.DB.Keys.SavePoint(ctx, tx, a, store.KeyPoint{Name: "late"}); ok || err != nil {
		t.Errorf("a point was saved after another one took over: %v, %v", ok, err)
	}
	if b.keep(ctx, t, tx, a, "late") {
		t.Errorf("an answer was kept after another one took over")
	}
	end(false)
	if ok, err := b.DB.Keys.RenewKey(ctx, a, time.Hour); ok || err != nil {
		t.Errorf("a lease was renewed after another one took over: %v, %v", ok, err)
	}
	if rec := b.key(ctx, t, c.KeyID); rec.State != store.KeyProcessing || rec.Point.Name != "" || rec.Fence != a.Fence+1 {
		t.Errorf("the record is %+v", rec)
	}
}

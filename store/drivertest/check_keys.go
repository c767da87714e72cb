package drivertest

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// keyChecks check the records of idempotency keys. Package idempotency checks
// the requests themselves.
func keyChecks[T any]() []check[T] {
	return []check[T]{
		{row: "claim_keys", name: "claim, and the existing record", run: keyClaims[T]},
		{row: "claim_keys", name: "expiry comes before the hash", run: keyExpires[T]},
		{row: "claim_keys", name: "names compare as bytes", run: keyNames[T]},
		{row: "concurrent_key_claims", name: "one of many claims a key", run: keyRace[T]},
		{row: "end_keys", name: "ends need owner and fence", run: keyEnds[T]},
		{row: "end_keys", name: "a success needs its fence and not its lease", run: keyLateSuccess[T]},
		{row: "end_keys", name: "a late failure overwrites nothing", run: keyLateFailure[T]},
		{row: "end_keys", name: "uncertain is never taken", run: keyUncertain[T]},
		{row: "take_keys", name: "take and store", run: keyTake[T]},
		{row: "take_keys", name: "a rollback leaves nothing", run: keyTakeRollback[T]},
		{row: "take_keys", name: "a commit without an answer leaves nothing", run: keyTakeUnkept[T]},
		{row: "take_keys", name: "taking failed and lapsed keys", run: keyTakeAgain[T]},
		{row: "take_keys", name: "others are busy at once", run: keyTakeBusy[T]},
		{row: "take_keys", name: "one of many takes a key", run: keyTakeRace[T]},
		{row: "take_keys", name: "take needs an open transaction", needs: foreignTx, run: keyTakeEnded[T]},
		{row: "claimed_keys", name: "storing the answer of a claimed attempt", run: keyKeepClaimed[T]},
		{row: "claimed_keys", name: "a lease ends inside a transaction", run: keyKeepLate[T]},
		{row: "claimed_keys", name: "points", run: keyPoints[T]},
		{row: "claimed_keys", name: "renewing a lease", run: keyRenew[T]},
		{row: "stored_answers", name: "answers come back byte for byte", run: keyAnswers[T]},
		{row: "stored_answers", name: "answers expire before their record", run: keyAnswerExpires[T]},
		{row: "stored_answers", name: "a peek sees valid answers", run: keyPeeks[T]},
		{row: "inspect_keys", name: "lists in pages", fresh: true, run: keyLists[T]},
		{row: "inspect_keys", name: "stats", fresh: true, run: keyCounts[T]},
		{row: "inspect_keys", name: "an operator decides", run: keyResolves[T]},
		{row: "purge_keys", name: "purge in batches", fresh: true, run: keyPurges[T]},
		{row: "purge_keys", name: "records that a purge has passed", fresh: true, run: keyPurgesLater[T]},
	}
}

// keyHash returns a request's hash; every letter gives another one.
func keyHash(letter string) string { return "v1:" + strings.Repeat(letter, 64) }

// claim returns a claim of a key.
func (b *env[T]) claim(key string) driver.KeyClaim {
	return driver.KeyClaim{
		KeyID: store.KeyID{Tenant: "tenant", Operation: b.unique("operation"), Key: key},
		// Retention is a hint, mostly wrong.
		Hash: keyHash("a"), Owner: waybill.NewID(), Lease: time.Hour, Retention: time.Millisecond,
	}
}

// again returns the same claim of another attempt.
func again(c driver.KeyClaim) driver.KeyClaim {
	c.Owner = waybill.NewID()
	return c
}

// tryClaim claims a key.
func (b *env[T]) tryClaim(ctx context.Context, t tb, c driver.KeyClaim) (store.KeyRecord, bool) {
	t.Helper()
	rec, ok, err := b.DB.Keys.ClaimKey(ctx, c)
	if err != nil {
		t.Fatalf("ClaimKey: %v", err)
	}
	return rec, ok
}

// claimed claims a key that is free.
func (b *env[T]) claimed(ctx context.Context, t tb, c driver.KeyClaim) driver.KeyAttempt {
	t.Helper()
	rec, ok := b.tryClaim(ctx, t, c)
	if !ok {
		t.Fatalf("the key was not taken: %+v", rec)
	}
	return driver.KeyAttempt{KeyID: c.KeyID, Owner: c.Owner, Fence: rec.Fence}
}

// endKey ends an attempt, and reports whether it changed anything.
func (b *env[T]) endKey(ctx context.Context, t tb, a driver.KeyAttempt, end driver.KeyEnd) bool {
	t.Helper()
	ok, err := b.DB.Keys.EndKey(ctx, a, end)
	if err != nil {
		t.Fatalf("EndKey: %v", err)
	}
	return ok
}

// key returns a live record.
func (b *env[T]) key(ctx context.Context, t tb, id store.KeyID) store.KeyRecord {
	t.Helper()
	rec, ok, err := b.DB.Keys.FindKey(ctx, id)
	if err != nil || !ok || rec.KeyID != id {
		t.Fatalf("the record of %+v: %v, %+v, %v", id, ok, rec, err)
	}
	return rec
}

// wantNoKey asserts that a key has no live record.
func (b *env[T]) wantNoKey(ctx context.Context, t tb, id store.KeyID) {
	t.Helper()
	if rec, ok, err := b.DB.Keys.FindKey(ctx, id); ok || err != nil {
		t.Errorf("there is a record of %+v: %+v, %v", id, rec, err)
	}
}

// answered is the end of a success.
func answered(ref string) driver.KeyEnd {
	return driver.KeyEnd{State: store.KeySucceeded, Answer: driver.KeyAnswer{Ref: ref, Result: []byte(ref), Retention: time.Hour}}
}

// failed is the end of a failure that may be retried.
func failed(text string) driver.KeyEnd {
	return driver.KeyEnd{State: store.KeyFailed, Code: "code", Error: text, Answer: driver.KeyAnswer{Retention: time.Hour}}
}

// anHour reports whether a record expires about an hour after its end.
func anHour(rec store.KeyRecord) bool {
	return (rec.ExpiresAt.Sub(rec.CompletedAt) - time.Hour).Abs() < time.Second
}

func keyClaims[T any](ctx context.Context, t tb, b *env[T]) {
	c := b.claim("claims")
	rec, ok := b.tryClaim(ctx, t, c)
	if !ok {
		t.Fatalf("the first claim was rejected: %+v", rec)
	}
	held := func(w *store.KeyRecord) {
		w.KeyID, w.Hash, w.State, w.Owner, w.Fence, w.Attempts = c.KeyID, c.Hash, store.KeyProcessing, c.Owner, 1, 1
	}
	wantFields(t, "the first claim", rec, held)
	made := rec.CreatedAt // later claims must return the same time
	if made.IsZero() {
		t.Errorf("the claim does not say when the record was made: %+v", rec)
	}
	rec = b.key(ctx, t, c.KeyID)
	if left := rec.LeaseUntil.Sub(rec.Now); left < 59*time.Minute || left > time.Hour {
		t.Errorf("the lease of an hour ends after %v", left)
	}
	wantFields(t, "the times of a claim", rec, func(w *store.KeyRecord) {
		w.CreatedAt, w.ExpiresAt, w.CompletedAt = made, time.Time{}, time.Time{}
	})
	for what, repeated := range map[string]driver.KeyClaim{"a claim of a held key": again(c), "the same claim again": c} {
		rec, ok := b.tryClaim(ctx, t, repeated)
		if ok {
			t.Errorf("%s was accepted", what)
		}
		wantFields(t, what, rec, held)
	}
	a := driver.KeyAttempt{KeyID: c.KeyID, Owner: c.Owner, Fence: 1}
	other := again(c)
	other.Hash = keyHash("b")
	conflict := func(state store.KeyState) {
		t.Helper()
		before := b.key(ctx, t, c.KeyID)
		rec, ok := b.tryClaim(ctx, t, other)
		if ok {
			t.Errorf("another request was accepted, in state %s", state)
		}
		wantFields(t, "another request", rec, func(w *store.KeyRecord) { w.Hash, w.State = c.Hash, state })
		wantFields(t, "the record after another request", b.key(ctx, t, c.KeyID), func(w *store.KeyRecord) {
			w.Owner, w.Fence, w.State, w.Attempts = before.Owner, before.Fence, before.State, before.Attempts
		})
	}
	conflict(store.KeyProcessing)
	if !b.endKey(ctx, t, a, failed("first")) {
		t.Fatalf("the attempt did not fail")
	}
	conflict(store.KeyFailed)
	rec = b.key(ctx, t, c.KeyID)
	wantFields(t, "after the failure", rec, func(w *store.KeyRecord) {
		w.Code, w.LastError, w.LeaseUntil = "code", "first", time.Time{}
	})
	if left := rec.ExpiresAt.Sub(rec.Now); left < 59*time.Minute {
		t.Errorf("after the failure the record expires in %v, want an hour", left)
	}
	second := again(c)
	rec, ok = b.tryClaim(ctx, t, second)
	if !ok {
		t.Fatalf("a claim of a failed key was rejected: %+v", rec)
	}
	wantFields(t, "a claim of a failed key", rec, func(w *store.KeyRecord) {
		w.Fence, w.Attempts, w.Owner, w.State, w.ExpiresAt = 2, 2, second.Owner, store.KeyProcessing, time.Time{}
	})
	if !b.endKey(ctx, t, driver.KeyAttempt{KeyID: c.KeyID, Owner: second.Owner, Fence: 2}, answered("done")) {
		t.Fatalf("the second attempt did not succeed")
	}
	conflict(store.KeySucceeded)
	rec, ok = b.tryClaim(ctx, t, again(c))
	if ok {
		t.Errorf("a repeat of a success was accepted")
	}
	wantFields(t, "a repeat", rec, func(w *store.KeyRecord) {
		w.State, w.Ref, w.Result, w.Owner, w.Fence, w.Attempts = store.KeySucceeded, "done", []byte("done"), second.Owner, 2, 2
		w.LeaseUntil = time.Time{}
	})
	if rec.CompletedAt.IsZero() || rec.CompletedAt.After(rec.Now) || !anHour(rec) {
		t.Errorf("a success completed at %v and expires at %v; it is %v", rec.CompletedAt, rec.ExpiresAt, rec.Now)
	}
}

// keyExpires checks that an expired record counts as missing, whatever its hash
// and its state.
func keyExpires[T any](ctx context.Context, t tb, b *env[T]) {
	for name, end := range map[string]driver.KeyEnd{
		"succeeded": {State: store.KeySucceeded, Answer: driver.KeyAnswer{Ref: "old", Result: []byte("old")}},
		"failed":    {State: store.KeyFailed, Code: "old", Error: "old"},
	} {
		c := b.claim("expired " + name)
		c.Lease = time.Minute
		a := b.claimed(ctx, t, c)
		b.point(ctx, t, a, "old")
		if !b.endKey(ctx, t, a, end) { // expires at once
			t.Fatalf("the attempt did not end as %s", name)
		}
		b.wantNoKey(ctx, t, c.KeyID)
		next := again(c)
		next.Hash = keyHash("b")
		rec, ok := b.tryClaim(ctx, t, next)
		if !ok {
			t.Fatalf("a claim of a key that has %s and expired, with another hash, was rejected: %+v", name, rec)
		}
		// Nothing is inherited.
		wantFields(t, "a claim of a key that has "+name+" and expired", rec, func(w *store.KeyRecord) {
			*w = store.KeyRecord{
				KeyID: next.KeyID, Hash: next.Hash, Owner: next.Owner, Attempts: 1, State: store.KeyProcessing,
				Fence: w.Fence, LeaseUntil: w.LeaseUntil, CreatedAt: w.CreatedAt, Now: w.Now,
			}
		})
	}
}

func keyNames[T any](ctx context.Context, t tb, b *env[T]) {
	op := b.unique("names")
	ids := []store.KeyID{
		{Tenant: "t", Operation: op, Key: "abc"},
		{Tenant: "t", Operation: op, Key: "ABC"},
		{Tenant: "t", Operation: op, Key: "abc "},
		{Tenant: "t", Operation: op, Key: "äbc"},
		{Tenant: "t", Operation: op, Key: "a\u0308bc"},
		{Tenant: "T", Operation: op, Key: "abc"},
		{Tenant: "", Operation: op, Key: "abc"},
		{Tenant: "t", Operation: op + "X", Key: "abc"},
		{Tenant: "t", Operation: op + "x", Key: "abc"},
		{Tenant: "t", Operation: op, Key: "it's \\ \"quoted\" {owner} ?"},
		{Tenant: "t", Operation: op, Key: "not UTF-8: \xff\xfe"},
		{Tenant: strings.Repeat("t", 64), Operation: strings.Repeat("o", 128), Key: strings.Repeat("k", 255)},
	}
	for i, id := range ids {
		c := b.claim("")
		c.KeyID = id
		a := b.claimed(ctx, t, c)
		if a.Fence != 1 || !b.endKey(ctx, t, a, answered(string(rune('a'+i)))) {
			t.Errorf("%+v is not a key of its own", id)
		}
	}
	for i, id := range ids {
		if rec := b.key(ctx, t, id); rec.Ref != string(rune('a'+i)) {
			t.Errorf("%+v has the answer %q", id, rec.Ref)
		}
	}
}

// keyRace claims a key concurrently: a new one, a failed one, and one whose
// lease has expired.
func keyRace[T any](ctx context.Context, t tb, b *env[T]) {
	fresh, lost, lapsed := b.claim("new"), b.claim("failed"), b.claim("lapsed")
	b.endKey(ctx, t, b.claimed(ctx, t, lost), failed("once"))
	late := lapsed
	late.Lease = 0
	b.claimed(ctx, t, late)
	for _, one := range []struct {
		c      driver.KeyClaim
		before int64
	}{{fresh, 0}, {lost, 1}, {lapsed, 1}} {
		var won atomic.Int64
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				rec, ok, err := b.DB.Keys.ClaimKey(ctx, again(one.c))
				if err != nil || rec.State != store.KeyProcessing {
					t.Errorf("ClaimKey: %+v, %v", rec, err)
				}
				if ok {
					won.Add(1)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 {
			t.Errorf("%d of 100 have the key %q", won.Load(), one.c.Key)
		}
		wantFields(t, "the key "+one.c.Key, b.key(ctx, t, one.c.KeyID), func(w *store.KeyRecord) {
			w.Fence, w.Attempts = one.before+1, int(one.before+1)
		})
	}
}

package drivertest

import (
	"context"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// strangers returns attempts that do not hold the key of a.
func strangers(a driver.KeyAttempt) map[string]driver.KeyAttempt {
	owner, fence, tenant, operation, key, older := a, a, a, a, a, a
	owner.Owner, fence.Fence, older.Fence = waybill.NewID(), a.Fence+1, a.Fence-1
	tenant.Tenant, operation.Operation, key.Key = "another tenant", "another operation", "another key"
	return map[string]driver.KeyAttempt{
		"another owner": owner, "a later fence": fence, "an earlier fence": older, "another tenant": tenant, "another operation": operation, "another key": key,
	}
}

func keyEnds[T any](ctx context.Context, t tb, b *env[T]) {
	for _, end := range []driver.KeyEnd{answered("done"), failed("no"), {State: store.KeyUncertain, Error: "who knows"}} {
		c := b.claim("ends " + end.State.String())
		a := b.claimed(ctx, t, c)
		for what, wrong := range strangers(a) {
			if b.endKey(ctx, t, wrong, end) {
				t.Errorf("%s ended the attempt as %s", what, end.State)
			}
		}
		wantFields(t, "the record after other attempts", b.key(ctx, t, c.KeyID), func(w *store.KeyRecord) {
			w.State, w.Owner, w.Fence = store.KeyProcessing, c.Owner, 1
		})
		if !b.endKey(ctx, t, a, end) || b.endKey(ctx, t, a, end) || b.endKey(ctx, t, a, failed("again")) || b.endKey(ctx, t, a, answered("again")) {
			t.Errorf("the attempt did not end as %s once", end.State)
		}
		rec := b.key(ctx, t, c.KeyID)
		wantFields(t, "an attempt that ended as "+end.State.String(), rec, func(w *store.KeyRecord) {
			w.State, w.LastError, w.Code, w.Ref, w.LeaseUntil = end.State, end.Error, end.Code, end.Answer.Ref, time.Time{}
		})
		if rec.ExpiresAt.IsZero() != (end.State == store.KeyUncertain) {
			t.Errorf("a record that is %s expires at %v", end.State, rec.ExpiresAt)
		}
	}
	long := strings.Repeat("ü", 3000)
	a := b.claimed(ctx, t, b.claim("long"))
	if !b.endKey(ctx, t, a, failed(long)) || b.key(ctx, t, a.KeyID).LastError != driver.CutError(long) {
		t.Errorf("a long error was not cut")
	}
}

// keyLateSuccess checks that an attempt may end after its lease as long as no
// other attempt has taken over. Afterwards EndKey reports false, and the second
// attempt, which took over with the next fence, has the key.
func keyLateSuccess[T any](ctx context.Context, t tb, b *env[T]) {
	alone := b.claim("late and alone")
	alone.Lease = 0
	if !b.endKey(ctx, t, b.claimed(ctx, t, alone), answered("late")) {
		t.Errorf("a success needs no lease, if no other attempt has taken over")
	}
	if rec, ok := b.tryClaim(ctx, t, again(alone)); ok || rec.State != store.KeySucceeded || rec.Ref != "late" || rec.Attempts != 1 {
		t.Errorf("a claim of it: %v, %+v", ok, rec)
	}
	c := b.claim("late success")
	c.Lease = 0
	first := b.claimed(ctx, t, c)
	next := again(c)
	next.Lease = time.Hour
	second := b.claimed(ctx, t, next)
	if rec := b.key(ctx, t, c.KeyID); second.Fence != first.Fence+1 || rec.Attempts != 2 || rec.Owner != next.Owner {
		t.Errorf("the second took over as %+v, %+v", second, rec)
	}
	if b.endKey(ctx, t, first, answered("late")) || !b.endKey(ctx, t, second, answered("in time")) || b.endKey(ctx, t, first, answered("late")) {
		t.Errorf("not only the second succeeded")
	}
	if rec := b.key(ctx, t, c.KeyID); rec.Ref != "in time" {
		t.Errorf("the answer is of %q", rec.Ref)
	}
	own := b.claim("late failure")
	own.Lease = 0
	if !b.endKey(ctx, t, b.claimed(ctx, t, own), failed("late")) {
		t.Errorf("a failure needs no lease, if no other attempt has taken over")
	}
}

func keyLateFailure[T any](ctx context.Context, t tb, b *env[T]) {
	for _, end := range []driver.KeyEnd{failed("late"), {State: store.KeyUncertain, Error: "late"}} {
		c := b.claim("overwrite " + end.State.String())
		c.Lease = 0
		first := b.claimed(ctx, t, c)
		next := again(c)
		next.Lease = time.Hour
		second := b.claimed(ctx, t, next)
		if b.endKey(ctx, t, first, end) {
			t.Errorf("a late end as %s took the key from its holder", end.State)
		}
		if !b.endKey(ctx, t, second, answered("done")) || b.endKey(ctx, t, first, end) || b.endKey(ctx, t, second, end) {
			t.Errorf("a late end as %s overwrote a success", end.State)
		}
		rec := b.key(ctx, t, c.KeyID)
		wantFields(t, "after a late end as "+end.State.String(), rec, func(w *store.KeyRecord) {
			w.State, w.Ref, w.LastError = store.KeySucceeded, "done", ""
		})
		if rec.ExpiresAt.IsZero() {
			t.Errorf("after a late end as %s the success does not expire", end.State)
		}
	}
}

// keyUncertain checks that an uncertain key is never taken and does not expire.
func keyUncertain[T any](ctx context.Context, t tb, b *env[T]) {
	c := b.claim("uncertain")
	c.Lease = 0
	a := b.claimed(ctx, t, c)
	if !b.endKey(ctx, t, a, driver.KeyEnd{State: store.KeyUncertain, Code: "charged", Error: "who knows"}) {
		t.Fatalf("the attempt did not end")
	}
	if rec, ok := b.tryClaim(ctx, t, again(c)); ok || rec.State != store.KeyUncertain || rec.Fence != a.Fence || rec.Code != "charged" {
		t.Errorf("a claim of it: %v, %+v", ok, rec)
	}
	_ = b.inTx(ctx, func(tx T) error {
		if taken, err := b.DB.Keys.TakeKey(ctx, tx, again(c)); err != nil || taken.Taken || taken.Busy || taken.Record.State != store.KeyUncertain {
			t.Errorf("taking it: %+v, %v", taken, err)
		}
		return errRollBack
	})
}

// keyResolves checks that an operator can resolve an uncertain key, both ways,
// and no other key.
func keyResolves[T any](ctx context.Context, t tb, b *env[T]) {
	unsure := func(name string) driver.KeyClaim {
		t.Helper()
		c := b.claim(name)
		a := b.claimed(ctx, t, c)
		b.point(ctx, t, a, "paid")
		if !b.endKey(ctx, t, a, driver.KeyEnd{State: store.KeyUncertain, Error: "who knows"}) {
			t.Fatalf("the attempt did not end")
		}
		return c
	}
	resolve := func(id store.KeyID, end driver.KeyEnd) bool {
		t.Helper()
		ok, err := b.DB.Keys.ResolveKey(ctx, id, end)
		if err != nil {
			t.Fatalf("ResolveKey: %v", err)
		}
		return ok
	}
	done, retry, running := unsure("done"), unsure("again"), b.claim("running")
	b.claimed(ctx, t, running)
	if !resolve(done.KeyID, answered("by hand")) || resolve(done.KeyID, answered("twice")) || resolve(done.KeyID, failed("twice")) {
		t.Errorf("it was not resolved once")
	}
	if rec, ok := b.tryClaim(ctx, t, again(done)); ok || rec.State != store.KeySucceeded || rec.Ref != "by hand" || string(rec.Result) != "by hand" ||
		rec.LastError != "" || !anHour(rec) {
		t.Errorf("a repeat got %v, %+v", ok, rec)
	}
	if !resolve(retry.KeyID, failed("again")) {
		t.Errorf("it was not given free")
	}
	rec := b.key(ctx, t, retry.KeyID)
	wantFields(t, "a key that was given free", rec, func(w *store.KeyRecord) { w.State, w.Code, w.LastError = store.KeyFailed, "code", "again" })
	if !anHour(rec) {
		t.Errorf("a key that was given free at %v expires at %v", rec.CompletedAt, rec.ExpiresAt)
	}
	if rec, ok := b.tryClaim(ctx, t, again(retry)); !ok || rec.Fence != 2 || rec.Attempts != 2 || rec.Point.Name != "paid" {
		t.Errorf("after it was given free: %v, %+v", ok, rec)
	}
	still := unsure("still")
	tenant, operation, key := still.KeyID, still.KeyID, still.KeyID
	tenant.Tenant, operation.Operation, key.Key = "another tenant", "another operation", "another key"
	for what, id := range map[string]store.KeyID{
		"a running attempt": running.KeyID, "another tenant's key": tenant, "another operation's key": operation, "another key": key,
	} {
		if resolve(id, answered("no")) || resolve(id, failed("no")) {
			t.Errorf("%s was resolved", what)
		}
	}
	if rec := b.key(ctx, t, still.KeyID); rec.State != store.KeyUncertain {
		t.Errorf("the resolution of other keys resolved it as %v", rec.State)
	}
}

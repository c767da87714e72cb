package drivertest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// point saves a point of a claimed attempt, and commits it.
func (b *env[T]) point(ctx context.Context, t tb, a driver.KeyAttempt, name string) {
	t.Helper()
	tx, end := b.begun(ctx, t)
	if ok, err := b.DB.Keys.SavePoint(ctx, tx, a, store.KeyPoint{Name: name, Data: []byte(name)}); !ok || err != nil {
		t.Fatalf("SavePoint: %v, %v", ok, err)
	}
	end(true)
}

// lapse makes the lease of an attempt expire.
func (b *env[T]) lapse(ctx context.Context, t tb, a driver.KeyAttempt) {
	t.Helper()
	if ok, err := b.DB.Keys.RenewKey(ctx, a, time.Millisecond); !ok || err != nil {
		t.Fatalf("RenewKey: %v, %v", ok, err)
	}
	b.await(ctx, t, "the lease is over", func() bool {
		rec := b.key(ctx, t, a.KeyID)
		return !rec.LeaseUntil.After(rec.Now)
	})
}

func keyPoints[T any](ctx context.Context, t tb, b *env[T]) {
	c := b.claim("points")
	a := b.claimed(ctx, t, c)
	for what, wrong := range strangers(a) {
		tx, end := b.begun(ctx, t)
		if ok, err := b.DB.Keys.SavePoint(ctx, tx, wrong, store.KeyPoint{Name: "no"}); ok || err != nil {
			t.Errorf("%s saved a point: %v, %v", what, ok, err)
		}
		end(false)
	}
	tx, end := b.begun(ctx, t)
	if ok, err := b.DB.Keys.SavePoint(ctx, tx, a, store.KeyPoint{Name: "rolled back"}); !ok || err != nil {
		t.Errorf("SavePoint: %v, %v", ok, err)
	}
	end(false)
	if rec := b.key(ctx, t, c.KeyID); rec.Point.Name != "" || rec.Point.Data != nil {
		t.Errorf("after a rollback the point is %+v", rec.Point)
	}
	b.point(ctx, t, a, "first")
	b.point(ctx, t, a, "second")
	b.point(ctx, t, a, "second") // the holder may save it again
	if rec := b.key(ctx, t, c.KeyID); rec.Point.Name != "second" || string(rec.Point.Data) != "second" || rec.State != store.KeyProcessing || rec.Fence != 1 {
		t.Errorf("the record is %+v", rec)
	}
	b.endKey(ctx, t, a, failed("later"))
	rec, ok := b.tryClaim(ctx, t, again(c))
	if !ok || rec.Point.Name != "second" || string(rec.Point.Data) != "second" {
		t.Errorf("the next attempt: %v, %+v", ok, rec)
	}
	lapsed := b.claim("points of one that died")
	a = b.claimed(ctx, t, lapsed)
	b.point(ctx, t, a, "reached")
	b.lapse(ctx, t, a)
	rec, ok = b.tryClaim(ctx, t, again(lapsed))
	if !ok || rec.Point.Name != "reached" || string(rec.Point.Data) != "reached" || rec.Fence != 2 {
		t.Errorf("the new attempt has %+v", rec)
	}
}

func keyRenew[T any](ctx context.Context, t tb, b *env[T]) {
	c := b.claim("renew")
	c.Lease = time.Minute
	a := b.claimed(ctx, t, c)
	renew := func(a driver.KeyAttempt) bool {
		t.Helper()
		ok, err := b.DB.Keys.RenewKey(ctx, a, time.Hour)
		if err != nil {
			t.Fatalf("RenewKey: %v", err)
		}
		return ok
	}
	for what, wrong := range strangers(a) {
		if renew(wrong) {
			t.Errorf("%s renewed the lease", what)
		}
	}
	if rec := b.key(ctx, t, c.KeyID); rec.LeaseUntil.Sub(rec.Now) > time.Minute {
		t.Errorf("strangers made the lease end at %v", rec.LeaseUntil)
	}
	if !renew(a) {
		t.Errorf("the lease was not renewed")
	}
	if rec := b.key(ctx, t, c.KeyID); rec.LeaseUntil.Sub(rec.Now) < 50*time.Minute || rec.Fence != 1 || rec.Attempts != 1 {
		t.Errorf("the record is %+v", rec)
	}
	if !b.endKey(ctx, t, a, answered("done")) || renew(a) {
		t.Errorf("the lease of a success was renewed")
	}
}

func keyAnswers[T any](ctx context.Context, t tb, b *env[T]) {
	size := 1 << 20
	if b.short {
		size = 1 << 17
	}
	large := make([]byte, size)
	for i := range large {
		large[i] = byte(rand.Uint32())
	}
	answers := map[string]driver.KeyAnswer{
		"nothing": {},
		"empty":   {Result: []byte{}},
		"bytes":   {Ref: "ord_1 'ü' \\", Result: []byte{0, 1, 255, '\'', '\\', 0}, ContentType: "text/plain; charset=\"\xe9\""},
		"large":   {Ref: strings.Repeat("r", 255), Result: large, ContentType: "application/octet-stream"},
		"lost":    {Ref: "ord_2", Lost: true},
	}
	for name, answer := range answers {
		answer.Retention = time.Hour
		ended, kept, taken := b.claim("ended "+name), b.claim("kept "+name), b.claim("taken "+name)
		if !b.endKey(ctx, t, b.claimed(ctx, t, ended), driver.KeyEnd{State: store.KeySucceeded, Answer: answer}) {
			t.Fatalf("%s: the attempt did not end", name)
		}
		a := b.claimed(ctx, t, kept)
		tx, end := b.begun(ctx, t)
		for _, a := range []driver.KeyAttempt{a, b.take(ctx, t, tx, taken).Attempt} {
			if ok, err := b.DB.Keys.StoreAnswer(ctx, tx, a, answer); !ok || err != nil {
				t.Errorf("%s: KeepKey: %v, %v", name, ok, err)
			}
		}
		end(true)
		for _, c := range []driver.KeyClaim{ended, kept, taken} {
			rec, ok := b.tryClaim(ctx, t, again(c))
			if ok || rec.Ref != answer.Ref || !bytes.Equal(rec.Result, answer.Result) || (rec.Result == nil) != (answer.Result == nil) ||
				rec.ContentType != answer.ContentType || rec.Lost != answer.Lost || rec.ResultExpired {
				t.Errorf("%s: %v, ref %q, %d bytes (nil: %v), %q, lost %v, expired %v", c.Key, ok, rec.Ref, len(rec.Result), rec.Result == nil,
					rec.ContentType, rec.Lost, rec.ResultExpired)
			}
		}
	}
}

func keyAnswerExpires[T any](ctx context.Context, t tb, b *env[T]) {
	c, long := b.claim("answer expires"), b.claim("answer stays")
	short := driver.KeyAnswer{Ref: "ref", Result: []byte("gone"), ContentType: "text/plain", Retention: time.Hour, ResultRetention: time.Microsecond}
	stays := short
	stays.ResultRetention = time.Minute
	for c, answer := range map[driver.KeyClaim]driver.KeyAnswer{c: short, long: stays} {
		if !b.endKey(ctx, t, b.claimed(ctx, t, c), driver.KeyEnd{State: store.KeySucceeded, Answer: answer}) {
			t.Fatalf("the attempt did not end")
		}
	}
	b.await(ctx, t, "the answer is over", func() bool { return b.key(ctx, t, c.KeyID).ResultExpired })
	look := func(when string) {
		t.Helper()
		rec, ok := b.tryClaim(ctx, t, again(c))
		if ok || rec.State != store.KeySucceeded || !rec.ResultExpired || len(rec.Result) > 0 || rec.Ref != "ref" || rec.Lost {
			t.Errorf("%s a repeat gets %v, %+v", when, ok, rec)
		}
		if got := b.taken(ctx, t, again(c), "no"); got.Taken || !got.Record.ResultExpired || len(got.Record.Result) > 0 {
			t.Errorf("%s a repeat in a transaction gets %+v", when, got)
		}
	}
	look("before the purge")
	if n, err := b.DB.Keys.PurgeKeys(ctx, 1000); err != nil || n < 1 {
		t.Errorf("PurgeKeys: %d, %v", n, err)
	}
	look("after the purge")
	if rec := b.key(ctx, t, long.KeyID); rec.ResultExpired || string(rec.Result) != "gone" {
		t.Errorf("an answer that has time left is %+v", rec)
	}
}

// keyStates creates two records in every state, and an expired record each that
// succeeded and failed.
func (b *env[T]) keyStates(ctx context.Context, t tb) map[store.KeyState][]store.KeyID {
	t.Helper()
	made := map[store.KeyState][]store.KeyID{}
	for i := range 2 {
		for state, end := range map[store.KeyState]driver.KeyEnd{
			store.KeyProcessing: {}, store.KeySucceeded: answered("done"), store.KeyFailed: failed("no"), store.KeyUncertain: {State: store.KeyUncertain},
		} {
			c := b.claim(fmt.Sprintf("%d %s", i, state))
			c.Tenant = fmt.Sprintf("tenant %d", i)
			if i == 1 && state == store.KeyProcessing {
				c.Lease = 0
			}
			a := b.claimed(ctx, t, c)
			if state != store.KeyProcessing {
				b.endKey(ctx, t, a, end)
			}
			made[state] = append(made[state], c.KeyID)
		}
	}
	for _, end := range []driver.KeyEnd{{State: store.KeySucceeded}, {State: store.KeyFailed}} {
		b.endKey(ctx, t, b.claimed(ctx, t, b.claim("expired "+end.State.String())), end)
	}
	return made
}

// keyTick returns when the database's clock has advanced, as the records show.
func (b *env[T]) keyTick(ctx context.Context, t tb, made map[store.KeyState][]store.KeyID) {
	t.Helper()
	id := made[store.KeyUncertain][0]
	start := b.key(ctx, t, id).Now
	b.await(ctx, t, "the database's clock moves", func() bool { return b.key(ctx, t, id).Now.After(start) })
}

func keyLists[T any](ctx context.Context, t tb, b *env[T]) {
	made := b.keyStates(ctx, t)
	list := func(f store.KeyFilter, page int) []store.KeyID {
		t.Helper()
		var all []store.KeyID
		var after store.KeyID
		for {
			records, err := b.DB.Keys.ListKeys(ctx, f, after, page)
			if err != nil || len(records) > page {
				t.Fatalf("ListKeys of %d: %d, %v", page, len(records), err)
			}
			for _, r := range records {
				if len(r.Result) > 0 {
					t.Errorf("the list has the result of %+v", r.KeyID)
				}
				all = append(all, r.KeyID)
			}
			if len(records) < page {
				return all
			}
			after = all[len(all)-1]
		}
	}
	want := func(what string, f store.KeyFilter, states ...store.KeyState) {
		t.Helper()
		var ids []store.KeyID
		for _, s := range states {
			for _, id := range made[s] {
				if (f.Tenant == "" || f.Tenant == id.Tenant) && (f.Operation == "" || f.Operation == id.Operation) {
					ids = append(ids, id)
				}
			}
		}
		slices.SortFunc(ids, func(a, b store.KeyID) int {
			return strings.Compare(a.Tenant+a.Operation+a.Key, b.Tenant+b.Operation+b.Key)
		})
		for _, page := range []int{1, 2, 100} {
			if got := list(f, page); !slices.Equal(got, ids) {
				t.Errorf("%s, in pages of %d: %+v, want %+v", what, page, got, ids)
			}
		}
	}
	all := []store.KeyState{store.KeyProcessing, store.KeySucceeded, store.KeyFailed, store.KeyUncertain}
	want("what did not succeed", store.KeyFilter{}, store.KeyProcessing, store.KeyFailed, store.KeyUncertain)
	want("everything", store.KeyFilter{States: all}, all...)
	want("uncertain keys", store.KeyFilter{States: []store.KeyState{store.KeyUncertain}}, store.KeyUncertain)
	want("of one tenant", store.KeyFilter{Tenant: "tenant 1", States: all}, all...)
	want("of one operation", store.KeyFilter{Operation: b.unique("operation"), States: all}, all...)
	want("of no operation", store.KeyFilter{Operation: "another"}, all...)
}

func keyCounts[T any](ctx context.Context, t tb, b *env[T]) {
	if s, err := b.DB.Keys.KeyStats(ctx); err != nil || s != (store.KeyStats{}) {
		t.Errorf("no keys are %+v, %v", s, err)
	}
	b.keyTick(ctx, t, b.keyStates(ctx, t))
	s, err := b.DB.Keys.KeyStats(ctx)
	if err != nil || s.Processing != 2 || s.Failed != 2 || s.Uncertain != 2 || s.Lapsed != 1 || s.OldestLapsed <= 0 || s.OldestLapsed > time.Hour {
		t.Errorf("the keys stand at %+v, %v", s, err)
	}
}

// keyPurges checks that only expired records are deleted, in batches, and never
// records in processing or uncertain ones.
func keyPurges[T any](ctx context.Context, t tb, b *env[T]) {
	made := b.keyStates(ctx, t)
	for i := range 5 {
		b.endKey(ctx, t, b.claimed(ctx, t, b.claim(fmt.Sprintf("old %d", i))), driver.KeyEnd{State: store.KeySucceeded})
	}
	b.keyTick(ctx, t, made)
	var purged []int
	for range 5 {
		n, err := b.DB.Keys.PurgeKeys(ctx, 3)
		if err != nil {
			t.Fatalf("PurgeKeys: %v", err)
		}
		purged = append(purged, n)
	}
	if !slices.Equal(purged, []int{3, 3, 1, 0, 0}) {
		t.Errorf("of 7 that have expired %v were purged, 3 at a time", purged)
	}
	for state, ids := range made {
		for _, id := range ids {
			if rec := b.key(ctx, t, id); rec.State != state {
				t.Errorf("the key in state %s is %+v", state, rec)
			}
		}
	}
	if n, err := b.DB.Keys.PurgeKeys(ctx, 0); n != 0 || err != nil {
		t.Errorf("a purge of none: %d, %v", n, err)
	}
}

// keyPurgesLater purges records that an earlier purge met while they could not
// be deleted: before their end, before a resolution, and when only their answer
// had expired.
func keyPurgesLater[T any](ctx context.Context, t tb, b *env[T]) {
	purge := func(when string, want int) {
		t.Helper()
		if n, err := b.DB.Keys.PurgeKeys(ctx, 1000); n != want || err != nil {
			t.Errorf("%s: PurgeKeys: %d, %v; want %d", when, n, err, want)
		}
	}
	witness := b.claim("witness")
	b.claimed(ctx, t, witness)
	tick := func() {
		t.Helper()
		start := b.key(ctx, t, witness.KeyID).Now
		b.await(ctx, t, "the hint of a claim is over", func() bool { return b.key(ctx, t, witness.KeyID).Now.Sub(start) > 2*time.Millisecond })
	}
	now := driver.KeyAnswer{Result: []byte("x")} // expires at once
	for _, end := range []driver.KeyEnd{{State: store.KeySucceeded, Answer: now}, {State: store.KeyFailed}} {
		ended, resolved := b.claimed(ctx, t, b.claim("ends as "+end.State.String())), b.claim("resolved as "+end.State.String())
		if !b.endKey(ctx, t, b.claimed(ctx, t, resolved), driver.KeyEnd{State: store.KeyUncertain}) {
			t.Fatalf("the attempt did not end")
		}
		tick()
		purge("before the end as "+end.State.String(), 0)
		if ok, err := b.DB.Keys.ResolveKey(ctx, resolved.KeyID, end); !ok || err != nil || !b.endKey(ctx, t, ended, end) {
			t.Errorf("the keys were not resolved and ended: %v, %v", ok, err)
		}
		tick()
		purge("after the end as "+end.State.String(), 2)
	}
	kept := b.claim("kept")
	a := b.claimed(ctx, t, kept)
	tick()
	purge("before an answer in a transaction", 0)
	if err := b.inTx(ctx, func(tx T) error { _, err := b.DB.Keys.StoreAnswer(ctx, tx, a, now); return err }); err != nil {
		t.Fatalf("StoreAnswer: %v", err)
	}
	tick()
	purge("after an answer in a transaction", 1)
	stripped := b.claim("stripped")
	answer := driver.KeyAnswer{Result: []byte("x"), ResultRetention: time.Microsecond, Retention: 300 * time.Millisecond}
	b.endKey(ctx, t, b.claimed(ctx, t, stripped), driver.KeyEnd{State: store.KeySucceeded, Answer: answer})
	tick()
	purge("after the end of an answer", 1)
	_, early, err := b.DB.Keys.FindKey(ctx, stripped.KeyID)
	if err != nil {
		t.Fatalf("FindKey: %v", err)
	}
	b.await(ctx, t, "the record has expired", func() bool {
		_, there, err := b.DB.Keys.FindKey(ctx, stripped.KeyID)
		return err == nil && !there
	})
	if early { // else the record expired before its answer was purged
		purge("after the end of the record", 1)
	}
	purge("at the end", 0)
}

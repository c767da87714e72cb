package drivertest

import (
	"bytes"
	"context"
	"time"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// keyPeeks checks that PeekKey returns the answers of repeated requests, and
// nothing else: without a result, the caller claims the key. Stores need not
// implement PeekKey.
func keyPeeks[T any](ctx context.Context, t tb, b *env[T]) {
	peeker, ok := b.DB.Keys.(driver.KeyPeeker)
	if !ok {
		return
	}
	seen := func(id store.KeyID) (store.KeyRecord, bool) {
		rec, ok, err := peeker.PeekKey(ctx, id)
		if err != nil {
			t.Errorf("PeekKey: %v", err)
		}
		return rec, ok
	}
	for name, answer := range map[string]driver.KeyAnswer{
		"nothing": {},
		"empty":   {Result: []byte{}},
		"bytes":   {Ref: "ord_1 'ü' \\", Result: []byte{0, 1, 255, '\'', '\\', 0}, ContentType: "text/plain; charset=\"\xe9\""},
		"for now": {Result: []byte("for now"), ResultRetention: time.Minute},
	} {
		answer.Retention = time.Hour
		c := b.claim("peek 'ü' \\ " + name)
		if !b.endKey(ctx, t, b.claimed(ctx, t, c), driver.KeyEnd{State: store.KeySucceeded, Answer: answer}) {
			t.Fatalf("the attempt did not end")
		}
		rec, ok := seen(c.KeyID)
		if !ok || rec.KeyID != c.KeyID || rec.Hash != c.Hash || rec.State != store.KeySucceeded || rec.Ref != answer.Ref || rec.ContentType != answer.ContentType ||
			!bytes.Equal(rec.Result, answer.Result) || (rec.Result == nil) != (answer.Result == nil) || rec.Lost || rec.ResultExpired {
			t.Errorf("%s: a look sees %v, %+v", name, ok, rec)
		}
		other := c.KeyID
		other.Tenant += "x"
		if rec, ok := seen(other); ok {
			t.Errorf("another tenant sees %+v", rec)
		}
	}
	for name, id := range b.unanswered(ctx, t) {
		if rec, ok := seen(id); ok {
			t.Errorf("a look at what %s sees %+v", name, rec)
		}
	}
}

// unanswered creates keys without a valid answer.
func (b *env[T]) unanswered(ctx context.Context, t tb) map[string]store.KeyID {
	t.Helper()
	ids := map[string]store.KeyID{"does not exist": b.claim("nowhere").KeyID}
	processing := b.claim("peek processing")
	b.claimed(ctx, t, processing)
	ids["is being processed"] = processing.KeyID
	for name, end := range map[string]driver.KeyEnd{
		"failed":                    failed("no"),
		"is uncertain":              {State: store.KeyUncertain},
		"has expired":               {State: store.KeySucceeded, Answer: driver.KeyAnswer{Result: []byte("old")}},
		"was lost":                  {State: store.KeySucceeded, Answer: driver.KeyAnswer{Retention: time.Hour, Lost: true}},
		"has outlived its own time": {State: store.KeySucceeded, Answer: driver.KeyAnswer{Retention: time.Hour, ResultRetention: time.Nanosecond, Result: []byte("old")}},
	} {
		c := b.claim("peek " + name)
		if !b.endKey(ctx, t, b.claimed(ctx, t, c), end) {
			t.Fatalf("the attempt did not end")
		}
		ids[name] = c.KeyID
	}
	b.await(ctx, t, "the answer is over", func() bool { return b.key(ctx, t, ids["has outlived its own time"]).ResultExpired })
	taken := b.claim("peek taken")
	tx, end := b.begun(ctx, t)
	b.take(ctx, t, tx, taken)
	end(true)
	ids["was taken and not kept"] = taken.KeyID
	return ids
}

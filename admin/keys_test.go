package admin_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// attempt claims a key and ends it, unless the state is processing.
func attempt(t *testing.T, db driver.KeyClaimer, key string, end driver.KeyEnd) store.KeyID {
	t.Helper()
	id := store.KeyID{Tenant: "t", Operation: "pay", Key: key}
	owner := waybill.NewID()
	if _, ok, err := db.ClaimKey(t.Context(), driver.KeyClaim{KeyID: id, Hash: "v1:h", Owner: owner, Lease: time.Hour}); !ok || err != nil {
		t.Fatalf("ClaimKey: %v, %v", ok, err)
	}
	if end.State == store.KeyProcessing {
		return id
	}
	if ok, err := db.EndKey(t.Context(), driver.KeyAttempt{KeyID: id, Owner: owner, Fence: 1}, end); !ok || err != nil {
		t.Fatalf("EndKey: %v, %v", ok, err)
	}
	return id
}

// TestKeys: an operator lists keys, resolves uncertain ones, and purges expired
// ones.
func TestKeys(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var told observe.KeysInfo
	ops, err := admin.NewKeys(db, admin.Config{BatchSize: 2, Observe: observe.Hooks{Keys: func(k observe.KeysInfo) { told = k }}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	kept := driver.KeyAnswer{Retention: time.Hour}
	running := attempt(t, db.Driver().Keys, "running", driver.KeyEnd{})
	attempt(t, db.Driver().Keys, "failed", driver.KeyEnd{State: store.KeyFailed, Answer: kept})
	attempt(t, db.Driver().Keys, "done", driver.KeyEnd{State: store.KeySucceeded, Answer: kept})
	again := attempt(t, db.Driver().Keys, "unsure 1", driver.KeyEnd{State: store.KeyUncertain, Error: "who knows"})
	done := attempt(t, db.Driver().Keys, "unsure 2", driver.KeyEnd{State: store.KeyUncertain, Error: "who knows"})
	for i := range 5 {
		attempt(t, db.Driver().Keys, fmt.Sprint("old ", i), driver.KeyEnd{State: store.KeySucceeded})
	}
	s, err := ops.Stats(ctx)
	if want := (observe.KeysInfo{Processing: 1, Failed: 1, Uncertain: 2}); err != nil || s.Uncertain != 2 || told != want {
		t.Errorf("the keys stand at %+v, %v; the observer was told %+v", s, err, told)
	}
	var keys []string
	var after store.KeyID
	for more := true; more; {
		page, err := ops.List(ctx, store.KeyFilter{}, after, 3)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page.Records {
			keys = append(keys, r.Key)
		}
		after, more = page.After, page.More
	}
	if want := []string{"failed", "running", "unsure 1", "unsure 2"}; !slices.Equal(keys, want) {
		t.Errorf("the list is %q, want %q", keys, want)
	}
	if page, err := ops.List(ctx, store.KeyFilter{}, store.KeyID{}, 0); err != nil || len(page.Records) != 2 {
		t.Errorf("without a limit: %d, %v", len(page.Records), err)
	}
	if n, err := ops.Purge(ctx, func(p admin.Progress) { t.Logf("purged %d", p.Done) }); err != nil || n != 5 {
		t.Errorf("purged: %d, %v", n, err)
	}
	decide(t, db, ops, again, done, running)
	if _, err := admin.NewKeys[any](nil, admin.Config{}); err == nil {
		t.Error("a nil store was accepted")
	}
}

// decide lets one uncertain key run again and resolves the other as done.
func decide(t *testing.T, db *memstore.Store[*memstore.Tx], ops *admin.Keys, again, done, running store.KeyID) {
	t.Helper()
	ctx := t.Context()
	if err := ops.RunAgain(ctx, again, "the bank knows nothing of it", 0); err == nil {
		t.Error("a decision that is forgotten at once")
	}
	if err := ops.RunAgain(ctx, again, "the bank knows nothing of it", time.Hour); err != nil {
		t.Error(err)
	}
	if rec, err := ops.Find(ctx, again); err != nil || rec.State != store.KeyFailed || rec.LastError != "the bank knows nothing of it" {
		t.Errorf("the record is %+v, %v", rec, err)
	}
	if _, ok, err := db.Driver().Keys.ClaimKey(ctx, driver.KeyClaim{KeyID: again, Hash: "v1:h", Owner: waybill.NewID(), Lease: time.Hour}); !ok || err != nil {
		t.Errorf("the key cannot be used again: %v", err)
	}
	if err := ops.Done(ctx, done, driver.KeyAnswer{Ref: "pay_1", Retention: time.Hour}); err != nil {
		t.Error(err)
	}
	if rec, err := ops.Find(ctx, done); err != nil || rec.State != store.KeySucceeded || rec.Ref != "pay_1" || !rec.Lost {
		t.Errorf("the record is %+v, %v", rec, err)
	}
	for _, id := range []store.KeyID{again, done, running} {
		if err := ops.Done(ctx, id, driver.KeyAnswer{Ref: "no", Retention: time.Hour}); !errors.Is(err, admin.ErrNotUncertain) {
			t.Errorf("%q: %v", id.Key, err)
		}
	}
	if err := ops.RunAgain(ctx, store.KeyID{Key: "missing"}, "", time.Hour); !errors.Is(err, admin.ErrNoKey) {
		t.Errorf("a key that is not there: %v", err)
	}
	if _, err := ops.Find(ctx, store.KeyID{Key: "missing"}); !errors.Is(err, admin.ErrNoKey) {
		t.Errorf("a key that is not there: %v", err)
	}
}

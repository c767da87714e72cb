package linear

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// memoryKeys are the keys of the memory store.
type memoryKeys = driver.Keys[*memstore.Tx]

// wrongKeys are the memory store with one mistake each.
var wrongKeys = map[string]func(db memoryKeys) memoryKeys{
	"key ended by a former attempt":   func(db memoryKeys) memoryKeys { return anyEnd{overlapping{db}} },
	"key renewed by a former attempt": func(db memoryKeys) memoryKeys { return anyRenew{overlapping{db}} },
	"key answered by a former attempt": func(db memoryKeys) memoryKeys {
		return anyAnswer{overlapping{db}}
	},
	"claim that two attempts win":     func(db memoryKeys) memoryKeys { return twoClaims{overlapping{db}} },
	"claim of an uncertain key":       func(db memoryKeys) memoryKeys { return uncertainClaim{overlapping{db}} },
	"claim with another hash":         func(db memoryKeys) memoryKeys { return anyHash{overlapping{db}} },
	"claim counted twice":             func(db memoryKeys) memoryKeys { return &doubleClaim{overlapping: overlapping{db}} },
	"claim that keeps the fence":      func(db memoryKeys) memoryKeys { return &oneFence{overlapping: overlapping{db}} },
	"answer overwritten":              func(db memoryKeys) memoryKeys { return &overwritten{overlapping: overlapping{db}} },
	"key read from a cache":           func(db memoryKeys) memoryKeys { return &cachedKey{overlapping: overlapping{db}} },
	"take that reads and then stores": func(db memoryKeys) memoryKeys { return &blindTake{overlapping: overlapping{db}} },
}

// overlapping is a store whose calls overlap more than those of the memory
// store.
type overlapping struct{ memoryKeys }

func (o overlapping) ClaimKey(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
	yield()
	defer yield()
	return o.memoryKeys.ClaimKey(ctx, c)
}

func (o overlapping) EndKey(ctx context.Context, a driver.KeyAttempt, e driver.KeyEnd) (bool, error) {
	yield()
	defer yield()
	return o.memoryKeys.EndKey(ctx, a, e)
}

// current returns the attempt that has the key, or a if there is none.
func (o overlapping) current(ctx context.Context, a driver.KeyAttempt) driver.KeyAttempt {
	if r, found, err := o.FindKey(ctx, a.KeyID); err == nil && found {
		a.Owner, a.Fence = r.Owner, r.Fence
	}
	return a
}

type anyEnd struct{ overlapping }

func (w anyEnd) EndKey(ctx context.Context, a driver.KeyAttempt, e driver.KeyEnd) (bool, error) {
	return w.overlapping.EndKey(ctx, w.current(ctx, a), e)
}

type anyRenew struct{ overlapping }

func (w anyRenew) RenewKey(ctx context.Context, a driver.KeyAttempt, lease time.Duration) (bool, error) {
	return w.overlapping.RenewKey(ctx, w.current(ctx, a), lease)
}

type anyAnswer struct{ overlapping }

func (w anyAnswer) StoreAnswer(ctx context.Context, tx *memstore.Tx, a driver.KeyAttempt, answer driver.KeyAnswer) (bool, error) {
	if ok, err := w.overlapping.StoreAnswer(ctx, tx, a, answer); ok || err != nil {
		return ok, err
	}
	return w.overlapping.StoreAnswer(ctx, tx, w.current(ctx, a), answer)
}

// twoClaims reads whether the key is free, and then claims it: an attempt that
// finds the key claimed in between counts as claimed, too.
type twoClaims struct{ overlapping }

func (w twoClaims) ClaimKey(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
	_, found, err := w.FindKey(ctx, c.KeyID)
	if err != nil {
		return store.KeyRecord{}, false, err
	}
	r, claimed, err := w.overlapping.ClaimKey(ctx, c)
	if !found && !claimed && r.State == store.KeyProcessing {
		r.Owner, claimed = c.Owner, true
	}
	return r, claimed, err
}

type uncertainClaim struct{ overlapping }

func (w uncertainClaim) ClaimKey(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
	if _, err := w.ResolveKey(ctx, c.KeyID, driver.KeyEnd{State: store.KeyFailed, Answer: driver.KeyAnswer{Retention: long}}); err != nil {
		return store.KeyRecord{}, false, err
	}
	return w.overlapping.ClaimKey(ctx, c)
}

type anyHash struct{ overlapping }

func (w anyHash) ClaimKey(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
	if r, found, err := w.FindKey(ctx, c.KeyID); err == nil && found {
		c.Hash = r.Hash
	}
	return w.overlapping.ClaimKey(ctx, c)
}

// doubleClaim makes one in eight claims twice, as a client that repeats a claim
// whose answer was lost.
type doubleClaim struct {
	overlapping
	calls atomic.Int64
}

func (w *doubleClaim) ClaimKey(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
	r, claimed, err := w.overlapping.ClaimKey(ctx, c)
	if err != nil || !claimed || w.calls.Add(1)%8 != 0 {
		return r, claimed, err
	}
	if _, err := w.RenewKey(ctx, driver.KeyAttempt{KeyID: c.KeyID, Owner: c.Owner, Fence: r.Fence}, over); err != nil {
		return r, false, err
	}
	return w.overlapping.ClaimKey(ctx, c)
}

// oneFence returns the fence 1 for every attempt.
type oneFence struct {
	overlapping
	real sync.Map // by owner
}

func (w *oneFence) ClaimKey(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
	r, claimed, err := w.overlapping.ClaimKey(ctx, c)
	w.real.Store(r.Owner, r.Fence)
	r.Fence = 1
	return r, claimed, err
}

func (w *oneFence) FindKey(ctx context.Context, id store.KeyID) (store.KeyRecord, bool, error) {
	r, found, err := w.overlapping.FindKey(ctx, id)
	r.Fence = min(r.Fence, 1)
	return r, found, err
}

func (w *oneFence) EndKey(ctx context.Context, a driver.KeyAttempt, e driver.KeyEnd) (bool, error) {
	if fence, ok := w.real.Load(a.Owner); ok && a.Fence == 1 {
		a.Fence = fence.(int64)
	}
	return w.overlapping.EndKey(ctx, a, e)
}

// overwritten replaces the answer of a key when its attempt ends again.
type overwritten struct {
	overlapping
	answers sync.Map // by owner
}

func (w *overwritten) EndKey(ctx context.Context, a driver.KeyAttempt, e driver.KeyEnd) (bool, error) {
	ended, err := w.overlapping.EndKey(ctx, a, e)
	if ended || err != nil || e.State != store.KeySucceeded {
		return ended, err
	}
	if r, found, err := w.overlapping.FindKey(ctx, a.KeyID); err == nil && found && r.State == store.KeySucceeded && r.Owner == a.Owner {
		w.answers.Store(a.Owner, e.Answer)
	}
	return false, nil
}

func (w *overwritten) FindKey(ctx context.Context, id store.KeyID) (store.KeyRecord, bool, error) {
	r, found, err := w.overlapping.FindKey(ctx, id)
	if answer, ok := w.answers.Load(r.Owner); ok && r.State == store.KeySucceeded {
		r.Ref, r.Result = answer.(driver.KeyAnswer).Ref, answer.(driver.KeyAnswer).Result
	}
	return r, found, err
}

// cachedKey answers every second read of a key from a cache.
type cachedKey struct {
	overlapping
	mu   sync.Mutex
	last map[store.KeyID]store.KeyRecord
}

func (w *cachedKey) FindKey(ctx context.Context, id store.KeyID) (store.KeyRecord, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r, ok := w.last[id]; ok {
		delete(w.last, id)
		return r, true, nil
	}
	r, found, err := w.overlapping.FindKey(ctx, id)
	if w.last == nil {
		w.last = make(map[store.KeyID]store.KeyRecord)
	}
	if found {
		w.last[id] = r
	}
	return r, found, err
}

// blindTake does not keep others from the key: it reads the record, and claims
// the key only when the answer is stored. If another attempt has the key by
// then, the answer counts as stored nevertheless.
type blindTake struct {
	overlapping
	claims sync.Map // by owner
}

func (w *blindTake) TakeKey(ctx context.Context, _ *memstore.Tx, c driver.KeyClaim) (driver.KeyTaken, error) {
	r, found, err := w.FindKey(ctx, c.KeyID)
	if err != nil || found && (r.State != store.KeyFailed || r.Hash != c.Hash) {
		return driver.KeyTaken{Record: r}, err
	}
	w.claims.Store(c.Owner, c)
	yield()
	return driver.KeyTaken{Taken: true, Attempt: driver.KeyAttempt{KeyID: c.KeyID, Owner: c.Owner, Fence: r.Fence + 1}}, nil
}

func (w *blindTake) StoreAnswer(ctx context.Context, tx *memstore.Tx, a driver.KeyAttempt, answer driver.KeyAnswer) (bool, error) {
	c, taken := w.claims.Load(a.Owner)
	if !taken {
		return w.overlapping.StoreAnswer(ctx, tx, a, answer)
	}
	r, claimed, err := w.ClaimKey(ctx, c.(driver.KeyClaim))
	if err == nil && claimed {
		a.Fence = r.Fence
		_, err = w.EndKey(ctx, a, driver.KeyEnd{State: store.KeySucceeded, Answer: answer})
	}
	return true, err
}

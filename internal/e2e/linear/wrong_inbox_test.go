package linear

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// memoryInbox is the inbox of the memory store.
type memoryInbox = driver.Inbox[*memstore.Tx]

// wrongInboxes are the memory store with one mistake each.
var wrongInboxes = map[string]func(db memoryInbox) memoryInbox{
	"event accepted by two transactions": func(db memoryInbox) memoryInbox { return &twoAccepts{memoryInbox: db} },
	"event claimed by two attempts":      func(db memoryInbox) memoryInbox { return twoAttempts{db} },
	"failure of a former attempt":        func(db memoryInbox) memoryInbox { return anyFailure{db} },
	"success of a former attempt":        func(db memoryInbox) memoryInbox { return anySuccess{db} },
	"release that counts the attempt":    func(db memoryInbox) memoryInbox { return countedRelease{db} },
	"claim without a limit":              func(db memoryInbox) memoryInbox { return noLimit{db} },
	"success confirmed and lost":         func(db memoryInbox) memoryInbox { return &lostSuccess{memoryInbox: db} },
}

// holder returns the attempt that has an event, or a if there is none.
func holder(ctx context.Context, db memoryInbox, a driver.Attempt) driver.Attempt {
	if r, found, err := db.FindRecord(ctx, a.Group, a.Key); err == nil && found {
		a.Owner, a.Fence = r.Owner, r.Fence
	}
	return a
}

// twoAccepts takes a busy event as accepted. A transaction that has accepted an
// event stays open for a while, until another one has met it.
type twoAccepts struct {
	memoryInbox
	met sync.Map // by key
}

func (w *twoAccepts) Accept(ctx context.Context, tx *memstore.Tx, owner waybill.ID, in []store.InboxEntry) ([]driver.AcceptResult, error) {
	results, err := w.memoryInbox.Accept(ctx, tx, owner, in)
	for i := range results {
		if results[i].Busy {
			w.met.Store(in[i].Key, true)
			results[i] = driver.AcceptResult{Accepted: true}
		}
		for range 50 {
			if _, met := w.met.Load(in[i].Key); met || !results[i].Accepted {
				break
			}
			yield()
		}
	}
	return results, err
}

// twoAttempts reads whether the event has a record, and then claims it: an
// attempt that finds the event claimed in between counts as claimed, too.
type twoAttempts struct{ memoryInbox }

func (w twoAttempts) ClaimEvent(
	ctx context.Context, in store.InboxEntry, owner waybill.ID, lease time.Duration, limit int, kept []byte,
) (store.InboxRecord, bool, error) {
	before, found, err := w.FindRecord(ctx, in.Group, in.Key)
	if err != nil {
		return before, false, err
	}
	yield()
	r, claimed, err := w.memoryInbox.ClaimEvent(ctx, in, owner, lease, limit, kept)
	if r.State == store.InboxProcessing && (!found || before.State == store.InboxFailed) && !claimed {
		r.Owner, claimed = owner, true
	}
	return r, claimed, err
}

type anyFailure struct{ memoryInbox }

func (w anyFailure) FailEvent(ctx context.Context, in store.InboxEntry, f driver.Failure) (bool, error) {
	if f.Fence > 0 {
		a := holder(ctx, w.memoryInbox, driver.Attempt{Group: in.Group, Key: in.Key, Owner: f.Owner, Fence: f.Fence})
		f.Owner, f.Fence = a.Owner, a.Fence
	}
	return w.memoryInbox.FailEvent(ctx, in, f)
}

type anySuccess struct{ memoryInbox }

func (w anySuccess) Succeed(ctx context.Context, tx *memstore.Tx, a driver.Attempt) (bool, error) {
	return w.memoryInbox.Succeed(ctx, tx, holder(ctx, w.memoryInbox, a))
}

type countedRelease struct{ memoryInbox }

func (w countedRelease) ReleaseEvent(ctx context.Context, a driver.Attempt) (bool, error) {
	return w.FailEvent(ctx, store.InboxEntry{Group: a.Group, Key: a.Key}, driver.Failure{Owner: a.Owner, Fence: a.Fence, Delay: over})
}

type noLimit struct{ memoryInbox }

func (w noLimit) ClaimEvent(
	ctx context.Context, in store.InboxEntry, owner waybill.ID, lease time.Duration, _ int, kept []byte,
) (store.InboxRecord, bool, error) {
	return w.memoryInbox.ClaimEvent(ctx, in, owner, lease, 1000, kept)
}

// lostSuccess forgets every second success.
type lostSuccess struct {
	memoryInbox
	calls atomic.Int64
}

func (w *lostSuccess) Succeed(ctx context.Context, tx *memstore.Tx, a driver.Attempt) (bool, error) {
	if w.calls.Add(1)%2 == 0 {
		return w.memoryInbox.Succeed(ctx, tx, a)
	}
	r, found, err := w.FindRecord(ctx, a.Group, a.Key)
	return found && r.State == store.InboxProcessing && r.Owner == a.Owner && r.Fence == a.Fence, err
}

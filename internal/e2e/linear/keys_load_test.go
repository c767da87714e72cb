package linear

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// keysPerRun is the number of keys of a run.
const keysPerRun = 3

// keyRecorder calls a store and records the calls.
type keyRecorder[T any] struct {
	db  driver.Keys[T]
	log *history
	run string // the operation of all keys of the run

	mu       sync.Mutex
	attempts map[string][]driver.KeyAttempt
	// claiming are the owners whose claims are running: no client can know
	// their attempts.
	claiming map[waybill.ID]bool
	answers  int
}

// runKeys runs clients against a store with new keys and returns their history.
func runKeys[T any](t *testing.T, db driver.Keys[T], f faults, seed uint64) *history {
	t.Helper()
	log := newHistory()
	r := &keyRecorder[T]{
		db: db, log: log, run: waybill.NewID().String(), attempts: make(map[string][]driver.KeyAttempt), claiming: make(map[waybill.ID]bool),
	}
	run(t, seed, log, f, r.step)
	return log
}

// step makes one call.
func (r *keyRecorder[T]) step(c *client) {
	id := store.KeyID{Operation: r.run, Key: fmt.Sprintf("key %d", c.rng.IntN(keysPerRun))}
	switch n := c.rng.IntN(100); {
	case n < 22:
		r.claim(c, r.request(c, id))
	case n < 34:
		r.take(c, r.request(c, id))
	case n < 50:
		state := pick(c, []store.KeyState{store.KeySucceeded, store.KeyFailed, store.KeyFailed, store.KeyUncertain})
		r.end(c, r.attempt(c, id), r.result(c, state))
	case n < 58:
		r.store(c, r.attempt(c, id), r.result(c, store.KeySucceeded))
	case n < 72:
		r.renew(c, r.attempt(c, id), c.chance(2, 3))
	case n < 78:
		r.resolve(c, id, r.result(c, pick(c, []store.KeyState{store.KeySucceeded, store.KeyFailed})))
	case n < 84:
		r.peek(c, id)
	default:
		r.find(c, id)
	}
}

// request returns a claim by a new owner. One in eight has another hash.
func (r *keyRecorder[T]) request(c *client, id store.KeyID) driver.KeyClaim {
	digit := "a"
	if c.chance(1, 8) {
		digit = "b"
	}
	return driver.KeyClaim{KeyID: id, Hash: "v1:" + strings.Repeat(digit, 64), Owner: waybill.NewID(), Lease: long}
}

// attempt returns an attempt: nearly always the last one that a client saw,
// sometimes an earlier one, and rarely one that does not exist.
func (r *keyRecorder[T]) attempt(c *client, id store.KeyID) driver.KeyAttempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.attempts[id.Key]
	if len(known) == 0 {
		return driver.KeyAttempt{KeyID: id, Owner: waybill.NewID(), Fence: 1}
	}
	a := known[len(known)-1]
	switch c.rng.IntN(8) {
	case 0, 1:
		a = pick(c, known)
	case 2:
		a.Fence++
	}
	return a
}

// saw notes an attempt of an answer.
func (r *keyRecorder[T]) saw(id store.KeyID, owner waybill.ID, fence int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if owner.IsZero() || r.claiming[owner] {
		return
	}
	r.attempts[id.Key] = append(r.attempts[id.Key], driver.KeyAttempt{KeyID: id, Owner: owner, Fence: fence})
}

// starts notes that the claim of an owner starts or ends.
func (r *keyRecorder[T]) starts(owner waybill.ID, yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claiming[owner] = yes
}

// result returns the end of an attempt with an answer of its own.
func (r *keyRecorder[T]) result(c *client, state store.KeyState) driver.KeyEnd {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers++
	end := driver.KeyEnd{State: state, Answer: driver.KeyAnswer{Retention: long}}
	if c.chance(1, 2) {
		end.Answer.Retention = over
	}
	if state == store.KeySucceeded {
		end.Answer.Ref = fmt.Sprint(r.answers)
		end.Answer.Result = []byte("answer " + end.Answer.Ref)
	}
	return end
}

func (r *keyRecorder[T]) add(c *client, id store.KeyID, s span, in keyInput, out keyOutput) {
	if in.span = s; s.lost() && !in.changes() {
		return
	}
	r.log.add(c.number, s, in, out, id.Key)
	if out.record.exists && !s.lost() {
		r.saw(id, out.record.owner, out.record.fence.min)
	}
}

// keyOf returns the record of an answer.
func keyOf(c *client, r store.KeyRecord) key {
	if r.Result != nil && string(r.Result) != "answer "+r.Ref {
		c.t.Errorf("the answer with the ref %q is %q", r.Ref, r.Result)
	}
	return key{exists: r.Hash != "", hash: r.Hash, state: r.State, owner: r.Owner, fence: exactly(r.Fence), attempts: r.Attempts, ref: r.Ref}
}

// withEnd returns the arguments of the end of an attempt.
func withEnd(in keyInput, end driver.KeyEnd) keyInput {
	in.state, in.ref, in.expired = end.State, end.Answer.Ref, end.Answer.Retention < 0
	return in
}

func (r *keyRecorder[T]) claim(c *client, claim driver.KeyClaim) {
	var record store.KeyRecord
	var claimed bool
	r.starts(claim.Owner, true)
	s, _ := c.call(func(ctx context.Context) (err error) {
		record, claimed, err = r.db.ClaimKey(ctx, claim)
		return err
	})
	r.starts(claim.Owner, false)
	r.add(c, claim.KeyID, s, keyInput{op: opClaim, hash: claim.Hash, owner: claim.Owner}, keyOutput{done: claimed, record: keyOf(c, record)})
}

func (r *keyRecorder[T]) end(c *client, a driver.KeyAttempt, end driver.KeyEnd) {
	var did bool
	s, _ := c.call(func(ctx context.Context) (err error) {
		did, err = r.db.EndKey(ctx, a, end)
		return err
	})
	r.add(c, a.KeyID, s, withEnd(keyInput{op: opEnd, owner: a.Owner, fence: a.Fence}, end), keyOutput{done: did})
}

func (r *keyRecorder[T]) renew(c *client, a driver.KeyAttempt, lapsed bool) {
	lease := long
	if lapsed {
		lease = over
	}
	var did bool
	s, _ := c.call(func(ctx context.Context) (err error) {
		did, err = r.db.RenewKey(ctx, a, lease)
		return err
	})
	r.add(c, a.KeyID, s, keyInput{op: opRenew, owner: a.Owner, fence: a.Fence, lapsed: lapsed}, keyOutput{done: did})
}

func (r *keyRecorder[T]) resolve(c *client, id store.KeyID, end driver.KeyEnd) {
	var did bool
	s, _ := c.call(func(ctx context.Context) (err error) {
		did, err = r.db.ResolveKey(ctx, id, end)
		return err
	})
	r.add(c, id, s, withEnd(keyInput{op: opResolve}, end), keyOutput{done: did})
}

func (r *keyRecorder[T]) find(c *client, id store.KeyID) {
	var record store.KeyRecord
	var found bool
	s, _ := c.call(func(ctx context.Context) (err error) {
		record, found, err = r.db.FindKey(ctx, id)
		return err
	})
	r.add(c, id, s, keyInput{op: opFindKey}, keyOutput{done: found, record: keyOf(c, record)})
}

// peek reads the answer of a key, if the store can.
func (r *keyRecorder[T]) peek(c *client, id store.KeyID) {
	peeker, ok := r.db.(driver.KeyPeeker)
	if !ok {
		return
	}
	var record store.KeyRecord
	var found bool
	s, _ := c.call(func(ctx context.Context) (err error) {
		record, found, err = peeker.PeekKey(ctx, id)
		return err
	})
	r.add(c, id, s, keyInput{op: opPeek}, keyOutput{done: found, record: keyOf(c, record)})
}

// store stores the answer of an attempt in a transaction.
func (r *keyRecorder[T]) store(c *client, a driver.KeyAttempt, end driver.KeyEnd) {
	var did bool
	s, _ := c.call(func(ctx context.Context) error {
		return inTx(ctx, r.db, func(tx T) (commit bool, err error) {
			did, err = r.db.StoreAnswer(ctx, tx, a, end.Answer)
			return did, err
		})
	})
	r.add(c, a.KeyID, s, withEnd(keyInput{op: opStore, owner: a.Owner, fence: a.Fence}, end), keyOutput{done: did})
}

// take takes a key in a transaction, which usually stores an answer. One in
// four commits without an answer or rolls back: nothing may remain of it.
func (r *keyRecorder[T]) take(c *client, claim driver.KeyClaim) {
	end := r.result(c, store.KeySucceeded)
	answered, commits := c.chance(3, 4), c.chance(1, 2)
	var taken driver.KeyTaken
	var stored bool
	s, _ := c.call(func(ctx context.Context) error {
		return inTx(ctx, r.db, func(tx T) (commit bool, err error) {
			if taken, err = r.db.TakeKey(ctx, tx, claim); err != nil || !taken.Taken || !answered {
				return commits, err
			}
			stored, err = r.db.StoreAnswer(ctx, tx, taken.Attempt, end.Answer)
			return stored, err
		})
	})
	in := withEnd(keyInput{op: opTake, hash: claim.Hash, owner: claim.Owner, answered: answered}, end)
	out := keyOutput{done: taken.Taken, busy: taken.Busy, stored: stored, fence: taken.Attempt.Fence, record: keyOf(c, taken.Record)}
	r.add(c, claim.KeyID, s, in, out)
}

// inTx runs fn in a transaction, which commits if fn says so.
func inTx[T any](ctx context.Context, db driver.Beginner[T], fn func(tx T) (commit bool, err error)) error {
	sess, err := db.Begin(ctx, nil)
	if err != nil {
		return err
	}
	commit, err := fn(sess.Tx())
	if err != nil || !commit {
		// The context may have ended.
		rolled := sess.Rollback(context.WithoutCancel(ctx))
		if err == nil {
			err = rolled
		}
		return err
	}
	_, err = sess.Commit(ctx, nil, false)
	return err
}

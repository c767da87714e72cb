package linear

import (
	"context"
	"sync"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// intakesPerRun is the number of events of a run.
const intakesPerRun = 4

// inboxRecorder calls a store and records the calls.
type inboxRecorder[T any] struct {
	db      driver.Inbox[T]
	log     *history
	entries []store.InboxEntry

	mu       sync.Mutex
	attempts map[waybill.ID][]driver.Attempt
	// claiming are the owners whose claims are running: no client can know
	// their attempts.
	claiming map[waybill.ID]bool
}

// runInbox runs clients against a store with a new group and returns their
// history.
func runInbox[T any](t *testing.T, db driver.Inbox[T], f faults, seed uint64) *history {
	t.Helper()
	log := newHistory()
	r := &inboxRecorder[T]{db: db, log: log, attempts: make(map[waybill.ID][]driver.Attempt), claiming: make(map[waybill.ID]bool)}
	group := waybill.NewID().String()
	for range intakesPerRun {
		id := waybill.NewID()
		r.entries = append(r.entries, store.InboxEntry{Group: group, Key: id, Event: id, Type: "Tested"})
	}
	run(t, seed, log, f, r.step)
	return log
}

// step makes one call.
func (r *inboxRecorder[T]) step(c *client) {
	in := pick(c, r.entries)
	switch n := c.rng.IntN(100); {
	case n < 14:
		r.accept(c, in, c.chance(3, 4))
	case n < 40:
		r.claim(c, in, c.chance(1, 4))
	case n < 55:
		r.fail(c, in, r.attempt(c, in), c.chance(2, 3), c.chance(1, 6))
	case n < 57:
		r.fail(c, in, driver.Attempt{}, true, false)
	case n < 65:
		r.giveBack(c, r.attempt(c, in))
	case n < 71:
		r.succeed(c, r.attempt(c, in))
	case n < 79:
		r.redrive(c, in)
	default:
		r.find(c, in)
	}
}

// attempt returns an attempt: nearly always the last one that a client saw,
// sometimes an earlier one, and rarely one that does not exist.
func (r *inboxRecorder[T]) attempt(c *client, in store.InboxEntry) driver.Attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.attempts[in.Key]
	if len(known) == 0 {
		return driver.Attempt{Group: in.Group, Key: in.Key, Owner: waybill.NewID(), Fence: 1}
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

func (r *inboxRecorder[T]) add(c *client, key waybill.ID, s span, in inboxInput, out inboxOutput) {
	if in.span = s; s.lost() && !in.changes() {
		return
	}
	r.log.add(c.number, s, in, out, eventPart(key))
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := out.record; rec.exists && !s.lost() && !rec.owner.IsZero() && !r.claiming[rec.owner] {
		group := r.entries[0].Group
		r.attempts[key] = append(r.attempts[key], driver.Attempt{Group: group, Key: key, Owner: rec.owner, Fence: rec.fence.min})
	}
}

// intakeOf returns the record of an answer.
func intakeOf(r store.InboxRecord) intake {
	return intake{exists: r.Fence > 0, state: r.State, owner: r.Owner, fence: exactly(r.Fence), attempts: r.Attempts}
}

func (r *inboxRecorder[T]) accept(c *client, in store.InboxEntry, commits bool) {
	owner := waybill.NewID()
	var res driver.AcceptResult
	s, _ := c.call(func(ctx context.Context) error {
		return inTx(ctx, r.db, func(tx T) (commit bool, err error) {
			results, err := r.db.Accept(ctx, tx, owner, []store.InboxEntry{in})
			if err != nil {
				return false, err
			}
			res = results[0]
			return commits, nil
		})
	})
	out := inboxOutput{done: res.Accepted, busy: res.Busy, record: intakeOf(res.Record)}
	r.add(c, in.Key, s, inboxInput{op: opAccept, owner: owner, commits: commits}, out)
}

// claim claims an event. A refused claim whose lease had expired at once may
// have claimed the event and lost it again before its answer was read: it
// counts as a claim whose answer was lost, and a read.
func (r *inboxRecorder[T]) claim(c *client, in store.InboxEntry, lapsed bool) {
	owner, lease := waybill.NewID(), long
	if lapsed {
		lease = over
	}
	var record store.InboxRecord
	var claimed bool
	r.starts(owner, true)
	s, _ := c.call(func(ctx context.Context) (err error) {
		record, claimed, err = r.db.ClaimEvent(ctx, in, owner, lease, maxAttempts, nil)
		return err
	})
	r.starts(owner, false)
	input := inboxInput{op: opClaimEvent, owner: owner, lapsed: lapsed}
	if lapsed && !claimed && !s.lost() {
		r.add(c, in.Key, s, inboxInput{op: opFindRecord}, inboxOutput{done: true, record: intakeOf(record)})
		r.add(c, in.Key, span{call: s.call, end: never}, input, inboxOutput{})
		return
	}
	r.add(c, in.Key, s, input, inboxOutput{done: claimed, record: intakeOf(record)})
}

// starts notes that the claim of an owner starts or ends.
func (r *inboxRecorder[T]) starts(owner waybill.ID, yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claiming[owner] = yes
}

func (r *inboxRecorder[T]) fail(c *client, in store.InboxEntry, a driver.Attempt, due, dead bool) {
	f := driver.Failure{Owner: a.Owner, Fence: a.Fence, Delay: long, Dead: dead, Error: "unavailable"}
	if due {
		f.Delay = over
	}
	did := false
	s, _ := c.call(func(ctx context.Context) (err error) {
		did, err = r.db.FailEvent(ctx, in, f)
		return err
	})
	r.add(c, in.Key, s, inboxInput{op: opFail, owner: a.Owner, fence: a.Fence, due: due, dead: dead}, inboxOutput{done: did})
}

func (r *inboxRecorder[T]) giveBack(c *client, a driver.Attempt) {
	did := false
	s, _ := c.call(func(ctx context.Context) (err error) {
		did, err = r.db.ReleaseEvent(ctx, a)
		return err
	})
	r.add(c, a.Key, s, inboxInput{op: opGiveBack, owner: a.Owner, fence: a.Fence}, inboxOutput{done: did})
}

// succeed records an attempt as succeeded in a transaction.
func (r *inboxRecorder[T]) succeed(c *client, a driver.Attempt) {
	did := false
	s, _ := c.call(func(ctx context.Context) error {
		return inTx(ctx, r.db, func(tx T) (commit bool, err error) {
			did, err = r.db.Succeed(ctx, tx, a)
			return did, err
		})
	})
	r.add(c, a.Key, s, inboxInput{op: opSucceed, owner: a.Owner, fence: a.Fence}, inboxOutput{done: did})
}

func (r *inboxRecorder[T]) redrive(c *client, in store.InboxEntry) {
	n := 0
	s, _ := c.call(func(ctx context.Context) (err error) {
		n, err = r.db.Redrive(ctx, in.Group, []waybill.ID{in.Key}, 1)
		return err
	})
	r.add(c, in.Key, s, inboxInput{op: opRedrive}, inboxOutput{done: n == 1})
}

func (r *inboxRecorder[T]) find(c *client, in store.InboxEntry) {
	var record store.InboxRecord
	var found bool
	s, _ := c.call(func(ctx context.Context) (err error) {
		record, found, err = r.db.FindRecord(ctx, in.Group, in.Key)
		return err
	})
	r.add(c, in.Key, s, inboxInput{op: opFindRecord}, inboxOutput{done: found, record: intakeOf(record)})
}

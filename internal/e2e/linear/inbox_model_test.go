package linear

import (
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// inboxOp is the kind of an operation of the inbox's model.
type inboxOp string

const (
	// opAccept is a transaction that accepts the event and commits or rolls
	// back; opSucceed is a transaction that records an attempt as succeeded.
	opAccept     inboxOp = "accept"
	opSucceed    inboxOp = "succeed"
	opClaimEvent inboxOp = "claim"
	opFail       inboxOp = "fail"
	opGiveBack   inboxOp = "release"
	opRedrive    inboxOp = "redrive"
	opFindRecord inboxOp = "find"
)

// maxAttempts is the number of attempts after which an event is dead.
const maxAttempts = 3

// inboxInput is an operation.
type inboxInput struct {
	op    inboxOp
	span  span
	owner waybill.ID
	fence int64
	// commits means that a transaction commits.
	commits bool
	// lapsed means that the lease of a claim has expired.
	lapsed bool
	// due means that a failed event is due; dead that it is not retried.
	due, dead bool
}

// inboxOutput is the answer of an operation.
type inboxOutput struct {
	// done means that the operation accepted, claimed, changed or found a
	// record.
	done bool
	// busy means that another transaction is handling the event. The contract
	// allows this answer at any time.
	busy   bool
	record intake
}

// intake is the record of an event in a group, and the state of the model.
type intake struct {
	exists   bool
	state    store.InboxState
	owner    waybill.ID
	fence    number
	attempts int
	due      bool
	lapsed   bool
	// since is the end of the call that made a failed event due now.
	since int64
}

// inboxModel is the contract of driver.Inbox for one event of a group.
var inboxModel = model{
	start: intake{},
	step: func(state any, in operation, out any) []any {
		r := state.(intake)
		if !r.step(in.(inboxInput), out.(inboxOutput)) {
			return nil
		}
		return []any{r}
	},
	describe: func(in operation, out any) string { return in.(inboxInput).describe(out.(inboxOutput)) },
}

// step makes an operation, and reports whether the contract allows the answer.
func (r *intake) step(in inboxInput, out inboxOutput) bool {
	switch in.op {
	case opFindRecord:
		return out.done == r.exists && (!r.exists || r.same(out.record))
	case opAccept:
		return r.accept(in, out)
	case opClaimEvent:
		return r.claim(in, out)
	case opRedrive:
		fits := r.exists && (r.state == store.InboxFailed || r.state == store.InboxDead)
		return r.change(in, out, fits, intake{exists: true, state: store.InboxFailed, fence: r.fence, due: true, since: in.span.end})
	case opFail:
		next := intake{exists: true, state: store.InboxFailed, fence: r.fence, attempts: r.attempts, due: in.due}
		if in.dead {
			next.state, next.due = store.InboxDead, false
		}
		if in.fence > 0 {
			return r.change(in, out, r.heldBy(in), next)
		}
		next.fence, next.attempts = r.fence.next(), 1
		return r.change(in, out, !r.exists, next)
	case opGiveBack:
		next := intake{exists: true, state: store.InboxFailed, fence: r.fence, attempts: r.attempts - 1, due: true, since: in.span.end}
		return r.change(in, out, r.heldBy(in), next)
	case opSucceed:
		next := *r
		next.state, next.lapsed = store.InboxSucceeded, false
		return r.change(in, out, r.heldBy(in), next)
	}
	panic("linear: no operation is called " + string(in.op))
}

// change replaces the record if the operation fits.
func (r *intake) change(in inboxInput, out inboxOutput, fits bool, next intake) bool {
	if !in.span.lost() && out.done != fits {
		return false
	}
	if fits {
		*r = next
	}
	return true
}

func (r *intake) heldBy(in inboxInput) bool {
	return r.exists && r.state == store.InboxProcessing && r.owner == in.owner && r.fence.admits(in.fence)
}

func (r *intake) accept(in inboxInput, out inboxOutput) bool {
	switch {
	case in.span.lost() && r.exists, !in.span.lost() && out.busy:
		return true
	case !in.span.lost() && out.done == r.exists:
		return false
	case r.exists:
		return r.same(out.record)
	}
	if in.commits {
		*r = intake{exists: true, state: store.InboxSucceeded, owner: in.owner, fence: r.fence.next(), attempts: 1}
	}
	return true
}

// claim claims the event, or makes it dead if it has used up its attempts. A
// claim that read the clock before another call made the event due now may find
// that the event is not due.
func (r *intake) claim(in inboxInput, out inboxOutput) bool {
	free := !r.exists || r.state == store.InboxProcessing && r.lapsed || r.state == store.InboxFailed && r.due
	if early := r.state == store.InboxFailed && r.since > in.span.call; early && !in.span.lost() && !out.done && out.record.state == r.state {
		return r.same(out.record)
	}
	next, claims := *r, false
	switch {
	case free && r.attempts < maxAttempts:
		claims = true
		next = intake{
			exists: true, state: store.InboxProcessing, owner: in.owner, fence: r.fence.next(), attempts: r.attempts + 1, lapsed: in.lapsed,
		}
	case free:
		next.state, next.due, next.lapsed = store.InboxDead, false, false
	}
	if !in.span.lost() && (out.done != claims || !next.same(out.record)) {
		return false
	}
	*r = next
	return true
}

// same reports whether the record is the one that was read, and learns its
// fence. The owner of a record that failed or is dead does not matter.
func (r *intake) same(read intake) bool {
	owned := r.state == store.InboxProcessing || r.state == store.InboxSucceeded
	fits := read.exists && r.state == read.state && r.attempts == read.attempts && r.fence.admits(read.fence.min) && (!owned || r.owner == read.owner)
	if fits {
		r.fence = read.fence
	}
	return fits
}

func (r intake) String() string {
	if !r.exists {
		return "no record"
	}
	return fmt.Sprintf("%s owner %s fence %s attempts %d due %t lapsed %t", r.state, short(r.owner), r.fence, r.attempts, r.due, r.lapsed)
}

func (in inboxInput) describe(out inboxOutput) string {
	ask, answer := fmt.Sprintf("owner %s fence %d", short(in.owner), in.fence), fmt.Sprint(out.done)
	switch in.op {
	case opAccept:
		ask, answer = fmt.Sprintf("owner %s, commits %t", short(in.owner), in.commits), fmt.Sprintf("%t busy %t: %s", out.done, out.busy, out.record)
	case opClaimEvent:
		ask, answer = fmt.Sprintf("owner %s, lapsed %t", short(in.owner), in.lapsed), fmt.Sprintf("%t: %s", out.done, out.record)
	case opFail:
		ask = fmt.Sprintf("%s, due %t dead %t", ask, in.due, in.dead)
	case opFindRecord:
		ask, answer = "", fmt.Sprintf("%t: %s", out.done, out.record)
	case opRedrive:
		ask = ""
	case opSucceed, opGiveBack:
	}
	return describe(string(in.op), ask, answer, in.span)
}

func (in inboxInput) isLost() bool { return in.span.lost() }

func (in inboxInput) forget() (lost operation, changes bool) {
	in.span.end = never
	return in, in.changes()
}

func (in inboxInput) changes() bool {
	return in.op != opFindRecord && (in.op != opAccept || in.commits)
}

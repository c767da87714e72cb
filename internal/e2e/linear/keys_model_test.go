package linear

import (
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// keyOp is the kind of an operation of the model of keys.
type keyOp string

const (
	opClaim   keyOp = "claim"
	opEnd     keyOp = "end"
	opRenew   keyOp = "renew"
	opResolve keyOp = "resolve"
	opFindKey keyOp = "find"
	opPeek    keyOp = "peek"
	// opTake is a transaction that takes the key and then stores an answer,
	// commits without one, or rolls back. opStore is a transaction that stores
	// the answer of a claimed attempt.
	opTake  keyOp = "take"
	opStore keyOp = "store answer"
)

// keyInput is an operation.
type keyInput struct {
	op    keyOp
	span  span
	hash  string
	owner waybill.ID
	fence int64
	// state is the end of an attempt, ref its answer; expired means that the
	// record has expired as soon as the attempt has ended.
	state   store.KeyState
	ref     string
	expired bool
	// lapsed means that the renewed lease has expired.
	lapsed bool
	// answered means that a transaction stores an answer and commits.
	answered bool
}

// keyOutput is the answer of an operation.
type keyOutput struct {
	// done means that the operation claimed, took, changed or found a record.
	done bool
	// busy means that another transaction has taken the key. The contract
	// allows this answer at any time.
	busy bool
	// fence is the fence of a taken key, and stored whether its answer was
	// stored.
	fence  int64
	stored bool
	record key
}

// key is the record of a key, and the state of the model.
type key struct {
	exists   bool
	expired  bool
	hash     string
	state    store.KeyState
	owner    waybill.ID
	fence    number
	attempts int
	ref      string
	lapsed   bool
}

// keysModel is the contract of driver.Keys for one key.
var keysModel = model{
	start: key{},
	step: func(state any, in operation, out any) []any {
		k := state.(key)
		if !k.step(in.(keyInput), out.(keyOutput)) {
			return nil
		}
		return []any{k}
	},
	describe: func(in operation, out any) string { return in.(keyInput).describe(out.(keyOutput)) },
}

// step makes an operation, and reports whether the contract allows the answer.
func (k *key) step(in keyInput, out keyOutput) bool {
	switch in.op {
	case opFindKey:
		return k.meets(out)
	case opPeek:
		found := k.live() && k.state == store.KeySucceeded
		return out.done == found && (!found || k.answers(out.record))
	case opClaim:
		return k.claim(in, out)
	case opTake:
		return k.take(in, out)
	case opResolve:
		return k.change(in, out, k.exists && k.state == store.KeyUncertain)
	case opEnd, opStore, opRenew:
		held := k.heldBy(in)
		if held {
			k.fence = exactly(in.fence)
		}
		return k.change(in, out, held)
	}
	panic("linear: no operation is called " + string(in.op))
}

// change changes the record if the operation fits.
func (k *key) change(in keyInput, out keyOutput, fits bool) bool {
	switch {
	case !in.span.lost() && out.done != fits:
		return false
	case !fits:
		return true
	case in.op == opRenew:
		k.lapsed = in.lapsed
	default:
		k.end(in)
	}
	return true
}

// end ends the attempt.
func (k *key) end(in keyInput) {
	k.state, k.expired, k.lapsed, k.ref = in.state, in.expired && in.state != store.KeyUncertain, false, ""
	if in.state == store.KeySucceeded {
		k.ref = in.ref
	}
}

func (k *key) live() bool { return k.exists && !k.expired }

func (k *key) heldBy(in keyInput) bool {
	return k.exists && k.state == store.KeyProcessing && k.owner == in.owner && k.fence.admits(in.fence)
}

// free reports whether a request with the hash may take the key.
func (k *key) free(hash string) bool {
	return !k.live() || k.hash == hash && (k.state == store.KeyFailed || k.state == store.KeyProcessing && k.lapsed)
}

// next returns the record of a new attempt, whose fence is unknown.
func (k *key) next(in keyInput) key {
	n := key{exists: true, hash: in.hash, state: store.KeyProcessing, owner: in.owner, fence: k.fence.next(), attempts: 1}
	if k.live() {
		n.attempts = k.attempts + 1
	}
	return n
}

func (k *key) claim(in keyInput, out keyOutput) bool {
	free := k.free(in.hash)
	switch {
	case in.span.lost() && !free:
		return true
	case !in.span.lost() && out.done != free:
		return false
	case !free:
		return k.same(out.record)
	}
	n := k.next(in)
	if !in.span.lost() && !n.same(out.record) {
		return false
	}
	*k = n
	return true
}

// answers reports whether a repeated request was given the record's answer.
func (k *key) answers(read key) bool {
	return k.state == read.state && k.ref == read.ref && k.hash == read.hash
}

func (k *key) take(in keyInput, out keyOutput) bool {
	free := k.free(in.hash)
	switch {
	case in.span.lost() && !free, !in.span.lost() && out.busy:
		return true
	case !in.span.lost() && out.done != free:
		return false
	case !free && k.state == store.KeySucceeded && out.record.owner.IsZero():
		return k.answers(out.record) // the other fields may be missing
	case !free:
		return k.same(out.record)
	}
	n := k.next(in)
	if !in.span.lost() {
		if !n.fence.admits(out.fence) || out.stored != in.answered {
			return false
		}
		n.fence = exactly(out.fence)
	}
	if in.answered {
		n.end(in)
		*k = n
	}
	return true
}

// meets reports whether the answer of a read is the record.
func (k *key) meets(out keyOutput) bool {
	if !out.done || !k.live() {
		return out.done == k.live()
	}
	return k.same(out.record)
}

// same reports whether the record is the one that was read, and learns its
// fence.
func (k *key) same(read key) bool {
	fits := k.hash == read.hash && k.state == read.state && k.owner == read.owner && k.attempts == read.attempts && k.ref == read.ref &&
		k.fence.admits(read.fence.min)
	if fits {
		k.fence = read.fence
	}
	return fits
}

func (k key) String() string {
	if !k.exists {
		return "no record"
	}
	return fmt.Sprintf("%s owner %s fence %s attempts %d ref %q hash %s expired %t lapsed %t",
		k.state, short(k.owner), k.fence, k.attempts, k.ref, hashText(k.hash), k.expired, k.lapsed)
}

func hashText(hash string) string { return hash[max(0, len(hash)-2):] }

func (in keyInput) describe(out keyOutput) string {
	attempt := fmt.Sprintf("owner %s fence %d", short(in.owner), in.fence)
	ask, answer := attempt, fmt.Sprint(out.done)
	switch in.op {
	case opClaim:
		ask, answer = fmt.Sprintf("owner %s hash %s", short(in.owner), hashText(in.hash)), fmt.Sprintf("%t: %s", out.done, out.record)
	case opTake:
		ask = fmt.Sprintf("owner %s hash %s %s ref %q expired %t, answer %t", short(in.owner), hashText(in.hash), in.state, in.ref, in.expired, in.answered)
		answer = fmt.Sprintf("%t busy %t fence %d: %s", out.done, out.busy, out.fence, out.record)
	case opEnd, opStore:
		ask = fmt.Sprintf("%s, %s ref %q expired %t", attempt, in.state, in.ref, in.expired)
	case opRenew:
		ask = fmt.Sprintf("%s, lapsed %t", attempt, in.lapsed)
	case opResolve:
		ask = fmt.Sprintf("%s ref %q expired %t", in.state, in.ref, in.expired)
	case opFindKey, opPeek:
		ask, answer = "", fmt.Sprintf("%t: %s", out.done, out.record)
	}
	return describe(string(in.op), ask, answer, in.span)
}

func (in keyInput) isLost() bool { return in.span.lost() }

func (in keyInput) forget() (lost operation, changes bool) {
	in.span.end = never
	return in, in.changes()
}

func (in keyInput) changes() bool {
	return in.op != opFindKey && in.op != opPeek && (in.op != opTake || in.answered)
}

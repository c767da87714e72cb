package sim

import (
	"maps"
	"slices"
)

// fault is a kind of bad luck.
type fault int

// The kinds. Their names are part of replay lines.
const (
	noFault fault = iota

	// Of a call of the store.
	callRefused    // not applied, and the caller gets an error
	callDelayed    // the request takes long
	answerDelayed  // applied, and the answer takes long
	answerLost     // applied, and the caller gets an error
	appliedLate    // the caller gives up, and then the call is applied
	crashBefore    // the process dies before the call is applied
	crashAfter     // the process dies before the answer
	outage         // every call of every process is refused for a while
	partition      // every call of one process is refused for a while
	serverRestart  // calls in flight fail and open transactions are gone
	settlementLost // a restart loses settlements that were not on disk
	sequenceJumps  // seqs are drawn and never used
	sequenceBack   // a restart issues unused seqs again
	clockStep      // the clock of the database changes

	// Of a transaction.
	lateCommit     // the seqs are drawn long before the commit
	rollback       // the caller rolls back
	commitLost     // committed, and the caller does not know
	commitRefused  // not committed, and the caller knows
	commitUnknown  // not committed, and the caller does not know
	announcement   // a commit is not announced in its process
	oldSavepoint   // a savepoint is rolled back inside a transaction
	dedupAbsorbed  // an event is absorbed by a pending one
	delayedEvent   // an event is written with a future time
	urgentEvent    // an event has a priority
	unorderedEvent // an event has no aggregate

	// Of a process.
	processCrash // it dies at any time
	processPause // its calls and deliveries stand still
	processStop  // it ends in good order
	processTwins // two processes die together

	// Of a sink.
	sinkRetry       // a failed attempt
	sinkRetryAfter  // a failed attempt that names its delay
	sinkPermanent   // a failure for good
	sinkDefer       // not yet
	sinkUnavailable // the destination cannot be reached
	sinkDown        // a destination is down for a long time
	sinkHang        // no answer until the context ends
	sinkLate        // the delivery happens late, perhaps after the lease
	sinkLies        // delivered, and reported as failed
	sinkPanic
	sinkShort  // the wrong number of results
	sinkKills  // the process dies during the call
	sinkPoison // the process dies at every delivery of an event

	// Of the operator.
	operatorReplay
	operatorDiscard
	operatorUnblock

	// Of the broker, consumers and callers.
	messageTwice
	messageReordered
	handlerFails
	handlerKills
	handlerSlow // it takes longer than its lease
	callerRepeats
	callerTogether
	callerDies
	callerSlow // the run takes longer than its lease

	pageTooLarge // the rows of a read are too large together

	// Of a relay with several destinations. The first one separates the draws
	// of plans: keep it the first.
	sinkSlow          // a call takes longer than the other destinations wait
	destinationPaused // for a while, by an operator
	destinationProbed // on an operator's request
	operatorRefill    // an operator sends history to a destination again

	faults // the number of kinds
)

var faultNames = map[fault]string{
	callRefused: "call-refused", callDelayed: "call-delayed", answerDelayed: "answer-delayed", answerLost: "answer-lost",
	appliedLate: "applied-late", crashBefore: "crash-before", crashAfter: "crash-after", outage: "outage", partition: "partition",
	serverRestart: "server-restart", settlementLost: "settlement-lost", sequenceJumps: "sequence-jumps", sequenceBack: "sequence-back",
	clockStep: "clock-step", lateCommit: "late-commit", rollback: "rollback", commitLost: "commit-lost", commitRefused: "commit-refused",
	commitUnknown: "commit-unknown", announcement: "announcement-lost", oldSavepoint: "savepoint", dedupAbsorbed: "dedup-absorbed",
	delayedEvent: "delayed-event", urgentEvent: "urgent-event", unorderedEvent: "unordered-event",
	processCrash: "process-crash", processPause: "process-pause", processStop: "process-stop", processTwins: "process-twins",
	sinkRetry: "sink-retry", sinkRetryAfter: "sink-retry-after", sinkPermanent: "sink-permanent", sinkDefer: "sink-defer",
	sinkUnavailable: "sink-unavailable", sinkDown: "sink-down", sinkHang: "sink-hang", sinkLate: "sink-late", sinkLies: "sink-lies",
	sinkPanic: "sink-panic", sinkShort: "sink-short", sinkKills: "sink-kills", sinkPoison: "sink-poison",
	operatorReplay: "operator-replay", operatorDiscard: "operator-discard", operatorUnblock: "operator-unblock",
	messageTwice: "message-twice", messageReordered: "message-reordered", handlerFails: "handler-fails", handlerKills: "handler-kills", handlerSlow: "handler-slow",
	callerRepeats: "caller-repeats", callerTogether: "caller-together", callerDies: "caller-dies", callerSlow: "caller-slow",
	pageTooLarge: "page-too-large",
	sinkSlow:     "sink-slow", destinationPaused: "destination-paused", destinationProbed: "destination-probed", operatorRefill: "operator-refill",
}

func (f fault) String() string {
	if name, ok := faultNames[f]; ok {
		return name
	}
	return "none"
}

// faultOf returns the kind with a name.
func faultOf(name string) (fault, bool) {
	for f, n := range faultNames {
		if n == name {
			return f, true
		}
	}
	return noFault, false
}

// allFaults returns the kinds in their order.
func allFaults() []fault { return slices.Sorted(maps.Keys(faultNames)) }

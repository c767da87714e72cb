package otelobserve

import (
	"errors"
	"strconv"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
)

// group returns the series of a consumer group. The first event of a group
// creates all its counters.
func (o *Observer) group(name string) *series {
	s, isNew := o.series.group.find(name)
	if isNew {
		o.add(o.in.consumeSuccess, 0, s)
		o.add(o.in.consumeReplayed, 0, s)
		o.add(o.in.consumeFailure, 0, s)
		o.add(o.in.consumeDead, 0, s)
	}
	return s
}

func (o *Observer) consumed(info observe.ConsumedInfo) {
	s := o.group(info.Group)
	if info.Replayed {
		o.add(o.in.consumeReplayed, 1, s)
		o.time(o.in.consumeDuration, info.Took, o.series.groupOutcome.get(info.Group, replay))
		return
	}
	o.add(o.in.consumeSuccess, 1, s)
	o.time(o.in.consumeDuration, info.Took, o.series.groupOutcome.get(info.Group, success))
}

func (o *Observer) consumeFailed(info observe.ConsumeFailedInfo) {
	o.add(o.in.consumeFailure, 1, o.group(info.Group))
	o.time(o.in.consumeDuration, info.Took, o.series.groupOutcome.get(info.Group, failure))
}

func (o *Observer) consumeDied(info observe.ConsumeDiedInfo) {
	o.add(o.in.consumeDead, 1, o.group(info.Group))
}

// groups returns a hook that sets the gauges of groups. A group that was
// reported before and is missing from a later report has no failed events:
// without a 0 its last values would stay forever.
func (o *Observer) groups() func(observe.GroupsInfo) {
	var mu sync.Mutex
	reported := map[string]bool{}
	return func(info observe.GroupsInfo) {
		mu.Lock()
		defer mu.Unlock()
		for name := range reported {
			reported[name] = false
		}
		for _, g := range info.Groups {
			reported[g.Group] = true
			o.stand(g)
		}
		for name, there := range reported {
			if !there {
				o.stand(observe.Group{Group: name})
				delete(reported, name)
			}
		}
	}
}

func (o *Observer) stand(g observe.Group) {
	s := o.group(g.Group)
	o.set(o.in.groupProcessing, g.Processing, s)
	o.set(o.in.groupFailed, g.Failed, s)
	o.set(o.in.groupDead, g.Dead, s)
	o.set(o.in.groupAttemptsHighest, int64(g.HighestAttempts), s)
	o.in.groupDueOldest.Record(background, g.OldestDue.Seconds(), s.record...)
}

// refusals are the values of the label "reason" for rejected requests.
var refusals = []string{"in_progress", "conflict", "uncertain", "error"}

func refusal(why error) string {
	switch {
	case errors.Is(why, waybill.ErrInProgress):
		return refusals[0]
	case errors.Is(why, waybill.ErrConflict):
		return refusals[1]
	case errors.Is(why, waybill.ErrUncertain):
		return refusals[2]
	}
	return refusals[3]
}

// operation returns the series of an operation. The first request of an
// operation creates all its counters.
func (o *Observer) operation(name string) *series {
	s, isNew := o.series.operation.find(name)
	if isNew {
		o.add(o.in.keyRepeated, 0, s)
		o.add(o.in.keyUnkept, 0, s)
		for _, outcome := range []string{success, failure} {
			o.add(o.in.keyRan, 0, o.series.operationOutcome.get(name, outcome))
		}
		for _, why := range refusals {
			o.add(o.in.keyRefused, 0, o.series.operationReason.get(name, why))
		}
	}
	return s
}

func (o *Observer) keyRan(info observe.KeyRanInfo) {
	o.operation(info.Operation)
	s := o.series.operationOutcome.get(info.Operation, outcome(info.Err))
	o.add(o.in.keyRan, 1, s)
	o.time(o.in.keyDuration, info.Took, s)
}

func outcome(err error) string {
	if err != nil {
		return failure
	}
	return success
}

func (o *Observer) keyRefused(info observe.KeyRefusedInfo) {
	o.operation(info.Operation)
	o.add(o.in.keyRefused, 1, o.series.operationReason.get(info.Operation, refusal(info.Err)))
}

func (o *Observer) keys(info observe.KeysInfo) {
	plain := o.series.plain.get()
	o.set(o.in.keysProcessing, info.Processing, plain)
	o.set(o.in.keysFailed, info.Failed, plain)
	o.set(o.in.keysUncertain, info.Uncertain, plain)
	o.set(o.in.keysLapsed, info.Lapsed, plain)
}

// source returns the series of a source. The first message of a source creates
// the counter of its dead-lettered messages.
func (o *Observer) source(name string) *series {
	s, isNew := o.series.source.find(name)
	if isNew {
		o.add(o.in.receiveDead, 0, s)
	}
	return s
}

func (o *Observer) received(info observe.ReceivedInfo) {
	class := info.Class.String()
	o.source(info.Source)
	o.add(o.in.received, 1, o.series.sourceClassRepeated.get(info.Source, class, strconv.FormatBool(info.Redelivered)))
	o.time(o.in.receiveDuration, info.Took, o.series.sourceClass.get(info.Source, class))
}

func (o *Observer) reconciled(info observe.ReconciledInfo) {
	s := o.series.job.get(info.Job)
	o.add(o.in.reconcileFound, info.Found, s)
	o.add(o.in.reconcileFixed, info.Sent, s)
	o.add(o.in.reconcileFailed, info.Failed, s)
	o.add(o.in.reconcileSkipped, info.Skipped, s)
	for _, which := range []string{success, failure} {
		n := 0
		if which == outcome(info.Err) {
			n = 1
		}
		o.add(o.in.reconcileRuns, n, o.series.jobOutcome.get(info.Job, which))
	}
	o.time(o.in.reconcileDuration, info.Took, s)
}

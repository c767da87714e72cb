package otelobserve

import (
	"errors"
	"strconv"
	"sync"
	"time"

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

func (o *Observer) consumed(group string, _ *waybill.Event, took time.Duration, replayed bool) {
	s := o.group(group)
	if replayed {
		o.add(o.in.consumeReplayed, 1, s)
		o.time(o.in.consumeDuration, took, o.series.groupOutcome.get(group, replay))
		return
	}
	o.add(o.in.consumeSuccess, 1, s)
	o.time(o.in.consumeDuration, took, o.series.groupOutcome.get(group, success))
}

func (o *Observer) consumeFailed(group string, _ *waybill.Event, _ error, took time.Duration) {
	o.add(o.in.consumeFailure, 1, o.group(group))
	o.time(o.in.consumeDuration, took, o.series.groupOutcome.get(group, failure))
}

func (o *Observer) consumeDied(group string, _ *waybill.Event, _ error) {
	o.add(o.in.consumeDead, 1, o.group(group))
}

// groups returns a hook that sets the gauges of groups. A group that was
// reported before and is missing from a later report has no failed events:
// without a 0 its last values would stay forever.
func (o *Observer) groups() func([]observe.Group) {
	var mu sync.Mutex
	reported := map[string]bool{}
	return func(groups []observe.Group) {
		mu.Lock()
		defer mu.Unlock()
		for name := range reported {
			reported[name] = false
		}
		for _, g := range groups {
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

func (o *Observer) keyRan(operation string, took time.Duration, err error) {
	o.operation(operation)
	s := o.series.operationOutcome.get(operation, outcome(err))
	o.add(o.in.keyRan, 1, s)
	o.time(o.in.keyDuration, took, s)
}

func outcome(err error) string {
	if err != nil {
		return failure
	}
	return success
}

func (o *Observer) keyRefused(operation string, why error) {
	o.operation(operation)
	o.add(o.in.keyRefused, 1, o.series.operationReason.get(operation, refusal(why)))
}

func (o *Observer) keys(k observe.Keys) {
	plain := o.series.plain.get()
	o.set(o.in.keysProcessing, k.Processing, plain)
	o.set(o.in.keysFailed, k.Failed, plain)
	o.set(o.in.keysUncertain, k.Uncertain, plain)
	o.set(o.in.keysLapsed, k.Lapsed, plain)
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

func (o *Observer) received(source string, class waybill.Class, redelivered bool, took time.Duration) {
	o.source(source)
	o.add(o.in.received, 1, o.series.sourceClassRepeated.get(source, class.String(), strconv.FormatBool(redelivered)))
	o.time(o.in.receiveDuration, took, o.series.sourceClass.get(source, class.String()))
}

func (o *Observer) reconciled(job string, r observe.Reconciled) {
	s := o.series.job.get(job)
	o.add(o.in.reconcileFound, r.Found, s)
	o.add(o.in.reconcileFixed, r.Sent, s)
	o.add(o.in.reconcileFailed, r.Failed, s)
	o.add(o.in.reconcileSkipped, r.Skipped, s)
	for _, which := range []string{success, failure} {
		n := 0
		if which == outcome(r.Err) {
			n = 1
		}
		o.add(o.in.reconcileRuns, n, o.series.jobOutcome.get(job, which))
	}
	o.time(o.in.reconcileDuration, r.Took, s)
}

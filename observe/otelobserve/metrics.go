package otelobserve

import (
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
)

// The outcomes in the label "outcome".
const (
	success = "success"
	failure = "failure"
	replay  = "replayed"
)

// retried are the classes of deliveries that are retried.
var retried = []waybill.Class{waybill.ClassUnavailable, waybill.ClassDefer, waybill.ClassRetry}

// zero creates counters with known labels before the first measurement: an
// alert on an increase then sees the first failure.
func (o *Observer) zero() {
	plain := o.series.plain.get()
	for _, c := range []metric.Int64Counter{
		o.in.enqueueHot, o.in.enqueueCold, o.in.settled, o.in.settleFailure, o.in.deadReplayed, o.in.deadDiscarded,
	} {
		o.add(c, 0, plain)
	}
	for why := observe.DropQueueFull; why <= observe.DropStopped; why++ {
		o.add(o.in.enqueueHotDropped, 0, o.series.reason.get(dropReason(why)))
	}
	for _, what := range []string{"delivered", "dead", "written", "inbox"} {
		o.add(o.in.purged, 0, o.series.what.get(what))
	}
}

// dropReason is the value of a label, without spaces so that queries are easier
// to type.
func dropReason(why observe.Drop) string {
	switch why {
	case observe.DropNotDue:
		return "not_due"
	case observe.DropAlreadyRead:
		return "read_first"
	case observe.DropQueueFull, observe.DropNotOwned, observe.DropBlocked, observe.DropRowMissing, observe.DropStopped:
	}
	return why.String()
}

func (o *Observer) time(h metric.Float64Histogram, took time.Duration, s *series) {
	h.Record(background, took.Seconds(), s.record...)
}

func (o *Observer) set(g metric.Int64Gauge, v int64, s *series) { g.Record(background, v, s.record...) }

func (o *Observer) queueDepths(info observe.QueueDepthsInfo) {
	plain := o.series.plain.get()
	o.set(o.in.queueHot, int64(info.Hot), plain)
	o.set(o.in.queueCold, int64(info.Cold), plain)
	o.set(o.in.queueSize, int64(info.Bytes), plain)
}

// eventType returns the series of an event type. The first event of a type
// creates all its counters.
func (o *Observer) eventType(to *dispatch, name string) *series {
	s, isNew := to.eventType.find(name)
	if isNew {
		o.add(o.in.dispatchSuccess, 0, s)
		o.add(o.in.dispatchDead, 0, s)
		for _, class := range retried {
			o.add(o.in.dispatchFailure, 0, to.eventTypeClass.get(name, class.String()))
		}
	}
	return s
}

func (o *Observer) delivered(info observe.DeliveredInfo) {
	to := o.series.delivery.to(info.Destination)
	o.add(o.in.dispatchSuccess, 1, o.eventType(to, info.Delivery.Type))
	o.time(o.in.dispatchDuration, info.Took, to.outcome.get(success))
	if info.Age > 0 { // 0 is not known
		o.time(o.in.publishLatency, info.Age, to.plain.get())
	}
}

func (o *Observer) failed(info observe.FailedInfo) {
	to, name := o.series.delivery.to(info.Destination), info.Delivery.Type
	o.eventType(to, name)
	o.add(o.in.dispatchFailure, 1, to.eventTypeClass.get(name, info.Class.String()))
	o.time(o.in.dispatchDuration, info.Took, to.outcome.get(failure))
}

func (o *Observer) died(info observe.DiedInfo) {
	o.add(o.in.dispatchDead, 1, o.eventType(o.series.delivery.to(info.Destination), info.Delivery.Type))
}

func (o *Observer) paused(info observe.PausedInfo) {
	var v int64
	if info.Paused {
		v = 1
	}
	o.set(o.in.destinationPaused, v, o.series.unavailable.get(info.Destination))
}

func (o *Observer) read(info observe.ReadInfo) {
	s := o.series.kind.get(info.Kind)
	o.add(o.in.readRows, info.Rows, s)
	o.add(o.in.readFailure, one(info.Err), s)
	o.time(o.in.readDuration, info.Took, s)
}

func (o *Observer) settled(info observe.SettledInfo) {
	plain := o.series.plain.get()
	if info.Err == nil {
		o.add(o.in.settled, info.Events, plain)
	} else {
		o.add(o.in.settleFailure, 1, plain)
	}
	o.time(o.in.settleDuration, info.Took, plain)
}

// one is 1 if there is an error. Adding 0 creates a counter.
func one(err error) int {
	if err != nil {
		return 1
	}
	return 0
}

func (o *Observer) lanes(info observe.LanesInfo) {
	plain := o.series.plain.get()
	o.set(o.in.lanesOwned, int64(info.Owned), plain)
	o.set(o.in.lanes, int64(info.Total), plain)
}

func (o *Observer) lag(info observe.LagInfo) {
	o.in.lagOldest.Record(background, info.Oldest.Seconds(), o.series.plain.get().record...)
}

func (o *Observer) backlog(info observe.BacklogInfo) {
	plain := o.series.plain.get()
	ready, oldest := o.in.backlog, o.in.backlogOldest
	if info.Captured { // ready events wait for no delivery: no backlog alert
		ready, oldest = o.in.captured, o.in.capturedOldest
	}
	o.set(ready, info.Ready, plain)
	oldest.Record(background, info.Oldest.Seconds(), plain.record...)
	o.set(o.in.failed, info.Failed, plain)
	o.set(o.in.scheduled, info.Scheduled, plain)
	o.set(o.in.dead, info.Dead, plain)
	o.set(o.in.holding, info.Holding, plain)
	o.set(o.in.attemptsHighest, int64(info.MaxAttempts), plain)
	o.in.counted.Record(background, float64(time.Now().UnixMilli())/1000, plain.record...)
}

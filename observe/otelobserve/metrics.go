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

func (o *Observer) queueDepths(hot, cold int) {
	plain := o.series.plain.get()
	o.set(o.in.queueHot, int64(hot), plain)
	o.set(o.in.queueCold, int64(cold), plain)
}

// eventType returns the series of an event type. The first event of a type
// creates all its counters.
func (o *Observer) eventType(name string) *series {
	s, isNew := o.series.eventType.find(name)
	if isNew {
		o.add(o.in.dispatchSuccess, 0, s)
		o.add(o.in.dispatchDead, 0, s)
		for _, class := range retried {
			o.add(o.in.dispatchFailure, 0, o.series.eventTypeClass.get(name, class.String()))
		}
	}
	return s
}

func (o *Observer) delivered(d *waybill.Delivery, took, age time.Duration) {
	o.add(o.in.dispatchSuccess, 1, o.eventType(d.Type))
	o.time(o.in.dispatchDuration, took, o.series.outcome.get(success))
	if age > 0 { // 0 is not known
		o.time(o.in.publishLatency, age, o.series.plain.get())
	}
}

func (o *Observer) failed(d *waybill.Delivery, class waybill.Class, _ error, took time.Duration) {
	o.eventType(d.Type)
	o.add(o.in.dispatchFailure, 1, o.series.eventTypeClass.get(d.Type, class.String()))
	o.time(o.in.dispatchDuration, took, o.series.outcome.get(failure))
}

func (o *Observer) died(d *waybill.Delivery, _ error) {
	o.add(o.in.dispatchDead, 1, o.eventType(d.Type))
}

func (o *Observer) paused(destination string, paused bool) {
	var v int64
	if paused {
		v = 1
	}
	o.set(o.in.destinationPaused, v, o.series.destination.get(destination))
}

func (o *Observer) read(kind string, rows int, took time.Duration, err error) {
	s := o.series.kind.get(kind)
	o.add(o.in.readRows, rows, s)
	o.add(o.in.readFailure, one(err), s)
	o.time(o.in.readDuration, took, s)
}

func (o *Observer) settled(n int, took time.Duration, err error) {
	plain := o.series.plain.get()
	if err == nil {
		o.add(o.in.settled, n, plain)
	} else {
		o.add(o.in.settleFailure, 1, plain)
	}
	o.time(o.in.settleDuration, took, plain)
}

// one is 1 if there is an error. Adding 0 creates a counter.
func one(err error) int {
	if err != nil {
		return 1
	}
	return 0
}

func (o *Observer) lanes(owned, total int) {
	plain := o.series.plain.get()
	o.set(o.in.lanesOwned, int64(owned), plain)
	o.set(o.in.lanes, int64(total), plain)
}

func (o *Observer) lag(oldest time.Duration) {
	o.in.lagOldest.Record(background, oldest.Seconds(), o.series.plain.get().record...)
}

func (o *Observer) backlog(b observe.Backlog) {
	plain := o.series.plain.get()
	ready, oldest := o.in.backlog, o.in.backlogOldest
	if b.Captured { // ready events wait for no delivery: no backlog alert
		ready, oldest = o.in.captured, o.in.capturedOldest
	}
	o.set(ready, b.Ready, plain)
	oldest.Record(background, b.Oldest.Seconds(), plain.record...)
	o.set(o.in.failed, b.Failed, plain)
	o.set(o.in.scheduled, b.Scheduled, plain)
	o.set(o.in.dead, b.Dead, plain)
	o.set(o.in.holding, b.Holding, plain)
	o.set(o.in.attemptsHighest, int64(b.MaxAttempts), plain)
}

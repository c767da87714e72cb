package otelobserve

import (
	"errors"

	"go.opentelemetry.io/otel/metric"
)

// instruments are all metrics, in the order of docs/metrics.md.
type instruments struct {
	written                                        metric.Int64Counter
	enqueueHot, enqueueHotDropped, enqueueCold     metric.Int64Counter
	queueHot, queueCold, queueSize                 metric.Int64Gauge
	dispatchSuccess, dispatchFailure, dispatchDead metric.Int64Counter
	unrouted                                       metric.Int64Counter
	dispatchDuration, publishLatency               metric.Float64Histogram
	dispatchBatch                                  metric.Int64Histogram
	destinationPaused                              metric.Int64Gauge
	readRows, readFailure                          metric.Int64Counter
	readDuration                                   metric.Float64Histogram
	settled, settleFailure                         metric.Int64Counter
	settleDuration                                 metric.Float64Histogram
	lanes, lanesOwned                              metric.Int64Gauge
	lagOldest                                      metric.Float64Gauge
	backlog, failed, scheduled, dead, holding      metric.Int64Gauge
	attemptsHighest                                metric.Int64Gauge
	backlogOldest, counted                         metric.Float64Gauge
	captured                                       metric.Int64Gauge
	capturedOldest                                 metric.Float64Gauge
	destinationBacklog, destinationHolding         metric.Int64Gauge
	destinationAttemptsHighest, destinationBehind  metric.Int64Gauge
	destinationBacklogOldest, destinationPause     metric.Float64Gauge
	purged, deadReplayed, deadDiscarded            metric.Int64Counter
	consumeSuccess, consumeReplayed                metric.Int64Counter
	consumeFailure, consumeDead                    metric.Int64Counter
	consumeDuration                                metric.Float64Histogram
	groupProcessing, groupFailed, groupDead        metric.Int64Gauge
	groupAttemptsHighest                           metric.Int64Gauge
	groupDueOldest                                 metric.Float64Gauge
	keyRan, keyRepeated, keyRefused, keyUnkept     metric.Int64Counter
	keyDuration                                    metric.Float64Histogram
	keysProcessing, keysFailed, keysUncertain      metric.Int64Gauge
	keysLapsed                                     metric.Int64Gauge
	received, receiveDead                          metric.Int64Counter
	receiveDuration                                metric.Float64Histogram
	reconcileRuns, reconcileFound, reconcileFixed  metric.Int64Counter
	reconcileFailed, reconcileSkipped              metric.Int64Counter
	reconcileDuration                              metric.Float64Histogram
}

// seconds are the bounds of histograms of time. An alert needs the bound 5.
var seconds = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}

var batchSizes = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}

func newInstruments(m metric.Meter, prefix string) (*instruments, error) {
	b := &builder{meter: m, prefix: prefix + "."}
	in := &instruments{}
	b.writing(in)
	b.relaying(in)
	b.tables(in)
	b.destinations(in)
	b.consuming(in)
	b.keys(in)
	b.rest(in)
	return in, errors.Join(b.errs...)
}

func (b *builder) writing(in *instruments) {
	in.written = b.counter("written", "{event}", "Events written to the outbox, including those of rolled-back transactions.")
	in.enqueueHot = b.counter("enqueue.hot", "{event}", "Events that a commit of this process announced and the relay took into memory.")
	in.enqueueHotDropped = b.counter("enqueue.hot.dropped", "{event}", "Events that a commit of this process announced and the relay has to read from the table.")
	in.enqueueCold = b.counter("enqueue.cold", "{event}", "Events that the relay has read from the tables.")
	in.queueHot = b.gauge("queue.hot.depth", "{event}", "Events in the relay's memory that a commit announced.")
	in.queueCold = b.gauge("queue.cold.depth", "{event}", "Events that were read from the tables and wait in the relay's memory.")
	in.queueSize = b.gauge("queue.size", "By", "Size of the events in the relay's memory, waiting or in flight.")
}

func (b *builder) relaying(in *instruments) {
	in.dispatchSuccess = b.counter("dispatch.success", "{event}", "Events delivered.")
	in.dispatchFailure = b.counter("dispatch.failure", "{event}", "Failed deliveries that will be retried.")
	in.dispatchDead = b.counter("dispatch.dead", "{event}", "Events that became dead letters.")
	in.unrouted = b.counter("unrouted", "{event}", "Events that no destination takes.")
	in.dispatchDuration = b.duration("dispatch.duration", "Time in the sink, per event.")
	in.publishLatency = b.duration("publish.latency", "Time from the write of an event to its delivery.")
	in.dispatchBatch = b.sizes("dispatch.batch", "{event}", "Events per call of the sink.")
	in.destinationPaused = b.gauge("destination.paused", "", "1 while the relay waits because the destination is unavailable, 0 otherwise.")
	in.readRows = b.counter("read.rows", "{row}", "Rows read by the relay.")
	in.readFailure = b.counter("read.failure", "{read}", "Failed reads of the relay.")
	in.readDuration = b.duration("read.duration", "Time of a read of the relay.")
	in.settled = b.counter("settled", "{event}", "Events settled by the relay.")
	in.settleFailure = b.counter("settle.failure", "{settlement}", "Failed settlements; the relay retries them.")
	in.settleDuration = b.duration("settle.duration", "Time of a settlement.")
	in.lanes = b.gauge("lanes", "{lane}", "Lanes of the outbox.")
	in.lanesOwned = b.gauge("lanes.owned", "{lane}", "Lanes that this relay owns.")
	in.lagOldest = b.age("lag.oldest", "Age of the oldest event in the relay's memory.")
}

func (b *builder) tables(in *instruments) {
	in.backlog = b.gauge("backlog", "{event}", "Events in the tables that wait for their first delivery.")
	in.failed = b.gauge("failed", "{event}", "Failed events in the tables that wait for a retry.")
	in.scheduled = b.gauge("scheduled", "{event}", "Scheduled events in the tables that are not due yet.")
	in.dead = b.gauge("dead", "{event}", "Dead letters.")
	in.holding = b.gauge("holding", "{event}", "Events that block their aggregate.")
	in.attemptsHighest = b.gauge("attempts.highest", "{attempt}", "Highest number of attempts of a pending event.")
	in.backlogOldest = b.age("backlog.oldest", "Age of the oldest event that waits for its first delivery.")
	in.counted = b.at("counted.timestamp", "Time of the last count of the tables, in seconds since 1970.")
	in.captured = b.gauge("captured", "{event}", "Events in the tables that are kept for change data capture to read.")
	in.capturedOldest = b.age("captured.oldest", "Age of the oldest event that is kept for change data capture to read.")
	in.purged = b.counter("purged", "{row}", "Rows that retention has removed.")
	in.deadReplayed = b.counter("dead.replayed", "{event}", "Dead letters that an operator replayed.")
	in.deadDiscarded = b.counter("dead.discarded", "{event}", "Dead letters that an operator discarded.")
}

func (b *builder) destinations(in *instruments) {
	in.destinationBacklog = b.gauge("destination.backlog", "{event}", "Events that a destination has yet to receive, and its dead letters.")
	in.destinationBacklogOldest = b.age("destination.backlog.oldest", "Age of the oldest ready event in the backlog of a destination.")
	in.destinationBehind = b.gauge("destination.behind", "{lane}", "Lanes with events in the backlog of a destination.")
	in.destinationHolding = b.gauge("destination.holding", "{event}", "Events that block their aggregate at a destination.")
	in.destinationAttemptsHighest = b.gauge("destination.attempts.highest", "{attempt}", "Highest number of attempts of an event in the backlog of a destination.")
	in.destinationPause = b.age("destination.pause", "Time since a destination was paused, until an operator resumes it; 0 if it is not paused.")
}

func (b *builder) consuming(in *instruments) {
	in.consumeSuccess = b.counter("consume.success", "{event}", "Events that a consumer group has applied.")
	in.consumeReplayed = b.counter("consume.replayed", "{event}", "Deliveries of events that the group had applied before.")
	in.consumeFailure = b.counter("consume.failure", "{event}", "Failed attempts of a consumer group that will be retried.")
	in.consumeDead = b.counter("consume.dead", "{event}", "Deliveries of events that are dead in the group.")
	in.consumeDuration = b.duration("consume.duration", "Time of a consumer group per event.")
	in.groupProcessing = b.gauge("group.processing", "{event}", "Records with a running attempt.")
	in.groupFailed = b.gauge("group.failed", "{event}", "Failed records that wait for a retry.")
	in.groupDead = b.gauge("group.dead", "{event}", "Dead records of the group.")
	in.groupAttemptsHighest = b.gauge("group.attempts.highest", "{attempt}", "Highest number of attempts of a failed record.")
	in.groupDueOldest = b.age("group.due.oldest", "Longest time that a failed record has been due.")
	in.received = b.counter("received", "{message}", "Messages that a source has passed to its consumer.")
	in.receiveDead = b.counter("receive.dead", "{message}", "Messages that a source has moved to its dead-letter destination.")
	in.receiveDuration = b.duration("receive.duration", "Time of the consumer per message.")
}

func (b *builder) keys(in *instruments) {
	in.keyRan = b.counter("key.ran", "{request}", "Requests that ran under an idempotency key.")
	in.keyRepeated = b.counter("key.repeated", "{request}", "Requests that received the answer of an earlier run.")
	in.keyRefused = b.counter("key.refused", "{request}", "Rejected requests.")
	in.keyUnkept = b.counter("key.unkept", "{request}", "Answers that were sent and could not be stored.")
	in.keyDuration = b.duration("key.duration", "Time of a run under an idempotency key.")
	in.keysProcessing = b.gauge("keys.processing", "{key}", "Keys with a running attempt.")
	in.keysFailed = b.gauge("keys.failed", "{key}", "Keys whose run failed; they may be used again.")
	in.keysUncertain = b.gauge("keys.uncertain", "{key}", "Keys whose run has an unknown outcome.")
	in.keysLapsed = b.gauge("keys.lapsed", "{key}", "Keys whose run has exceeded its lease.")
}

func (b *builder) rest(in *instruments) {
	in.reconcileRuns = b.counter("reconcile.runs", "{run}", "Runs of a reconciliation job.")
	in.reconcileFound = b.counter("reconcile.found", "{event}", "Events that a job found missing.")
	in.reconcileFixed = b.counter("reconcile.fixed", "{event}", "Events that a job has sent again.")
	in.reconcileFailed = b.counter("reconcile.failed", "{event}", "Events that a job could not send again.")
	in.reconcileSkipped = b.counter("reconcile.skipped", "{event}", "Events that a job has sent before and that are still in flight.")
	in.reconcileDuration = b.duration("reconcile.duration", "Time of a run of a reconciliation job.")
}

// builder creates instruments and collects errors.
type builder struct {
	meter  metric.Meter
	prefix string
	errs   []error
}

func (b *builder) counter(name, unit, text string) metric.Int64Counter {
	i, err := b.meter.Int64Counter(b.prefix+name, metric.WithUnit(unit), metric.WithDescription(text))
	b.errs = append(b.errs, err)
	return i
}

func (b *builder) gauge(name, unit, text string) metric.Int64Gauge {
	i, err := b.meter.Int64Gauge(b.prefix+name, metric.WithUnit(unit), metric.WithDescription(text))
	b.errs = append(b.errs, err)
	return i
}

func (b *builder) age(name, text string) metric.Float64Gauge {
	i, err := b.meter.Float64Gauge(b.prefix+name, metric.WithUnit("s"), metric.WithDescription(text))
	b.errs = append(b.errs, err)
	return i
}

// at is a gauge of a time.
func (b *builder) at(name, text string) metric.Float64Gauge { return b.age(name, text) }

func (b *builder) duration(name, text string) metric.Float64Histogram {
	i, err := b.meter.Float64Histogram(b.prefix+name, metric.WithUnit("s"), metric.WithDescription(text),
		metric.WithExplicitBucketBoundaries(seconds...))
	b.errs = append(b.errs, err)
	return i
}

func (b *builder) sizes(name, unit, text string) metric.Int64Histogram {
	i, err := b.meter.Int64Histogram(b.prefix+name, metric.WithUnit(unit), metric.WithDescription(text),
		metric.WithExplicitBucketBoundaries(batchSizes...))
	b.errs = append(b.errs, err)
	return i
}

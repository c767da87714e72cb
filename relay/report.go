package relay

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/outage"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay/internal/ledger"
)

// report passes on what the ledger has noted: to the log, the hooks, and the
// writers of this process.
func (e *engine) report(now time.Time) {
	for _, q := range e.queues {
		for _, f := range q.ledger.Facts() {
			q.fact(f, now)
		}
		q.reportCounts()
	}
	g := e.main.ledger
	if v := g.LaneVersion(); v != e.laneVersion {
		e.laneVersion = v
		e.prefer()
	}
	if polls := g.SelfPolling(); polls != e.selfPolling {
		e.selfPolling = polls
		e.db.Local().SetSelfPolling(polls)
	}
	if e.anyUnavailable() && !now.Before(e.downLoggedAt.Add(outage.Every)) {
		e.logDown(now)
	}
}

// fact logs a fact and calls its hooks.
func (q *queue) fact(f ledger.Fact, now time.Time) {
	e := q.e
	switch f := f.(type) {
	case ledger.Retried:
		q.event(slog.LevelDebug, "event will be retried", f.Item, f.Err, slog.Duration(logkey.Delay, f.Delay))
	case ledger.Dead:
		q.event(slog.LevelError, "event is dead", f.Item, f.Err)
		e.counts.died(q.name(), f.Item.Row().Event.Type, now)
		if e.observe.Died != nil {
			e.observe.Died(observe.DiedInfo{Delivery: f.Delivery, Err: f.Err, Destination: q.name()})
		}
		if q.to != nil && q.to.breaker.died(f.Err) {
			e.pauseTarget(q.to, f.Err, now)
		}
	case ledger.Down:
		e.member.reportSoon()
		if f.First {
			e.downLoggedAt = now
		}
		e.log.Warn("destination is down", slog.String(logkey.Destination, q.destination(f.Destination)), slog.String(logkey.Error, f.Err.Error()))
		e.reportPaused(q.destination(f.Destination), true)
	case ledger.Back:
		e.member.reportSoon()
		message := "destination is back"
		if f.Abandoned {
			message = "destination is no longer probed: no event is waiting for it here"
		}
		e.log.Info(message, slog.String(logkey.Destination, q.destination(f.Destination)), slog.Duration(logkey.Duration, f.For), slog.Int(logkey.Failures, f.Failures))
		e.reportPaused(q.destination(f.Destination), false)
	case ledger.Lost:
		e.logLost(f.Lane, f.Epoch)
		e.laneLost(f.Lane, now)
	case ledger.Violation:
		// A defect of the relay. The lane is dropped, so that the next owner
		// begins with what the tables say.
		e.log.Error("an event changed its state in a way that is not allowed; the lane is dropped",
			slog.Int(logkey.Lane, f.Lane), slog.String(logkey.From, f.From), slog.String(logkey.To, f.To))
		e.laneLost(f.Lane, now)
	}
}

func (e *engine) logLost(lane int, epoch int64) {
	e.log.Warn("lane was lost: another node owns it", slog.Int(logkey.Lane, lane), slog.Int64(logkey.Epoch, epoch))
}

// reportCounts frees the slots of the commit queue, and calls the hooks for
// events that were taken into memory or take the cold path.
func (q *queue) reportCounts() {
	e := q.e
	counts := q.ledger.Counts()
	if counts.HotTaken > 0 && e.observe.HotEnqueued != nil {
		e.observe.HotEnqueued(observe.HotEnqueuedInfo{Events: counts.HotTaken})
	}
	if counts.ColdTaken > 0 && e.observe.ColdEnqueued != nil {
		e.observe.ColdEnqueued(observe.ColdEnqueuedInfo{Events: counts.ColdTaken})
	}
	if counts.Freed > 0 {
		e.commits.done(counts.Freed)
	}
	for why, n := range counts.Dropped {
		if n > 0 {
			e.commits.dropped(n, observe.Drop(why))
		}
	}
}

// prefer reports the lanes of this node to the writers of this process.
func (e *engine) prefer() {
	var own []int
	for _, l := range e.main.ledger.Lanes() {
		if !l.Draining {
			own = append(own, l.Lease.Lane)
		}
	}
	e.db.Local().SetLocalLanes(own)
	if e.observe.Lanes != nil {
		e.observe.Lanes(observe.LanesInfo{Owned: len(own), Total: e.total})
	}
}

func (e *engine) reportPaused(name string, paused bool) {
	if e.observe.Paused != nil {
		e.observe.Paused(observe.PausedInfo{Destination: name, Paused: paused})
	}
}

// maxNamed is the maximum number of destinations that one log line names.
const maxNamed = 5

// logDown logs the unavailable destinations once a minute, in one line: an
// unavailable broker may have hundreds of destinations.
func (e *engine) logDown(now time.Time) {
	e.downLoggedAt = now
	var down []ledger.DownState
	failures := 0
	names := make([]string, 0, maxNamed)
	for _, q := range e.queues {
		for _, d := range q.ledger.Unavailable() {
			down = append(down, d)
			failures += d.Failures
			if len(names) < maxNamed {
				names = append(names, q.destination(d.Destination))
			}
		}
	}
	first := slices.MinFunc(down, func(a, b ledger.DownState) int { return a.Since.Compare(b.Since) })
	e.log.Warn("destinations are still down", slog.Int(logkey.Destinations, len(down)), slog.Any(logkey.Names, names),
		slog.String(logkey.Since, first.Since.UTC().Format(time.RFC3339)), slog.Duration(logkey.Duration, now.Sub(first.Since)),
		slog.Int(logkey.Failures, failures), slog.String(logkey.Error, first.Err.Error()))
}

// event logs a message about an event, with the fields that operators search
// for.
func (q *queue) event(level slog.Level, message string, it *ledger.Item, err error, more ...slog.Attr) {
	e := q.e
	if !e.log.Enabled(context.Background(), level) {
		return
	}
	ev := &it.Row().Event
	attrs := append(make([]slog.Attr, 0, 12),
		slog.String(logkey.EventID, ev.ID.String()), slog.String(logkey.EventType, ev.Type), slog.String(logkey.AggregateType, ev.AggregateType),
		slog.String(logkey.AggregateID, ev.AggregateID), slog.Int(logkey.Attempt, it.Attempt()))
	if q.to != nil {
		attrs = append(attrs, slog.String(logkey.Destination, q.to.Name))
	}
	if ev.DedupKey != "" {
		attrs = append(attrs, slog.String(logkey.DedupKey, ev.DedupKey))
	}
	if ev.CorrelationID != "" {
		attrs = append(attrs, slog.String(logkey.CorrelationID, ev.CorrelationID))
	}
	if ev.TenantID != "" {
		attrs = append(attrs, slog.String(logkey.TenantID, ev.TenantID))
	}
	if age := q.ledger.Age(it, time.Now()); age > 0 {
		attrs = append(attrs, slog.Duration(logkey.Latency, age))
	}
	if err != nil {
		attrs = append(attrs, slog.String(logkey.Error, err.Error()))
	}
	e.log.LogAttrs(context.Background(), level, message, append(attrs, more...)...)
}

// name returns the name of the queue's destination; "" for the outbox.
func (q *queue) name() string {
	if q.to == nil {
		return ""
	}
	return q.to.Name
}

// destination returns the full name of a destination of the queue's sink.
func (q *queue) destination(part string) string {
	switch {
	case q.to == nil:
		return part
	case part == "":
		return q.to.Name
	}
	return q.to.Name + ": " + part
}

func (e *engine) warn(message string, err error, attrs ...any) {
	e.log.Warn(message, append(attrs, slog.String(logkey.Error, err.Error()))...)
}

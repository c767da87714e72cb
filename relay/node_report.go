package relay

import (
	"os"
	"runtime/debug"
	"time"

	"github.com/waybillhq/waybill/store/driver"
)

// reportInterval is the minimum interval between heartbeats that the state of a
// destination causes: an operator should not wait for the next regular one.
const reportInterval = 2 * time.Second

// newNodeReport returns the part that all reports of a node share.
func newNodeReport(cfg Config, now time.Time) driver.NodeReport {
	host, err := os.Hostname()
	if err != nil {
		host = "" // the report does not name it
	}
	return driver.NodeReport{Host: host, PID: os.Getpid(), Version: cfg.Version, StartedAt: now}
}

// versionOf returns the version of a program: that of its main module, or its
// commit. info may be nil.
func versionOf(info *debug.BuildInfo) string {
	if info == nil {
		return ""
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return info.Main.Version
}

// nodeReport returns the report for the next heartbeat.
func (e *engine) nodeReport(now time.Time) string {
	r := e.self
	r.At = now
	counts := e.counts.lastMinute(now)
	r.LastMinute = &counts
	for _, q := range e.queues {
		for _, d := range q.ledger.Unavailable() {
			r.Troubles = append(r.Troubles, driver.Trouble{
				Destination: q.name(), Part: d.Destination, State: driver.TroubleDown,
				Since: d.Since, Error: d.Err.Error(), NextProbe: d.NextProbe,
			})
		}
	}
	for _, t := range e.targets {
		if limit, waits := t.limited.rate(now); waits {
			r.Troubles = append(r.Troubles, driver.Trouble{
				Destination: t.Name, State: driver.TroubleLimited, Since: t.limited.since, Error: t.limited.err, Rate: limit,
			})
		}
	}
	return driver.EncodeNodeReport(&r, e.cfg.Lease)
}

// limited reports whether events wait for the rate of a destination.
type limited struct {
	of    *rate
	since time.Time
	// until is when the events count as no longer waiting, unless one waits
	// again before.
	until time.Time
	err   string // with which the destination last asked for fewer events
}

// limitedGrace is the minimum time between two events that wait for a rate, of
// which the second one counts as another beginning.
const limitedGrace = 5 * time.Second

// wait notes that an event waits for the rate. It reports whether none did
// before.
func (l *limited) wait(now time.Time) (first bool) {
	if first = !now.Before(l.until); first {
		l.since = now
	}
	grace := limitedGrace
	if limit := l.of.current(); limit > 0 { // the next event may take long
		grace = max(grace, time.Duration(2*float64(time.Second)/limit))
	}
	l.until = now.Add(grace)
	return first
}

// rate returns the events per second that the destination receives, and whether
// events wait for it.
func (l *limited) rate(now time.Time) (limit float64, waits bool) {
	return l.of.current(), now.Before(l.until)
}

// waitsForRate notes that an event waits for the rate of the destination.
func (t *target) waitsForRate(now time.Time) {
	if t.limited.wait(now) {
		t.e.member.reportSoon()
	}
}

// reportSoon makes the next heartbeat come soon.
func (m *membership) reportSoon() {
	m.news = true
	m.hasten()
}

// hasten moves the next heartbeat forward if there is news.
func (m *membership) hasten() {
	if at := m.began.Add(reportInterval); m.news && m.joined && at.Before(m.nextBeat) {
		m.nextBeat = at
	}
}

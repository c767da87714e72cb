package relay

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// checks are the reads of the registry of destinations, and of the lanes that
// have rows in backlogs. One is under way at a time.
type checks struct {
	jobs    chan checkJob
	replies chan checkReply
	running bool
	last    time.Time // when the last check began
	soon    bool      // an operator may have changed the tables
	// pauses are destinations to pause, with the reasons.
	pauses map[string]string
	// strangers are registered destinations that this relay does not have, and
	// that were logged.
	strangers map[string]bool
}

type checkJob struct {
	numbers []int
	pauses  map[string]string
	began   time.Time
}

type checkReply struct {
	checkJob
	registry []store.Destination
	occupied map[int][]int
	err      error
}

// checkInterval is the minimum interval between checks while a lane might
// become direct. wakeInterval is that of checks that wake-ups cause: commits of
// other processes wake the relay, too.
const (
	checkInterval = 100 * time.Millisecond
	wakeInterval  = time.Second
)

// checker runs checks until the channel is closed.
func (e *engine) checker() {
	for j := range e.check.jobs {
		r := checkReply{checkJob: j}
		ctx, cancel := context.WithTimeout(e.io, readTimeout)
		for name, reason := range j.pauses {
			if _, err := e.db.backlogs.PauseDestination(ctx, name, driver.CutError(reason)); err != nil {
				r.err = fmt.Errorf("pause destination %s: %w", name, err)
			}
		}
		if r.err == nil {
			r.registry, r.err = e.db.backlogs.AddDestinations(ctx)
		}
		if r.err == nil {
			r.occupied, r.err = e.occupied(ctx, j.numbers)
		}
		cancel()
		e.check.replies <- r
	}
}

// occupied returns the lanes that have rows in each of the backlogs.
func (e *engine) occupied(ctx context.Context, numbers []int) (map[int][]int, error) {
	out := make(map[int][]int, len(numbers))
	for _, n := range numbers {
		lanes, err := e.db.backlogs.Backlog(n).Occupied(ctx)
		if err != nil {
			return nil, err
		}
		out[n] = lanes
	}
	return out, nil
}

// knownOccupied is occupied without an error: nil means that the lanes are not
// known.
func (e *engine) knownOccupied(ctx context.Context, numbers []int) map[int][]int {
	out, err := e.occupied(ctx, numbers)
	if err != nil {
		return nil
	}
	return out
}

// checkBacklogs starts a check if one is due and none is under way.
func (e *engine) checkBacklogs(now time.Time) {
	c := &e.check
	if e.targets == nil || c.running || e.stopping || !e.member.joined || e.nextCheck().After(now) {
		return
	}
	c.running, c.last, c.soon = true, now, false
	c.jobs <- checkJob{numbers: e.targetNumbers(), pauses: c.pauses, began: now}
	c.pauses = nil
}

// nextCheck returns when the next check is due: soon if a lane might become
// direct or the tables have changed, otherwise after the interval of
// heartbeats. It returns the zero time if no check is due.
func (e *engine) nextCheck() time.Time {
	c := &e.check
	if e.targets == nil || c.running || e.stopping || !e.member.joined {
		return time.Time{}
	}
	soon := len(c.pauses) > 0
	for _, t := range e.targets {
		soon = soon || t.behind > 0 && t.wantsCheck()
	}
	switch {
	case soon:
		return c.last.Add(checkInterval)
	case c.soon:
		return c.last.Add(min(wakeInterval, e.cfg.Heartbeat))
	}
	return c.last.Add(e.cfg.Heartbeat)
}

// finishCheck handles the answer to a check.
func (e *engine) finishCheck(r checkReply) {
	e.check.running = false
	now := time.Now()
	if r.err != nil {
		e.database.Failed("read backlogs", r.err)
		for name, reason := range r.pauses {
			e.wantPause(name, reason)
		}
		return
	}
	e.database.Succeeded("read backlogs")
	e.register(r.registry, now)
	for _, t := range e.targets {
		t.checked(r.occupied[t.number], r.began, now)
	}
}

// wakeBacklogs has the backlogs and the registry read soon.
func (e *engine) wakeBacklogs(now time.Time) {
	e.check.soon = true
	for _, t := range e.targets {
		if t.behind > 0 {
			t.queue.ledger.Announced([]driver.Commit{{}}, now)
		}
	}
}

// register takes the registered destinations.
func (e *engine) register(all []store.Destination, now time.Time) {
	for _, d := range all {
		known := false
		for _, t := range e.targets {
			if t.Name == d.Name {
				if _, wanted := e.check.pauses[d.Name]; wanted && !d.IsPaused() {
					d.PausedAt = t.pausedAt // this node's pause is not in the tables yet
				}
				t.registered(d, now)
				known = true
			}
		}
		if !known && !e.check.strangers[d.Name] {
			if e.check.strangers == nil {
				e.check.strangers = make(map[string]bool)
			}
			e.check.strangers[d.Name] = true
			e.log.Warn("a registered destination is not configured; its backlog waits", slog.String(logkey.Destination, d.Name))
		}
	}
}

// targetNames returns the names of the destinations; nil if the relay has one
// sink.
func (e *engine) targetNames() []string {
	var names []string
	for _, t := range e.targets {
		names = append(names, t.Name)
	}
	return names
}

// targetNumbers returns the numbers of the registered destinations.
func (e *engine) targetNumbers() []int {
	var numbers []int
	for _, t := range e.targets {
		if t.number > 0 {
			numbers = append(numbers, t.number)
		}
	}
	return numbers
}

// pauseTarget pauses a destination that has refused many events for the same
// reason.
func (e *engine) pauseTarget(t *target, err error, now time.Time) {
	reason := fmt.Sprintf("%d dead letters in a row: %v", t.PauseAfter, err)
	e.wantPause(t.Name, reason)
	if !t.isPaused() {
		t.pausedAt = now
		t.gate.pause(true)
		e.log.Error("destination is paused", slog.String(logkey.Destination, t.Name), slog.String(logkey.Reason, driver.CutError(reason)))
		t.allBehind("it is paused", now)
	}
}

func (e *engine) wantPause(name, reason string) {
	if e.check.pauses == nil {
		e.check.pauses = make(map[string]string)
	}
	e.check.pauses[name] = reason
}

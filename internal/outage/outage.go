// Package outage logs failures of something that other parts need, and that are tried again: one line when they begin, one a minute
// while they go on, one when they are over. A line per failure would hide everything else in the log.
package outage

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// Every is how often an outage that goes on is told.
const Every = time.Minute

// Log is the log of one thing that may be away. It is safe for concurrent use. A nil Log tells nothing.
type Log struct {
	log   *slog.Logger
	what  string
	attrs []any

	mu sync.Mutex

	since    time.Time
	told     time.Time
	failures int
	last     error
	failing  map[string]time.Time // operations that have not succeeded since they failed, by when they failed last
}

// New returns the log of a thing; attrs are part of each line.
func New(log *slog.Logger, what string, attrs ...any) *Log {
	return &Log{log: log, what: what, attrs: attrs, failing: make(map[string]time.Time)}
}

// Failed notes that an operation failed. Each failure is a line at debug level, too.
func (l *Log) Failed(operation string, err error) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	begins := len(l.failing) == 0
	l.failing[operation] = now
	l.last = err
	if begins {
		l.since, l.told, l.failures = now, now, 1
		l.log.Warn("waybill: "+l.what+" fails, and is tried again", l.with("operation", operation, "error", err.Error())...)
		return
	}
	l.failures++
	l.log.Debug("waybill: "+l.what+" fails again", l.with("operation", operation, "error", err.Error())...)
	l.tick(now)
}

// Succeeded notes that an operation succeeded. The outage is over when no operation fails any more.
func (l *Log) Succeeded(operation string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.failing) == 0 {
		return
	}
	delete(l.failing, operation)
	now := time.Now()
	// An operation that is not wanted any more is neither tried again nor ever reported to succeed.
	for other, at := range l.failing {
		if now.Sub(at) > Every {
			delete(l.failing, other)
		}
	}
	if len(l.failing) == 0 {
		l.log.Info("waybill: "+l.what+" works again", l.with("lasted", now.Sub(l.since), "failures", l.failures)...)
	}
}

// Note notes how an operation ended. A failure that the end of ctx explains is
// no failure of the thing.
func (l *Log) Note(ctx context.Context, operation string, err error) {
	switch {
	case err == nil:
		l.Succeeded(operation)
	case ctx.Err() == nil:
		l.Failed(operation, err)
	}
}

// Next returns when [Log.Tick] has something to tell; the zero time if nothing fails.
func (l *Log) Next() time.Time {
	if l == nil {
		return time.Time{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.failing) == 0 {
		return time.Time{}
	}
	return l.told.Add(Every)
}

// Tick tells how an outage stands if it is time to.
func (l *Log) Tick(now time.Time) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tick(now)
}

func (l *Log) tick(now time.Time) {
	if len(l.failing) == 0 || now.Before(l.told.Add(Every)) {
		return
	}
	l.told = now
	operations := make([]string, 0, len(l.failing))
	for operation := range l.failing {
		operations = append(operations, operation)
	}
	slices.Sort(operations)
	l.log.Warn("waybill: "+l.what+" still fails", l.with("operation", strings.Join(operations, ", "), "since", l.since.UTC().Format(time.RFC3339),
		"lasting", now.Sub(l.since), "failures", l.failures, "error", l.last.Error())...)
}

func (l *Log) with(attrs ...any) []any { return append(slices.Clone(l.attrs), attrs...) }

// Package outage logs repeated failures of a dependency: one line when they
// begin, one a minute while they continue, and one when they end. A line per
// failure would drown the rest of the log.
package outage

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waybillhq/waybill/internal/logkey"
)

// Every is the interval at which a continuing outage is logged.
const Every = time.Minute

// Log logs the outages of one dependency. It is safe for concurrent use. A nil
// Log logs nothing.
type Log struct {
	log   *slog.Logger
	what  string
	attrs []any

	mu sync.Mutex

	since    time.Time
	told     time.Time
	failures int
	last     error
	// failed operations without a later success, by their last failure
	failing map[string]time.Time
}

// New returns the log of a dependency; attrs are part of each line.
func New(log *slog.Logger, what string, attrs ...any) *Log {
	return &Log{log: log, what: what, attrs: attrs, failing: make(map[string]time.Time)}
}

// Failed records that an operation failed. Each failure is also logged at debug
// level.
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
		l.log.Warn(l.what+" fails and is retried", l.with(logkey.Operation, operation, logkey.Error, err.Error())...)
		return
	}
	l.failures++
	l.log.Debug(l.what+" fails again", l.with(logkey.Operation, operation, logkey.Error, err.Error())...)
	l.tick(now)
}

// Succeeded records that an operation succeeded. The outage ends when no
// operation fails any longer.
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
	// An operation that is no longer needed is neither retried nor reported as
	// succeeded.
	for other, at := range l.failing {
		if now.Sub(at) > Every {
			delete(l.failing, other)
		}
	}
	if len(l.failing) == 0 {
		l.log.Info(l.what+" recovered", l.with(logkey.Duration, now.Sub(l.since), logkey.Failures, l.failures)...)
	}
}

// Note records the result of an operation. A failure caused by the end of ctx
// is not a failure of the dependency.
func (l *Log) Note(ctx context.Context, operation string, err error) {
	switch {
	case err == nil:
		l.Succeeded(operation)
	case ctx.Err() == nil:
		l.Failed(operation, err)
	}
}

// Next returns when [Log.Tick] will log the next line; the zero time if nothing
// fails.
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

// Tick logs a continuing outage when a line is due.
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
	l.log.Warn(l.what+" still fails", l.with(logkey.Operation, strings.Join(operations, ", "), logkey.Since, l.since.UTC().Format(time.RFC3339),
		logkey.Duration, now.Sub(l.since), logkey.Failures, l.failures, logkey.Error, l.last.Error())...)
}

func (l *Log) with(attrs ...any) []any { return append(slices.Clone(l.attrs), attrs...) }

//go:build linux || darwin

package restore_test

import (
	"context"
	"log/slog"
	"testing"
	"time"
)

// patience is how long a condition may take to become true: long enough for a
// loaded machine.
const patience = 60 * time.Second

// await waits for a condition.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for !ok() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline.C:
			t.Fatalf("waited in vain for this: %s", what)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run runs a component until stop is called, which waits for its end.
func run(t *testing.T, component func(ctx context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- component(ctx) }()
	stopped := false
	stop = func() {
		t.Helper()
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// logger passes log lines on to the test.
func logger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(lines{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

type lines struct{ t *testing.T }

// Write implements [io.Writer].
func (l lines) Write(b []byte) (int, error) {
	l.t.Logf("%s", b)
	return len(b), nil
}

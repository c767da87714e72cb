package idempotency_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
)

// TestRunLogsAnOutageOnce: one line when the database becomes unavailable, one
// per minute, and one when it is back, however often Run counts and purges.
func TestRunLogsAnOutageOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		d, k := open(t, idempotency.Config{
			Logger: slog.New(slog.NewTextHandler(&log, nil)), PurgeInterval: time.Second, CountInterval: time.Second,
			Observe: observe.Hooks{Keys: func(observe.KeysInfo) {}},
		})
		back := time.Now().Add(100 * time.Second)
		tries := 0
		away := func() error {
			tries++
			if time.Now().Before(back) {
				return errBoom
			}
			return nil
		}
		d.stats = func() (store.KeyStats, error) { return store.KeyStats{}, away() }
		d.purge = func(int) (int, error) { return 0, away() }
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if err := k.Run(ctx); err != nil {
			t.Error(err)
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 3 || !strings.Contains(lines[0], "fails and is retried") || !strings.Contains(lines[1], "still fails") ||
			!strings.Contains(lines[2], "recovered") || tries < 500 {
			t.Errorf("%d tries; the log of an outage of 100 s:\n%s", tries, log.String())
		}
	})
}

package admin_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// comesBack is a store that fails until a given time.
type comesBack struct {
	driver.OutboxAdmin
	at time.Time
}

func (c comesBack) err() error {
	if time.Now().Before(c.at) {
		return errAway
	}
	return nil
}

func (c comesBack) Stats(ctx context.Context) (store.Stats, error) {
	if err := c.err(); err != nil {
		return store.Stats{}, err
	}
	return c.OutboxAdmin.Stats(ctx)
}

func (c comesBack) MakeReady(context.Context, int) (int, error) { return 0, c.err() }

func (c comesBack) PurgeWritten(context.Context, time.Duration, int) (int, error) {
	return 0, c.err()
}
func (c comesBack) Tidy(context.Context, time.Duration) error { return c.err() }

// TestAnOutageIsALineWhenItBeginsAndOneWhenItIsOver: a loop that retries every
// second does not log every second.
func TestAnOutageIsALineWhenItBeginsAndOneWhenItIsOver(t *testing.T) {
	loops := map[string]func(ctx context.Context, ops *admin.Outbox) error{
		"Watch": func(ctx context.Context, ops *admin.Outbox) error { return ops.Watch(ctx, time.Second) },
		"Capturer": func(ctx context.Context, ops *admin.Outbox) error {
			c, err := ops.Capturer(admin.Capture{})
			return errors.Join(err, c.Run(ctx))
		},
		"Purger": func(ctx context.Context, ops *admin.Outbox) error {
			p, err := ops.Purger(admin.Retention{PurgeInterval: time.Second, History: -1})
			return errors.Join(err, p.Run(ctx))
		},
	}
	for name, run := range loops {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				db := comesBack{newStore(t, 1).Driver().OutboxAdmin, time.Now().Add(100 * time.Second)}
				ops, err := admin.NewOutbox(testroles.Of[any](db), admin.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				if err := run(ctx, ops); err != nil {
					t.Error(err)
				}
				lines := strings.Split(strings.TrimSpace(log.String()), "\n")
				if len(lines) != 3 || !strings.Contains(lines[0], "level=WARN") || !strings.Contains(lines[0], "fails and is retried") ||
					!strings.Contains(lines[1], "still fails") || !strings.Contains(lines[2], "recovered") {
					t.Errorf("the log of an outage of 100 s:\n%s", log.String())
				}
			})
		})
	}
}

// TestACapturerThatARelayKeepsOut: a relay that is live for an hour is not
// logged as an error every second.
func TestACapturerThatARelayKeepsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		ops, err := admin.NewOutbox(testroles.Of[any](keptOut{OutboxAdmin: newStore(t, 0).Driver().OutboxAdmin}), admin.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		c, err := ops.Capturer(admin.Capture{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour-time.Millisecond)
		defer cancel()
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "\n"); n != 60 || !strings.Contains(log.String(), store.ErrRelayLive.Error()) {
			t.Errorf("%d lines in an hour, want one a minute:\n%.1000s", n, log.String())
		}
	})
}

type keptOut struct{ driver.OutboxAdmin }

func (keptOut) MakeReady(context.Context, int) (int, error) { return 0, store.ErrRelayLive }

// batches is a store that makes full batches ready, and then fails.
type batches struct {
	driver.OutboxAdmin
	left *int
}

func (b batches) MakeReady(_ context.Context, limit int) (int, error) {
	if *b.left--; *b.left < 0 {
		return 0, errAway
	}
	return limit, nil
}

// TestMakeReadyCountsBeforeAnError: the count includes the batches before the
// error, and the error states only the cause.
func TestMakeReadyCountsBeforeAnError(t *testing.T) {
	left := 2
	ops, err := admin.NewOutbox(testroles.Of[any](batches{left: &left}), admin.Config{BatchSize: 10})
	if err != nil {
		t.Fatal(err)
	}
	n, err := ops.MakeReady(t.Context())
	if n != 20 || !errors.Is(err, errAway) || err.Error() != "admin: making delayed events ready: "+errAway.Error() {
		t.Errorf("%d, %v", n, err)
	}
}

// TestStatsOfACapturedOutbox: the observer's Backlog reports that ready events
// wait for no delivery.
func TestStatsOfACapturedOutbox(t *testing.T) {
	var got observe.BacklogInfo
	ops, err := admin.NewOutbox(newStore(t, 3), admin.Config{Captured: true, Observe: observe.Hooks{Backlog: func(b observe.BacklogInfo) { got = b }}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ops.Stats(t.Context()); err != nil || got.Ready != 3 || !got.Captured {
		t.Errorf("the observer is told %+v, %v", got, err)
	}
}

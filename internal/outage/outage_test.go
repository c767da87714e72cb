package outage_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill/internal/outage"
)

func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		noTime := func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
		l := outage.New(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{ReplaceAttr: noTime})), "the database", "node", "n1")
		pass := func(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // synctest's time
		want := func(lines ...string) {
			t.Helper()
			got := strings.Split(strings.TrimSpace(text.String()), "\n")
			if text.Len() == 0 {
				got = nil
			}
			if !slices.Equal(got, lines) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
			}
			text.Reset()
		}
		boom := errors.New("connection refused")
		l.Succeeded("read")
		l.Tick(time.Now())
		if want(); !l.Next().IsZero() {
			t.Error("there is something to tell while nothing fails")
		}
		l.Failed("read", boom)
		want(`level=WARN msg="the database fails and is retried" node=n1 operation=read error="connection refused"`)
		for range 590 {
			pass(100 * time.Millisecond)
			l.Failed("read", boom)
			l.Failed("settle", boom)
		}
		want()
		pass(time.Second)
		if !l.Next().Equal(time.Now()) {
			t.Errorf("the next line is due at %v", l.Next())
		}
		l.Tick(time.Now())
		l.Tick(time.Now())
		want(`level=WARN msg="the database still fails" node=n1 operation="read, settle" since=2000-01-01T00:00:00Z duration=1m0s failures=1181 error="connection refused"`)
		l.Succeeded("read")
		l.Succeeded("other")
		want()
		pass(time.Second)
		l.Succeeded("settle")
		want(`level=INFO msg="the database recovered" node=n1 duration=1m1s failures=1181`)

		// An operation that is no longer needed does not keep an outage open.
		l.Failed("load", boom)
		l.Failed("read", boom)
		pass(59 * time.Second)
		l.Failed("read", boom)
		pass(2 * time.Second)
		l.Tick(time.Now())
		text.Reset()
		l.Succeeded("read")
		want(`level=INFO msg="the database recovered" node=n1 duration=1m1s failures=3`)
	})
}

// TestNote: a failure caused by the end of the context is not an outage.
func TestNote(t *testing.T) {
	var text bytes.Buffer
	l := outage.New(slog.New(slog.NewTextHandler(&text, nil)), "the database")
	ctx, cancel := context.WithCancel(t.Context())
	l.Note(ctx, "read", nil)
	cancel()
	l.Note(ctx, "read", context.Canceled)
	if text.Len() != 0 {
		t.Errorf("without an outage the log says\n%s", text.String())
	}
	l.Note(t.Context(), "read", errors.New("connection refused"))
	l.Note(t.Context(), "read", nil)
	if n := strings.Count(text.String(), "\n"); n != 2 || !strings.Contains(text.String(), "recovered") {
		t.Errorf("the log of an outage is\n%s", text.String())
	}
}

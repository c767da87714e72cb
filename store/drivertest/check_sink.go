package drivertest

import (
	"context"
	"errors"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// claimSink claims a sink, and fails the test unless the claim succeeds.
func (b *env[T]) claimSink(ctx context.Context, t tb, db driver.SinkGuard, n store.Node, sink string, takeOver bool, before string) {
	t.Helper()
	got, err := db.ClaimSink(ctx, n, sink, takeOver)
	if err != nil || got != before {
		t.Fatalf("ClaimSink(%q, %v) returned %q, %v; want %q before it, and no error", sink, takeOver, got, err, before)
	}
	b.wantSink(ctx, t, sink)
}

func (b *env[T]) wantSink(ctx context.Context, t tb, want string) {
	t.Helper()
	for _, db := range []driver.SinkGuard{b.DB.SinkGuard, b.second().SinkGuard} {
		if got, err := db.RecordedSink(ctx); err != nil || got != want {
			t.Fatalf("RecordedSink is %q, %v; want %q", got, err, want)
		}
	}
}

// remembersSink checks that the first claim stays, for every process, also
// after its relay has left.
func remembersSink[T any](ctx context.Context, t tb, b *env[T]) {
	b.wantSink(ctx, t, "")
	one := b.node(ctx, t, b.DB.Relay)
	const sink = "kafka://äöü:9092 (relay orders)"
	b.claimSink(ctx, t, b.DB.SinkGuard, one, sink, false, "")
	b.claimSink(ctx, t, b.second().SinkGuard, one, sink, false, sink)
	b.claimSink(ctx, t, b.second().SinkGuard, one, sink, true, sink) // no takeover needed
	refused := func(db driver.SinkGuard, n store.Node) {
		t.Helper()
		_, err := db.ClaimSink(ctx, n, "log: (relay orders)", false)
		if !errors.Is(err, waybill.ErrOtherSink) || !strings.Contains(err.Error(), "orders") {
			t.Errorf("ClaimSink of another sink returned %v, want ErrOtherSink and the sink that is recorded", err)
		}
		b.wantSink(ctx, t, sink)
	}
	two := b.node(ctx, t, b.second().Relay)
	refused(b.second().SinkGuard, two)
	for _, n := range []store.Node{one, two} {
		if err := b.DB.Relay.Leave(ctx, n); err != nil {
			t.Fatalf("Leave: %v", err)
		}
	}
	refused(b.second().SinkGuard, store.Node{ID: waybill.NewID(), Relay: relayName})
	refused(b.DB.SinkGuard, one)
}

// takesSinkOver checks that a takeover replaces the sink once no other node is
// live, and not before. The next claim of the old relay is rejected.
func takesSinkOver[T any](ctx context.Context, t tb, b *env[T]) {
	one := b.node(ctx, t, b.DB.Relay)
	b.claimSink(ctx, t, b.DB.SinkGuard, one, "old", false, "")
	two := b.node(ctx, t, b.second().Relay)
	if _, err := b.second().SinkGuard.ClaimSink(ctx, two, "new", true); !errors.Is(err, store.ErrRelayLive) {
		t.Errorf("a takeover while a relay runs returned %v, want ErrRelayLive", err)
	}
	b.wantSink(ctx, t, "old")
	b.expire(ctx, t, b.DB.Relay, one, two)
	b.claimSink(ctx, t, b.second().SinkGuard, two, "new", true, "old")
	if _, err := b.DB.SinkGuard.ClaimSink(ctx, one, "old", false); !errors.Is(err, waybill.ErrOtherSink) {
		t.Errorf("the claim of a relay that slept through the takeover returned %v, want ErrOtherSink", err)
	}
	b.wantSink(ctx, t, "new")
}

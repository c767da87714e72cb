package relay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// lockedBuffer is a log that a relay writes while a test reads it.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// deliverOne runs a relay until it has delivered an event, and stops it in good
// order.
func (f *fixture) deliverOne(cfg relay.Config) {
	f.Helper()
	ctx, stop := context.WithTimeout(f.Context(), time.Minute)
	defer stop()
	got := make(chan struct{}, 16)
	r, err := relay.New(f.db, relay.SinkFunc(func(context.Context, waybill.Delivery) error {
		got <- struct{}{}
		return nil
	}), cfg)
	if err != nil {
		f.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	select {
	case <-got:
		stop()
		if err := <-ended; err != nil {
			f.Fatalf("Run: %v", err)
		}
	case err := <-ended:
		f.Fatalf("Run ended before it delivered: %v", err)
	}
}

// refused runs a relay that must not start, and returns its error.
func (f *fixture) refused(cfg relay.Config, want error) error {
	f.Helper()
	ctx, stop := context.WithTimeout(f.Context(), time.Minute)
	defer stop()
	r, err := relay.New(f.db, relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		f.Errorf("event %s was delivered by a relay that must be refused", d.ID)
		return nil
	}), cfg)
	if err != nil {
		f.Fatal(err)
	}
	err = r.Run(ctx)
	if !errors.Is(err, want) {
		f.Errorf("Run returned %v, want %v", err, want)
	}
	s, statsErr := f.db.Driver().OutboxAdmin.Stats(f.Context())
	if statsErr != nil {
		f.Fatal(statsErr)
	}
	for _, n := range s.Nodes {
		if n.Relay == "refused" || cfg.Name == "" && n.Relay == "relay" {
			f.Errorf("the relay that was refused is still a live node: %+v", n)
		}
	}
	return err
}

// TestOutboxRemembersItsSink: a relay with another sink or another name does
// not drain the outbox, even if no relay runs.
func TestOutboxRemembersItsSink(t *testing.T) {
	f := newFixture(t)
	f.write(event("a", 1))
	f.deliverOne(relay.Config{})
	f.write(event("a", 2))
	err := f.refused(relay.Config{SinkName: "nats:embedded"}, waybill.ErrOtherSink)
	if err == nil || !strings.Contains(err.Error(), "in-process (relay relay)") {
		t.Errorf("the error %v does not say where the events go", err)
	}
	_ = f.refused(relay.Config{Name: "refused"}, waybill.ErrOtherSink)
	if s, err := f.db.Driver().OutboxAdmin.Stats(t.Context()); err != nil || s.Ready != 1 {
		t.Fatalf("%d events are ready, %v; want the one that was not delivered", s.Ready, err)
	}
	f.deliverOne(relay.Config{}) // its own relay continues
}

// TestTakeOver: the new sink replaces the old one while no other relay runs,
// and the relay logs it.
func TestTakeOver(t *testing.T) {
	f := newFixture(t)
	f.write(event("a", 1))
	f.deliverOne(relay.Config{SinkName: "old"})
	f.write(event("a", 2))
	var log lockedBuffer
	cfg := relay.Config{SinkName: "new", TakeOver: true, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	alive := store.Node{ID: waybill.NewID(), Relay: "relay"}
	if _, err := f.db.Driver().Relay.Heartbeat(t.Context(), alive, time.Hour); err != nil {
		t.Fatal(err)
	}
	r, err := relay.New(f.db, relay.SinkFunc(func(context.Context, waybill.Delivery) error { return nil }), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context()); !errors.Is(err, store.ErrRelayLive) {
		t.Fatalf("Run while another relay runs returned %v, want ErrRelayLive", err)
	}
	if err := f.db.Driver().Relay.Leave(t.Context(), alive); err != nil {
		t.Fatal(err)
	}
	f.deliverOne(cfg)
	if text := log.String(); !strings.Contains(text, "took over the outbox") || !strings.Contains(text, "old (relay relay)") {
		t.Errorf("the log does not report the take-over:\n%s", text)
	}
	f.write(event("a", 3))
	_ = f.refused(relay.Config{SinkName: "old"}, waybill.ErrOtherSink)
	f.deliverOne(relay.Config{SinkName: "new"})
}

// takenOver is an outbox that another relay takes over after this relay's first
// claim.
type takenOver struct {
	driver.Complete[*memstore.Tx]
	claims atomic.Int64
}

func (o *takenOver) ClaimSink(ctx context.Context, n store.Node, sink string, takeOver bool) (string, error) {
	if o.claims.Add(1) > 1 {
		return "new", fmt.Errorf("%w: %q", waybill.ErrOtherSink, "new")
	}
	return o.Complete.ClaimSink(ctx, n, sink, takeOver)
}

// TestTakeOverEndsARelayThatSlept: a relay whose outbox was taken over while it
// was paused stops at its next heartbeat.
func TestTakeOverEndsARelayThatSlept(t *testing.T) {
	f := newFixture(t)
	r, err := relay.New(testroles.Of[any](&takenOver{Complete: testroles.Complete(f.db)}), relay.SinkFunc(func(context.Context, waybill.Delivery) error { return nil }),
		relay.Config{SinkName: "old", Heartbeat: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := r.Run(ctx); !errors.Is(err, waybill.ErrOtherSink) {
		t.Errorf("Run returned %v, want ErrOtherSink", err)
	}
}

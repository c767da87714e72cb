//go:build linux || darwin

package brokers_test

import (
	"context"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestFaults: a broker fault in the middle of a stream of events loses no
// event, keeps the order of every aggregate and spends no attempt, and every
// event is delivered when the broker is available again.
func TestFaults(t *testing.T) {
	for _, s := range stands() {
		t.Run(s.name, func(t *testing.T) {
			p, rng := begin(t)
			server, address := s.start(t)
			net := newProxy(t, hostPort(address))
			there := s.place(t, address, server)
			events, faults := newStream(p, rng, there.topic()), drawStorm(p, rng, s, server, net)
			sink, end, err := there.sink(t.Context(), net)
			must(t, err)
			t.Cleanup(end)

			db, write := newOutbox(t)
			write(events.events[:p.events/2])
			stop := startRelay(t, db.Driver().Relay, inStorm(sink, faults))
			rest := events.events[p.events/2:]
			faults.run(t, func(n int) { // producers continue meanwhile
				write(rest[len(rest)*n/p.faults : len(rest)*(n+1)/p.faults])
			})
			back := time.Now()
			awaitAll(t, "end of the backlog", func() (int64, bool) {
				stats, err := db.Driver().OutboxAdmin.Stats(t.Context())
				must(t, err)
				left := stats.Ready + stats.Scheduled + stats.Failed
				return left, left == 0
			})
			t.Logf("drained %v after the last fault; failures: %s", time.Since(back).Round(time.Millisecond), faults.failed())
			stop()
			for _, wrong := range faults.complaints() {
				t.Error(wrong)
			}
			unspent(t, db, p.events)
			payloads, err := there.read(t.Context())
			must(t, err)
			if n := events.arrived(t, payloads); n != p.events {
				t.Errorf("%d events are there, want %d", n, p.events)
			}
			t.Logf("%d messages of %d events", len(payloads), p.events)
		})
	}
}

func newOutbox(t *testing.T) (*memstore.Store[*memstore.Tx], func(evs []waybill.Event)) {
	t.Helper()
	db, err := memstore.New(memstore.Config{})
	must(t, err)
	box, err := outbox.New(db, outbox.Config{})
	must(t, err)
	return db, func(evs []waybill.Event) {
		t.Helper()
		for len(evs) > 0 {
			n := min(len(evs), 50)
			must(t, box.InTx(t.Context(), func(ctx context.Context, tx *memstore.Tx) error { return box.Write(ctx, tx, evs[:n]...) }))
			evs = evs[n:]
		}
	}
}

// startRelay runs a relay until stop is called.
func startRelay(t *testing.T, db driver.Relay, sink waybill.Sink) (stop func()) {
	t.Helper()
	r, err := relay.New(testroles.Of[any](db), sink, relay.Config{BackoffBase: 20 * time.Millisecond, BackoffMax: 250 * time.Millisecond, MaxAttempts: 2})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop = func() {
		cancel()
		if err, running := <-ended; running {
			close(ended)
			if err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	return stop
}

// unspent checks that every event is delivered at its first attempt.
func unspent(t *testing.T, db *memstore.Store[*memstore.Tx], events int) {
	t.Helper()
	if dead, err := db.Driver().OutboxAdmin.Count(t.Context(), store.Dead, store.Filter{}); err != nil || dead > 0 {
		t.Errorf("%d events are dead, %v", dead, err)
	}
	records, err := db.Driver().OutboxAdmin.List(t.Context(), store.Delivered, store.Filter{}, 0, events+1)
	must(t, err)
	if len(records) != events {
		t.Errorf("the history has %d events, want %d", len(records), events)
	}
	for i := range records {
		if records[i].Attempts != 0 {
			t.Fatalf("event %s was delivered after %d attempts", records[i].ID, records[i].Attempts)
		}
	}
}

package soak

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// relayConfig is the configuration of the relays.
func relayConfig(lease time.Duration) relay.Config {
	return relay.Config{
		Name: "soak", Lease: lease, Heartbeat: lease / 5, PollInterval: 200 * time.Millisecond, SweepInterval: 500 * time.Millisecond,
		BackoffBase: 50 * time.Millisecond, BackoffMax: time.Second, MaxAttempts: 1000, DrainTimeout: 2 * time.Second,
		Workers: 4, BatchSize: 50, ColdQueue: 200, HotQueue: 100, HistoryRetention: time.Hour, PurgeInterval: time.Minute,
	}
}

// relay runs a relay until ctx ends.
func (c *child) relay(ctx context.Context) error {
	to, err := connect.OpenSink(ctx, connect.SinkConfig{Sink: c.sinkSettings(), Logger: c.log})
	if err != nil {
		return err
	}
	defer to.Close() //nolint:errcheck // the process ends
	named, ok := to.Sink.(relay.DestinationSink)
	if !ok {
		return fmt.Errorf("soak: the sink %s is not a broker", to.Address)
	}
	roles := c.store.Roles
	roles.Relay = &watchedTables{Relay: c.store.Relay, c: c}
	cfg := relayConfig(c.Lease)
	cfg.Logger = c.log
	r, err := relay.New(roles, &watchedSink{DestinationSink: named, c: c, kept: make(map[string]waybill.Delivery)}, cfg)
	if err != nil {
		return err
	}
	return c.store.Clean(r.Run(ctx))
}

// watchedSink notes what the broker confirms.
type watchedSink struct {
	relay.DestinationSink
	c *child

	mu    sync.Mutex
	count int
	// kept are events that sabotage publishes after their successors.
	kept map[string]waybill.Delivery
}

// StopsAtFailure implements [relay.OrderedSink]: the sinks of all brokers do.
func (*watchedSink) StopsAtFailure() {}

// Deliver implements [waybill.Sink].
func (s *watchedSink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	begin := note{Kind: noteBegin}
	for i := range batch {
		p := batch[i].Position
		begin.Items = append(begin.Items, item{ID: batch[i].ID, Lane: p.Lane, Epoch: p.Epoch, Seq: p.Seq})
	}
	s.c.out.note(begin)
	s.c.place("before publishing")
	results := s.publish(ctx, batch)
	end := note{Kind: noteEnd}
	var failed error
	for i, err := range results {
		if err == nil {
			end.Items = append(end.Items, item{ID: batch[i].ID})
		} else {
			failed = err
		}
	}
	if len(end.Items) > 0 {
		s.c.out.note(end)
	}
	if failed != nil {
		s.c.out.failed("publish", failed)
	}
	s.c.place("between the confirmation and the settlement")
	return results
}

// publish publishes a batch, with the sabotage.
func (s *watchedSink) publish(ctx context.Context, batch []waybill.Delivery) []error {
	if s.c.Sabotage == "" {
		return s.DestinationSink.Deliver(ctx, batch)
	}
	return s.spoil(ctx, batch)
}

// watchedTables notes the acquisitions and settlements of a relay.
type watchedTables struct {
	driver.Relay
	c *child

	mu   sync.Mutex
	held map[int]driver.Lease
	gone map[int]driver.Lease // lanes that were given up
	done bool                 // the sabotage is done
}

// Acquire implements [driver.Lanes].
func (w *watchedTables) Acquire(ctx context.Context, node store.Node, lanes []int, window int) ([]driver.Lease, error) {
	leases, err := w.Relay.Acquire(ctx, node, lanes, window)
	one := note{Kind: noteAcquire}
	for _, l := range leases {
		one.Items = append(one.Items, item{Lane: l.Lane, Epoch: l.Epoch, Unclean: l.Unclean, Window: max(l.Window, window)})
	}
	if len(leases) > 0 {
		w.c.out.note(one)
	}
	w.acquired(leases)
	return leases, err
}

// Settle implements [driver.Settler].
func (w *watchedTables) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	begun := time.Now()
	settled, err := w.Relay.Settle(ctx, s)
	if err != nil {
		w.c.out.failed("settle", err)
		return settled, err
	}
	w.settled(begun, s.Leases, settled.Held)
	return settled, nil
}

// settled notes the lanes of a settlement that was accepted.
func (w *watchedTables) settled(begun time.Time, leases []driver.Lease, held []int) {
	one := note{Kind: noteSettle, Begun: begun.UnixNano()}
	for _, l := range leases {
		for _, lane := range held {
			if lane == l.Lane {
				one.Items = append(one.Items, item{Lane: lane, Epoch: l.Epoch})
			}
		}
	}
	if len(one.Items) > 0 {
		w.c.out.note(one)
	}
}

//go:build linux || darwin

package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/pgstore"
)

// TestEndToEnd: over outbox, relay, broker, source and inbox, every event
// changes its account once and in order, although messages are published twice
// and relay and source are stopped in the middle of their work.
func TestEndToEnd(t *testing.T) {
	for _, s := range stands() {
		t.Run(s.name, func(t *testing.T) {
			p, rng := begin(t)
			there := s.place(t, s.shared(t), nil)
			events := newStream(p, rng, there.topic())
			f := newFlow(t, p, there)
			relayStops, sourceStops := f.points(rng), f.points(rng)
			var all sync.WaitGroup
			running, stop := context.WithCancel(t.Context())
			defer all.Wait()
			defer stop()
			all.Go(func() { f.restarting(running, "relay", &f.published, relayStops, f.runRelay) })
			all.Go(func() { f.restarting(running, "source", &f.received, sourceStops, f.runSource) })
			f.write(events)
			f.await(events)
			stop()
			all.Wait()
			f.check(events)
			t.Logf("published %d times and received %d times; %d relays, %d sources", f.published.Load(), f.received.Load(), len(relayStops)+1, len(sourceStops)+1)
		})
	}
}

// flow is one test: the tables, and the components between them.
type flow struct {
	*testing.T
	plan  plan
	there place
	pool  *pgxpool.Pool
	db    *pgstore.Store
	group *inbox.Group[pgx.Tx]

	published, received atomic.Int64

	mu    sync.Mutex
	wrong []string
}

// newFlow creates a schema with the tables of both sides and the accounts.
func newFlow(t *testing.T, p plan, there place) *flow {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(testserver.Postgres(t))
	must(t, err)
	schema := "flow_" + strings.ToLower(waybill.NewID().String())
	schema = strings.ReplaceAll(schema, "-", "")
	cfg.MaxConns = 16
	cfg.ConnConfig.RuntimeParams["search_path"] = schema
	// this test does not crash the database
	cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	f := &flow{T: t, plan: p, there: there}
	f.pool, err = pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	f.exec(`CREATE SCHEMA ` + schema)
	t.Cleanup(func() {
		_, _ = f.pool.Exec(context.WithoutCancel(t.Context()), `DROP SCHEMA `+schema+` CASCADE`)
		f.pool.Close()
	})
	f.db, err = pgstore.New(f.pool, pgstore.Config{Schema: schema})
	must(t, err)
	_, err = f.db.Migrate(t.Context())
	must(t, err)
	f.exec(`CREATE TABLE account (id text PRIMARY KEY, balance bigint NOT NULL, last int NOT NULL)`)
	f.exec(`INSERT INTO account SELECT 'a' || n, 0, 0 FROM generate_series(0, $1) n`, p.aggregates-1)
	in, err := inbox.New[pgx.Tx](f.db, inbox.Config{})
	must(t, err)
	f.group = in.MustGroup("accounts", inbox.Options{})
	inbox.On(f.group, waybill.Define[letter](eventType, waybill.Spec{AggregateType: aggregateType}), f.apply)
	return f
}

func (f *flow) exec(statement string, args ...any) {
	f.Helper()
	if _, err := f.pool.Exec(f.Context(), statement, args...); err != nil {
		f.Fatal(err)
	}
}

// complain records a violation.
func (f *flow) complain(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrong = append(f.wrong, fmt.Sprintf(format, args...))
}

func (f *flow) complaints() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.wrong[:min(len(f.wrong), 10)])
}

// apply is the effect of an event. An account that is not at the event's
// predecessor was changed out of order.
func (f *flow) apply(ctx context.Context, tx pgx.Tx, ev waybill.Event, l letter) error {
	tag, err := tx.Exec(ctx, `UPDATE account SET balance = balance + $1, last = $2 WHERE id = $3 AND last = $2 - 1`, l.Amount, l.Number, l.Aggregate)
	if err == nil && tag.RowsAffected() != 1 {
		f.complain("event %s, number %d of account %s, is not in order", ev.ID, l.Number, l.Aggregate)
		return waybill.Permanent(errors.New("not in order"))
	}
	return err
}

// write commits the events, in transactions of different sizes.
func (f *flow) write(s *stream) {
	f.Helper()
	box, err := outbox.New(f.db, outbox.Config{})
	must(f.T, err)
	for evs, n := s.events, 1; len(evs) > 0; n = n*7%101 + 1 {
		n = min(n, len(evs))
		must(f.T, box.InTx(f.Context(), func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, evs[:n]...) }))
		evs = evs[n:]
	}
}

// points returns the numbers of messages after which a component is stopped.
func (f *flow) points(rng *rand.Rand) []int64 {
	out := make([]int64, f.plan.restarts)
	room := f.plan.events / (f.plan.restarts + 1)
	for i := range out {
		out[i] = int64(room*(i+1) - rng.IntN(room))
	}
	return out
}

// restarting runs a component until ctx ends. After some progress the component
// is stopped and restarted: every other time without the chance to finish the
// events in flight, as far as a process can do that to itself.
func (f *flow) restarting(ctx context.Context, what string, progress *atomic.Int64, points []int64, run func(ctx context.Context, drain time.Duration) error) {
	for i := 0; ctx.Err() == nil; i++ {
		drain := 5 * time.Second
		if i%2 == 0 {
			drain = -1
		}
		turn, end := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- run(turn, drain) }()
		for turn.Err() == nil {
			if i < len(points) && progress.Load() >= points[i] {
				f.Logf("%s ends after %d messages, drain %v", what, progress.Load(), drain)
				end()
			}
			select {
			case err := <-ended:
				ended <- err
				if turn.Err() == nil {
					f.complain("%s ended by itself: %v", what, err)
				}
				end()
			case <-time.After(2 * time.Millisecond):
			}
		}
		if err := <-ended; err != nil && ctx.Err() == nil {
			f.complain("%s: %v", what, err)
		}
		end()
	}
}

// runRelay is a relay's process.
func (f *flow) runRelay(ctx context.Context, drain time.Duration) error {
	sink, end, err := f.there.sink(ctx, nil)
	if err != nil {
		return err
	}
	defer end()
	r, err := relay.New(f.db, f.doubling(sink), relay.Config{BackoffBase: 20 * time.Millisecond, BackoffMax: 250 * time.Millisecond, DrainTimeout: drain})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// runSource is a consumer's process.
func (f *flow) runSource(ctx context.Context, drain time.Duration) error {
	source, end, err := f.there.source(ctx, broker.ReceiverConfig{
		BackoffBase: 20 * time.Millisecond, BackoffMax: 250 * time.Millisecond, ReconnectMax: 250 * time.Millisecond, DrainTimeout: drain,
	})
	if err != nil {
		return err
	}
	defer end()
	return source.Run(ctx, counted{f})
}

// counted counts the group's deliveries.
type counted struct{ f *flow }

// Deliver implements [waybill.Sink].
func (c counted) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	c.f.received.Add(int64(len(batch)))
	return c.f.group.Deliver(ctx, batch)
}

// twice is a sink that publishes one event in ten a second time, as a replay,
// so that no broker discards it as a duplicate.
type twice struct {
	relay.DestinationSink
	f *flow
}

// Deliver implements [waybill.Sink].
func (s twice) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	results := s.DestinationSink.Deliver(ctx, batch)
	var again []waybill.Delivery
	for i, err := range results {
		if err != nil {
			continue
		}
		s.f.published.Add(1)
		// the choice depends on the relay's batches, so a seed could not repeat
		// it
		if rand.IntN(10) == 0 {
			d := batch[i]
			d.Replay++
			again = append(again, d)
		}
	}
	for _, err := range s.DestinationSink.Deliver(ctx, again) {
		if err == nil {
			s.f.published.Add(1)
		}
	}
	return results
}

// orderedTwice is twice over a sink that may get several events of an aggregate
// at once.
type orderedTwice struct{ twice }

// StopsAtFailure implements [relay.OrderedSink].
func (orderedTwice) StopsAtFailure() {}

func (f *flow) doubling(s relay.DestinationSink) waybill.Sink {
	if _, ordered := s.(relay.OrderedSink); ordered {
		return orderedTwice{twice{s, f}}
	}
	return twice{s, f}
}

// await waits until every event has had its effect.
func (f *flow) await(s *stream) {
	f.Helper()
	awaitAll(f.T, "effect of every event", func() (n int64, done bool) {
		if len(f.complaints()) > 0 {
			f.Fatalf("%q", f.complaints())
		}
		must(f.T, f.pool.QueryRow(f.Context(), `SELECT coalesce(sum(last), 0) FROM account`).Scan(&n))
		return n, n >= int64(len(s.events))
	})
}

// check checks the exact balances and one record per event.
func (f *flow) check(s *stream) {
	f.Helper()
	for _, wrong := range f.complaints() {
		f.Error(wrong)
	}
	rows, err := f.pool.Query(f.Context(), `SELECT id, balance, last FROM account WHERE last > 0`)
	must(f.T, err)
	var id string
	var balance int64
	var last int
	seen := 0
	_, err = pgx.ForEachRow(rows, []any{&id, &balance, &last}, func() error {
		if seen++; balance != s.sum[id] || last != s.count[id] {
			f.Errorf("account %s has %d after %d events, want %d after %d", id, balance, last, s.sum[id], s.count[id])
		}
		return nil
	})
	must(f.T, err)
	if seen != len(s.count) {
		f.Errorf("%d accounts were changed, want %d", seen, len(s.count))
	}
	var records, done int
	must(f.T, f.pool.QueryRow(f.Context(), `SELECT count(*), count(*) FILTER (WHERE status = 1) FROM waybill_inbox`).Scan(&records, &done))
	if records != len(s.events) || done != records {
		f.Errorf("the inbox has %d records, %d of them done, want %d", records, done, len(s.events))
	}
}

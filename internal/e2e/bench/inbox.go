package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/eventfill"
)

// prepareInbox defines the flags of inbox.
func prepareInbox(flags *flag.FlagSet) task {
	turn := flags.Duration("turn", 1500*time.Millisecond, "duration of a turn")
	rounds := flags.Int("rounds", 6, "number of turns of every contender")
	connections := flags.Int("connections", 8, "number of concurrent consumers; batches have one")
	records := flags.String("records", "2m", "number of existing records of a second run; empty: no second run")
	return task{
		databases: func() ([]string, error) {
			_, err := inboxSizes(*records)
			return []string{"postgres"}, err
		},
		run: func(ctx context.Context, out, progress io.Writer) error {
			s, err := connectPostgres(ctx)
			if err != nil {
				return err
			}
			defer s.close()
			sizes, err := inboxSizes(*records)
			if err != nil {
				return err
			}
			for _, n := range sizes {
				if err := s.inbox(ctx, inboxRace{turn: *turn, rounds: *rounds, connections: *connections, records: n}, out, progress); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// inboxSizes returns the initial number of records, table by table.
func inboxSizes(text string) ([]int, error) {
	if text == "" {
		return []int{0}, nil
	}
	sizes, err := parseSizes(text)
	return append([]int{0}, sizes...), err
}

// inboxRace is one table.
type inboxRace struct {
	turn                time.Duration
	rounds, connections int
	records             int
}

// Every event inserts an order, which stands for the effect.
const (
	inboxByHand = `INSERT INTO waybill_inbox (consumer_group, dedup_id, event_id, tenant_id, event_type, payload_hash, status, fence, attempts,
 processed_at, received_at) VALUES ('HAND', $1, $1, '', 'Happened', $2, 1, 1, 1, now(), now()) ON CONFLICT DO NOTHING`
	inboxOneStatement = `WITH i AS (` + inboxByHand + ` RETURNING dedup_id) INSERT INTO orders (note) SELECT $3 FROM i`
	inboxBatchByHand  = `INSERT INTO waybill_inbox (consumer_group, dedup_id, event_id, tenant_id, event_type, payload_hash, status, fence, attempts,
 processed_at, received_at) SELECT 'HAND', id, id, '', 'Happened', $2, 1, 1, 1, now(), now() FROM unnest($1::uuid[]) AS id ON CONFLICT DO NOTHING`
	inboxFill = `INSERT INTO waybill_inbox (consumer_group, dedup_id, event_id, tenant_id, event_type, payload_hash, status, fence, attempts,
 processed_at, received_at) SELECT 'OLD', gen_random_uuid(), gen_random_uuid(), '', 'Happened', gen_random_uuid(), 1, 1, 1, now(), now()
 FROM generate_series(1, $1)`
)

// inboxContender consumes one event, or many, at a time.
type inboxContender struct {
	name    string
	many    int
	clients int
	consume func(ctx context.Context, evs []waybill.Event) error
	floors  []string // the names of the contenders to compare with

	rates []float64
}

// The names of contenders that are floors of others.
const (
	fourTrips  = "by hand: BEGIN, record, effect, COMMIT"
	threeTrips = "by hand: BEGIN with record, effect, COMMIT"
	oneTrip    = "by hand: one statement"
	handBatch  = "by hand: 100 in a transaction"
	handEffect = "by hand: 100, effects in one round trip"
	oneByOne   = "waybill, Consume, one consumer"
)

func (s *pgServer) inbox(ctx context.Context, race inboxRace, out, progress io.Writer) error {
	f, db, err := s.waybillField(ctx)
	if err != nil {
		return err
	}
	defer f.close()
	if err := f.exec(ctx, ordersTable); err != nil {
		return err
	}
	if race.records > 0 {
		fmt.Fprintf(progress, "bench: inbox: making %s records\n", size(race.records))
		if _, err := f.pool.Exec(ctx, inboxFill, race.records); err != nil {
			return err
		}
		if err := f.exec(ctx, `ANALYZE waybill_inbox`); err != nil {
			return err
		}
	}
	in, err := inbox.New[pgx.Tx](db, inbox.Config{})
	if err != nil {
		return err
	}
	list := append(f.inboxByHand(race.connections), waybillInbox(in.MustGroup("BENCH", inbox.Options{}), race.connections)...)
	for round := range race.rounds {
		for i := range list {
			c := list[(i+round)%len(list)]
			n, err := c.run(ctx, race.turn)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			c.rates = append(c.rates, float64(n)/race.turn.Seconds())
			fmt.Fprintf(progress, "bench: inbox, %s records, round %d of %d: %s: %s events/s\n",
				thousands(float64(race.records)), round+1, race.rounds, c.name, thousands(c.rates[round]))
		}
	}
	s.inboxTable(race, list, out)
	return nil
}

// inboxHash is the hash of every payload by hand.
var inboxHash = []byte("0123456789abcdef")

// each turns a function for one event into that of a contender.
func each(consume func(ctx context.Context, ev waybill.Event) error) func(context.Context, []waybill.Event) error {
	return func(ctx context.Context, evs []waybill.Event) error { return consume(ctx, evs[0]) }
}

// inboxByHand returns the floors.
func (f *field) inboxByHand(connections int) []*inboxContender {
	return []*inboxContender{
		{name: fourTrips, many: 1, clients: connections, consume: each(func(ctx context.Context, ev waybill.Event) error {
			return pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, inboxByHand, [16]byte(ev.ID), inboxHash); err != nil {
					return err
				}
				return order(ctx, tx)
			})
		})},
		{name: threeTrips, many: 1, clients: connections, consume: each(f.inboxThreeTrips), floors: []string{fourTrips}},
		{name: oneTrip, many: 1, clients: connections, consume: each(func(ctx context.Context, ev waybill.Event) error {
			_, err := f.pool.Exec(ctx, inboxOneStatement, [16]byte(ev.ID), inboxHash, orderNote)
			return err
		}), floors: []string{fourTrips}},
		{name: handBatch, many: 100, clients: 1, consume: func(ctx context.Context, evs []waybill.Event) error {
			return f.inboxBatch(ctx, evs, func(tx pgx.Tx) error {
				for range evs {
					if err := order(ctx, tx); err != nil {
						return err
					}
				}
				return nil
			})
		}},
		{name: handEffect, many: 100, clients: 1, consume: func(ctx context.Context, evs []waybill.Event) error {
			return f.inboxBatch(ctx, evs, func(tx pgx.Tx) error {
				orders := &pgx.Batch{}
				for range evs {
					orders.Queue(orderInsert, orderNote)
				}
				return tx.SendBatch(ctx, orders).Close()
			})
		}},
	}
}

// inboxThreeTrips has the minimum number of round trips of a handler that is a
// function: the record precedes it, and the commit follows it.
func (f *field) inboxThreeTrips(ctx context.Context, ev waybill.Event) error {
	conn, err := f.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	first := &pgx.Batch{}
	first.Queue("begin")
	first.Queue(inboxByHand, [16]byte(ev.ID), inboxHash)
	if err := conn.SendBatch(ctx, first).Close(); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, orderInsert, orderNote); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "commit")
	return err
}

// inboxBatch records events with one statement in a transaction with their
// effects.
func (f *field) inboxBatch(ctx context.Context, evs []waybill.Event, effects func(tx pgx.Tx) error) error {
	ids := make([][16]byte, len(evs))
	for i := range evs {
		ids[i] = evs[i].ID
	}
	return pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, inboxBatchByHand, ids, inboxHash); err != nil {
			return err
		}
		return effects(tx)
	})
}

// waybillInbox returns the contenders of a group.
func waybillInbox(g *inbox.Group[pgx.Tx], connections int) []*inboxContender {
	apply := func(ctx context.Context, tx pgx.Tx, _ waybill.Event) error { return order(ctx, tx) }
	consume := each(func(ctx context.Context, ev waybill.Event) error {
		_, err := g.Consume(ctx, ev, apply)
		return err
	})
	return []*inboxContender{
		{name: "waybill, Consume", many: 1, clients: connections, consume: consume, floors: []string{fourTrips, threeTrips, oneTrip}},
		{name: oneByOne, many: 1, clients: 1, consume: consume},
		{
			name: "waybill, ConsumeBatch of 100", many: 100, clients: 1, floors: []string{handBatch, oneByOne},
			consume: func(ctx context.Context, evs []waybill.Event) error {
				return errors.Join(g.ConsumeBatch(ctx, evs, apply)...)
			},
		},
		{
			name: "waybill, effects in one round trip", many: 100, clients: 1, floors: []string{handEffect, oneByOne},
			consume: func(ctx context.Context, evs []waybill.Event) error {
				// a handler that collects its statements, and sends them with
				// the last event
				orders := &pgx.Batch{}
				return errors.Join(g.ConsumeBatch(ctx, evs, func(ctx context.Context, tx pgx.Tx, _ waybill.Event) error {
					if orders.Queue(orderInsert, orderNote); orders.Len() < len(evs) {
						return nil
					}
					return tx.SendBatch(ctx, orders).Close()
				})...)
			},
		},
	}
}

// run lets a contender consume new events for a while and returns their number.
func (c *inboxContender) run(ctx context.Context, turn time.Duration) (int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var n atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(turn)
	for range c.clients {
		all.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				evs := numberedEvents(0, c.many)
				for i := range evs {
					evs[i] = eventfill.Defaults(evs[i])
				}
				if err := c.consume(ctx, evs); err != nil {
					cancel(err)
					return
				}
				n.Add(int64(c.many))
			}
		})
	}
	all.Wait()
	return n.Load(), context.Cause(ctx)
}

func (s *pgServer) inboxTable(race inboxRace, list []*inboxContender, out io.Writer) {
	rates := make(map[string][]float64, len(list))
	for _, c := range list {
		rates[c.name] = c.rates
	}
	fmt.Fprintf(out, "inbox: %s existing records, one order as the effect of an event; %s, median of %d rounds of %s\n",
		thousands(float64(race.records)), s.version, race.rounds, race.turn)
	fmt.Fprintln(out, "ratios: median of the rounds, and its 95 % interval")
	fmt.Fprintf(out, "  %-42s  %9s  %9s\n", "", "consumers", "events/s")
	for _, c := range list {
		fmt.Fprintf(out, "  %-42s  %9d  %9s\n", c.name, c.clients, thousands(median(c.rates)))
		for _, floor := range c.floors {
			fmt.Fprintf(out, "    %s of %q\n", percents(ratios(c.rates, rates[floor])), floor)
		}
	}
	fmt.Fprintln(out)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/pgstore"
)

// The cost of one failing aggregate with many events for the other aggregates.

const (
	stuckAggregate = "stuck"
	stuckEvents    = 100_000
	stuckNumber    = 1_000_000_000 // not one of the counted events
)

// stuckSink delivers the events of all aggregates except one.
type stuckSink struct{ batchSink }

var errStuck = errors.New("this one always fails")

// Deliver implements [waybill.Sink].
func (s stuckSink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	errs := s.batchSink.Deliver(ctx, batch)
	for i := range batch {
		if batch[i].AggregateID == stuckAggregate {
			errs[i] = errStuck
		}
	}
	return errs
}

// stuckDrainer is Waybill with many events of one aggregate in front of the
// counted ones, as they accumulate while others are delivered, or evenly among
// them.
func (s *pgServer) stuckDrainer(name string, stuck int, among bool) drainer {
	return drainer{
		name: name, group: "waybill, events of other aggregates", role: roleOwn, yardstick: stuck == 0,
		open: func(ctx context.Context) (*stage, error) {
			f, db, err := s.waybillField(ctx)
			if err != nil {
				return nil, err
			}
			return &stage{
				load: func(ctx context.Context, n int) error { return loadAround(ctx, db, n, stuck, among) },
				calm: f.calm, gauge: f.gauge, close: f.close, statements: f.statements(),
				left: f.counting(`SELECT count(*) FROM waybill_outbox WHERE aggregate_id <> '` + stuckAggregate + `'`),
				drain: func(ctx context.Context, l *ledger) error {
					return runRelay(ctx, db.Driver().Relay, relay.Config{}, stuckSink{batchSink{l}}, l, l.all)
				},
			}, nil
		},
	}
}

// loadAround writes the counted events, and those of the one aggregate.
func loadAround(ctx context.Context, db *pgstore.Store, n, stuck int, among bool) error {
	if stuck == 0 {
		return loadEvents(ctx, db.Driver().Outbox, n)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		return err
	}
	write := func(evs []waybill.Event) error {
		return box.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, evs...) })
	}
	written := 0
	more := func(evs []waybill.Event, like waybill.Event, upTo int) []waybill.Event {
		for ; written < min(upTo, stuck); written++ {
			evs = append(evs, waybill.Event{
				Type: like.Type, AggregateType: like.AggregateType, AggregateID: stuckAggregate, Payload: numbered(stuckNumber),
			})
		}
		return evs
	}
	for !among && written < stuck {
		if err := write(more(nil, numberedEvents(0, 1)[0], written+loadBatch)); err != nil {
			return err
		}
	}
	for from := 0; from < n; from += loadBatch {
		to := min(from+loadBatch, n)
		var evs []waybill.Event
		for i, ev := range numberedEvents(from, to) {
			evs = append(more(evs, ev, 1+stuck*(from+i)/n), ev)
		}
		if err := write(evs); err != nil {
			return err
		}
	}
	return nil
}

func (f drainFlags) runBlocked(ctx context.Context, server *drainServer, sizes []int, out, progress io.Writer) error {
	if server.pg == nil {
		return errors.New("-blocked is measured on postgres")
	}
	more := thousands(stuckEvents)
	for _, n := range sizes {
		p := drainPlan{
			title: fmt.Sprintf("%s, %s events, one aggregate with %s more", server.name, size(n), more),
			size:  n, rounds: f.roundsFor(n),
			drainers: []drainer{
				server.pg.stuckDrainer("without it", 0, false),
				server.pg.stuckDrainer("waiting in front of the others", stuckEvents, false),
				server.pg.stuckDrainer("waiting among the others", stuckEvents, true),
			},
		}
		if err := f.table(ctx, server, p, out, progress); err != nil {
			return err
		}
	}
	return nil
}

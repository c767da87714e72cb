package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// lane is a broker to publish to, by hand and by a relay.
type lane struct {
	name string
	// server is its name in testserver; empty if this program is the server.
	server string
	// confirms describes the state of a message when it counts.
	confirms string
	// events is the default number of events per turn: they should take a
	// second or more, or the turn measures the start of the relay.
	events int
	open   func(ctx context.Context) (*brokerField, error)
}

// brokerField is a topic of its own on a broker.
type brokerField struct {
	sink  waybill.Sink
	codec *broker.Codec
	// byHand returns a worker: it publishes messages with the client library
	// alone and returns when all of them are confirmed.
	byHand func() (publish func(ctx context.Context, batch []broker.Message) error, err error)
	// reset discards the published messages.
	reset func(ctx context.Context) error
	close func()
}

func brokerLanes() []lane {
	return []lane{natsLane(), redisLane(), rabbitLane(), kafkaLane(), pulsarLane(), webhookLane()}
}

// The defaults of a relay, and so of the work by hand as well.
const (
	brokerWorkers = 4
	brokerBatch   = 500
)

// brokersGoal is the minimum rate of a relay with its outbox in memory, in
// percent of one loop by hand.
const brokersGoal = 70

func prepareBrokers(flags *flag.FlagSet) task {
	events := flags.String("events", "", "number of events per turn; empty: enough for a second or more")
	rounds := flags.Int("rounds", 3, "number of turns of every contender")
	only := flags.String("only", "", "comma-separated brokers: nats, redis, rabbitmq, kafka, pulsar, webhook; empty: all")
	out := defineOutput(flags)
	return task{
		databases: func() ([]string, error) {
			chosen, err := chooseLanes(*only)
			names := []string{"postgres"}
			for _, l := range chosen {
				if l.server != "" {
					names = append(names, l.server)
				}
			}
			return names, err
		},
		run: func(ctx context.Context, w, progress io.Writer) error {
			n, err := parseSizes(cmp.Or(*events, "1"))
			if err != nil {
				return err
			}
			if len(n) != 1 || n[0] < 1 || *rounds < 1 {
				return errors.New("-events: want one size; -rounds: want at least 1")
			}
			stop, err := out.profile()
			if err != nil {
				return err
			}
			defer stop()
			chosen, err := chooseLanes(*only)
			if err != nil {
				return err
			}
			pg, err := connectPostgres(ctx)
			if err != nil {
				return err
			}
			defer pg.close()
			fmt.Fprintf(w, "brokers: events of %d bytes, each confirmed; %s; median of %d rounds\n", payloadSize, machine(), *rounds)
			fmt.Fprintf(w, "goal: %d %% of one loop by hand, with the outbox in memory\n\n", brokersGoal)
			for _, l := range chosen {
				if *events != "" {
					l.events = n[0]
				}
				if err := (brokerRace{lane: l, pg: pg, events: l.events, rounds: *rounds}).run(ctx, w, progress); err != nil {
					return fmt.Errorf("%s: %w", l.name, err)
				}
			}
			return nil
		},
	}
}

func chooseLanes(only string) ([]lane, error) {
	all := brokerLanes()
	if only == "" {
		return all, nil
	}
	var chosen []lane
	for name := range strings.SplitSeq(only, ",") {
		at := slices.IndexFunc(all, func(l lane) bool { return l.name == name })
		if at < 0 {
			return nil, fmt.Errorf("unknown broker %q", name)
		}
		chosen = append(chosen, all[at])
	}
	return chosen, nil
}

// brokerRace is one table: by hand, and from two outboxes, with the default
// config and tuned.
type brokerRace struct {
	lane   lane
	pg     *pgServer
	events int
	rounds int
}

// publisher is a contender: it publishes all events once and returns the
// duration.
type publisher struct {
	name  string
	turn  func(ctx context.Context, f *brokerField) (time.Duration, error)
	rates []float64
}

func (r brokerRace) run(ctx context.Context, out, progress io.Writer) error {
	f, err := r.lane.open(ctx)
	if err != nil {
		return err
	}
	defer f.close()
	list := []*publisher{
		{name: "by hand, one batch at a time", turn: r.byHand(1)},
		{name: fmt.Sprintf("by hand, %d at a time, no order", brokerWorkers), turn: r.byHand(brokerWorkers)},
		{name: "waybill, outbox in memory", turn: r.fromMemory(relay.Config{})},
		{name: "waybill, outbox in PostgreSQL", turn: r.fromPostgres(relay.Config{})},
		{name: "tuned, outbox in memory", turn: r.fromMemory(tunedRelay)},
		{name: "tuned, outbox in PostgreSQL", turn: r.fromPostgres(tunedRelay)},
	}
	for round := range r.rounds + 1 { // the first round is for warming up
		for i := range list {
			p := list[(i+round)%len(list)]
			if err := f.reset(ctx); err != nil {
				return err
			}
			var took time.Duration
			pprof.Do(ctx, pprof.Labels("contender", p.name), func(ctx context.Context) { took, err = p.turn(ctx, f) })
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			if round == 0 {
				continue
			}
			p.rates = append(p.rates, float64(r.events)/took.Seconds())
			fmt.Fprintf(progress, "bench: brokers, %s, round %d of %d: %s: %s events/s\n", r.lane.name, round, r.rounds, p.name, thousands(p.rates[round-1]))
		}
	}
	fmt.Fprintf(out, "%s, %s events (%s)\n", r.lane.name, size(r.events), r.lane.confirms)
	fmt.Fprintf(out, "  %-32s  %9s  %9s  %9s  %10s  %s\n", "", "events/s", "min", "max", "of one", "of several")
	for _, p := range list {
		fmt.Fprintf(out, "  %-32s  %9s  %9s  %9s  %8.0f %%  %8.0f %%\n", p.name, thousands(median(p.rates)), thousands(slices.Min(p.rates)), thousands(slices.Max(p.rates)),
			100*median(ratios(p.rates, list[0].rates)), 100*median(ratios(p.rates, list[1].rates)))
	}
	fmt.Fprintln(out)
	return nil
}

// byHand creates the messages that the relay would create from the same events,
// and publishes them in batches of the same size. One batch after another keeps
// the order of every aggregate, as a relay does. Concurrent batches, by as many
// loops as a relay has workers, do not.
func (r brokerRace) byHand(loops int) func(context.Context, *brokerField) (time.Duration, error) {
	return func(ctx context.Context, f *brokerField) (time.Duration, error) {
		events := numberedEvents(0, r.events)
		for i := range events {
			events[i] = eventfill.Defaults(events[i])
		}
		workers := make([]func(context.Context, []broker.Message) error, loops)
		for i := range workers {
			var err error
			if workers[i], err = f.byHand(); err != nil {
				return 0, err
			}
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		next := make(chan []waybill.Event, (len(events)+brokerBatch-1)/brokerBatch)
		for b := range slices.Chunk(events, brokerBatch) {
			next <- b
		}
		close(next)
		var all sync.WaitGroup
		began := time.Now()
		for _, publish := range workers {
			all.Go(func() {
				for b := range next {
					messages, err := encodeAll(f.codec, b)
					if err == nil {
						err = publish(ctx, messages)
					}
					if err != nil {
						cancel(err)
						return
					}
				}
			})
		}
		all.Wait()
		return time.Since(began), context.Cause(ctx)
	}
}

func encodeAll(codec *broker.Codec, events []waybill.Event) ([]broker.Message, error) {
	messages := make([]broker.Message, len(events))
	for n := range events {
		d := waybill.Delivery{Event: events[n], Attempt: 1, Position: waybill.Position{Lane: n % lanes, Epoch: 1, Seq: int64(n)}}
		var err error
		if messages[n], err = codec.Encode(&d); err != nil {
			return nil, err
		}
	}
	return messages, nil
}

func (r brokerRace) fromMemory(cfg relay.Config) func(context.Context, *brokerField) (time.Duration, error) {
	return func(ctx context.Context, f *brokerField) (time.Duration, error) {
		db, err := memstore.New(memstore.Config{})
		if err != nil {
			return 0, err
		}
		if err := loadEvents(ctx, db.Driver().Outbox, r.events); err != nil {
			return 0, err
		}
		return r.drain(ctx, db.Driver().Relay, cfg, f)
	}
}

func (r brokerRace) fromPostgres(cfg relay.Config) func(context.Context, *brokerField) (time.Duration, error) {
	return func(ctx context.Context, f *brokerField) (time.Duration, error) {
		tables, db, err := r.pg.waybillField(ctx)
		if err != nil {
			return 0, err
		}
		defer tables.close()
		if err := loadEvents(ctx, db.Driver().Outbox, r.events); err != nil {
			return 0, err
		}
		if err := tables.calm(ctx); err != nil {
			return 0, err
		}
		return r.drain(ctx, db.Driver().Relay, cfg, f)
	}
}

// drain runs a relay until all events are published, confirmed and settled.
func (r brokerRace) drain(ctx context.Context, db driver.Relay, cfg relay.Config, f *brokerField) (time.Duration, error) {
	l := newLedger(r.events, 0)
	err := drainRelay(ctx, db, cfg, f.sink, l)
	return l.took(), err
}

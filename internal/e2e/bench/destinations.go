package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/pgstore"
)

// The cost of destinations: of each one that keeps up, and of one that does not
// for the others.

// destinationsPlan are the flags of destinations.
type destinationsPlan struct {
	events, rounds int
	rates          string
	turn           time.Duration
}

// prepareDestinations defines the flags of destinations.
func prepareDestinations(flags *flag.FlagSet) task {
	var p destinationsPlan
	events := flags.String("events", "30k", "events of a drain")
	flags.IntVar(&p.rounds, "rounds", 5, "number of rounds; every contender has a turn in each")
	flags.StringVar(&p.rates, "rates", "500,4000", "events per second of the measurements under load")
	flags.DurationVar(&p.turn, "turn", 6*time.Second, "duration of a turn under load")
	return task{
		databases: func() ([]string, error) {
			n, err := parseSize(*events)
			p.events = n
			if err == nil {
				_, err = parseRates(p.rates)
			}
			if err == nil && (p.rounds < 1 || p.turn <= 0) {
				err = errors.New("-rounds and -turn are positive")
			}
			return []string{"postgres"}, err
		},
		run: func(ctx context.Context, out, progress io.Writer) error {
			s, err := connectPostgres(ctx)
			if err != nil {
				return err
			}
			defer s.close()
			fmt.Fprintf(out, "destinations: %s; %s\n", s.version, machine())
			if err := p.drain(ctx, s, out, progress); err != nil {
				return err
			}
			rates, err := parseRates(p.rates)
			for _, rate := range rates {
				if err == nil {
					err = p.load(ctx, s, rate, out, progress)
				}
			}
			return err
		},
	}
}

// setting is a relay with some destinations. The first one is healthy, and
// measured.
type setting struct {
	name    string
	one     bool           // a relay with one sink, without destinations
	healthy int            // destinations that keep up
	other   []waybill.Sink // destinations that do not
}

// away is a destination that is unavailable.
type away struct{}

var errAway = errors.New("away")

// Deliver implements [waybill.Sink].
func (away) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	return slices.Repeat([]error{waybill.Unavailable(errAway)}, len(batch))
}

// hanging is a destination whose calls take a long time.
type hanging struct{}

// Deliver implements [waybill.Sink].
func (hanging) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
	return make([]error, len(batch))
}

// refusing is a destination that refuses every event.
type refusing struct{}

// Deliver implements [waybill.Sink].
func (refusing) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	return slices.Repeat([]error{errAway}, len(batch))
}

func settings() []setting {
	return []setting{
		{name: "one sink", one: true, healthy: 1},
		{name: "1 destination", healthy: 1},
		{name: "2 destinations", healthy: 2},
		{name: "3 destinations", healthy: 3},
		{name: "4 destinations", healthy: 4},
		{name: "2, one unavailable", healthy: 1, other: []waybill.Sink{away{}}},
		{name: "2, one hangs for 1 s", healthy: 1, other: []waybill.Sink{hanging{}}},
		{name: "2, one refuses all", healthy: 1, other: []waybill.Sink{refusing{}}},
	}
}

// start starts a relay, and returns a function that stops it. Each healthy
// destination has a sink.
func (s setting) start(ctx context.Context, db *pgstore.Store, sinks []waybill.Sink) (stop func() error, err error) {
	cfg := relay.Config{HistoryRetention: -1}
	var r *relay.Relay
	if s.one {
		r, err = relay.New(db, sinks[0], cfg)
	} else {
		var to []relay.Destination
		for i, sink := range slices.Concat(sinks, s.other) {
			to = append(to, relay.Destination{Name: fmt.Sprintf("d%d", i), Sink: sink})
		}
		r, err = relay.NewTo(db, cfg, to...)
	}
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(running) }()
	return func() error {
		cancel()
		return <-ended
	}, nil
}

// drain measures the rate at which the healthy destinations of each setting
// receive a backlog.
func (p *destinationsPlan) drain(ctx context.Context, s *pgServer, out, progress io.Writer) error {
	all := settings()
	rates := make([][]float64, len(all))
	for round := range p.rounds {
		for i := range all {
			at := (i + round) % len(all)
			fmt.Fprintf(progress, "bench: round %d of %d: drain, %s\n", round+1, p.rounds, all[at].name)
			r, err := p.drainOnce(ctx, s, all[at])
			if err != nil {
				return fmt.Errorf("%s: %w", all[at].name, err)
			}
			rates[at] = append(rates[at], r)
		}
	}
	fmt.Fprintf(out, "  %s events wait; events/s until the healthy destinations have all of them; %d rounds\n", size(p.events), p.rounds)
	const format = "  %-24s %12s %22s %22s\n"
	fmt.Fprintf(out, format, "", "events/s", "of one sink", "of 1 destination")
	for i, c := range all {
		fmt.Fprintf(out, format, c.name, rate(median(rates[i])), percents(ratios(rates[i], rates[0])), percents(ratios(rates[i], rates[1])))
	}
	return nil
}

// drainOnce returns the rate of one drain.
func (p *destinationsPlan) drainOnce(ctx context.Context, s *pgServer, c setting) (perSecond float64, err error) {
	f, db, err := s.waybillField(ctx)
	if err != nil {
		return 0, err
	}
	defer f.close()
	if err := loadEvents(ctx, db.Driver().Outbox, p.events); err != nil {
		return 0, err
	}
	if err := f.calm(ctx); err != nil {
		return 0, err
	}
	var ledgers []*ledger
	var sinks []waybill.Sink
	for range c.healthy {
		l := newLedger(p.events, 0)
		ledgers, sinks = append(ledgers, l), append(sinks, batchSink{l})
	}
	began := time.Now()
	stop, err := c.start(ctx, db, sinks)
	if err != nil {
		return 0, err
	}
	for _, l := range ledgers {
		select {
		case <-l.all:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	took := time.Since(began)
	if err := errors.Join(err, stop()); err != nil {
		return 0, err
	}
	for i, l := range ledgers {
		if l.twice.Load()+l.inverted.Load() > 0 {
			return 0, fmt.Errorf("destination %d received %d events twice and %d out of order", i, l.twice.Load(), l.inverted.Load())
		}
	}
	return float64(p.events) / took.Seconds(), nil
}

// stamping is a sink that records when it received each event.
type stamping struct{ s *sharedStamps }

// Deliver implements [waybill.Sink].
func (s stamping) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	now := time.Now().UnixNano()
	for i := range batch {
		if n := numberOf(batch[i].Payload); n >= 0 && n < len(s.s.handled) {
			s.s.handled[n].CompareAndSwap(0, now)
		}
	}
	return make([]error, len(batch))
}

// load measures what the first destination receives at a fixed rate of commits,
// and the time from the commit. The relay runs in this process.
func (p *destinationsPlan) load(ctx context.Context, s *pgServer, perSecond int, out, progress io.Writer) error {
	all := slices.DeleteFunc(settings(), func(c setting) bool { return c.healthy > 2 })
	p50s, p99s, through := make([][]float64, len(all)), make([][]float64, len(all)), make([][]float64, len(all))
	late := 0
	for round := range p.rounds {
		for i := range all {
			at := (i + round) % len(all)
			fmt.Fprintf(progress, "bench: round %d of %d: %d/s, %s\n", round+1, p.rounds, perSecond, all[at].name)
			sorted, missed, received, err := p.loadOnce(ctx, s, all[at], perSecond)
			if err != nil {
				return fmt.Errorf("%s: %w", all[at].name, err)
			}
			late += missed
			through[at] = append(through[at], received)
			p50s[at] = append(p50s[at], float64(quantile(sorted, 0.5)))
			p99s[at] = append(p99s[at], float64(quantile(sorted, 0.99)))
		}
	}
	fmt.Fprintf(out, "  %d events/s are committed for %s; what the first destination receives, and when: medians of %d rounds\n", perSecond, p.turn, p.rounds)
	const format = "  %-24s %10s %22s %9s %9s %24s\n"
	fmt.Fprintf(out, format, "", "events/s", "of 1 destination's", "p50", "p99", "p99 of 1 destination's")
	for i, c := range all {
		fmt.Fprintf(out, format, c.name, rate(median(through[i])), percents(ratios(through[i], through[1])),
			latency(time.Duration(median(p50s[i]))), latency(time.Duration(median(p99s[i]))), percents(ratios(p99s[i], p99s[1])))
	}
	if late > 0 {
		fmt.Fprintf(out, "  %d events were not delivered within %s\n", late, graceTime)
	}
	return nil
}

// loadOnce returns the sorted latencies of one turn, and the events per second
// that the first destination received.
func (p *destinationsPlan) loadOnce(ctx context.Context, s *pgServer, c setting, perSecond int) (sorted []time.Duration, late int, received float64, err error) {
	f, db, err := s.waybillField(ctx)
	if err != nil {
		return nil, 0, 0, err
	}
	defer f.close()
	if err := f.exec(ctx, ordersTable); err != nil {
		return nil, 0, 0, err
	}
	stamps, err := createStamps(int(float64(perSecond)*(p.turn+2*warmUp).Seconds()) + perSecond)
	if err != nil {
		return nil, 0, 0, err
	}
	defer stamps.close()
	defer stamps.remove()
	sinks := []waybill.Sink{stamping{stamps}}
	for len(sinks) < c.healthy {
		sinks = append(sinks, batchSink{newLedger(1, 0)})
	}
	stop, err := c.start(ctx, db, sinks)
	if err != nil {
		return nil, 0, 0, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	commit, err := waybillCommit(db)
	if err != nil {
		return nil, 0, 0, err
	}
	sorted, late, err = openLoop(ctx, perSecond, p.turn, stamps, commit)
	return sorted, late, stamps.perSecond(), err
}

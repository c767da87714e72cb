package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill/outbox"
)

// The latency of a quiet tenant while another tenant floods the outbox.

// tenantsPlan are the flags of tenants.
type tenantsPlan struct {
	flood, rounds, rate int
	turn                time.Duration
}

// prepareTenants defines the flags of tenants.
func prepareTenants(flags *flag.FlagSet) task {
	var p tenantsPlan
	flood := flags.String("flood", "300k", "events of the tenant that floods the outbox")
	flags.IntVar(&p.rounds, "rounds", 5, "number of rounds; every setting has a turn in each")
	flags.IntVar(&p.rate, "rate", 100, "events per second of the quiet tenants")
	flags.DurationVar(&p.turn, "turn", 5*time.Second, "duration of a turn without a flood; with one, the turn ends with the flood")
	return task{
		databases: func() ([]string, error) {
			n, err := parseSize(*flood)
			p.flood = n
			switch {
			case err != nil:
			case p.rounds < 1 || p.turn <= 0:
				err = errors.New("-rounds and -turn are positive")
			case p.rate < 1 || p.rate > maxPerSec:
				err = fmt.Errorf("-rate %d: use 1 to %d", p.rate, maxPerSec)
			}
			return []string{"postgres"}, err
		},
		run: p.run,
	}
}

// floodKind is what another tenant does during a turn.
type floodKind int

const (
	noFlood floodKind = iota
	floodWritten
	floodWaits
)

func (k floodKind) String() string {
	return [...]string{"no flood", "a flood is written", "a flood waits at the start"}[k]
}

const (
	// quietTenants is the number of quiet tenants.
	quietTenants = 50
	floodTenant  = "flood"
	// floodBatch is the number of events in a transaction of the flood.
	floodBatch = 1000
)

// tenantTurn is the result of a turn.
type tenantTurn struct {
	apartTurn
	took time.Duration // from the beginning of the turn to the end of the flood
}

func (p *tenantsPlan) run(ctx context.Context, out, progress io.Writer) error {
	s, err := connectPostgres(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	kinds := []floodKind{noFlood, floodWritten, floodWaits}
	turns := make([][]tenantTurn, len(kinds))
	for round := range p.rounds {
		for i := range kinds {
			k := kinds[(i+round)%len(kinds)]
			t, err := p.take(ctx, s, k)
			if err != nil {
				return fmt.Errorf("%s: %w", k, err)
			}
			turns[k] = append(turns[k], t)
			fmt.Fprintf(progress, "bench: round %d of %d: %s: p50 %s, p99 %s, %d events\n", round+1, p.rounds, k, latency(t.p50()), latency(t.p99()), len(t.sorted))
		}
	}
	fmt.Fprintf(out, "tenants: %s; %s\n", s.version, machine())
	fmt.Fprintf(out, "  %d quiet tenants write %d events/s in all, another one floods the outbox with %s events;\n", quietTenants, p.rate, size(p.flood))
	fmt.Fprintf(out, "  time from the return of the commit of a quiet tenant to the handler in another process; medians of %d rounds\n", p.rounds)
	const format = "  %-28s %9s %9s %9s %22s %12s\n"
	fmt.Fprintf(out, format, "", "p50", "p99", "max", "p99 of no flood's", "flood took")
	for _, k := range kinds {
		took := ""
		if k != noFlood {
			took = latency(medianOf(turns[k], func(t tenantTurn) time.Duration { return t.took }))
		}
		p99 := func(t tenantTurn) time.Duration { return t.p99() }
		fmt.Fprintf(out, format, k, latency(medianOf(turns[k], func(t tenantTurn) time.Duration { return t.p50() })), latency(medianOf(turns[k], p99)),
			latency(medianOf(turns[k], func(t tenantTurn) time.Duration { return quantile(t.sorted, 1) })),
			percents(ratios(figures(turns[k], p99), figures(turns[noFlood], p99))), took)
		for _, t := range turns[k] {
			if t.late > 0 {
				fmt.Fprintf(out, "    %d events were not delivered within %s\n", t.late, graceTime)
			}
		}
	}
	return nil
}

// figures returns a figure of every turn.
func figures(turns []tenantTurn, of func(tenantTurn) time.Duration) (out []float64) {
	for _, t := range turns {
		out = append(out, float64(of(t)))
	}
	return out
}

func medianOf(turns []tenantTurn, of func(tenantTurn) time.Duration) time.Duration {
	return time.Duration(median(figures(turns, of)))
}

// take measures one turn. The turn of a flood ends when the last event of the
// flood is handled.
func (p *tenantsPlan) take(ctx context.Context, s *pgServer, k floodKind) (t tenantTurn, err error) {
	f, db, err := s.waybillField(ctx)
	if err != nil {
		return t, err
	}
	defer f.close()
	if err := f.exec(ctx, ordersTable); err != nil {
		return t, err
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		return t, err
	}
	quiet := p.rate * int(max(p.turn, time.Minute)/time.Second)
	stamps, err := createStamps(quiet + 1 + p.flood)
	if err != nil {
		return t, err
	}
	defer stamps.close()
	defer stamps.remove()
	flood := func() error { return p.writeFlood(ctx, box, quiet+1) }
	if k == floodWaits {
		if err := errors.Join(flood(), f.calm(ctx)); err != nil {
			return t, err
		}
	}
	child, err := startRelayProcess(ctx, relayFlags{db: "postgres", at: s.schema, stamps: stamps.path})
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, child.stop()) }()
	return p.measure(ctx, k, stamps, quiet, flood, quietCommit(box))
}

// measure commits events of the quiet tenants until the turn is over.
func (p *tenantsPlan) measure(ctx context.Context, k floodKind, stamps *sharedStamps, most int, flood func() error, commit func(context.Context, int) error) (t tenantTurn, err error) {
	began := time.Now()
	var over atomic.Bool
	ended := make(chan error, 1)
	go func() {
		var err error
		switch k {
		case noFlood:
			err = pauseFor(ctx, p.turn)
		case floodWritten:
			err = flood()
		case floodWaits:
		}
		for i := most + 1; err == nil && k != noFlood && i < len(stamps.handled); {
			if stamps.handled[i].Load() != 0 {
				i++
			} else {
				err = pauseFor(ctx, lookAgain)
			}
		}
		t.took = time.Since(began)
		over.Store(true)
		ended <- err
	}()
	var committed []time.Time
	for n := 0; n < most && !over.Load(); n++ {
		if err := pauseFor(ctx, time.Until(began.Add(time.Duration(n)*time.Second/time.Duration(p.rate)))); err != nil {
			return t, err
		}
		if err := commit(ctx, n); err != nil {
			return t, err
		}
		committed = append(committed, time.Now())
	}
	if err := <-ended; err != nil {
		return t, err
	}
	t.sorted, t.late, err = stamps.latencies(ctx, committed, 0)
	return t, err
}

// writeFlood commits the events of the flood, with numbers from first on.
func (p *tenantsPlan) writeFlood(ctx context.Context, box *outbox.Outbox[pgx.Tx], first int) error {
	for n := 0; n < p.flood; n += floodBatch {
		evs := numberedEvents(first+n, first+min(n+floodBatch, p.flood))
		for i := range evs {
			evs[i].TenantID = floodTenant
		}
		if err := box.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, evs...) }); err != nil {
			return err
		}
	}
	return nil
}

// quietCommit commits an order and event n, of one of the quiet tenants.
func quietCommit(box *outbox.Outbox[pgx.Tx]) func(ctx context.Context, n int) error {
	return func(ctx context.Context, n int) error {
		evs := numberedEvents(n, n+1)
		evs[0].TenantID = fmt.Sprintf("quiet-%d", n%quietTenants)
		return box.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			if err := order(ctx, tx); err != nil {
				return err
			}
			return box.Write(ctx, tx, evs...)
		})
	}
}

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/pgstore"
)

// The cost of a relay, and its latency, under conditions that last: an old
// snapshot, blocked aggregates, an aggregate with many events behind a dead
// letter; and the memory that large events take. The relay is a process of its
// own.

// condition is what is prepared before the relay is measured.
type condition struct {
	name      string
	snapshot  bool // a snapshot is held from before the events are delivered
	delivered int  // events that are delivered before the measurement
	blocked   int  // blocked aggregates, with one successor each
	behind    int  // events of one aggregate behind its dead letter
	large     int  // events of 1 MiB that are delivered before the measurement
}

func conditions(n int) []condition {
	return []condition{
		{name: "none"},
		{name: size(n) + " delivered", delivered: n},
		{name: "snapshot held", snapshot: true},
		{name: "snapshot held, " + size(n) + " delivered", snapshot: true, delivered: n},
		{name: size(max(n/50, 1)) + " blocked aggregates", blocked: max(n/50, 1)},
		{name: size(max(n/10, 1)) + " blocked aggregates", blocked: max(n/10, 1)},
		{name: size(n) + " events behind a dead letter", behind: n},
		{name: size(max(n/2000, 1)) + " events of 1 MiB delivered", large: max(n/2000, 1)},
	}
}

// conditionPlan are the flags of conditions.
type conditionPlan struct {
	events     int
	rate       int
	idle, turn time.Duration
	settle     time.Duration
	only       string
}

// prepareConditions defines the flags of conditions.
func prepareConditions(flags *flag.FlagSet) task {
	var p conditionPlan
	events := flags.String("events", "1m", "events that are delivered, or wait, before the measurement; blocked aggregates: a fiftieth and a tenth")
	flags.IntVar(&p.rate, "rate", 500, "events per second of the latency measurement")
	flags.DurationVar(&p.settle, "warm", 8*time.Second, "time for the relay to become idle")
	flags.DurationVar(&p.idle, "idle", 10*time.Second, "duration of the idle measurement")
	flags.DurationVar(&p.turn, "turn", 10*time.Second, "duration of the latency measurement")
	flags.StringVar(&p.only, "only", "", "comma-separated parts of the names of conditions to measure")
	return task{
		databases: func() ([]string, error) {
			n, err := parseSize(*events)
			p.events = n
			if err == nil && (p.rate < 1 || p.rate > maxPerSec) {
				err = fmt.Errorf("-rate %d: use 1 to %d", p.rate, maxPerSec)
			}
			return []string{"postgres"}, err
		},
		run: func(ctx context.Context, out, progress io.Writer) error {
			s, err := connectPostgres(ctx)
			if err != nil {
				return err
			}
			defer s.close()
			return p.run(ctx, s, out, progress)
		},
	}
}

// conditionResult is one line of the table.
type conditionResult struct {
	idleServer, idleRelay float64 // share of a core
	memory, peak          int64
	sorted                []time.Duration
	late                  int
}

func (p *conditionPlan) run(ctx context.Context, s *pgServer, out, progress io.Writer) error {
	fmt.Fprintf(out, "conditions: %s; %s\n", s.version, machine())
	fmt.Fprintf(out, "  a relay in a process of its own; idle for %s, and then %d events/s for %s; latency from the return of the commit to the handler\n",
		p.idle, p.rate, p.turn)
	const format = "  %-36s %12s %12s %9s %9s %9s %9s %9s\n"
	fmt.Fprintf(out, format, "", "idle: server", "idle: relay", "memory", "peak", "p50", "p99", "max")
	some := false
	for _, c := range conditions(p.events) {
		if p.only != "" && !slices.ContainsFunc(strings.Split(p.only, ","), func(part string) bool { return strings.Contains(c.name, part) || part == "="+c.name }) {
			continue
		}
		some = true
		r, err := p.measure(ctx, s, c, progress)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Fprintf(out, format, c.name, percent(r.idleServer), percent(r.idleRelay), megabytes(r.memory), megabytes(r.peak),
			latency(quantile(r.sorted, 0.5)), latency(quantile(r.sorted, 0.99)), latency(quantile(r.sorted, 1)))
		if r.late > 0 {
			fmt.Fprintf(out, "    %d events were not delivered within %s\n", r.late, graceTime)
		}
	}
	if !some {
		return fmt.Errorf("-only %s leaves no condition", p.only)
	}
	return nil
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }
func megabytes(bytes int64) string { return fmt.Sprintf("%d MB", bytes>>20) }

// measure prepares a condition, and measures a relay that is idle, and one at a
// fixed rate.
func (p *conditionPlan) measure(ctx context.Context, s *pgServer, c condition, progress io.Writer) (r conditionResult, err error) {
	f, db, err := s.waybillField(ctx)
	if err != nil {
		return r, err
	}
	defer f.close()
	if err := f.exec(ctx, ordersTable); err != nil {
		return r, err
	}
	if c.snapshot {
		end, err := s.holdSnapshot(ctx, false)
		if err != nil {
			return r, err
		}
		defer end()
	}
	fmt.Fprintf(progress, "bench: %s: prepare\n", c.name)
	if err := c.load(ctx, db); err != nil {
		return r, err
	}
	if err := f.calm(ctx); err != nil {
		return r, err
	}
	stamps, err := createStamps(int(float64(p.rate)*(p.turn+2*warmUp).Seconds()) + p.rate)
	if err != nil {
		return r, err
	}
	defer stamps.close()
	defer stamps.remove()
	child, err := startRelayProcess(ctx, relayFlags{db: "postgres", at: f.schema, stamps: stamps.path, block: true})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, child.stop()) }()
	if err := f.until(ctx, `SELECT (SELECT count(*) FROM waybill_outbox) = $1 AND (SELECT count(*) FROM waybill_dead) = $2`, c.waiting(), c.dead()); err != nil {
		return r, err
	}
	fmt.Fprintf(progress, "bench: %s: idle\n", c.name)
	if err := pauseFor(ctx, p.settle); err != nil {
		return r, err
	}
	server, own, began := treeCPU(s.postmaster), child.cpu(), time.Now()
	if err := pauseFor(ctx, p.idle); err != nil {
		return r, err
	}
	took := time.Since(began)
	r.idleServer, r.idleRelay = float64(treeCPU(s.postmaster)-server)/float64(took), float64(child.cpu()-own)/float64(took)
	fmt.Fprintf(progress, "bench: %s: %d events/s\n", c.name, p.rate)
	commit, err := waybillCommit(db)
	if err != nil {
		return r, err
	}
	r.sorted, r.late, err = openLoop(ctx, p.rate, p.turn, stamps, commit)
	r.memory, r.peak = child.memory()
	return r, err
}

func pauseFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// waiting is the number of ready rows that stay; dead is the number of dead
// letters.
func (c condition) waiting() int { return c.blocked + c.behind }
func (c condition) dead() int    { return c.blocked + min(c.behind, 1) }

// load writes the events of a condition.
func (c condition) load(ctx context.Context, db *pgstore.Store) error {
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		return err
	}
	payload, batch := numbered(stuckNumber), loadBatch
	if c.large > 0 {
		payload, batch = append(payload, bytes.Repeat([]byte(" "), waybill.MaxPayload-len(payload))...), 20
	}
	write := func(n int, aggregate func(i int) string) error {
		for from := 0; from < n; from += batch {
			var evs []waybill.Event
			for i := from; i < min(from+batch, n); i++ {
				evs = append(evs, waybill.Event{Type: "OrderPlaced", AggregateType: "order", AggregateID: aggregate(i), Payload: payload})
			}
			if err := box.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, evs...) }); err != nil {
				return err
			}
		}
		return nil
	}
	switch {
	case c.delivered+c.large > 0:
		return write(c.delivered+c.large, func(i int) string { return fmt.Sprint(i % aggregates) })
	case c.blocked > 0:
		return write(2*c.blocked, func(i int) string { return fmt.Sprint(stuckAggregate, "-", i%c.blocked) })
	case c.behind > 0:
		return write(1+c.behind, func(int) string { return stuckAggregate })
	}
	return nil
}

// waybillCommit returns a function that commits an order and event n.
func waybillCommit(db *pgstore.Store) (func(ctx context.Context, n int) error, error) {
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, n int) error {
		ev := numberedEvents(n, n+1)
		return box.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			if err := order(ctx, tx); err != nil {
				return err
			}
			return box.Write(ctx, tx, ev...)
		})
	}, nil
}

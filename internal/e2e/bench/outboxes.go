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
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/pgstore"
)

// Many outboxes whose relays run in one process.

// outboxesPlan are the flags of outboxes.
type outboxesPlan struct {
	counts             []int
	events, rate       int
	warm, idling, turn time.Duration
}

// prepareOutboxes defines the flags of outboxes.
func prepareOutboxes(flags *flag.FlagSet) task {
	var p outboxesPlan
	counts := flags.String("counts", "1,10,100", "numbers of outboxes")
	events := flags.String("events", "100k", "events that wait at the start, in all outboxes together")
	flags.IntVar(&p.rate, "rate", 500, "events per second under load, in all outboxes together")
	flags.DurationVar(&p.warm, "warm", 12*time.Second, "time for the relays to become idle")
	flags.DurationVar(&p.idling, "idle", 20*time.Second, "duration of the measurement without events")
	flags.DurationVar(&p.turn, "turn", 10*time.Second, "duration of the measurement under load")
	return task{
		databases: func() (_ []string, err error) {
			if p.events, err = parseSize(*events); err == nil {
				p.counts, err = parseSizes(*counts)
			}
			switch {
			case err != nil:
			case p.rate < 1 || p.rate > maxPerSec:
				err = fmt.Errorf("-rate %d: use 1 to %d", p.rate, maxPerSec)
			case p.idling <= 0 || p.turn <= 0:
				err = errors.New("-idle and -turn are positive")
			}
			return []string{"postgres"}, err
		},
		run: p.run,
	}
}

// outboxesTurn is the result for a number of outboxes.
type outboxesTurn struct {
	drained         time.Duration // from the start of the relays to the last of the waiting events
	statements      float64       // per second, without events
	server, own     float64       // cores, without events
	memory          int64
	connections     int
	apartTurn               // under load
	serverAt, ownAt float64 // cores, under load
}

func (p *outboxesPlan) run(ctx context.Context, out, progress io.Writer) error {
	s, err := connectPostgres(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	fmt.Fprintf(out, "outboxes: %s; %s\n", s.version, machine())
	fmt.Fprintf(out, "  one process has a relay for every outbox, each in a schema of its own; the relays share %d connections, and each\n", fieldConns)
	fmt.Fprintf(out, "  listens on one of its own. %s events wait in all; then none for %v; then %d events/s in all, which other stores\n", size(p.events), p.idling, p.rate)
	fmt.Fprintf(out, "  write, as other processes would. Shares are of one core\n")
	const format = "  %-10s %10s | %12s %10s %10s %9s %12s | %9s %9s %10s %10s\n"
	fmt.Fprintf(out, format, "", "drain", "idle", "", "", "", "", "load", "", "", "")
	fmt.Fprintf(out, format, "outboxes", "events/s", "statements/s", "server", "process", "memory", "connections", "p50", "p99", "server", "process")
	for _, n := range p.counts {
		t, err := p.take(ctx, s, n, progress)
		if err != nil {
			return fmt.Errorf("%d outboxes: %w", n, err)
		}
		fmt.Fprintf(out, format, thousands(float64(n)), rate(float64(p.events/n*n)/t.drained.Seconds()), rate(t.statements), percent(t.server), percent(t.own),
			megabytes(t.memory), thousands(float64(t.connections)), latency(t.p50()), latency(t.p99()), percent(t.serverAt), percent(t.ownAt))
		if t.late > 0 {
			fmt.Fprintf(out, "    %d events were not delivered within %s\n", t.late, graceTime)
		}
	}
	return nil
}

// outboxes are outboxes with their relays.
type outboxes struct {
	*field
	schemas []string
	stores  []*pgstore.Store
	writers []*outbox.Outbox[pgx.Tx]
	stops   []func() error
}

// openOutboxes creates schemas with empty outboxes.
func (s *pgServer) openOutboxes(ctx context.Context, n int) (*outboxes, error) {
	f, err := s.attach(ctx)
	if err != nil {
		return nil, err
	}
	o := &outboxes{field: f}
	for i := range n {
		name := fmt.Sprintf("%s_%d", schema, i)
		o.schemas = append(o.schemas, name)
		if err := f.exec(ctx, `DROP SCHEMA IF EXISTS `+name+` CASCADE`, `CREATE SCHEMA `+name); err != nil {
			return o, err
		}
		cfg := pgstore.Config{Schema: name}
		db, err := pgstore.New(f.pool, cfg)
		if err != nil {
			return o, err
		}
		if _, err := db.Migrate(ctx); err != nil {
			return o, err
		}
		// A relay hears of the commits of its own store at once.
		other, err := pgstore.New(f.pool, cfg)
		if err != nil {
			return o, err
		}
		box, err := outbox.New(other, outbox.Config{})
		if err != nil {
			return o, err
		}
		o.stores, o.writers = append(o.stores, db), append(o.writers, box)
	}
	return o, nil
}

// close stops the relays and drops the schemas.
func (o *outboxes) close(ctx context.Context) (err error) {
	for _, stop := range o.stops {
		err = errors.Join(err, stop())
	}
	for _, name := range o.schemas {
		err = errors.Join(err, o.exec(ctx, `DROP SCHEMA IF EXISTS `+name+` CASCADE`))
	}
	o.pool.Close()
	return err
}

// write commits event n in one of the outboxes.
func (o *outboxes) write(ctx context.Context, n int) error {
	box := o.writers[n%len(o.writers)]
	return box.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, numberedEvents(n, n+1)...) })
}

func (p *outboxesPlan) take(ctx context.Context, s *pgServer, n int, progress io.Writer) (t outboxesTurn, err error) {
	say := func(what string) { fmt.Fprintf(progress, "bench: %d outboxes: %s\n", n, what) }
	say("creating them")
	o, err := s.openOutboxes(ctx, n)
	if o != nil {
		defer func() { err = errors.Join(err, o.close(context.WithoutCancel(ctx))) }()
	}
	if err != nil {
		return t, err
	}
	for _, db := range o.stores {
		if err := loadEvents(ctx, db.Driver().Outbox, p.events/n); err != nil {
			return t, err
		}
	}
	stamps, err := createStamps(int(float64(p.rate)*(p.turn+2*warmUp).Seconds()) + p.rate)
	if err != nil {
		return t, err
	}
	defer stamps.close()
	defer stamps.remove()
	var waited atomic.Int64 // events that waited at the start
	var underLoad atomic.Bool
	handle := func(payload []byte) {
		if !underLoad.Load() {
			waited.Add(1)
		} else if k := numberOf(payload); k >= 0 && k < len(stamps.handled) {
			stamps.handled[k].Store(time.Now().UnixNano())
		}
	}
	say("draining")
	began := time.Now()
	for _, db := range o.stores {
		stop, err := startRelay(ctx, db.Driver().Relay, relay.Config{}, handle)
		if err != nil {
			return t, err
		}
		o.stops = append(o.stops, stop)
	}
	for waited.Load() < int64(p.events/n*n) {
		if err := pauseFor(ctx, lookAgain); err != nil {
			return t, err
		}
	}
	t.drained = time.Since(began)
	say("idle")
	if err := p.idle(ctx, o, &t); err != nil {
		return t, err
	}
	say(fmt.Sprintf("%d events/s", p.rate))
	underLoad.Store(true)
	server, own, began := treeCPU(s.postmaster), ownCPU(), time.Now()
	t.sorted, t.late, err = openLoop(ctx, p.rate, p.turn, stamps, o.write)
	took := time.Since(began)
	t.serverAt, t.ownAt = float64(treeCPU(s.postmaster)-server)/float64(took), float64(ownCPU()-own)/float64(took)
	return t, err
}

// idle measures the relays without events.
func (p *outboxesPlan) idle(ctx context.Context, o *outboxes, t *outboxesTurn) error {
	if err := pauseFor(ctx, p.warm); err != nil {
		return err
	}
	forgetPeak()
	before, err := o.gauge(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := pauseFor(ctx, p.idling); err != nil {
		return err
	}
	after, err := o.gauge(ctx)
	if err != nil {
		return err
	}
	took := time.Since(began)
	t.statements = float64(after.statements-before.statements) / took.Seconds()
	t.server, t.own = float64(after.server-before.server)/float64(took), float64(after.own-before.own)/float64(took)
	t.memory = peakRSS()
	const count = `SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = current_database() AND pid <> pg_backend_pid()`
	return o.server.admin.QueryRow(ctx, count).Scan(&t.connections)
}

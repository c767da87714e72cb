package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/waybillhq/waybill/relay"
)

// prepareIdle defines the flags of idle.
func prepareIdle(flags *flag.FlagSet) task {
	turn := flags.Duration("turn", time.Minute, "duration of the measurement")
	warm := flags.Duration("warm", 12*time.Second, "time for the relay to become idle before the measurement")
	return task{
		databases: func() ([]string, error) { return []string{"postgres"}, nil },
		run: func(ctx context.Context, out, progress io.Writer) error {
			s, err := connectPostgres(ctx)
			if err != nil {
				return err
			}
			defer s.close()
			return s.idle(ctx, *warm, *turn, out, progress)
		},
	}
}

// idle measures a relay without events.
func (s *pgServer) idle(ctx context.Context, warm, turn time.Duration, out, progress io.Writer) error {
	s.detailed = true
	f, db, err := s.waybillField(ctx)
	if err != nil {
		return err
	}
	defer f.close()
	if err := f.calm(ctx); err != nil {
		return err
	}
	stop, err := startRelay(ctx, db.Driver().Relay, relay.Config{}, func([]byte) {})
	if err != nil {
		return err
	}
	fmt.Fprintf(progress, "bench: idle, %d lanes: %s, and then %s\n", lanes, warm, turn)
	pause := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	pause(warm)
	f.counter.forget()
	before, err := s.look(ctx, f)
	if err != nil {
		return err
	}
	began := time.Now()
	pause(turn)
	took := time.Since(began).Seconds()
	after, err := s.look(ctx, f)
	if err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	transactions := float64(after.transactions-before.transactions) - looks
	fmt.Fprintf(out, "idle: a relay with its defaults and %d lanes; %s, %.0f s\n", lanes, s.version, took)
	fmt.Fprintf(out, "  %.2f transactions/s counted by the server (autovacuum included), %.2f statements/s counted by the driver\n",
		max(transactions, 0)/took, float64(after.statements-before.statements)/took)
	fmt.Fprintf(out, "  %.2f %% of a core by the server, %.2f %% by this process\n",
		100*(after.server-before.server).Seconds()/took, 100*(after.own-before.own).Seconds()/took)
	fmt.Fprintf(out, "  WAL %.0f bytes/s\n", float64(after.wal-before.wal)/took)
	f.counter.write(out, 0)
	return stop()
}

// looks is the number of transactions of the measuring connection that are
// counted between two looks: the first look's last, and the second's except its
// last.
const looks = 3

// idleLook holds counters that only grow.
type idleLook struct {
	gauge
	transactions int64
}

// look reads the server's own count of transactions. A backend reports its
// counts about once a second; since PostgreSQL 15 it can be forced to.
func (s *pgServer) look(ctx context.Context, f *field) (idleLook, error) {
	var l idleLook
	var err error
	if l.gauge, err = f.gauge(ctx); err != nil {
		return l, err
	}
	report := `SELECT pg_stat_force_next_flush()`
	if s.number < 150000 {
		report = `SELECT 1`
	}
	if _, err := s.admin.Exec(ctx, report); err != nil {
		return l, err
	}
	err = s.admin.QueryRow(ctx, `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()`).Scan(&l.transactions)
	return l, err
}

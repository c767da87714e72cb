package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// apartPlan measures the time from the return of a commit to the call of the
// handler, while writers and relay are two processes.
type apartPlan struct {
	dbs    string
	rates  string
	turn   time.Duration
	rounds int
	peers  bool
}

// prepareApart defines the flags of apart.
func prepareApart(flags *flag.FlagSet) task {
	var p apartPlan
	flags.StringVar(&p.dbs, "db", "postgres,mariadb,mysql,sqlite", "databases")
	flags.StringVar(&p.rates, "rates", "1,20,500,2000", "events per second")
	flags.DurationVar(&p.turn, "turn", 4*time.Second, "duration of a turn; at least ten events")
	flags.IntVar(&p.rounds, "rounds", 3, "number of turns of every contender")
	flags.BoolVar(&p.peers, "peers", true, "include watermill-sql and oagudo/outbox on PostgreSQL")
	return task{
		databases: func() ([]string, error) {
			if _, err := parseRates(p.rates); err != nil {
				return nil, err
			}
			if p.rounds < 1 || p.turn <= 0 {
				return nil, errors.New("-rounds and -turn are positive")
			}
			return parseDatabases(p.dbs)
		},
		run: p.run,
	}
}

// parseRates parses comma-separated rates.
func parseRates(text string) ([]int, error) {
	var rates []int
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 || n > maxPerSec {
			return nil, fmt.Errorf("-rates %s: use numbers from 1 to %d", text, maxPerSec)
		}
		rates = append(rates, n)
	}
	return rates, nil
}

// writer writes events for a relay in another process.
type writer struct {
	name   string
	role   role
	commit func(ctx context.Context, n int) error
	relay  relayFlags
	close  func()
}

// run measures every database.
func (p *apartPlan) run(ctx context.Context, out, progress io.Writer) error {
	rates, err := parseRates(p.rates)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "apart: from the return of the commit to the handler in another process; %d turns of %s; %s\n", p.rounds, p.turn, machine())
	for db := range strings.SplitSeq(p.dbs, ",") {
		for _, rate := range rates {
			if err := p.table(ctx, db, rate, out, progress); err != nil {
				return fmt.Errorf("%s, %d/s: %w", db, rate, err)
			}
		}
	}
	return nil
}

// table measures the contenders of a database at a rate, in turns.
func (p *apartPlan) table(ctx context.Context, db string, rate int, out, progress io.Writer) error {
	turn := max(p.turn, 10*time.Second/time.Duration(rate))
	openers := p.openers(db)
	turns := make([][]apartTurn, len(openers))
	names, roles := make([]string, len(openers)), make([]role, len(openers))
	for round := range p.rounds {
		for i := range openers {
			at := (i + round) % len(openers)
			w, err := openers[at](ctx)
			if err != nil {
				return err
			}
			names[at], roles[at] = w.name, w.role
			t, err := w.take(ctx, rate, turn)
			w.close()
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			turns[at] = append(turns[at], t)
			fmt.Fprintf(progress, "bench: %s, %d/s, round %d of %d: %s: p50 %s, p99 %s\n", db, rate, round+1, p.rounds, w.name, latency(t.p50()), latency(t.p99()))
		}
	}
	fmt.Fprintf(out, "%s, %d events/s\n", db, rate)
	fmt.Fprintf(out, "  %-26s %9s %9s %9s   %s\n", "", "p50", "p99", "max", "p50 by turn")
	for i, name := range names {
		all := allTurns(turns[i])
		fmt.Fprintf(out, "  %-26s %9s %9s %9s   %s\n", name, latency(quantile(all, 0.5)), latency(quantile(all, 0.99)), latency(quantile(all, 1)), byTurn(turns[i]))
		for _, t := range turns[i] {
			if t.late > 0 {
				fmt.Fprintf(out, "    %d events were not delivered within %s\n", t.late, graceTime)
			}
		}
	}
	writeBest(out, names, roles, turns)
	return nil
}

// apartTurn is the result of a turn.
type apartTurn struct {
	sorted []time.Duration
	late   int
}

func (t apartTurn) p50() time.Duration { return quantile(t.sorted, 0.5) }
func (t apartTurn) p99() time.Duration { return quantile(t.sorted, 0.99) }

func allTurns(turns []apartTurn) []time.Duration {
	var all []time.Duration
	for _, t := range turns {
		all = append(all, t.sorted...)
	}
	slices.Sort(all)
	return all
}

func byTurn(turns []apartTurn) string {
	var parts []string
	for _, t := range turns {
		parts = append(parts, latency(t.p50()))
	}
	return strings.Join(parts, ", ")
}

// writeBest compares Waybill with the best peer of each round.
func writeBest(out io.Writer, names []string, roles []role, turns [][]apartTurn) {
	for i, name := range names {
		if roles[i] != roleOwn {
			continue
		}
		for what, of := range map[string]func(apartTurn) time.Duration{"p50": apartTurn.p50, "p99": apartTurn.p99} {
			var ratios []float64
			for round, t := range turns[i] {
				best := time.Duration(0)
				for k := range names {
					if d := of(turns[k][round]); roles[k] == rolePeer && (best == 0 || d < best) {
						best = d
					}
				}
				if best > 0 {
					ratios = append(ratios, float64(of(t))/float64(best))
				}
			}
			if len(ratios) > 0 {
				fmt.Fprintf(out, "  %s: %s is %.2f times the best peer's [%.2f..%.2f]\n", name, what, median(ratios), slices.Min(ratios), slices.Max(ratios))
			}
		}
	}
}

// take starts the relay, and measures one turn.
func (w *writer) take(ctx context.Context, rate int, turn time.Duration) (t apartTurn, err error) {
	stamps, err := createStamps(int(float64(rate)*(turn+2*warmUp).Seconds()) + rate + 10)
	if err != nil {
		return t, err
	}
	defer stamps.close()
	defer stamps.remove()
	w.relay.stamps = stamps.path
	child, err := startRelayProcess(ctx, w.relay)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, child.stop()) }()
	t.sorted, t.late, err = openLoop(ctx, rate, turn, stamps, w.commit)
	return t, err
}

// opener creates fresh tables and a writer.
type opener func(ctx context.Context) (*writer, error)

// openers returns the contenders on a database.
func (p *apartPlan) openers(db string) []opener {
	switch db {
	case "postgres":
		return p.postgresOpeners()
	case "sqlite":
		return []opener{sqliteWriter}
	}
	return []opener{func(ctx context.Context) (*writer, error) { return mysqlWriter(ctx, db) }}
}

func (p *apartPlan) postgresOpeners() []opener {
	type lines func(s *pgServer) func(ctx context.Context) (*line, error)
	open := func(name string, role role, peer string, of lines) opener {
		return func(ctx context.Context) (*writer, error) {
			s, err := connectPostgres(ctx)
			if err != nil {
				return nil, err
			}
			l, err := of(s)(ctx)
			if err != nil {
				return nil, errors.Join(err, s.admin.Close(ctx))
			}
			return &writer{
				name: name, role: role, commit: l.commit, relay: relayFlags{db: "postgres", at: s.schema, peer: peer, history: true},
				close: func() { l.close(); s.close() },
			}, nil
		}
	}
	list := []opener{
		open("waybill", roleOwn, "", func(s *pgServer) func(ctx context.Context) (*line, error) { return s.waybillLine(nil, false) }),
	}
	if p.peers {
		watermill, oagudo := watermillTuned, oagudoTuned
		list = append(list,
			open(watermill.name, rolePeer, watermill.name, func(s *pgServer) func(ctx context.Context) (*line, error) { return s.watermillLine(watermill) }),
			open(oagudo.name, rolePeer, oagudo.name, func(s *pgServer) func(ctx context.Context) (*line, error) { return s.oagudoLine(oagudo) }))
	}
	return list
}

// sqlCommit commits an order and event n.
func sqlCommit(db driver.Store[*sql.Tx]) (func(ctx context.Context, n int) error, error) {
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, n int) error {
		ev := numberedEvents(n, n+1)
		return box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO orders (note) VALUES ('an order')`); err != nil {
				return err
			}
			return box.Write(ctx, tx, ev...)
		})
	}, nil
}

func sqliteWriter(ctx context.Context) (*writer, error) {
	dir, err := os.MkdirTemp("", "waybill-bench-")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "bench.db")
	s, err := sqlitestore.Open(path, sqlitestore.Config{})
	if err != nil {
		return nil, err
	}
	w := &writer{name: "waybill", role: roleOwn, relay: relayFlags{db: "sqlite", at: path, history: true}, close: func() {
		_ = s.Close()
		_ = os.RemoveAll(dir)
	}}
	if _, err = s.Migrate(ctx); err == nil {
		_, err = s.DB().ExecContext(ctx, `CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT NOT NULL)`)
	}
	if err == nil {
		w.commit, err = sqlCommit(s)
	}
	if err != nil {
		w.close()
	}
	return w, err
}

func mysqlWriter(ctx context.Context, name string) (*writer, error) {
	m, err := connectMySQL(name)
	if err != nil {
		return nil, err
	}
	f, err := m.fresh(ctx)
	if err != nil {
		return nil, errors.Join(err, m.admin.Close())
	}
	w := &writer{name: "waybill", role: roleOwn, relay: relayFlags{db: name, at: mysqlDatabase, history: true}, close: func() {
		f.close()
		_ = m.admin.Close()
	}}
	if _, err = f.db.ExecContext(ctx, `CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY, note VARCHAR(100) NOT NULL) ENGINE=InnoDB`); err == nil {
		w.commit, err = sqlCommit(f.store)
	}
	if err != nil {
		w.close()
	}
	return w, err
}

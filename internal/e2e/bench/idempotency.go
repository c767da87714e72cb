package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
)

// The goals are minimum rates of Waybill in percent of the work by hand.
const (
	firstGoal  = 80
	repeatGoal = 90
)

// prepareIdempotency defines the flags of idempotency.
func prepareIdempotency(flags *flag.FlagSet) task {
	turn := flags.Duration("turn", 300*time.Millisecond, "duration of a turn; the machine's speed changes within seconds, so many short turns are more accurate than a few long ones")
	rounds := flags.Int("rounds", 50, "number of turns of every contender")
	connections := flags.Int("connections", 8, "number of concurrent requests")
	only := flags.String("only", "", "part of the titles of the tables to run, such as repeat; empty: all")
	answers := flags.String("answers", "10k", "number of stored answers that repeats request at random")
	out := defineOutput(flags)
	return task{
		databases: func() ([]string, error) {
			_, err := parseSize(*answers)
			return []string{"postgres"}, err
		},
		run: func(ctx context.Context, w, progress io.Writer) error {
			n, err := parseSize(*answers)
			if err != nil {
				return err
			}
			s, err := connectPostgres(ctx)
			if err != nil {
				return err
			}
			defer s.close()
			stop, err := out.profile()
			if err != nil {
				return err
			}
			defer stop()
			if err := s.idempotency(ctx, keyRace{turn: *turn, rounds: *rounds, connections: *connections, answers: n, only: *only}, w, progress); err != nil {
				return err
			}
			if !strings.Contains(middlewareTitle, *only) {
				return nil
			}
			return middlewareTable(w)
		},
	}
}

// keyRace holds the duration and the concurrency of the contenders.
type keyRace struct {
	turn                         time.Duration
	rounds, connections, answers int
	only                         string
}

// keyContender handles one request in its own way. The first of a group is the
// floor.
type keyContender struct {
	name    string
	request func(ctx context.Context, key string) error

	rates      []float64
	statements float64 // per request
	wal        float64 // bytes per request
	// microseconds per request, of the server and this process
	cpu    []float64
	others float64 // the maximum share of other processes in a turn
}

// keyGroup is contenders for the same work.
type keyGroup struct {
	title string
	key   func() string
	list  []*keyContender
	// prepare prepares the tables, once: emptying them before every turn would
	// make the server plan all statements again.
	prepare func(ctx context.Context) error
}

// placed is the answer of a request.
type placed struct {
	Order  string `json:"order"`
	Status string `json:"status"`
}

// made is the answer to every request.
var made = placed{Order: "ord_01j9zt6vb2e4x8k3m5n7p9qrst", Status: "accepted"}

const (
	keyTenant    = "acme"
	keyOperation = "orders.create"
	keyHash      = "v1:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
)

// errNotOurs reports that a contender did not do the measured work.
var errNotOurs = errors.New("the key has another owner, or the answer is not the stored one")

func (s *pgServer) idempotency(ctx context.Context, race keyRace, out, progress io.Writer) error {
	f, db, err := s.waybillField(ctx)
	if err != nil {
		return err
	}
	defer f.close()
	if err := f.exec(ctx, ordersTable, handKeys, handExpiry); err != nil {
		return err
	}
	keys, err := idempotency.New(db, idempotency.Config{})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "idempotency: %d connections, an order as the business write; %s; %s, median of %d rounds of %s\n",
		race.connections, s.version, machine(), race.rounds, race.turn)
	fmt.Fprintln(out, "by hand: a table with hash, state, owner, lease, answer and expiry, and an index on expiry for the job that deletes")
	fmt.Fprintf(out, "goals: %d %% of by hand for first runs, %d %% for repeats\n\n", firstGoal, repeatGoal)
	for _, g := range f.keyGroups(keys, race) {
		if !strings.Contains(g.title, race.only) {
			continue
		}
		if err := g.run(ctx, f, race, progress); err != nil {
			return err
		}
		g.write(out)
	}
	return nil
}

// keyGroups returns the groups to compare.
func (f *field) keyGroups(keys *idempotency.Keys[pgx.Tx], race keyRace) []keyGroup {
	fresh := func() string { return waybill.NewID().String() }
	stored := func() string { return "answered-" + strconv.Itoa(1+rand.IntN(race.answers)) }
	request := func(key string) idempotency.Request {
		return idempotency.Request{TenantID: keyTenant, Operation: keyOperation, Key: key, Hash: keyHash}
	}
	ordered := func(ctx context.Context) (placed, error) {
		return made, pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error { return order(ctx, tx) })
	}
	orderedTx := func(ctx context.Context, tx pgx.Tx) (placed, error) { return made, order(ctx, tx) }
	answered := func(replayed bool) func(idempotency.Result[placed], error) error {
		return func(res idempotency.Result[placed], err error) error {
			if err == nil && (res.Replayed != replayed || res.Value != made) {
				err = errNotOurs
			}
			return err
		}
	}
	do := func(replayed bool) func(context.Context, string) error {
		return func(ctx context.Context, key string) error {
			return answered(replayed)(idempotency.Do(ctx, keys, request(key), ordered))
		}
	}
	doTx := func(replayed bool) func(context.Context, string) error {
		return func(ctx context.Context, key string) error {
			return answered(replayed)(idempotency.DoTx(ctx, keys, request(key), orderedTx))
		}
	}
	empty := func(ctx context.Context) error {
		return f.exec(ctx, `TRUNCATE orders, hand_keys, waybill_idempotency`)
	}
	return []keyGroup{
		{title: "first run", key: fresh, prepare: empty, list: []*keyContender{
			{name: "by hand: insert, the order's transaction, update", request: f.byHand},
			{name: "waybill, Do", request: do(false)},
		}},
		{title: "first run, one transaction", key: fresh, prepare: empty, list: []*keyContender{
			{name: "by hand: BEGIN, insert, order, update, COMMIT", request: f.byHandTx},
			{name: "waybill, DoTx", request: doTx(false)},
		}},
		{title: "repeat", key: stored, prepare: f.answers(keys, race.answers), list: []*keyContender{
			{name: "by hand: SELECT by primary key", request: f.readByHand},
			{name: "waybill, Do", request: do(true)},
			{name: "waybill, DoTx", request: doTx(true)},
		}},
	}
}

// run lets every contender have its turns.
func (g *keyGroup) run(ctx context.Context, f *field, race keyRace, progress io.Writer) error {
	if err := g.prepare(ctx); err != nil {
		return fmt.Errorf("%s: %w", g.title, err)
	}
	for _, c := range g.list { // warm up: connections, prepared statements
		if err := g.turn(ctx, f, c, race, race.turn/5); err != nil {
			return fmt.Errorf("%s, %s: %w", g.title, c.name, err)
		}
		c.rates, c.cpu, c.others = nil, nil, 0
	}
	for round := range race.rounds {
		for i := range g.list {
			c := g.list[(i+round)%len(g.list)] // no contender is always first
			var err error
			pprof.Do(ctx, pprof.Labels("contender", c.name), func(ctx context.Context) { err = g.turn(ctx, f, c, race, race.turn) })
			if err != nil {
				return fmt.Errorf("%s, %s: %w", g.title, c.name, err)
			}
			fmt.Fprintf(progress, "bench: idempotency, %s, round %d of %d: %s: %s requests/s\n",
				g.title, round+1, race.rounds, c.name, thousands(c.rates[round]))
		}
	}
	return nil
}

// turn lets one contender handle requests for a while.
func (g *keyGroup) turn(ctx context.Context, f *field, c *keyContender, race keyRace, turn time.Duration) error {
	before, err := f.gauge(ctx)
	if err != nil {
		return err
	}
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var n atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	for range race.connections {
		all.Go(func() {
			for time.Since(start) < turn && inner.Err() == nil {
				if err := c.request(inner, g.key()); err != nil {
					cancel(err)
					return
				}
				n.Add(1)
			}
		})
	}
	all.Wait()
	took := time.Since(start)
	if err := context.Cause(inner); err != nil {
		return err
	}
	after, err := f.gauge(ctx)
	if err != nil {
		return err
	}
	done := float64(n.Load())
	c.rates = append(c.rates, done/took.Seconds())
	cost := after.minus(before)
	c.statements, c.wal = float64(cost.statements)/done, float64(cost.wal)/done
	c.cpu = append(c.cpu, float64((cost.server+cost.own).Microseconds())/done)
	c.others = max(c.others, others(cost, took))
	return nil
}

// write writes the group's table.
func (g *keyGroup) write(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%s\trequests/s\tmin\tmax\tof by hand\tstatements\tWAL bytes\tCPU, µs\tCPU of others\t\n", g.title)
	for _, c := range g.list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.0f %%\t%.1f\t%.0f\t%.0f\t≤ %.0f %%\t\n", c.name, thousands(median(c.rates)), thousands(slices.Min(c.rates)),
			thousands(slices.Max(c.rates)), 100*median(ratios(c.rates, g.list[0].rates)), c.statements, c.wal, median(c.cpu), 100*c.others)
	}
	_ = w.Flush()
	fmt.Fprintln(out)
}

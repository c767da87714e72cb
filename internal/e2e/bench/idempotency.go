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
	mixGoal    = 85
)

// prepareIdempotency defines the flags of idempotency.
func prepareIdempotency(flags *flag.FlagSet) task {
	turn := flags.Duration("turn", 300*time.Millisecond, "duration of a turn; the machine's speed changes within seconds, so many short turns are more accurate than a few long ones")
	rounds := flags.Int("rounds", 50, "number of turns of every contender")
	connections := flags.Int("connections", 8, "number of concurrent requests")
	only := flags.String("only", "", "part of the titles of the tables to run, such as repeat; empty: all")
	answers := flags.String("answers", "10k", "number of stored answers that repeats request at random")
	mix := flags.String("mix", "5,20,30,50", "percentages of repeats among the requests of a mix; empty: no mixes")
	out := defineOutput(flags)
	return task{
		databases: func() ([]string, error) {
			_, err := parseMixes(*mix)
			if err == nil {
				_, err = parseSize(*answers)
			}
			return []string{"postgres"}, err
		},
		run: func(ctx context.Context, w, progress io.Writer) error {
			n, err := parseSize(*answers)
			if err != nil {
				return err
			}
			mixes, err := parseMixes(*mix)
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
			race := keyRace{turn: *turn, rounds: *rounds, connections: *connections, answers: n, mixes: mixes, only: *only}
			if err := s.idempotency(ctx, race, w, progress); err != nil {
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
	mixes                        []int // percentages of repeats
	only                         string
}

// keyContender handles one request in its own way.
type keyContender struct {
	name    string
	request func(ctx context.Context, key string) error
	floor   int // the index of the floor of this contender in its group

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
	fmt.Fprintf(out, "goals: %d %% of by hand for first runs, %d %% for repeats, %d %% for mixes\n", firstGoal, repeatGoal, mixGoal)
	fmt.Fprintf(out, "of by hand: median of the ratios of the rounds, and its 95 %% interval\n\n")
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
	stored := func() string { return answeredKey + strconv.Itoa(1+rand.IntN(race.answers)) }
	do, doTx := f.waybillKeys(keys)
	empty := func(ctx context.Context) error {
		return f.exec(ctx, `TRUNCATE orders, hand_keys, waybill_idempotency`)
	}
	groups := []keyGroup{
		{title: "first run", key: fresh, prepare: empty, list: []*keyContender{
			{name: "by hand: insert, the order's transaction, update", request: f.byHand},
			{name: "waybill, Do", request: do},
		}},
		{title: "first run, one transaction", key: fresh, prepare: empty, list: []*keyContender{
			{name: "by hand: BEGIN, insert, order, update, COMMIT", request: f.byHandTx},
			{name: "waybill, DoTx", request: doTx},
		}},
		{title: "repeat", key: stored, prepare: f.answers(keys, race.answers), list: []*keyContender{
			{name: "by hand: SELECT by primary key", request: f.readByHand},
			{name: "waybill, Do", request: do},
			{name: "waybill, DoTx", request: doTx},
		}},
	}
	for _, percent := range race.mixes {
		groups = append(groups, keyGroup{
			title: fmt.Sprintf("mix, %d %% repeats", percent), prepare: f.answers(keys, race.answers),
			key: func() string {
				if rand.IntN(100) < percent {
					return stored()
				}
				return fresh()
			},
			list: []*keyContender{
				{name: "by hand: one transaction, SELECT after a conflict", request: f.mixByHandTx},
				{name: "waybill, DoTx", request: doTx},
				{name: "by hand: a committed insert, SELECT after a conflict", request: f.mixByHand, floor: 2},
				{name: "waybill, Do", request: do, floor: 2},
			},
		})
	}
	return groups
}

// answeredKey begins the keys that have an answer before the first turn.
const answeredKey = "answered-"

// waybillKeys returns the requests of Do and DoTx. They fail if a key with an
// answer runs, or if a new key does not.
func (f *field) waybillKeys(keys *idempotency.Keys[pgx.Tx]) (do, doTx func(ctx context.Context, key string) error) {
	request := func(key string) idempotency.Request {
		return idempotency.Request{TenantID: keyTenant, Operation: keyOperation, Key: key, Hash: keyHash}
	}
	ordered := func(ctx context.Context) (placed, error) {
		return made, pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error { return order(ctx, tx) })
	}
	orderedTx := func(ctx context.Context, tx pgx.Tx) (placed, error) { return made, order(ctx, tx) }
	check := func(key string, res idempotency.Result[placed], err error) error {
		if err == nil && (res.Replayed != strings.HasPrefix(key, answeredKey) || res.Value != made) {
			err = errNotOurs
		}
		return err
	}
	do = func(ctx context.Context, key string) error {
		res, err := idempotency.Do(ctx, keys, request(key), ordered)
		return check(key, res, err)
	}
	doTx = func(ctx context.Context, key string) error {
		res, err := idempotency.DoTx(ctx, keys, request(key), orderedTx)
		return check(key, res, err)
	}
	return do, doTx
}

// parseMixes parses comma-separated percentages of repeats.
func parseMixes(text string) ([]int, error) {
	if text == "" {
		return nil, nil
	}
	var out []int
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 1 || n > 99 {
			return nil, fmt.Errorf("-mix: %q is not a percentage from 1 to 99", part)
		}
		out = append(out, n)
	}
	return out, nil
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%.1f\t%.0f\t%.0f\t≤ %.0f %%\t\n", c.name, thousands(median(c.rates)), thousands(slices.Min(c.rates)),
			thousands(slices.Max(c.rates)), percents(ratios(c.rates, g.list[c.floor].rates)), c.statements, c.wal, median(c.cpu), 100*c.others)
	}
	_ = w.Flush()
	fmt.Fprintln(out)
}

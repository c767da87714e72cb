package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime/pprof"
	"slices"
	"strings"
	"time"
)

// role is the role of a contender in a table or a plot.
type role int

const (
	roleFloor role = iota // the same work by hand
	roleOwn               // Waybill
	rolePeer              // another library
)

// What happens to delivered events. Contenders are compared with the floor that
// does the same.
const (
	dropped = "delivered events are deleted"
	kept    = "delivered events are kept"
)

// drainer is one way to drain a backlog.
type drainer struct {
	name  string
	group string
	role  role
	// yardstick marks the floor that the others of the group are compared with.
	yardstick bool
	// paced means that waiting sets the pace, and not work: the rate is the
	// same from the first second to the last, so a turn may be cut short. Other
	// turns must not: the cost of their statements may depend on the number of
	// events left.
	paced bool
	// interval is the pause of a paced contender between two batches, if it is
	// longer than a turn.
	interval time.Duration
	// slow means that the contender is only of interest where handling takes
	// time.
	slow bool
	// open creates fresh tables.
	open func(ctx context.Context) (*stage, error)
}

// stage is fresh tables for one turn of one contender.
type stage struct {
	// load writes events 0 to n-1, in that order.
	load func(ctx context.Context, n int) error
	// calm is called after load.
	calm func(ctx context.Context) error
	// drain passes every event to l.handle. It returns when all events were
	// handled and the contender has recorded that, or when ctx ends; then with
	// the cause. It calls l.stop at that moment, before it cleans up.
	drain func(ctx context.Context, l *ledger) error
	// left counts the pending events: after a drain, 0.
	left  func(ctx context.Context) (int, error)
	gauge func(ctx context.Context) (gauge, error)
	// statements, if not nil, lists the statements sent since calm.
	statements func(out io.Writer)
	close      func()
}

// gauge holds counters that only grow.
type gauge struct {
	statements  int64
	wal         int64
	server, own time.Duration // CPU time
	machine     time.Duration // CPU time of all processes
}

// minus returns the difference to an earlier gauge.
func (g gauge) minus(before gauge) gauge {
	return gauge{
		statements: g.statements - before.statements, wal: g.wal - before.wal,
		server: g.server - before.server, own: g.own - before.own, machine: g.machine - before.machine,
	}
}

// turn is the result of one turn.
type turn struct {
	events   int
	took     time.Duration
	first    time.Duration // until the first event was handled
	cost     gauge
	rss      int64
	cut      bool
	stalled  bool
	twice    int64
	inverted int64
	others   float64 // the share of the machine that other processes used
}

func (t turn) rate() float64 { return float64(t.events) / t.took.Seconds() }

// drainPlan is one table: contenders of one size that take turns.
type drainPlan struct {
	title    string
	size     int
	pause    time.Duration // the time to handle an event
	rounds   int
	limit    time.Duration
	drainers []drainer
	// beside, if not nil, is started before the events are loaded and stopped
	// after the turn.
	beside func(ctx context.Context) (end func(), err error)
}

var (
	errLimit   = errors.New("the time limit of the turn is reached")
	errStalled = errors.New("no progress")
)

// turn lets one contender drain fresh tables once.
func (p drainPlan) turn(ctx context.Context, d drainer, progress io.Writer) (turn, error) {
	s, err := d.open(ctx)
	if err != nil {
		return turn{}, fmt.Errorf("open: %w", err)
	}
	defer s.close()
	if p.beside != nil {
		end, err := p.beside(ctx)
		if err != nil {
			return turn{}, err
		}
		defer end()
	}
	if err := s.load(ctx, p.size); err != nil {
		return turn{}, fmt.Errorf("load: %w", err)
	}
	if err := s.calm(ctx); err != nil {
		return turn{}, err
	}
	forgetPeak()
	before, err := s.gauge(ctx)
	if err != nil {
		return turn{}, err
	}
	measured := time.Now()
	l := newLedger(p.size, p.pause)
	limited, cancel := p.bound(ctx, d, l)
	defer cancel()
	pprof.Do(limited, pprof.Labels("contender", d.name, "phase", "drain"), func(ctx context.Context) { err = s.drain(ctx, l) })
	t := turn{
		took: l.took(), first: time.Duration(l.first.Load()), events: int(l.count.Load()),
		rss: peakRSS(), twice: l.twice.Load(), inverted: l.inverted.Load(),
	}
	if err != nil {
		cause := context.Cause(limited)
		t.stalled = errors.Is(cause, errStalled) && t.events < p.size
		t.cut = t.stalled || errors.Is(cause, errLimit)
		if !t.cut {
			return turn{}, err
		}
		t.took = max(t.took, d.interval)
	}
	if s.statements != nil {
		s.statements(progress)
	}
	after, err := s.gauge(ctx)
	if err != nil {
		return turn{}, err
	}
	t.cost = after.minus(before)
	t.others = others(t.cost, time.Since(measured))
	if t.cut {
		return t, nil
	}
	if left, err := s.left(ctx); err != nil || left != 0 {
		return turn{}, fmt.Errorf("%d events left after the drain (%w)", left, err)
	}
	return t, nil
}

// bound returns the context of a turn. It ends early if waiting sets the pace,
// and if there is no progress.
func (p drainPlan) bound(ctx context.Context, d drainer, l *ledger) (context.Context, func()) {
	if p.limit <= 0 {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		const looks = 20
		tick := time.NewTicker(p.limit / looks)
		defer tick.Stop()
		seen, since := int64(0), 0
		for total := 1; ; total++ {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			if since++; l.count.Load() != seen {
				seen, since = l.count.Load(), 0
			}
			switch {
			case total >= looks && (d.paced || p.pause > 0):
				cancel(errLimit)
			case since >= looks && d.role != roleFloor:
				// a floor that hangs is a bug here
				cancel(errStalled)
			}
		}
	}()
	return ctx, func() {
		close(done)
		cancel(nil)
	}
}

// run lets every contender have its turns. A contender with a long turn has no
// further one: its result is accurate enough.
func (p drainPlan) run(ctx context.Context, progress io.Writer) ([][]turn, error) {
	turns := make([][]turn, len(p.drainers))
	for round := range p.rounds {
		for i := range p.drainers {
			at := (i + round) % len(p.drainers) // no contender is always first
			d := p.drainers[at]
			if len(turns[at]) > 0 && d.role == rolePeer && p.limit > 0 && (turns[at][0].cut || turns[at][0].took >= 2*p.limit) {
				continue
			}
			t, err := p.turn(ctx, d, progress)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", p.title, d.name, err)
			}
			turns[at] = append(turns[at], t)
			more := ""
			switch {
			case t.stalled:
				more = " (stopped: it stalled)"
			case t.cut:
				more = fmt.Sprintf(" (stopped after %s)", p.limit)
			}
			fmt.Fprintf(progress, "bench: %s, round %d of %d: %s, %s: %s events/s%s\n",
				p.title, round+1, p.rounds, d.name, d.group, rate(t.rate()), more)
		}
	}
	return turns, nil
}

// drainFlags are the flags of drain.
type drainFlags struct {
	database, sizes, sinks, history, only *string
	rounds                                *int
	limit                                 *time.Duration
	held, blocked, peers, statements      *bool
	floors                                *bool
	output                                output
}

// prepareDrain defines the flags of drain.
func prepareDrain(flags *flag.FlagSet) task {
	f := drainFlags{
		database:   flags.String("db", "postgres", "database: postgres, mariadb, mysql or sqlite; the peers run on postgres only"),
		sizes:      flags.String("sizes", "100k", "comma-separated sizes of the backlog: 10k,100k,1m"),
		sinks:      flags.String("sinks", "noop", "comma-separated handling times of an event: noop, 1ms, or any duration"),
		history:    flags.String("history", "off,on", "comma-separated retention modes of delivered events: off, on"),
		only:       flags.String("only", "", "comma-separated parts of contenders' names to run (their floor always runs)"),
		rounds:     flags.Int("rounds", 0, "number of turns of every contender; 0: 3, and 1 from a million events on"),
		limit:      flags.Duration("limit", 3*time.Second, "duration after which a turn is stopped if waiting sets its pace or if it makes no progress; a peer with a turn of twice this duration has only one turn; 0: never"),
		held:       flags.Bool("held-snapshot", false, "drain three times: alone, beside a connection with an old snapshot, and beside one that also has an xid"),
		floors:     flags.Bool("floors", false, "more floors: 1000 events per batch, synchronous commit, and (history on) copy and delete in one statement"),
		blocked:    flags.Bool("blocked", false, "instead: drain with and without one failing aggregate of 100,000 events (postgres)"),
		statements: flags.Bool("statements", false, "list of the statements of every turn, with their times, on the standard error (postgres; small overhead)"),
		peers:      flags.Bool("peers", true, "include River, watermill-sql and oagudo/outbox"),
	}
	f.output = defineOutput(flags)
	return task{
		databases: func() ([]string, error) { return oneDatabase(*f.database) },
		run:       func(ctx context.Context, out, progress io.Writer) error { return f.run(ctx, out, progress) },
	}
}

// parseSink parses the time to handle an event.
func parseSink(text string) (time.Duration, error) {
	if text == "noop" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a sink; use noop or 1ms", text)
	}
	return d, nil
}

func (f drainFlags) run(ctx context.Context, out, progress io.Writer) error {
	sizes, err := parseSizes(*f.sizes)
	if err != nil {
		return err
	}
	stop, err := f.output.profile()
	if err != nil {
		return err
	}
	defer stop()
	server, err := openServer(ctx, *f.database)
	if err != nil {
		return err
	}
	defer server.close()
	if server.pg != nil {
		server.pg.detailed = *f.statements
	}
	if *f.blocked {
		return f.runBlocked(ctx, server, sizes, out, progress)
	}
	drainers := f.choose(server.drainers(*f.peers))
	if len(drainers) == 0 {
		return fmt.Errorf("-only %q and -history %q leave no contender", *f.only, *f.history)
	}
	for _, n := range sizes {
		for text := range strings.SplitSeq(*f.sinks, ",") {
			pause, err := parseSink(text)
			if err != nil {
				return err
			}
			for _, b := range server.besides(*f.held) {
				p := drainPlan{
					title: fmt.Sprintf("%s, %s events, %s sink%s", server.name, size(n), text, b.title),
					size:  n, pause: pause, rounds: f.roundsFor(n), limit: *f.limit, beside: b.start,
					drainers: slices.DeleteFunc(slices.Clone(drainers), func(d drainer) bool { return d.slow && pause == 0 }),
				}
				if err := f.table(ctx, server, p, out, progress); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// table runs one plan, and writes its table and its plot.
func (f drainFlags) table(ctx context.Context, server *drainServer, p drainPlan, out, progress io.Writer) error {
	turns, err := p.run(ctx, progress)
	if err != nil {
		return err
	}
	figures := summarize(p.drainers, turns)
	writeDrainTable(out, p, server.version, figures)
	return f.output.plot(progress, "drain-"+p.title, drainChart(p, server, figures))
}

func (f drainFlags) roundsFor(n int) int {
	switch {
	case *f.rounds > 0:
		return *f.rounds
	case n >= 1_000_000:
		return 1
	}
	return 3
}

// choose returns the contenders that the flags select.
func (f drainFlags) choose(all []drainer) []drainer {
	groups := map[string]bool{dropped: strings.Contains(*f.history, "off"), kept: strings.Contains(*f.history, "on")}
	wanted := func(d drainer) bool {
		return *f.only == "" || slices.ContainsFunc(strings.Split(*f.only, ","), func(part string) bool { return strings.Contains(d.name, part) })
	}
	var out []drainer
	for _, d := range all {
		if d.role == roleFloor && !d.yardstick && !*f.floors {
			continue
		}
		// A floor alone is not a comparison.
		if groups[d.group] && (wanted(d) || d.yardstick && slices.ContainsFunc(all, func(o drainer) bool { return o.group == d.group && wanted(o) })) {
			out = append(out, d)
		}
	}
	return out
}

// beside is the load during a drain.
type beside struct {
	title string
	start func(ctx context.Context) (end func(), err error)
}

// drainServer is a database with its contenders.
type drainServer struct {
	name, version string
	drainers      func(peers bool) []drainer
	hold          func(ctx context.Context, xid bool) (end func(), err error)
	pg            *pgServer // or nil
	close         func()
}

func (s *drainServer) besides(held bool) []beside {
	alone := []beside{{}}
	if !held || s.hold == nil {
		return alone
	}
	with := func(xid bool) func(ctx context.Context) (func(), error) {
		return func(ctx context.Context) (func(), error) { return s.hold(ctx, xid) }
	}
	return append(alone, beside{", beside an old snapshot", with(false)}, beside{", beside an old transaction with an xid", with(true)})
}

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
	"sync"
	"sync/atomic"
	"time"
)

// line is producers and a relay on fresh tables.
type line struct {
	// commit runs one transaction: the business statement, and event n.
	commit func(ctx context.Context, n int) error
	// start starts the relay, which delivers payloads; stop ends it. nil: there
	// is no relay.
	start func(ctx context.Context, handle func(payload []byte)) (stop func() error, err error)
	gauge func(ctx context.Context) (gauge, error)
	close func()
}

// runner is one way to run producers and relay.
type runner struct {
	name string
	role role
	// ceiling marks the contender that the others' commits are compared with.
	ceiling bool
	open    func(ctx context.Context) (*line, error)
}

// stamps holds the commit and handling times of events, by their number.
type stamps struct {
	start              time.Time
	committed, handled []atomic.Int64 // nanoseconds after start; 0: not yet
	twice, total       atomic.Int64
}

func newStamps(capacity int) *stamps {
	return &stamps{start: time.Now(), committed: make([]atomic.Int64, capacity), handled: make([]atomic.Int64, capacity)}
}

func (s *stamps) now() int64 { return max(int64(time.Since(s.start)), 1) }

// handle is the handler of every contender.
func (s *stamps) handle(payload []byte) {
	n := numberOf(payload)
	if n < 0 || n >= len(s.handled) {
		return
	}
	if !s.handled[n].CompareAndSwap(0, s.now()) {
		s.twice.Add(1)
		return
	}
	s.total.Add(1)
}

// latencies returns, sorted, the times from the return of a commit until the
// call of the handler, for events from (inclusive) to to. An event that was
// handled before its commit returned has latency 0; an event that was not
// handled has at least the time until end, and is counted in late.
func (s *stamps) latencies(from, to int, end int64) (sorted []time.Duration, late int) {
	for n := from; n < to; n++ {
		committed, handled := s.committed[n].Load(), s.handled[n].Load()
		if committed == 0 {
			continue
		}
		if handled == 0 {
			handled = end
			late++
		}
		sorted = append(sorted, time.Duration(max(handled-committed, 0)))
	}
	slices.Sort(sorted)
	return sorted, late
}

// steadyPlan is one table.
type steadyPlan struct {
	title     string
	producers int
	rate      int // events per second; 0: as fast as they can
	turn      time.Duration
	rounds    int
	runners   []runner
}

// steadyTurn is the result of one turn.
type steadyTurn struct {
	commits       float64 // per second
	delivered     float64 // per second, while producers were running
	p50, p99, max time.Duration
	late, events  int
	twice         int64
	server, own   time.Duration // CPU per event
	statements    float64       // per event
	// the share of the machine that other processes used
	others float64
}

// A turn begins with a warm-up that does not count, and ends with a time in
// which the relay may catch up. Turns are short, and there are many: a
// machine's speed changes within seconds, and contenders are compared with
// their neighbors in time.
const (
	warmUp    = 400 * time.Millisecond
	graceTime = 3 * time.Second
	maxPerSec = 40_000
	lookAgain = 2 * time.Millisecond
	// times as many producers at a fixed rate, so that a slow commit does not
	// delay the next
	openWorkers = 4
)

// take lets one contender take its turn.
func (p steadyPlan) take(ctx context.Context, l *line) (steadyTurn, error) {
	s := newStamps(int(maxPerSec * (p.turn + 2*warmUp).Seconds()))
	stop := func() error { return nil }
	if l.start != nil {
		var err error
		if stop, err = l.start(ctx, s.handle); err != nil {
			return steadyTurn{}, err
		}
	}
	t, err := p.produce(ctx, l, s)
	return t, errors.Join(err, stop())
}

// produce runs the producers, and measures.
func (p steadyPlan) produce(ctx context.Context, l *line, s *stamps) (steadyTurn, error) {
	var next, done atomic.Int64
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ending := make(chan struct{})
	workers := p.producers
	if p.rate > 0 {
		workers *= openWorkers
	}
	var wg sync.WaitGroup
	begun := time.Now()
	for range workers {
		wg.Go(func() {
			for goOn(ctx, ending) {
				n := int(next.Add(1) - 1)
				if n >= len(s.committed) {
					cancel(errors.New("more events than reserved"))
					return
				}
				if p.rate > 0 {
					time.Sleep(time.Until(begun.Add(time.Duration(n) * time.Second / time.Duration(p.rate))))
				}
				if err := l.commit(ctx, n); err != nil {
					cancel(err)
					return
				}
				s.committed[n].Store(s.now())
				done.Add(1)
			}
		})
	}
	t, from, to, err := p.measure(ctx, l, s, &next, &done)
	close(ending)
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil {
		err = cause // the others follow from it
	}
	if err != nil || l.start == nil {
		return t, err
	}
	end := time.Now().Add(graceTime)
	for s.total.Load() < done.Load() && time.Now().Before(end) {
		time.Sleep(lookAgain)
	}
	sorted, late := s.latencies(from, to, s.now())
	t.events, t.late, t.twice = len(sorted), late, s.twice.Load()
	if len(sorted) > 0 {
		t.p50, t.p99, t.max = quantile(sorted, 0.5), quantile(sorted, 0.99), sorted[len(sorted)-1]
	}
	return t, nil
}

// goOn reports whether a producer should continue.
func goOn(ctx context.Context, ending <-chan struct{}) bool {
	select {
	case <-ending:
		return false
	case <-ctx.Done():
		return false
	default:
		return true
	}
}

// measure waits for the warm-up and then for the turn, and returns the range of
// events in between.
func (p steadyPlan) measure(ctx context.Context, l *line, s *stamps, next, done *atomic.Int64) (t steadyTurn, from, to int, err error) {
	pause := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	pause(warmUp)
	before, err := l.gauge(ctx)
	if err != nil {
		return t, 0, 0, err
	}
	measured := time.Now()
	from = int(next.Load())
	began, doneBefore, handledBefore := time.Now(), done.Load(), s.total.Load()
	pause(p.turn)
	took := time.Since(began).Seconds()
	commits, handled := done.Load()-doneBefore, s.total.Load()-handledBefore
	to = int(next.Load())
	after, err := l.gauge(ctx)
	if err != nil {
		return t, 0, 0, err
	}
	t.commits, t.delivered = float64(commits)/took, float64(handled)/took
	cost := after.minus(before)
	t.others = others(cost, time.Since(measured))
	if commits > 0 {
		t.statements = float64(cost.statements) / float64(commits)
		t.server, t.own = cost.server/time.Duration(commits), cost.own/time.Duration(commits)
	}
	return t, from, to, nil
}

// run lets every contender have its turns. A contender keeps its tables from
// one turn to the next; peers, and contenders with leftover events, get new
// ones.
func (p steadyPlan) run(ctx context.Context, progress io.Writer) ([][]steadyTurn, error) {
	turns, lines := make([][]steadyTurn, len(p.runners)), make([]*line, len(p.runners))
	leave := func(at int) {
		if lines[at] != nil {
			lines[at].close()
		}
		lines[at] = nil
	}
	defer func() {
		for at := range lines {
			leave(at)
		}
	}()
	for round := range p.rounds {
		for i := range p.runners {
			at := (i + round) % len(p.runners) // no contender is always first
			r := p.runners[at]
			var t steadyTurn
			var err error
			if lines[at] == nil {
				if lines[at], err = r.open(ctx); err != nil {
					return nil, fmt.Errorf("%s, %s: open: %w", p.title, r.name, err)
				}
			}
			pprof.Do(ctx, pprof.Labels("contender", r.name, "phase", "steady"), func(ctx context.Context) { t, err = p.take(ctx, lines[at]) })
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", p.title, r.name, err)
			}
			if r.role == rolePeer || t.late > 0 {
				leave(at)
			}
			turns[at] = append(turns[at], t)
			fmt.Fprintf(progress, "bench: %s, round %d of %d: %s: %s commits/s, p50 %s, p99 %s\n",
				p.title, round+1, p.rounds, r.name, rate(t.commits), latency(t.p50), latency(t.p99))
		}
	}
	return turns, nil
}

// prepareSteady defines the flags of steady.
func prepareSteady(flags *flag.FlagSet) task {
	producers := flags.Int("producers", 8, "number of producers, each on a connection of its own")
	turn := flags.Duration("turn", 700*time.Millisecond, "duration of a turn, after the warm-up")
	perSecond := flags.Int("rate", 2000, "events per second of the second table (latency); 0: no such table")
	closed := flags.Bool("closed", true, "include the first table: producers at full speed")
	rounds := flags.Int("rounds", 5, "number of turns of every contender; with -peers=false, 25 are quick and steadier")
	only := flags.String("only", "", "comma-separated parts of contenders' names, or =NAME, to run (the ceiling always runs)")
	peers := flags.Bool("peers", true, "include River, watermill-sql and oagudo/outbox")
	output := defineOutput(flags)
	return task{
		databases: func() ([]string, error) { return []string{"postgres"}, nil },
		run: func(ctx context.Context, out, progress io.Writer) error {
			stop, err := output.profile()
			if err != nil {
				return err
			}
			defer stop()
			s, err := connectPostgres(ctx)
			if err != nil {
				return err
			}
			defer s.close()
			all := slices.DeleteFunc(s.apart(s.runners(*peers)), func(r runner) bool {
				return !r.ceiling && *only != "" && !slices.ContainsFunc(strings.Split(*only, ","), func(part string) bool { return strings.Contains(r.name, part) || part == "="+r.name })
			})
			plan := steadyPlan{producers: *producers, turn: *turn, rounds: *rounds}
			if *closed {
				plan.title, plan.runners = fmt.Sprintf("steady, %d producers flat out", *producers), all
				if err := plan.table(ctx, s, output, out, progress); err != nil {
					return err
				}
			}
			if *perSecond > 0 {
				plan.title, plan.rate = fmt.Sprintf("steady, %s events/s", thousands(float64(*perSecond))), *perSecond
				plan.runners = slices.DeleteFunc(slices.Clone(all), func(r runner) bool { return r.role == roleFloor })
				return plan.table(ctx, s, output, out, progress)
			}
			return nil
		},
	}
}

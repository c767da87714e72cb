package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/pgstore"
)

// takeover is the measurement of a take-over after kill -9.
type takeover struct {
	inFlight, events int
	lease            time.Duration
	victim           bool
}

// prepareTakeover defines the flags of takeover.
func prepareTakeover(flags *flag.FlagSet) task {
	var t takeover
	flags.IntVar(&t.inFlight, "in-flight", 500, "number of events in flight when the process is killed")
	flags.IntVar(&t.events, "events", 100_000, "number of events in the backlog")
	flags.DurationVar(&t.lease, "lease", 5*time.Second, "lease of the relays")
	flags.BoolVar(&t.victim, "victim", false, "run the process that is killed; the benchmark starts it")
	return task{
		databases: func() ([]string, error) {
			if t.inFlight < 2 || t.events < 2*t.inFlight || t.lease <= 0 {
				return nil, fmt.Errorf("-in-flight is at least 2, -events at least twice as many, and -lease is positive")
			}
			return []string{"postgres"}, nil
		},
		run: func(ctx context.Context, out, progress io.Writer) error {
			s, err := connectPostgres(ctx)
			if err != nil {
				return err
			}
			defer s.close()
			if t.victim {
				return t.die(ctx, s, out)
			}
			return t.measure(ctx, s, out, progress)
		},
	}
}

// hoarder is a sink whose calls never return.
type hoarder struct {
	events atomic.Int64
	want   int64
	full   chan struct{}
}

// Deliver implements [waybill.Sink].
func (h *hoarder) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	if n := h.events.Add(int64(len(batch))); n >= h.want && n-int64(len(batch)) < h.want {
		close(h.full)
	}
	<-ctx.Done()
	return make([]error, len(batch))
}

// die runs a relay whose deliveries never end, and says when enough of them are
// in flight.
func (t *takeover) die(ctx context.Context, s *pgServer, out io.Writer) error {
	pool, err := pgxpool.NewWithConfig(ctx, s.config.Copy())
	if err != nil {
		return err
	}
	defer pool.Close()
	db, err := pgstore.New(pool, pgstore.Config{})
	if err != nil {
		return err
	}
	h := &hoarder{want: int64(t.inFlight), full: make(chan struct{})}
	// Batches of two sizes would leave a few events short of the number.
	cfg := relay.Config{Lease: t.lease, Workers: 2, BatchSize: t.inFlight / 2, ColdQueue: 8 * t.inFlight}
	r, err := relay.New(testroles.Of[any](db.Driver().Relay), h, cfg)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	select {
	case <-h.full:
		fmt.Fprintln(out, h.events.Load())
	case err := <-ended:
		return err
	}
	return <-ended
}

// arrivals are the times of deliveries after the kill.
type arrivals struct {
	began time.Time
	at    []atomic.Int64 // by number of the delivery, in nanoseconds
	n     atomic.Int64
	all   chan struct{}
}

// Deliver implements [waybill.Sink].
func (a *arrivals) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	now := int64(time.Since(a.began))
	for range batch {
		n := a.n.Add(1)
		if n > int64(len(a.at)) {
			break // the end of a drain may have repeats
		}
		a.at[n-1].Store(now)
		if n == int64(len(a.at)) {
			close(a.all)
		}
	}
	return make([]error, len(batch))
}

// measure kills a process with events in flight, starts a relay at once, and
// reports when that relay is at full speed.
func (t *takeover) measure(ctx context.Context, s *pgServer, out, progress io.Writer) error {
	f, db, err := s.waybillField(ctx)
	if err != nil {
		return err
	}
	defer f.close()
	if err := loadEvents(ctx, db.Driver().Outbox, t.events); err != nil {
		return err
	}
	if err := f.calm(ctx); err != nil {
		return err
	}
	inFlight, err := t.kill(ctx)
	if err != nil {
		return err
	}
	a := &arrivals{began: time.Now(), at: make([]atomic.Int64, t.events), all: make(chan struct{})}
	fmt.Fprintf(progress, "bench: killed a process with %d events in flight\n", inFlight)
	r, err := relay.New(testroles.Of[any](db.Driver().Relay), a, relay.Config{Lease: t.lease})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(running) }()
	select {
	case <-a.all:
	case <-ctx.Done():
		return context.Cause(ctx)
	case err := <-ended:
		return fmt.Errorf("the relay ended early: %w", err)
	}
	stop()
	if err := <-ended; err != nil {
		return err
	}
	t.report(a, inFlight, s.version, out)
	return nil
}

// kill starts a process, and kills it when its deliveries are in flight.
func (t *takeover) kill(ctx context.Context) (inFlight int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, self, "takeover", "-victim", fmt.Sprint("-in-flight=", t.inFlight), fmt.Sprint("-lease=", t.lease)) //nolint:gosec // this program
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	_, scanErr := fmt.Fscan(bufio.NewReader(pipe), &inFlight)
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	return inFlight, scanErr
}

// slice is the time over which the speed is averaged.
const slice = 250 * time.Millisecond

// report writes when the deliveries came. Full speed is the first slice with at
// least 80 % of the median of all slices after the last suspect.
func (t *takeover) report(a *arrivals, inFlight int, version string, out io.Writer) {
	last := time.Duration(a.at[t.events-1].Load())
	counts := make([]int, last/slice+1)
	for i := range a.at {
		counts[time.Duration(a.at[i].Load())/slice]++
	}
	first, suspects := time.Duration(a.at[0].Load()), time.Duration(a.at[inFlight-1].Load())
	after := slices.Clone(counts[min(int(suspects/slice)+1, len(counts)-1):])
	slices.Sort(after)
	median := after[len(after)/2]
	full := suspects
	for i := int(first / slice); i < len(counts); i++ {
		if counts[i]*10 >= median*8 {
			full = time.Duration(i) * slice
			break
		}
	}
	fmt.Fprintf(out, "takeover: kill -9 with %d of %s events in flight, lease %s; %s; %s\n", inFlight, thousands(float64(t.events)), t.lease, version, machine())
	fmt.Fprintf(out, "  first delivery after %.1f s, the first %d events after %.1f s\n", first.Seconds(), inFlight, suspects.Seconds())
	fmt.Fprintf(out, "  full speed (%s events/s, the median of %s) after %.1f s: lease %+.1f s\n",
		thousands(float64(median)/slice.Seconds()), slice, full.Seconds(), (full - t.lease).Seconds())
}

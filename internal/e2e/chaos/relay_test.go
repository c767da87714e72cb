//go:build linux || darwin

package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/e2e/process/journal"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/pgstore"
)

// playRelay is a process with a relay and, so that the hot path is used too, a
// producer.
func playRelay(ctx context.Context, r role) error {
	notes, err := journal.Open(filepath.Join(r.Folder, journalFile), r.Name)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(filepath.Join(r.Folder, r.Name+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	pool, err := connect(ctx, r.Source, app(r.Name, os.Getpid()))
	if err != nil {
		return err
	}
	defer pool.Close()
	db, err := pgstore.New(pool, pgstore.Config{})
	if err != nil {
		return err
	}
	s := &sink{role: r, notes: notes, tries: make(map[string]int)}
	var to waybill.Sink = serial{s}
	if r.Name == "C" {
		to = ordered{s}
	}
	rel, err := relay.New(db, to, relay.Config{
		Lease: lease, Heartbeat: lease / 5, MaxAttempts: maxAttempts, BackoffBase: 20 * time.Millisecond, BackoffMax: 300 * time.Millisecond,
		PollInterval: 100 * time.Millisecond, SweepInterval: 200 * time.Millisecond, DrainTimeout: time.Second,
		BatchSize: 50, ColdQueue: 100, HotQueue: 100, PurgeInterval: -1,
		Logger: slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug})).With("pid", os.Getpid()),
	})
	if err != nil {
		return err
	}
	if r.Quiet {
		return rel.Run(ctx)
	}
	// The producer shares the relay's hub and has another application name: its
	// inserts are not settlements.
	cfg, err := pgx.ParseConfig(r.Source)
	if err != nil {
		return err
	}
	cfg.RuntimeParams["application_name"] = "producer"
	handle := stdlib.OpenDB(*cfg)
	defer handle.Close() //nolint:errcheck // the process ends
	p, err := newProducer(r, db.SQL(handle).Driver().Outbox, throughSQL())
	if err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.run(ctx, 0)
	}()
	err = rel.Run(ctx)
	if err == nil {
		<-done
	}
	return err
}

// sink records every delivery, and fails in all possible ways.
type sink struct {
	role
	notes *journal.Writer

	mu    sync.Mutex
	tries map[string]int // deliveries of an event to this process
}

// try returns the number of earlier deliveries of an event to this process.
func (s *sink) try(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries[name]++
	return s.tries[name]
}

// serial is a sink for one event at a time.
type serial struct{ *sink }

func (s serial) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return relay.SinkFunc(s.one).Deliver(ctx, batch)
}

// Serial implements [relay.SerialSink].
func (serial) Serial() {}

// ordered is a sink for several events of an aggregate at a time.
type ordered struct{ *sink }

func (s ordered) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	failed := make(map[string]bool)
	results := make([]error, len(batch))
	for i := range batch {
		aggregate := batch[i].AggregateID
		if aggregate != "" && failed[aggregate] {
			results[i] = errors.New("one before it has failed")
			continue
		}
		results[i] = relay.SinkFunc(s.one).Deliver(ctx, batch[i:i+1])[0]
		failed[aggregate] = results[i] != nil
	}
	return results
}

// StopsAtFailure implements [relay.OrderedSink].
func (ordered) StopsAtFailure() {}

// Destination implements [relay.DestinationSink].
func (s *sink) Destination(ev *waybill.Event) string { return ev.Topic }

// one delivers an event. The result depends on the seed, the event and the
// number of tries in this process, while the sink is not healthy.
func (s *sink) one(ctx context.Context, d waybill.Delivery) error {
	s.notes.Note(journal.Begin, d)
	name := d.AggregateID + "/" + string(d.Payload)
	if exists(filepath.Join(s.Folder, healthyFile)) {
		return s.end(d, journal.OK, nil)
	}
	if exists(s.downFile(d.Topic)) {
		return s.end(d, journal.Down, waybill.Unavailable(errors.New("the destination is down")))
	}
	switch fate := roll(s.Seed, "fate", name); {
	case fate < 0.0001:
		return s.die(d)
	case fate < 0.002:
		return s.end(d, journal.Failed, errors.New("as always"))
	}
	try := s.try(name)
	long := roll(s.Seed, "long", name, s.Name, s.Life, try)
	switch u := roll(s.Seed, "now", name, s.Name, s.Life, try); {
	case u < 0.0005:
		return s.die(d)
	case u < 0.05:
		return s.end(d, journal.Failed, errors.New("no luck"))
	case u < 0.06:
		return s.end(d, journal.Failed, waybill.RetryAfter(50*time.Millisecond, errors.New("too many")))
	case u < 0.065:
		return s.end(d, journal.Refused, waybill.Permanent(errors.New("never")))
	case u < 0.07:
		return s.end(d, journal.Down, waybill.Unavailable(errors.New("not there")))
	case u < 0.08:
		return s.end(d, journal.Later, waybill.Later(30*time.Millisecond, errors.New("not now")))
	case u < 0.09:
		s.notes.Note(journal.Failed, d)
		panic("at the sink")
	case u < 0.35:
		return s.slow(ctx, d, time.Duration(long*float64(100*time.Millisecond)))
	case u < 0.353:
		return s.slow(ctx, d, time.Duration(long*float64(2*lease)))
	case u < 0.357: // ignores its context
		return s.slow(context.WithoutCancel(ctx), d, time.Duration(long*float64(lease)))
	}
	return s.end(d, journal.OK, nil)
}

func (s *sink) end(d waybill.Delivery, what string, err error) error {
	s.notes.Note(what, d)
	return err
}

// slow delays, and succeeds unless the context ends.
func (s *sink) slow(ctx context.Context, d waybill.Delivery, long time.Duration) error {
	t := time.NewTimer(long)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return s.end(d, journal.Ended, context.Cause(ctx))
	case <-t.C:
		return s.end(d, journal.OK, nil)
	}
}

// die kills the process.
func (s *sink) die(d waybill.Delivery) error {
	s.notes.Note(journal.Kill, d)
	suicide()
	return nil
}

// suicide does not return.
func suicide() {
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		panic(fmt.Sprintf("kill: %v", err))
	}
	select {}
}

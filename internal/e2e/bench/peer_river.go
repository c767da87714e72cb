package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// River is a job queue: jobs are claimed with SKIP LOCKED, one worker each, and
// completed rows are kept for a day.

// riverArgs is an event as River's arguments, which are JSON: the same bytes as
// every contender's payload.
type riverArgs struct {
	N    string `json:"n"`
	Note string `json:"note"`
}

// Kind implements river.JobArgs.
func (riverArgs) Kind() string { return "order_placed" }

func newRiverArgs(n int) riverArgs {
	p := numbered(n)
	return riverArgs{N: string(p[6 : 6+digits]), Note: string(p[6+digits+len(`","note":"`) : len(p)-2])}
}

// riverWorker is River's handler.
type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	handle func(payload []byte)
}

// Work implements river.Worker.
func (w *riverWorker) Work(_ context.Context, job *river.Job[riverArgs]) error {
	w.handle([]byte(job.Args.N))
	return nil
}

// riverSettings configures a River client.
type riverSettings struct {
	name              string
	workers           int
	cooldown, polling time.Duration // 0: River's default
}

// riverUsual has River's own intervals, and the number of workers in its
// documentation's first example; riverTuned is the fastest configuration.
var (
	riverUsual = riverSettings{name: "river, default", workers: 100}
	riverTuned = riverSettings{name: "river, tuned", workers: 2000, cooldown: 2 * time.Millisecond, polling: 50 * time.Millisecond}
)

// client returns a working client or, without a handler, one that only inserts.
func (r riverSettings) client(f *field, handle func(payload []byte)) (*river.Client[pgx.Tx], error) {
	cfg := &river.Config{Logger: slog.New(slog.DiscardHandler)}
	if handle != nil {
		cfg.Workers = river.NewWorkers()
		river.AddWorker(cfg.Workers, &riverWorker{handle: handle})
		cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: r.workers}}
		cfg.FetchCooldown, cfg.FetchPollInterval = r.cooldown, r.polling
	}
	return river.NewClient(riverpgxv5.New(f.pool), cfg)
}

// riverField is a fresh schema with River's tables.
func (s *pgServer) riverField(ctx context.Context) (*field, error) {
	f, err := s.fresh(ctx)
	if err != nil {
		return nil, err
	}
	m, err := rivermigrate.New(riverpgxv5.New(f.pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return f, err
}

func (s *pgServer) riverDrainers() []drainer {
	var list []drainer
	for _, r := range []riverSettings{riverUsual, riverTuned} {
		list = append(list, drainer{name: r.name, group: kept, role: rolePeer, paced: r.cooldown == 0, open: func(ctx context.Context) (*stage, error) {
			f, err := s.riverField(ctx)
			if err != nil {
				return nil, err
			}
			return &stage{
				load: func(ctx context.Context, n int) error { return riverLoad(ctx, f, n) },
				calm: f.calm, gauge: f.gauge, close: f.close, statements: f.statements(),
				left:  f.counting(`SELECT count(*) FROM river_job WHERE state <> 'completed'`),
				drain: func(ctx context.Context, l *ledger) error { return r.drain(ctx, f, l) },
			}, nil
		}})
	}
	return list
}

func riverLoad(ctx context.Context, f *field, n int) error {
	c, err := riverUsual.client(f, nil)
	if err != nil {
		return err
	}
	for from := 0; from < n; from += loadBatch {
		var batch []river.InsertManyParams
		for i := from; i < min(from+loadBatch, n); i++ {
			batch = append(batch, river.InsertManyParams{Args: newRiverArgs(i)})
		}
		if _, err := c.InsertManyFast(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

func (r riverSettings) drain(ctx context.Context, f *field, l *ledger) error {
	c, err := r.client(f, l.handle)
	if err != nil {
		return err
	}
	l.start = time.Now()
	// Not ctx: its end would stop the client with jobs in flight.
	if err := c.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	err = allHandled(ctx, l)
	if err == nil { // the completer writes in batches, after the handlers
		err = f.until(ctx, `SELECT NOT EXISTS (SELECT FROM river_job WHERE state = 'running')`)
	}
	l.stop()
	if stopping := stopRiver(ctx, c); err == nil {
		err = stopping
	}
	return err
}

// stopRiver stops a client, gracefully unless that takes long.
func stopRiver(ctx context.Context, c *river.Client[pgx.Tx]) error {
	soft, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	if c.Stop(soft) == nil {
		return nil
	}
	hard, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	return c.StopAndCancel(hard)
}

// stopTime is how long a peer may take to stop.
const stopTime = 10 * time.Second

// allHandled waits until every event was handled.
func allHandled(ctx context.Context, l *ledger) error {
	select {
	case <-l.all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

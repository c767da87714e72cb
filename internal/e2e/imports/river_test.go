package imports_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/waybillhq/waybill"
)

// orderArgs are the arguments of River's jobs.
type orderArgs struct {
	kind  string
	Order string `json:"order_id"`
	N     int    `json:"n"`
}

// Kind implements river.JobArgs.
func (a orderArgs) Kind() string { return a.kind }

// placed is a kind with a worker, for a client that works.
type placed struct{ orderArgs }

func (placed) Kind() string { return "order_placed" }

// worker completes jobs, and fails those of order fail.
type worker struct {
	river.WorkerDefaults[placed]
	done chan string
}

func (w *worker) Work(_ context.Context, job *river.Job[placed]) error {
	w.done <- job.Args.Order
	if job.Args.Order == "fail" {
		return fmt.Errorf("the shop is closed")
	}
	return nil
}

// riverPlace is a database with River's tables.
type riverPlace struct {
	*place
	pool *pgxpool.Pool
}

func newRiver(t *testing.T) *riverPlace {
	t.Helper()
	p := postgres(t)
	pool, err := pgxpool.New(t.Context(), p.dsn)
	p.must(err)
	t.Cleanup(pool.Close)
	m, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	p.must(err)
	_, err = m.Migrate(t.Context(), rivermigrate.DirectionUp, nil)
	p.must(err)
	return &riverPlace{p, pool}
}

// client returns a client that only inserts, or works if there is a worker.
func (p *riverPlace) client(w *worker) *river.Client[pgx.Tx] {
	p.Helper()
	cfg := &river.Config{Logger: slog.New(slog.DiscardHandler)}
	if w != nil {
		cfg.Workers = river.NewWorkers()
		river.AddWorker(cfg.Workers, w)
		cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}}
		cfg.FetchPollInterval = 100 * time.Millisecond
	}
	c, err := river.NewClient(riverpgxv5.New(p.pool), cfg)
	p.must(err)
	return c
}

// work runs River until it has worked on n jobs, and stops it.
func (p *riverPlace) work(n int) []string {
	p.Helper()
	w := &worker{done: make(chan string, 100)}
	c := p.client(w)
	p.must(c.Start(p.Context()))
	var got []string
	for len(got) < n {
		got = append(got, <-w.done)
	}
	p.must(c.Stop(p.Context()))
	return got
}

// TestRiver: the guide "From River". River itself has completed some jobs and
// failed one; others are scheduled, of another kind or in another queue.
func TestRiver(t *testing.T) {
	p := newRiver(t)
	c := p.client(nil)
	insert := func(args river.JobArgs, opts *river.InsertOpts) int64 {
		t.Helper()
		r, err := c.Insert(t.Context(), args, opts)
		p.must(err)
		return r.Job.ID
	}
	insert(placed{orderArgs{Order: "done", N: 1}}, nil)
	insert(placed{orderArgs{Order: "fail", N: 2}}, nil)
	if got := strings.Join(p.work(2), ","); got != "done,fail" {
		t.Fatalf("River worked on %s", got)
	}
	same(p.place, "jobs that wait for a retry", p.number("SELECT count(*) FROM river_job WHERE state IN ('retryable', 'available') AND attempt = 1"), 1)
	p.exec("UPDATE river_job SET scheduled_at = now() + interval '1 hour' WHERE attempt = 1 AND state <> 'completed'") // it was in a second
	later := time.Now().Add(48 * time.Hour).UTC().Truncate(time.Microsecond)
	for n := 3; n < 9; n++ {
		insert(orderArgs{kind: []string{"order_placed", "order_paid"}[n%2], Order: fmt.Sprintf("o-%d", n%3), N: n}, nil)
	}
	insert(orderArgs{kind: "order_placed", Order: "o-9", N: 9}, &river.InsertOpts{
		ScheduledAt: later, Queue: "slow", Priority: 3, Tags: []string{"gift", "express"}, Metadata: []byte(`{"trace": "t-9", "nested": {"a": 1}}`),
	})
	insert(orderArgs{kind: "send_invoice", Order: "o-1", N: 10}, nil)

	same(p.place, "the output", p.shell(p.blocks("sh river")[0]), "would import: 8\nimported: 8\nmarked: 8\n")
	same(p.place, "jobs that wait", p.number("SELECT count(*) FROM river_job WHERE state = 'available' AND kind = 'send_invoice'"), 1)
	same(p.place, "canceled jobs", p.number("SELECT count(*) FROM river_job WHERE state = 'cancelled' AND finalized_at IS NOT NULL AND metadata ? 'imported_by'"), 8)

	same(p.place, "scheduled events", p.number("SELECT count(*) FROM waybill_delayed WHERE due_at > now() + interval '50 minutes'"), 2)
	var due time.Time
	p.must(p.db.QueryRowContext(t.Context(), "SELECT due_at FROM waybill_delayed WHERE aggregate_id = 'o-9'").Scan(&due))
	same(p.place, "the time of the scheduled job", due.UTC(), later)
	p.exec("UPDATE waybill_delayed SET due_at = now() - interval '1 second'")
	got := p.deliver()
	same(p.place, "the number of events", count(got), 8)
	for aggregate, want := range map[string]string{
		"o-0": "order_paid 3, order_placed 6", "o-1": "order_placed 4, order_paid 7", "o-2": "order_paid 5, order_placed 8", "fail": "order_placed 2", "o-9": "order_placed 9",
	} {
		same(p.place, aggregate, fields(got[aggregate], func(ev waybill.Event) string { return fmt.Sprintf("%s %d", ev.Type, number(ev)) }), want)
	}
	last := got["o-9"][0]
	same(p.place, "the headers", headers(last), `nested={"a": 1} river_attempt=0 river_job_id=9 river_priority=3 river_queue=slow river_tags=gift,express trace=t-9`)
	same(p.place, "the aggregate", last.AggregateType, "order")
	same(p.place, "the attempts of the failed job", got["fail"][0].Headers["river_attempt"], "1")

	// River runs on, with the jobs that were left.
	insert(placed{orderArgs{Order: "next", N: 11}}, nil)
	same(p.place, "what River works on", strings.Join(p.work(1), ","), "next")
	same(p.place, "another import", p.report("river", "order_placed", "order_paid"), report{})
}

// TestRiverMistakes: running jobs and misspelled kinds are errors.
func TestRiverMistakes(t *testing.T) {
	p := newRiver(t)
	_, err := p.client(nil).Insert(t.Context(), orderArgs{kind: "order_placed", N: 1}, nil)
	p.must(err)
	for _, c := range []struct{ args, want string }{
		{"river order_plcaed", "no job of kind order_plcaed (hint: did you mean order_placed?)"},
		{"river order_placed --aggregate-arg customer", "row 1: args: customer is missing"},
		{"river", "requires kinds of jobs"},
	} {
		if out := p.fails(strings.Fields("import " + c.args)...); !strings.Contains(out, c.want) {
			t.Errorf("%s: %s, want %s", c.args, out, c.want)
		}
	}
	p.exec("UPDATE river_job SET state = 'running', attempted_at = now(), attempt = 1") // as a worker does that crashed
	if out := p.fails("import", "river", "order_placed"); !strings.Contains(out, "jobs of kind order_placed are running: 1") {
		t.Error(out)
	}
	same(p.place, "with --running", p.report("river", "order_placed", "--running", "--delete"), report{Waiting: 1, Imported: 1, Deleted: 1})
}

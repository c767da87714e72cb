package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/outage"
	"github.com/waybillhq/waybill/internal/retention"
	"github.com/waybillhq/waybill/store"
)

// Relay delivers what was committed to an outbox.
type Relay struct {
	db      store.Relay
	sink    Sink
	cfg     Config
	running atomic.Bool
}

// New returns a relay that hands the events of an outbox to a sink. It reports every field of the config that is wrong.
func New(db store.Relay, sink Sink, cfg Config) (*Relay, error) {
	if db == nil {
		return nil, errors.New("relay: the store is nil")
	}
	if sink == nil {
		return nil, errors.New("relay: the sink is nil")
	}
	cfg, err := cfg.complete()
	if err != nil {
		return nil, fmt.Errorf("relay: Config: %w", err)
	}
	return &Relay{db: db, sink: sink, cfg: cfg}, nil
}

var errRunning = errors.New("relay: it is running already")

// Run delivers events until ctx ends. Then it stops taking new ones, gives those under way Config.DrainTimeout to finish,
// settles them, gives its lanes back, and returns nil. What did not finish stays pending, and no attempt is spent, if the sink
// returns within a second after its context has ended.
//
// It returns an error if it cannot begin: the tables are not there, or are newer than this code
// ([store.ErrNewerTables], unless Config.NewerTables allows it), a relay of another name serves
// this outbox ([waybill.ErrOtherRelay]), the outbox remembers another sink
// ([waybill.ErrOtherSink]), or this relay is running already. Later failures of the database are logged, and end when it
// is back.
func (r *Relay) Run(ctx context.Context) error {
	if r.running.Swap(true) {
		return errRunning
	}
	defer r.running.Store(false)
	if err := r.checkTables(ctx); err != nil {
		return err
	}
	e := newEngine(r.db, r.sink, r.cfg)
	e.log.Info("waybill: relay starts", slog.String("relay", r.cfg.Name), slog.String("node", e.node.ID.String()))
	stop := e.start(ctx)
	err := e.run(ctx)
	stop()
	e.log.Info("waybill: relay has stopped", slog.String("node", e.node.ID.String()))
	return err
}

// checkTables refuses tables whose migrations this code does not know, where the store can tell. That the tables cannot be read
// is for the first heartbeat to say.
func (r *Relay) checkTables(ctx context.Context) error {
	m, ok := r.db.(store.Migrator)
	if !ok {
		return nil
	}
	all, err := m.Migrations(ctx)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	newer := store.Newer(all)
	if newer != nil && r.cfg.NewerTables {
		r.cfg.Logger.Warn("waybill: the relay starts on tables that are newer than it is", slog.String("error", newer.Error()))
		return nil
	}
	if newer != nil {
		return fmt.Errorf("relay: %w", newer)
	}
	return nil
}

// minWindow is the least number of events of a lane that may be in hand.
const minWindow = 128

func newEngine(db store.Relay, sink Sink, cfg Config) *engine {
	e := &engine{
		cfg: cfg, db: db, sink: sink, log: cfg.Logger, observe: cfg.Observe,
		node:    store.Node{ID: waybill.NewID(), Relay: cfg.Name},
		backoff: delays{base: cfg.BackoffBase, max: cfg.BackoffMax, series: cfg.BackoffSeries},
		history: cfg.HistoryRetention > 0, source: db.Local(),
		dests: make(map[string]*destination),
		reads: make(chan readJob, 1), pages: make(chan readReply, 1),
		settles: make(chan settleJob, 1), answers: make(chan settleReply, 1),
		jobs: make(chan *job, cfg.Workers), results: make(chan *job, cfg.Workers),
		idle:    cfg.Workers,
		commits: newHotQueue(cfg),
		timer:   time.NewTimer(0),
	}
	e.database = outage.New(cfg.Logger, "the database")
	_, e.ordered = sink.(OrderedSink)
	_, e.serial = sink.(SerialSink)
	e.window = minWindow
	e.io, e.endIO = context.WithCancel(context.Background())
	e.lease, e.endLease = context.WithCancelCause(context.Background())
	e.member.start = time.Now()
	e.member.jobs, e.member.replies = make(chan memberJob, 1), make(chan memberReply, 1)
	return e
}

// start starts the goroutines of an engine; stop ends them. A worker whose sink does not return is left behind: there is no
// way to stop it, and its result will be refused.
func (e *engine) start(ctx context.Context) (stop func()) {
	var group, workers sync.WaitGroup
	group.Go(e.reader)
	group.Go(e.settler)
	group.Go(e.memberWorker)
	for range e.cfg.Workers {
		workers.Go(e.work)
	}
	sides, endSides := context.WithCancel(ctx)
	e.startBackground(sides, &group)
	deaf := e.db.Local().Listen(e.commits.offer)
	return func() {
		deaf()
		endSides()
		e.endIO()
		e.endLease(errDrain)
		e.timer.Stop()
		close(e.reads)
		close(e.settles)
		close(e.member.jobs)
		close(e.jobs)
		e.db.Local().SetLocalLanes(nil)
		group.Wait()
		ended := make(chan struct{})
		go func() { workers.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(workerTime):
			e.log.Error("waybill: a sink does not return; its goroutine is left behind")
		}
	}
}

// purgeDelay is how long a relay that starts leaves the database to its deliveries.
const purgeDelay = 10 * time.Second

// workerTime is how long a sink whose context has ended may take to return.
const workerTime = time.Second

// sides starts what goes on beside the flow: wake-ups from other processes, and deleting what need not be kept. Every node
// does the latter; that is harmless, and the oldest rows are gone after the first.
func (e *engine) startBackground(ctx context.Context, group *sync.WaitGroup) {
	if k, ok := e.db.(store.Maintainer); ok && e.cfg.PurgeInterval > 0 {
		p := retention.Policy{KeepHistory: e.cfg.HistoryRetention, KeepDead: e.cfg.DeadRetention, Batch: e.cfg.PurgeBatchSize}
		group.Go(func() {
			retention.Loop(ctx, k, p, min(purgeDelay, e.cfg.PurgeInterval), e.cfg.PurgeInterval, e.log, e.observe)
		})
	}
	if w, ok := e.db.(store.Watcher); ok {
		group.Go(func() { w.Watch(ctx, func() { e.commits.offer(store.Commit{}) }) })
	}
}

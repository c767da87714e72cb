package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/retention"
	"github.com/waybillhq/waybill/store/driver"
)

// Relay delivers the events of an outbox to a sink.
type Relay struct {
	db      database
	sink    waybill.Sink  // of a relay with one sink
	to      []Destination // of a relay with several destinations
	cfg     Config
	running atomic.Bool
	engine  atomic.Pointer[engine] // while the relay runs
}

// database is the part of a store that a relay uses. Its fields other than
// Relay may be nil.
type database struct {
	driver.Relay
	guard    driver.SinkGuard
	watcher  driver.Watcher
	migrator driver.Migrator
	purger   driver.Maintainer
	backlogs driver.Backlogs
	audit    driver.Audit
	rollups  driver.Rollups
}

// New returns a relay that delivers the events of an outbox to a sink. The
// error names every invalid field of cfg.
func New[T any](db driver.Store[T], sink waybill.Sink, cfg Config) (*Relay, error) {
	roles, err := driver.Get(db, "relay", "Relay")
	if err != nil {
		return nil, err
	}
	if sink == nil {
		return nil, errors.New("relay: the sink is nil")
	}
	cfg, err = cfg.complete()
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	return &Relay{db: databaseOf(roles), sink: sink, cfg: cfg.named()}, nil
}

// NewTo returns a relay that delivers the events of an outbox to several
// destinations, each at its own pace. The store must have the role Backlogs.
// The error names every invalid field of cfg and of the destinations.
//
// An event is done when each destination that takes it has received it, or has
// it in its backlog; an event that no destination takes is done. While a
// destination keeps up, its backlog is empty, and the relay costs the database
// as much as with one sink. Config.MaxAttempts and Config.OnDead then apply to
// events that end their process before the relay knows at which destination.
//
// Config.SinkName defaults to the names of the destinations.
func NewTo[T any](db driver.Store[T], cfg Config, destinations ...Destination) (*Relay, error) {
	roles, err := driver.Get(db, "relay", "Relay", "Backlogs")
	if err != nil {
		return nil, err
	}
	cfg.SinkName = cmp.Or(cfg.SinkName, sinkNameOf(destinations))
	cfg, err = cfg.complete()
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	all, err := completeAll(destinations, cfg)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	return &Relay{db: databaseOf(roles), to: all, cfg: cfg.named()}, nil
}

// sinkNameOf returns the name by which the outbox remembers destinations.
func sinkNameOf(all []Destination) string {
	names := make([]string, len(all))
	for i, d := range all {
		names[i] = d.Name
	}
	slices.Sort(names)
	return "destinations " + strings.Join(names, ", ")
}

// databaseOf returns the roles that a relay uses.
func databaseOf[T any](roles driver.Roles[T]) database {
	return database{
		Relay: roles.Relay, guard: roles.SinkGuard, watcher: roles.Watcher, migrator: roles.Migrator, purger: roles.OutboxAdmin, backlogs: roles.Backlogs, audit: roles.Audit,
		rollups: roles.Rollups,
	}
}

// named returns the config with the relay's name in its logger.
func (c Config) named() Config {
	c.Logger = c.Logger.With(slog.String(logkey.Component, "relay"), slog.String(logkey.Relay, c.Name))
	return c
}

var errRunning = errors.New("relay: already running")

// Run delivers events until ctx ends. Then Run stops taking events, waits up to
// Config.DrainTimeout for deliveries in flight, settles them, releases its
// lanes, and returns nil. Events whose deliveries did not finish stay pending,
// and spend no attempt if the sink returns within a second after its context
// has ended.
//
// Run returns an error if the relay cannot start: the tables do not exist, or
// are newer than this code ([store.ErrNewerTables], unless Config.NewerTables
// allows it), a relay with another name serves this outbox
// ([waybill.ErrOtherRelay]), the outbox remembers another sink
// ([waybill.ErrOtherSink]), or this relay is already running. Run logs later
// failures of the database and continues when the database is available again.
func (r *Relay) Run(ctx context.Context) error { return r.work(ctx, nil) }

// work is Run, or Once if once is not nil.
func (r *Relay) work(ctx context.Context, once *onceRun) error {
	if r.running.Swap(true) {
		return errRunning
	}
	defer r.running.Store(false)
	if err := r.checkTables(ctx); err != nil {
		return err
	}
	var e *engine
	if r.to == nil {
		e = newEngine(r.db, r.sink, r.cfg)
	} else {
		e = newEngineTo(r.db, r.to, r.cfg)
	}
	if e.once = once; once != nil {
		e.cfg.PurgeInterval = -1
	}
	r.engine.Store(e)
	defer r.engine.Store(nil)
	e.log.Info("relay started", slog.String(logkey.Node, e.node.ID.String()))
	stop := e.start(ctx)
	err := e.run(ctx)
	stop()
	e.log.Info("relay stopped", slog.String(logkey.Node, e.node.ID.String()))
	return err
}

// checkTables rejects tables with migrations that this code does not know, if
// the store can report them. The first heartbeat reports tables that cannot be
// read.
func (r *Relay) checkTables(ctx context.Context) error {
	if r.db.migrator == nil {
		return nil
	}
	all, err := r.db.migrator.Migrations(ctx)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	newer := driver.Newer(all)
	if newer != nil && r.cfg.NewerTables {
		r.cfg.Logger.Warn("the tables are newer than this relay", slog.String(logkey.Error, newer.Error()))
		return nil
	}
	if newer != nil {
		return fmt.Errorf("relay: %w", newer)
	}
	return nil
}

// start starts the goroutines of an engine; stop ends them. A worker whose sink
// does not return is abandoned: it cannot be stopped, and its result will be
// rejected.
func (e *engine) start(ctx context.Context) (stop func()) {
	var group, workers sync.WaitGroup
	for _, q := range e.queues {
		group.Go(q.reader)
		group.Go(q.settler)
		for range q.workers {
			workers.Go(q.work)
		}
	}
	group.Go(e.memberWorker)
	group.Go(e.checker)
	background, endBackground := context.WithCancel(ctx)
	e.startBackground(background, &group)
	unsubscribe := e.db.Local().Listen(e.commits.offer)
	return func() {
		unsubscribe()
		endBackground()
		e.endIO()
		e.endLease(errDrain)
		e.timer.Stop()
		close(e.ended)
		for _, q := range e.queues {
			q.close()
		}
		close(e.member.jobs)
		close(e.check.jobs)
		e.db.Local().SetLocalLanes(nil)
		group.Wait()
		ended := make(chan struct{})
		go func() { workers.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(workerTime):
			e.log.Error("the sink did not return; its goroutine is abandoned")
		}
	}
}

// purgeDelay is how long purging waits after the start, so that deliveries come
// first.
const purgeDelay = 10 * time.Second

// causesDelay is how long after the first of several dead letters their causes
// are computed: a flood of them shares the statements.
const causesDelay = 10 * time.Second

// workerTime is how long a sink whose context has ended may take to return.
const workerTime = time.Second

// startBackground starts the background work: wake-ups from other processes,
// purging, and the causes of dead letters. Every node purges, which is
// harmless: the first purge deletes the rows, and the others find none.
func (e *engine) startBackground(ctx context.Context, group *sync.WaitGroup) {
	if k := e.db.purger; k != nil && e.cfg.PurgeInterval > 0 {
		p := retention.Policy{HistoryRetention: e.cfg.HistoryRetention, DeadRetention: e.cfg.DeadRetention, Audit: e.db.audit, Rollups: e.db.rollups, BatchSize: e.cfg.PurgeBatchSize}
		if e.targets != nil {
			p.Backlogs = e.db.backlogs
		}
		group.Go(func() {
			retention.Loop(ctx, k, p, min(purgeDelay, e.cfg.PurgeInterval), e.cfg.PurgeInterval, e.log, e.observe)
		})
		group.Go(func() { retention.NoteCauses(ctx, k, p, e.buried, causesDelay, e.log) })
	}
	if w := e.db.watcher; w != nil {
		group.Go(func() { w.Watch(ctx, func() { e.commits.offer(driver.Commit{}) }) })
	}
}

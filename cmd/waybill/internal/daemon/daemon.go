// Package daemon is what waybill serve runs: for every relay of the settings the deliveries, and beside them deleting what need not be kept,
// looking after the inbox and the idempotency keys, and counting. Each is a [Component], and each can be off.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
)

// Component is one thing that the daemon does. Run does it until ctx ends, then finishes what it has in hand, and returns nil. An error
// ends the whole daemon.
type Component struct {
	Name string
	Run  func(ctx context.Context) error
}

// Config is what a daemon is made with. Observe and Extra are rooms for what is not part of it.
type Config struct {
	// Logger gets what an operator should know.
	Logger *slog.Logger
	// Out is where the sink log: prints.
	Out io.Writer
	// Observe returns what wants to be told about a relay: metrics and traces. Nil: nothing.
	Observe func(s *settings.Settings) (observe.Hooks, error)
	// Extra returns further components, of the whole process, once everything is open: the HTTP API. Nil: none.
	Extra func(d *Daemon) ([]Component, error)
}

// Daemon is everything that is open.
type Daemon struct {
	Loaded *settings.Loaded
	// Relays are those that are enabled.
	Relays  []*Relay
	Log     *slog.Logger
	Started time.Time

	extra []Component
}

// Relay is one outbox that the daemon looks after.
type Relay struct {
	Settings *settings.Settings
	Store    *connect.Store
	// Sink is nil if nothing is delivered.
	Sink   *connect.Sink
	Desk   *admin.Desk
	Groups *admin.Groups
	Keys   *admin.Keys
	// Progress says whether the deliveries get anywhere: readiness.
	Progress *Progress
	Observe  observe.Hooks
	// Jobs are those of the file that are about this relay, and enabled.
	Jobs []settings.Job
	Log  *slog.Logger
}

// Name is what the relay is called in logs.
func (r *Relay) Name() string { return r.Settings.Relay.Name }

// Open opens every store and sink. What it has opened is closed again if it fails.
func Open(ctx context.Context, loaded *settings.Loaded, cfg Config) (*Daemon, error) {
	d := &Daemon{Loaded: loaded, Log: cfg.Logger, Started: time.Now()}
	for _, s := range loaded.Relays {
		if !s.Enabled {
			cfg.Logger.Info("waybill: a relay is off", slog.String("relay", s.Relay.Name))
			continue
		}
		r, err := openRelay(ctx, s, cfg)
		if err != nil {
			return nil, errors.Join(named(s, err), d.Close())
		}
		for _, j := range loaded.JobsOf(s) {
			if j.Enabled {
				r.Jobs = append(r.Jobs, j)
			}
		}
		d.Relays = append(d.Relays, r)
	}
	if cfg.Extra != nil && len(d.Relays) > 0 {
		var err error
		if d.extra, err = cfg.Extra(d); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// named says which relay an error is about, if there are several.
func named(s *settings.Settings, err error) error {
	if s.Name == "" {
		return err
	}
	return fmt.Errorf("relay %s: %w", s.Name, err)
}

func openRelay(ctx context.Context, s *settings.Settings, cfg Config) (*Relay, error) {
	r := &Relay{Settings: s, Progress: &Progress{}, Log: cfg.Logger}
	if s.Name != "" { // there are several
		r.Log = cfg.Logger.With(slog.String("for", s.Name))
	}
	var err error
	if r.delivers() { // before tables are made for a relay that cannot run
		if err := connect.CheckSink(s.Sink); err != nil {
			return nil, err
		}
	}
	if r.Store, err = connect.OpenStore(ctx, s.Store, s.Store.Migrate); err != nil {
		return nil, err
	}
	if err := r.fill(ctx, cfg); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	r.Log.Info("waybill: the store is open", slog.Any("store", s.Store.URL))
	return r, nil
}

// delivers reports whether anything goes to the sink.
func (r *Relay) delivers() bool {
	s := r.Settings
	return s.Relay.Enabled || s.Inbox.Enabled && s.Inbox.Retry
}

// fill makes everything else that belongs to a relay.
func (r *Relay) fill(ctx context.Context, cfg Config) error {
	s := r.Settings
	if err := r.tables(ctx); err != nil {
		return err
	}
	var err error
	if cfg.Observe != nil && s.Metrics.Enabled {
		if r.Observe, err = cfg.Observe(s); err != nil {
			return err
		}
	}
	desk := admin.Config{BatchSize: s.Purge.Batch, Logger: r.Log, Captured: s.CDC.Enabled, Observe: r.Observe}
	if r.Desk, err = admin.New(r.Store.Tables, desk); err != nil {
		return err
	}
	if r.Groups, err = admin.NewGroups(r.Store.Tables, desk); err != nil {
		return err
	}
	desk.BatchSize = s.Keys.Batch
	if r.Keys, err = admin.NewKeys(r.Store.Tables, desk); err != nil {
		return err
	}
	if !r.delivers() {
		return nil
	}
	if err := r.guard(ctx); err != nil { // before a sink is made for a relay that is refused
		return err
	}
	if r.Sink, err = connect.OpenSink(ctx, connect.SinkConfig{Sink: s.Sink, Out: cfg.Out, Logger: r.Log}); err != nil {
		return err
	}
	r.Log.Info("waybill: the sink is open", slog.Any("sink", s.Sink.URL))
	return nil
}

// guard looks whether the outbox remembers another sink. The relay looks again when it has joined.
func (r *Relay) guard(ctx context.Context) error {
	if r.Settings.TakeOver || !r.Settings.Relay.Enabled {
		return nil
	}
	recorded, err := r.Store.RecordedSink(ctx)
	if err != nil {
		return r.Store.Clean(err)
	}
	own, err := r.fingerprint()
	if err != nil || recorded == "" || recorded == own {
		return err
	}
	return otherSink(fmt.Errorf("%w: to %s, and this relay is %s", waybill.ErrOtherSink, recorded, own))
}

// fingerprint returns what the outbox remembers of this relay.
func (r *Relay) fingerprint() (string, error) { return Fingerprint(r.Settings) }

// Fingerprint returns what an outbox remembers of a relay with these settings.
func Fingerprint(s *settings.Settings) (string, error) {
	name, err := connect.SinkName(s.Sink)
	return relay.Config{Name: s.Relay.Name, SinkName: name}.Fingerprint(), err
}

// otherSink says what to do about an outbox that remembers another sink.
func otherSink(err error) error {
	return hint.New("one outbox has one relay: start the service, or the waybill serve, that delivers there. If this relay is to replace it for good, stop it, and start this one once "+
		"with --take-over", "%w", err)
}

// tables makes what is missing, if it may.
func (r *Relay) tables(ctx context.Context) error {
	if !r.Settings.Store.NewerTables {
		if err := r.Store.Newer(ctx); err != nil {
			return err
		}
	}
	if !r.Settings.Store.Migrate {
		return r.Store.Ready(ctx)
	}
	// Looking first: where everything is there, no right to make tables is needed.
	if r.Store.Ready(ctx) == nil {
		return nil
	}
	applied, err := r.Store.Migrate(ctx)
	if err != nil {
		return hint.New("make the tables with waybill migrate, as a user who may, and set store.migrate to false", "%w", r.Store.Clean(err))
	}
	for _, m := range applied {
		r.Log.Info("waybill: a migration was applied", slog.Int("version", m.Version), slog.String("name", m.Name))
	}
	return nil
}

// Close closes what belongs to a relay.
func (r *Relay) Close() error {
	var errs []error
	if r.Sink != nil {
		errs = append(errs, r.Sink.Close())
	}
	if r.Store != nil {
		errs = append(errs, r.Store.Clean(r.Store.Close()))
	}
	return errors.Join(errs...)
}

// Close closes everything. Run does that by itself.
func (d *Daemon) Close() error {
	var errs []error
	for _, r := range d.Relays {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// Run runs every component until ctx ends or one of them fails; then it stops the others in good order, and closes everything.
func (d *Daemon) Run(ctx context.Context) error {
	var all []Component
	for _, r := range d.Relays {
		more, err := r.components()
		if err != nil {
			return errors.Join(named(r.Settings, err), d.Close())
		}
		all = append(all, more...)
	}
	if len(all) == 0 {
		return errors.Join(hint.New("everything is off; see waybill config --changed", "there is nothing to do"), d.Close())
	}
	all = append(all, d.extra...)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var group sync.WaitGroup
	var mu sync.Mutex
	var first error
	for _, c := range all {
		group.Go(func() {
			err := c.Run(ctx)
			if err == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if first == nil {
				first = fmt.Errorf("%s: %w", c.Name, err)
				stop(first)
			}
		})
	}
	d.Log.Info("waybill: serving", slog.Int("relays", len(d.Relays)), slog.Int("components", len(all)))
	group.Wait()
	err := errors.Join(first, d.Close())
	d.Log.Info("waybill: has stopped")
	return err
}

// relayConfig returns the settings in the relay's own words.
func (r *Relay) relayConfig() relay.Config {
	s := r.Settings.Relay
	sink, _ := connect.SinkName(r.Settings.Sink) // the sink is open, so it has one
	cfg := relay.Config{
		Name: s.Name, SinkName: sink, TakeOver: r.Settings.TakeOver, Workers: s.Workers, BatchSize: s.Batch, HotQueue: s.HotQueue, ColdQueue: s.ColdQueue, MaxAttempts: s.Attempts,
		BackoffBase: s.BackoffBase, BackoffMax: s.BackoffMax, BackoffSeries: s.BackoffSeries, UnknownGrace: s.UnknownGrace,
		DeliverTimeout: s.DeliverTimeout, Lease: s.Lease, Heartbeat: s.Heartbeat, PollInterval: s.Poll, Linger: s.Linger, SweepInterval: s.Sweep,
		DrainTimeout: s.Drain, HistoryRetention: s.KeepHistory, DeadRetention: s.KeepDead, PurgeInterval: r.Settings.Purge.Interval,
		PurgeBatchSize: r.Settings.Purge.Batch, NewerTables: r.Settings.Store.NewerTables, Logger: r.Log, Observe: r.Progress.watch(r.Observe),
	}
	if s.OnDead == "block" {
		cfg.OnDead = relay.Block
	}
	if !r.Settings.Purge.Enabled {
		cfg.PurgeInterval = -1
	}
	return cfg
}

// deliver is the component that delivers.
func (r *Relay) deliver() (Component, error) {
	flow, err := relay.New(r.Store.Tables, r.Sink.Sink, r.relayConfig())
	if err != nil {
		return Component{}, err
	}
	return Component{Name: "relay " + r.Name(), Run: func(ctx context.Context) error {
		err := flow.Run(ctx)
		if errors.Is(err, waybill.ErrOtherRelay) {
			return hint.New("one outbox has one relay: use its relay.name, or tables of your own (store.prefix, store.schema)", "%w", err)
		}
		if errors.Is(err, waybill.ErrOtherSink) {
			return otherSink(err)
		}
		if errors.Is(err, store.ErrRelayLive) {
			return hint.New("stop every waybill serve and every service with a relay on this store, then take it over", "%w", err)
		}
		return r.Store.Clean(err)
	}}, nil
}

// Package daemon is the implementation of waybill serve. For every relay of the
// settings it delivers events, purges old events, maintains inbox records and
// idempotency keys, runs jobs and counts. Each task is a [Component] that can
// be disabled.
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
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
)

// Component is one task of the daemon. Run runs it until ctx ends, finishes the
// work in flight, and returns nil. An error ends the whole daemon.
type Component struct {
	Name string
	Run  func(ctx context.Context) error
}

// Config is the configuration of a daemon. Observe and Extra connect the parts
// that are not in this package.
type Config struct {
	// Logger receives messages for operators.
	Logger *slog.Logger
	// Version is the version of this program; empty: unknown.
	Version string
	// Out receives the output of the sink log:.
	Out io.Writer
	// Observe returns the hooks for a relay: metrics and traces. Nil: none.
	Observe func(s *settings.Settings) (observe.Hooks, error)
	// Extra returns further components of the whole process after all stores
	// and sinks are open: the HTTP API. Nil: none.
	Extra func(d *Daemon) ([]Component, error)
}

// Daemon holds all open stores and sinks.
type Daemon struct {
	Loaded *settings.Loaded
	// Relays are the enabled relays.
	Relays  []*Relay
	Log     *slog.Logger
	Started time.Time

	own   *slog.Logger // for the daemon's own lines
	extra []Component
}

// Relay is one outbox that the daemon serves.
type Relay struct {
	Settings *settings.Settings
	Store    *connect.Store
	// Sink is nil if no events are delivered, or if there are destinations.
	Sink *connect.Sink
	// Sinks are the sinks of the destinations, in the order of the settings.
	Sinks  []*connect.Sink
	Outbox *admin.Outbox
	// Destinations is nil if the store has no backlogs.
	Destinations *admin.Destinations
	Groups       *admin.Inbox
	Keys         *admin.Keys
	Audit        *admin.Audit
	// JobRecords are the jobs that ran on the store.
	JobRecords *admin.Jobs
	// Progress tracks whether deliveries make progress, for readiness.
	Progress *Progress
	Observe  observe.Hooks
	// Jobs are the enabled jobs of this relay in the file.
	Jobs []settings.Job
	// Log is the logger of the components. If there are several relays, it has
	// the relay's name.
	Log *slog.Logger

	version  string       // of this program
	relayLog *slog.Logger // for the relay, which adds its name itself
	own      *slog.Logger // for the daemon's own lines
}

// own returns the logger of the daemon's own lines. The components add their
// names themselves.
func own(log *slog.Logger) *slog.Logger {
	return log.With(slog.String(logkey.Component, "daemon"))
}

// Name returns the relay's name in logs.
func (r *Relay) Name() string { return r.Settings.Relay.Name }

// Open opens every store and sink. If it fails, it closes those that it has
// opened.
func Open(ctx context.Context, loaded *settings.Loaded, cfg Config) (*Daemon, error) {
	d := &Daemon{Loaded: loaded, Log: cfg.Logger, own: own(cfg.Logger), Started: time.Now()}
	for _, s := range loaded.Relays {
		if !s.Enabled {
			d.own.Info("relay is disabled", slog.String(logkey.Relay, s.Relay.Name))
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

// named adds the relay's name to an error if there are several relays.
func named(s *settings.Settings, err error) error {
	if s.Name == "" {
		return err
	}
	return fmt.Errorf("relay %s: %w", s.Name, err)
}

func openRelay(ctx context.Context, s *settings.Settings, cfg Config) (*Relay, error) {
	r := &Relay{Settings: s, Progress: &Progress{destinations: len(s.Destinations)}, Log: cfg.Logger, relayLog: cfg.Logger, version: cfg.Version}
	if s.Name != "" { // there are several
		r.Log = cfg.Logger.With(slog.String(logkey.Relay, s.Name))
	}
	r.own = own(r.Log)
	var err error
	if r.delivers() { // before tables are created for a relay that cannot run
		if err := connect.CheckSinks(s); err != nil {
			return nil, err
		}
	}
	if r.Store, err = connect.OpenStore(ctx, s.Store, s.Store.Migrate); err != nil {
		return nil, err
	}
	if err := r.fill(ctx, cfg); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	r.own.Info("store opened", slog.Any(logkey.Store, s.Store.URL))
	return r, nil
}

// delivers reports whether events are delivered to the sink.
func (r *Relay) delivers() bool {
	s := r.Settings
	return s.Relay.Enabled || s.Inbox.Enabled && s.Inbox.Retry
}

// fill opens the other parts of a relay.
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
	ops := admin.Config{BatchSize: s.Purge.BatchSize, Logger: r.Log, Captured: s.CDC.Enabled, Observe: r.Observe}
	if r.Outbox, err = admin.NewOutbox(r.Store, ops); err != nil {
		return err
	}
	if r.Store.Backlogs != nil {
		if r.Destinations, err = admin.NewDestinations(r.Store, ops); err != nil {
			return err
		}
	}
	if r.Groups, err = admin.NewInbox(r.Store, ops); err != nil {
		return err
	}
	if r.Audit, err = admin.NewAudit(r.Store, ops); err != nil {
		return err
	}
	if r.JobRecords, err = admin.NewJobs(r.Store, ops); err != nil {
		return err
	}
	ops.BatchSize = s.Keys.PurgeBatchSize
	if r.Keys, err = admin.NewKeys(r.Store, ops); err != nil {
		return err
	}
	if !r.delivers() {
		return nil
	}
	if err := r.guard(ctx); err != nil { // before a sink is created for a relay that is refused
		return err
	}
	return r.openSinks(ctx, cfg.Out)
}

// openSinks opens the sink, or the sinks of all destinations.
func (r *Relay) openSinks(ctx context.Context, out io.Writer) (err error) {
	s := r.Settings
	cfg := connect.SinkConfig{Sink: s.Sink, Out: out, Logger: r.Log}
	if len(s.Destinations) == 0 {
		if r.Sink, err = connect.OpenSink(ctx, cfg); err != nil {
			return err
		}
		r.own.Info("sink opened", slog.Any(logkey.Sink, s.Sink.URL))
		return nil
	}
	if r.Sinks, err = connect.OpenDestinations(ctx, s.Destinations, cfg); err != nil {
		return err
	}
	for _, d := range s.Destinations {
		r.own.Info("destination configured", slog.String(logkey.Destination, d.Name), slog.Any(logkey.Sink, d.Sink.URL))
	}
	return nil
}

// guard checks whether the outbox records another sink. The relay checks again
// after it has joined.
func (r *Relay) guard(ctx context.Context) error {
	if r.Settings.TakeOver || !r.Settings.Relay.Enabled {
		return nil
	}
	recorded, err := r.Store.SinkGuard.RecordedSink(ctx)
	if err != nil {
		return r.Store.Clean(err)
	}
	own, err := r.fingerprint()
	if err != nil || recorded == "" || recorded == own {
		return err
	}
	return otherSink(fmt.Errorf("%w: recorded %s, this relay is %s", waybill.ErrOtherSink, recorded, own))
}

// fingerprint returns the text that the outbox records for this relay.
func (r *Relay) fingerprint() (string, error) { return Fingerprint(r.Settings) }

// Fingerprint returns the text that an outbox records for a relay with these
// settings.
func Fingerprint(s *settings.Settings) (string, error) {
	name, err := connect.SinkNames(s)
	return relay.Config{Name: s.Relay.Name, SinkName: name}.Fingerprint(), err
}

// otherSink adds a hint about an outbox that records another sink.
func otherSink(err error) error {
	return hint.New("one outbox has one relay: start the service, or the waybill serve, that delivers to the recorded sink. To replace that relay permanently, stop it and start this one once "+
		"with --take-over", "%w", err)
}

// tables applies missing migrations if the settings permit it.
func (r *Relay) tables(ctx context.Context) error {
	if !r.Settings.Store.NewerTables {
		if err := r.Store.Newer(ctx); err != nil {
			return err
		}
	}
	if !r.Settings.Store.Migrate {
		return r.Store.Ready(ctx)
	}
	// Check first: without missing migrations, the right to create tables is
	// not required.
	if r.Store.Ready(ctx) == nil {
		return nil
	}
	applied, err := r.Store.Migrator.Migrate(ctx)
	if err != nil {
		return hint.New("create the tables with waybill migrate as a user with that right, and set store.migrate to false", "%w", r.Store.Clean(err))
	}
	for _, m := range applied {
		r.own.Info("migration applied", slog.Int(logkey.Version, m.Version), slog.String(logkey.Name, m.Name))
	}
	return nil
}

// Close closes the store and the sinks of a relay.
func (r *Relay) Close() error {
	var errs []error
	if r.Sink != nil {
		errs = append(errs, r.Sink.Close())
	}
	for _, sink := range r.Sinks {
		errs = append(errs, sink.Close())
	}
	if r.Store != nil {
		errs = append(errs, r.Store.Clean(r.Store.Close()))
	}
	return errors.Join(errs...)
}

// Close closes all relays. Run calls it.
func (d *Daemon) Close() error {
	var errs []error
	for _, r := range d.Relays {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// Run runs every component until ctx ends or one of them fails. Then it stops
// the others gracefully and closes all stores and sinks.
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
		return errors.Join(hint.New("all components are disabled; see waybill config --changed", "nothing to do"), d.Close())
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
	d.own.Info("serving", slog.Int(logkey.Relays, len(d.Relays)), slog.Int(logkey.Components, len(all)))
	group.Wait()
	err := errors.Join(first, d.Close())
	d.own.Info("stopped")
	return err
}

// relayConfig converts the settings to the relay's Config.
func (r *Relay) relayConfig() relay.Config {
	s := r.Settings.Relay
	sink, _ := connect.SinkNames(r.Settings) // the sinks are open, so they have names
	cfg := relay.Config{
		Name: s.Name, SinkName: sink, Version: r.version, TakeOver: r.Settings.TakeOver, Workers: s.Workers, BatchSize: s.BatchSize, HotQueue: s.HotQueue, ColdQueue: s.ColdQueue, MaxBytes: s.MaxBytes, MaxAttempts: s.MaxAttempts,
		BackoffBase: s.BackoffBase, BackoffMax: s.BackoffMax, BackoffSeries: s.BackoffSeries, UnknownGrace: s.UnknownGrace,
		DeliverTimeout: s.DeliverTimeout, Lease: s.Lease, Heartbeat: s.Heartbeat, PollInterval: s.PollInterval, Linger: s.Linger, SweepInterval: s.SweepInterval,
		DrainTimeout: s.DrainTimeout, HistoryRetention: s.HistoryRetention, DeadRetention: s.DeadRetention, PurgeInterval: r.Settings.Purge.Interval,
		PurgeBatchSize: r.Settings.Purge.BatchSize, NewerTables: r.Settings.Store.NewerTables, Logger: r.relayLog, Observe: r.Progress.watch(r.Observe),
	}
	if s.OnDead == "block" {
		cfg.OnDead = relay.Block
	}
	if !r.Settings.Purge.Enabled {
		cfg.PurgeInterval = -1
	}
	if len(r.Sinks) > 0 { // each destination has its own values
		cfg.UnknownGrace, cfg.DeliverTimeout, cfg.BackoffSeries = 0, 0, nil
	}
	return cfg
}

// destinations returns the destinations with their open sinks.
func (r *Relay) destinations() []relay.Destination {
	out := make([]relay.Destination, len(r.Sinks))
	for i, d := range r.Settings.Destinations {
		out[i] = relay.Destination{
			Name: d.Name, Sink: r.Sinks[i].Sink, Types: d.Types, AggregateTypes: d.AggregateTypes, Tenants: d.Tenants, Rate: d.Rate, Concurrency: d.Concurrency,
			MaxAttempts: d.MaxAttempts, BackoffBase: d.BackoffBase, BackoffMax: d.BackoffMax, BackoffSeries: d.BackoffSeries, UnknownGrace: d.UnknownGrace,
			DeliverTimeout: d.DeliverTimeout, DivertAfter: d.DivertAfter, PauseAfter: d.PauseAfter,
		}
		if d.OnDead == "block" {
			out[i].OnDead = relay.Block
		}
	}
	return out
}

// newRelay returns the relay of the settings.
func (r *Relay) newRelay() (*relay.Relay, error) {
	if len(r.Sinks) > 0 {
		return relay.NewTo(r.Store, r.relayConfig(), r.destinations()...)
	}
	return relay.New(r.Store, r.Sink.Sink, r.relayConfig())
}

// deliver returns the component that delivers events.
func (r *Relay) deliver() (Component, error) {
	flow, err := r.newRelay()
	if err != nil {
		return Component{}, err
	}
	return Component{Name: "relay " + r.Name(), Run: func(ctx context.Context) error {
		err := flow.Run(ctx)
		if errors.Is(err, waybill.ErrOtherRelay) {
			return hint.New("one outbox has one relay: use its relay.name, or separate tables (store.prefix, store.schema)", "%w", err)
		}
		if errors.Is(err, waybill.ErrOtherSink) {
			return otherSink(err)
		}
		if errors.Is(err, store.ErrRelayLive) {
			return hint.New("stop every waybill serve and every service with a relay on this store, then take over", "%w", err)
		}
		return r.Store.Clean(err)
	}}, nil
}

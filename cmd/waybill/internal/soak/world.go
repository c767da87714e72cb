package soak

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/waybillhq/waybill/broker/natsembed"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// world is everything that a run uses.
type world struct {
	cfg    Config
	run    string
	folder string
	spec   spec // what all children have in common
	store  *connect.Store
	names  tables
	bus    *bus
	nats   *natsembed.Server
	clean  *settings.Scrubber

	fleet *fleet
	tally *tally
	plan  *plan
	view  *view

	started  time.Time
	ended    time.Time // of the load
	phase    string
	faults   map[string]int
	takeOver []time.Duration
	waiting  []*handOver
	outages  []*outage
	probes   chan probed
	versions [2]string
}

// handOver is a relay that was killed, and its lanes that no other relay has
// acquired yet.
type handOver struct {
	at    time.Time
	lanes map[int]bool
}

// folderOf returns the folder of a run.
func folderOf(run string) string { return filepath.Join(os.TempDir(), "waybill-"+run) }

// placeOf returns where the tables and topics of a run are.
func placeOf(cfg *Config, run string) (spec, error) {
	s := spec{Run: run, Store: cfg.Store.URL.Reveal(), ListenURL: cfg.Store.ListenURL.Reveal(), Topic: run + ".{topic}", Lease: cfg.Lease, Seed: cfg.Seed}
	s.OneNode = cfg.Store.OneNode
	if s.Store == "" {
		s.Store = "sqlite:" + filepath.Join(folderOf(run), "soak.db")
	}
	kind, err := connect.StoreKind(s.storeSettings())
	if err != nil {
		return s, err
	}
	s.Schema, s.Prefix = cfg.Store.Schema, run+"_"
	if kind == connect.Postgres {
		s.Schema, s.Prefix = run, "waybill_"
	}
	if !cfg.Sink.URL.IsZero() {
		s.Sink, err = sinkFor(cfg.Sink.URL.Reveal(), run)
	}
	return s, err
}

// open creates the tables and topics of a run.
func open(ctx context.Context, cfg Config, run string) (*world, error) {
	s, err := placeOf(&cfg, run)
	if err != nil {
		return nil, err
	}
	w := &world{
		cfg: cfg, run: run, folder: folderOf(run), spec: s, tally: newTally(), faults: make(map[string]int), probes: make(chan probed, 8),
		view: &view{out: cfg.Out, redraw: cfg.Redraw},
	}
	if err := os.Mkdir(w.folder, 0o700); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if err := w.fill(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// fill opens the parts of a world.
func (w *world) fill(ctx context.Context) error {
	silent := slog.New(slog.DiscardHandler)
	if w.spec.Sink == "" {
		var err error
		if w.nats, err = natsembed.Start(ctx, natsembed.Config{Dir: filepath.Join(w.folder, "jetstream"), Logger: silent}); err != nil {
			return err
		}
		if w.spec.Sink, err = sinkFor(w.nats.URL(), w.run); err != nil {
			return err
		}
	}
	w.clean = settings.NewScrubber(settings.NewSecret(w.spec.Store), settings.NewSecret(w.spec.ListenURL), settings.NewSecret(w.spec.Sink))
	cfg := w.spec.storeSettings()
	cfg.BusyTimeout = time.Second
	kind, err := connect.StoreKind(cfg)
	if err != nil {
		return err
	}
	if kind != connect.SQLite {
		cfg.Lanes = lanes
	}
	if w.store, err = connect.OpenStore(ctx, cfg, true); err != nil {
		return err
	}
	w.names = tablesOf(w.store.Kind, w.spec.Schema, w.spec.Prefix)
	if w.bus, err = openBus(ctx, &w.spec, silent); err != nil { // before tables are created
		return err
	}
	if _, err := w.store.Migrator.Migrate(ctx); err != nil {
		return w.store.Clean(err)
	}
	if err := w.names.create(ctx, w.store.SQL); err != nil {
		return w.store.Clean(err)
	}
	if err := w.bus.prepare(ctx); err != nil {
		return err
	}
	version, err := w.names.version(ctx, w.store.SQL)
	if err != nil {
		return w.store.Clean(err)
	}
	w.versions = [2]string{version, w.bus.version(ctx)}
	w.man()
	return nil
}

// lanes is the number of lanes of the tables, where there can be several.
const lanes = 8

// man fills the fleet.
func (w *world) man() {
	w.fleet = &fleet{command: w.cfg.Command, folder: w.folder, inbox: make(chan message, 256)}
	hurt := sabotages[w.cfg.Sabotage].role
	spared, immortal := "", ""
	switch w.cfg.Sabotage {
	case Repeat: // failures of relays explain duplicates
		spared, immortal = roleRelay, roleRelay
	case Stale: // a stale owner has survived
		immortal = roleRelay
	default: // all faults
	}
	add := func(role string, i int, rate float64, names ...string) {
		s := w.spec
		s.Role, s.Name, s.Rate, s.Topics = role, fmt.Sprintf("%s%d", role, i), rate, names
		if role != immortal {
			s.Die = 8 * w.cfg.FaultEvery
		}
		if role == roleConsumer { // a broker may wait for seconds before it passes the messages of a dead consumer on
			s.Die *= 3
		}
		// The producers of some kinds delay their events for longer.
		if role == hurt || role == roleProducer && (w.cfg.Sabotage == LoseDelayed || w.cfg.Sabotage == Early) {
			s.Sabotage = w.cfg.Sabotage
		}
		w.fleet.members = append(w.fleet.members, &member{spec: s})
	}
	for i := range 3 {
		add(roleRelay, i, 0)
	}
	for i := range 2 {
		add(roleProducer, i, w.cfg.Rate/2)
		add(roleRequester, i, math.Max(1, w.cfg.Rate/20))
		if scheme(w.spec.Sink) {
			add(roleConsumer, i, 0, topics...)
		} else {
			add(roleConsumer, i, 0, topics[i])
		}
	}
	w.plan = newPlan(w.cfg.Seed, w.cfg.FaultEvery, w.cfg.Lease, spared)
	if w.cfg.Sabotage == Stale {
		w.plan.always = pauseLong
	}
	w.tally.acquired = w.acquired
}

// scheme reports whether consumers share topics at a sink.
func scheme(address string) bool {
	u, _, err := settings.ParseURL(address)
	return err == nil && shares(u.Scheme)
}

// acquired ends the take-over of a lane.
func (w *world) acquired(_ string, lane int, at time.Time) {
	var left []*handOver
	for _, h := range w.waiting {
		if at.After(h.at) && h.lanes[lane] {
			delete(h.lanes, lane)
			if len(h.lanes) == 0 {
				w.takeOver = append(w.takeOver, at.Sub(h.at))
				continue
			}
		}
		left = append(left, h)
	}
	w.waiting = left
}

// died begins the take-over of the lanes of a relay.
func (w *world) died(name string, at time.Time) {
	h := &handOver{at: at, lanes: make(map[int]bool)}
	for _, n := range w.tally.lanesOf(name) {
		h.lanes[n] = true
	}
	if len(h.lanes) > 0 {
		w.waiting = append(w.waiting, h)
	}
}

// close removes everything of the run, unless it is kept.
func (w *world) close() error {
	if w.fleet != nil {
		w.fleet.end()
	}
	var errs []error
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	remove := !w.cfg.Keep
	if w.bus != nil {
		if remove {
			errs = append(errs, w.bus.remove(ctx))
		}
		w.bus.close()
	}
	if w.store != nil {
		if remove {
			_, err := w.names.drop(ctx, w.store.SQL)
			errs = append(errs, w.store.Clean(err))
		}
		errs = append(errs, w.store.Close())
	}
	if w.nats != nil {
		w.nats.Close()
	}
	if remove {
		errs = append(errs, os.RemoveAll(w.folder))
	} else {
		fmt.Fprintf(w.cfg.Out, "kept: the tables and topics of %s, and the logs in %s; remove them with: waybill soak --cleanup %s\n", w.run, w.folder, w.run)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("soak: remove with waybill soak --cleanup %s: %w", w.run, err)
	}
	return nil
}

// Cleanup removes what a run left behind that was killed. It returns the number
// of tables.
func Cleanup(ctx context.Context, cfg Config, run string) (int, error) {
	if !runForm.MatchString(run) {
		return 0, fmt.Errorf("%w: %q is not the name of a run, such as soak_0123abcd", ErrConfig, run)
	}
	if cfg.Lease == 0 {
		cfg.Lease = time.Second
	}
	s, err := placeOf(&cfg, run)
	if err != nil {
		return 0, err
	}
	var errs []error
	n := 0
	if !cfg.Store.URL.IsZero() {
		db, err := connect.OpenStore(ctx, s.storeSettings(), false)
		if err != nil {
			return 0, err
		}
		n, err = tablesOf(db.Kind, s.Schema, s.Prefix).drop(ctx, db.SQL)
		errs = append(errs, db.Clean(err), db.Close())
	}
	if s.Sink != "" {
		b, err := openBus(ctx, &s, slog.New(slog.DiscardHandler))
		if err != nil {
			return n, errors.Join(append(errs, err)...)
		}
		errs = append(errs, b.remove(ctx))
		b.close()
	}
	return n, errors.Join(append(errs, os.RemoveAll(folderOf(run)))...)
}

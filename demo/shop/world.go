package shop

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/dashboard"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// world holds all parts of the demo.
type world struct {
	cfg   Config
	dir   string
	store *sqlitestore.Store
	line  Line

	ops          *admin.Outbox
	destinations *admin.Destinations
	groups       *admin.Inbox
	keys         *admin.Keys
	audit        *admin.Audit

	shop      *shop
	once      *httpkey.Middleware[*sql.Tx]
	customers *customers
	journal   *journal
	faults    *faults
	tally     *tally
	crossings *crossings
	screen    *screen

	inbox                 *inbox.Inbox[*sql.Tx]
	delivering, consuming *part
	publishing            *publishing
	courier               *courier

	running  *crew           // the background goroutines
	visiting context.Context // of the customers; its end aborts their requests
	leave    context.CancelFunc
	url      string         // of the shop
	closing  []func() error // in the order of opening
}

// crew runs goroutines in the background. The first failure ends all.
type crew struct {
	sync.WaitGroup
	ctx  context.Context
	stop context.CancelCauseFunc
}

func newCrew(ctx context.Context) *crew {
	// An interrupt of the demo must not stop the shop, which is stopped
	// gracefully later.
	ctx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	return &crew{ctx: ctx, stop: stop}
}

func (c *crew) do(run func(ctx context.Context) error) {
	c.Go(func() {
		if err := run(c.ctx); err != nil {
			c.stop(err)
		}
	})
}

// failure returns the error of a failed part, or nil.
func (c *crew) failure() error {
	if err := context.Cause(c.ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// open creates a running world, without customers and faults.
func open(ctx context.Context, cfg Config) (w *world, err error) {
	w = &world{cfg: cfg, tally: &tally{}, crossings: &crossings{}, running: newCrew(ctx), screen: newScreen(cfg), line: cfg.Line}
	w.visiting, w.leave = context.WithCancel(w.running.ctx)
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	for _, step := range []func(context.Context) error{w.openStore, w.openAdmin, w.openShop, w.openCourier, w.openLine, w.openRelay, w.openInventory, w.openDoor} {
		if err := step(ctx); err != nil {
			return w, err
		}
	}
	w.running.do(w.count)
	return w, nil
}

// close closes all parts, in reverse order of opening.
func (w *world) close() error {
	w.leave()
	if w.customers != nil {
		w.customers.under.Wait()
	}
	w.running.stop(nil)
	w.running.Wait()
	var errs []error
	for i := len(w.closing) - 1; i >= 0; i-- {
		errs = append(errs, w.closing[i]())
	}
	return errors.Join(errs...)
}

func (w *world) closeLater(fn func() error) { w.closing = append(w.closing, fn) }

func (w *world) openStore(ctx context.Context) error {
	dir, remove, err := folder(w.cfg.Dir)
	if err != nil {
		return err
	}
	w.dir = dir
	w.closeLater(remove)
	if w.store, err = sqlitestore.Open(filepath.Join(dir, file), sqlitestore.Config{}); err != nil {
		return err
	}
	w.closeLater(w.store.Close)
	if _, err := w.store.Migrate(ctx); err != nil {
		return err
	}
	if _, err := w.store.DB().ExecContext(ctx, tables); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	for _, sku := range products {
		if _, err := w.store.DB().ExecContext(ctx, `INSERT INTO product (sku, initial, left) VALUES (?1, ?2, ?2)`, sku, initialStock); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	return nil
}

func (w *world) openAdmin(context.Context) (err error) {
	cfg := admin.Config{Observe: w.cfg.Metrics.Hooks(), Logger: silent}
	if w.ops, err = admin.NewOutbox(w.store, cfg); err != nil {
		return err
	}
	if w.destinations, err = admin.NewDestinations(w.store, cfg); err != nil {
		return err
	}
	if w.groups, err = admin.NewInbox(w.store, cfg); err != nil {
		return err
	}
	if w.keys, err = admin.NewKeys(w.store, cfg); err != nil {
		return err
	}
	w.audit, err = admin.NewAudit(w.store, cfg)
	return err
}

// silent is the logger of all parts: log lines would tear the screen.
var silent = slog.New(slog.DiscardHandler)

// hooks returns the hooks for one part.
func (w *world) hooks() observe.Hooks { return w.crossings.watch(w.tally.watch(w.cfg.Metrics.Hooks())) }

func (w *world) openLine(ctx context.Context) error {
	w.closeLater(func() error { return w.line.Close() })
	return w.line.Open(ctx, Site{Dir: w.dir, Hooks: w.hooks(), Consumer: w.consumer, moment: w.moment})
}

func (w *world) openShop(context.Context) error {
	box, err := outbox.New(w.store, outbox.Config{Observe: w.hooks(), Logger: silent})
	if err != nil {
		return err
	}
	keys, err := idempotency.New(w.store, idempotency.Config{Observe: w.hooks(), Logger: silent})
	if err != nil {
		return err
	}
	if w.once, err = httpkey.New(keys, httpkey.Config{Scope: httpkey.Unscoped, Logger: silent}); err != nil {
		return err
	}
	w.journal = newJournal(box)
	w.running.do(w.journal.run)
	w.faults = &faults{began: time.Now(), log: w.journal, told: w.screen.tell, infos: infosFor(w.line.Words())}
	w.shop = &shop{box: box, faults: w.faults}
	return nil
}

func (w *world) openRelay(context.Context) error {
	w.publishing = &publishing{to: w.line.Sink(), faults: w.faults}
	if w.cfg.Sabotage != NoSabotage {
		w.publishing.to = &saboteur{kind: w.cfg.Sabotage, to: w.line.Sink(), again: w.shop.again, seen: map[waybill.ID]bool{}}
	}
	w.delivering = &part{run: func(ctx context.Context) error {
		db := w.store.Driver()
		db.Relay, db.Backlogs = watchedRelay{watched{db.Relay, w.crossings}, db.Relay, db.Relay}, watchedBacklogs{db.Backlogs, w.crossings}
		r, err := relay.NewTo(db, relay.Config{
			BackoffBase: 50 * time.Millisecond, BackoffMax: 500 * time.Millisecond, PollInterval: 200 * time.Millisecond, Observe: w.hooks(),
			Logger: silent,
		}, relay.Destination{Name: w.line.Words().Destination, Sink: border{atSink, w.publishing, w.crossings}}, relay.Destination{Name: "courier", Sink: w.courier})
		if err != nil {
			return err
		}
		return r.Run(ctx)
	}}
	w.running.do(w.delivering.keep)
	return nil
}

func (w *world) openInventory(context.Context) error {
	w.consuming = &part{run: w.line.Inventory}
	w.running.do(w.consuming.keep)
	return nil
}

// consumer returns the inventory of a line that runs it in this process.
func (w *world) consumer() (waybill.Sink, error) {
	consumer, err := w.inbox.Group(group, groupOptions)
	if err != nil {
		return nil, err
	}
	inbox.On(consumer, OrderPlaced, w.reserve)
	return border{atSource, &consuming{to: border{atInbox, consumer, w.crossings}, moment: w.moment}, w.crossings}, nil
}

// reserve is the handler of an inventory in this process: it subtracts the
// order from the stock.
func (w *world) reserve(ctx context.Context, tx *sql.Tx, ev waybill.Event, p Placed) error {
	if err := apply(ctx, tx, ev, p); err != nil {
		return err
	}
	switch w.moment(ctx, written) {
	case fails:
		return errInjected
	case panics:
		panic(errInjected)
	case dies:
		return context.Cause(ctx)
	case proceed:
	}
	return nil
}

// moment decides what happens to an inventory at a moment. If it dies, its end
// has come when moment returns.
func (w *world) moment(ctx context.Context, what moment) answer {
	switch what {
	case written:
		// The stock has changed and the transaction is open: a fault must leave
		// nothing behind.
		switch {
		case w.faults.strikes(handlerError):
			return fails
		case w.faults.strikes(handlerPanic):
			return panics
		case w.faults.strikes(consumerCrash):
			w.crash(ctx)
			return dies
		}
	case committed:
		if w.faults.strikes(ackLost) {
			w.crash(ctx)
			return dies
		}
	case replayed:
		w.tally.byInbox.Add(1)
	case missed:
		w.tally.inventory.Add(1)
	}
	return proceed
}

// crash ends the inventory in the middle of its work, and returns when its
// context has ended: that of a transaction in this process, or of the request
// of another process.
func (w *world) crash(ctx context.Context) {
	w.consuming.restart()
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second): // a transaction must not stay open forever
	}
}

// openDoor starts the shop's HTTP server.
func (w *world) openDoor(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.Handle("POST /orders", w.shop.lossy(w.once.WrapTx(w.shop.create)))
	mux.Handle("GET /metrics", w.cfg.Metrics.Handler())
	board, err := dashboard.New(dashboard.Config{
		Outbox: w.ops, Destinations: w.destinations, Inbox: w.groups, Groups: []string{group}, Keys: w.keys, Audit: w.audit, ShowPayloads: true, Title: "Waybill demo",
		Interval: time.Second, Logger: silent,
	})
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	mux.Handle(dashboardPath, localOnly(http.StripPrefix(strings.TrimSuffix(dashboardPath, "/"), board)))
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", w.cfg.Listen)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	door := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(silent.Handler(), slog.LevelError)}
	w.url = "http://" + socket.Addr().String()
	w.screen.url = w.url
	w.running.do(func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() { _ = door.Close() })()
		if err := door.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	w.closeLater(func() error { transport.CloseIdleConnections(); return nil })
	w.customers = &customers{
		url: w.url, client: &http.Client{Transport: transport, Timeout: 30 * time.Second}, faults: w.faults, log: w.journal, tally: w.tally,
		places: make(chan struct{}, maxCustomers),
	}
	return nil
}

// dashboardPath is where the dashboard is.
const dashboardPath = "/dashboard/"

// localOnly rejects requests for another host: a page whose name was pointed at
// this machine is not a local client.
func localOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if host, _, err := net.SplitHostPort(r.Host); err != nil || !loopback(host) {
			http.Error(w, "the host must be localhost or 127.0.0.1", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// countInterval is the interval between updates of the gauges.
const countInterval = 2 * time.Second

// count refreshes the gauges of the tables.
func (w *world) count(ctx context.Context) error {
	for {
		if err := w.countNow(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(countInterval):
		}
	}
}

// countNow sets the gauges of the tables.
func (w *world) countNow(ctx context.Context) error {
	if _, err := w.ops.Stats(ctx); err != nil {
		return err
	}
	if _, err := w.destinations.List(ctx); err != nil {
		return err
	}
	if _, err := w.groups.Stats(ctx, true); err != nil {
		return err
	}
	_, err := w.keys.Stats(ctx)
	return err
}

// reconcile runs the job that finds events without an inbox record. It only
// reports: a repair would hide a sabotage.
func (w *world) reconcile(ctx context.Context) error {
	job := reconcile.UnrecordedReport(w.store, group, 7*24*time.Hour, nil)
	job.MinAge = -1
	rec, err := reconcile.New(w.store, []reconcile.Job{job}, reconcile.Config{Observe: w.cfg.Metrics.Hooks(), Logger: silent})
	if err != nil {
		return err
	}
	_, err = rec.RunOnce(ctx, job.Name)
	return err
}

// Command service is one process with everything that a service needs: an HTTP
// API with idempotency keys, an outbox, a relay, a consumer group, metrics,
// health, logs, and a shutdown in the right order. Copy it and replace the
// orders.
//
//	DATABASE_URL=postgres://localhost/shop go run ./internal/e2e/examples/service
//	curl -i localhost:8080/orders -H 'Authorization: ada' -H 'Idempotency-Key: "1"' -d '{"sku":"tea"}'   # twice
//	curl localhost:8080/metrics
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"golang.org/x/sync/errgroup"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/observe/otelobserve"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/pgstore"
)

// Order is the API's resource and the payload of OrderPlaced.
type Order struct {
	ID  string `json:"id"`
	SKU string `json:"sku"`
}

var OrderPlaced = waybill.Define[Order]("OrderPlaced", waybill.Spec{AggregateType: "order"})

const tables = `CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, sku text NOT NULL, reserved boolean NOT NULL DEFAULT false)`

// drain is the time that requests and deliveries in flight get to end. The
// platform must wait longer before it kills the process: 30 s in Kubernetes.
const drain = 10 * time.Second

func main() {
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, nil)))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		slog.Error("the service ends", slog.String("error", err.Error()))
		os.Exit(1)
	}
}

// run runs the service until ctx ends or a part of it fails.
func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	s, err := newService(ctx, pool)
	if err != nil {
		return err
	}

	// The parts do not stop with ctx but behind the requests: a request in
	// flight finds the relay at work.
	parts, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	all, failed := errgroup.WithContext(parts)
	for _, part := range []func(context.Context) error{s.relay.Run, s.inbox.Run, s.keys.Run} {
		all.Go(func() error { return part(failed) })
	}

	server := &http.Server{Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second}
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cmp.Or(os.Getenv("ADDR"), "localhost:8080"))
	if err != nil {
		return err
	}
	fmt.Printf("Listening on http://%s\n", socket.Addr())
	all.Go(func() error {
		if err := server.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})

	select {
	case <-ctx.Done(): // SIGTERM
	case <-failed.Done(): // a part has failed; Wait returns its error
	}
	// 1. No new requests; those in flight finish.
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	err = server.Shutdown(late)
	// 2. The relay finishes its deliveries and releases its lanes, so that
	// another process continues at once; the inbox and the keys finish, too.
	stop()
	err = errors.Join(err, all.Wait())
	// 3. The last metrics go out, and the pool closes behind its users.
	return errors.Join(err, s.metrics.Shutdown(late))
}

// service holds the parts.
type service struct {
	pool    *pgxpool.Pool
	box     *outbox.Outbox[pgx.Tx]
	keys    *idempotency.Keys[pgx.Tx]
	once    *httpkey.Middleware[pgx.Tx]
	inbox   *inbox.Inbox[pgx.Tx]
	relay   *relay.Relay
	metrics *metric.MeterProvider
}

func newService(ctx context.Context, pool *pgxpool.Pool) (*service, error) {
	exporter, err := prometheus.New(prometheus.WithoutScopeInfo())
	if err != nil {
		return nil, err
	}
	s := &service{pool: pool, metrics: metric.NewMeterProvider(metric.WithReader(exporter))}
	o, err := otelobserve.New(otelobserve.Config{MeterProvider: s.metrics})
	if err != nil {
		return nil, err
	}
	db, err := pgstore.New(pool, pgstore.Config{})
	if err != nil {
		return nil, err
	}
	// Or waybill migrate up, as a role that may create tables.
	if _, err := db.Migrate(ctx); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, tables); err != nil {
		return nil, err
	}
	if s.box, err = outbox.New(db, outbox.Config{Observe: o.Hooks()}); err != nil {
		return nil, err
	}
	if s.keys, err = idempotency.New(db, idempotency.Config{Observe: o.Hooks()}); err != nil {
		return nil, err
	}
	if s.once, err = httpkey.New(s.keys, httpkey.Config{Scope: customer}); err != nil {
		return nil, err
	}
	if s.inbox, err = inbox.New(db, inbox.Config{Observe: o.Hooks()}); err != nil {
		return nil, err
	}
	inventory := s.inbox.MustGroup("INVENTORY", inbox.Options{})
	inbox.On(inventory, OrderPlaced, reserve)
	// The group is the relay's sink. With a broker, the relay's sink is the
	// broker, and a source passes its messages to the group.
	s.relay, err = relay.New(db, inventory, relay.Config{Observe: o.Hooks(), DrainTimeout: drain})
	return s, err
}

func (s *service) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /orders", s.once.WrapTx(s.create))
	mux.Handle("GET /metrics", promhttp.Handler())
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {}) // the process answers
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := s.pool.Ping(r.Context()); err != nil {
			http.Error(w, "the database does not answer", http.StatusServiceUnavailable)
		}
	})
	return mux
}

// create places an order. Order, event, key and answer are one commit.
func (s *service) create(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
	var o Order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.SKU == "" {
		http.Error(w, "an order has a sku", http.StatusBadRequest)
		return nil // this answer is stored, too
	}
	o.ID = waybill.NewID().String()
	ctx := r.Context()
	if _, err := tx.Exec(ctx, `INSERT INTO orders (id, sku) VALUES ($1, $2)`, o.ID, o.SKU); err != nil {
		return err // rolls everything back, the key included
	}
	if err := s.box.Write(ctx, tx, OrderPlaced.New(o.ID, o)); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	return json.NewEncoder(w).Encode(o)
}

// reserve applies an OrderPlaced once.
func reserve(ctx context.Context, tx pgx.Tx, _ waybill.Event, o Order) error {
	_, err := tx.Exec(ctx, `UPDATE orders SET reserved = true WHERE id = $1`, o.ID)
	return err
}

// customer returns the owner of an idempotency key. Replace it with the
// authenticated user.
func customer(r *http.Request) (httpkey.Scope, error) {
	return httpkey.Scope{Principal: r.Header.Get("Authorization")}, nil
}

package pgstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/private"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/drivertest"
	"github.com/waybillhq/waybill/store/pgstore"
)

// bouncer returns a pool through PgBouncer, with pgx's execution mode in the
// URL.
func bouncer(t *testing.T, poolMode, execMode string) *pgxpool.Pool {
	t.Helper()
	dsn := private.PgBouncer(t, testserver.Postgres(t), poolMode)
	if execMode != "" {
		dsn += "&default_query_exec_mode=" + execMode
	}
	return openPoolAt(t, dsn, nil)
}

// The whole suite, through PgBouncer in transaction mode, with the setting that
// docs/operating.md names.
func TestConformancePooler(t *testing.T) {
	t.Parallel()
	pool := bouncer(t, "transaction", "exec")
	drivertest.Run(t, drivertest.Harness[pgx.Tx]{
		Name: "pgstore/exec", Features: all, SkipLarge: !testserver.Full(),
		Open: shelve(t, pool).pgx,
	})
}

// prepares returns a pool through a PgBouncer that keeps prepared statements.
// The URL has no setting.
func prepares(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return openPoolAt(t, private.NewPgBouncer(t, testserver.Postgres(t), "transaction", "max_prepared_statements = 200"), nil)
}

// The suite through a PgBouncer that keeps prepared statements, without a
// setting.
func TestConformancePoolerPrepares(t *testing.T) {
	if !testserver.Full() {
		t.Skip("make test-stores-full runs it; TestPoolerEndToEnd has this PgBouncer, too")
	}
	pool := prepares(t)
	drivertest.Run(t, drivertest.Harness[pgx.Tx]{
		Name: "pgstore/prepares", Features: all,
		Open: shelve(t, pool).pgx,
	})
}

// flood writes events with several writers, lets a relay deliver them, and
// returns the first error.
func flood(t *testing.T, pool *pgxpool.Pool, events int) error {
	t.Helper()
	_, schema := openStore(t, openPool(t, nil))
	db, err := pgstore.New(pool, pgstore.Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var seen atomic.Int64
	all := make(chan struct{})
	r, err := relay.New(db, relay.SinkFunc(func(context.Context, waybill.Delivery) error {
		if seen.Add(1) == int64(events) {
			close(all)
		}
		return nil
	}), relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ended, written := make(chan error, 1), make(chan error, 4)
	go func() { ended <- r.Run(running) }()
	for w := range 4 {
		go func() {
			const batch = 50
			for i := 0; i < events/4; i += batch {
				evs := make([]waybill.Event, min(batch, events/4-i))
				for j := range evs {
					evs[j] = waybill.Event{Type: "A", AggregateID: fmt.Sprint(w, i%7), Payload: []byte("1")}
				}
				err := box.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, evs...) })
				if err != nil {
					written <- err
					return
				}
			}
			written <- nil
		}()
	}
	var first error
	for range 4 {
		if err := <-written; err != nil && first == nil {
			first = err
		}
	}
	if first == nil {
		select {
		case <-all:
		case err := <-ended:
			stop()
			return fmt.Errorf("the relay ended: %w", err)
		case <-ctx.Done():
			first = ctx.Err()
		}
	}
	stop()
	if err := <-ended; first == nil {
		first = err
	}
	return first
}

// 10,000 events go from writers to a relay through PgBouncer in transaction
// mode.
func TestPoolerEndToEnd(t *testing.T) {
	for _, mode := range []string{"exec", "simple_protocol", "cache_describe"} {
		t.Run(mode, func(t *testing.T) {
			events := 1000
			if mode == "exec" {
				events = 10_000
			}
			if err := flood(t, bouncer(t, "transaction", mode), events); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("max_prepared_statements", func(t *testing.T) {
		if err := flood(t, prepares(t), 10_000); err != nil {
			t.Error(err)
		}
	})
	// In session mode a session belongs to one client: no setting is needed.
	t.Run("session mode", func(t *testing.T) {
		if err := flood(t, bouncer(t, "session", ""), 1000); err != nil {
			t.Error(err)
		}
	})
}

// Without the setting, the error names the setting. Transactions of several
// statements cannot work in statement mode at all.
func TestPoolerErrorSaysWhatToSet(t *testing.T) {
	err := flood(t, bouncer(t, "transaction", ""), 1000)
	if err == nil || !strings.Contains(err.Error(), "default_query_exec_mode=exec") {
		t.Errorf("in transaction mode, without the setting: %v", err)
	}
	if err := flood(t, bouncer(t, "statement", "exec"), 100); err == nil {
		t.Error("statement mode works")
	} else {
		t.Log(err)
	}
}

// A relay behind a pooler is woken over ListenURL.
func TestListenURL(t *testing.T) {
	direct := openPool(t, nil)
	db, schema := openStore(t, direct)
	through, err := pgstore.New(bouncer(t, "transaction", "exec"), pgstore.Config{Schema: schema, ListenURL: testserver.Postgres(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	woken := make(chan struct{}, 100)
	ended := make(chan struct{})
	go func() { defer close(ended); through.Driver().Watcher.Watch(ctx, func() { woken <- struct{}{} }) }()
	<-woken // the listener is connected
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	err = box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		return box.Write(ctx, tx, waybill.Event{Type: "A", Payload: []byte("1")})
	})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-woken:
	case <-time.After(time.Minute):
		t.Error("the relay was not woken")
	}
	cancel()
	<-ended
	if _, err := pgstore.New(direct, pgstore.Config{ListenURL: "postgres://u:secret@:x"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a ListenURL that cannot be read: %v", err)
	}
}

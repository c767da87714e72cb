package pgstore_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/private"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/pgstore"
)

// The heartbeat of a relay on a read-only connection fails with an error that
// adds the reason to the server's message.
func TestRelayOnAReadOnlyConnection(t *testing.T) {
	pool := openPool(t, nil)
	_, schema := openStore(t, pool)
	only := openPool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on" })
	db, err := pgstore.New(only, pgstore.Config{Schema: schema, NotifyInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.Driver().Relay.Heartbeat(t.Context(), store.Node{ID: waybill.NewID(), Relay: "relay"}, time.Minute)
	if err == nil || !containsAll(err.Error(), "default_transaction_read_only") {
		t.Errorf("got %v, want a hint", err)
	}
}

// A relay that starts against a standby returns an error that names the standby
// and the address to use instead. A relay that is running when its server
// becomes a standby gets the same error.
func TestRelayOnAStandby(t *testing.T) {
	server := private.Start(t, testserver.PostgresName)
	pool := openPoolAt(t, server.DSN, nil)
	db, err := pgstore.New(pool, pgstore.Config{NotifyInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	node := store.Node{ID: waybill.NewID(), Relay: "relay"}
	if _, err := db.Driver().Relay.Heartbeat(t.Context(), node, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A server with this file stays in recovery for as long as it runs, as a
	// copy of a primary does.
	if err := os.WriteFile(filepath.Join(server.Data, "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	pool.Reset()
	check := func(node string, err error) {
		t.Helper()
		if err == nil || !containsAll(err.Error(), "standby", "pg_is_in_recovery", "target_session_attrs=primary") {
			t.Errorf("%s: got %v, want a hint", node, err)
		}
	}
	_, err = db.Driver().Relay.Heartbeat(t.Context(), node, time.Hour)
	check("a relay that runs", err)
	_, err = db.Driver().Relay.Heartbeat(t.Context(), store.Node{ID: waybill.NewID(), Relay: "relay"}, time.Hour)
	check("a node that joins", err)
	r, err := relay.New(db, relay.SinkFunc(func(context.Context, waybill.Delivery) error { return errors.New("not reached") }), relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	check("a relay that starts", r.Run(t.Context()))
}

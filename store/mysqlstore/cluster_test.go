package mysqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// clusterStore returns a store with tables on a server of its own.
func clusterStore(t *testing.T, s manage.Server, cfg mysqlstore.Config) (*mysqlstore.Store, *sql.DB) {
	t.Helper()
	dsn, err := mysql.ParseDSN(s.DSN)
	if err != nil {
		t.Fatal(err)
	}
	db := pool(t, dsn)
	box, err := mysqlstore.New(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return box, db
}

func beat(t *testing.T, s *mysqlstore.Store) error {
	t.Helper()
	_, err := s.Driver().Relay.Heartbeat(t.Context(), store.Node{ID: waybill.NewID(), Relay: "r"}, time.Minute)
	return err
}

// A relay refuses a node of a Galera cluster, also if a writer has used the
// store before, and works there if all relays and writers use one node.
func TestGalera(t *testing.T) {
	t.Parallel()
	server := private.Galera(t)
	refused, db := clusterStore(t, server, mysqlstore.Config{})
	if size := ask[string](t, db, "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'wsrep_cluster_size'"); size != "1" {
		t.Fatalf("the cluster has %q nodes", size)
	}
	box, err := outbox.New(refused, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	const events = 200
	for i := range events {
		ev := waybill.Event{Type: "Tested", AggregateID: fmt.Sprint(i % 7), Payload: fmt.Append(nil, i)}
		if err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error { return box.Write(ctx, tx, ev) }); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the answer is not remembered
		if err := beat(t, refused); err == nil || !containsAll(err.Error(), "Galera", "one node", "Config.OneNode", "store.one-node") {
			t.Errorf("Heartbeat: %v, want that Galera is refused", err)
		}
	}

	one, _ := clusterStore(t, server, mysqlstore.Config{OneNode: true})
	var delivered atomic.Int64
	r, err := relay.New(one, relay.SinkFunc(func(context.Context, waybill.Delivery) error {
		delivered.Add(1)
		return nil
	}), relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Once(t.Context()); err != nil || delivered.Load() != events {
		t.Errorf("%d events delivered, %v", delivered.Load(), err)
	}
}

// A relay refuses a replication group with several primaries, and accepts one
// with a single primary.
func TestGroupOfPrimaries(t *testing.T) {
	t.Parallel()
	server := private.Start(t, testserver.MySQLName)
	s, db := clusterStore(t, server, mysqlstore.Config{})
	exec(t, db, "INSTALL PLUGIN group_replication SONAME 'group_replication.so'")
	exec(t, db, "SET GLOBAL group_replication_single_primary_mode = OFF")
	if err := beat(t, s); err != nil {
		t.Errorf("a server without a group: %v", err)
	}
	exec(t, db, "SET GLOBAL group_replication_group_name = '4f1d8a43-6a43-4b38-9a53-9ce28b38a0e1'")
	fresh, _ := clusterStore(t, server, mysqlstore.Config{})
	if err := beat(t, fresh); err == nil || !containsAll(err.Error(), "several primaries", "group_replication_single_primary_mode", "Config.OneNode") {
		t.Errorf("Heartbeat: %v, want that several primaries are refused", err)
	}
	one, _ := clusterStore(t, server, mysqlstore.Config{OneNode: true})
	if err := beat(t, one); err != nil {
		t.Errorf("OneNode: %v", err)
	}
	exec(t, db, "SET GLOBAL group_replication_single_primary_mode = ON")
	single, _ := clusterStore(t, server, mysqlstore.Config{})
	if err := beat(t, single); err != nil {
		t.Errorf("a single primary: %v", err)
	}
}

func containsAll(text string, parts ...string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}

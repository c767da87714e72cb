//go:build linux || darwin

package upgrade_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	// the driver of PostgreSQL
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/e2e/process/journal"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
	"github.com/waybillhq/waybill/store/pgstore"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// TestUpgradeToDestinations: a writer and a relay of the version before
// destinations continue while the tables are migrated. A relay with
// destinations is refused while the old relay runs, and takes over when the old
// one has stopped, while the old writer and a new one write. Every order
// arrives at both destinations once and in order, and an old relay is refused
// on the new tables.
func TestUpgradeToDestinations(t *testing.T) {
	t.Parallel()
	program := build(t, beforeDestinations)
	for _, kind := range []string{testserver.PostgresName, testserver.MariaDBName, testserver.MySQLName, sqlite} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			u := newUpgrade(t, kind, program)
			if err := u.old("migrate").wait(); err != nil {
				t.Fatal(err)
			}
			writer, before := u.old("write"), u.old("relay")
			u.await("the old relay delivers", func() bool { return u.delivered() > 50 })

			if applied, err := u.db.Migrator.Migrate(t.Context()); err != nil || len(applied) == 0 {
				t.Fatalf("Migrate: %d migrations, %v", len(applied), err)
			}
			written, delivered := writer.number.Load(), u.delivered()
			u.await("the old programs go on", func() bool { return writer.number.Load() > written+50 && u.delivered() > delivered+50 })
			u.wantReport(false)
			u.newRelayIsRefused()
			u.secondDown.Store(true)
			before.stop()
			u.start()
			u.write(200)
			written = writer.number.Load()
			u.await("the old writer goes on", func() bool { return writer.number.Load() > written+100 })
			u.await("the first destination has new orders", func() bool { return u.count("first") > 200 })
			u.oldRelayIsRefused()
			u.secondDown.Store(false)
			u.write(50)
			writer.stop()
			u.awaitDelivered()
			u.wantReport(true)
			u.check(int(writer.number.Load()))
		})
	}
}

// wantReport asserts whether the node that is live reports its process: a node
// of the old version does not.
func (u *upgrade) wantReport(want bool) {
	u.Helper()
	s, err := u.db.OutboxAdmin.Stats(u.Context())
	if err != nil || len(s.Nodes) != 1 || (s.Nodes[0].Report != "") != want {
		u.Errorf("the nodes are %+v, %v; want one, with a report: %v", s.Nodes, err, want)
	}
}

// patience is how long a condition may take to become true: long enough for a
// loaded machine.
const patience = 60 * time.Second

// upgrade is an outbox on its way to the new layout.
type upgrade struct {
	*testing.T
	kind, source, program string
	journal               string // of the old relay
	db                    driver.Roles[*sql.Tx]
	written               int // by this process

	secondDown atomic.Bool
	mu         sync.Mutex
	got        map[string][]string // destination: aggregate/number
}

// sqlite is a kind of database: a file, which needs no server.
const sqlite = "sqlite"

// newUpgrade creates a database.
func newUpgrade(t *testing.T, kind, program string) *upgrade {
	t.Helper()
	u := &upgrade{T: t, kind: kind, program: program, journal: filepath.Join(t.TempDir(), "journal"), got: map[string][]string{}}
	if kind == sqlite {
		u.source = filepath.Join(t.TempDir(), "upgrade.db")
		db, err := sqlitestore.Open(u.source, sqlitestore.Config{})
		must(t, err)
		t.Cleanup(func() { _ = db.Close() })
		u.db = db.Driver()
		return u
	}
	name := "upgrade_" + strings.ToLower(waybill.NewID().String())
	server, engine := testserver.Address(t, kind), "mysql"
	if kind == testserver.PostgresName {
		engine = "pgx"
		at, err := url.Parse(server)
		must(t, err)
		at.Path = "/" + name
		u.source = at.String()
	} else {
		at, err := mysql.ParseDSN(server)
		must(t, err)
		at.DBName = name
		u.source = at.FormatDSN()
	}
	admin, err := sql.Open(engine, server)
	must(t, err)
	t.Cleanup(func() { _ = admin.Close() })
	_, err = admin.ExecContext(t.Context(), `CREATE DATABASE `+name)
	must(t, err)
	t.Cleanup(func() {
		drop := `DROP DATABASE ` + name
		if kind == testserver.PostgresName {
			drop += ` WITH (FORCE)`
		}
		if _, err := admin.ExecContext(context.WithoutCancel(t.Context()), drop); err != nil {
			t.Error(err)
		}
	})
	pool, err := sql.Open(engine, u.source)
	must(t, err)
	t.Cleanup(func() { _ = pool.Close() })
	if kind == testserver.PostgresName {
		db, err := pgstore.NewSQL(pool, pgstore.Config{Lanes: 4})
		must(t, err)
		u.db = db.Driver()
		return u
	}
	db, err := mysqlstore.New(pool, mysqlstore.Config{Lanes: 4})
	must(t, err)
	u.db = db.Driver()
	return u
}

// old starts a program of the earlier version.
func (u *upgrade) old(role string) *old {
	u.Helper()
	return start(u.T, u.program, role, u.kind, u.source, u.journal)
}

func (u *upgrade) await(what string, ok func() bool) {
	u.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for !ok() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline.C:
			u.Fatalf("waited in vain for this: %s", what)
		}
	}
}

// records returns what the old relay has delivered.
func (u *upgrade) records() []journal.Record {
	u.Helper()
	all, err := journal.Read(u.journal)
	must(u.T, err)
	return all
}

func (u *upgrade) delivered() int { return len(u.records()) }

// count returns the number of orders that a destination has.
func (u *upgrade) count(destination string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.got[destination])
}

// relay returns a relay with two destinations.
func (u *upgrade) relay(cfg relay.Config) *relay.Relay {
	u.Helper()
	cfg.PollInterval, cfg.Heartbeat, cfg.Lease = 50*time.Millisecond, 200*time.Millisecond, 5*time.Second
	cfg.BackoffBase, cfg.BackoffMax = 20*time.Millisecond, 200*time.Millisecond
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r, err := relay.NewTo(u.db, cfg, u.destination("first", nil), u.destination("second", &u.secondDown))
	must(u.T, err)
	return r
}

func (u *upgrade) destination(name string, down *atomic.Bool) relay.Destination {
	return relay.Destination{Name: name, Sink: relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		if down != nil && down.Load() {
			return waybill.Unavailable(errors.New("down"))
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		u.got[name] = append(u.got[name], d.AggregateID+"/"+string(d.Payload))
		return nil
	})}
}

// newRelayIsRefused: while the old relay runs, a relay with destinations cannot
// start, not even to take over. The old relay goes on.
func (u *upgrade) newRelayIsRefused() {
	u.Helper()
	if err := u.relay(relay.Config{}).Run(u.Context()); !errors.Is(err, waybill.ErrOtherSink) {
		u.Errorf("a relay with destinations beside an old relay: %v", err)
	}
	if err := u.relay(relay.Config{TakeOver: true}).Run(u.Context()); !errors.Is(err, store.ErrRelayLive) {
		u.Errorf("a relay with destinations that takes over from a live relay: %v", err)
	}
	delivered := u.delivered()
	u.await("the old relay goes on", func() bool { return u.delivered() > delivered })
}

// start starts the new relay.
func (u *upgrade) start() {
	u.Helper()
	var log bytes.Buffer
	r := u.relay(relay.Config{TakeOver: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	ctx, cancel := context.WithCancel(u.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	u.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			u.Errorf("Run: %v", err)
		}
		if u.Failed() {
			u.Logf("the new relay:\n%s", log.String())
		}
	})
}

// oldRelayIsRefused: an old relay does not start on the new tables, and says
// why.
func (u *upgrade) oldRelayIsRefused() {
	u.Helper()
	p := u.old("relay")
	if err := p.wait(); err == nil {
		u.Error("an old relay has run on the new tables")
	}
	if text := p.said(); !strings.Contains(text, "newer") || !strings.Contains(text, "migration") {
		u.Errorf("the old relay says: %s", text)
	}
	u.Logf("the old relay says: %s", p.said())
}

// write commits n orders of this version.
func (u *upgrade) write(n int) {
	u.Helper()
	box, err := outbox.New(u.db, outbox.Config{})
	must(u.T, err)
	for range n {
		ev := waybill.NewEvent("OrderPlaced", u.written/8+1)
		ev.AggregateType, ev.AggregateID = "account", fmt.Sprint("new", u.written%8)
		must(u.T, box.InTx(u.Context(), func(ctx context.Context, tx *sql.Tx) error { return box.Write(ctx, tx, ev) }))
		u.written++
	}
}

// awaitDelivered waits until no event is pending.
func (u *upgrade) awaitDelivered() {
	u.Helper()
	u.await("all orders are delivered", func() bool {
		parts := []driver.Inspector{u.db.OutboxAdmin}
		all, err := u.db.Backlogs.AddDestinations(u.Context())
		must(u.T, err)
		for _, d := range all {
			parts = append(parts, u.db.Backlogs.Backlog(d.Number))
		}
		var pending int64
		for _, part := range parts {
			s, err := part.Stats(u.Context())
			must(u.T, err)
			pending += s.Ready + s.Failed + s.Scheduled + s.Dead
		}
		return pending == 0
	})
}

// check reports orders that did not arrive once and in order: at the old relay,
// or after it at each destination.
func (u *upgrade) check(written int) {
	u.Helper()
	var before []string
	for _, r := range u.records() {
		before = append(before, r.Name())
	}
	if len(before) == 0 || written == 0 {
		u.Fatalf("%d orders were written, and %d delivered before", written, len(before))
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, destination := range []string{"first", "second"} {
		last, total := map[string]int{}, 0
		for _, name := range append(before[:len(before):len(before)], u.got[destination]...) {
			var number int
			aggregate, text, _ := strings.Cut(name, "/")
			if _, err := fmt.Sscan(text, &number); err != nil {
				u.Fatal(err)
			}
			if number != last[aggregate]+1 {
				u.Fatalf("%s: order %s came after order %d", destination, name, last[aggregate])
			}
			last[aggregate], total = number, total+1
		}
		if total != written+u.written {
			u.Errorf("%s: %d orders arrived, want %d", destination, total, written+u.written)
		}
	}
	u.Logf("%d orders before, %d at the first destination", len(before), len(u.got["first"]))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

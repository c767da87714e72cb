//go:build unix

package clusters_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	_ "github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill/cmd/waybill/internal/soak"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
)

// TestMySQLKilled: the primary of a replication group is killed, another member
// takes over, and the old one joins again. Every promise is kept.
func TestMySQLKilled(t *testing.T) {
	failures(t)
	runMySQL(t, false)
}

// TestMySQLFrozen: the primary hangs until the group has expelled it, continues
// beside its successor, and joins again. Every promise is kept.
func TestMySQLFrozen(t *testing.T) {
	failures(t)
	runMySQL(t, true)
}

func runMySQL(t *testing.T, frozen bool) {
	t.Helper()
	runGroup(t, &group{
		Cluster: private.MySQLGroup(t, 3), frozen: frozen,
		serves: `SELECT COUNT(*) FROM performance_schema.replication_group_members
WHERE MEMBER_ROLE = 'PRIMARY' AND MEMBER_STATE = 'ONLINE' AND MEMBER_ID = @@server_uuid AND NOT @@super_read_only`,
		size: "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'",
	})
}

// runGroup soaks on the servers of a group, behind a proxy, while the one that
// serves fails.
func runGroup(t *testing.T, g *group) {
	t.Helper()
	g.proxy = newForwarder(t)
	if err := g.follow(t.Context(), -1); err != nil {
		t.Fatal(err)
	}
	run(t, g, fmt.Sprintf("mysql://waybill:waybill@%s/waybill", g.proxy.Addr()), "")
}

// group is a set of MySQL or MariaDB servers with the same data, of which one
// serves all clients, behind a proxy.
type group struct {
	*manage.Cluster
	proxy   *forwarder
	primary int
	frozen  bool
	// serves is a query that returns 1 on a server that may serve clients, and
	// size one that returns the number of servers that it sees.
	serves, size string
	oneNode      bool
}

// configure implements configurer.
func (g *group) configure(cfg *soak.Config) { cfg.Store.OneNode = g.oneNode }

// follow waits until another server than the given one may serve clients, and
// lets the proxy connect to it.
func (g *group) follow(ctx context.Context, than int) error {
	return until(ctx, func(ctx context.Context) bool {
		for i, s := range g.Servers {
			if i == than {
				continue
			}
			if n, err := count(ctx, s, g.serves); err == nil && n == 1 {
				g.primary = i
				g.proxy.to(s.Port)
				return true
			}
		}
		return false
	})
}

func (g *group) fail(ctx context.Context, _ int, served func(ctx context.Context) error) error {
	old := g.primary
	fault, rejoin := g.Servers[old].Kill, func(ctx context.Context) error { return g.Restart(ctx, old) }
	if g.frozen {
		fault, rejoin = g.Servers[old].Freeze, g.Servers[old].Thaw
	}
	if err := fault(ctx); err != nil {
		return err
	}
	if err := g.follow(ctx, old); err != nil {
		return err
	}
	if err := served(ctx); err != nil {
		return err
	}
	// The others do the work for a while.
	if err := arrive(ctx, g); err != nil {
		return err
	}
	if err := rejoin(ctx); err != nil {
		return err
	}
	// A member that was frozen believes for a while that it was never away.
	return until(ctx, func(ctx context.Context) bool { return g.Whole(ctx) == nil && g.complete(ctx) })
}

// complete reports whether the serving server sees all others.
func (g *group) complete(ctx context.Context) bool {
	n, err := count(ctx, g.Servers[g.primary], g.size)
	return err == nil && n == len(g.Servers)
}

// count asks a server for a number.
func count(ctx context.Context, s manage.Server, query string) (n int, err error) {
	err = doMySQL(s.DSN, func(db *sql.DB) error { return db.QueryRowContext(ctx, query).Scan(&n) })
	return n, err
}

func (g *group) url() string { return fmt.Sprintf("waybill:waybill@tcp(%s)/waybill", g.proxy.Addr()) }

func (g *group) served(ctx context.Context) error {
	return until(ctx, func(ctx context.Context) bool {
		return doMySQL(g.url(), func(db *sql.DB) error {
			_, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS served (n INT AUTO_INCREMENT PRIMARY KEY)")
			if err == nil {
				_, err = db.ExecContext(ctx, "INSERT INTO served VALUES ()")
			}
			return err
		}) == nil
	})
}

// progress counts the effects on the primary.
func (g *group) progress(ctx context.Context) (n int, err error) {
	err = doMySQL(g.url(), func(db *sql.DB) error {
		var table string
		err := db.QueryRowContext(ctx, "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'soak%effect'").Scan(&table)
		if err != nil {
			return err
		}
		return db.QueryRowContext(ctx, "SELECT COUNT(*) FROM `"+table+"`").Scan(&n)
	})
	return n, err
}

// doMySQL opens the database for one purpose.
func doMySQL(dsn string, f func(db *sql.DB) error) error {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	return errors.Join(f(db), db.Close())
}

// forwarder is a proxy that connects its clients to one server, and closes
// their connections when the server changes.
type forwarder struct {
	net.Listener
	mu     sync.Mutex
	server string
	open   map[net.Conn]bool
	wg     sync.WaitGroup
}

func newForwarder(t *testing.T) *forwarder {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &forwarder{Listener: l, open: make(map[net.Conn]bool)}
	f.wg.Go(f.serve)
	t.Cleanup(func() {
		_ = f.Close()
		f.to(0)
		f.wg.Wait()
	})
	return f
}

// to changes the server.
func (f *forwarder) to(port int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.server = fmt.Sprintf("127.0.0.1:%d", port)
	for conn := range f.open {
		_ = conn.Close()
	}
	clear(f.open)
}

func (f *forwarder) serve() {
	for {
		client, err := f.Accept()
		if err != nil {
			return
		}
		f.wg.Go(func() { f.connect(client) })
	}
}

// connect serves a client until either side closes its connection.
func (f *forwarder) connect(client net.Conn) {
	defer client.Close() //nolint:errcheck // one of many ends
	f.mu.Lock()
	server, err := net.Dial("tcp", f.server) //nolint:noctx // on loopback it fails at once
	if err == nil {
		f.open[client], f.open[server] = true, true
	}
	f.mu.Unlock()
	if err != nil {
		return
	}
	defer server.Close() //nolint:errcheck // one of many ends
	f.wg.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	_, _ = io.Copy(client, server)
	_ = client.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, client)
	delete(f.open, server)
}

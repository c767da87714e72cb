package mysqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// servers are two servers with the same tables, a and b, and a pool that
// connects to one of them, as a proxy does. The tests copy the rows that
// replication would have copied. One is MariaDB and the other MySQL: their
// names differ, and nothing else matters here. A real failover is in
// cmd/waybill/internal/clusters.
type servers struct {
	*testing.T
	pools [2]*sql.DB // one of each server
	at    atomic.Int64
	to    [2]string // addresses
	name  string
	// dial, if set, is called for each connection.
	dial func()
}

// The servers.
const (
	a = 0
	b = 1
)

// onServers runs a test with either server as the first primary.
func onServers(t *testing.T, test func(t *servers)) {
	t.Helper()
	names := []string{testserver.MariaDBName, testserver.MySQLName}
	for _, first := range names {
		t.Run(first, func(t *testing.T) {
			x := &servers{T: t, name: databaseName()}
			for i, server := range names {
				if first != names[0] {
					i = 1 - i
				}
				cfg, err := mysql.ParseDSN(testserver.Address(t, server))
				if err != nil {
					t.Fatal(err)
				}
				root := pool(t, cfg)
				exec(t, root, "CREATE DATABASE "+x.name)
				t.Cleanup(func() { exec(t, root, "DROP DATABASE "+x.name) })
				mine := cfg.Clone()
				mine.DBName = x.name
				x.pools[i], x.to[i] = pool(t, mine), cfg.Addr
				s, err := mysqlstore.New(x.pools[i], mysqlstore.Config{Lanes: 1})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.Migrate(t.Context()); err != nil {
					t.Fatal(err)
				}
				x.fill(x.pools[i])
			}
			test(x)
		})
	}
}

// fill writes a ready event with a priority, a delayed event that is due, an
// event of a backlog, and a dead letter of each that holds its aggregate.
func (t *servers) fill(db *sql.DB) {
	t.Helper()
	for _, statement := range []string{
		`INSERT INTO waybill_outbox (id, lane, type, aggregate_type, aggregate_id, payload, priority) VALUES ('0123456789abcdef', 0, 'A', '', 'a', '', 1)`,
		`INSERT INTO waybill_delayed (lane, seq, id, type, aggregate_type, schema_version, occurred_at, priority, payload, created_at, due_at, attempts, replay, holds)
VALUES (0, 1000, '1123456789abcdef', 'B', '', 1, UTC_TIMESTAMP(6), 0, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) - INTERVAL 1 SECOND, 0, 0, 0)`,
		`INSERT INTO waybill_backlog (lane, seq, id, type, aggregate_type, aggregate_id, schema_version, occurred_at, priority, payload, created_at, attempts, replay, final)
VALUES (1024, 1, '2123456789abcdef', 'C', '', 'a', 1, UTC_TIMESTAMP(6), 1, '', UTC_TIMESTAMP(6), 0, 0, 0)`,
		`INSERT INTO waybill_dead (lane, seq, id, type, aggregate_type, aggregate_id, schema_version, occurred_at, priority, payload, created_at, died_at, attempts, replay, holds)
VALUES (0, 1001, '3123456789abcdef', 'D', '', 'd', 1, UTC_TIMESTAMP(6), 0, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0, 0, 1)`,
		`INSERT INTO waybill_backlog_dead (lane, seq, id, type, aggregate_type, aggregate_id, schema_version, occurred_at, priority, payload, created_at, died_at, attempts, replay, holds)
VALUES (1024, 1001, '4123456789abcdef', 'D', '', 'd', 1, UTC_TIMESTAMP(6), 0, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0, 0, 1)`,
	} {
		exec(t.T, db, statement)
	}
}

// replicate copies from one server to the other what decides about leases.
func (t *servers) replicate(from, to int) {
	t.Helper()
	for _, table := range []string{"waybill_setting", "waybill_lane"} {
		rows, err := t.pools[from].QueryContext(t.Context(), "SELECT * FROM "+table)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		columns, err := rows.Columns()
		if err != nil {
			t.Fatal(err)
		}
		exec(t.T, t.pools[to], "DELETE FROM "+table)
		values, dest := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			dest[i] = &values[i]
		}
		marks := "?"
		for range columns[1:] {
			marks += ", ?"
		}
		for rows.Next() {
			if err := rows.Scan(dest...); err != nil {
				t.Fatal(err)
			}
			exec(t.T, t.pools[to], "INSERT INTO "+table+" VALUES ("+marks+")", values...)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// server returns the name of a server.
func (t *servers) server(of int) string {
	t.Helper()
	if ask[bool](t.T, t.pools[of], "SELECT VERSION() LIKE '%MariaDB%'") {
		return ask[string](t.T, t.pools[of], "SELECT CONCAT(@@server_id, '/', @@hostname, '/', @@port)")
	}
	return ask[string](t.T, t.pools[of], "SELECT @@server_uuid")
}

// process is a relay of a process of its own.
type process struct {
	*servers
	driver.Relay
	backlog driver.Backlog
	node    store.Node
}

func (t *servers) relay() *process {
	t.Helper()
	cfg := configOf(t.T, t.name)
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		if t.dial != nil {
			t.dial()
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", t.to[t.at.Load()])
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(-1) // a connection for each call
	t.Cleanup(func() { _ = db.Close() })
	s, err := mysqlstore.New(db, mysqlstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	roles := s.Driver()
	return &process{t, roles.Relay, roles.Backlogs.Backlog(1), store.Node{ID: waybill.NewID(), Relay: "r"}}
}

// beat renews the lease, and returns the epoch of the lane and whether it has
// an owner.
func (p *process) beat() (epoch int64, owned bool) {
	p.Helper()
	view, err := p.Heartbeat(p.Context(), p.node, time.Hour)
	if err != nil {
		p.Fatal(err)
	}
	return view.Lanes[0].Epoch, !view.Lanes[0].Owner.IsZero()
}

// refused requires that a heartbeat fails, with these words.
func (p *process) refused(words ...string) {
	p.Helper()
	if view, err := p.Heartbeat(p.Context(), p.node, time.Hour); err == nil || !containsAll(err.Error(), words...) || len(view.Lanes) > 0 {
		p.Errorf("Heartbeat: %v, want %q", err, words)
	}
}

// acquire acquires the lane.
func (p *process) acquire() driver.Lease {
	p.Helper()
	leases, err := p.Acquire(p.Context(), p.node, []int{0}, 8)
	if err != nil || len(leases) != 1 {
		p.Fatalf("Acquire = %v, %v", leases, err)
	}
	return leases[0]
}

// acquiresNothing requires that the lane cannot be acquired, with these words.
func (p *process) acquiresNothing(words ...string) {
	p.Helper()
	if leases, err := p.Acquire(p.Context(), p.node, []int{0}, 8); err == nil || !containsAll(err.Error(), words...) || len(leases) > 0 {
		p.Errorf("Acquire = %v, %v, want %q", leases, err, words)
	}
}

// read returns the number of rows of each read that decides on deliveries.
func (p *process) read() (rows map[string]int, errs map[string]error) {
	rows, errs = make(map[string]int), make(map[string]error)
	ctx, from, agg := p.Context(), []driver.Cursor{{Lane: 0}}, store.Aggregate{Type: waybill.GlobalAggregate, ID: "a"}
	for of, reads := range map[string]interface {
		driver.Reader
		driver.Seeker
	}{"outbox": p.Relay, "backlog": p.backlog} {
		for name, read := range map[string]func() (int, error){
			"Fetch":          pageOf(func() (driver.Page, error) { return reads.Fetch(ctx, from, 10) }),
			"Load":           pageOf(func() (driver.Page, error) { return reads.Load(ctx, []store.Key{{Lane: 0, Seq: 1}}) }),
			"FetchAggregate": pageOf(func() (driver.Page, error) { return reads.FetchAggregate(ctx, agg, from[0], 10) }),
			"FetchPriority":  pageOf(func() (driver.Page, error) { return reads.FetchPriority(ctx, from, 10) }),
			"Sweep": func() (int, error) {
				seen, err := reads.Sweep(ctx, from, 10)
				return len(seen), err
			},
			"Holds": func() (int, error) {
				holds, err := reads.Holds(ctx, []int{0})
				return len(holds), err
			},
		} {
			rows[of+" "+name], errs[of+" "+name] = read()
		}
	}
	rows["Due"], errs["Due"] = pageOf(func() (driver.Page, error) { return p.Due(ctx, []int{0}, 10) })()
	return rows, errs
}

// pageOf returns the number of rows of a page.
func pageOf(read func() (driver.Page, error)) func() (int, error) {
	return func() (int, error) {
		page, err := read()
		return len(page.Rows), err
	}
}

// reads requires that each read returns its row.
func (p *process) reads() {
	p.Helper()
	rows, errs := p.read()
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		if errs[name] != nil || rows[name] != 1 {
			p.Errorf("%s returned %d rows, %v", name, rows[name], errs[name])
		}
	}
	if _, err := p.OpenWriters(p.Context()); err != nil {
		p.Errorf("OpenWriters: %v", err)
	}
}

// refuses requires that each read fails, with these words.
func (p *process) refuses(words ...string) {
	p.Helper()
	rows, errs := p.read()
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		if errs[name] == nil || !containsAll(errs[name].Error(), words...) || rows[name] != 0 {
			p.Errorf("%s returned %d rows, %v, want %q", name, rows[name], errs[name], words)
		}
	}
}

// blind requires that open transactions are not asked for, with these words.
func (p *process) blind(words ...string) {
	p.Helper()
	if _, err := p.OpenWriters(p.Context()); err == nil || !containsAll(err.Error(), words...) {
		p.Errorf("OpenWriters: %v, want %q", err, words)
	}
}

// TestFailover: after a failover no relay reads anything under a lease of
// before, and the epochs are raised once, above all that the former primary can
// have issued.
func TestFailover(t *testing.T) { onServers(t, testFailover) }

func testFailover(t *servers) {
	r, other := t.relay(), t.relay()
	r.beat()
	t.replicate(a, b)
	before := r.acquire() // is lost
	other.beat()
	r.reads()

	t.at.Store(b)
	r.refuses("failed over", t.server(a), t.server(b))
	r.blind("failed over")
	r.acquiresNothing("failed over")
	r.refused("failed over", t.server(b)+" in term 2 follows "+t.server(a)+" in term 1")
	r.refuses("failed over", "term 2 follows 1") // until it has acquired the lane again
	if epoch, owned := r.beat(); epoch != driver.RestoreEpochs || owned {
		t.Errorf("epoch %d, owned %v; want %d without an owner", epoch, owned, driver.RestoreEpochs)
	}
	if after := r.acquire(); after.Epoch != driver.RestoreEpochs+1 || after.Epoch <= before.Epoch || !after.Unclean {
		t.Errorf("acquired %+v", after)
	}
	r.reads()
	other.refused("failed over", "in term 2")
	if epoch, owned := other.beat(); epoch != driver.RestoreEpochs+1 || !owned {
		t.Errorf("the second relay: epoch %d, owned %v", epoch, owned)
	}
	if epoch, _ := t.relay().beat(); epoch != driver.RestoreEpochs+1 {
		t.Errorf("a new relay: epoch %d", epoch)
	}
	if n := ask[int64](t.T, t.pools[b], "SELECT value FROM waybill_setting WHERE name = 'highest_epoch'"); n < driver.RestoreEpochs {
		t.Errorf("lanes continue from epoch %d", n)
	}

	// Back to the first server, where a relay that has just started comes
	// first: it has seen no other server, and the tables name another one.
	t.replicate(b, a)
	t.at.Store(a)
	if epoch, _ := t.relay().beat(); epoch != driver.RestoreEpochs+1 { // as of before
		t.Errorf("the first relay: epoch %d", epoch)
	}
	if term := ask[string](t.T, t.pools[a], "SELECT value FROM waybill_setting WHERE name = 'primary'"); term != "3 "+t.server(a) {
		t.Errorf("the primary is %q", term)
	}
	r.refused("failed over", t.server(a)+" in term 3 follows "+t.server(b)+" in term 2")
	if epoch, owned := r.beat(); epoch != 2*driver.RestoreEpochs+1 || owned {
		t.Errorf("after the third failover: epoch %d, owned %v", epoch, owned)
	}
}

// TestFormerPrimaryServer: a relay that has seen the new primary reads and
// acquires nothing on the former one, and returns to the new one.
func TestFormerPrimaryServer(t *testing.T) { onServers(t, testFormerPrimaryServer) }

func testFormerPrimaryServer(t *servers) {
	t.relay().beat()
	t.replicate(a, b)
	t.at.Store(b)
	r := t.relay()
	r.beat()
	r.acquire()
	t.at.Store(a)
	words := []string{"former primary", t.server(a), "term 1", t.server(b) + " in term 2"}
	r.refuses(words...)
	r.refused(words...)
	r.blind(words...)
	r.acquiresNothing(words...)
	if lanes, err := r.backlog.Occupied(t.Context()); err == nil || !containsAll(err.Error(), words...) || len(lanes) > 0 {
		t.Errorf("Occupied = %v, %v", lanes, err)
	}
	t.at.Store(b)
	r.beat()
	r.reads()

	// The second statement of a read goes to the former primary.
	dialed := 0
	t.dial = func() {
		dialed++
		t.at.Store(map[bool]int64{true: a, false: b}[dialed == 2])
	}
	if page, err := r.FetchPriority(t.Context(), []driver.Cursor{{Lane: 0}}, 10); err == nil || !containsAll(err.Error(), words...) {
		t.Errorf("FetchPriority with two servers: %d rows, %v, with %d statements", len(page.Rows), err, dialed)
	}
}

// TestHeartbeatOnOneServer: the server changes between the statements of a
// heartbeat. A lease that was renewed on the former one does not count.
func TestHeartbeatOnOneServer(t *testing.T) { onServers(t, testHeartbeatOnOneServer) }

func testHeartbeatOnOneServer(t *servers) {
	t.relay().beat()
	t.replicate(a, b)
	t.at.Store(b)
	r := t.relay()
	r.beat()
	t.at.Store(a)
	dialed := 0
	t.dial = func() {
		if dialed++; dialed == 2 {
			t.at.Store(b)
		}
	}
	r.refused("former primary", t.server(a))
}

// TestChangesOfOneServer: the primary changes twice between two heartbeats of a
// relay, and is the same server again. Its name alone would not tell that.
func TestChangesOfOneServer(t *testing.T) { onServers(t, testChangesOfOneServer) }

func testChangesOfOneServer(t *servers) {
	r := t.relay()
	r.beat()
	r.acquire()
	t.replicate(a, b)
	t.at.Store(b)
	t.relay().beat()
	t.replicate(b, a)
	t.at.Store(a)
	t.relay().beat()
	r.refuses("failed over")
	r.blind("failed over")
	r.refused("failed over", "term 3", "term 1")
	if epoch, owned := r.beat(); epoch != 2*driver.RestoreEpochs+1 || owned {
		t.Errorf("epoch %d, owned %v", epoch, owned)
	}
}

// TestTwoPromotedServers: a server is promoted and lost before anything of it
// is replicated, and then another one. The epochs that the first has issued are
// not issued again as long as a relay has seen it.
func TestTwoPromotedServers(t *testing.T) { onServers(t, testTwoPromotedServers) }

func testTwoPromotedServers(t *servers) {
	for _, server := range []int{a, b} { // both are replicas of a third one
		exec(t.T, t.pools[server], "INSERT INTO waybill_setting (name, value) VALUES ('primary', '7 third')")
	}
	r := t.relay()
	r.beat()
	lost := r.acquire()
	t.at.Store(b)
	r.refused("failed over", "term 9", "term 8")
	if after := r.acquire(); after.Epoch != 2*driver.RestoreEpochs+1 || lost.Epoch != driver.RestoreEpochs+1 {
		t.Errorf("the epochs are %d and %d", lost.Epoch, after.Epoch)
	}

	// The same, if a relay without a memory was the first on the second server.
	exec(t.T, t.pools[a], "UPDATE waybill_setting SET value = ? WHERE name = 'primary'", "9 "+t.server(a))
	exec(t.T, t.pools[a], "UPDATE waybill_lane SET epoch = 2000000")
	t.at.Store(a)
	r.refused("failed over", "term 10", "term 9")
	if epoch, owned := r.beat(); epoch != 2_000_000+driver.RestoreEpochs || owned {
		t.Errorf("epoch %d, owned %v", epoch, owned)
	}
}

// TestAcquireOnAnotherServer: the server changes between the two statements of
// an acquisition.
func TestAcquireOnAnotherServer(t *testing.T) { onServers(t, testAcquireOnAnotherServer) }

func testAcquireOnAnotherServer(t *servers) {
	r := t.relay()
	r.beat()
	t.replicate(a, b)
	dialed := 0
	t.dial = func() {
		if dialed++; dialed == 2 {
			t.at.Store(b)
		}
	}
	leases, err := r.Acquire(t.Context(), r.node, []int{0}, 8)
	if err != nil || len(leases) > 0 || dialed < 3 {
		t.Errorf("Acquire = %v, %v, with %d statements", leases, err, dialed)
	}
	if n := ask[int](t.T, t.pools[b], "SELECT COUNT(*) FROM waybill_lane WHERE owner IS NOT NULL OR epoch > 0"); n != 0 {
		t.Error("the lane was taken on the other server")
	}
}

// TestInvalidPrimary: a term that cannot be read is an error, not a term.
func TestInvalidPrimary(t *testing.T) { onServers(t, testInvalidPrimary) }

func testInvalidPrimary(t *servers) {
	exec(t.T, t.pools[a], "INSERT INTO waybill_setting (name, value) VALUES ('primary', ?)", fmt.Sprint("x ", t.server(a)))
	t.relay().refused("the setting primary is invalid")
}

package mysqlstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store"
	storedriver "github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

func TestNew(t *testing.T) {
	if _, err := mysqlstore.New(nil, mysqlstore.Config{}); err == nil {
		t.Error("a nil database is accepted")
	}
	db := sql.OpenDB(nowhere{}) // the constructor does not access it
	defer db.Close()            //nolint:errcheck // nothing was opened
	if _, err := mysqlstore.New(db, mysqlstore.Config{Schema: "app", Prefix: "x_", Lanes: 1024}); err != nil {
		t.Error(err)
	}
	_, err := mysqlstore.New(db, mysqlstore.Config{Schema: "a`b", Prefix: "1x", Lanes: 1025})
	want := "mysqlstore: Config.Schema: \"a`b\" is not a plain name (letters, digits and underscores, no digit first)\n" +
		"Config.Prefix: \"1x\" is not a plain name (letters, digits and underscores, no digit first)\n" +
		"Config.Lanes: 1025 is not between 1 and 1024"
	if err == nil || err.Error() != want {
		t.Errorf("the error is\n%v\nwant\n%s", err, want)
	}
}

// everything calls every method that accesses the tables.
func everything(ctx context.Context, s *mysqlstore.Store, db *sql.DB) map[string]error {
	errs := map[string]error{}
	_, errs["Begin"] = s.Driver().Outbox.Begin(ctx, nil)
	if tx, err := db.BeginTx(ctx, nil); err != nil {
		errs["BeginTx"] = err
	} else {
		_, errs["Append"] = s.Driver().Outbox.Append(ctx, tx, []waybill.Event{event("a")})
		_, errs["AppendSQL"] = s.Driver().Outbox.(storedriver.SQLAppender).AppendSQL(ctx, tx, []waybill.Event{event("a")})
		errs["Finish"] = s.Driver().Finisher.Finish(ctx, tx, []waybill.Delivery{{Event: event("a")}})
		_ = tx.Rollback()
	}
	_, errs["Committed"] = s.Driver().Outbox.Committed(ctx, waybill.NewID())
	node := store.Node{ID: waybill.NewID(), Relay: "test"}
	_, errs["Heartbeat"] = s.Driver().Relay.Heartbeat(ctx, node, 1)
	_, errs["Acquire"] = s.Driver().Relay.Acquire(ctx, node, []int{1}, 1)
	leases := []storedriver.Lease{{Lane: 1, Epoch: 1, Token: waybill.NewID()}}
	errs["Release"] = s.Driver().Relay.Release(ctx, leases, false)
	errs["Leave"] = s.Driver().Relay.Leave(ctx, node)
	_, errs["Fetch"] = s.Driver().Relay.Fetch(ctx, cursors(2), 1)
	_, errs["Sweep"] = s.Driver().Relay.Sweep(ctx, cursors(2), 1)
	_, errs["Load"] = s.Driver().Relay.Load(ctx, []store.Key{{Lane: 1, Seq: 1}})
	_, errs["Due"] = s.Driver().Relay.Due(ctx, []int{1}, 1)
	result := []storedriver.Result{{Lane: 1, ID: waybill.NewID()}}
	_, errs["Settle"] = s.Driver().Relay.Settle(ctx, storedriver.Settlement{Leases: leases, Done: result, History: true})
	_, errs["Settle without history"] = s.Driver().Relay.Settle(ctx, storedriver.Settlement{Leases: leases, Done: result})
	_, errs["Holds"] = s.Driver().Relay.Holds(ctx, []int{1})
	_, errs["Follow"] = s.Driver().Relay.FetchAggregate(ctx, store.Aggregate{ID: "a"}, storedriver.Cursor{}, 1)
	_, errs["Urgent"] = s.Driver().Relay.FetchPriority(ctx, cursors(2), 1)
	_, errs["Stats"] = s.Driver().OutboxAdmin.Stats(ctx)
	_, errs["Count"] = s.Driver().OutboxAdmin.Count(ctx, store.Dead, store.Filter{})
	_, errs["List"] = s.Driver().OutboxAdmin.List(ctx, store.Dead, store.Filter{}, 0, 1)
	ids := []waybill.ID{waybill.NewID()}
	_, errs["Find"] = s.Driver().OutboxAdmin.Find(ctx, ids[0])
	_, errs["Replay"] = s.Driver().OutboxAdmin.Replay(ctx, ids)
	_, errs["Discard"] = s.Driver().OutboxAdmin.Discard(ctx, ids)
	_, errs["Unblock"] = s.Driver().OutboxAdmin.Unblock(ctx, ids)
	_, errs["Purge"] = s.Driver().OutboxAdmin.Purge(ctx, store.Dead, 0, 1)
	_, errs["PurgeWritten"] = s.Driver().OutboxAdmin.PurgeWritten(ctx, 0, 1)
	errs["Tidy"] = s.Driver().OutboxAdmin.Tidy(ctx, 0)
	in := intakes("g", 1)
	if tx, err := db.BeginTx(ctx, nil); err != nil {
		errs["BeginTx"] = err
	} else {
		_, errs["Accept"] = s.Driver().Inbox.Accept(ctx, tx, ids[0], in)
		_, errs["Succeed"] = s.Driver().Inbox.Succeed(ctx, tx, storedriver.Attempt{Group: "g"})
		_ = tx.Rollback()
	}
	_, _, errs["ClaimEvent"] = s.Driver().Inbox.ClaimEvent(ctx, in[0], ids[0], 1, 1, nil)
	_, errs["FailEvent"] = s.Driver().Inbox.FailEvent(ctx, in[0], storedriver.Failure{})
	_, errs["ReleaseEvent"] = s.Driver().Inbox.ReleaseEvent(ctx, storedriver.Attempt{})
	_, _, errs["FindRecord"] = s.Driver().InboxRecords.FindRecord(ctx, "g", ids[0])
	_, errs["DueRecords"] = s.Driver().InboxRecords.DueRecords(ctx, "g", 1)
	_, errs["ListRecords"] = s.Driver().InboxRecords.ListRecords(ctx, store.RecordFilter{}, "", waybill.ID{}, 1)
	_, errs["GroupStats"] = s.Driver().InboxRecords.GroupStats(ctx, true)
	_, errs["Redrive"] = s.Driver().InboxRecords.Redrive(ctx, "g", ids, 1)
	_, errs["PurgeRecords"] = s.Driver().InboxRecords.PurgeRecords(ctx, "g", 0, 1)
	errs["SetLanes"] = s.Driver().OutboxAdmin.SetLanes(ctx, 1)
	return errs
}

// Without the tables the error of every method names the remedy.
func TestMissingTables(t *testing.T) { onBoth(t, testMissingTables) }

func testMissingTables(t *testing.T) {
	db, name := openDB(t, nil)
	for _, schema := range []string{"", name, "no_such_database"} {
		s, err := mysqlstore.New(db, mysqlstore.Config{Schema: schema})
		if err != nil {
			t.Fatal(err)
		}
		for method, err := range everything(t.Context(), s, db) {
			if err == nil || !strings.Contains(err.Error(), "call Migrate") {
				t.Errorf("%s in %q: %v, want a hint", method, schema, err)
			}
		}
	}
}

// Tables of an engine without rollback are refused.
func TestOtherEngines(t *testing.T) { onBoth(t, testOtherEngines) }

func testOtherEngines(t *testing.T) {
	engines := []string{"MyISAM"}
	if serverOf(t) == testserver.MariaDBName {
		engines = append(engines, "Aria")
	}
	for _, engine := range engines {
		s, db := openStore(t, nil)
		exec(t, db, "ALTER TABLE waybill_dedup ENGINE="+engine)
		_, err := s.Driver().Outbox.Begin(t.Context(), nil)
		if err == nil || !strings.Contains(err.Error(), "waybill_dedup is "+engine) || !strings.Contains(err.Error(), "ENGINE=InnoDB") {
			t.Errorf("%s: %v, want a hint", engine, err)
		}
		tx := begin(t, db, nil)
		if _, err := s.Driver().Outbox.Append(t.Context(), tx, []waybill.Event{event("a")}); err == nil || !strings.Contains(err.Error(), engine) {
			t.Errorf("%s: %v, want a hint", engine, err)
		}
		_ = tx.Rollback()
		exec(t, db, "ALTER TABLE waybill_dedup ENGINE=InnoDB")
		sess, err := s.Driver().Outbox.Begin(t.Context(), nil)
		if err != nil {
			t.Fatalf("the key is not released: %v", err)
		}
		if err := sess.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestAutocommitOff(t *testing.T) { onBoth(t, testAutocommitOff) }

func testAutocommitOff(t *testing.T) {
	s, db := openStore(t, nil)
	off := configOf(t, ask[string](t, db, "SELECT DATABASE()"))
	off.Params = map[string]string{"autocommit": "0"}
	other := pool(t, off)
	if _, err := newStore(t, other).Driver().Outbox.Begin(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "autocommit") {
		t.Errorf("Begin: %v, want a hint", err)
	}
	if serverOf(t) == testserver.MySQLName {
		// MySQL reports whether a transaction is open, and this one is the
		// caller's.
		return
	}
	// Without autocommit the server begins transactions on its own, and none of
	// them can be proven to be the caller's.
	write(t, s, db, event("a"))
	if _, err := s.Driver().Outbox.Append(t.Context(), begin(t, other, nil), []waybill.Event{event("a")}); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("Append: %v, want ErrTxDone", err)
	}
}

func TestOtherNumberOfLanes(t *testing.T) { onBoth(t, testOtherNumberOfLanes) }

func testOtherNumberOfLanes(t *testing.T) {
	_, db := openStore(t, nil)
	other, err := mysqlstore.New(db, mysqlstore.Config{Lanes: 7})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Driver().Outbox.Begin(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "the tables have 32") {
		t.Errorf("Begin: %v, want a refusal", err)
	}
	same, err := mysqlstore.New(db, mysqlstore.Config{Lanes: 32})
	if err != nil {
		t.Fatal(err)
	}
	sess, err := same.Driver().Outbox.Begin(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := sess.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	for _, lanes := range []string{"0", "many", "1025"} {
		exec(t, db, "UPDATE waybill_setting SET value = ? WHERE name = 'lanes'", lanes)
		if _, err := newStore(t, db).Driver().Outbox.Begin(t.Context(), nil); err == nil {
			t.Errorf("tables with %s lanes are accepted", lanes)
		}
	}
}

// tidb answers the version query as TiDB does, and fails on any other. The
// tests have no TiDB server.
type tidb struct{ asked []string }

func (s *tidb) Connect(context.Context) (driver.Conn, error) { return s, nil }
func (s *tidb) Driver() driver.Driver                        { return nil }
func (s *tidb) Prepare(string) (driver.Stmt, error) {
	return nil, errors.New("TiDB was asked for a statement")
}
func (s *tidb) Close() error              { return nil }
func (s *tidb) Begin() (driver.Tx, error) { return nil, errors.New("TiDB was asked for a transaction") }

func (s *tidb) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	s.asked = append(s.asked, query)
	switch {
	case strings.HasPrefix(query, "SELECT VERSION(), "):
		return &answers{[]driver.Value{"8.0.11-TiDB-v8.5.1", int64(64 << 20), int64(1), "32", ""}}, nil
	case query == "SELECT VERSION()":
		return &answers{[]driver.Value{"8.0.11-TiDB-v8.5.1"}}, nil
	}
	return nil, fmt.Errorf("TiDB was queried with %q", query)
}

// answers is a result of one row.
type answers struct{ row []driver.Value }

func (a *answers) Columns() []string { return make([]string, len(a.row)) }
func (a *answers) Close() error      { return nil }

func (a *answers) Next(dest []driver.Value) error {
	if a.row == nil {
		return io.EOF
	}
	copy(dest, a.row)
	a.row = nil
	return nil
}

// TiDB is refused with a clear error, wherever a service or a relay starts.
func TestTiDB(t *testing.T) {
	for name, begin := range map[string]func(s *mysqlstore.Store) error{
		"Migrate": func(s *mysqlstore.Store) error { _, err := s.Migrate(t.Context()); return err },
		"Begin":   func(s *mysqlstore.Store) error { _, err := s.Driver().Outbox.Begin(t.Context(), nil); return err },
		"Heartbeat": func(s *mysqlstore.Store) error {
			_, err := s.Driver().Relay.Heartbeat(t.Context(), store.Node{ID: waybill.NewID(), Relay: "r"}, time.Minute)
			return err
		},
		"ClaimKey": func(s *mysqlstore.Store) error {
			_, _, err := s.Driver().Keys.ClaimKey(t.Context(), storedriver.KeyClaim{})
			return err
		},
	} {
		server := &tidb{}
		db := sql.OpenDB(server)
		err := begin(newStore(t, db))
		_ = db.Close()
		if err == nil || !strings.Contains(err.Error(), "TiDB") || !strings.Contains(err.Error(), "not supported") || !strings.Contains(err.Error(), "MariaDB 10.10") {
			t.Errorf("%s: %v, want that TiDB is not supported, and the supported servers", name, err)
		}
		if len(server.asked) != 1 {
			t.Errorf("%s queried %q, want one query", name, server.asked)
		}
	}
}

// An account needs only the rows and the procedures: no access to other
// sessions, no DDL.
func TestOrdinaryAccount(t *testing.T) { onBoth(t, testOrdinaryAccount) }

func testOrdinaryAccount(t *testing.T) {
	s, db := openStore(t, nil)
	name := ask[string](t, db, "SELECT DATABASE()")
	account := fmt.Sprintf("'%.20s'@'%%'", name)
	exec(t, db, "CREATE USER "+account+" IDENTIFIED BY 'secret'")
	t.Cleanup(func() { exec(t, db, "DROP USER "+account) })
	exec(t, db, "GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON "+name+".* TO "+account)
	cfg := configOf(t, name)
	cfg.User, cfg.Passwd = name[:20], "secret"
	poor := pool(t, cfg)
	roundTrip(t, newStore(t, poor), poor)
	if rows := ready(t, s); len(rows) != 0 {
		t.Errorf("%d rows are left", len(rows))
	}
	if _, err := newStore(t, poor).Migrate(t.Context()); err != nil {
		t.Errorf("a migration that has nothing to do: %v", err)
	}
}

// An error never contains the value of an argument.
func TestErrorsKeepSecrets(t *testing.T) { onBoth(t, testErrorsKeepSecrets) }

func testErrorsKeepSecrets(t *testing.T) {
	s, db := openStore(t, func(c *mysql.Config) { c.InterpolateParams = true })
	ev := event("a")
	ev.Payload, ev.DedupKey = []byte(`"a secret payload"`), "k"
	write(t, s, db, ev)
	tx := begin(t, db, nil)
	again := ev
	again.DedupKey = ""
	if _, err := s.Driver().Outbox.Append(t.Context(), tx, []waybill.Event{again}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("an id that is taken: %v", err)
	}
}

// nowhere is an unreachable server.
type nowhere struct{}

func (nowhere) Connect(context.Context) (driver.Conn, error) { return nil, mysql.ErrInvalidConn }
func (nowhere) Driver() driver.Driver                        { return &mysql.MySQLDriver{} }

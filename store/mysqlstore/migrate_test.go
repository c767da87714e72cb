package mysqlstore_test

import (
	"database/sql"
	"fmt"
	"os"
	osexec "os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/docblock"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// migrations is the number of migrations.
const migrations = 15

// shell runs a script in the database's own shell, as the user of the tests.
func shell(t testing.TB, database, script string) {
	t.Helper()
	if out, err := tryShell(t, database, script); err != nil {
		t.Fatalf("%s: %v\n%s", serverOf(t), err, out)
	}
}

// tryShell returns the shell's output.
func tryShell(t testing.TB, database, script string) (string, error) {
	t.Helper()
	cfg := configOf(t, database)
	host, port, _ := strings.Cut(cfg.Addr, ":")
	cmd := osexec.CommandContext(t.Context(), testserver.Shell(t, serverOf(t)),
		"--no-defaults", "--protocol=tcp", "--host="+host, "--port="+port, "--user="+cfg.User, "--default-character-set=utf8mb4", database)
	cmd.Stdin = strings.NewReader(script)
	cmd.Env = append(os.Environ(), "MYSQL_PWD="+cfg.Passwd)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// catalog describes everything in a database: the statement that would create
// each table and procedure, and the rows that a migration inserts.
func catalog(t testing.TB, db *sql.DB, database string) []string {
	t.Helper()
	var lines []string
	list := func(query string, args ...any) []string {
		rows, err := db.QueryContext(t.Context(), query, args...)
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		defer rows.Close()
		names, err := rows.Columns()
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for rows.Next() {
			values, dest := make([]sql.NullString, len(names)), make([]any, len(names))
			for i := range values {
				dest[i] = &values[i]
			}
			if err := rows.Scan(dest...); err != nil {
				t.Fatal(err)
			}
			var line []string
			for _, v := range values {
				line = append(line, v.String)
			}
			found = append(found, strings.Join(line, "\t"))
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		return found
	}
	for _, table := range list("SELECT table_name FROM information_schema.tables WHERE table_schema = ?", database) {
		for _, line := range list("SHOW CREATE TABLE `" + database + "`.`" + table + "`") {
			lines = append(lines, strings.Split(line, "\n")...)
		}
		if !strings.HasSuffix(table, "migration") {
			lines = append(lines, list("SELECT * FROM `"+database+"`.`"+table+"`")...)
		}
	}
	for _, line := range list(`SELECT routine_name, routine_definition, sql_mode, security_type, sql_data_access FROM information_schema.routines
 WHERE routine_schema = ? ORDER BY routine_name`, database) {
		lines = append(lines, strings.Split(line, "\n")...)
	}
	lines = append(lines, list(`SELECT specific_name, ordinal_position, parameter_mode, parameter_name, dtd_identifier FROM information_schema.parameters
 WHERE specific_schema = ? ORDER BY 1, 2`, database)...)
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], database, "DATABASE")
	}
	return lines
}

// The exported script, applied by the shell, gives the same catalog as Migrate,
// and can be applied again.
func TestMigrationSQLGivesTheSameCatalog(t *testing.T) {
	onBoth(t, testMigrationSQLGivesTheSameCatalog)
}

func testMigrationSQLGivesTheSameCatalog(t *testing.T) {
	for _, schema := range []bool{false, true} {
		db, byCode := openDB(t, nil)
		other, byShell := openDB(t, nil)
		store := func(db *sql.DB, name string) *mysqlstore.Store {
			cfg := mysqlstore.Config{Prefix: "my_", Lanes: 7}
			if schema {
				cfg.Schema = name
			}
			s, err := mysqlstore.New(db, cfg)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		code, script := store(db, byCode), store(other, byShell)
		if _, err := code.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if schema {
			root := pool(t, configOf(t, ""))
			exec(t, root, "DROP DATABASE "+byShell) // the script creates it
			shell(t, "", script.MigrationSQL())
		} else {
			shell(t, byShell, script.MigrationSQL())
			shell(t, byShell, script.MigrationSQL())
		}
		a, b := catalog(t, db, byCode), catalog(t, db, byShell)
		if len(a) < 200 {
			t.Fatalf("the catalog has only %d lines", len(a))
		}
		if !slices.Equal(a, b) {
			t.Errorf("by code and by shell differ:\n%s", diff(a, b))
		}
		// Migrate finds nothing to do after the script.
		if applied, err := script.Migrate(t.Context()); err != nil || len(applied) != 0 {
			t.Errorf("Migrate after the script applied %v, %v; want nothing", applied, err)
		}
		all, err := script.Migrations(t.Context())
		if err != nil || len(all) != migrations || all[0].AppliedAt.IsZero() || all[0].Unknown {
			t.Errorf("after the script: %+v, %v", all, err)
		}
		own7(t, script)
	}
}

// TestUpgradeSQL: the upgrade script from a version on, applied to tables of
// that version, gives the same tables as Migrate on an empty database. If the
// tables have not had that version, the script fails and changes nothing.
func TestUpgradeSQL(t *testing.T) { onBoth(t, testUpgradeSQL) }

func testUpgradeSQL(t *testing.T) {
	tables := func() (*sql.DB, string, *mysqlstore.Store) {
		db, name := openDB(t, nil)
		s, err := mysqlstore.New(db, mysqlstore.Config{Schema: name, Prefix: "my_", Lanes: 7})
		if err != nil {
			t.Fatal(err)
		}
		return db, name, s
	}
	db, byCode, code := tables()
	if _, err := code.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := catalog(t, db, byCode)
	for version := 1; version < migrations; version++ {
		_, name, s := tables()
		first, _, _ := strings.Cut(s.MigrationSQL(), fmt.Sprintf("-- Migration %d:", version+1))
		shell(t, "", first)
		before := catalog(t, db, name)
		if later := s.UpgradeSQL(version + 1); later != "" {
			if out, err := tryShell(t, "", later); err == nil {
				t.Errorf("the script from version %d on goes through on tables of version %d: %s", version+1, version, out)
			}
			if after := catalog(t, db, name); !slices.Equal(before, after) {
				t.Errorf("the script from version %d on changes tables of version %d:\n%s", version+1, version, diff(before, after))
			}
		}
		shell(t, "", s.UpgradeSQL(version))
		if got := catalog(t, db, name); !slices.Equal(want, got) {
			t.Errorf("from version %d on, code and shell differ:\n%s", version, diff(want, got))
		}
		if applied, err := s.Migrate(t.Context()); err != nil || len(applied) != 0 {
			t.Errorf("Migrate after the script from version %d on applied %v, %v; want nothing", version, applied, err)
		}
	}
	for _, version := range []int{migrations, migrations + 1} {
		if text := code.UpgradeSQL(version); text != "" {
			t.Errorf("behind version %d there is %s", version, text)
		}
	}
}

// own7 calls the procedures.
func own7(t *testing.T, s *mysqlstore.Store) {
	t.Helper()
	node := store.Node{ID: waybill.NewID(), Relay: "test"}
	if m, err := s.Driver().Relay.Heartbeat(t.Context(), node, time.Minute); err != nil || len(m.Lanes) != 7 {
		t.Fatalf("Heartbeat: %+v, %v", m, err)
	}
	leases, err := s.Driver().Relay.Acquire(t.Context(), node, []int{6}, 1)
	if err != nil || len(leases) != 1 {
		t.Fatalf("Acquire: %v, %v", leases, err)
	}
	if settled, err := s.Driver().Relay.Settle(t.Context(), driver.Settlement{Leases: leases}); err != nil || !slices.Equal(settled.Held, []int{6}) {
		t.Errorf("Settle: %+v, %v", settled, err)
	}
}

func diff(a, b []string) string {
	var text strings.Builder
	for _, line := range a {
		if !slices.Contains(b, line) {
			fmt.Fprintf(&text, "- %s\n", line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			fmt.Fprintf(&text, "+ %s\n", line)
		}
	}
	return text.String()
}

func TestMigrateFromManyAtOnce(t *testing.T) { onBoth(t, testMigrateFromManyAtOnce) }

func testMigrateFromManyAtOnce(t *testing.T) {
	db, _ := openDB(t, nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	applied := 0
	for range 6 {
		wg.Go(func() {
			s, err := mysqlstore.New(db, mysqlstore.Config{})
			if err != nil {
				t.Error(err)
				return
			}
			ms, err := s.Migrate(t.Context())
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			applied += len(ms)
		})
	}
	wg.Wait()
	if applied != migrations {
		t.Errorf("%d migrations were applied, want %d", applied, migrations)
	}
	all, err := newStore(t, db).Migrations(t.Context())
	if err != nil || len(all) != migrations || all[0].AppliedAt.IsZero() {
		t.Errorf("Migrations: %+v, %v", all, err)
	}
}

// DDL commits on its own: an interrupted migration is resumed, wherever it
// stopped, with the number of lanes it was started with.
func TestInterruptedMigrationIsTakenUp(t *testing.T) { onBoth(t, testInterruptedMigrationIsTakenUp) }

func testInterruptedMigrationIsTakenUp(t *testing.T) {
	reference, want := openDB(t, nil)
	whole, err := mysqlstore.New(reference, mysqlstore.Config{Lanes: 5})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := whole.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	expected := catalog(t, reference, want)
	// Undoing statements from the end gives every state in which a crash may
	// leave the tables.
	parts := []string{
		"DELETE FROM waybill_migration", "DROP PROCEDURE waybill_heartbeat_counts", "DROP TABLE waybill_rollup", "DROP PROCEDURE waybill_heartbeat_report", "ALTER TABLE waybill_node DROP COLUMN report", "DROP TABLE waybill_audit", "DROP PROCEDURE waybill_settle_backlog", "DROP PROCEDURE waybill_settle_divert", "DROP TABLE waybill_backlog_dead",
		"DROP TABLE waybill_backlog_delayed", "DROP TABLE waybill_backlog", "DROP TABLE waybill_destination", "DROP PROCEDURE waybill_purge_written", "DROP PROCEDURE waybill_free_keys", "DROP PROCEDURE waybill_finish",
		"DROP PROCEDURE waybill_settle", "DROP PROCEDURE waybill_heartbeat", "DROP TABLE waybill_node",
		"DELETE FROM waybill_lane WHERE lane > 2", "DELETE FROM waybill_lane", "DROP TABLE waybill_lane", "DROP TABLE waybill_dedup",
		"DROP TABLE waybill_history", "DROP TABLE waybill_dead", "DROP TABLE waybill_delayed", "DROP TABLE waybill_outbox",
	}
	for n := range parts {
		for _, part := range parts[:n+1] {
			exec(t, reference, part)
		}
		// Without a number of lanes.
		again, err := mysqlstore.New(reference, mysqlstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if applied, err := again.Migrate(t.Context()); err != nil || len(applied) != migrations {
			t.Fatalf("after %s: %v, %v", parts[n], applied, err)
		}
		if got := catalog(t, reference, want); !slices.Equal(got, expected) {
			t.Errorf("after %s:\n%s", parts[n], diff(expected, got))
		}
	}
	exec(t, reference, "DELETE FROM waybill_migration")
	other, err := mysqlstore.New(reference, mysqlstore.Config{Lanes: 6})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Migrate(t.Context()); err == nil || !strings.Contains(err.Error(), "the tables have 5") {
		t.Errorf("with another number of lanes: %v, want a refusal", err)
	}
}

// Migrate leaves the connection unchanged: another process can migrate, and the
// session has its own mode.
func TestMigrateLeavesNothingBehind(t *testing.T) { onBoth(t, testMigrateLeavesNothingBehind) }

func testMigrateLeavesNothingBehind(t *testing.T) {
	db, _ := openDB(t, param("sql_mode", "'ANSI_QUOTES'"))
	db.SetMaxOpenConns(1)
	if _, err := newStore(t, db).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if mode := ask[string](t, db, "SELECT @@sql_mode"); mode != "ANSI_QUOTES" {
		t.Errorf("the session's mode is %q", mode)
	}
	if _, err := newStore(t, pool(t, configOf(t, ask[string](t, db, "SELECT DATABASE()")))).Migrate(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestMigrationsBeforeAndAfter(t *testing.T) { onBoth(t, testMigrationsBeforeAndAfter) }

func testMigrationsBeforeAndAfter(t *testing.T) {
	db, _ := openDB(t, nil)
	s := newStore(t, db)
	all, err := s.Migrations(t.Context())
	if err != nil || len(all) != migrations || !all[0].AppliedAt.IsZero() {
		t.Errorf("before: %+v, %v; want %d missing", all, err, migrations)
	}
	if _, err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, db, "INSERT INTO waybill_migration (version, name) VALUES (90, 'of the future'), (1000000, 'of a far one')")
	all, err = s.Migrations(t.Context())
	if err != nil || len(all) != migrations+2 || all[migrations-1].Unknown ||
		!all[migrations].Unknown || !all[migrations+1].Unknown || all[migrations+1].Version != 1000000 {
		t.Errorf("after: %+v, %v; want the last two to be unknown", all, err)
	}
	if d := time.Since(all[0].AppliedAt); d < -time.Minute || d > time.Hour {
		t.Errorf("applied at %v", all[0].AppliedAt)
	}
}

// The SQL in docs/sql.md is run by the shell, and its rows are read with the
// defaults and in the right lane.
func TestDocumentedSQL(t *testing.T) { onBoth(t, testDocumentedSQL) }

func testDocumentedSQL(t *testing.T) {
	s, db := openStore(t, nil)
	for _, block := range docblock.Blocks(t, "docs/sql.md", "sql mysql") {
		shell(t, ask[string](t, db, "SELECT DATABASE()"), block)
	}
	rows := ready(t, s)
	if len(rows) == 0 {
		t.Fatal("nothing was inserted")
	}
	for _, row := range rows {
		if row.Err != nil || row.Event.AggregateID == "" || row.Lane != driver.LaneOf("", row.Event.AggregateType, row.Event.AggregateID, 32) {
			t.Errorf("read back: %+v", row)
		}
	}
}

// A plain insert leaves columns to their defaults: all of them are set, and the
// lane is the one that Go computes.
func TestPlainInsert(t *testing.T) { onBoth(t, testPlainInsert) }

func testPlainInsert(t *testing.T) {
	s, db := openStore(t, nil)
	var script strings.Builder
	script.WriteString("SET time_zone = '+07:00';\n")
	for _, text := range strange {
		quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(text)
		fmt.Fprintf(&script, "INSERT INTO waybill_outbox (type, aggregate_type, aggregate_id, tenant_id, payload) VALUES ('named', '%s', '%s', '%s', '{}');\n",
			quoted, quoted, quoted)
		fmt.Fprintf(&script, "INSERT INTO waybill_outbox (type, aggregate_id, payload) VALUES ('only an id', '%s', '{}');\n", quoted)
	}
	script.WriteString("INSERT INTO waybill_outbox (type, payload) VALUES ('alone', '{}'), ('alone', '{}'), ('alone', '{}');\n")
	script.WriteString("INSERT INTO waybill_outbox (type, aggregate_id, payload) VALUES ('alone', '', '{}');\n")
	script.WriteString("INSERT INTO waybill_outbox (type, payload, available_at) VALUES ('later', '{}', UTC_TIMESTAMP(6) + INTERVAL 1 HOUR);\n")
	now := clock(t, s.Driver().Relay)
	shell(t, ask[string](t, db, "SELECT DATABASE()"), script.String())
	ids, lanes := map[waybill.ID]bool{}, map[int]bool{}
	for _, row := range ready(t, s) {
		ev := row.Event
		ids[row.ID] = true
		switch {
		case row.Err != nil || ev.SchemaVersion != 1 || ev.Topic != ev.Type || ev.ContentType != waybill.JSON || ev.Priority != 0 || ev.Headers != nil:
			t.Errorf("read back: %+v", row)
		case ev.Type == "named" && row.Lane != driver.LaneOf(ev.TenantID, ev.AggregateType, ev.AggregateID, 32),
			ev.Type == "only an id" && row.Lane != driver.LaneOf("", waybill.GlobalAggregate, ev.AggregateID, 32):
			t.Errorf("%q is in lane %d", ev.AggregateID, row.Lane)
		case ev.Type == "alone" && (ev.AggregateID != "" || ev.AggregateType != waybill.GlobalAggregate || row.Lane < 0 || row.Lane > 31):
			t.Errorf("an unordered event: %+v", row)
		case (ev.Type == "later") != row.DueAt.After(now.Add(time.Minute)):
			t.Errorf("%s is due at %v", ev.Type, row.DueAt)
		}
		for what, at := range map[string]time.Time{"id": row.ID.Time(), "occurred_at": ev.OccurredAt, "created_at": row.CreatedAt} {
			if at.Before(now.Truncate(time.Millisecond)) || at.After(now.Add(time.Minute)) {
				t.Errorf("%s says %v, but it is %v", what, at, now)
			}
		}
		lanes[row.Lane] = true
	}
	if want := 2*len(strange) + 5; len(ids) != want {
		t.Errorf("%d ids, want %d", len(ids), want)
	}
	if len(lanes) < 10 {
		t.Errorf("only %d lanes are used", len(lanes))
	}
}

// Plain inserts without an id never collide.
func TestPlainIDs(t *testing.T) { onBoth(t, testPlainIDs) }

func testPlainIDs(t *testing.T) {
	_, db := openStore(t, nil)
	exec(t, db, "INSERT INTO waybill_outbox (type, payload) SELECT 'x', '' FROM (SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4) AS a, information_schema.collations LIMIT 500")
	if n := ask[int](t, db, "SELECT COUNT(DISTINCT SUBSTR(id, 7)) FROM waybill_outbox"); n != 500 {
		t.Errorf("500 rows have %d different random parts", n)
	}
}

func TestServersThatAreTooOld(t *testing.T) {
	for version, ok := range map[string]bool{
		"10.11.19-MariaDB-0+deb12u1": true, "5.5.5-10.11.2-MariaDB": true, "11.4.2-MariaDB": true, "10.10.1-MariaDB": true,
		"10.6.18-MariaDB": false, "5.5.5-10.5.9-MariaDB-log": false, "8.0.36": true, "8.4.0-commercial": true, "9.1.0": true, "8.0.19": true,
		"8.0.18": false, "8.0.13": false, "5.7.44-log": false, "8.0.11-TiDB-v7.5.0": false, "something else": true,
	} {
		if err := mysqlstore.CheckVersion(version); (err == nil) != ok {
			t.Errorf("%s: %v, want it accepted: %t", version, err, ok)
		}
	}
}

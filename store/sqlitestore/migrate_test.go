package sqlitestore_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

func TestMigrate(t *testing.T) {
	db, err := sqlitestore.Open(filepath.Join(t.TempDir(), "x.db"), sqlitestore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, db)
	before, err := db.Migrations(t.Context())
	if err != nil || len(before) == 0 {
		t.Fatalf("Migrations of an empty file: %v, %v", before, err)
	}
	for _, m := range before {
		if !m.AppliedAt.IsZero() || m.Unknown || m.Name == "" {
			t.Errorf("of an empty file: %+v", m)
		}
	}
	applied, err := db.Migrate(t.Context())
	if err != nil || len(applied) != len(before) {
		t.Fatalf("Migrate: %v, %v; want %d", applied, err, len(before))
	}
	after, err := db.Migrations(t.Context())
	if err != nil || len(after) != len(before) {
		t.Fatalf("Migrations: %v, %v", after, err)
	}
	for i, m := range after {
		if m != applied[i] {
			t.Errorf("Migrations says %+v, Migrate said %+v", m, applied[i])
		}
	}
	if again, err := db.Migrate(t.Context()); err != nil || len(again) != 0 {
		t.Errorf("the second Migrate: %v, %v; want nothing", again, err)
	}
}

// TestMigrateDoesNotWait: a service that starts on migrated tables must not
// wait for a writer.
func TestMigrateDoesNotWait(t *testing.T) {
	db := open(t, sqlitestore.Config{BusyTimeout: -1})
	tx, err := db.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // the test is over then
	if applied, err := db.Migrate(t.Context()); err != nil || len(applied) != 0 {
		t.Errorf("Migrate: %v, %v", applied, err)
	}
}

// TestMigrateTogether migrates one file from many stores at once, each with a
// handle of its own, as processes have it. Each migration is applied by one
// store.
func TestMigrateTogether(t *testing.T) {
	for _, settings := range []string{deferred, deferred + "&_txlock=immediate"} {
		path := filepath.Join(t.TempDir(), "x.db")
		var mu sync.Mutex
		var wg sync.WaitGroup
		applied := map[int]int{}
		for range 8 {
			db := over(t, path, settings, sqlitestore.Config{})
			wg.Go(func() {
				list, err := db.Migrate(t.Context())
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, m := range list {
					applied[m.Version]++
				}
			})
		}
		wg.Wait()
		db := over(t, path, settings, sqlitestore.Config{})
		list, err := db.Migrations(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			if applied[m.Version] != 1 {
				t.Errorf("migration %d was applied %d times", m.Version, applied[m.Version])
			}
		}
	}
}

// TestMigrateUnknown opens tables with a migration that this code does not
// know: the store reports the migration, and works.
func TestMigrateUnknown(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	if _, err := db.DB().ExecContext(t.Context(), `INSERT INTO waybill_migration (version, name) VALUES (999, 'future')`); err != nil {
		t.Fatal(err)
	}
	list, err := db.Migrations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	last := list[len(list)-1]
	if !last.Unknown || last.Version != 999 || last.Name != "future" || last.AppliedAt.IsZero() {
		t.Errorf("the unknown migration is %+v", last)
	}
	for _, m := range list[:len(list)-1] {
		if m.Unknown {
			t.Errorf("%+v is known", m)
		}
	}
	if applied, err := db.Migrate(t.Context()); err != nil || len(applied) != 0 {
		t.Errorf("Migrate: %v, %v", applied, err)
	}
	write(t, newBox(t, db.Driver().Outbox), placed("1"))
}

// TestMigrateFails migrates a file with a conflicting table: nothing is left
// behind.
func TestMigrateFails(t *testing.T) {
	db, err := sqlitestore.Open(filepath.Join(t.TempDir(), "x.db"), sqlitestore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, db)
	if _, err := db.DB().ExecContext(t.Context(), `CREATE TABLE waybill_setting (x)`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Migrate(t.Context()); err == nil || !strings.Contains(err.Error(), "migration 1") {
		t.Errorf("Migrate: %v", err)
	}
	if got := catalog(t, db.DB()); strings.Count(got, "CREATE") != 1 {
		t.Errorf("left behind:\n%s", got)
	}
}

// catalog returns the whole schema of the file.
func catalog(t *testing.T, db *sql.DB) string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT type, name, tbl_name, ifnull(sql, '') FROM sqlite_schema ORDER BY type, name`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var b strings.Builder
	for rows.Next() {
		var kind, name, table, text string
		if err := rows.Scan(&kind, &name, &table, &text); err != nil {
			t.Fatal(err)
		}
		b.WriteString(kind + " " + name + " on " + table + ": " + text + "\n")
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// shell runs the sqlite3 shell on a file.
func shell(t *testing.T, path, script string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testserver.Shell(t, "sqlite3"), append(append([]string{"-batch"}, args...), path)...)
	cmd.Stdin = strings.NewReader(script)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return strings.TrimSpace(out.String()), err
}

// TestMigrationSQL applies the script with the real shell: the catalog equals
// that of Migrate, byte for byte, and so do the rows.
func TestMigrationSQL(t *testing.T) {
	for _, cfg := range []sqlitestore.Config{{}, {Prefix: "Other_"}} {
		path := filepath.Join(t.TempDir(), "shell.db")
		byCode := open(t, cfg)
		if out, err := shell(t, path, byCode.MigrationSQL()); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		byShell, err := sqlitestore.Open(path, cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer shut(t, byShell)
		got, want := catalog(t, byShell.DB()), catalog(t, byCode.DB())
		if got != want {
			t.Errorf("by the shell:\n%s\nby Migrate:\n%s", got, want)
		}
		if applied, err := byShell.Migrate(t.Context()); err != nil || len(applied) != 0 {
			t.Errorf("Migrate after the script: %v, %v", applied, err)
		}
		list, err := byShell.Migrations(t.Context())
		if err != nil || len(list) == 0 || list[0].AppliedAt.IsZero() {
			t.Errorf("Migrations after the script: %v, %v", list, err)
		}
		write(t, newBox(t, byShell.Driver().Outbox), placed("1"))
		if out, err := shell(t, path, byCode.MigrationSQL()); err == nil {
			t.Errorf("the script went through a second time: %s", out)
		}
		if again := catalog(t, byShell.DB()); again != want {
			t.Errorf("after the second time:\n%s", again)
		}
	}
}

// TestUpgradeSQL: the script from a version on, applied to tables of that
// version, creates the same catalog as Migrate on an empty file. If the tables
// do not have that version, the script fails and changes nothing.
func TestUpgradeSQL(t *testing.T) {
	byCode := open(t, sqlitestore.Config{Prefix: "Other_"})
	all, err := byCode.Migrations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := catalog(t, byCode.DB())
	for version := 1; version < len(all); version++ {
		path := filepath.Join(t.TempDir(), "shell.db")
		first, _, _ := strings.Cut(byCode.MigrationSQL(), fmt.Sprintf("-- Migration %d:", version+1))
		if out, err := shell(t, path, first+"COMMIT;"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		byShell, err := sqlitestore.Open(path, sqlitestore.Config{Prefix: "Other_"})
		if err != nil {
			t.Fatal(err)
		}
		defer shut(t, byShell)
		before := catalog(t, byShell.DB())
		if later := byCode.UpgradeSQL(version + 1); later != "" {
			if out, err := shell(t, path, later); err == nil {
				t.Errorf("the script from version %d on goes through on tables of version %d: %s", version+1, version, out)
			}
			if after := catalog(t, byShell.DB()); after != before {
				t.Errorf("the script from version %d on makes of tables of version %d:\n%s", version+1, version, after)
			}
		}
		if out, err := shell(t, path, byCode.UpgradeSQL(version)); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if got := catalog(t, byShell.DB()); got != want {
			t.Errorf("by the shell, from version %d on:\n%s\nby Migrate:\n%s", version, got, want)
		}
		if applied, err := byShell.Migrate(t.Context()); err != nil || len(applied) != 0 {
			t.Errorf("Migrate after the script from version %d on: %v, %v", version, applied, err)
		}
	}
	for _, version := range []int{len(all), len(all) + 1} {
		if text := byCode.UpgradeSQL(version); text != "" {
			t.Errorf("behind version %d there is %s", version, text)
		}
	}
}

// TestPrefix uses two outboxes in one file.
func TestPrefix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	one := openAt(t, path, sqlitestore.Config{})
	two := openAt(t, path, sqlitestore.Config{Prefix: "two_"})
	write(t, newBox(t, one.Driver().Outbox), placed("1"))
	for range 2 {
		write(t, newBox(t, two.Driver().Outbox), placed("2"))
	}
	if a, b := len(fetch(t, one.Driver().Relay)), len(fetch(t, two.Driver().Relay)); a != 1 || b != 2 {
		t.Errorf("%d and %d rows, want 1 and 2", a, b)
	}
}

// TestTempTables: a temporary table of the same name does not shadow the
// store's own.
func TestTempTables(t *testing.T) {
	db := over(t, filepath.Join(t.TempDir(), "x.db"), deferred, sqlitestore.Config{})
	db.DB().SetMaxOpenConns(1)
	if _, err := db.DB().ExecContext(t.Context(), `CREATE TEMP TABLE waybill_outbox (x); CREATE TEMP TABLE waybill_setting (x)`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	write(t, newBox(t, db.Driver().Outbox), placed("1"))
	if n := len(fetch(t, db.Driver().Relay)); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

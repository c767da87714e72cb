package sqlitestore

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill/internal/migration"
	"github.com/waybillhq/waybill/store"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// ledger is the table of applied migrations. No migration creates it.
const ledger = `CREATE TABLE IF NOT EXISTS {migration} (
  version    INTEGER PRIMARY KEY,
  name       TEXT    NOT NULL,
  applied_at INTEGER NOT NULL DEFAULT ({now})
) STRICT`

// migrations are the migration steps and the statements about them.
type migrations struct {
	steps                        []migration.Step
	ledger, lock, enter, applied string
}

func newMigrations(names *strings.Replacer) migrations {
	steps, err := migration.Read(migrationFiles, "migrations", names)
	if err != nil {
		panic(err) // the files are part of this package
	}
	return migrations{
		steps: steps, ledger: names.Replace(ledger),
		lock:    names.Replace(`DELETE FROM {migration} WHERE 0`),
		enter:   names.Replace(`INSERT INTO {migration} (version, name, applied_at) VALUES (?, ?, ?)`),
		applied: names.Replace(`SELECT version, name, applied_at FROM {migration} ORDER BY version`),
	}
}

// Migrate implements [driver.Migrator]. It applies all missing migrations in
// one transaction. It ignores migrations that this code does not know: they
// belong to a newer version, and a service that was rolled back must be able to
// start.
func (s *backend) Migrate(ctx context.Context) ([]store.Migration, error) {
	if err := s.fit(ctx, s.db); err != nil {
		return nil, err
	}
	// The check keeps a service that starts on migrated tables from waiting for
	// the write lock.
	if list, err := s.Migrations(ctx); err != nil || !slices.ContainsFunc(list, isMissing) {
		return nil, err
	}
	var done []store.Migration
	err := s.transact(ctx, s.lockLedger, func(ctx context.Context, t txTarget) error {
		had, err := s.applied(ctx, t)
		if err != nil {
			return err
		}
		for _, step := range s.migrations.steps {
			if slices.ContainsFunc(had, func(m store.Migration) bool { return m.Version == step.Version }) {
				continue
			}
			for i, text := range step.Statements {
				if err := t.text(ctx, text); err != nil {
					return fmt.Errorf("migration %d (%s), statement %d: %w", step.Version, step.Name, i+1, err)
				}
			}
			now := clock()
			if _, err := t.ExecContext(ctx, s.migrations.enter, step.Version, step.Name, micros(now)); err != nil {
				return err
			}
			done = append(done, store.Migration{Version: step.Version, Name: step.Name, AppliedAt: now})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return done, nil
}

func isMissing(m store.Migration) bool { return m.AppliedAt.IsZero() }

// lockLedger creates the table of migrations if it is missing, and takes the
// write lock in both cases.
func (s *backend) lockLedger(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, s.migrations.ledger); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, s.migrations.lock)
	return err
}

// Migrations implements [driver.Migrator].
func (s *backend) Migrations(ctx context.Context) ([]store.Migration, error) {
	var made bool
	rows, err := s.db.QueryContext(ctx, `SELECT EXISTS (SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = ?)`,
		s.cfg.Prefix+"migration")
	if _, err := scanOne(rows, err, &made); err != nil {
		return nil, s.explain(err)
	}
	var list []store.Migration
	if made {
		if list, err = s.applied(ctx, s.db); err != nil {
			return nil, s.explain(err)
		}
	}
	for i := range list {
		list[i].Unknown = true
	}
	for _, step := range s.migrations.steps {
		if i := slices.IndexFunc(list, func(m store.Migration) bool { return m.Version == step.Version }); i >= 0 {
			list[i].Unknown = false
			continue
		}
		list = append(list, store.Migration{Version: step.Version, Name: step.Name})
	}
	slices.SortFunc(list, func(a, b store.Migration) int { return cmp.Compare(a.Version, b.Version) })
	return list, nil
}

// applied returns the applied migrations.
func (s *backend) applied(ctx context.Context, q querier) ([]store.Migration, error) {
	var list []store.Migration
	rows, err := q.QueryContext(ctx, s.migrations.applied)
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		var m store.Migration
		var at int64
		if err := rows.Scan(&m.Version, &m.Name, &at); err != nil {
			return err
		}
		m.AppliedAt = time.UnixMicro(at).UTC()
		list = append(list, m)
		return nil
	})
	return list, err
}

// MigrationSQL implements [driver.Migrator]. The script is for the sqlite3
// shell, version 3.40 or later, and for an empty outbox. The script stops at
// the first error and then leaves nothing behind.
func (s *backend) MigrationSQL() string { return s.UpgradeSQL(0) }

// UpgradeSQL implements [driver.Upgrader].
func (s *backend) UpgradeSQL(version int) string {
	steps := s.migrations.steps
	steps = steps[min(max(version, 0), len(steps)):]
	if len(steps) == 0 {
		return ""
	}
	table := "\"main\".\"" + s.cfg.Prefix + "migration\""
	var b strings.Builder
	b.WriteString("-- The tables of Waybill. Apply with: sqlite3 FILE < THIS\n.bail on\nPRAGMA journal_mode = WAL;\nBEGIN IMMEDIATE;\n\n")
	if version > 0 { // the name of a migration is NOT NULL
		fmt.Fprintf(&b, "-- This fails if the tables have not had migration %[1]d.\nINSERT INTO %[2]s (version, name)\n"+
			"  SELECT %[1]d, NULL WHERE NOT EXISTS (SELECT 1 FROM %[2]s WHERE version = %[1]d);\n", version, table)
	} else {
		fmt.Fprintf(&b, "%s;\n", s.migrations.ledger)
	}
	for _, step := range steps {
		fmt.Fprintf(&b, "\n-- Migration %d: %s\n", step.Version, step.Name)
		for _, text := range step.Statements {
			fmt.Fprintf(&b, "\n%s;\n", text)
		}
		fmt.Fprintf(&b, "\nINSERT INTO %s (version, name) VALUES (%d, '%s');\n", table, step.Version, step.Name)
	}
	b.WriteString("\nCOMMIT;\n")
	return b.String()
}

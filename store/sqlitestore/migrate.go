package sqlitestore

import (
	"context"
	"database/sql"
	"embed"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill/internal/migration"
	"github.com/waybillhq/waybill/internal/sqlstore"
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
		applied: names.Replace(`SELECT version, name, applied_at FROM {migration}`),
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
		done, err = sqlstore.Migrate(s.migrations.steps, had, func(statement string) error { return t.text(ctx, statement) },
			func(step migration.Step, at time.Time) error {
				_, err := t.ExecContext(ctx, s.migrations.enter, step.Version, step.Name, micros(at))
				return err
			})
		return err
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
	var had map[int]store.Migration
	if made {
		if had, err = s.applied(ctx, s.db); err != nil {
			return nil, s.explain(err)
		}
	}
	return sqlstore.Migrations(s.migrations.steps, had), nil
}

// applied returns the applied migrations.
func (s *backend) applied(ctx context.Context, q querier) (map[int]store.Migration, error) {
	had := make(map[int]store.Migration)
	rows, err := q.QueryContext(ctx, s.migrations.applied)
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		var m store.Migration
		var at int64
		if err := rows.Scan(&m.Version, &m.Name, &at); err != nil {
			return err
		}
		m.AppliedAt = time.UnixMicro(at).UTC()
		had[m.Version] = m
		return nil
	})
	return had, err
}

// MigrationSQL implements [driver.Migrator]. The script is for the sqlite3
// shell, version 3.40 or later, and for an empty outbox. The script stops at
// the first error and then leaves nothing behind.
func (s *backend) MigrationSQL() string { return s.UpgradeSQL(0) }

// scripting returns what scripts need beside the steps.
func (s *backend) scripting() sqlstore.Scripting {
	table := "\"main\".\"" + s.cfg.Prefix + "migration\""
	return sqlstore.Scripting{
		Begin: []string{s.migrations.ledger},
		// the name of a migration is NOT NULL
		Had: "INSERT INTO " + table + " (version, name)\n  SELECT %[1]d, NULL WHERE NOT EXISTS (SELECT 1 FROM " + table +
			" WHERE version = %[1]d)",
		Record: "INSERT INTO " + table + " (version, name) VALUES (%d, '%s')",
	}
}

// Script implements [driver.Scripter].
func (s *backend) Script(version int) (up, down []string) {
	sc := s.scripting()
	return sc.Script(s.migrations.steps, version), sc.Drops(s.migrations.steps)
}

// UpgradeSQL implements [driver.Upgrader].
func (s *backend) UpgradeSQL(version int) string {
	up, _ := s.Script(version)
	if len(up) == 0 {
		return ""
	}
	return "-- The tables of Waybill. Apply with: sqlite3 FILE < THIS\n.bail on\nPRAGMA journal_mode = WAL;\nBEGIN IMMEDIATE;\n\n" +
		strings.Join(up, ";\n\n") + ";\n\nCOMMIT;\n"
}

// Remove implements [driver.Scripter], in one transaction.
func (s *backend) Remove(ctx context.Context) error {
	list, err := s.Migrations(ctx)
	if err != nil || !slices.ContainsFunc(list, func(m store.Migration) bool { return !isMissing(m) }) {
		return err
	}
	_, down := s.Script(0)
	return s.transact(ctx, s.lockLedger, func(ctx context.Context, t txTarget) error {
		if err := s.noRelay(ctx, t, time.Now()); err != nil {
			return err
		}
		for _, statement := range down {
			if err := t.text(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

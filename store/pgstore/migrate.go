package pgstore

import (
	"context"
	"embed"
	"fmt"
	"strings"
	"time"

	"github.com/waybillhq/waybill/internal/migration"
	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrationTable records the applied migrations.
const migrationTable = `CREATE TABLE IF NOT EXISTS {migration} (
  version    integer     NOT NULL,
  name       text        NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT "{prefix}migration_pkey" PRIMARY KEY (version)
)`

func (c *core) steps() ([]migration.Step, error) {
	return migration.Read(migrationFiles, "migrations", c.cfg.replacer())
}

// Migrate implements [driver.Migrator]. All steps run in one transaction under
// an advisory lock: several processes may call Migrate at once, and a failed
// call leaves nothing behind.
func (c *core) Migrate(ctx context.Context) ([]store.Migration, error) {
	steps, err := c.steps()
	if err != nil {
		return nil, err
	}
	r := c.cfg.replacer()
	var applied []store.Migration
	err = c.db.within(ctx, func(tx database) error {
		if err := tx.exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, "waybill migrate "+c.cfg.Schema+"."+c.cfg.Prefix); err != nil {
			return err
		}
		if c.cfg.Schema != "" {
			if err := c.createSchema(ctx, tx); err != nil {
				return err
			}
		}
		if err := tx.exec(ctx, r.Replace(migrationTable)); err != nil {
			return err
		}
		had, err := c.applied(ctx, tx)
		if err != nil {
			return err
		}
		applied, err = sqlstore.Migrate(steps, had, func(statement string) error { return tx.exec(ctx, statement) },
			func(step migration.Step, _ time.Time) error {
				return tx.exec(ctx, r.Replace(`INSERT INTO {migration} (version, name) VALUES ($1, $2)`), step.Version, step.Name)
			})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pgstore: migrate: %w", err)
	}
	return applied, nil
}

// createSchema creates the schema unless it exists. It checks first, because
// CREATE SCHEMA IF NOT EXISTS needs the privilege to create a schema even when
// the schema exists.
func (c *core) createSchema(ctx context.Context, tx database) error {
	there := false
	rows, err := tx.query(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, c.cfg.Schema)
	if err := collect(rows, err, func() error { return nil }, &there); err != nil || there {
		return err
	}
	return tx.exec(ctx, c.schemaSQL())
}

func (c *core) schemaSQL() string { return `CREATE SCHEMA "` + c.cfg.Schema + `"` }

// applied returns the applied migrations.
func (c *core) applied(ctx context.Context, db database) (map[int]store.Migration, error) {
	had := make(map[int]store.Migration)
	var m store.Migration
	rows, err := db.query(ctx, c.cfg.replacer().Replace(`SELECT version, name, applied_at FROM {migration}`))
	err = collect(rows, err, func() error {
		m.AppliedAt = m.AppliedAt.UTC()
		had[m.Version] = m
		return nil
	}, &m.Version, &m.Name, &m.AppliedAt)
	return had, err
}

// Migrations implements [driver.Migrator].
func (c *core) Migrations(ctx context.Context) ([]store.Migration, error) {
	steps, err := c.steps()
	if err != nil {
		return nil, err
	}
	had, err := c.applied(ctx, c.db)
	// Without a table, no migration was applied.
	if err != nil && sqlState(err) != "42P01" && sqlState(err) != "3F000" {
		return nil, c.explain(err)
	}
	return sqlstore.Migrations(steps, had), nil
}

// MigrationSQL implements [driver.Migrator]. The script is for psql and runs in
// one transaction.
func (c *core) MigrationSQL() string { return c.UpgradeSQL(0) }

// hadVersion fails if a version was not applied: the name of a migration is NOT
// NULL.
const hadVersion = `INSERT INTO {migration} (version, name)
  SELECT %[1]d, NULL WHERE NOT EXISTS (SELECT 1 FROM {migration} WHERE version = %[1]d)`

// scripting returns what scripts need beside the steps.
func (c *core) scripting() sqlstore.Scripting {
	r := c.cfg.replacer()
	sc := sqlstore.Scripting{Had: r.Replace(hadVersion), Record: r.Replace(`INSERT INTO {migration} (version, name) VALUES (%d, '%s')`)}
	if c.cfg.Schema != "" {
		sc.Begin = append(sc.Begin, `CREATE SCHEMA IF NOT EXISTS "`+c.cfg.Schema+`"`)
	}
	sc.Begin = append(sc.Begin, r.Replace(migrationTable))
	return sc
}

// Script implements [driver.Scripter].
func (c *core) Script(version int) (up, down []string) {
	steps, err := c.steps()
	if err != nil {
		panic(err) // the files are embedded, and a test reads them
	}
	sc := c.scripting()
	return sc.Script(steps, version), sc.Drops(steps)
}

// UpgradeSQL implements [driver.Upgrader].
func (c *core) UpgradeSQL(version int) string {
	up, _ := c.Script(version)
	if len(up) == 0 {
		return ""
	}
	return "\\set ON_ERROR_STOP on\nBEGIN;\n\n" + strings.Join(up, ";\n\n") + ";\n\nCOMMIT;\n"
}

// Remove implements [driver.Scripter], in one transaction.
func (c *core) Remove(ctx context.Context) error {
	_, down := c.Script(0)
	err := c.db.within(ctx, func(tx database) error {
		live, err := c.withoutNodes(ctx, tx)
		if err != nil {
			return err
		}
		if live {
			return store.ErrRelayLive
		}
		for _, statement := range down {
			if err := tx.exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
	if sqlState(err) == "42P01" || sqlState(err) == "3F000" {
		return nil // there are no tables
	}
	if err != nil {
		return fmt.Errorf("pgstore: remove: %w", err)
	}
	return nil
}

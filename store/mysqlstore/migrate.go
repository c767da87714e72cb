package mysqlstore

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill/internal/migration"
	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrationTable creates the table of applied migrations.
const migrationTable = `CREATE TABLE IF NOT EXISTS {migration} (
  version    INT           NOT NULL,
  name       VARBINARY(64) NOT NULL,
  applied_at DATETIME(6)   NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  PRIMARY KEY (version)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin`

// sqlMode is the mode in which tables and procedures are created: a procedure
// keeps it, and without NO_ENGINE_SUBSTITUTION a server without InnoDB would
// create tables of another engine.
const sqlMode = `STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION`

// lockSeconds is how long one GET_LOCK waits for another migrating process
// before the context is checked.
const lockSeconds = 5

// unlockTimeout bounds the release of the lock.
const unlockTimeout = 10 * time.Second

func (c Config) steps() ([]migration.Step, error) {
	return migration.Read(migrationFiles, "migrations", c.replacer())
}

// Migrate implements [driver.Migrator]. MySQL commits every DDL statement on
// its own, so an interrupted migration is run again from its beginning: its
// statements do nothing if already done, and its version is recorded last. A
// named lock serializes concurrent processes.
func (s *backend) Migrate(ctx context.Context) (applied []store.Migration, err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("mysqlstore: migrate: %w", err)
	}
	defer func() { _ = conn.Close() }()
	// First: an unsupported server may lack the rest.
	if err := s.checkServer(ctx, conn); err != nil {
		return nil, fmt.Errorf("mysqlstore: migrate: %w", err)
	}
	unlock, err := s.lock(ctx, conn)
	if err != nil {
		return nil, fmt.Errorf("mysqlstore: migrate: %w", err)
	}
	defer unlock()
	if applied, err = s.migrate(ctx, conn); err != nil {
		return applied, fmt.Errorf("mysqlstore: migrate: %w", err)
	}
	return applied, nil
}

func (s *backend) migrate(ctx context.Context, conn *sql.Conn) ([]store.Migration, error) {
	cfg, err := s.madeWith(ctx, conn)
	if err != nil {
		return nil, err
	}
	steps, err := cfg.steps()
	if err != nil {
		return nil, err
	}
	r := cfg.replacer()
	had, err := s.applied(ctx, conn)
	// Read first: an account without DDL privileges may find nothing to
	// migrate.
	if number(err) == errNoTable {
		_, err = conn.ExecContext(ctx, r.Replace(migrationTable))
	}
	if err != nil {
		return nil, err
	}
	exec := func(statement string, args ...any) error {
		_, err := conn.ExecContext(ctx, statement, args...)
		return err
	}
	return sqlstore.Migrate(steps, had, func(statement string) error { return exec(statement) },
		func(step migration.Step, _ time.Time) error {
			return exec(r.Replace(`INSERT INTO {migration} (version, name) VALUES (?, ?)`), step.Version, step.Name)
		})
}

// lock takes the named lock of these tables, which belongs to the session, and
// sets the SQL mode in which they are created. unlock undoes both.
func (s *backend) lock(ctx context.Context, conn *sql.Conn) (unlock func(), err error) {
	const name = `CONCAT('waybill ', LEFT(SHA2(CONCAT(COALESCE(NULLIF(?, ''), DATABASE(), ''), '.', ?), 256), 40))`
	args := []any{s.cfg.Schema, s.cfg.Prefix}
	for {
		var got sql.NullInt64
		query := `SELECT GET_LOCK(` + name + `, ` + strconv.Itoa(lockSeconds) + `)`
		if err := each(ctx, conn, query, args, nil, &got); err != nil {
			return nil, err
		}
		if got.Int64 == 1 {
			break
		}
		if !got.Valid {
			return nil, errors.New("the server refused the named lock")
		}
	}
	var mode string
	if err = each(ctx, conn, `SELECT @@sql_mode`, nil, nil, &mode); err == nil {
		_, err = conn.ExecContext(ctx, `SET SESSION sql_mode = '`+sqlMode+`'`)
	}
	unlock = func() {
		// The connection returns to the pool. If it is broken, the server
		// releases the lock and the session.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
		defer cancel()
		_, _ = conn.ExecContext(ctx, `SET SESSION sql_mode = ?`, mode)
		_ = each(ctx, conn, `SELECT RELEASE_LOCK(`+name+`)`, args, nil, new(sql.NullInt64))
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// versionNumbers finds the numbers in "8.0.36", "10.11.19-MariaDB-0+deb12u1"
// and "5.5.5-10.11.19-MariaDB".
var versionNumbers = regexp.MustCompile(`(\d+)\.(\d+)\.(\d+)(-MariaDB)?`)

// checkServer refuses servers that cannot create the tables: the server itself
// would only report a syntax error.
func (s *backend) checkServer(ctx context.Context, conn *sql.Conn) error {
	var version string
	if err := each(ctx, conn, `SELECT VERSION()`, nil, nil, &version); err != nil {
		return err
	}
	return checkVersion(version)
}

func checkVersion(version string) error {
	all := versionNumbers.FindAllStringSubmatch(version, -1)
	if isTiDB(version) {
		return errTiDB(version)
	}
	if len(all) == 0 {
		return nil // unknown format: let the migration's statements fail
	}
	found := all[len(all)-1]
	var got [3]int
	for i := range got {
		got[i], _ = strconv.Atoi(found[i+1])
	}
	// Expression defaults, enforced constraints, DROP CONSTRAINT.
	oldest := [3]int{8, 0, 19}
	if strings.Contains(version, "MariaDB") {
		oldest = [3]int{10, 10, 1} // RANDOM_BYTES
	}
	if slices.Compare(got[:], oldest[:]) < 0 {
		return fmt.Errorf("unsupported server version %s; MySQL 8.0.19, MariaDB 10.10 or later is required", version)
	}
	return nil
}

// madeWith creates the schema, and returns the configuration with the number of
// lanes of existing tables.
func (s *backend) madeWith(ctx context.Context, conn *sql.Conn) (Config, error) {
	cfg := s.config()
	if cfg.Schema != "" {
		// Read first: CREATE DATABASE IF NOT EXISTS needs the CREATE privilege
		// even if the database exists.
		there := 0
		err := each(ctx, conn, `SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?`, []any{cfg.Schema}, nil, &there)
		if err == nil && there == 0 {
			_, err = conn.ExecContext(ctx, cfg.schemaSQL())
		}
		if err != nil {
			return cfg, err
		}
	}
	var lanes int
	err := each(ctx, conn, cfg.replacer().Replace(`SELECT value FROM {setting} WHERE name = 'lanes'`), nil, nil, &lanes)
	switch {
	case number(err) == errNoTable:
		return cfg, nil
	case err != nil:
		return cfg, err
	case lanes != 0 && cfg.Lanes != 0 && lanes != cfg.Lanes:
		return cfg, fmt.Errorf("Config.Lanes: %d, but the tables have %d; omit it, or change the tables", cfg.Lanes, lanes)
	case lanes != 0:
		cfg.Lanes = lanes
	}
	return cfg, nil
}

func (c Config) schemaSQL() string { return "CREATE DATABASE IF NOT EXISTS `" + c.Schema + "`" }

// applied returns the applied migrations.
func (s *backend) applied(ctx context.Context, q querier) (map[int]store.Migration, error) {
	had := make(map[int]store.Migration)
	var m store.Migration
	var at int64
	query := s.cfg.replacer().Replace(`SELECT version, name, ` + micros + `applied_at) FROM {migration}`)
	err := each(ctx, q, query, nil, func() {
		m.AppliedAt = time.UnixMicro(at).UTC()
		had[m.Version] = m
	}, &m.Version, &m.Name, &at)
	return had, err
}

// Migrations implements [driver.Migrator].
func (s *backend) Migrations(ctx context.Context) ([]store.Migration, error) {
	steps, err := s.cfg.steps()
	if err != nil {
		return nil, err
	}
	had, err := s.applied(ctx, s.db)
	// No table yet: nothing applied.
	if err != nil && number(err) != errNoTable && number(err) != errNoDatabase {
		return nil, s.explain(err)
	}
	return sqlstore.Migrations(steps, had), nil
}

// MigrationSQL implements [driver.Migrator]. It returns a script for the
// mariadb or mysql shell. Every statement commits on its own; after an error
// the script can be run again.
func (s *backend) MigrationSQL() string { return s.UpgradeSQL(0) }

// hadVersion fails if a migration has not been applied: the name column is not
// null.
const hadVersion = `INSERT INTO {migration} (version, name)
  SELECT %[1]d, NULL FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM {migration} WHERE version = %[1]d)`

// scripting returns what scripts need beside the steps.
func (s *backend) scripting() sqlstore.Scripting {
	r := s.cfg.replacer()
	sc := sqlstore.Scripting{
		Begin:  []string{"SET SESSION sql_mode = '" + sqlMode + "'"},
		Had:    r.Replace(hadVersion),
		Record: r.Replace("INSERT INTO {migration} (version, name) VALUES (%d, '%s') ON DUPLICATE KEY UPDATE name = name"),
	}
	if s.cfg.Schema != "" {
		sc.Begin = append(sc.Begin, s.cfg.schemaSQL())
	}
	sc.Begin = append(sc.Begin, r.Replace(migrationTable))
	return sc
}

// Script implements [driver.Scripter].
func (s *backend) Script(version int) (up, down []string) {
	steps, err := s.config().steps()
	if err != nil {
		panic(err) // the files are embedded, and a test reads them
	}
	sc := s.scripting()
	up = sc.Script(steps, version)
	if len(up) > 0 && version > 0 {
		up = append(sc.Begin[:1:1], up...)
	}
	return up, sc.Drops(steps)
}

// UpgradeSQL implements [driver.Upgrader].
func (s *backend) UpgradeSQL(version int) string {
	up, _ := s.Script(version)
	var b strings.Builder
	for _, statement := range up {
		// It contains semicolons.
		if strings.Contains(statement, "CREATE PROCEDURE") {
			b.WriteString("DELIMITER $$\n" + statement + "$$\nDELIMITER ;\n\n")
			continue
		}
		b.WriteString(statement + ";\n\n")
	}
	return b.String()
}

// Remove implements [driver.Scripter]. Every statement commits on its own;
// after an error Remove can be called again.
func (s *backend) Remove(ctx context.Context) error {
	err := s.noRelay(ctx, s.db)
	if err != nil && number(err) != errNoTable {
		return fmt.Errorf("mysqlstore: remove: %w", err)
	}
	_, down := s.Script(0)
	for _, statement := range down {
		if _, err := s.db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("mysqlstore: remove: %w", err)
		}
	}
	return nil
}

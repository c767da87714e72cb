package mysqlstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Store stores the outbox, the inbox and idempotency keys in MySQL or MariaDB,
// for transactions of type [*sql.Tx]. It has every role of package driver, and
// is safe for concurrent use.
type Store struct {
	backend *backend
	roles   driver.Roles[*sql.Tx]
}

// New returns a store over database/sql. It runs no statement; the caller
// remains responsible for closing db.
func New(db *sql.DB, cfg Config) (*Store, error) {
	if db == nil {
		return nil, errors.New("mysqlstore: database is nil")
	}
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	b := &backend{
		sql: newStatements(cfg), leftover: make(map[waybill.ID]struct{}),
		inserts: make(map[shape]*sql.Stmt), wanted: make(map[shape]*sql.Stmt),
		sessions: make(map[*sql.Tx]*written), backlogs: make(map[int]*backlog),
	}
	b.init(db, cfg, layout{}, new(primaries))
	return &Store{backend: b, roles: driver.RolesOf[*sql.Tx](b)}, nil
}

// Driver returns the roles of the store for Waybill's packages.
func (s *Store) Driver() driver.Roles[*sql.Tx] { return s.roles }

// Migrate applies the missing migrations, in order, and returns them. It is
// safe to call from several processes concurrently, and does nothing if no
// migration is missing.
func (s *Store) Migrate(ctx context.Context) ([]store.Migration, error) {
	return s.backend.Migrate(ctx)
}

// Migrations returns all migrations that the code knows, and those that only
// the tables have.
func (s *Store) Migrations(ctx context.Context) ([]store.Migration, error) {
	return s.backend.Migrations(ctx)
}

// MigrationSQL returns all migrations as a script for the database's own shell,
// for users who may not run DDL from code.
func (s *Store) MigrationSQL() string { return s.backend.MigrationSQL() }

// UpgradeSQL returns [Store.MigrationSQL] without the migrations up to version,
// which the tables already have. Applied to tables without that version, the
// script fails before it changes anything.
func (s *Store) UpgradeSQL(version int) string { return s.backend.UpgradeSQL(version) }

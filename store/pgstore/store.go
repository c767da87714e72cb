package pgstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Store stores the outbox, the inbox and idempotency keys in PostgreSQL, for
// transactions of pgx. It has every role of package driver, and is safe for
// concurrent use.
type Store struct {
	backend *pgxBackend
	roles   driver.Roles[pgx.Tx]
}

// SQLStore stores the outbox, the inbox and idempotency keys in PostgreSQL, for
// transactions of database/sql. It has every role of package driver, and is
// safe for concurrent use.
type SQLStore struct {
	backend *sqlBackend
	roles   driver.Roles[*sql.Tx]
}

// New returns a store over a pgx pool. It does not access the database. The
// caller keeps ownership of the pool.
func New(pool *pgxpool.Pool, cfg Config) (*Store, error) {
	if pool == nil {
		return nil, errors.New("pgstore: pool is nil")
	}
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	b := &pgxBackend{core: newCore(pgxDB{pool}, cfg, newShared()), pool: pool}
	b.wakeOthers()
	return &Store{backend: b, roles: driver.RolesOf[pgx.Tx](b)}, nil
}

// NewSQL returns a store over database/sql, with any driver. It does not access
// the database. The caller keeps ownership of db.
func NewSQL(db *sql.DB, cfg Config) (*SQLStore, error) {
	if db == nil {
		return nil, errors.New("pgstore: database is nil")
	}
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	b := &sqlBackend{core: newCore(sqlDB{db}, cfg, newShared()), sqldb: db}
	b.wakeOthers()
	return newSQLStore(b), nil
}

// SQL returns a store over the same tables for transactions of db, which must
// be a handle to the same database. The two stores share their hub: a relay on
// one store is notified of commits through the other.
func (s *Store) SQL(db *sql.DB) *SQLStore {
	return newSQLStore(&sqlBackend{core: newCore(sqlDB{db}, s.backend.cfg, s.backend.shared), sqldb: db})
}

func newSQLStore(b *sqlBackend) *SQLStore {
	return &SQLStore{backend: b, roles: driver.RolesOf[*sql.Tx](b)}
}

// Driver returns the roles of the store for Waybill's packages.
func (s *Store) Driver() driver.Roles[pgx.Tx] { return s.roles }

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

// Driver returns the roles of the store for Waybill's packages.
func (s *SQLStore) Driver() driver.Roles[*sql.Tx] { return s.roles }

// Migrate applies the missing migrations, in order, and returns them. It is
// safe to call from several processes concurrently, and does nothing if no
// migration is missing.
func (s *SQLStore) Migrate(ctx context.Context) ([]store.Migration, error) {
	return s.backend.Migrate(ctx)
}

// Migrations returns all migrations that the code knows, and those that only
// the tables have.
func (s *SQLStore) Migrations(ctx context.Context) ([]store.Migration, error) {
	return s.backend.Migrations(ctx)
}

// MigrationSQL returns all migrations as a script for the database's own shell,
// for users who may not run DDL from code.
func (s *SQLStore) MigrationSQL() string { return s.backend.MigrationSQL() }

// UpgradeSQL returns [SQLStore.MigrationSQL] without the migrations up to
// version, which the tables already have. Applied to tables without that
// version, the script fails before it changes anything.
func (s *SQLStore) UpgradeSQL(version int) string { return s.backend.UpgradeSQL(version) }

package sqlitestore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Store stores the outbox, the inbox and idempotency keys in a SQLite file, for
// transactions of type [*sql.Tx]. It has every role of package driver, and is
// safe for concurrent use.
type Store struct {
	backend *backend
	roles   driver.Roles[*sql.Tx]
}

// New returns a store over a database that was opened with the driver
// modernc.org/sqlite, for example
//
//	sql.Open("sqlite", "file:shop.db?_journal_mode=WAL&_txlock=immediate&_busy_timeout=10000&_foreign_keys=1")
//
// New does not access the database. The caller keeps ownership of db. The file
// must be in WAL mode; the first use checks that. Without _txlock=immediate the
// store's transactions still take the write lock at the start, but the caller's
// own transactions do not: they can fail with SQLITE_BUSY when they turn from
// reading to writing, regardless of the busy timeout. Without a busy timeout
// the caller's own transactions fail whenever they meet another writer.
func New(db *sql.DB, cfg Config) (*Store, error) {
	if db == nil {
		return nil, errors.New("sqlitestore: database is nil")
	}
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	return newStore(newBackend(db, cfg)), nil
}

func newStore(b *backend) *Store {
	return &Store{backend: b, roles: driver.RolesOf[*sql.Tx](b)}
}

// DB returns the database, for the service's own tables and transactions.
func (s *Store) DB() *sql.DB { return s.backend.db }

// Close closes the store and the database that [Open] opened. A database that
// was passed to [New] stays open. The store must not be used after Close.
func (s *Store) Close() error { return s.backend.close() }

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

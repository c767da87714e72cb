package driver

import (
	"context"
	"fmt"
	"strings"

	"github.com/waybillhq/waybill/store"
)

// Migrator migrates the tables to the schema that the code needs.
type Migrator interface {
	// Migrate applies the missing migrations, in order, and returns them. It is
	// safe to call from several processes concurrently, and does nothing if no
	// migration is missing.
	Migrate(ctx context.Context) ([]store.Migration, error)
	// Migrations returns all migrations that the code knows, and those that
	// only the tables have.
	Migrations(ctx context.Context) ([]store.Migration, error)
	// MigrationSQL returns all migrations as a script for the database's own
	// shell, for users who may not run DDL from code. Applied to an empty
	// database, the script creates the same tables as Migrate.
	MigrationSQL() string
}

// Upgrader is a [Migrator] that can write the script for partially migrated
// tables.
type Upgrader interface {
	// UpgradeSQL returns [Migrator.MigrationSQL] without the migrations up to
	// version, which the tables already have. Applied to tables without that
	// version, the script fails before it changes anything. It is empty if the
	// code knows no later migration.
	UpgradeSQL(version int) string
}

// Scripter is a [Migrator] that lists its statements, for migration tools, and
// that can remove the tables.
type Scripter interface {
	// Script returns the statements of the migrations after version, and the
	// statements that remove all tables with their data. The statements have no
	// terminator. Applied to tables without version, the first of up fails.
	Script(version int) (up, down []string)
	// Remove removes all tables with their data. It returns
	// [store.ErrRelayLive] while a relay is live, and does nothing if there are
	// no tables. A schema stays.
	Remove(ctx context.Context) error
}

// Newer returns [store.ErrNewerTables], with the names of the migrations, if
// this code does not know some of them.
func Newer(all []store.Migration) error {
	var names []string
	for _, m := range all {
		if m.Unknown {
			names = append(names, fmt.Sprintf("%d (%s)", m.Version, m.Name))
		}
	}
	if names == nil {
		return nil
	}
	return fmt.Errorf("%w: unknown migrations %s", store.ErrNewerTables, strings.Join(names, ", "))
}

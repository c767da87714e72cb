package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Migrator brings the tables to the shape that the code needs.
type Migrator interface {
	// Migrate applies what is missing, in order, and returns what it applied. It is safe to call from several processes
	// at once, and does nothing when nothing is missing.
	Migrate(ctx context.Context) ([]Migration, error)
	// Migrations returns all migrations that the code knows and those that it does not know but the tables have had.
	Migrations(ctx context.Context) ([]Migration, error)
	// MigrationSQL returns all of it as a script for the database's own shell, for people who may not run DDL from code.
	// Applied to an empty database it gives the same tables as Migrate.
	MigrationSQL() string
}

// Upgrader is a [Migrator] that can write the script for tables that have had some of the
// migrations.
type Upgrader interface {
	// UpgradeSQL returns [Migrator.MigrationSQL] without the migrations up to a version, which
	// the tables have had. Applied to tables that have not had that version, the script fails
	// before it changes anything. It is empty if the code knows no migration behind that version.
	UpgradeSQL(version int) string
}

// ErrNewerTables says that the tables have had migrations that this code does not know. What they mean for it is not known either.
var ErrNewerTables = errors.New("store: the tables are newer than this program")

// Newer returns [ErrNewerTables], with their names, if some of the migrations are unknown to this code.
func Newer(all []Migration) error {
	var names []string
	for _, m := range all {
		if m.Unknown {
			names = append(names, fmt.Sprintf("%d (%s)", m.Version, m.Name))
		}
	}
	if names == nil {
		return nil
	}
	return fmt.Errorf("%w: they have had migration %s", ErrNewerTables, strings.Join(names, ", "))
}

// Migration is one step of the tables' shape.
type Migration struct {
	Version int
	Name    string
	// AppliedAt is zero for one that is still missing.
	AppliedAt time.Time
	// Unknown says that the tables have it and this code does not know it: the code is older than the tables.
	Unknown bool
}

package store

import (
	"context"
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

// Migration is one step of the tables' shape.
type Migration struct {
	Version int
	Name    string
	// AppliedAt is zero for one that is still missing.
	AppliedAt time.Time
	// Unknown says that the tables have it and this code does not know it: the code is older than the tables.
	Unknown bool
}

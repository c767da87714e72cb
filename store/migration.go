package store

import (
	"errors"
	"time"
)

// ErrNewerTables means that the tables have migrations that this code does not
// know, with unknown consequences.
var ErrNewerTables = errors.New("store: the tables are newer than this program")

// Migration is one step of the schema.
type Migration struct {
	Version int
	Name    string
	// AppliedAt is zero for a missing migration.
	AppliedAt time.Time
	// Unknown means that the tables have the migration and this code does not
	// know it: the code is older than the tables.
	Unknown bool
}

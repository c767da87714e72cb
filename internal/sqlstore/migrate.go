package sqlstore

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/waybillhq/waybill/internal/migration"
	"github.com/waybillhq/waybill/store"
)

// Migrate applies the steps that are not in had, and returns them. exec runs
// one statement; record records a step after its last statement. After an error
// Migrate returns the steps that are recorded.
func Migrate(
	steps []migration.Step, had map[int]store.Migration, exec func(statement string) error, record func(step migration.Step, at time.Time) error,
) ([]store.Migration, error) {
	var applied []store.Migration
	for _, step := range steps {
		if _, ok := had[step.Version]; ok {
			continue
		}
		for i, statement := range step.Statements {
			if err := exec(statement); err != nil {
				return applied, fmt.Errorf("migration %d (%s), statement %d: %w", step.Version, step.Name, i+1, err)
			}
		}
		at := time.Now().UTC().Truncate(time.Microsecond)
		if err := record(step, at); err != nil {
			return applied, err
		}
		applied = append(applied, store.Migration{Version: step.Version, Name: step.Name, AppliedAt: at})
	}
	return applied, nil
}

// Migrations returns the steps with the times at which they were applied, and
// then the applied migrations that have no step.
func Migrations(steps []migration.Step, had map[int]store.Migration) []store.Migration {
	var all []store.Migration
	unknown := maps.Clone(had)
	for _, step := range steps {
		all = append(all, store.Migration{Version: step.Version, Name: step.Name, AppliedAt: had[step.Version].AppliedAt})
		delete(unknown, step.Version)
	}
	for _, version := range slices.Sorted(maps.Keys(unknown)) {
		m := unknown[version]
		m.Unknown = true
		all = append(all, m)
	}
	return all
}

package sqlstore

import (
	"fmt"
	"strings"

	"github.com/waybillhq/waybill/internal/migration"
)

// Scripting is what the scripts of a dialect need beside the steps.
type Scripting struct {
	// Begin are the statements before the first migration: the schema, and the
	// table of migrations.
	Begin []string
	// Had fails if a version was not applied. %[1]d is the version.
	Had string
	// Record records a version: %d, with its name: '%s'.
	Record string
}

// Script returns the statements of the steps after version. They carry
// comments: one about each migration in front of its first statement.
func (s Scripting) Script(steps []migration.Step, version int) []string {
	steps = steps[min(max(version, 0), len(steps)):]
	if len(steps) == 0 {
		return nil
	}
	var out []string
	if version > 0 {
		out = append(out, fmt.Sprintf("-- This fails if the tables have not had migration %d.\n"+s.Had, version))
	} else {
		out = append(out, s.Begin...)
	}
	for _, step := range steps {
		for i, statement := range step.Statements {
			if i == 0 {
				statement = fmt.Sprintf("-- Migration %d: %s\n\n", step.Version, step.Name) + statement
			}
			out = append(out, statement)
		}
		out = append(out, fmt.Sprintf(s.Record, step.Version, step.Name))
	}
	return out
}

// Drops returns the statements that remove what Begin and the steps create.
func (s Scripting) Drops(steps []migration.Step) []string {
	var all []string
	for _, statement := range s.Begin {
		if !strings.HasPrefix(statement, "CREATE SCHEMA") {
			all = append(all, statement)
		}
	}
	for _, step := range steps {
		all = append(all, step.Statements...)
	}
	return migration.Drops(all)
}

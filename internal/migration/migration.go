// Package migration reads the files that define the tables: one file per
// version, in the dialect's own SQL, with placeholders for the names.
package migration

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Step is one version of the tables.
type Step struct {
	Version    int
	Name       string
	Statements []string
}

// separator is the line between two statements of a file. Semicolons cannot
// separate them, because function bodies contain semicolons.
const separator = "\n-- next\n"

// Read returns the steps in dir, in order, with every placeholder replaced.
// Files are named like 001_outbox.sql, the versions have no gap, and statements
// are separated by lines that read "-- next".
func Read(files fs.FS, dir string, replace *strings.Replacer) ([]Step, error) {
	names, err := fs.Glob(files, path.Join(dir, "*.sql"))
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var steps []Step
	for i, name := range names {
		number, rest, _ := strings.Cut(strings.TrimSuffix(path.Base(name), ".sql"), "_")
		version, err := strconv.Atoi(number)
		if err != nil || version != i+1 {
			return nil, fmt.Errorf("migration: %s: want version %d", name, i+1)
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		step := Step{Version: version, Name: rest}
		for _, statement := range strings.Split(replace.Replace(string(text)), separator) {
			if statement = strings.TrimSpace(statement); statement != "" {
				step.Statements = append(step.Statements, statement)
			}
		}
		steps = append(steps, step)
	}
	return steps, nil
}

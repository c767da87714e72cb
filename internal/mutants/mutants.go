// Package mutants breaks the shipped code on purpose, one small change at a
// time, and requires the guarding test to fail. A test that passes without its
// guarantee proves nothing.
//
// Mutants are listed in files like this, a blank line between two:
//
//	mutant: a rollback commits instead
//	file: store/memstore/memstore.go
//	in: (*session).Rollback
//	test: store/memstore ^TestConformance$/^rollback_leaves_nothing$
//	- 	s.txn.rollback()
//	+ 	s.txn.commit()
//
// The lines after "- " are replaced by those after "+ "; a mutant may have
// several such pairs, if two places enforce a guarantee. The test is a folder
// and a pattern for go test's -run.
//
// A mutant survives renames. If the lines do not occur in the file, the code of
// the same shape is replaced: only identifiers differ, each consistently, and
// the replacement gets the new identifiers. The symbol after "in:", a
// declaration of the file, limits the search; if the symbol was renamed itself,
// the whole file is searched. Of several places, the one with the most equal
// identifiers counts.
package mutants

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Mutant is one way to break the code, and the test that must fail.
type Mutant struct {
	// Name describes the broken guarantee.
	Name string
	// File is the changed file, relative to the repository.
	File string
	// In is the declaration that is changed, "" if it is not Go code or spans
	// several declarations.
	In string
	// Folder and Pattern are the test.
	Folder, Pattern string
	// Hunks are the changes.
	Hunks []Hunk
	// Where is the file and line of the list entry.
	Where string
}

// Hunk is one change: New replaces Old.
type Hunk struct{ Old, New string }

// Read returns the mutants of all *.mutants files in a folder.
func Read(files fs.FS, dir string) ([]Mutant, error) {
	names, err := fs.Glob(files, path.Join(dir, "*.mutants"))
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var all []Mutant
	for _, name := range names {
		f, err := files.Open(name)
		if err != nil {
			return nil, err
		}
		ms, err := parse(f, path.Base(name))
		_ = f.Close()
		if err != nil {
			return nil, err
		}
		all = append(all, ms...)
	}
	return all, nil
}

func parse(r io.Reader, name string) ([]Mutant, error) {
	var all []Mutant
	var m *Mutant
	scan := bufio.NewScanner(r)
	for n := 1; scan.Scan(); n++ {
		line := scan.Text()
		where := fmt.Sprintf("%s:%d", name, n)
		key, value, _ := strings.Cut(line, ": ")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case key == "mutant":
			all = append(all, Mutant{Name: value, Where: where})
			m = &all[len(all)-1]
		case m == nil:
			return nil, fmt.Errorf("mutants: %s: want a line that starts with \"mutant: \"", where)
		case key == "file":
			m.File = value
		case key == "in":
			m.In = value
		case key == "test":
			m.Folder, m.Pattern, _ = strings.Cut(value, " ")
		case strings.HasPrefix(line, "- ") || line == "-":
			if len(m.Hunks) == 0 || m.Hunks[len(m.Hunks)-1].New != "" {
				m.Hunks = append(m.Hunks, Hunk{})
			}
			m.Hunks[len(m.Hunks)-1].Old += strings.TrimPrefix(strings.TrimPrefix(line, "-"), " ") + "\n"
		case (strings.HasPrefix(line, "+ ") || line == "+") && len(m.Hunks) > 0:
			m.Hunks[len(m.Hunks)-1].New += strings.TrimPrefix(strings.TrimPrefix(line, "+"), " ") + "\n"
		default:
			return nil, fmt.Errorf("mutants: %s: %q is none of mutant, file, in, test, - and +", where, line)
		}
	}
	for _, m := range all {
		if m.File == "" || m.Folder == "" || m.Pattern == "" || len(m.Hunks) == 0 {
			return nil, fmt.Errorf("mutants: %s: file, test or the replaced lines are missing", m.Where)
		}
	}
	return all, scan.Err()
}

// Apply returns the file's text with the changes applied.
func (m Mutant) Apply(text string) (string, error) {
	for _, h := range m.Hunks {
		changed, ok := m.apply(h, text)
		if !ok {
			return "", fmt.Errorf("mutants: %s: the replaced lines occur %d times in %s, want once:\n%s",
				m.Where, strings.Count(text, h.Old), m.File, h.Old)
		}
		text = changed
	}
	return text, nil
}

// apply applies one change: in the declaration, or else in the whole file; to
// the same lines, or else to code of the same shape.
func (m Mutant) apply(h Hunk, text string) (string, bool) {
	from, to, declared := 0, 0, false
	if m.In != "" {
		from, to, declared = symbolRange(m.File, text, m.In)
	}
	if declared {
		to += strings.IndexByte(text[to:]+"\n", '\n') + 1
		if part, ok := h.replace(text[from:min(to, len(text))], m.isGo()); ok {
			return text[:from] + part + text[min(to, len(text)):], true
		}
	}
	return h.replace(text, m.isGo())
}

func (m Mutant) isGo() bool { return path.Ext(m.File) == ".go" }

// replace applies the change to a text.
func (h Hunk) replace(text string, isGo bool) (string, bool) {
	switch n := strings.Count(text, h.Old); {
	case n == 1:
		return strings.Replace(text, h.Old, h.New, 1), true
	case n > 1 || !isGo:
		return "", false
	}
	p, ok := find(h.Old, words(text))
	if !ok {
		return "", false
	}
	return text[:p.from] + strings.TrimSpace(rename(h.New, p.names)) + text[p.to:], true
}

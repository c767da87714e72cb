package release

import (
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Check reports what keeps the modules from being released: a module that is
// not in exactly one list, a replacement, a requirement that does not fit, and
// an import without a requirement. The workspace hides all of these.
func (r *Repo) Check(ctx context.Context) error {
	errs := []error{r.CheckLists()}
	names, err := r.files(ctx)
	if err != nil {
		return err
	}
	for _, m := range r.modules {
		errs = append(errs, r.checkRequirements(m))
		if slices.Contains(r.released, m.dir) {
			errs = append(errs, r.checkReleased(m), r.checkImports(m, filesOf(m.dir, names)))
		}
	}
	return errors.Join(append(errs, r.checkWorkspaces(ctx))...)
}

// checkRequirements reports the requirements that go.work does not replace.
func (r *Repo) checkRequirements(m module) error {
	var errs []error
	for _, need := range r.siblings(m) {
		switch {
		case need.Version != Placeholder:
			errs = append(errs, fmt.Errorf("%s/go.mod requires %s %s: the version between releases is %s", m.dir, need.Path, need.Version, Placeholder))
		case !slices.Contains(r.replaced, need.Path+"@"+need.Version):
			errs = append(errs, fmt.Errorf("%s/go.mod requires %s %s, which go.work does not replace", m.dir, need.Path, need.Version))
		}
	}
	return errors.Join(errs...)
}

// checkReleased reports what a go.mod file of a released module must not have.
func (r *Repo) checkReleased(m module) error {
	var errs []error
	root, err := r.in(".")
	if err != nil {
		return err
	}
	if want := path.Join(root.path, m.dir); m.path != want {
		errs = append(errs, fmt.Errorf("%s/go.mod is of module %s, want %s", m.dir, m.path, want))
	}
	for _, old := range m.replace {
		errs = append(errs, fmt.Errorf("%s/go.mod replaces %s", m.dir, old))
	}
	if m.exclude {
		errs = append(errs, fmt.Errorf("%s/go.mod has an exclude directive", m.dir))
	}
	for _, need := range m.require {
		sibling, ok := r.module(need.Path)
		switch {
		case ok && !slices.Contains(r.released, sibling.dir):
			errs = append(errs, fmt.Errorf("%s/go.mod requires %s, which is not released", m.dir, need.Path))
		case !ok && r.ours(need.Path):
			errs = append(errs, fmt.Errorf("%s/go.mod requires %s, which is not in go.work", m.dir, need.Path))
		}
	}
	return errors.Join(errs...)
}

// checkImports reports packages of other modules of the repository that m
// imports without requiring the module.
func (r *Repo) checkImports(m module, names []string) error {
	var errs []error
	reported := map[string]bool{}
	for _, name := range names {
		if path.Ext(name) != ".go" || strings.Contains("/"+name, "/testdata/") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), r.file(name), nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			owner := r.owner(imported)
			if owner == "" || owner == m.path || reported[owner] {
				continue
			}
			if !slices.ContainsFunc(m.require, func(need requirement) bool { return need.Path == owner }) {
				reported[owner] = true
				errs = append(errs, fmt.Errorf("%s imports %s, and %s/go.mod does not require %s", name, imported, m.dir, owner))
			}
		}
	}
	return errors.Join(errs...)
}

// owner returns the path of the module of the repository with that package, or
// "".
func (r *Repo) owner(imported string) string {
	found := ""
	for _, m := range r.modules {
		if (imported == m.path || strings.HasPrefix(imported, m.path+"/")) && len(m.path) > len(found) {
			found = m.path
		}
	}
	return found
}

// filesOf returns the files of the module in dir: those below it that belong to
// no module further down.
func filesOf(dir string, names []string) []string {
	below := func(name, dir string) bool { return dir == "." || strings.HasPrefix(name, dir+"/") }
	var nested []string
	for _, name := range names {
		if path.Base(name) == "go.mod" && path.Dir(name) != dir && below(name, dir) {
			nested = append(nested, path.Dir(name))
		}
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !below(name, dir) || slices.ContainsFunc(nested, func(n string) bool { return below(name, n) })
	})
}

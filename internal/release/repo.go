package release

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Placeholder is the version at which the modules require each other between
// releases.
const Placeholder = "v0.0.0"

// A Repo is a checkout of the repository.
type Repo struct {
	dir      string
	modules  []module // those of go.work, sorted by folder
	replaced []string // PATH@VERSION of each replacement in go.work
	released []string
	internal []string
}

// A module is one go.mod file of the repository.
type module struct {
	dir     string // relative to the repository, with slashes
	path    string
	require []requirement
	replace []string // PATH or PATH@VERSION of the replaced modules
	exclude bool
}

type requirement struct{ Path, Version string }

// Open reads go.work and the go.mod files of the repository in dir.
func Open(ctx context.Context, dir string) (*Repo, error) {
	return open(ctx, dir, released, internal)
}

func open(ctx context.Context, dir string, released, internal []string) (*Repo, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	r := &Repo{dir: dir, released: released, internal: internal}
	var work struct {
		Use     []struct{ DiskPath string }
		Replace []struct{ Old requirement }
	}
	if err := r.json(ctx, &work, "work", "edit", "-json", "go.work"); err != nil {
		return nil, err
	}
	for _, use := range work.Use {
		m, err := r.read(ctx, path.Clean(filepath.ToSlash(use.DiskPath)))
		if err != nil {
			return nil, err
		}
		r.modules = append(r.modules, m)
	}
	for _, replace := range work.Replace {
		r.replaced = append(r.replaced, replace.Old.Path+"@"+replace.Old.Version)
	}
	slices.SortFunc(r.modules, func(a, b module) int { return strings.Compare(a.dir, b.dir) })
	return r, nil
}

// read reads the go.mod file in a folder.
func (r *Repo) read(ctx context.Context, dir string) (module, error) {
	var mod struct {
		Module  struct{ Path string }
		Require []requirement
		Replace []struct{ Old requirement }
		Exclude []requirement
	}
	if err := r.json(ctx, &mod, "mod", "edit", "-json", path.Join(dir, "go.mod")); err != nil {
		return module{}, err
	}
	m := module{dir: dir, path: mod.Module.Path, require: mod.Require, exclude: len(mod.Exclude) > 0}
	for _, replace := range mod.Replace {
		old := replace.Old.Path
		if replace.Old.Version != "" {
			old += "@" + replace.Old.Version
		}
		m.replace = append(m.replace, old)
	}
	return m, nil
}

// CheckLists reports the modules of go.work that are not in exactly one list,
// and the entries of the lists that are not in go.work.
func (r *Repo) CheckLists() error {
	var errs []error
	for _, m := range r.modules {
		isReleased, isInternal := slices.Contains(r.released, m.dir), slices.Contains(r.internal, m.dir)
		switch {
		case isReleased && isInternal:
			errs = append(errs, fmt.Errorf("%s is in both lists of internal/release/lists.go", m.dir))
		case !isReleased && !isInternal:
			errs = append(errs, fmt.Errorf("%s is in go.work and in no list of internal/release/lists.go", m.dir))
		}
	}
	for _, dir := range slices.Concat(r.released, r.internal) {
		if !slices.ContainsFunc(r.modules, func(m module) bool { return m.dir == dir }) {
			errs = append(errs, fmt.Errorf("%s is in a list of internal/release/lists.go and not in go.work", dir))
		}
	}
	return errors.Join(errs...)
}

// module returns the module of the repository with that path.
func (r *Repo) module(modulePath string) (module, bool) {
	i := slices.IndexFunc(r.modules, func(m module) bool { return m.path == modulePath })
	if i < 0 {
		return module{}, false
	}
	return r.modules[i], true
}

// ours reports whether a module path is one of this repository, now or in an
// earlier state.
func (r *Repo) ours(modulePath string) bool {
	root, err := r.in(".")
	return err == nil && (modulePath == root.path || strings.HasPrefix(modulePath, root.path+"/"))
}

// in returns the module in a folder.
func (r *Repo) in(dir string) (module, error) {
	i := slices.IndexFunc(r.modules, func(m module) bool { return m.dir == dir })
	if i < 0 {
		return module{}, fmt.Errorf("go.work has no module %s", dir)
	}
	return r.modules[i], nil
}

// isRelease reports whether the checkout is a release commit: all requirements
// between modules have one version, and it is not the placeholder.
func (r *Repo) isRelease() bool {
	found := map[string]bool{}
	for _, m := range r.modules {
		for _, need := range r.siblings(m) {
			found[need.Version] = true
		}
	}
	return len(found) == 1 && !found[Placeholder]
}

// siblings returns the requirements of m that are modules of the repository.
func (r *Repo) siblings(m module) []requirement {
	var found []requirement
	for _, need := range m.require {
		if _, ok := r.module(need.Path); ok {
			found = append(found, need)
		}
	}
	return found
}

// workspaces returns go.work and the go.work files of modules, which have only
// some of the modules: a first command then downloads no others.
func (r *Repo) workspaces() []string {
	names := []string{"go.work"}
	for _, m := range r.modules {
		name := path.Join(m.dir, "go.work")
		if _, err := os.Stat(r.file(name)); err == nil && m.dir != "." {
			names = append(names, name)
		}
	}
	return names
}

// file returns the name of a file of the repository in the file system.
func (r *Repo) file(name string) string { return filepath.Join(r.dir, filepath.FromSlash(name)) }

// files returns the regular files of the repository that git does not ignore,
// sorted, relative to the repository.
func (r *Repo) files(ctx context.Context) ([]string, error) {
	out, err := run(ctx, r.dir, nil, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	if err != nil {
		return nil, err
	}
	var names []string
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		info, err := os.Lstat(r.file(name))
		switch {
		case errors.Is(err, os.ErrNotExist): // deleted, and not yet in the index
		case err != nil:
			return nil, err
		case info.Mode().IsRegular():
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// json decodes the output of a go command.
func (r *Repo) json(ctx context.Context, into any, args ...string) error {
	out, err := run(ctx, r.dir, nil, "go", args...)
	if err != nil {
		return err
	}
	return json.Unmarshal(out, into)
}

// run runs a command and returns its standard output.
func run(ctx context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return out, nil
}

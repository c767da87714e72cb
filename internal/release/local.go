package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Go runs a command with the environment of one module: without the workspace,
// and with the other modules of the repository taken from their folders. A
// command that changes the requirements changes go.mod and go.sum. The command
// is a go command, or a program that calls go.
func (r *Repo) Go(ctx context.Context, dir string, stdout, stderr io.Writer, command ...string) error {
	m, err := r.in(dir)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "waybill-release-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	mod, sum := filepath.Join(scratch, "go.mod"), filepath.Join(scratch, "go.sum")
	if err := r.writeLocal(ctx, m, mod, sum); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.file(dir), stdout, stderr
	cmd.Env = append(os.Environ(), "GOWORK=off", strings.TrimSpace("GOFLAGS=-modfile="+mod+" "+os.Getenv("GOFLAGS")))
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s in %s: %w", strings.Join(command, " "), dir, err)
	}
	var drop []string
	for _, old := range r.replacements() {
		drop = append(drop, "-dropreplace="+old)
	}
	if err := edit(ctx, mod, drop); err != nil {
		return err
	}
	return errors.Join(update(mod, r.file(path.Join(dir, "go.mod"))), update(sum, r.file(path.Join(dir, "go.sum"))))
}

// writeLocal writes the go.mod and go.sum files of m to other places, and
// replaces the modules of the repository.
func (r *Repo) writeLocal(ctx context.Context, m module, mod, sum string) error {
	if err := update(r.file(path.Join(m.dir, "go.mod")), mod); err != nil {
		return err
	}
	if err := update(r.file(path.Join(m.dir, "go.sum")), sum); err != nil {
		return err
	}
	var args []string
	for _, old := range r.replacements() {
		modulePath, _, _ := strings.Cut(old, "@")
		if sibling, _ := r.module(modulePath); modulePath != m.path {
			args = append(args, "-replace="+old+"="+r.file(sibling.dir))
		}
	}
	return edit(ctx, mod, args)
}

// replacements returns PATH@VERSION for each module of the repository, at each
// version that a module of the repository requires.
func (r *Repo) replacements() []string {
	var all []string
	for _, m := range r.modules {
		all = append(all, m.path+"@"+Placeholder)
		for _, need := range r.siblings(m) {
			all = append(all, need.Path+"@"+need.Version)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Tidy runs "go mod tidy" in each module. Before that, it sets the requirements
// between modules to the placeholder, and removes the replacements of modules
// of the repository from go.mod files. After that, it adds the missing
// replacements to go.work. It removes all traces of modules that are gone.
func (r *Repo) Tidy(ctx context.Context, out io.Writer) error {
	for _, m := range r.modules {
		if err := r.normalize(ctx, m); err != nil {
			return err
		}
	}
	fresh, err := open(ctx, r.dir, r.released, r.internal)
	if err != nil {
		return err
	}
	for _, m := range fresh.modules {
		fmt.Fprintf(out, "go mod tidy: %s\n", m.dir)
		if err := fresh.Go(ctx, m.dir, out, out, "go", "mod", "tidy"); err != nil {
			return err
		}
	}
	return fresh.tidyWork(ctx)
}

// normalize sets the requirements of m on modules of the repository to the
// placeholder, and removes their replacements.
func (r *Repo) normalize(ctx context.Context, m module) error {
	var args []string
	for _, need := range m.require {
		if _, ok := r.module(need.Path); ok && need.Version != Placeholder {
			args = append(args, "-require="+need.Path+"@"+Placeholder)
		} else if !ok && r.ours(need.Path) {
			args = append(args, "-droprequire="+need.Path)
		}
	}
	for _, old := range m.replace {
		if modulePath, _, _ := strings.Cut(old, "@"); r.ours(modulePath) {
			args = append(args, "-dropreplace="+old)
		}
	}
	return edit(ctx, r.file(path.Join(m.dir, "go.mod")), args)
}

// tidyWork makes go.work replace each released module at the placeholder, and
// no other module of the repository.
func (r *Repo) tidyWork(ctx context.Context) error {
	var args, want []string
	for _, dir := range r.released {
		if m, err := r.in(dir); err == nil {
			old := m.path + "@" + Placeholder
			if want = append(want, old); !slices.Contains(r.replaced, old) {
				args = append(args, "-replace="+old+"="+workPath(dir))
			}
		}
	}
	for _, old := range r.replaced {
		if modulePath, _, _ := strings.Cut(old, "@"); r.ours(modulePath) && !slices.Contains(want, old) {
			args = append(args, "-dropreplace="+old)
		}
	}
	return edit(ctx, r.file("go.work"), args)
}

// checkWorkspaces reports the modules that a go.work file of a module uses or
// needs and does not replace, and those that it has without need.
func (r *Repo) checkWorkspaces(ctx context.Context) error {
	var errs []error
	for _, name := range r.workspaces()[1:] {
		home, err := r.in(path.Dir(name))
		if err != nil {
			return err
		}
		var work struct {
			Use     []struct{ DiskPath string }
			Replace []struct{ Old, New requirement }
		}
		if err := r.json(ctx, &work, "work", "edit", "-json", name); err != nil {
			return err
		}
		used, replaced := []string{}, []string{}
		for _, use := range work.Use {
			used = append(used, path.Join(home.dir, filepath.ToSlash(use.DiskPath)))
		}
		for _, replace := range work.Replace {
			replaced = append(replaced, replace.Old.Path+"@"+replace.Old.Version+" "+path.Join(home.dir, replace.New.Path))
		}
		wantUsed, wantReplaced := []string{home.dir}, []string{}
		for _, need := range r.siblings(home) {
			m, _ := r.module(need.Path)
			wantUsed, wantReplaced = append(wantUsed, m.dir), append(wantReplaced, need.Path+"@"+need.Version+" "+m.dir)
		}
		for _, list := range [][]string{used, replaced, wantUsed, wantReplaced} {
			slices.Sort(list)
		}
		if !slices.Equal(used, wantUsed) {
			errs = append(errs, fmt.Errorf("%s uses %q, want %q: the module and what it requires", name, used, wantUsed))
		}
		if !slices.Equal(replaced, wantReplaced) {
			errs = append(errs, fmt.Errorf("%s replaces %q, want %q", name, replaced, wantReplaced))
		}
	}
	return errors.Join(errs...)
}

// workPath returns a folder as go.work writes it.
func workPath(dir string) string {
	if dir == "." {
		return dir
	}
	return "./" + dir
}

// edit applies flags of "go mod edit" or "go work edit" to a file.
func edit(ctx context.Context, file string, flags []string) error {
	if len(flags) == 0 {
		return nil
	}
	kind := strings.TrimPrefix(filepath.Ext(file), ".") // mod or work
	_, err := run(ctx, filepath.Dir(file), nil, "go", slices.Concat([]string{kind, "edit"}, flags, []string{file})...)
	return err
}

// update makes the content of one file that of another, and leaves the file
// alone if nothing changes. A missing source is no error.
func update(from, to string) error {
	text, err := os.ReadFile(from)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(to); err == nil && bytes.Equal(old, text) {
		return nil
	}
	return os.WriteFile(to, text, 0o644)
}

package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// APIDiff prints how the exported API of each released module differs from a
// commit. The default is the last tag of the core. The tool is apidiff.
func (r *Repo) APIDiff(ctx context.Context, tool, base string, out io.Writer) error {
	base, err := r.baseOf(ctx, base)
	if err != nil {
		return err
	}
	if base == "" {
		fmt.Fprintln(out, "apidiff: no version is tagged yet, so there is nothing to compare with; BASE names a commit")
		return nil
	}
	scratch, err := os.MkdirTemp("", "waybill-release-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	before, err := r.checkout(ctx, base, scratch)
	if err != nil {
		return err
	}
	after, err := r.copy(ctx, filepath.Join(scratch, "now"))
	if err != nil {
		return err
	}
	for _, dir := range r.released {
		if strings.HasPrefix(dir, "cmd/") {
			continue // a program has no API
		}
		m, err := r.in(dir)
		if err != nil {
			return err
		}
		if _, ok := before.module(m.path); !ok {
			fmt.Fprintf(out, "%s: not a module at %s\n", m.path, base)
			continue
		}
		changes, err := compare(ctx, tool, before, after, m.path, filepath.Join(scratch, "export"))
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s, since %s:\n%s", m.path, base, cmp.Or(changes, "no changes\n"))
	}
	for _, m := range before.modules {
		if _, ok := r.module(m.path); !ok && slices.Contains(r.released, m.dir) {
			fmt.Fprintf(out, "%s: a module at %s only\n", m.path, base)
		}
	}
	return nil
}

// baseOf returns the commit to compare with: the named one, or the last tag, or
// "" if there is no tag.
func (r *Repo) baseOf(ctx context.Context, named string) (string, error) {
	if named != "" {
		return named, nil
	}
	return r.lastTag(ctx)
}

// lastTag returns the highest version of the core that is tagged, or "". The
// tags are on no branch, so git describe does not find them.
func (r *Repo) lastTag(ctx context.Context) (string, error) {
	tags, err := r.git(ctx, "-c", "versionsort.suffix=-", "tag", "--list", "--sort=-version:refname", "v[0-9]*")
	first, _, _ := strings.Cut(tags, "\n")
	return first, err
}

// checkout writes the files of a commit below a folder.
func (r *Repo) checkout(ctx context.Context, commit, folder string) (*Repo, error) {
	dir, env := filepath.Join(folder, "base"), []string{"GIT_INDEX_FILE=" + filepath.Join(folder, "index")}
	for _, args := range [][]string{
		{"read-tree", commit},
		{"checkout-index", "--all", "--prefix=" + dir + string(filepath.Separator)},
	} {
		if _, err := run(ctx, r.dir, env, "git", args...); err != nil {
			return nil, err
		}
	}
	return r.localize(ctx, dir)
}

// copy writes the files of the checkout into a folder.
func (r *Repo) copy(ctx context.Context, dir string) (*Repo, error) {
	names, err := r.files(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), update(r.file(name), to)); err != nil {
			return nil, err
		}
	}
	return r.localize(ctx, dir)
}

// localize opens a copy of the repository and adds the replacements to its
// go.mod files. The tool does not work with -modfile.
func (r *Repo) localize(ctx context.Context, dir string) (*Repo, error) {
	local, err := open(ctx, dir, r.released, r.internal)
	if err != nil {
		return nil, err
	}
	for _, m := range local.modules {
		mod := path.Join(m.dir, "go.mod")
		if err := local.writeLocal(ctx, m, local.file(mod), local.file(path.Join(m.dir, "go.sum"))); err != nil {
			return nil, err
		}
	}
	return local, nil
}

// compare returns the report of the tool on one module.
func compare(ctx context.Context, tool string, before, after *Repo, modulePath, export string) (string, error) {
	env := []string{"GOWORK=off"}
	then, _ := before.module(modulePath)
	if _, err := run(ctx, before.file(then.dir), env, tool, "-m", "-w", export, modulePath); err != nil {
		return "", err
	}
	now, _ := after.module(modulePath)
	report, err := run(ctx, after.file(now.dir), env, tool, "-m", export, modulePath)
	return string(report), err
}

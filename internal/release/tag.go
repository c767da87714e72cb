package release

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Tag makes a release commit on top of HEAD, beside the branch, and a tag for
// each released module. It pushes nothing, and prints the commands that do.
func (r *Repo) Tag(ctx context.Context, version string, out io.Writer) error {
	if err := checkVersion(version); err != nil {
		return err
	}
	status, err := r.git(ctx, "status", "--porcelain")
	if err != nil {
		return err
	}
	if status != "" {
		return fmt.Errorf("the checkout has changes that are not committed:\n%s", status)
	}
	if r.isRelease() {
		return errors.New("HEAD is a release commit; a release starts from a branch")
	}
	tags := r.tags(version)
	existing, err := r.git(ctx, append([]string{"tag", "--list"}, tags...)...)
	if err != nil {
		return err
	}
	if existing != "" {
		return fmt.Errorf("tags exist: %s", strings.Join(strings.Fields(existing), ", "))
	}
	if err := r.Check(ctx); err != nil {
		return err
	}
	p, err := r.prepare(ctx, version)
	if err != nil {
		return err
	}
	commit, err := p.commit(ctx)
	if err != nil {
		return err
	}
	for i, tag := range tags {
		if _, err := r.git(ctx, "tag", "--annotate", "--message", tag, tag, commit); err != nil {
			for _, made := range tags[:i] {
				_, undo := r.git(ctx, "tag", "--delete", made)
				err = errors.Join(err, undo)
			}
			return err
		}
	}
	// GitHub starts no workflow for a push of more than three tags.
	fmt.Fprintf(out, "Release commit %s has %d tags. To publish them:\n\n  git push origin %s\n", commit, len(tags), tags[0])
	if len(tags) > 1 {
		fmt.Fprintf(out, "  git push --atomic origin %s\n", strings.Join(tags[1:], " "))
	}
	fmt.Fprintf(out, "\nTo discard them:\n\n  git tag --delete %s\n", strings.Join(tags, " "))
	return nil
}

// tags returns the tags of a version; that of the core is the first.
func (r *Repo) tags(version string) []string {
	tags := []string{version}
	for _, dir := range r.released {
		if dir != "." {
			tags = append(tags, path.Join(dir, version))
		}
	}
	return tags
}

// commit writes the release commit. Neither the index nor the files of the
// checkout change.
func (p *prepared) commit(ctx context.Context) (string, error) {
	scratch, err := os.MkdirTemp("", "waybill-release-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	index := "GIT_INDEX_FILE=" + filepath.Join(scratch, "index")
	git := func(args ...string) (string, error) {
		out, err := run(ctx, p.repo.dir, []string{index}, "git", args...)
		return strings.TrimSpace(string(out)), err
	}
	if _, err := git("read-tree", "HEAD"); err != nil {
		return "", err
	}
	for _, name := range slices.Sorted(maps.Keys(p.changed)) {
		file := filepath.Join(scratch, "file")
		if err := os.WriteFile(file, p.changed[name], 0o600); err != nil {
			return "", err
		}
		blob, err := git("hash-object", "-w", "--no-filters", file)
		if err != nil {
			return "", err
		}
		if _, err := git("update-index", "--add", "--cacheinfo", "100644,"+blob+","+name); err != nil {
			return "", err
		}
	}
	tree, err := git("write-tree")
	if err != nil {
		return "", err
	}
	return git("commit-tree", tree, "-p", "HEAD", "-m", "release "+p.version,
		"-m", "The modules require each other at this version. The commit is on no branch.")
}

// git runs git in the repository.
func (r *Repo) git(ctx context.Context, args ...string) (string, error) {
	out, err := run(ctx, r.dir, nil, "git", args...)
	return strings.TrimRight(string(out), "\n"), err
}

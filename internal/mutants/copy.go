package mutants

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Copy copies the repository's files, including uncommitted changes, into a
// temporary folder.
func Copy(ctx context.Context, root string) (string, error) {
	git := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	git.Dir = root
	list, err := git.Output()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "waybill-mutants-")
	if err != nil {
		return "", err
	}
	for _, name := range strings.Split(strings.Trim(string(list), "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted, not committed
		}
		if err != nil {
			return "", err
		}
		target := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(target, data, 0o644); err != nil { //nolint:gosec // a source file
			return "", err
		}
	}
	return dir, nil
}

//go:build linux || darwin

package manage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
)

// rootModule matches the beginning of the go.mod at the top of the repository;
// the other modules of the repository have longer paths.
var rootModule = regexp.MustCompile(`(?m)^module github\.com/waybillhq/waybill$`)

// Home is the folder with all instances of one checkout.
type Home struct {
	dir string
	log io.Writer
}

// Open finds the home folder of the checkout that contains dir and creates it
// if needed. If the servers' users cannot reach the checkout (a clone below a
// private home folder, tested by root), Open uses a folder below the system's
// temporary folder and logs a line about it.
func Open(ctx context.Context, dir string, log io.Writer) (*Home, error) {
	root, err := repoRoot(dir)
	if err != nil {
		return nil, err
	}
	h := &Home{dir: filepath.Join(root, ".servers"), log: log}
	why, err := h.usable(ctx, false)
	if err != nil {
		return nil, err
	}
	if why == "" {
		return h, nil
	}
	sum := sha256.Sum256([]byte(root))
	temp := filepath.Join(os.TempDir(), fmt.Sprintf("waybill-servers-%d-%x", os.Getuid(), sum[:4]))
	h.say("%s; using %s instead", why, temp)
	h.dir = temp
	why, err = h.usable(ctx, true)
	if err != nil {
		return nil, err
	}
	if why != "" {
		return nil, fmt.Errorf("%s; set TMPDIR to a folder that every user can enter", why)
	}
	return h, nil
}

// Dir returns the path of the home folder.
func (h *Home) Dir() string { return h.dir }

// usable creates the folder and returns the reason if it cannot be used. Errors
// are for problems that a different folder would not fix. A guessable folder is
// one in the temporary folder, whose name another user can know and take first:
// it must belong to this user, or another user would own the data.
func (h *Home) usable(ctx context.Context, guessable bool) (why string, err error) {
	err = os.MkdirAll(filepath.Join(h.dir, "templates"), 0o755)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return h.dir + " cannot be written", nil
	}
	if err != nil {
		return "", err
	}
	info, err := os.Lstat(h.dir)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("%s is not a folder: remove it", h.dir)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	foreign := ok && int(owner.Uid) != os.Getuid()
	switch {
	case foreign && guessable:
		return "", fmt.Errorf("%s belongs to another user: remove it", h.dir)
	case foreign && os.Getuid() != 0:
		return h.dir + " belongs to another user", nil
	}
	// Servers may run as other users, regardless of the umask.
	for _, dir := range []string{h.dir, filepath.Join(h.dir, "templates")} {
		if err := os.Chmod(dir, 0o755); err != nil {
			return "", err
		}
	}
	for _, e := range engines() {
		acct, err := serverAccount(e.account())
		if err != nil {
			return "", err
		}
		if !acct.reaches(ctx, h.dir) {
			return fmt.Sprintf("the user %s, which runs the server, cannot enter %s", acct.name, h.dir), nil
		}
	}
	return "", nil
}

// say writes one line of progress.
func (h *Home) say(format string, args ...any) {
	_, _ = fmt.Fprintf(h.log, "testserver: "+format+"\n", args...)
}

// repoRoot walks up from dir to the folder of the root module.
func repoRoot(dir string) (string, error) {
	start, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for d := start; ; d = filepath.Dir(d) {
		mod, err := os.ReadFile(filepath.Join(d, "go.mod"))
		if err == nil && rootModule.Match(mod) {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("no Waybill checkout contains %s: run this inside the repository", start)
		}
	}
}

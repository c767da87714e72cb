//go:build linux || darwin

package manage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// account is the system user of a server. The zero account is the user of this
// program.
type account struct {
	name string
	cred *syscall.Credential
}

// serverAccount selects the user for a server. PostgreSQL refuses to run as
// root and MariaDB warns, so root switches to the user that the server's
// package created, or to an unprivileged user. Servers without a preference run
// as the caller.
func serverAccount(preferred string) (account, error) {
	if os.Geteuid() != 0 || preferred == "" {
		return account{}, nil
	}
	for _, name := range []string{preferred, "nobody"} {
		if a, err := accountOf(name); err == nil {
			return a, nil
		}
	}
	return account{}, fmt.Errorf("running as root, and neither %q nor %q exists to run the server as", preferred, "nobody")
}

// accountOf returns a user by name. The empty name is the user of this program.
func accountOf(name string) (account, error) {
	if name == "" {
		return account{}, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return account{}, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return account{}, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return account{}, err
	}
	return account{name, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

// command prepares a program that runs as the account, in a session of its own:
// a Ctrl-C at the terminal is for the tests, which may still need the server
// for their cleanup.
func (a account) command(ctx context.Context, dir, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: a.cred}
	// The home folder of the caller is not the account's, and locale settings
	// would translate the log lines that this package searches for.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=/"}
	return cmd
}

// own makes the account the owner of a path.
func (a account) own(path string) error {
	if a.cred == nil {
		return nil
	}
	return os.Chown(path, int(a.cred.Uid), int(a.cred.Gid))
}

// write creates a file that the account can read, regardless of the umask, and
// can run if it is a script.
func (a account) write(path, text string) error {
	mode := os.FileMode(0o644)
	switch {
	case strings.HasPrefix(text, "#!"):
		mode = 0o755
	case strings.Contains(text, "PRIVATE KEY"): // PostgreSQL refuses one that others can read
		mode = 0o600
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		return err
	}
	return errors.Join(os.Chmod(path, mode), a.own(path))
}

// reaches reports whether the account can work below dir. A real attempt also
// covers access lists and mounts that mode bits do not show.
func (a account) reaches(ctx context.Context, dir string) bool {
	if a.cred == nil {
		return true
	}
	return a.command(ctx, "/", "/bin/sh", "-c", `cd "$1"`, "sh", dir).Run() == nil
}

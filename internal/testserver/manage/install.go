//go:build linux || darwin

package manage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/waybillhq/waybill/internal/testserver"
)

// aptScript installs the packages named by its arguments. Debian's packages
// start a system-wide server when they are installed, which is not wanted here:
// policy-rc.d is Debian's own way to prevent that. An existing policy-rc.d is
// left unchanged. The package lists are only fetched when the install fails
// without them, because fetching takes longer than most installs.
const aptScript = `
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
	trap 'rm -f "$policy"' EXIT
	trap 'exit 1' HUP INT TERM
fi
export DEBIAN_FRONTEND=noninteractive
install() { apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"; }
install "$@" || { apt-get -o DPkg::Lock::Timeout=300 update && install "$@"; }
`

// install ensures that every program is present, using apt-get where a package
// is missing and apt-get is available.
func (h *Home) install(ctx context.Context, want []program, raceTools bool) error {
	needs := func() (missing []program) {
		for _, p := range want {
			if _, ok := p.find(); !ok {
				missing = append(missing, p)
			}
		}
		if raceTools && !compiles(ctx) {
			missing = append(missing, program{names: []string{"gcc"}, packages: []string{"gcc", "libc6-dev"}})
		}
		return missing
	}
	if len(needs()) == 0 {
		return nil
	}
	// Another run from this checkout may be installing the same packages.
	lock, err := lockFile(ctx, filepath.Join(h.dir, "install.lock"))
	if err != nil {
		return err
	}
	defer lock.unlock()
	missing := needs()
	if len(missing) == 0 {
		return nil
	}
	installErr := h.aptInstall(ctx, packagesOf(missing))
	return h.report(needs(), installErr)
}

// report turns missing programs into an error with instructions.
func (h *Home) report(missing []program, installErr error) error {
	var fatal, optional []string
	for _, p := range missing {
		if p.optional {
			optional = append(optional, p.String())
		} else {
			fatal = append(fatal, p.String())
		}
	}
	if len(fatal) == 0 {
		if len(optional) > 0 {
			h.say("warning: not found: %s; tests that need them will fail (%v)", strings.Join(optional, ", "), installErr)
		}
		return nil
	}
	if installErr == nil {
		installErr = errors.New("the packages were installed, but do not contain them")
	}
	return fmt.Errorf(`programs not found: %s
  why they were not installed: %w
  on Debian or Ubuntu, as root: apt-get install %s
  or name servers that run already: %s=postgres://user:password@host:port/database?sslmode=disable
                                    %s='user:password@tcp(host:port)/database?parseTime=true'
                                    (and so on: see testserver help)`,
		strings.Join(append(fatal, optional...), ", "), installErr, strings.Join(packagesOf(missing), " "),
		testserver.EnvPostgres, testserver.EnvMariaDB)
}

func packagesOf(programs []program) []string {
	var names []string
	for _, p := range programs {
		names = append(names, p.packages...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// aptInstall runs the script as root. It is not canceled halfway, not even by a
// Ctrl-C at the terminal: a half-configured package is harder to explain than a
// late exit.
func (h *Home) aptInstall(ctx context.Context, packages []string) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.New("this system has no apt-get")
	}
	command := []string{"/bin/sh", "-c", aptScript, "sh"}
	if os.Geteuid() != 0 {
		if exec.CommandContext(ctx, "sudo", "-n", "true").Run() != nil {
			return errors.New("apt-get needs root, and sudo is missing or asks for a password")
		}
		command = append([]string{"sudo", "-n"}, command...)
	}
	h.say("installing %s ...", strings.Join(packages, " "))
	command = append(command, packages...)
	cmd := exec.CommandContext(context.WithoutCancel(ctx), command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("apt-get: %w:\n%s", err, tail(out.String(), 15))
	}
	return ctx.Err()
}

// tail returns the last n lines of a text, indented.
func tail(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return "    " + strings.Join(lines, "\n    ")
}

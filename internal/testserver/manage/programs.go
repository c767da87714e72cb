//go:build linux || darwin

package manage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// program is a required program: any one of names suffices.
type program struct {
	names    []string
	packages []string // Debian packages that contain it
	optional bool     // without it some tests fail, but servers start
}

func (p program) find() (string, bool) {
	for _, name := range p.names {
		if path, ok := findProgram(name); ok {
			return path, true
		}
	}
	return "", false
}

func (p program) String() string { return strings.Join(p.names, " or ") }

// findProgram searches PATH and then the folders where distributions install
// servers.
func findProgram(name string) (string, bool) {
	if path, err := exec.LookPath(name); err == nil {
		if abs, err := filepath.Abs(path); err == nil {
			return abs, true
		}
	}
	for _, dir := range hiddenBins() {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, true
		}
	}
	return "", false
}

// hiddenBins returns folders of server programs, newest version first.
func hiddenBins() []string {
	dirs := []string{"/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/usr/local/bin"}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",          // Debian
		"/usr/pgsql-*/bin",                   // Red Hat
		"/opt/homebrew/opt/postgresql@*/bin", // Homebrew
		"/opt/homebrew/opt/mariadb*/bin",     //
		"/usr/local/opt/postgresql@*/bin",    // Homebrew on Intel
		"/usr/local/opt/mariadb*/bin",
	} {
		// the patterns are constants, so they are well formed
		found, _ := filepath.Glob(pattern)
		slices.SortFunc(found, func(a, b string) int { return versionIn(b) - versionIn(a) })
		dirs = append(dirs, found...)
	}
	return dirs
}

// versionIn returns the first number in a path, so that 9 sorts before 15.
func versionIn(path string) int {
	i := strings.IndexAny(path, "0123456789")
	if i < 0 {
		return 0
	}
	digits := path[i:]
	if j := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); j >= 0 {
		digits = digits[:j]
	}
	n, _ := strconv.Atoi(digits) // at worst a version too large to sort
	return n
}

// versionOutput returns the first line that "program --version" prints.
func versionOutput(ctx context.Context, path string) (string, error) {
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", path, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line), nil
}

// compiles reports whether a C compiler with the C library's headers is
// available. A compiler without headers is common, so only compiling proves it.
func compiles(ctx context.Context) bool {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
		if _, err := exec.LookPath(cc); err != nil {
			cc = "cc"
		}
	}
	// CC may contain flags, as it does for make and for go.
	args := append(strings.Fields(cc)[1:], "-x", "c", "-fsyntax-only", "-")
	cmd := exec.CommandContext(ctx, strings.Fields(cc)[0], args...)
	cmd.Stdin = strings.NewReader("#include <stdlib.h>\n#include <pthread.h>\n")
	return cmd.Run() == nil
}

//go:build linux || darwin

package manage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// debs is a server from packages of Debian's unstable suite, with all their
// dependencies, down to the C library. The packages are unpacked into a folder
// of the user's cache and never installed: the system does not change, and the
// server runs with the loader and the libraries of that folder.
type debs struct {
	name  string
	roots []string // packages; apt resolves their dependencies
	// useless lists folders that no server and no client reads.
	useless   []string
	megabytes int // approximate size of the download
}

// aptSuite is the suite of the packages.
const aptSuite = "sid"

// dir returns the folder of the unpacked packages. Its name changes with the
// list of packages.
func (d debs) dir() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = filepath.Join(os.TempDir(), fmt.Sprintf("cache-%d", os.Getuid()))
	}
	sum := sha256.Sum256(fmt.Append(nil, d.roots, d.useless))
	return filepath.Join(cache, "waybill-testserver", fmt.Sprintf("%s-%s-%s-%x", d.name, aptSuite, runtime.GOARCH, sum[:4]))
}

func (d debs) there() bool { return fileExists(d.dir()) }

// command returns a command line that runs a program of the folder.
func (d debs) command(program string, args ...string) []string {
	dir := d.dir()
	loader := ""
	for _, pattern := range []string{"usr/lib64/ld-linux-*", "usr/lib/ld-linux-*", "usr/lib/*/ld-linux-*"} {
		if found, _ := filepath.Glob(filepath.Join(dir, pattern)); len(found) > 0 && loader == "" {
			loader = found[0]
		}
	}
	// the pattern is a constant
	libraries, _ := filepath.Glob(filepath.Join(dir, "usr/lib/*-linux-gnu*"))
	libraries = append(libraries, filepath.Join(dir, "usr/lib"))
	argv := []string{loader, "--library-path", strings.Join(libraries, ":"), filepath.Join(dir, program)}
	return append(argv, args...)
}

// fetch downloads the packages unless they are present. They are collected in a
// temporary folder and moved when complete: a folder that exists is complete.
func (d debs) fetch(ctx context.Context, h *Home) error {
	if d.there() {
		return nil
	}
	parent := filepath.Dir(d.dir())
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	// Another run may be fetching the same packages.
	lock, err := lockFile(ctx, filepath.Join(parent, d.name+".lock"))
	if err != nil {
		return err
	}
	defer lock.unlock()
	if d.there() {
		return nil
	}
	building, err := os.MkdirTemp(parent, d.name+"-building-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(building) }()
	if err := d.gather(ctx, h, building); err != nil {
		return err
	}
	return os.Rename(filepath.Join(building, "root"), d.dir())
}

// gather downloads the packages and unpacks them into the folder root of dir.
func (d debs) gather(ctx context.Context, h *Home, dir string) error {
	for _, program := range []string{"apt-get", "dpkg"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("this system has no %s", program)
		}
	}
	mirror, err := debianMirror(ctx)
	if err != nil {
		return err
	}
	options, err := aptFolder(dir, mirror)
	if err != nil {
		return err
	}
	h.say("fetching %s of Debian %s, once: this takes a minute or more ...", d.name, aptSuite)
	h.say("%s: the list of packages ...", d.name)
	if err := runApt(ctx, append(options, "update")...); err != nil {
		return err
	}
	h.say("%s: downloading about %d MB ...", d.name, d.megabytes)
	if err := runApt(ctx, append(append(options, "install", "--yes", "--download-only"), d.roots...)...); err != nil {
		return err
	}
	packages, err := filepath.Glob(filepath.Join(dir, "cache", "archives", "*.deb"))
	if err != nil || len(packages) == 0 {
		return errors.Join(err, errors.New("apt-get has downloaded no package"))
	}
	h.say("%s: unpacking %d packages ...", d.name, len(packages))
	for _, one := range packages {
		if err := runTool(ctx, "dpkg", "-x", one, filepath.Join(dir, "root")); err != nil {
			return err
		}
	}
	for _, folder := range d.useless {
		if err := os.RemoveAll(filepath.Join(dir, "root", folder)); err != nil {
			return err
		}
	}
	return nil
}

// aptFolder prepares apt's folders in dir, and returns the options that make
// apt use only these: the machine's own lists and packages are not touched, and
// no privileges are needed. Signatures are checked as usual.
func aptFolder(dir, mirror string) ([]string, error) {
	for _, folder := range []string{"lists/partial", "cache/archives/partial", "root"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			return nil, err
		}
	}
	// nothing is installed
	if err := os.WriteFile(filepath.Join(dir, "status"), nil, 0o644); err != nil {
		return nil, err
	}
	source := "deb " + signedBy() + mirror + " " + aptSuite + " main\n"
	if err := os.WriteFile(filepath.Join(dir, "sources.list"), []byte(source), 0o644); err != nil {
		return nil, err
	}
	options := []string{
		"Dir::Etc::SourceList=" + filepath.Join(dir, "sources.list"), "Dir::Etc::SourceParts=-", "Dir::Etc::Preferences=-",
		"Dir::Etc::PreferencesParts=-", "Dir::State=" + dir, "Dir::State::lists=" + filepath.Join(dir, "lists"),
		"Dir::State::status=" + filepath.Join(dir, "status"), "Dir::Cache=" + filepath.Join(dir, "cache"), "Dir::Log=" + dir,
		"APT::Install-Recommends=false", "Acquire::Check-Valid-Until=false", "Acquire::Languages=none", "Acquire::Retries=3",
		// apt's own user cannot enter a private cache folder
		"APT::Sandbox::User=root",
	}
	var args []string
	for _, o := range options {
		args = append(args, "-o", o)
	}
	return args, nil
}

// signedBy returns Debian's keyring if it is a file of its own. Otherwise apt's
// trusted keys are used.
func signedBy() string {
	for _, suffix := range []string{"pgp", "gpg"} {
		if path := "/usr/share/keyrings/debian-archive-keyring." + suffix; fileExists(path) {
			return "[signed-by=" + path + "] "
		}
	}
	return ""
}

// debianMirror returns the Debian mirror of this machine's own sources.
func debianMirror(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(CREATED_BY) $(COMPONENT) $(REPO_URI)").Output()
	if err != nil {
		return "", fmt.Errorf("apt-get indextargets: %w", err)
	}
	if mirror := mirrorIn(string(out)); mirror != "" {
		return mirror, nil
	}
	return "", errors.New("this machine's apt sources name no mirror of Debian")
}

// mirrorIn finds the mirror in lines of "what component uri". Security updates
// and other vendors use folders of other names.
func mirrorIn(targets string) string {
	for line := range strings.Lines(targets) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "Packages" && fields[1] == "main" &&
			strings.HasSuffix(strings.TrimSuffix(fields[2], "/"), "/debian") {
			return fields[2]
		}
	}
	return ""
}

// runApt runs apt-get up to three times: mirrors fail intermittently.
func runApt(ctx context.Context, args ...string) error {
	const tries = 3
	for try := 1; ; try++ {
		err := runTool(ctx, "apt-get", args...)
		if err == nil || try == tries || ctx.Err() != nil {
			return err
		}
	}
}

// runTool runs a program. Its output is part of its error.
func runTool(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = 2 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w:\n%s", program, err, tail(string(out), 12)), context.Cause(ctx))
	}
	return nil
}

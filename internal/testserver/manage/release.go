//go:build linux || darwin

package manage

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// release is a PostgreSQL that the system has no package for: the name of an
// archive on Maven Central that contains only the server.
type release string

// releases are the major versions besides the system's, the newest last.
func releases() []release { return []release{"14.19.0", "16.10.0", "17.6.0", "18.1.0"} }

func (r release) major() string {
	major, _, _ := strings.Cut(string(r), ".")
	return major
}

func (r release) jars() jars {
	system := runtime.GOOS + "-" + runtime.GOARCH
	if runtime.GOARCH == "arm64" {
		system += "v8"
	}
	return jars{
		name: "postgres" + r.major(), version: string(r),
		roots: []string{"io.zonky.test.postgres:embedded-postgres-binaries-" + system + ":" + string(r)},
	}
}

func (r release) programs() []program {
	list := []program{{names: []string{"tar"}, packages: []string{"tar"}}, {names: []string{"xz"}, packages: []string{"xz-utils"}}}
	if !r.jars().there() {
		list = append(list, program{names: []string{"mvn"}, packages: []string{"maven"}}, program{names: []string{"java"}, packages: []string{"default-jre-headless"}})
	}
	return list
}

// home returns the folder of the server. If this program is root, the server
// runs as another user, which cannot enter root's cache folder.
func (r release) home() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("waybill-testserver-%d", os.Getuid()), "postgres-"+string(r))
}

func (r release) binary(name string) string { return filepath.Join(r.home(), "bin", name) }

// fetch downloads the server unless it is present. It is unpacked in a
// temporary folder and moved when complete.
func (r release) fetch(ctx context.Context, h *Home) error {
	if err := r.jars().fetch(ctx, h); err != nil {
		return err
	}
	parent := filepath.Dir(r.home())
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	if info, err := os.Lstat(parent); err != nil {
		return err
	} else if owner, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || !ok || int(owner.Uid) != os.Getuid() {
		return fmt.Errorf("%s belongs to another user", parent)
	}
	lock, err := lockFile(ctx, r.home()+".lock")
	if err != nil {
		return err
	}
	defer lock.unlock()
	if fileExists(r.home()) {
		return nil
	}
	building, err := os.MkdirTemp(parent, "building-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(building) }()
	if err := os.Chmod(building, 0o755); err != nil {
		return err
	}
	if err := r.unpack(ctx, building); err != nil {
		return err
	}
	return os.Rename(building, r.home())
}

// unpack unpacks the archive inside the archive.
func (r release) unpack(ctx context.Context, dir string) error {
	found, err := filepath.Glob(filepath.Join(r.jars().dir(), "embedded-postgres-binaries-*.jar"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("%s has %d archives of the server", r.jars().dir(), len(found))
	}
	archive, err := zip.OpenReader(found[0])
	if err != nil {
		return err
	}
	defer func() { _ = archive.Close() }()
	for _, f := range archive.File {
		if !strings.HasSuffix(f.Name, ".txz") {
			continue
		}
		inner, err := f.Open()
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "tar", "-xJ", "--no-same-owner", "-C", dir)
		cmd.Stdin = inner
		out, err := cmd.CombinedOutput()
		_, _ = io.Copy(io.Discard, inner)
		if err := errors.Join(err, inner.Close()); err != nil {
			return fmt.Errorf("tar: %w:\n%s", err, tail(string(out), 5))
		}
		return nil
	}
	return fmt.Errorf("%s has no server in it", found[0])
}

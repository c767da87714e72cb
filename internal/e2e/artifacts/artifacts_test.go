package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill/internal/docblock"
)

// What the release of the tests is.
const (
	testVersion = "v0.7.0"
	testCommit  = "0123456789abcdef0123456789abcdef01234567"
	testEpoch   = "1767225600" // 2026-01-01
)

var testTime = time.Unix(1767225600, 0).UTC()

func TestMain(m *testing.M) {
	if err := os.Setenv("SOURCE_DATE_EPOCH", testEpoch); err != nil {
		panic(err)
	}
	dir, err := os.MkdirTemp("", "waybill-artifacts-test-*")
	if err != nil {
		panic(err)
	}
	shared, level = dir, gzip.BestSpeed
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// shared is the folder of the release that all tests read.
var shared string

var buildOnce = sync.OnceValues(func() (string, error) {
	var progress bytes.Buffer
	err := run(context.Background(), []string{"-only", "host", "-version", testVersion, "-commit", testCommit, "-out", shared}, &progress)
	return progress.String(), err
})

// built returns the folder of a release for this machine's platform, and the
// name of its files without extensions.
func built(t *testing.T) (dir, base string) {
	t.Helper()
	if testing.Short() {
		t.Skip("links the program twice")
	}
	if raceDetector {
		t.Skip("packing takes minutes with the race detector; make test runs this without it, too")
	}
	if !slices.Contains(platforms, platform{runtime.GOOS, runtime.GOARCH}) {
		t.Skipf("no release is built for %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	if _, err := buildOnce(); err != nil {
		t.Fatal(err)
	}
	return shared, fmt.Sprintf("waybill_%s_%s_%s", testVersion, runtime.GOOS, runtime.GOARCH)
}

// unpacked returns the files of the archive, by name, and the path of its
// program.
func unpacked(t *testing.T) (files map[string]*tar.Header, program string) {
	t.Helper()
	dir, base := built(t)
	if runtime.GOOS == "windows" {
		t.Skip("the archive is not a tar.gz")
	}
	f, err := os.Open(filepath.Join(dir, base+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	files = map[string]*tar.Header{}
	for r := tar.NewReader(unzipped); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, filepath.Join(to, base, "waybill")
		}
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = header
		name := filepath.Join(to, filepath.FromSlash(header.Name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, data, header.FileInfo().Mode()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestArchive: the archive has the files of a release, and its program runs and
// tells the version and the commit.
func TestArchive(t *testing.T) {
	files, program := unpacked(t)
	_, base := built(t)
	names := []string{"CHANGELOG.md", "LICENSE", "README.md", "waybill", "deploy/grafana/waybill.json", "deploy/prometheus/waybill.rules.yml"}
	if runtime.GOOS == "linux" { // what docs/deploy.md installs
		names = append(names, "deploy/systemd/waybill.env", "deploy/systemd/waybill.service")
	}
	for _, name := range names {
		header := files[path.Join(base, name)]
		if header == nil {
			t.Errorf("%s is missing", name)
			continue
		}
		mode := int64(0o644)
		if name == "waybill" {
			mode = 0o755
		}
		if header.Mode != mode || !header.ModTime.Equal(testTime) || header.Uid != 0 || header.Uname != "" {
			t.Errorf("%s has the header %+v", name, header)
		}
		delete(files, path.Join(base, name))
	}
	for name := range files {
		t.Errorf("%s is unexpected", name)
	}
	out, err := exec.CommandContext(t.Context(), program, "version", "--json").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var got struct{ Version, Commit, Platform string }
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	if got.Version != testVersion || got.Commit != testCommit || got.Platform != runtime.GOOS+"/"+runtime.GOARCH {
		t.Errorf("the program says %+v", got)
	}
}

// TestDeployPage: the commands of docs/deploy.md verify, unpack and start the
// archive.
func TestDeployPage(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the commands are those for Linux")
	}
	dir, base := built(t)
	here := t.TempDir()
	for _, name := range []string{base + ".tar.gz", sumsFile} {
		if err := os.Link(filepath.Join(dir, name), filepath.Join(here, name)); err != nil {
			t.Fatal(err)
		}
	}
	block := docblock.Blocks(t, "docs/deploy.md", "sh archive")[0]
	block = strings.NewReplacer("v0.1.0", testVersion, "linux_amd64", runtime.GOOS+"_"+runtime.GOARCH).Replace(block)
	cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", block)
	cmd.Dir = here
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), base+".tar.gz: OK") || !strings.Contains(string(out), "waybill "+testVersion+" commit "+testCommit) {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestReproducible: a copy of the checkout in another folder gives the same
// bytes, and the program does not contain the folder.
func TestReproducible(t *testing.T) {
	first, _ := built(t)
	root := docblock.Root(t)
	second, copied := t.TempDir(), copyCheckout(t, root)
	o := options{root: copied, out: second, version: testVersion, commit: testCommit, platforms: []platform{{runtime.GOOS, runtime.GOARCH}}}
	if err := release(t.Context(), o, io.Discard); err != nil {
		t.Fatal(err)
	}
	names, err := written(first)
	if err != nil || len(names) < 2 {
		t.Fatalf("%v: %v", names, err)
	}
	for _, name := range append(names, sumsFile) {
		a, err := os.ReadFile(filepath.Join(first, name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(second, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s differs: %x and %x", name, sha256.Sum256(a), sha256.Sum256(b))
		}
	}
	_, program := unpacked(t)
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{root, filepath.Join(home, "go", "pkg")} {
		if bytes.Contains(data, []byte(dir+"/")) {
			t.Errorf("the program contains %s", dir)
		}
	}
}

// copyCheckout copies the files of a checkout that git does not ignore.
func copyCheckout(t *testing.T, root string) string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatalf("%s: %v", list, err)
	}
	to := t.TempDir()
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, os.ErrNotExist) { // deleted, and not yet in the index
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(to, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// TestSums: the checksums are right, and name every file.
func TestSums(t *testing.T) {
	dir, _ := built(t)
	text, err := os.ReadFile(filepath.Join(dir, sumsFile))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{sumsFile: true}
	for line := range strings.Lines(string(text)) {
		sum, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%x", sha256.Sum256(data)); sum != want {
			t.Errorf("%s: %s, want %s", name, sum, want)
		}
		listed[name] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) < 3 {
		t.Fatalf("%d files: %v", len(entries), err)
	}
	for _, e := range entries {
		if !listed[e.Name()] {
			t.Errorf("%s is not listed", e.Name())
		}
	}
}

// TestUsage: -help describes the flags, and wrong ones are refused before
// anything is built.
func TestUsage(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"-help", "-version version"},
		{"-only plan9/amd64", "plan9/amd64"},
		{"-version 1.0 -commit " + testCommit, `version "1.0"`},
		{"all", `unexpected argument "all"`},
	} {
		var out bytes.Buffer
		err := run(t.Context(), append([]string{"-out", t.TempDir()}, strings.Fields(tc.args)...), &out)
		if err == nil || !strings.Contains(out.String()+err.Error(), tc.want) {
			t.Errorf("%s: %v\n%s", tc.args, err, out.String())
		}
	}
}

// TestVersionOfACommit: without -version the tag of the commit is the version,
// else a pseudo-version; changes that are not committed are visible.
func TestVersionOfACommit(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		args = append([]string{"-C", dir, "-c", "user.name=test", "-c", "user.email=test@example.com"}, args...)
		if out, err := exec.CommandContext(t.Context(), "git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	version := func() string {
		t.Helper()
		s := &source{root: dir}
		if err := errors.Join(s.readCommit(t.Context()), s.readVersion(t.Context())); err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(s.version, s.commit[:12], "HASH")
	}
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "first")
	if got := version(); got != "v0.0.0-20260101000000-HASH" {
		t.Errorf("without a tag: %s", got)
	}
	git("tag", "v0.4.0")
	git("tag", "store/pgstore/v0.4.0")
	if got := version(); got != "v0.4.0" {
		t.Errorf("with a tag: %s", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "new.go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := version(); got != "v0.4.0-changed" {
		t.Errorf("with a change: %s", got)
	}
}

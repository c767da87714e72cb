package release

import (
	"archive/zip"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/docblock"
)

// TestLists: each module of go.work is released or internal.
func TestLists(t *testing.T) {
	if err := here(t).CheckLists(); err != nil {
		t.Error(err)
	}
}

// TestTheCheckoutCanBeReleased: "make release" would find nothing wrong with
// the go.mod files and with go.work.
func TestTheCheckoutCanBeReleased(t *testing.T) {
	if err := needFiles(t, here(t)).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestARelease writes all modules as a proxy serves them. Outside the
// repository it adds a store to a module and installs the program, as a user
// does, and resolves the packages of each module with the module's own go.mod
// and go.sum. All other modules come from the module cache or the usual proxy.
func TestARelease(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	r := needFiles(t, here(t))
	if err := r.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, dir := range r.released {
		var out bytes.Buffer
		if err := r.Go(t.Context(), dir, &out, &out, "go", "list", "-deps", "./..."); err != nil {
			t.Skipf("no module proxy, and the module cache lacks modules: %v\n%s", err, out.Bytes())
		}
	}
	user := newUser(t, r)
	user.must("mod", "init", "example.com/service")
	user.must("get", "github.com/waybillhq/waybill/store/pgstore@"+user.version)
	user.must("build", "github.com/waybillhq/waybill/store/pgstore")
	user.must("install", "-ldflags=-s", "github.com/waybillhq/waybill/cmd/waybill@"+user.version)
	program := filepath.Join(user.bin, "waybill")
	for _, args := range [][]string{{"--help"}, {"version"}} {
		out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
		if err != nil {
			t.Errorf("waybill %s: %v\n%s", args, err, out)
		}
		if args[0] == "version" && !bytes.Contains(out, []byte(user.version)) {
			t.Errorf("waybill version prints %q, want %s", out, user.version)
		}
	}
	for _, dir := range r.released {
		if out, err := user.resolve(r, dir); err != nil {
			t.Errorf("the packages of %s do not resolve by its go.mod and go.sum: %v\n%s", dir, err, out)
		}
	}
}

// TestBrokenModules: the check finds what the workspace hides, and without the
// check a user's command fails.
func TestBrokenModules(t *testing.T) {
	const store, tool = "store/fakestore/go.mod", "cmd/tool/go.mod"
	for _, tc := range []struct {
		name, file, old, new string
		want                 string
		fails                bool // a user's command
	}{
		{name: "nothing"},
		{
			"missing requirement", tool, "require github.com/waybillhq/waybill/store/fakestore v0.0.0\n", "",
			"cmd/tool/go.mod does not require github.com/waybillhq/waybill/store/fakestore", true,
		},
		{
			"replace", tool, "go 1.25.0\n", "go 1.25.0\n\nreplace github.com/waybillhq/waybill => ../..\n",
			"cmd/tool/go.mod replaces github.com/waybillhq/waybill", true,
		},
		{
			"replace at a version", store, "go 1.25.0\n", "go 1.25.0\n\nreplace example.com/a v1.0.0 => ../..\n",
			"store/fakestore/go.mod replaces example.com/a@v1.0.0", false,
		},
		{
			"exclude", tool, "go 1.25.0\n", "go 1.25.0\n\nexclude example.com/a v1.0.0\n",
			"cmd/tool/go.mod has an exclude directive", true,
		},
		{
			"another version", store, "v0.0.0", "v0.0.1",
			"store/fakestore/go.mod requires github.com/waybillhq/waybill v0.0.1", false,
		},
		{
			"internal requirement", store, "go 1.25.0\n", "go 1.25.0\n\nrequire github.com/waybillhq/waybill/test v0.0.0\n",
			"store/fakestore/go.mod requires github.com/waybillhq/waybill/test, which is not released", false,
		},
		{
			"a module that is gone", store, "go 1.25.0\n", "go 1.25.0\n\nrequire github.com/waybillhq/waybill/gone v0.0.0\n",
			"which is not in go.work", false,
		},
		{
			"not replaced", "go.work", "replace github.com/waybillhq/waybill v0.0.0 => .\n", "",
			"which go.work does not replace", false,
		},
		{
			"in no list", "go.work", "use ./test\n", "use ./test\nuse ./more\n",
			"more is in go.work and in no list", false,
		},
		{
			"not in go.work", "go.work", "use ./test\n", "",
			"test is in a list of internal/release/lists.go and not in go.work", false,
		},
		{
			"not used in a workspace of a module", "cmd/tool/go.work", "use ../../store/fakestore\n", "",
			`cmd/tool/go.work uses ["." "cmd/tool"]`, false,
		},
		{
			"another folder in a workspace of a module", "cmd/tool/go.work", "=> ../../store/fakestore\n", "=> ../../test\n",
			"cmd/tool/go.work replaces", false,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := scratchRepo(t)
			if tc.file != "" {
				edited(t, filepath.Join(dir, filepath.FromSlash(tc.file)), tc.old, tc.new)
			}
			r := openScratch(t, dir)
			err := r.Check(t.Context())
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("the check says %v, want %q", err, tc.want)
			}
			if tc.want != "" && !tc.fails {
				return
			}
			user := newUser(t, r)
			out, err := user.run("install", "github.com/waybillhq/waybill/cmd/tool@"+user.version)
			for _, dir := range r.released {
				if err == nil {
					out, err = user.resolve(r, dir)
				}
			}
			if (err != nil) != tc.fails {
				t.Errorf("a user's command ends with %v, want an error: %v\n%s", err, tc.fails, out)
			}
		})
	}
}

// TestTag: the tags are on a commit beside the branch, the go command accepts
// them, and the checksums in go.sum are those of the go command.
func TestTag(t *testing.T) {
	dir := scratchRepo(t)
	r := openScratch(t, dir)
	git := func(args ...string) string {
		t.Helper()
		out, err := r.git(t.Context(), args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	head := git("rev-parse", "HEAD")
	var out bytes.Buffer
	if err := r.Tag(t.Context(), "v0.1.0", &out); err != nil {
		t.Fatal(err)
	}
	tags := strings.Fields(git("tag", "--list"))
	if want := []string{"cmd/tool/v0.1.0", "store/fakestore/v0.1.0", "v0.1.0"}; !slices.Equal(tags, want) {
		t.Errorf("the tags are %v, want %v", tags, want)
	}
	if !strings.Contains(out.String(), "git push --atomic origin store/fakestore/v0.1.0 cmd/tool/v0.1.0\n") {
		t.Errorf("the output does not say how to push:\n%s", &out)
	}
	if git("rev-parse", "HEAD") != head || git("rev-parse", "v0.1.0^{commit}^") != head || git("status", "--porcelain") != "" {
		t.Error("the release commit is not beside the branch, or the checkout changed")
	}
	for _, m := range r.modules {
		text := git("show", "v0.1.0:"+strings.TrimPrefix(m.dir+"/go.mod", "./"))
		if strings.Contains(text, Placeholder) {
			t.Errorf("%s/go.mod of the release has the placeholder:\n%s", m.dir, text)
		}
	}
	if work := git("show", "v0.1.0:go.work"); strings.Contains(work, Placeholder) || !strings.Contains(work, "github.com/waybillhq/waybill v0.1.0 => .") {
		t.Errorf("go.work of the release does not replace the version:\n%s", work)
	}
	if work := git("show", "v0.1.0:cmd/tool/go.work"); strings.Contains(work, Placeholder) || !strings.Contains(work, "github.com/waybillhq/waybill v0.1.0 => ../..") {
		t.Errorf("go.work of a module of the release does not replace the version:\n%s", work)
	}
	download(t, dir, git("show", "v0.1.0:cmd/tool/go.sum"))

	if last, err := r.lastTag(t.Context()); err != nil || last != "v0.1.0" {
		t.Errorf("the last tag is %q, %v", last, err)
	}
	for version, want := range map[string]string{
		"v0.1.0": "tags exist: cmd/tool/v0.1.0", "0.2.0": "is not of the form", "v0.2": "is not of the form", "v2.0.0": "is not of the form",
		"v0.2.0+x": "is not of the form", "v0.2.0-rc.01": "leading zero", "v0.0.0": "placeholder",
		"v0.0.0-20260102030405-0123456789ab": "is not of the form",
	} {
		if err := r.Tag(t.Context(), version, &out); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", version, err, want)
		}
	}
	git("switch", "--quiet", "--detach", "v0.1.0")
	if err := openScratch(t, dir).Tag(t.Context(), "v0.2.0", &out); err == nil || !strings.Contains(err.Error(), "HEAD is a release commit") {
		t.Errorf("a release of a release: %v", err)
	}
	if out, err := run(t.Context(), dir, []string{"GOWORK=" + filepath.Join(dir, "go.work"), "GOPROXY=off"}, "go", "build", "./cmd/tool", "./test"); err != nil {
		t.Errorf("the release commit does not build: %v\n%s", err, out)
	}
	git("switch", "--quiet", "--detach", head)
	edited(t, filepath.Join(dir, "waybill.go"), "One", "Two")
	if err := r.Tag(t.Context(), "v0.2.0", &out); err == nil || !strings.Contains(err.Error(), "not committed") {
		t.Errorf("a change that is not committed: %v", err)
	}
	if got := strings.Fields(git("tag", "--list")); !slices.Equal(got, tags) {
		t.Errorf("refused releases left tags: %v", got)
	}
}

// TestTidy: it sets versions, drops replacements and modules that are gone, and
// completes go.work.
func TestTidy(t *testing.T) {
	dir := scratchRepo(t)
	was := map[string]string{}
	for _, name := range []string{"go.work", "cmd/tool/go.mod", "store/fakestore/go.mod"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		was[name] = string(text)
	}
	edited(t, filepath.Join(dir, "store/fakestore/go.mod"), "v0.0.0", "v0.3.0")
	edited(t, filepath.Join(dir, "cmd/tool/go.mod"), "require github.com/waybillhq/waybill v0.0.0",
		"replace github.com/waybillhq/waybill => ../..\n\nrequire github.com/waybillhq/waybill/gone v0.0.0")
	edited(t, filepath.Join(dir, "go.work"), "replace github.com/waybillhq/waybill v0.0.0 => .\n",
		"replace github.com/waybillhq/waybill/gone v0.0.0 => ./gone\n")
	var out bytes.Buffer
	if err := openScratch(t, dir).Tidy(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if err := openScratch(t, dir).Check(t.Context()); err != nil {
		t.Error(err)
	}
	for name, want := range was {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Join(sortedFields(string(got)), " ") != strings.Join(sortedFields(want), " ") {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
}

func sortedFields(text string) []string {
	return slices.Sorted(slices.Values(strings.Fields(strings.NewReplacer("(", "", ")", "", "require", "", "// indirect", "").Replace(text))))
}

// here opens the repository of this test.
func here(t *testing.T) *Repo {
	t.Helper()
	r, err := Open(t.Context(), docblock.Root(t))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// needFiles skips the test in a copy without git, and in a release commit.
func needFiles(t *testing.T, r *Repo) *Repo {
	t.Helper()
	if _, err := r.files(t.Context()); err != nil {
		t.Skipf("git does not list the files of the checkout: %v", err)
	}
	if r.isRelease() {
		t.Skip("the checkout is a release")
	}
	return r
}

// scratch are the files of a small repository.
var scratch = map[string]string{
	"LICENSE":    "A license.\n",
	"go.mod":     "module github.com/waybillhq/waybill\n\ngo 1.25.0\n",
	"waybill.go": "package waybill\n\nconst One = 1\n",
	"go.work": "go 1.25.0\n\nuse .\nuse ./cmd/tool\nuse ./store/fakestore\nuse ./test\n\n" +
		"replace github.com/waybillhq/waybill v0.0.0 => .\n" +
		"replace github.com/waybillhq/waybill/cmd/tool v0.0.0 => ./cmd/tool\n" +
		"replace github.com/waybillhq/waybill/store/fakestore v0.0.0 => ./store/fakestore\n",
	"store/fakestore/go.mod": "module github.com/waybillhq/waybill/store/fakestore\n\ngo 1.25.0\n\nrequire github.com/waybillhq/waybill v0.0.0\n",
	"store/fakestore/a.go":   "package fakestore\n\nimport \"github.com/waybillhq/waybill\"\n\nconst Two = waybill.One + 1\n",
	"cmd/tool/go.mod": "module github.com/waybillhq/waybill/cmd/tool\n\ngo 1.25.0\n\nrequire github.com/waybillhq/waybill v0.0.0\n\n" +
		"require github.com/waybillhq/waybill/store/fakestore v0.0.0\n",
	"cmd/tool/go.work": "go 1.25.0\n\nuse .\nuse ../..\nuse ../../store/fakestore\n\n" +
		"replace github.com/waybillhq/waybill v0.0.0 => ../..\n" +
		"replace github.com/waybillhq/waybill/store/fakestore v0.0.0 => ../../store/fakestore\n",
	"cmd/tool/main.go": "package main\n\nimport (\n\t\"github.com/waybillhq/waybill\"\n\t\"github.com/waybillhq/waybill/store/fakestore\"\n)\n\n" +
		"func main() { println(waybill.One, fakestore.Two) }\n",
	"test/go.mod": "module github.com/waybillhq/waybill/test\n\ngo 1.25.0\n\nrequire github.com/waybillhq/waybill v0.0.0\n",
	"test/a.go":   "package test\n\nimport _ \"github.com/waybillhq/waybill\"\n",
	"more/go.mod": "module github.com/waybillhq/waybill/more\n\ngo 1.25.0\n",
}

// scratchRepo makes a small repository with one commit.
func scratchRepo(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range scratch {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	// The settings of the machine must not change what the tests do.
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("GIT_CONFIG_SYSTEM", os.DevNull)
	for _, args := range [][]string{
		{"init", "--quiet"},
		{"config", "user.name", "Test"},
		{"config", "user.email", "test@example.com"},
		{"add", "."},
		{"commit", "--quiet", "--message", "first"},
	} {
		if _, err := run(t.Context(), dir, nil, "git", args...); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func openScratch(t *testing.T, dir string) *Repo {
	t.Helper()
	r, err := open(t.Context(), dir, []string{".", "store/fakestore", "cmd/tool"}, []string{"test"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// edited replaces text in a file that has it.
func edited(t *testing.T, file, old, text string) {
	t.Helper()
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(was), old) {
		t.Fatalf("%s has no %q", file, old)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(was), old, text, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// download fetches each module that sums names from the tags of a repository,
// as the go command does without a proxy, and compares the checksums. The
// module cache is a temporary one; it holds these modules only.
func download(t *testing.T, dir, sums string) {
	t.Helper()
	cache := t.TempDir()
	env := []string{
		"GOWORK=off", "GOFLAGS=-modcacherw", "GOMODCACHE=" + cache, "GOPRIVATE=github.com/waybillhq/waybill", "GOVCS=*:git",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://" + dir + ".insteadOf", "GIT_CONFIG_VALUE_0=https://github.com/waybillhq/waybill",
	}
	lines := strings.Split(strings.TrimSpace(sums), "\n")
	if len(lines) != 4 {
		t.Errorf("go.sum has %d lines, want two for each of two modules:\n%s", len(lines), sums)
	}
	for _, line := range lines {
		fields := strings.Fields(line)
		version, ofMod := strings.CutSuffix(fields[1], "/go.mod")
		field := "Sum"
		if ofMod {
			field = "GoModSum"
		}
		out, err := run(t.Context(), t.TempDir(), env, "go", "mod", "download", "-json", fields[0]+"@"+version)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if want := `"` + field + `": "` + fields[2] + `"`; !strings.Contains(string(out), want) {
			t.Errorf("go mod download says\n%s\nwant %s", out, want)
		}
	}
}

// A user runs go commands in an empty folder outside the repository, with a
// release of it in a proxy.
type user struct {
	t       *testing.T
	dir     string
	bin     string
	proxy   string
	version string
	env     []string
}

// newUser releases a version that no module cache has. When the test ends, the
// version is removed from the module cache.
func newUser(t *testing.T, r *Repo) *user {
	t.Helper()
	u := &user{t: t, dir: t.TempDir(), bin: t.TempDir(), proxy: t.TempDir(), version: "v0.0.0-test." + strings.ToLower(rand.Text())}
	if err := r.Proxy(t.Context(), u.version, u.proxy); err != nil {
		t.Fatal(err)
	}
	set := map[string]string{}
	out, err := run(t.Context(), u.dir, []string{"GOWORK=off"}, "go", "env", "-json",
		"GOPROXY", "GOSUMDB", "GONOSUMDB", "GOMODCACHE", "GOCACHE", "GOTOOLCHAIN")
	if err := errors.Join(err, json.Unmarshal(out, &set)); err != nil {
		t.Fatal(err)
	}
	set["GOPROXY"] = "file://" + filepath.ToSlash(u.proxy) + "," + set["GOPROXY"]
	set["GONOSUMDB"] = strings.TrimSuffix("github.com/waybillhq/waybill,"+set["GONOSUMDB"], ",")
	// GOENV, so that no other setting counts. With GONOPROXY, for example, go
	// takes what the module cache has of the core for all there is of it. No
	// -mod=mod: it would add a requirement that a module lacks.
	u.env = []string{"GOENV=off", "GOWORK=off", "GOFLAGS=", "GOPRIVATE=", "GONOPROXY=", "GOBIN=" + u.bin}
	for key, value := range set {
		u.env = append(u.env, key+"="+value)
	}
	t.Cleanup(func() {
		for _, m := range r.modules {
			forget(t, set["GOMODCACHE"], m.path, u.version)
		}
	})
	return u
}

// run runs a go command.
func (u *user) run(args ...string) (string, error) {
	u.t.Helper()
	cmd := exec.CommandContext(u.t.Context(), "go", args...)
	cmd.Dir, cmd.Env = u.dir, append(os.Environ(), u.env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (u *user) must(args ...string) {
	u.t.Helper()
	if out, err := u.run(args...); err != nil {
		u.t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// resolve lists all packages that those of a released module import, with the
// go.mod and go.sum of its archive.
func (u *user) resolve(r *Repo, dir string) (string, error) {
	u.t.Helper()
	m, err := r.in(dir)
	if err != nil {
		u.t.Fatal(err)
	}
	archive, err := zip.OpenReader(filepath.Join(u.proxy, filepath.FromSlash(m.path), "@v", u.version+".zip"))
	if err != nil {
		u.t.Fatal(err)
	}
	defer func() { _ = archive.Close() }()
	content, err := fs.Sub(archive, m.path+"@"+u.version)
	if err != nil {
		u.t.Fatal(err)
	}
	at := *u
	at.dir = u.t.TempDir()
	if err := os.CopyFS(at.dir, content); err != nil {
		u.t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(at.dir, "LICENSE")); err != nil {
		u.t.Error(err)
	}
	return at.run("list", "-mod=readonly", "-deps", "./...")
}

// forget removes one version of a module from the module cache.
func forget(t *testing.T, cache, modulePath, version string) {
	t.Helper()
	folder := filepath.Join(cache, filepath.FromSlash(modulePath)+"@"+version)
	_ = filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			return os.Chmod(name, 0o755) // the go command writes folders without permission to write
		}
		return err
	})
	list := filepath.Join(cache, "cache", "download", filepath.FromSlash(modulePath), "@v")
	files, err := filepath.Glob(filepath.Join(list, version+".*"))
	if err != nil {
		t.Error(err)
	}
	for _, name := range append(files, folder) {
		if err := os.RemoveAll(name); err != nil {
			t.Error(err)
		}
	}
	list = filepath.Join(list, "list")
	text, err := os.ReadFile(list)
	if err != nil || !strings.Contains(string(text), version) {
		return
	}
	if err := os.WriteFile(list, []byte(strings.ReplaceAll(string(text), version+"\n", "")), 0o644); err != nil {
		t.Error(err)
	}
}

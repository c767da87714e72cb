//go:build linux || darwin

package manage

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/testserver"
)

func TestReportSaysWhatIsMissingAndWhatToDo(t *testing.T) {
	h := testHome(t)
	missing := append(append(postgres{}.programs(), mariadb{}.programs()...), shells()...)
	err := h.report(missing, errors.New("this system has no apt-get"))
	if err == nil {
		t.Fatal("no error for missing servers")
	}
	for _, want := range []string{
		"postgres", "initdb", "mariadbd or mysqld", "mariadb-install-db", "psql", "sqlite3", "no apt-get",
		"apt-get install chromium fonts-dejavu-core hugo mariadb-client mariadb-server pgbouncer postgresql postgresql-client sqlite3",
		testserver.EnvPostgres + "=", testserver.EnvMariaDB + "=",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("message lacks %q:\n%v", want, err)
		}
	}
}

func TestReportOnlyWarnsAboutClients(t *testing.T) {
	if err := testHome(t).report(shells(), errors.New("no apt-get")); err != nil {
		t.Errorf("report = %v, want a warning only", err)
	}
	if err := testHome(t).report(nil, nil); err != nil {
		t.Errorf("report of nothing missing = %v", err)
	}
}

func TestInstallDoesNothingWhenAllIsThere(t *testing.T) {
	h := testHome(t)
	t.Setenv("PATH", programs(t, "postgres"))
	want := []program{{names: []string{"mispelt", "postgres"}, packages: []string{"none"}}}
	if err := h.install(t.Context(), want, false); err != nil {
		t.Fatal(err)
	}
	if exists(filepath.Join(h.dir, "install.lock")) {
		t.Error("the install lock was taken for nothing")
	}
}

func TestInstallRunsAptOnceForAllPackages(t *testing.T) {
	h := testHome(t)
	if os.Geteuid() != 0 {
		t.Skip("pretending to be apt-get needs root, as apt-get does")
	}
	bin := programs(t)
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	script := "#!/bin/sh\necho \"$@\" >>" + bin + "/calls\nprintf '#!/bin/sh\\n' >" + bin + "/newdb; chmod 755 " + bin + "/newdb\n"
	if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	want := []program{
		{names: []string{"newdb"}, packages: []string{"newdb-server", "newdb-client"}},
		{names: []string{"newdb"}, packages: []string{"newdb-server"}},
	}
	if err := h.install(t.Context(), want, false); err != nil {
		t.Fatal(err)
	}
	calls, err := os.ReadFile(filepath.Join(bin, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(string(calls), "--no-install-recommends newdb-client newdb-server\n") || strings.Count(string(calls), "\n") != 1 {
		t.Errorf("apt-get was called with:\n%s", calls)
	}
}

// programs creates a folder of programs that do nothing.
func programs(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestHiddenBinsSortByNumber(t *testing.T) {
	paths := []string{"/usr/lib/postgresql/9/bin", "/usr/lib/postgresql/15/bin", "/usr/lib/postgresql/x/bin"}
	slices.SortFunc(paths, func(a, b string) int { return versionIn(b) - versionIn(a) })
	if paths[0] != "/usr/lib/postgresql/15/bin" || paths[2] != "/usr/lib/postgresql/x/bin" {
		t.Errorf("sorted: %v", paths)
	}
}

func TestTail(t *testing.T) {
	if got, want := tail("a\nb\nc\n", 2), "    b\n    c"; got != want {
		t.Errorf("tail = %q, want %q", got, want)
	}
}

func TestRepoRoot(t *testing.T) {
	root := t.TempDir()
	sub := filepath.Join(root, "store", "pgstore")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir, module := range map[string]string{
		root: "github.com/waybillhq/waybill",
		sub:  "github.com/waybillhq/waybill/store/pgstore",
	} {
		if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module "+module+"\n\ngo 1.25.0\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := repoRoot(sub); err != nil || got != root {
		t.Errorf("repoRoot = %q, %v; want %q", got, err, root)
	}
	if _, err := repoRoot(filepath.Dir(root)); err == nil {
		t.Error("repoRoot found a checkout where there is none")
	}
}

//go:build linux || darwin

package manage

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestMirrorIsTheMachinesOwn(t *testing.T) {
	const targets = `Packages main https://packages.example.com/apt/
Packages main http://mirror.example.com/debian-security/
DEP-11 main http://mirror.example.com/debian/
Packages contrib http://other.example.com/debian/
Packages main http://mirror.example.com/debian/
Packages main http://later.example.com/debian/
`
	if got, want := mirrorIn(targets), "http://mirror.example.com/debian/"; got != want {
		t.Errorf("mirrorIn = %q, want %q", got, want)
	}
	if got := mirrorIn("Packages main http://archive.example.com/ubuntu/\n"); got != "" {
		t.Errorf("mirrorIn found %q where there is no mirror of Debian", got)
	}
}

// pretendApt names a mirror, and downloads one package into the given cache. It
// logs its commands to a file, and its first download fails.
const pretendApt = `#!/bin/sh
if [ "$1" = indextargets ]; then echo "Packages main http://mirror.example.com/debian/"; exit; fi
for arg; do case "$arg" in
	Dir::Cache=*) cache=${arg#*=};;
	Dir::Etc::SourceList=*) sources=${arg#*=};;
	update|install) verb=$arg;;
esac; done
echo "$verb" >>"$APT_RUNS"
grep -q "http://mirror.example.com/debian/ sid main" "$sources" || { echo "wrong sources"; exit 1; }
if [ "$verb" = install ]; then
	[ $(grep -c install "$APT_RUNS") -ge 2 ] || { echo the network is down; exit 1; }
	echo >"$cache/archives/a.deb"
fi
`

const pretendDpkg = `#!/bin/sh
mkdir -p "$3/usr/sbin" "$3/usr/share/doc"
echo >"$3/usr/sbin/server"
`

// TestPackagesAreFetchedOnce: several concurrent runs fetch once, and a later
// run finds the packages.
func TestPackagesAreFetchedOnce(t *testing.T) {
	bin := programs(t)
	for name, text := range map[string]string{"apt-get": pretendApt, "dpkg": pretendDpkg} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	runs := filepath.Join(t.TempDir(), "runs")
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("APT_RUNS", runs)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir()) // the cache folder on macOS
	d := debs{name: "n", roots: []string{"p"}, useless: []string{"usr/share/doc"}}
	var wg sync.WaitGroup
	for range 3 {
		h := testHome(t)
		wg.Go(func() {
			if err := d.fetch(t.Context(), h); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	b, err := os.ReadFile(runs)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Fields(string(b)), "update install install"; strings.Join(got, " ") != want {
		t.Errorf("apt-get ran %q, want %q: until it has succeeded, and then never again", got, want)
	}
	if !exists(filepath.Join(d.dir(), "usr/sbin/server")) || exists(filepath.Join(d.dir(), "usr/share/doc")) {
		t.Errorf("%s lacks the program, or has what is of no use", d.dir())
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(d.dir()), "*-building-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestMySQLNamesTheWayAround: on a machine whose sources name no Debian mirror,
// the error names the alternative.
func TestMySQLNamesTheWayAround(t *testing.T) {
	bin := programs(t)
	for name, text := range map[string]string{"apt-get": "#!/bin/sh\n", "dpkg": "#!/bin/sh\n"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	err := mysql{}.fetch(t.Context(), testHome(t))
	if err == nil || !strings.Contains(err.Error(), "mirror of Debian") || !strings.Contains(err.Error(), "WAYBILL_TEST_MYSQL=") {
		t.Errorf("fetch = %v, want the reason and the variable", err)
	}
}

//go:build linux || darwin

package manage

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// project is the part of a pom that Maven reads.
type project struct {
	Repositories []struct {
		ID      string `xml:"id"`
		Enabled bool   `xml:"releases>enabled"`
	} `xml:"repositories>repository"`
	Dependencies []struct {
		Artifact string   `xml:"artifactId"`
		Version  string   `xml:"version"`
		Without  []string `xml:"exclusions>exclusion>artifactId"`
	} `xml:"dependencies>dependency"`
}

func TestPomNamesWhatIsWanted(t *testing.T) {
	j := jars{name: "n", roots: []string{"g:a:1", "g:b:2"}, without: []string{"g:x"}, ignore: []string{"far"}}
	var p project
	if err := xml.Unmarshal([]byte(j.pom()), &p); err != nil {
		t.Fatalf("%v in:\n%s", err, j.pom())
	}
	if len(p.Dependencies) != 2 || p.Dependencies[1].Artifact != "b" || p.Dependencies[1].Version != "2" {
		t.Errorf("dependencies = %+v", p.Dependencies)
	}
	for _, d := range p.Dependencies {
		if len(d.Without) != 1 || d.Without[0] != "x" {
			t.Errorf("%s is to come without %v, want x", d.Artifact, d.Without)
		}
	}
	if len(p.Repositories) != 1 || p.Repositories[0].ID != "far" || p.Repositories[0].Enabled {
		t.Errorf("repositories = %+v, want one that is not asked", p.Repositories)
	}
}

// pretendMaven is a Maven that puts one archive into the given folder, and
// counts its runs in a file. Its first runs fail.
const pretendMaven = `#!/bin/sh
echo run >>"$MAVEN_RUNS"
for arg; do case "$arg" in -DoutputDirectory=*) out=${arg#*=};; esac; done
mkdir -p "$out"
[ $(wc -l <"$MAVEN_RUNS") -ge 3 ] || { echo the network is down; exit 1; }
echo >"$out/a.jar"
`

func TestArchivesAreFetchedOnce(t *testing.T) {
	bin := programs(t)
	if err := os.WriteFile(filepath.Join(bin, "mvn"), []byte(pretendMaven), 0o755); err != nil {
		t.Fatal(err)
	}
	runs := filepath.Join(t.TempDir(), "runs")
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("MAVEN_RUNS", runs)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir()) // the cache folder on macOS
	j := jars{name: "n", version: "1", roots: []string{"g:a:1"}}
	for range 2 {
		if err := j.fetch(t.Context(), testHome(t)); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(runs)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(b), "run"); got != 3 {
		t.Errorf("Maven ran %d times, want 3: until it has succeeded, and then never again", got)
	}
	if !exists(filepath.Join(j.dir(), "a.jar")) {
		t.Errorf("%s lacks the archive", j.dir())
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(j.dir()), "*-building-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestShellWordsKeepWordsWhole(t *testing.T) {
	if got, want := shellWords([]string{"a b", "it's", "*"}), `'a b' 'it'\''s' '*'`; got != want {
		t.Errorf("shellWords = %s, want %s", got, want)
	}
}

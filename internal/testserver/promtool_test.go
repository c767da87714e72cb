package testserver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/testserver"
)

// system is a machine without promtool whose package tools are scripts.
func system(t *testing.T, scripts map[string]string) (cached string) {
	t.Helper()
	bin, cache := t.TempDir(), t.TempDir()
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	t.Setenv("HOME", cache)
	t.Setenv("XDG_CACHE_HOME", cache)
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "waybill-testserver", "promtool")
}

// tryPromtool calls Promtool in a test of its own.
func tryPromtool(t *testing.T) (path string, tb *fakeTB) {
	t.Helper()
	tb = &fakeTB{TB: t, outcome: "pass"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		path = testserver.Promtool(tb)
	}()
	<-done
	return path, tb
}

// The first download fails, as it does where the package lists are missing or
// old.
const (
	moodyApt = `
case "$*" in
*update) : >"$HOME/lists" ;;
*) [ -e "$HOME/lists" ] || { echo "404  Not Found"; exit 100; }
   : >prometheus_1_amd64.deb ;;
esac
`
	sudo    = `shift; exec "$@"`
	unpacks = `[ -e "$2" ] && /bin/mkdir -p usr/bin && echo "the tool" >usr/bin/promtool`
)

func TestPromtoolIsFetchedOnceAndKept(t *testing.T) {
	t.Setenv(testserver.EnvRequire, "1")
	want := system(t, map[string]string{"apt-get": moodyApt, "dpkg": unpacks, "sudo": sudo})
	for range 2 {
		path, tb := tryPromtool(t)
		if tb.outcome != "pass" || path != want {
			t.Fatalf("%s %q: %v", tb.outcome, path, tb.lines)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != "the tool\n" {
			t.Fatalf("%q, %v", text, err)
		}
		// the second call does not need it
		if err := os.Remove(filepath.Join(os.Getenv("PATH"), "apt-get")); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	left, err := os.ReadDir(filepath.Dir(want))
	if err != nil || len(left) != 1 {
		t.Errorf("it left %v behind, %v", left, err)
	}
}

func TestPromtoolThatCannotBeFetchedIsAFailureThatSaysWhy(t *testing.T) {
	t.Setenv(testserver.EnvRequire, "postgres")
	for name, c := range map[string]struct {
		scripts map[string]string
		why     string
	}{
		"no packages":    {nil, "this system has no apt-get and dpkg"},
		"no mirror":      {map[string]string{"apt-get": "echo cannot resolve; exit 100", "dpkg": unpacks}, "cannot resolve"},
		"another format": {map[string]string{"apt-get": moodyApt, "dpkg": ":", "sudo": sudo}, "usr/bin/promtool"},
	} {
		t.Run(name, func(t *testing.T) {
			path := system(t, c.scripts)
			_, tb := tryPromtool(t)
			if text := strings.Join(tb.lines, "\n"); tb.outcome != "fatal" || !strings.Contains(text, c.why) || !strings.Contains(text, "install the package prometheus") {
				t.Errorf("%s: %s", tb.outcome, text)
			}
			if _, err := os.Stat(path); err == nil {
				t.Error("half a tool is in the cache")
			}
		})
	}
}

func TestPromtoolIsNotFetchedByAPlainTest(t *testing.T) {
	t.Setenv(testserver.EnvRequire, "")
	system(t, map[string]string{"apt-get": moodyApt, "dpkg": unpacks, "sudo": sudo})
	if _, tb := tryPromtool(t); tb.outcome != "skip" || len(tb.lines) != 1 || !strings.Contains(tb.lines[0], "make test") {
		t.Errorf("%s: %v", tb.outcome, tb.lines)
	}
}

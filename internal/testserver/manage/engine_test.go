//go:build linux || darwin

package manage

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/testserver"
)

// scripted is an engine whose server is a shell script. It runs as root if the
// tests do, so that it can work in a test's private folder.
type scripted struct {
	postgres
	script string // $1 is the data folder, $2 the port
	steps  []step
}

func (scripted) account() string { return "root" }

func (scripted) version(context.Context) (string, error) { return "1.0", nil }

func (s scripted) recipe(data string) []step {
	return append([]step{{argv: []string{"mkdir", data}}}, s.steps...)
}

func (s scripted) start(at place, _ []int) command {
	return command{argv: []string{"/bin/sh", "-c", s.script, "sh", at.data}}
}

func (scripted) ready(_ context.Context, r running) bool {
	return exists(filepath.Join(r.at.data, "ready"))
}

// serve is a script that becomes ready and then serves until its folder is
// removed.
const serve = `touch "$1/ready"; while [ -e "$1/ready" ]; do sleep 0.02; done`

// listen returns the address of a loopback listener that is open until the test
// ends.
func listen(t *testing.T) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func TestStartDescribesTheServer(t *testing.T) {
	h := testHome(t)
	in, err := h.newInstance(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := in.start(t.Context(), []engine{scripted{script: serve}}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(in.dir, "postgres.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s Server
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	if s.Version != "1.0" || s.Port == 0 || s.Data != filepath.Join(in.dir, "postgres", "data") || len(s.Argv) == 0 {
		t.Errorf("description = %+v", s)
	}
	for _, want := range []string{
		testserver.EnvPostgres + "=" + s.DSN,
		testserver.EnvServers + "=" + h.dir,
		testserver.EnvInstance + "=" + in.dir,
	} {
		if !slices.Contains(in.Env(), want) {
			t.Errorf("environment %v lacks %s", in.Env(), want)
		}
	}
}

func TestTemplateIsBuiltOnce(t *testing.T) {
	h := testHome(t)
	marker := filepath.Join(t.TempDir(), "built")
	e := scripted{
		script: serve,
		steps:  []step{{argv: []string{"/bin/sh", "-c", `cat >>"$1"`, "sh", marker}, stdin: "once\n"}},
	}
	for range 3 {
		in, err := h.newInstance(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := in.start(t.Context(), []engine{e}); err != nil {
			t.Fatal(err)
		}
		if err := in.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	built, err := os.ReadFile(marker)
	if err != nil {
		t.Fatal(err)
	}
	// The recipe's text contains the marker, but not the instance: if the
	// template's name changed from run to run, each run would build one.
	if string(built) != "once\n" {
		t.Errorf("the recipe ran for %q, want once", built)
	}
}

func TestStartShowsTheLogOfAServerThatFails(t *testing.T) {
	h := testHome(t)
	in, err := h.newInstance(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = in.start(t.Context(), []engine{scripted{script: "echo the disk is on fire; exit 3"}})
	if err == nil {
		t.Fatal("start succeeded")
	}
	for _, want := range []string{"start postgres", "exit status 3", "the disk is on fire"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
}

func TestStartShowsTheOutputOfAStepThatFails(t *testing.T) {
	h := testHome(t)
	in, err := h.newInstance(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bad := step{argv: []string{"/bin/sh", "-c", "echo no room >&2; exit 1"}}
	err = in.start(t.Context(), []engine{scripted{steps: []step{bad}}})
	if err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("start = %v, want the step's output", err)
	}
	if names := templates(t, h); len(names) != 0 {
		t.Errorf("a failed recipe left the templates %v", names)
	}
}

func TestStartTriesAnotherPort(t *testing.T) {
	h := testHome(t)
	in, err := h.newInstance(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The script fails while the file has fewer than three lines.
	script := `echo try >>"$1/tries"; [ $(wc -l <"$1/tries") -ge 3 ] || {
		echo "could not bind: Address already in use"; exit 1; }; ` + serve
	if err := in.start(t.Context(), []engine{scripted{script: script}}); err != nil {
		t.Fatal(err)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	h := testHome(t)
	in, err := h.newInstance(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	up := scripted{script: "exit 1"}
	cancel()
	if err := in.start(ctx, []engine{up}); err == nil {
		t.Error("start succeeded under a context that had ended")
	}
}

func templates(t *testing.T, h *Home) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(h.dir, "templates"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestTemplateNameChangesWithVersionAndOwner(t *testing.T) {
	e := scripted{}
	names := []string{
		templateName(e, account{}, "1.0"),
		templateName(e, account{}, "1.1"),
		templateName(e, account{name: "postgres"}, "1.0"),
		templateName(scripted{steps: []step{{argv: []string{"true"}}}}, account{}, "1.0"),
	}
	slices.Sort(names)
	if len(slices.Compact(names)) != 4 {
		t.Errorf("names are not distinct: %v", names)
	}
}

func TestPostgresReadiness(t *testing.T) {
	r := running{at: place{data: t.TempDir()}, pid: 4711}
	if (postgres{}).ready(t.Context(), r) {
		t.Error("ready without a pid file")
	}
	for text, want := range map[string]bool{
		"4711 starting": false, "4711 ready": true, "4711 stopping": false,
		"4712 ready": false, // a killed server left the file
	} {
		pid, state, _ := strings.Cut(text, " ")
		file := pid + "\n/data\n2\n5432\n\n127.0.0.1\n  1 2\n" + state + "   \n"
		if err := os.WriteFile(filepath.Join(r.at.data, "postmaster.pid"), []byte(file), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := (postgres{}).ready(t.Context(), r); got != want {
			t.Errorf("%s: ready = %t, want %t", text, got, want)
		}
	}
}

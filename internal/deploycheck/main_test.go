package deploycheck

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// deploy is the folder of the files.
const deploy = "../../deploy"

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "waybill-deploycheck-*")
	if err != nil {
		panic(err)
	}
	scratch = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

var scratch string

// buildOnce builds the program with the versions of a release, which another
// test has compiled already.
var buildOnce = sync.OnceValues(func() (string, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	file := filepath.Join(scratch, "waybill")
	cmd := exec.CommandContext(context.Background(), "go", "run", "./internal/release/cmd/release", "go", "cmd/waybill",
		"go", "build", "-ldflags=-s -w", "-o", file, ".")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false -trimpath")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return file, nil
})

// program returns the path of the program of this checkout.
func program(t *testing.T) string {
	t.Helper()
	file, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// A deployment is a way to run the program: with these arguments and this
// environment, on a machine where these files exist.
type deployment struct {
	args  []string
	env   map[string]string
	files map[string]string // path in the deployment, content
}

// localize writes the files to a folder and replaces their paths in arguments
// and environment.
func (d deployment) localize(t *testing.T) (args, env []string) {
	t.Helper()
	dir := t.TempDir()
	var pairs []string
	for path, content := range d.files {
		local := filepath.Join(dir, strings.ReplaceAll(strings.Trim(path, "/%"), "/", "-"))
		if err := os.WriteFile(local, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, path, local)
	}
	local := strings.NewReplacer(pairs...)
	for _, arg := range d.args {
		args = append(args, local.Replace(arg))
	}
	for name, value := range d.env {
		env = append(env, name+"="+local.Replace(value))
	}
	slices.Sort(env)
	return args, env
}

// A setting is one of `waybill config --json`.
type setting struct{ Key, Value, Source string }

// accept runs `waybill config` with the arguments and the environment of a
// deployment. The program must know all of them, and must find each file. It
// returns the settings that differ from their defaults.
func accept(t *testing.T, d deployment) map[string]setting {
	t.Helper()
	args, env := d.localize(t)
	if len(args) > 0 && args[0] == "serve" {
		args = args[1:]
	}
	cmd := exec.CommandContext(t.Context(), program(t), append([]string{"config", "--json", "--changed"}, args...)...)
	cmd.Dir, cmd.Env = t.TempDir(), env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || stderr.Len() > 0 { // an unknown variable is a warning
		t.Fatalf("waybill config: %v\n%s", err, stderr.String())
	}
	var answer struct {
		Relays []struct{ Settings []setting }
	}
	if err := json.Unmarshal(out, &answer); err != nil || len(answer.Relays) != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	settings := map[string]setting{}
	for _, s := range answer.Relays[0].Settings {
		settings[s.Key] = s
	}
	return settings
}

// expect checks settings, given as pairs of key and value.
func expect(t *testing.T, settings map[string]setting, pairs ...string) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got := settings[pairs[i]].Value; got != pairs[i+1] {
			t.Errorf("%s is %q, want %q", pairs[i], got, pairs[i+1])
		}
	}
}

// read returns a file of deploy.
func read(t *testing.T, name ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{deploy}, name...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

package deploycheck

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
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

// What the Dockerfile is given as the version and the commit.
const testVersion, testCommit = "v0.7.0", "0123456789abcdef"

// buildOnce builds the program as the Dockerfile does: it runs the command of
// the first stage, in the checkout and with another folder for /out.
var buildOnce = sync.OnceValues(func() (string, error) {
	build, _, err := stages()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(context.Background(), "sh", "-eu", "-c")
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "TARGETOS="+runtime.GOOS, "TARGETARCH="+runtime.GOARCH, "VERSION="+testVersion, "COMMIT="+testCommit)
	for _, c := range build.Commands {
		switch c := c.(type) {
		case *instructions.EnvCommand:
			for _, pair := range c.Env {
				cmd.Env = append(cmd.Env, pair.Key+"="+strings.Trim(pair.Value, `"`))
			}
		case *instructions.RunCommand:
			cmd.Args = append(cmd.Args, strings.ReplaceAll(strings.Join(c.CmdLine, " "), "/out/", scratch+"/"))
		}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return filepath.Join(scratch, "waybill"), nil
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

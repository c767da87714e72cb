package deploycheck

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// stages parses the Dockerfile as BuildKit does.
func stages() (build, last instructions.Stage, err error) {
	text, err := os.ReadFile(filepath.Join(deploy, "docker", "Dockerfile"))
	if err != nil {
		return build, last, err
	}
	parsed, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		return build, last, err
	}
	if len(parsed.Warnings) > 0 {
		return build, last, fmt.Errorf("warnings: %+v", parsed.Warnings)
	}
	all, _, err := instructions.Parse(parsed.AST, nil)
	if err == nil && len(all) != 2 {
		err = fmt.Errorf("%d stages", len(all))
	}
	if err != nil {
		return build, last, err
	}
	return all[0], all[1], nil
}

// TestDockerfile: the image is configured as the one of internal/e2e/artifacts:
// no shell, no root, one writable folder. Its program is the one of these
// tests, and tells version and commit.
func TestDockerfile(t *testing.T) {
	_, last, err := stages()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(last.BaseName, "gcr.io/distroless/static-") || !strings.HasSuffix(last.BaseName, ":nonroot") {
		t.Errorf("the image is based on %s", last.BaseName)
	}
	got := map[string]string{}
	for _, c := range last.Commands {
		switch c := c.(type) {
		case *instructions.RunCommand:
			t.Error("the last stage runs a command, and has no shell")
		case *instructions.EntrypointCommand:
			got["entrypoint"] = strings.Join(c.CmdLine, " ")
			if c.PrependShell {
				t.Error("the entrypoint needs a shell")
			}
		case *instructions.CmdCommand:
			got["cmd"] = strings.Join(c.CmdLine, " ")
		case *instructions.UserCommand:
			got["user"] = c.User
		case *instructions.WorkdirCommand:
			got["workdir"] = c.Path
		case *instructions.ExposeCommand:
			got["ports"] = strings.Join(c.Ports, " ")
		case *instructions.VolumeCommand:
			got["volumes"] = strings.Join(c.Volumes, " ")
		case *instructions.EnvCommand:
			var pairs []string
			for _, pair := range c.Env {
				pairs = append(pairs, pair.String())
			}
			got["env"] = strings.Join(pairs, " ")
		case *instructions.CopyCommand:
			got["copy "+c.DestPath] = c.Chown
		}
	}
	for key, want := range map[string]string{
		"entrypoint": "/waybill", "cmd": "serve", "user": "65532:65532", "workdir": "/data", "ports": "9292", "volumes": "/data",
		"env": "PATH=/ HOME=/data", "copy /data": "65532:65532", "copy /waybill": "",
	} {
		if value, ok := got[key]; !ok || value != want {
			t.Errorf("%s is %q, want %q", key, value, want)
		}
	}
	out, err := exec.CommandContext(t.Context(), program(t), "version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "waybill "+testVersion+" commit "+testCommit+" ") {
		t.Errorf("version: %v\n%s", err, out)
	}
}

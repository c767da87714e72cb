package deploycheck

import (
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// TestDockerfile: the file parses as BuildKit parses it, and the image is
// configured as the one of internal/e2e/artifacts: no shell, no root, one
// writable folder.
func TestDockerfile(t *testing.T) {
	parsed, err := parser.Parse(strings.NewReader(read(t, "docker", "Dockerfile")))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range parsed.Warnings {
		t.Error(w)
	}
	stages, _, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(stages) != 2 {
		t.Fatalf("%d stages", len(stages))
	}
	last := stages[1]
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
	var build []string
	for _, c := range stages[0].Commands {
		if run, ok := c.(*instructions.RunCommand); ok {
			build = append(build, strings.Join(run.CmdLine, " "))
		}
	}
	const variables = "-X github.com/waybillhq/waybill/cmd/waybill/internal/command."
	if !slices.ContainsFunc(build, func(line string) bool {
		return strings.Contains(line, variables+"release=$VERSION") && strings.Contains(line, variables+"commit=$COMMIT")
	}) {
		t.Errorf("the build does not set version and commit: %q", build)
	}
}

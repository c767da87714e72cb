package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// program is the module of the program, relative to the repository.
const program = "cmd/waybill"

// importPath is the package whose variables tell version and commit.
const importPath = "github.com/waybillhq/waybill/cmd/waybill/internal/command"

// versions are those of archives, and of the labels of images. A tag of an
// image cannot contain +.
var versions = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

// A source is a checkout that a release is built from.
type source struct {
	root            string
	version, commit string
	time            time.Time // of every file in archives and images
	workspace       string    // go.work file with the modules of the program only
}

// readSource reads the version of a checkout and writes its workspace.
func readSource(ctx context.Context, o options) (*source, error) {
	s := &source{root: o.root, version: o.version, commit: o.commit}
	if err := s.readCommit(ctx); err != nil {
		return nil, err
	}
	if err := s.readVersion(ctx); err != nil {
		return nil, err
	}
	return s, s.writeWorkspace(ctx)
}

// readCommit determines the commit and its time. SOURCE_DATE_EPOCH overrides
// the time (reproducible-builds.org).
func (s *source) readCommit(ctx context.Context) error {
	const advice = "without git, set -version, -commit and SOURCE_DATE_EPOCH"
	if s.commit == "" {
		var err error
		if s.commit, err = s.output(ctx, nil, "git", "rev-parse", "HEAD"); err != nil {
			return fmt.Errorf("%w (%s)", err, advice)
		}
	}
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		var err error
		if epoch, err = s.output(ctx, nil, "git", "log", "-1", "--format=%ct", s.commit); err != nil {
			return fmt.Errorf("%w (%s)", err, advice)
		}
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH is %q, want a number of seconds", epoch)
	}
	s.time = time.Unix(seconds, 0).UTC()
	return nil
}

// readVersion checks a version, or determines that of HEAD.
func (s *source) readVersion(ctx context.Context) error {
	if s.version == "" {
		// the tag of the core module has no slash
		tag, err := s.output(ctx, nil, "git", "describe", "--exact-match", "--tags", "--match", "v[0-9]*", s.commit)
		if err != nil {
			tag = "v0.0.0-" + s.time.Format("20060102150405") + "-" + s.commit[:min(12, len(s.commit))]
		}
		if changes, err := s.output(ctx, nil, "git", "status", "--porcelain"); err == nil && changes != "" {
			tag += "-changed"
		}
		s.version = tag
	}
	if !versions.MatchString(s.version) {
		return fmt.Errorf("version %q is not of the form v0.1.0 or v0.1.0-rc.1", s.version)
	}
	return nil
}

// writeWorkspace writes a go.work with the program as its only module. The
// workspace of the repository also has the requirements of tests, which select
// newer versions of the program's dependencies than `go install` does.
func (s *source) writeWorkspace(ctx context.Context) error {
	text, err := s.output(ctx, nil, "go", "work", "edit", "-json", filepath.Join(s.root, "go.work"))
	if err != nil {
		return err
	}
	var work struct {
		Go      string
		Replace []struct {
			Old, New struct{ Path, Version string }
		}
	}
	if err := json.Unmarshal([]byte(text), &work); err != nil {
		return err
	}
	// Paths in the workspace are relative to it and become part of the binary:
	// the file is at the same place in every checkout.
	lines := []string{"go " + work.Go, "use ../" + program}
	for _, r := range work.Replace {
		lines = append(lines, fmt.Sprintf("replace %s %s => ../%s", r.Old.Path, r.Old.Version, strings.TrimPrefix(r.New.Path, "./")))
	}
	s.workspace = filepath.Join(s.root, ".tools", "artifacts.work")
	if err := os.MkdirAll(filepath.Dir(s.workspace), 0o755); err != nil {
		return err
	}
	return os.WriteFile(s.workspace, []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}

// build builds the program. The result depends on the source, the Go version
// and the platform.
func (s *source) build(ctx context.Context, p platform, file string) error {
	env := []string{
		"GOOS=" + p.os, "GOARCH=" + p.arch, "CGO_ENABLED=0", "GOWORK=" + s.workspace,
		"GOFLAGS=-trimpath -buildvcs=false", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOFIPS140=off",
	}
	ldflags := fmt.Sprintf("-s -w -X %[1]s.release=%[2]s -X %[1]s.commit=%[3]s", importPath, s.version, s.commit)
	_, err := s.output(ctx, env, "go", "build", "-ldflags", ldflags, "-o", file, "./"+program)
	return err
}

// output runs a command in the root folder and returns its standard output.
func (s *source) output(ctx context.Context, env []string, command ...string) (string, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Env = s.root, append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

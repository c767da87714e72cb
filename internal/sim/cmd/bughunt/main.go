// Command bughunt puts each bug of internal/sim/testdata/bugs.mutants into a
// copy of the repository, runs the simulator alone on one core, and prints how
// long it took to find the bug, and with which seed. It exits with an error if
// a bug was not found.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/waybillhq/waybill/internal/mutants"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("bughunt", flag.ContinueOnError)
	flags.SetOutput(stderr)
	only := flags.String("only", "", "pattern of the names or files of the bugs to hunt")
	limit := flags.Duration("for", 10*time.Minute, "time for each bug")
	ignore := flags.String("ignore", "", "rules that do not count: the value of -sim.ignore")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(stderr, "bughunt: -only:", err)
		return 2
	}
	escaped, err := hunt(ctx, pattern, *limit, *ignore, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "bughunt:", err)
		return 1
	}
	if escaped > 0 {
		return 1
	}
	return 0
}

// hunt hunts the bugs and returns the number that were not found.
func hunt(ctx context.Context, only *regexp.Regexp, limit time.Duration, ignore string, out io.Writer) (escaped int, err error) {
	root, err := output(ctx, ".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return 0, fmt.Errorf("not in the repository: %w", err)
	}
	bugs, err := mutants.Read(os.DirFS(filepath.Join(root, "internal", "sim")), "testdata")
	if err != nil {
		return 0, err
	}
	dir, err := mutants.Copy(ctx, root)
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a copy in the temporary folder
	fmt.Fprintln(out, "| bug | seconds to find | seed | rule |\n|---|---|---|---|")
	for _, bug := range bugs {
		if !only.MatchString(bug.Name) && !only.MatchString(bug.File) {
			continue
		}
		f, err := try(ctx, dir, bug, limit, ignore)
		if err != nil {
			return escaped, err
		}
		if !f.found {
			escaped++
			f.seed = "not found"
		}
		fmt.Fprintf(out, "| %s | %.1f | %s | %s |\n", bug.Name, f.took.Seconds(), f.seed, f.rule)
	}
	return escaped, nil
}

// find is the result of a hunt.
type find struct {
	found      bool
	took       time.Duration
	seed, rule string
}

// try puts one bug into the copy and runs the simulator.
func try(ctx context.Context, dir string, bug mutants.Mutant, limit time.Duration, ignore string) (find, error) {
	name := filepath.Join(dir, bug.File)
	original, err := os.ReadFile(name)
	if err != nil {
		return find{}, err
	}
	changed, err := bug.Apply(string(original))
	if err != nil {
		return find{rule: "does not apply"}, nil //nolint:nilerr // the code has moved: port the bug
	}
	if err := os.WriteFile(name, []byte(changed), 0o644); err != nil { //nolint:gosec // a source file
		return find{}, err
	}
	defer os.WriteFile(name, original, 0o644) //nolint:errcheck,gosec // the next bug of this file would not apply, and say so
	folder := filepath.Join(dir, bug.Folder)
	if text, err := output(ctx, folder, "go", "test", "-c", "-o", "sim.test", "."); err != nil {
		return find{}, fmt.Errorf("%s: %s does not build: %w\n%s", bug.Where, bug.Name, err, text)
	}
	began := time.Now()
	text, err := output(ctx, folder, "./sim.test", "-test.run", bug.Pattern, "-test.timeout=0", "-test.cpu=1",
		"-sim.for="+limit.String(), "-sim.seed=1", "-sim.shrink=0s", "-sim.v", "-sim.ignore="+ignore)
	if ctx.Err() != nil {
		return find{}, ctx.Err()
	}
	f := judge(text, err)
	f.took = time.Since(began)
	return f, nil
}

var (
	failed = regexp.MustCompile(`(?m)^seed (\d+) fails: ([a-z-]+):`)
	ran    = regexp.MustCompile(`(?m)^seed (\d+) took`)
)

// judge reads the output of the simulator. A panic of the product ends the
// simulator: then the seed is the one after the last that ended.
func judge(text string, err error) find {
	if m := failed.FindStringSubmatch(text); m != nil {
		return find{found: true, seed: m[1], rule: m[2]}
	}
	if err == nil || !strings.Contains(text, "panic: ") && !strings.Contains(text, "fatal error: ") {
		return find{}
	}
	f := find{found: true, seed: "1", rule: "panic"}
	if all := ran.FindAllStringSubmatch(text, -1); len(all) > 0 {
		f.seed = "after " + all[len(all)-1][1]
	}
	return f
}

// output runs a command and returns its output.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	// The caller's GOWORK would name the repository instead of the copy.
	cmd.Env = append(os.Environ(), "GOWORK=")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

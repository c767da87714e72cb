// Command mutants applies each mutant to a copy of the repository and runs the
// test that must fail. It exits with an error if a mutant survives. Run it with
// make mutants, which starts the servers that the tests need.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
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
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(stderr)
	only := flags.String("only", "", "pattern of the names or files of the mutants to run")
	verbose := flags.Bool("v", false, "show the output of the tests")
	resume := flags.String("resume", "", "file with the output of an earlier run, whose killed mutants are not run again")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(stderr, "mutants: -only:", err)
		return 2
	}
	done, err := killedIn(*resume)
	if err != nil {
		fmt.Fprintln(stderr, "mutants: -resume:", err)
		return 2
	}
	wanted := func(m mutants.Mutant) bool {
		return !done[m.Name] && (pattern.MatchString(m.Name) || pattern.MatchString(m.File))
	}
	survived, err := hunt(ctx, wanted, *verbose, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "mutants:", err)
		return 1
	}
	if survived > 0 {
		return 1
	}
	return 0
}

// killed is the only passing verdict.
const killed = "killed"

// verdictLine matches the line that hunt prints for a mutant.
var verdictLine = regexp.MustCompile(`(?m)^(\S+) +[0-9.]+s  (.*) \(\S+:\d+\)$`)

// killedIn returns the names of the mutants that an earlier run killed.
func killedIn(file string) (map[string]bool, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool)
	for _, m := range verdictLine.FindAllStringSubmatch(string(text), -1) {
		names[m[2]] = m[1] == killed
	}
	return names, nil
}

// hunt tests the wanted mutants and returns the number that were not killed.
func hunt(ctx context.Context, wanted func(mutants.Mutant) bool, verbose bool, out io.Writer) (survived int, err error) {
	root, err := output(ctx, ".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return 0, fmt.Errorf("not in the repository: %w", err)
	}
	all, err := mutants.Read(os.DirFS(filepath.Join(root, "internal", "mutants")), "testdata")
	if err != nil {
		return 0, err
	}
	dir, err := mutants.Copy(ctx, root)
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a copy in the temporary folder
	verdicts := make(map[string]int)
	for _, m := range all {
		if !wanted(m) {
			continue
		}
		start := time.Now()
		verdict, text, err := try(ctx, dir, m)
		if err != nil {
			return survived, err
		}
		verdicts[verdict]++
		if verdict != killed {
			survived++
		}
		fmt.Fprintf(out, "%-9s %5.1fs  %s (%s)\n", verdict, time.Since(start).Seconds(), m.Name, m.Where)
		if verbose || verdict != killed {
			fmt.Fprintln(out, text)
		}
	}
	fmt.Fprintf(out, "%d mutants:", verdicts[killed]+survived)
	for _, verdict := range slices.Sorted(maps.Keys(verdicts)) {
		fmt.Fprintf(out, " %d %s", verdicts[verdict], verdict)
	}
	fmt.Fprintln(out)
	return survived, nil
}

// try applies one mutant to the copy, runs its test, and reverts the change.
func try(ctx context.Context, dir string, m mutants.Mutant) (verdict, text string, err error) {
	name := filepath.Join(dir, m.File)
	original, err := os.ReadFile(name)
	if err != nil {
		return "", "", err
	}
	changed, err := m.Apply(string(original))
	if err != nil {
		return "", "", err
	}
	if err := os.WriteFile(name, []byte(changed), 0o644); err != nil { //nolint:gosec // a source file
		return "", "", err
	}
	defer os.WriteFile(name, original, 0o644) //nolint:errcheck,gosec // the next mutant of this file would not apply, and say so
	text, err = output(ctx, filepath.Join(dir, m.Folder), "go", "test", "-v", "-count=1", "-short", "-timeout=3m", "-run", m.Pattern, ".")
	if ctx.Err() != nil {
		return "", "", ctx.Err()
	}
	return judge(text, err), text, nil
}

// judge returns the verdict for a mutant from its test's output and error.
func judge(text string, err error) (verdict string) {
	switch {
	case err == nil && strings.Contains(text, "no tests to run"):
		return "no test"
	case err == nil && strings.Contains(text, "--- SKIP"):
		// the relevant test may not have run: a server is missing
		return "skipped"
	case err == nil:
		return "SURVIVED"
	case strings.Contains(text, "--- FAIL") || strings.Contains(text, "panic:"):
		return killed
	}
	return "no build" // a mutant that does not compile proves nothing
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

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
)

// block matches a generated block of a page: the command and its results.
var block = regexp.MustCompile(`(?s)<!-- bench (.*?) -->\n(.*?)<!-- /bench -->`)

// page measures what a page of the documentation shows. Every block of the page
// names its command; page runs the commands one after another and replaces the
// contents of their blocks.
func page(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("bench page", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, "usage: bench page [flags] FILE\n\n  runs the commands that the blocks of a page name, and replaces their results\n\n")
		flags.PrintDefaults()
	}
	only := flags.String("only", "", "pattern of the commands to run, such as ^drain; empty: all of the page")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	pattern, err := regexp.Compile(*only)
	if err != nil || flags.NArg() != 1 {
		if err == nil {
			err = errors.New("a page is required, such as docs/benchmarks.md")
		}
		fmt.Fprintln(stderr, "bench: page:", err)
		return 2
	}
	if err := measurePage(ctx, flags.Arg(0), pattern, time.Now(), stdout, func(ctx context.Context, args []string, out io.Writer) error {
		if code := run(ctx, args, out, stderr); code != 0 {
			return fmt.Errorf("exit code %d", code)
		}
		return nil
	}); err != nil {
		fmt.Fprintln(stderr, "bench: page:", err)
		return 1
	}
	return 0
}

// measurePage runs the matching commands of a page. It writes the page after
// every command, so that an interrupted run keeps its results.
func measurePage(
	ctx context.Context, name string, only *regexp.Regexp, now time.Time, progress io.Writer,
	measure func(ctx context.Context, args []string, out io.Writer) error,
) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	found := 0
	for _, m := range block.FindAllSubmatch(data, -1) {
		command := string(m[1])
		if !only.MatchString(command) {
			continue
		}
		found++
		fmt.Fprintf(progress, "bench: page: %s\n", command)
		var out bytes.Buffer
		if err := measure(ctx, strings.Fields(command), &out); err != nil {
			return fmt.Errorf("%s: %w", command, err)
		}
		data = bytes.Replace(data, m[0], []byte(filled(command, out.String(), now)), 1)
		if err := os.WriteFile(name, data, 0o644); err != nil {
			return err
		}
	}
	if found == 0 {
		return fmt.Errorf("%s has no matching block <!-- bench COMMAND -->", name)
	}
	return nil
}

// filled returns a block with its results.
func filled(command, out string, now time.Time) string {
	var lines []string
	for line := range strings.Lines(out) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	return fmt.Sprintf("<!-- bench %s -->\nMeasured %s on %s by `go run ./internal/e2e/bench %s`:\n\n```text\n%s\n```\n<!-- /bench -->",
		command, now.UTC().Format(time.DateOnly), machine(), command,
		strings.Trim(strings.Join(lines, "\n"), "\n"))
}

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/internal/docblock"
)

// TestPage checks that page replaces the results of the matching blocks, keeps
// everything else, and keeps finished results when a later command fails.
func TestPage(t *testing.T) {
	name := filepath.Join(t.TempDir(), "page.md")
	before := "# Numbers\n\n<!-- bench drain -n 5 -->\nold\n<!-- /bench -->\n\ntext\n\n<!-- bench idle -->\n<!-- /bench -->\n\n<!-- bench write -->\nkept\n<!-- /bench -->\n"
	if err := os.WriteFile(name, []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	var ran []string
	measure := func(_ context.Context, args []string, out io.Writer) error {
		ran = append(ran, strings.Join(args, " "))
		fmt.Fprintf(out, "\nresult of %s  \n", args[0])
		if args[0] == "idle" {
			return broken
		}
		return nil
	}
	now := time.Date(2026, 3, 4, 23, 0, 0, 0, time.UTC)
	err := measurePage(t.Context(), name, regexp.MustCompile("drain|idle"), now, io.Discard, measure)
	if !errors.Is(err, broken) || strings.Join(ran, ", ") != "drain -n 5, idle" {
		t.Fatalf("ran %q, %v", ran, err)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	got := string(data)
	for _, want := range []string{
		"# Numbers\n\n<!-- bench drain -n 5 -->\nMeasured 2026-03-04 on ", "by `go run ./internal/e2e/bench drain -n 5`:\n\n```text\nresult of drain\n```\n<!-- /bench -->\n\ntext\n",
		"<!-- bench idle -->\n<!-- /bench -->", "<!-- bench write -->\nkept\n<!-- /bench -->\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the page lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "old") {
		t.Errorf("the old result is still there:\n%s", got)
	}
	if err := measurePage(t.Context(), name, regexp.MustCompile("nothing"), now, io.Discard, measure); err == nil {
		t.Error("a page without a matching block was accepted")
	}
}

// unmeasured is the content of a block before its first measurement.
const unmeasured = "Not measured yet.\n"

var (
	measured = regexp.MustCompile("^Measured \\d{4}-\\d\\d-\\d\\d on .+ by `go run ./internal/e2e/bench (.+)`:\n\n```text\n")
	recorded = regexp.MustCompile(`(?s)<!-- recorded \d{4}-\d\d-\d\d to \d{4}-\d\d-\d\d -->\n.*?<!-- /recorded -->`)
	digit    = regexp.MustCompile(`\b[0-9]`)
)

// TestBenchmarksPage: every block of docs/benchmarks.md names a valid command
// and has results of that command or none, every command has a block, and no
// number is outside of a block.
func TestBenchmarksPage(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(docblock.Root(t), "docs", "benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	var named []string
	for _, m := range block.FindAllStringSubmatch(text, -1) {
		args := strings.Fields(m[1])
		named = append(named, args[0])
		if err := parses(args); err != nil {
			t.Errorf("%s: %v", m[1], err)
		}
		if by := measured.FindStringSubmatch(m[2]); m[2] != unmeasured && (by == nil || by[1] != m[1]) {
			t.Errorf("%s: the block has neither results of its command nor %q:\n%s", m[1], unmeasured, m[2])
		}
	}
	for _, c := range commands {
		if !slices.Contains(named, c.name) && c.name != "relay" { // it measures nothing
			t.Errorf("the page has no block of %s", c.name)
		}
	}
	if !recorded.MatchString(text) {
		t.Error("the page has no dated block of recorded measurements")
	}
	for line := range strings.Lines(recorded.ReplaceAllString(block.ReplaceAllString(text, ""), "")) {
		if digit.MatchString(line) {
			t.Errorf("a number outside of a block: %s", line)
		}
	}
}

// parses returns an error if args are not a command and its flags.
func parses(args []string) error {
	at := slices.IndexFunc(commands, func(c command) bool { return c.name == args[0] })
	if at < 0 {
		return errors.New("unknown command")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	task := commands[at].prepare(flags)
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is not a flag", flags.Arg(0))
	}
	_, err := task.databases()
	return err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
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

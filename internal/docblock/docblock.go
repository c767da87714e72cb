// Package docblock extracts the code blocks of the documentation, so that tests
// can run them.
package docblock

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Root returns the root folder of the repository: the folder with go.work and
// LICENSE, at or above the test's folder. The demo has a go.work of its own.
func Root(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		_, noWork := os.Stat(filepath.Join(dir, "go.work"))
		_, noLicense := os.Stat(filepath.Join(dir, "LICENSE"))
		if noWork == nil && noLicense == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			tb.Fatal("docblock: no go.work with LICENSE at or above the test's folder")
		}
		dir = parent
	}
}

// Blocks returns the fenced blocks of a file, named relative to the repository,
// whose info string is info. It fails the test if there is none: a test without
// blocks proves nothing.
func Blocks(tb testing.TB, file, info string) []string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(Root(tb), file))
	if err != nil {
		tb.Fatal(err)
	}
	blocks := parse(string(text), info)
	if len(blocks) == 0 {
		tb.Fatalf("docblock: %s has no block marked %q", file, info)
	}
	return blocks
}

func parse(text, info string) []string {
	var blocks []string
	var block []string
	inside, wanted := false, false
	for _, line := range strings.Split(text, "\n") {
		switch {
		case !inside && strings.HasPrefix(line, "```"):
			inside, wanted = true, strings.TrimPrefix(line, "```") == info
			block = nil
		case inside && line == "```":
			if wanted {
				blocks = append(blocks, strings.Join(block, "\n")+"\n")
			}
			inside = false
		case inside:
			block = append(block, line)
		}
	}
	return blocks
}

package readme_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/docblock"
)

// elsewhere lists the guides whose code is run, not only compiled.
var elsewhere = map[string]string{
	"orm": "internal/e2e/orm", "guide": "internal/e2e/readme",
	"writing-a-store": "internal/repocheck", "writing-a-broker": "internal/repocheck",
}

// marker is a line of a frame that stands for a block of the guide, counted
// from 0, or only for its declarations or statements.
var marker = regexp.MustCompile(`(?m)^[ \t]*//block:(\d+)( declarations| statements)?$`)

// unused matches the compiler's errors about names that a fragment introduces
// for its reader, and what the go command reports while it fills its cache.
var unused = regexp.MustCompile(`declared and not used: |imported and not used|^# |^go: downloading `)

// TestGuides: the fragments of every guide compile, in a frame with their
// prerequisites.
func TestGuides(t *testing.T) {
	guides, err := filepath.Glob(filepath.Join(docblock.Root(t), "docs", "*.md"))
	if err != nil || len(guides) == 0 {
		t.Fatalf("no guides: %v", err)
	}
	files := map[string]string{}
	args := []string{"build", "-gcflags=-e"} // every error, not the first ten
	for _, file := range guides {
		name := strings.TrimSuffix(filepath.Base(file), ".md")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "```go\n") || elsewhere[name] != "" {
			continue
		}
		files["guides/"+name+"/guide.go"] = framed(t, name)
		args = append(args, "./guides/"+name)
	}
	args = append(args[:2:2], append([]string{overlay(t, files)}, args[2:]...)...)
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if !unused.MatchString(line) {
			t.Errorf("%s", strings.TrimSpace(line))
		}
	}
	if err != nil && len(out) == 0 {
		t.Error(err)
	}
}

// framed inserts the blocks of a guide into its frame. Every block must be
// used.
func framed(t *testing.T, name string) string {
	t.Helper()
	frame, err := os.ReadFile(filepath.Join("testdata", "guides", name+".go"))
	if err != nil {
		t.Fatalf("docs/%s.md has code that is not compiled: %v", name, err)
	}
	blocks := docblock.Blocks(t, "docs/"+name+".md", "go")
	placed := map[int]bool{}
	text := marker.ReplaceAllStringFunc(string(frame), func(line string) string {
		m := marker.FindStringSubmatch(line)
		n, err := strconv.Atoi(m[1])
		if err != nil || n >= len(blocks) {
			t.Fatalf("docs/%s.md has %d blocks, and the frame wants %s", name, len(blocks), strings.TrimSpace(line))
		}
		placed[n] = true
		block := strings.ReplaceAll(blocks[n], "{ … }", `{ panic("left out") }`)
		if m[2] == "" {
			return block
		}
		var part []string
		for _, paragraph := range strings.Split(block, "\n\n") {
			if declares(paragraph) == (m[2] == " declarations") {
				part = append(part, paragraph)
			}
		}
		return strings.Join(part, "\n\n")
	})
	for n, block := range blocks {
		if first, _, _ := strings.Cut(block, "\n"); !placed[n] {
			t.Errorf("docs/%s.md: block %d is in no frame: %s", name, n, first)
		}
	}
	return text
}

// declares reports whether a paragraph belongs outside functions.
func declares(paragraph string) bool {
	for _, word := range []string{"type ", "func ", "var ", "const "} {
		if strings.HasPrefix(paragraph, word) {
			return true
		}
	}
	return false
}
